//! Tests the web UI with a plain HTTP client. The requests go through the API server's proxy to the pod of the controller.

use axum::http::{Request, header};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::ResourceExt;
use kube::client::Body;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{Controller, Program, Scene, WaitLimit, kubectl, run};

/// Response of the UI.
struct Page {
    status: u16,
    cookies: Vec<String>,
    text: String,
}

/// Client of the UI. It keeps the cookies of the session.
struct Browser<'a> {
    scene: &'a Scene,
    pod: String,
    cookies: String,
}

impl<'a> Browser<'a> {
    async fn open(scene: &'a Scene) -> Self {
        let pod = Controller::new(&scene.client).pod().await.name_any();
        Browser { scene, pod, cookies: String::new() }
    }

    async fn get(&self, path: &str) -> Page {
        self.send(Request::get(self.url(path)).header(header::COOKIE, &self.cookies), "").await
    }

    async fn post(&self, path: &str, form: &str) -> Page {
        let request = Request::post(self.url(path)).header(header::COOKIE, &self.cookies);
        self.send(request.header("sec-fetch-site", "same-origin"), form).await
    }

    fn url(&self, path: &str) -> String {
        format!("/api/v1/namespaces/flux-system/pods/{}:9294/proxy{path}", self.pod)
    }

    async fn send(&self, request: axum::http::request::Builder, form: &str) -> Page {
        let request = request.body(Body::from(form.as_bytes().to_vec())).expect("a request");
        let what = request.uri().to_string();
        let response = async {
            let response = self.scene.client.send(request).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            let cookies = response.headers().get_all(header::SET_COOKIE).into_iter();
            let pairs = cookies.map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap_or_default().to_owned());
            let (status, cookies) = (response.status().as_u16(), pairs.collect());
            let body = response.into_body().collect_bytes().await.unwrap_or_else(|error| panic!("{what}: {error}"));
            Page { status, cookies, text: String::from_utf8_lossy(&body).into_owned() }
        };
        let limit = WaitLimit::Call.limit();
        tokio::time::timeout(limit, response)
            .await
            .unwrap_or_else(|_| panic!("no response from {what} within {limit:?}"))
    }

    /// Signs in with a token.
    async fn sign_in(&mut self, token: &str) {
        let page = self.post("/sign-in", &format!("token={token}")).await;
        assert_eq!(page.status, 303, "{}", page.text);
        self.cookies = page.cookies.join("; ");
    }

    /// Performs an action on the page of a Stack. `fields` are additional fields of the form.
    async fn act(&self, stack: &str, action: &str, fields: &str) -> Page {
        let path = format!("/stacks/{}/{stack}", self.scene.namespace);
        let page = self.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let (_, rest) = page.text.split_once("name=\"form-token\" value=\"").unwrap_or_else(|| panic!("{}", page.text));
        let token = rest.split('"').next().unwrap_or_default();
        self.post(&format!("{path}/actions/{action}"), &format!("form-token={token}{fields}")).await
    }
}

/// Creates a ServiceAccount with a role in the namespace of the scene, and returns its token.
pub async fn token(scene: &Scene, name: &str, role: Option<&str>) -> String {
    scene.create::<ServiceAccount>(json!({ "metadata": { "name": name } })).await;
    if let Some(role) = role {
        scene
            .create::<RoleBinding>(json!({
                "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": scene.namespace }],
            }))
            .await;
    }
    kubectl(&["create", "token", name, "--namespace", &scene.namespace, "--duration", "1h"], "").await.trim().to_owned()
}

#[test]
fn users_see_and_change_only_what_their_tokens_permit() {
    run("ui", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("ui").step("step", json!({ "value": "one" })).output("greeting", json!("hello"));
        let commit = source.push(&program.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied(&commit).await;
        let run = stack.status.and_then(|status| status.runs.into_iter().next()).expect("a run").name;
        let path = format!("/stacks/{}/main", scene.namespace);

        let mut stranger = Browser::open(scene).await;
        assert_eq!(stranger.get(&path).await.status, 303, "without a session, the user signs in");
        assert_eq!(stranger.post("/sign-in", "token=wrong").await.status, 401);
        stranger.sign_in(&token(scene, "stranger", None).await).await;
        assert!(stranger.get("/").await.text.contains("No Stack matches"));
        assert_eq!(stranger.get(&path).await.status, 403);

        let mut viewer = Browser::open(scene).await;
        viewer.sign_in(&token(scene, "viewer", Some("view")).await).await;
        let list = viewer.get(&format!("/?namespace={}", scene.namespace)).await;
        assert!(list.status == 200 && list.text.contains(">main</a>"), "{}", list.text);
        let page = viewer.get(&path).await;
        for expected in ["Ready", "greeting", "hello", &run] {
            assert!(page.text.contains(expected), "no {expected} in {}", page.text);
        }
        let stored = viewer.get(&format!("{path}/runs/{run}")).await;
        assert!(stored.status == 200 && stored.text.contains("step"), "{}", stored.text);
        let outdated = viewer.get(&format!("{path}/live?version=0")).await.text;
        assert!(outdated.contains("event: end"), "{outdated}");
        let stream = viewer.get(&format!("{path}/live?run={run}")).await.text;
        for event in ["event: progress", "event: log", "event: end"] {
            assert!(stream.contains(event), "no {event} in {stream}");
        }
        assert_eq!(viewer.act("main", "suspend", "").await.status, 403);

        let mut editor = Browser::open(scene).await;
        editor.sign_in(&token(scene, "editor", Some("edit")).await).await;
        assert_eq!(editor.post(&format!("{path}/actions/suspend"), "").await.status, 403, "without a form token");
        for (action, is_suspended) in [("suspend", Some(true)), ("resume", None)] {
            let done = editor.act("main", action, "").await;
            assert_eq!(done.status, 303, "{}", done.text);
            assert_eq!(main.get().await.spec.suspend, is_suspended);
        }
        let before = main.updates().await.len();
        assert_eq!(editor.act("main", "reconcile", "").await.status, 303);
        let is_done = |stack: &Stack| stack.status.as_ref().is_some_and(|status| status.runs.len() > before);
        main.until("to have run on request", WaitLimit::Run, is_done).await;
    });
}
