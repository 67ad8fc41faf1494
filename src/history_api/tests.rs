//! Tests for the endpoint with a fake API server.

use axum::body::to_bytes;
use axum::http::Request;
use jiff::Timestamp;
use serde_json::json;
use tower::ServiceExt;

use super::*;
use crate::history::{File, Retention, RunName};
use crate::runtime::fake_api::{FakeResponse, RecordedRequest, client};
use crate::telemetry::metrics::Metrics;

fn run() -> RunName {
    RunName {
        namespace: "apps".to_owned(),
        stack: "web".to_owned(),
        stack_uid: "uid".to_owned(),
        created: Timestamp::UNIX_EPOCH,
        kind: "up",
        update_uid: "run".to_owned(),
    }
}

/// Creation time of the namespace `apps`. The namespace is at least as old as the run, so the endpoint returns the run.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Returns the endpoint with one run. Only the user `alice` may read the history of the Stack `web` in the namespace
/// `apps`. If `created` is `None`, the namespace does not exist.
async fn endpoint(created: Option<&'static str>) -> Router {
    router_of(api(created).await)
}

async fn api(created: Option<&'static str>) -> Api {
    let (client, _) = client(move |request: &RecordedRequest| {
        if request.path == "/api/v1/namespaces/apps" {
            let Some(created) = created else { return FakeResponse::refusal(404, "NotFound") };
            let metadata = json!({"name": "apps", "creationTimestamp": created});
            let kind = json!("PartialObjectMetadata");
            let namespace = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": metadata});
            return FakeResponse::Json(200, namespace);
        }
        let spec = &request.body["spec"];
        if request.path.ends_with("/tokenreviews") {
            let user = match spec["token"].as_str() {
                Some("of-alice") => json!({"username": "alice", "groups": ["team"]}),
                Some("of-bob") => json!({"username": "bob"}),
                _ => return FakeResponse::Json(201, json!({"metadata": {}, "spec": spec, "status": {}})),
            };
            let status = json!({"authenticated": true, "user": user});
            return FakeResponse::Json(201, json!({"metadata": {}, "spec": spec, "status": status}));
        }
        let attributes = &spec["resourceAttributes"];
        let is_history = (&attributes["resource"], &attributes["subresource"], &attributes["verb"])
            == (&json!("stacks"), &json!("history"), &json!("get"));
        let is_own = (&attributes["namespace"], &attributes["name"]) == (&json!("apps"), &json!("web"));
        let allowed = is_history && is_own && spec["user"] == "alice";
        FakeResponse::Json(201, json!({"metadata": {}, "spec": spec, "status": {"allowed": allowed}}))
    });
    let retention = Retention { max_runs: 9, max_age: std::time::Duration::ZERO, max_size: None };
    let store = HistoryStore::in_memory("", retention, Metrics::default());
    store.write(&run(), File::Summary, b"{}".to_vec()).await.unwrap();
    store.write(&run(), File::Output, b"compressed".to_vec()).await.unwrap();
    Api::new(client, &store)
}

async fn ask(path: &str, token: Option<&str>) -> (u16, HeaderMap, String) {
    ask_in(Some(CREATED), path, token).await
}

