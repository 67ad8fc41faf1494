//! Tests for the whole UI with a fake API server.

mod live;
mod oidc;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, header};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::directory::Directory;
use super::live::streams::Streams;
use super::oidc::Oidc;
use super::permissions::Permissions;
use super::request_limits::RequestLimits;
use super::session::Sessions;
use super::sign_in_limits::SignInLimits;
use super::state::Ui;
use super::stored_runs::StoredRuns;
use super::users::Users;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, client};
use crate::server::PeerAddress;
use crate::view::fixtures::{DIGEST, PLAN, condition, stack, update};

fn status() -> Value {
    json!({
        "conditions": [condition("Ready", "True", "ProcessingCompleted", "up to date")],
        "plan": { "digest": PLAN, "updateName": "web-1", "fileDigest": DIGEST },
    })
}

/// Responds like an API server with four users: Alice may list, read and change the Stacks in the namespace `apps`,
/// Carol may list and read these Stacks, Dave may read these Stacks, but not check permissions, and Bob has no
/// permissions.
fn respond(request: &RecordedRequest) -> FakeResponse {
    let user = match request.authorization.as_str() {
        "Bearer of-alice" => "alice",
        "Bearer of-bob" => "bob",
        "Bearer of-carol" => "carol",
        "Bearer of-dave" => "dave",
        // An ID token from the fake issuer.
        token if token.starts_with("Bearer e30.") => "alice",
        _ => return FakeResponse::refusal(401, "Unauthorized"),
    };
    let attributes = &request.body["spec"]["resourceAttributes"];
    match (request.method.as_str(), request.path.as_str()) {
        (_, "/apis/authentication.k8s.io/v1/selfsubjectreviews") => {
            FakeResponse::Json(201, json!({ "metadata": {}, "status": { "userInfo": { "username": user } } }))
        }
        (_, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") if user == "dave" => {
            FakeResponse::refusal(403, "Forbidden")
        }
        (_, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
            let may_read =
                user == "carol" && ["list", "get"].contains(&attributes["verb"].as_str().unwrap_or_default());
            let allowed = (user == "alice" || may_read) && attributes["namespace"] == "apps";
            FakeResponse::Json(201, json!({ "metadata": {}, "spec": {}, "status": { "allowed": allowed } }))
        }
        (method, _) if !matches!((user, method), ("alice", _) | ("carol" | "dave", "GET")) => {
            FakeResponse::refusal(403, "Forbidden")
        }
        ("GET", "/apis/pulumi.com/v1/namespaces/apps/stacks/web") => {
            FakeResponse::Json(200, serde_json::to_value(stack("web", &json!({}), &status())).unwrap())
        }
        ("PATCH", "/apis/pulumi.com/v1/namespaces/apps/stacks/web") => FakeResponse::Json(
            200,
            json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": "web" } }),
        ),
        ("GET", "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/logging") => {
            let running = update("logging", "up", &json!({ "startTime": "2026-11-02T11:00:00Z" }));
            FakeResponse::Json(200, serde_json::to_value(running).unwrap())
        }
        // The API server rejects the token when a stream starts, while a stream is open, or when a stream reads a log.
        (
            "GET",
            "/apis/pulumi.com/v1/namespaces/apps/stacks/revoked"
            | "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/updates/revoked"
            | "/api/v1/namespaces/apps/pods/web-workspace-0",
        ) => FakeResponse::refusal(401, "Unauthorized"),
        ("POST", "/apis/pulumi.com/v1alpha1/namespaces/apps/approvals") => {
            FakeResponse::Json(201, request.body.clone())
        }
        _ => FakeResponse::refusal(404, "NotFound"),
    }
}

struct Server {
    router: Router,
    log: Log,
}

struct Response {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Response {
    fn location(&self) -> &str {
        self.headers.get(header::LOCATION).map_or("", |value| value.to_str().unwrap())
    }
}

impl Server {
    fn start() -> Self {
        Self::with_issuer(None)
    }

    fn with_issuer(oidc: Option<Oidc>) -> Self {
        let (client, log) = client(respond);
        let directory = Directory::default();
        let other = {
            let mut other = stack("secret", &json!({}), &json!({}));
            other.metadata.namespace = Some("infra".to_owned());
            other
        };
        let web = stack("web", &json!({}), &status());
        for event in [Event::Init, Event::InitApply(web), Event::InitApply(other), Event::InitDone] {
            directory.apply(&event);
        }
        let ui = Ui {
            users: Users::new(client.clone()),
            sessions: Sessions::new().unwrap(),
            sign_in_limits: SignInLimits::default(),
            exchange_limits: SignInLimits::default(),
            request_limits: RequestLimits::default(),
            oidc,
            permissions: Permissions::default(),
            directory,
            stored_runs: StoredRuns::new(client, None),
            streams: Streams::new(TaskTracker::new(), CancellationToken::new()),
            cluster_name: "production".to_owned(),
        };
        Server { router: super::router::router(Arc::new(ui)), log }
    }

