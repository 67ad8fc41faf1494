//! Tests the CPU profile of a busy process. The test has its own binary, because a profile covers all threads of a
//! process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a missing prerequisite fails the test")]

use std::hint::black_box;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use flate2::read::GzDecoder;
use pulumi_controller::server::metrics_router;
use pulumi_controller::telemetry::metrics::Metrics;
use tower::ServiceExt as _;

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_contains_the_busy_thread() -> Result<()> {
    let end = Arc::new(AtomicBool::new(false));
    let until = end.clone();
    let busy = std::thread::Builder::new().name("busy".to_owned()).spawn(move || {
        let mut number = 0_u64;
        while !until.load(Ordering::Relaxed) {
            number = black_box(number.wrapping_mul(31).wrapping_add(7));
        }
    })?;
    let request = Request::get("/debug/pprof/profile?seconds=1").body(Body::empty())?;
    let response = metrics_router(Metrics::default(), true).oneshot(request).await?;
    end.store(true, Ordering::Relaxed);
    busy.join().expect("ends within the timeout");
    let status = response.status();
    let bytes = to_bytes(response.into_body(), 1 << 24).await?;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&bytes));
    let mut profile = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut profile)?;
    let holds = |text: &str| profile.windows(text.len()).any(|window| window == text.as_bytes());
    for text in ["samples", "cpu", "nanoseconds", "thread", "busy"] {
        assert!(holds(text), "the profile contains {text}");
    }
    Ok(())
}
