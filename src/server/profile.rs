//! `/debug/pprof/profile`: CPU profiles of this process, for `go tool pprof`. The Flux controllers use the same path
//! and the same format.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use pprof::Report;
use prost::Message;
use thiserror::Error;
use tokio::sync::Mutex;
use url::form_urlencoded;

/// Sampling frequency of a busy thread in Hz, as in Go.
const FREQUENCY: i32 = 100;
/// Default duration of a profile in seconds, as in Go.
const DEFAULT_SECONDS: u64 = 30;
/// Maximum duration in seconds. The duration is limited, because the memory for samples grows with the duration.
const MAX_SECONDS: u64 = 120;
/// Maximum sampling duration of a profile.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(MAX_SECONDS);

/// Error of a request for a profile.
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

/// Lock that permits only one profile at a time, because the process has only one profiling timer.
type ProfileLock = Arc<Mutex<()>>;

/// Returns the router of the profile endpoint.
pub fn router() -> Router {
    Router::new().route("/debug/pprof/profile", get(show)).with_state(ProfileLock::default())
}

async fn show(State(turn): State<ProfileLock>, RawQuery(query): RawQuery) -> Response {
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

/// Samples the process for the requested duration, and returns the profile. Dropping the future, for example when the
/// client disconnects, stops the profiler.
async fn profile(turn: &ProfileLock, query: &str) -> Result<Vec<u8>, ProfileError> {
    let duration = seconds(query)?;
    let _turn = turn.try_lock().map_err(|_| ProfileError::Busy)?;
    let guard = pprof::ProfilerGuardBuilder::default().frequency(FREQUENCY).build()?;
    tokio::time::sleep(duration).await;
    // A blocking thread resolves the symbols, because symbol resolution is slow and would block the async runtime.
    tokio::task::spawn_blocking(move || {
        let report = guard.report().build()?;
        drop(guard);
        Ok(encode(&report)?)
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

// Messages of `profile.proto`, with the same field numbers.

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    /// All strings. Other fields refer to a string by its index in this list. The first string is empty.
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// Functions of the stack, from the innermost to the outermost.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

/// Sampled stack of a thread.
struct SampledStack<'a> {
    thread: &'a str,
    /// Functions of the stack, from the innermost to the outermost.
    functions: Vec<String>,
    times: i64,
}

/// Encodes a report in the `go tool pprof` format, which is a gzip-compressed `profile.proto` message.
fn encode(report: &Report) -> io::Result<Vec<u8>> {
    let mut profile = Builder::new(1_000_000_000 / i64::from(report.timing.frequency.max(1)));
    for (frames, times) in &report.data {
        let functions = frames.frames.iter().flatten().map(pprof::Symbol::name).collect();
        let times = i64::try_from(*times).unwrap_or(i64::MAX);
        profile.add(&SampledStack { thread: &frames.thread_name, functions, times });
    }
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    let mut profile = profile.profile;
    profile.time_nanos = report.timing.start_time.duration_since(UNIX_EPOCH).map(nanos).unwrap_or_default();
    profile.duration_nanos = nanos(report.timing.duration);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&profile.encode_to_vec())?;
    gzip.finish()
}

struct Builder {
    profile: Profile,
    texts: HashMap<String, i64>,
    /// IDs of functions by name. The profile contains no addresses within functions, so each function has only one
    /// location, with the ID of the function.
    functions: HashMap<String, u64>,
}

impl Builder {
    /// Creates a builder. `period` is the CPU time of each sample in nanoseconds.
    fn new(period: i64) -> Self {
        let (profile, texts, functions) = Default::default();
        let mut builder = Builder { profile, texts, functions };
        builder.text("");
        let samples = ValueType { r#type: builder.text("samples"), unit: builder.text("count") };
        let processor = ValueType { r#type: builder.text("cpu"), unit: builder.text("nanoseconds") };
        builder.profile.sample_type = vec![samples, processor];
        builder.profile.period_type = Some(processor);
        builder.profile.period = period;
        builder
    }

    fn add(&mut self, seen: &SampledStack<'_>) {
        let location_id = seen.functions.iter().map(|name| self.function(name)).collect();
        let value = vec![seen.times, seen.times.saturating_mul(self.profile.period)];
        let label = vec![Label { key: self.text("thread"), str: self.text(seen.thread) }];
        self.profile.sample.push(Sample { location_id, value, label });
    }

    fn function(&mut self, name: &str) -> u64 {
        if let Some(id) = self.functions.get(name) {
            return *id;
        }
        // Zero is not a valid ID.
        let id = self.functions.len() as u64 + 1;
        let text = self.text(name);
        self.functions.insert(name.to_owned(), id);
        self.profile.function.push(Function { id, name: text, system_name: text });
        self.profile.location.push(Location { id, line: vec![Line { function_id: id }] });
        id
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(index) = self.texts.get(text) {
            return *index;
        }
        let index = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), index);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_duration_is_configurable_within_limits() {
        for (query, expected) in [
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
            assert_eq!(found, expected.map_err(str::to_owned), "{query}");
        }
    }

    #[tokio::test]
    async fn only_one_profile_is_taken_at_a_time() {
        let turn = ProfileLock::default();
        let _taken = turn.try_lock().unwrap();
        assert!(matches!(profile(&turn, "seconds=1").await, Err(ProfileError::Busy)));
    }

    #[test]
    fn a_profile_lists_each_function_once_and_counts_its_time() {
        let mut builder = Builder::new(10_000_000);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        builder.add(&SampledStack { thread: "worker", functions: names(&["parse", "read", "main"]), times: 3 });
        builder.add(&SampledStack { thread: "worker", functions: names(&["read", "main"]), times: 1 });
        let profile = Profile::decode(builder.profile.encode_to_vec().as_slice()).unwrap();
        let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
        let name = |location: &u64| {
            let location = profile.location.iter().find(|found| found.id == *location).unwrap();
            let function = profile.function.iter().find(|found| found.id == location.line[0].function_id).unwrap();
            text(function.name)
        };
        let samples: Vec<_> = profile
            .sample
            .iter()
            .map(|sample| {
                let thread = (text(sample.label[0].key), text(sample.label[0].str));
                (sample.location_id.iter().map(name).collect::<Vec<_>>(), sample.value.clone(), thread)
            })
            .collect();
        let thread = ("thread", "worker");
        let expected = [
            (vec!["parse", "read", "main"], vec![3, 30_000_000], thread),
            (vec!["read", "main"], vec![1, 10_000_000], thread),
        ];
        assert_eq!(samples, expected);
        assert_eq!((profile.function.len(), profile.location.len(), text(0)), (3, 3, ""));
        let types: Vec<_> = profile.sample_type.iter().map(|kind| (text(kind.r#type), text(kind.unit))).collect();
        assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    }
}