    async fn send(&self, request: Request<Body>) -> Response {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        Response { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
    }

    async fn get(&self, path: &str, cookie: &str) -> Response {
        self.send(Request::get(path).header("cookie", cookie).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, cookie: &str, form: &str) -> Response {
        let request = Request::post(path).header("cookie", cookie).header("sec-fetch-site", "same-origin");
        let request = request.extension(PeerAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        self.send(request.body(Body::from(form.to_owned())).unwrap()).await
    }

    /// Signs in, and returns the session cookies.
    async fn sign_in(&self, token: &str) -> String {
        let response = self.post("/sign-in", "", &format!("token={token}&next=%2Ffleet")).await;
        assert_eq!((response.status, response.location()), (303, "/fleet"), "{}", response.text);
        let cookies = response.headers.get_all(header::SET_COOKIE).into_iter();
        let pairs = cookies.map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap());
        pairs.collect::<Vec<_>>().join("; ")
    }

    /// Returns the form token on a Stack's page.
    async fn form_token(&self, cookie: &str) -> String {
        let page = self.get("/stacks/apps/web", cookie).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let (_, rest) = page.text.split_once("name=\"form-token\" value=\"").expect("a form");
        rest.split('"').next().unwrap_or_default().to_owned()
    }
}

#[tokio::test]
async fn a_user_without_a_session_signs_in_first() {
    let server = Server::start();
    let page = server.get("/stacks/apps/web?a=b", "").await;
    assert_eq!((page.status, page.location()), (303, "/sign-in?next=%2Fstacks%2Fapps%2Fweb%3Fa%3Db"));
    let form = server.get(page.location(), "").await;
    assert!(form.status == 200 && form.text.contains("value=\"/stacks/apps/web?a=b\""), "{}", form.text);
    let rejected = server.post("/sign-in", "", "token=unknown").await;
    assert!(rejected.status == 401 && rejected.text.contains("the API server rejected the token"), "{}", rejected.text);
    assert_eq!(server.post("/sign-in", "", "token=").await.status, 400);
    let linked = Request::get("/").header("sec-fetch-site", "cross-site").body(Body::empty()).unwrap();
    let reload = server.send(linked).await;
    assert!(reload.status == 200 && reload.text.contains("http-equiv=\"refresh\""), "{}", reload.text);
}

#[tokio::test]
async fn a_user_sees_only_permitted_namespaces() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let list = server.get("/", &alice).await;
    assert!(list.status == 200 && list.text.contains("1 Stack<") && list.text.contains(">web</a>"), "{}", list.text);
    assert!(!list.text.contains("secret"), "{}", list.text);
    assert!(!server.get("/?namespace=infra", &alice).await.text.contains("secret"));
    assert!(!server.get("/fleet", &alice).await.text.contains("infra"));
    let bob = server.sign_in("of-bob").await;
    assert!(server.get("/", &bob).await.text.contains("No Stack matches"));
    let refused = server.get("/stacks/apps/web", &bob).await;
    assert!(refused.status == 403 && refused.text.contains("failed to read Stack apps/web"), "{}", refused.text);
    for path in ["/stacks/apps/missing", "/stacks/apps/web/runs/web-9", "/stacks/apps/%2e%2e", "/none"] {
        assert_eq!(server.get(path, &alice).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn every_response_has_the_security_headers() {
    let server = Server::start();
    for path in ["/", "/sign-in", "/style.css", "/script.js", "/none"] {
        let headers = server.get(path, "").await.headers;
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self'"), "{path}: {policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["referrer-policy"], "same-origin", "{path}");
        let is_public = path.contains('.');
        assert_eq!(headers["cache-control"] == "no-store", !is_public, "{path}");
    }
}

#[tokio::test]
async fn an_action_uses_the_token_of_the_user() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let token = server.form_token(&alice).await;
    let done = server.post("/stacks/apps/web/actions/suspend", &alice, &format!("form-token={token}")).await;
    assert_eq!((done.status, done.location()), (303, "/stacks/apps/web?done=suspend"), "{}", done.text);
    let plan = format!("form-token={token}&plan={PLAN}&reason=ok");
    let approved = server.post("/stacks/apps/web/actions/approve", &alice, &plan).await;
    let confirmation = format!("/stacks/apps/web?done=approve&plan={PLAN}");
    assert_eq!((approved.status, approved.location()), (303, confirmation.as_str()), "{}", approved.text);
    let requests = server.log.all();
    let patch = requests.iter().find(|request| request.method == "PATCH").unwrap();
    assert_eq!(
        (&patch.body, patch.authorization.as_str()),
        (&json!({ "spec": { "suspend": true } }), "Bearer of-alice")
    );
    let approval = requests.iter().find(|request| request.path.ends_with("/approvals")).unwrap();
    assert_eq!(approval.body["spec"]["by"], "alice");
    assert!(server.get(done.location(), &alice).await.text.contains("The Stack is suspended."));
}

#[tokio::test]
async fn a_user_sees_only_permitted_actions() {
    let server = Server::start();
    for (token, expected) in [("of-alice", true), ("of-carol", false)] {
        let cookie = server.sign_in(token).await;
        let page = server.get("/stacks/apps/web", &cookie).await;
        assert_eq!((page.status, page.text.contains("/actions/")), (200, expected), "{}", page.text);
        let form = format!("form-token={}", server.form_token(&cookie).await);
        let status = server.post("/stacks/apps/web/actions/suspend", &cookie, &form).await.status;
        assert_eq!(status, if expected { 303 } else { 403 }, "the API server decides about each action");
    }
}

#[tokio::test]
async fn a_user_who_may_not_check_permissions_sees_the_stack_without_actions() {
    let server = Server::start();
    let dave = server.sign_in("of-dave").await;
    let page = server.get("/stacks/apps/web", &dave).await;
    assert!(page.status == 200 && page.text.contains("no permission to check your permissions"), "{}", page.text);
    assert!(!page.text.contains("/actions/"), "{}", page.text);
    let list = server.get("/", &dave).await;
    assert!(list.status == 403 && list.text.contains("failed to check your permissions"), "{}", list.text);
}

#[tokio::test]
async fn a_forged_form_changes_nothing() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let token = server.form_token(&alice).await;
    let path = "/stacks/apps/web/actions/suspend";
    assert_eq!(server.post(path, &alice, "").await.status, 403, "without a token");
    let other = server.sign_in("of-alice").await;
    assert_eq!(server.post(path, &other, &format!("form-token={token}")).await.status, 403, "of another session");
    for (name, value) in [("sec-fetch-site", "cross-site"), ("origin", "https://evil.com")] {
        let request = Request::post(path).header("cookie", &alice).header("host", "ui.example.com").header(name, value);
        let request = request.body(Body::from(format!("form-token={token}"))).unwrap();
        assert_eq!(server.send(request).await.status, 403, "{name}");
    }
    assert_eq!(server.get(path, &alice).await.status, 405);
    assert!(!server.log.all().iter().any(|request| request.method == "PATCH"));
}

#[tokio::test]
async fn a_sign_out_removes_the_cookies() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    let token = server.form_token(&alice).await;
    let done = server.post("/sign-out", &alice, &format!("form-token={token}")).await;
    assert_eq!((done.status, done.location()), (303, "/sign-in"), "{}", done.text);
    let cookies: Vec<_> = done.headers.get_all(header::SET_COOKIE).into_iter().collect();
    assert!(cookies.len() == 3 && cookies.iter().all(|cookie| cookie.to_str().unwrap().contains("Max-Age=0")));
    assert_eq!(server.get("/", &alice).await.status, 303, "a copied cookie");
    let expired = server.post("/sign-out", "", "").await;
    assert_eq!((expired.status, expired.location()), (303, "/sign-in"), "{}", expired.text);
}

#[tokio::test]
async fn a_sign_in_with_a_token_ends_the_earlier_session() {
    let server = Server::start();
    let alice = server.sign_in("of-alice").await;
    assert_eq!(server.post("/sign-in", &alice, "token=unknown").await.status, 401);
    assert_eq!(server.get("/", &alice).await.status, 200, "the failed sign-in changes nothing");
    assert_eq!(server.post("/sign-in", &alice, "token=of-bob").await.status, 303);
    assert_eq!(server.get("/", &alice).await.status, 303, "a copied cookie");
}

#[tokio::test]
async fn sign_ins_are_limited() {
    let server = Server::start();
    let mut statuses = Vec::new();
    for _ in 0..11 {
        statuses.push(server.post("/sign-in", "", "token=unknown").await.status);
    }
    assert_eq!((statuses[9], statuses[10]), (401, 429), "{statuses:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_user_are_limited() {
    let server = Server::start();
    let (alice, other, bob) =
        (server.sign_in("of-alice").await, server.sign_in("of-alice").await, server.sign_in("of-bob").await);
    for _ in 0..100 {
        assert_eq!(server.get("/none", &alice).await.status, 404);
    }
    for (cookie, expected) in [(&alice, 429), (&other, 429), (&bob, 404), (&String::new(), 404)] {
        let response = server.get("/none", cookie).await;
        assert_eq!((response.status, response.headers.contains_key(header::RETRY_AFTER)), (expected, expected == 429));
    }
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(server.get("/none", &alice).await.status, 404);
}
