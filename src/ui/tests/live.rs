//! Tests for the streams of live updates.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;

use super::*;

const LIVE: &str = "/stacks/apps/web/live";
const HEARTBEAT: &str = ": heartbeat\n\n";
const SIGNED_OUT: &str = "event: signed-out\ndata: null\n\n";

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_the_page_is_outdated() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let stream = server.get("/stacks/apps/web/live?version=1", &alice).await;
    assert_eq!((stream.status, &stream.headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    assert_eq!(stream.text, "event: end\ndata: null\n\n");
    // The fake API server contains no Update, so the stream assumes that the run is complete.
    let run = server.get("/stacks/apps/web/live?version=1&run=web-1", &alice).await;
    assert_eq!(run.text, "event: end\ndata: null\n\n");
    let bob = server.sign_in("of-bob").await;
    assert_eq!(server.get("/stacks/apps/web/live", &bob).await.status, 403);
}

#[tokio::test(start_paused = true)]
async fn a_sign_out_ends_the_streams_of_the_session() {
    let server = Server::start();
    let (alice, other) = (server.sign_in("of-alice").await, server.sign_in("of-alice").await);
    let form = format!("form-token={}", server.form_token(&alice).await);
    let sign_out = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        server.post("/sign-out", &alice, &form).await.status
    };
    let (first, second, continued, status) =
        tokio::join!(server.get(LIVE, &alice), server.get(LIVE, &alice), server.get(LIVE, &other), sign_out);
    assert_eq!(status, 303);
    for ended in [first, second] {
        assert_eq!(ended.text, format!("{HEARTBEAT}{SIGNED_OUT}"));
    }
    let count = continued.text.matches(HEARTBEAT).count();
    assert!(count > 30 && !continued.text.contains(SIGNED_OUT), "{count}: the other session is valid");
    for cookie in [alice.as_str(), ""] {
        let later = server.get(LIVE, cookie).await;
        let media_type = later.headers["content-type"].to_str().unwrap();
        assert_eq!((later.status, media_type, later.text.as_str()), (200, "text/event-stream", SIGNED_OUT));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_does_not_start_after_the_sign_out() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let form = format!("form-token={}", server.form_token(&alice).await);
    // The limit of streams per user delays the last stream until the sign-out ends the other streams.
    let open = futures::future::join_all((0..6).map(|_| server.get(LIVE, &alice)));
    let after = |milliseconds| tokio::time::sleep(Duration::from_millis(milliseconds));
    let last = async {
        after(500).await;
        server.get(LIVE, &alice).await
    };
    let sign_out = async {
        after(1000).await;
        server.post("/sign-out", &alice, &form).await.status
    };
    let (ended, last, status) = tokio::join!(open, last, sign_out);
    assert_eq!(status, 303);
    assert!(ended.iter().chain([&last]).all(|response| response.text == SIGNED_OUT), "{}", last.text);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_the_session_expires() {
    let server = Server::start();
    let claims = json!({ "exp": Timestamp::now().as_second() + 40 }).to_string();
    let token = format!("e30.{}.sig", BASE64_URL_SAFE_NO_PAD.encode(claims));
    let alice = server.sign_in(&token).await;
    let expired = server.get(LIVE, &alice).await;
    assert_eq!(expired.text, format!("{HEARTBEAT}{HEARTBEAT}{SIGNED_OUT}"));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_by_the_api_server_ends_only_the_stream() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let form = format!("form-token={}", server.form_token(&alice).await);
    let open = server.get(&format!("{LIVE}?run=revoked"), &alice).await;
    assert_eq!((open.status, open.text.as_str()), (200, ""), "the script opens another stream");
    let open = server.get(&format!("{LIVE}?run=logging"), &alice).await;
    assert!(open.text.starts_with("event: progress\n"), "{}", open.text);
    assert!(open.text.ends_with("}\n\n") && open.text.matches("event: ").count() == 1, "{}", open.text);
    let rejected = "/stacks/apps/revoked/live";
    let first = server.get(rejected, &alice).await;
    assert!(first.status == 401 && !first.text.contains(SIGNED_OUT), "{}", first.text);
    assert_eq!(server.post("/sign-out", &alice, &form).await.status, 303);
    assert_eq!(server.get(rejected, &alice).await.text, SIGNED_OUT, "the session has ended");
}
