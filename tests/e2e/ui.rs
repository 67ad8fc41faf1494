//! Tests the web UI with a plain HTTP client.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::RoleBinding;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{Browser, Program, Scene, WaitLimit, kubectl, run};

/// Creates a ServiceAccount with a role in the scene's namespace, and returns a token for the ServiceAccount.
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

        let mut stranger = Browser::open(&scene.client).await;
        assert_eq!(stranger.get(&path).await.status, 303, "without a session, the user signs in");
        assert_eq!(stranger.post("/sign-in", "token=wrong").await.status, 401);
        stranger.sign_in(&token(scene, "stranger", None).await).await;
        assert!(stranger.get("/").await.text.contains("No Stack matches"));
        assert_eq!(stranger.get(&path).await.status, 403);

        let mut viewer = Browser::open(&scene.client).await;
        viewer.sign_in(&token(scene, "viewer", Some("view")).await).await;
        let list = viewer.get(&format!("/?namespace={}", scene.namespace)).await;
        assert!(list.status == 200 && list.text.contains(">main</a>"), "{}", list.text);
        let page = viewer.get(&path).await;
        for expected in ["Ready", "greeting", "hello", &run] {
            assert!(page.text.contains(expected), "no {expected} in {}", page.text);
        }
        assert!(!page.text.contains("/actions/"), "a viewer sees no buttons: {}", page.text);
        let stored = viewer.get(&format!("{path}/runs/{run}")).await;
        assert!(stored.status == 200 && stored.text.contains("step"), "{}", stored.text);
        let outdated = viewer.get(&format!("{path}/live?version=0")).await.text;
        assert!(outdated.contains("event: end"), "{outdated}");
        let stream = viewer.get(&format!("{path}/live?run={run}")).await.text;
        for event in ["event: progress", "event: log", "event: end"] {
            assert!(stream.contains(event), "no {event} in {stream}");
        }
        assert_eq!(viewer.act(&scene.namespace, "main", "suspend", "").await.status, 403);

        let mut editor = Browser::open(&scene.client).await;
        editor.sign_in(&token(scene, "editor", Some("edit")).await).await;
        let page = editor.get(&path).await;
        assert!(page.text.contains("/actions/suspend"), "{}", page.text);
        assert_eq!(editor.post(&format!("{path}/actions/suspend"), "").await.status, 403, "without a form token");
        for (action, is_suspended) in [("suspend", Some(true)), ("resume", None)] {
            let done = editor.act(&scene.namespace, "main", action, "").await;
            assert_eq!(done.status, 303, "{}", done.text);
            assert_eq!(main.get().await.spec.suspend, is_suspended);
        }
        let before = main.updates().await.len();
        assert_eq!(editor.act(&scene.namespace, "main", "reconcile", "").await.status, 303);
        let is_done = |stack: &Stack| stack.status.as_ref().is_some_and(|status| status.runs.len() > before);
        main.until("to have run on request", WaitLimit::Run, is_done).await;
    });
}
