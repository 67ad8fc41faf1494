//! `/debug/pprof/profile`: CPU profiles of this process, with the path and format that `go tool pprof` uses for Flux's
//! controllers.

mod format;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use thiserror::Error;
use tokio::sync::Mutex;
use url::form_urlencoded;

/// Sampling frequency of a busy thread in Hz, as in Go.
const FREQUENCY: i32 = 100;
/// Default duration in seconds, as in Go.
const DEFAULT_SECONDS: u64 = 30;
/// Maximum duration in seconds. The memory for samples grows with the duration.
const MAX_SECONDS: u64 = 120;
/// Maximum duration of a profile, without the time for encoding it.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(MAX_SECONDS);

/// Error while taking a profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    #[error("invalid seconds {0:?}: must be an integer from 1 to {MAX_SECONDS}")]
    Seconds(String),
    #[error("another profile is in progress; retry when it is complete")]
    Busy,
    #[error("failed to take a profile")]
    Profiler(#[from] pprof::Error),
    #[error("failed to write the profile")]
    Write(#[from] std::io::Error),
    #[error("profiling task failed")]
    Task(#[from] tokio::task::JoinError),
}

/// Lock for taking a profile. The process has only one profiling timer, so there is at most one profile at a time.
type Turn = Arc<Mutex<()>>;

/// Returns the router of the profile endpoint.
pub fn router() -> Router {
    Router::new().route("/debug/pprof/profile", get(show)).with_state(Turn::default())
}

async fn show(State(turn): State<Turn>, RawQuery(query): RawQuery) -> Response {
    match profile(&turn, query.as_deref().unwrap_or_default()).await {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(error) => {
            let status = match error {
                ProfileError::Seconds(_) => StatusCode::BAD_REQUEST,
                ProfileError::Busy => StatusCode::CONFLICT,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, format!("{}\n", crate::telemetry::chain(&error))).into_response()
        }
    }
}

/// Takes a profile for the requested duration. If the client disconnects, dropping the future ends the profile.
async fn profile(turn: &Turn, query: &str) -> Result<Vec<u8>, ProfileError> {
    let duration = seconds(query)?;
    let _turn = turn.try_lock().map_err(|_| ProfileError::Busy)?;
    let guard = pprof::ProfilerGuardBuilder::default().frequency(FREQUENCY).build()?;
    tokio::time::sleep(duration).await;
    // Resolving symbols is slow and would block the async runtime.
    tokio::task::spawn_blocking(move || {
        let report = guard.report().build()?;
        drop(guard);
        Ok(format::encode(&report)?)
    })
    .await?
}

fn seconds(query: &str) -> Result<Duration, ProfileError> {
    let Some((_, text)) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "seconds") else {
        return Ok(Duration::from_secs(DEFAULT_SECONDS));
    };
    match text.parse() {
        Ok(seconds @ 1..=MAX_SECONDS) => Ok(Duration::from_secs(seconds)),
        _ => Err(ProfileError::Seconds(text.into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_duration_is_configurable_within_limits() {
        for (query, wanted) in [
            ("", Ok(30)),
            ("debug=0", Ok(30)),
            ("seconds=1", Ok(1)),
            ("debug=0&seconds=120", Ok(120)),
            ("seconds=0", Err("invalid seconds \"0\": must be an integer from 1 to 120")),
            ("seconds=121", Err("invalid seconds \"121\": must be an integer from 1 to 120")),
            ("seconds=", Err("invalid seconds \"\": must be an integer from 1 to 120")),
            ("seconds=-1", Err("invalid seconds \"-1\": must be an integer from 1 to 120")),
        ] {
            let found = seconds(query).map(|duration| duration.as_secs()).map_err(|error| error.to_string());
            assert_eq!(found, wanted.map_err(str::to_owned), "{query}");
        }
    }

    #[tokio::test]
    async fn only_one_profile_is_taken_at_a_time() {
        let turn = Turn::default();
        let _taken = turn.try_lock().unwrap();
        assert!(matches!(profile(&turn, "seconds=1").await, Err(ProfileError::Busy)));
    }
}
