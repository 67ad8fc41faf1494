//! HTTP servers of the manager: connection limits, rate limits, metrics, CPU profiles, and probes for the kubelet.

mod connections;
mod metrics_text;
mod profile;
mod rate;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use crate::server::connections::{Limits, PeerAddress, serve};
use crate::server::metrics_text::MetricsText;
pub use crate::server::rate::{Bucket, Rate};
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics};

/// Reason why an endpoint could not start.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("failed to listen on {address} for {purpose}")]
    Listen { purpose: &'static str, address: SocketAddr, source: io::Error },
}

/// Listens on an address. If IPv6 is unavailable, the function listens on all IPv4 addresses instead of `[::]`.
pub async fn listen(purpose: &'static str, address: SocketAddr) -> Result<TcpListener, ServerError> {
    let failed = |source| ServerError::Listen { purpose, address, source };
    match TcpListener::bind(address).await {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() && !is_in_use(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await.map_err(failed)
        }
        other => other.map_err(failed),
    }
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Returns the router for `/metrics` and, if `pprof` is true, for `/debug/pprof/profile`. The Flux controllers use the
/// same paths.
pub fn metrics_router(metrics: Metrics, pprof: bool) -> Router {
    let router = Router::new().route("/metrics", get(show_metrics)).with_state(MetricsText::new(metrics));
    if pprof { router.merge(profile::router()) } else { router }
}

/// Returns the limits for the metrics and health endpoints, which have few clients.
pub fn endpoint_limits(pprof: bool) -> Limits {
    let all = Limits::default().all + if pprof { profile::MAX_DURATION } else { Duration::ZERO };
    Limits { connections: 32, waiting_per_peer: 8, all, ..Limits::default() }
}

/// Returns the router for `/healthz`, which always succeeds, and for `/readyz`, which succeeds if `ready` is `true`.
pub fn health_router(ready: watch::Receiver<bool>) -> Router {
    Router::new().route("/healthz", get(|| async { "ok" })).route("/readyz", get(show_ready)).with_state(ready)
}

async fn show_metrics(State(texts): State<MetricsText>) -> Response {
    match texts.read().await {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn show_ready(State(ready): State<watch::Receiver<bool>>) -> impl IntoResponse {
    if *ready.borrow() { (StatusCode::OK, "ok") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready") }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;
    use tower::ServiceExt;

    use super::*;

    async fn ask(router: &Router, path: &str) -> (StatusCode, Option<String>, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap().to_owned());
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_depends_on_the_state_of_the_process_but_health_does_not() {
        let (flag, ready) = watch::channel(false);
        let router = health_router(ready);
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(ask(&router, "/healthz").await.0, StatusCode::OK);
        flag.send(true).unwrap();
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn metrics_use_the_open_metrics_format() {
        let metrics = Metrics::default();
        metrics.runs().count(2, 0);
        let (status, kind, body) = ask(&metrics_router(metrics, false), "/metrics").await;
        assert_eq!((status, kind.as_deref()), (StatusCode::OK, Some(CONTENT_TYPE)));
        assert!(body.contains("pulumi_controller_runs_open 2\n") && body.ends_with("# EOF\n"), "{body}");
    }

    #[tokio::test]
    async fn profiles_are_served_only_if_enabled() {
        // The requested duration of 0 seconds is invalid, so a router that serves the profile path responds with a bad
        // request error.
        for (pprof, expected) in [(false, StatusCode::NOT_FOUND), (true, StatusCode::BAD_REQUEST)] {
            let router = metrics_router(Metrics::default(), pprof);
            assert_eq!(ask(&router, "/debug/pprof/profile?seconds=0").await.0, expected, "--enable-pprof={pprof}");
            assert_eq!(ask(&router, "/metrics").await.0, StatusCode::OK);
        }
        assert!(
            endpoint_limits(true).all > profile::MAX_DURATION && endpoint_limits(false).all < profile::MAX_DURATION
        );
    }

    #[tokio::test]
    async fn the_server_stops_on_cancellation() {
        let listener = listen("a test", SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (_flag, ready) = watch::channel(true);
        let serving = serve("a test", listener, health_router(ready), endpoint_limits(false), tasks, end.clone());
        end.cancel();
        tokio::time::timeout(Duration::from_secs(5), serving).await.expect("ends within the timeout");
    }

    #[tokio::test]
    async fn the_error_for_a_used_address_contains_the_address() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let taken = listen("a test", address).await.unwrap().local_addr().unwrap();
        let _listener = listen("a test", taken).await.unwrap();
        let error = listen("metrics", taken).await.unwrap_err();
        assert_eq!(error.to_string(), format!("failed to listen on {taken} for metrics"));
    }
}