async fn ask_in(created: Option<&'static str>, path: &str, token: Option<&str>) -> (u16, HeaderMap, String) {
    let mut request = Request::get(path);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let response = endpoint(created).await.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, headers, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_user_with_permission_reads_the_files_of_the_stack() {
    let (status, _, body) = ask("/history/apps/web", Some("of-alice")).await;
    assert_eq!(status, 200, "{body}");
    let names: Vec<String> = serde_json::from_str(&body).unwrap();
    assert!(names.contains(&run().object(File::Output)) && names.len() == 2, "{names:?}");
    let (status, headers, body) = ask(&format!("/history/{}", run().object(File::Output)), Some("of-alice")).await;
    assert_eq!((status, body.as_str()), (200, "compressed"));
    assert_eq!(headers["content-encoding"], "gzip");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    let missing = format!("/history/{}", run().object(File::Plan));
    assert_eq!(ask(&missing, Some("of-alice")).await.0, 404);
}

#[tokio::test]
async fn a_user_without_permission_learns_nothing() {
    let file = format!("/history/{}", run().object(File::Summary));
    let missing = format!("/history/{}", run().object(File::Plan));
    for path in [&file, &missing] {
        for (token, expected) in [(None, 401), (Some("unknown"), 401), (Some("of-bob"), 403)] {
            assert_eq!(ask(path, token).await.0, expected, "{path} {token:?}");
        }
    }
    let (status, _, body) = ask("/history/other/web", Some("of-alice")).await;
    assert!(status == 403 && body.contains("needs the verb get for stacks/history"), "{body}");
    assert_eq!(ask("/history/apps/web/../../other/web", Some("of-alice")).await.0, 404);
}

#[tokio::test]
async fn a_user_of_a_new_namespace_does_not_read_the_runs_of_a_deleted_namespace() {
    let file = format!("/history/{}", run().object(File::Summary));
    let rows = [
        (Some(CREATED), 200, 200, 2),
        (Some("1970-01-01T00:00:01Z"), 200, 404, 0),
        (Some("2026-11-26T18:42:07Z"), 200, 404, 0),
        (None, 403, 403, 0),
    ];
    for (created, list_status, file_status, count) in rows {
        let (status, _, body) = ask_in(created, "/history/apps/web", Some("of-alice")).await;
        assert_eq!(status, list_status, "{created:?}: {body}");
        let names: Vec<String> = serde_json::from_str(&body).unwrap_or_default();
        assert_eq!(names.len(), count, "{created:?}: {body}");
        assert_eq!(ask_in(created, &file, Some("of-alice")).await.0, file_status, "{created:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_tokens_are_limited_but_accepted_tokens_are_not() {
    let router = endpoint(Some(CREATED)).await;
    let ask = |token: String| {
        let request = Request::get("/history/apps/web").header("Authorization", format!("Bearer {token}"));
        let request = request.extension(PeerAddress(std::net::Ipv4Addr::LOCALHOST.into()));
        router.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    for _ in 0..20 {
        assert_eq!(ask("of-alice".to_owned()).await.unwrap().status(), 200);
    }
    for number in 0..10 {
        assert_eq!(ask(format!("random-{number}")).await.unwrap().status(), 401);
    }
    let limited = ask("random".to_owned()).await.unwrap();
    assert_eq!((limited.status().as_u16(), limited.headers()["retry-after"].to_str().unwrap()), (429, RETRY_AFTER));
    assert_eq!(ask("of-alice".to_owned()).await.unwrap().status(), 200, "the token was accepted before");
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(ask("random".to_owned()).await.unwrap().status(), 401);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_files_in_memory_is_limited() {
    let router = endpoint(Some(CREATED)).await;
    let ask = |file: File| {
        let path = format!("/history/{}", run().object(file));
        let request = Request::get(path).header("Authorization", "Bearer of-alice");
        router.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut sending = Vec::new();
    for _ in 0..MAX_FILES {
        assert_eq!(ask(File::Plan).await.unwrap().status(), 404, "a missing file does not count");
        let response = ask(File::Output).await.unwrap();
        assert_eq!(response.status(), 200);
        sending.push(response);
    }
    assert_eq!(ask(File::Output).await.unwrap().status(), 503);
    sending.pop();
    let response = ask(File::Output).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(to_bytes(response.into_body(), 1 << 20).await.unwrap(), "compressed");
    assert_eq!(ask(File::Output).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_concurrent_listings_is_limited() {
    let api = api(Some(CREATED)).await;
    let listings = api.listings.clone();
    let router = router_of(api);
    let ask = || {
        let request = Request::get("/history/apps/web").header("Authorization", "Bearer of-alice");
        router.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut running = Vec::new();
    for _ in 0..MAX_LISTINGS {
        assert_eq!(ask().await.unwrap().status(), 200);
        running.push(slot(&listings).await.unwrap());
    }
    let busy = ask().await.unwrap();
    assert_eq!((busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()), (503, RETRY_AFTER));
    let end = async {
        tokio::time::sleep(SLOT_TIMEOUT / 2).await;
        running.pop();
    };
    let (waited, ()) = tokio::join!(ask(), end);
    assert_eq!(waited.unwrap().status(), 200);
}
