//! Tests Flux Receiver webhooks. A Receiver requests a reconciliation of a source, or of a Stack that polls its own
//! repository.

use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::harness::{Program, Scene, WaitLimit, once, run};

const TOKEN: &str = "s3cret";
const BODY: &str = r#"{"ref":"refs/heads/main"}"#;

fn signature() -> String {
    let hmac = Hmac::<Sha256>::new_from_slice(TOKEN.as_bytes()).expect("a key of any length").chain_update(BODY);
    format!("sha256={}", hex::encode(hmac.finalize().into_bytes()))
}

/// Returns the Receiver types to test, each with its events and with the headers for a valid request.
fn types() -> [(&'static str, Value, Vec<(&'static str, String)>); 4] {
    [
        ("github", json!(["push"]), vec![("X-GitHub-Event", "push".to_owned()), ("X-Hub-Signature-256", signature())]),
        (
            "gitlab",
            json!(["Push Hook"]),
            vec![("X-Gitlab-Event", "Push Hook".to_owned()), ("X-Gitlab-Token", TOKEN.to_owned())],
        ),
        ("generic", json!([]), vec![]),
        ("generic-hmac", json!([]), vec![("X-Signature", signature())]),
    ]
}

async fn receiver(scene: &Scene, kind: &str, events: Value, resource: Value) -> String {
    let spec = json!({"type": kind, "events": events, "secretRef": {"name": "hook"}, "resources": [resource]});
    scene.create_notification("Receiver", json!({"metadata": {"name": kind}, "spec": spec})).await;
    scene.webhook_path(kind).await
}

#[test]
fn a_webhook_push_runs_the_stack_through_its_git_repository() {
    run("flux-receiver", async |scene| {
        scene.create::<Secret>(json!({"metadata": {"name": "hook"}, "stringData": {"token": TOKEN}})).await;
        let program = |value: &str| Program::new("flux-receiver").step("step", json!({"value": value})).files();
        let source = scene.source("app").await;
        let commit = source.push(&program("none")).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let repository = json!({"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "name": "app"});
        for (kind, events, headers) in types() {
            let path = receiver(scene, kind, events, repository.clone()).await;
            let commit = source.push_without_notification(&program(kind)).await;
            if kind != "generic" {
                let unsigned = scene.call_webhook(&path, &[], BODY).await;
                assert_eq!(unsigned, 400, "{kind}: a call without a signature is rejected");
            }
            assert_eq!(scene.call_webhook(&path, &headers, BODY).await, 200, "{kind}");
            main.until_applied(&commit).await;
        }
        let steps = ["create step", "update step", "update step", "update step", "update step"];
        assert_eq!(main.log.operations().await, once(&steps));
    });
}

#[test]
fn a_webhook_push_runs_a_stack_that_polls_its_own_repository() {
    run("flux-receiver-stack", async |scene| {
        scene.create::<Secret>(json!({"metadata": {"name": "hook"}, "stringData": {"token": TOKEN}})).await;
        let program = |value: &str| Program::new("flux-receiver-stack").step("step", json!({"value": value})).files();
        let source = scene.source("app").await;
        let first = source.push_without_notification(&program("one")).await;
        let mut stack = scene.stack_on_repository("main", &source);
        stack.spec.resync_frequency_seconds = Some(3600);
        let main = scene.start(stack).await;
        let applied = |commit: &str| {
            let commit = commit.to_owned();
            move |stack: &pulumi_controller::api::pulumi::Stack| {
                let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
                last.and_then(|last| last.last_successful_commit.as_deref()) == Some(commit.as_str())
            }
        };
        main.until("to have run the first commit", WaitLimit::Run, applied(&first.sha)).await;
        let resource = json!({"apiVersion": "pulumi.com/v1", "kind": "Stack", "name": main.get().await.name_any()});
        let path = receiver(scene, "generic-hmac", json!([]), resource).await;
        let second = source.push_without_notification(&program("two")).await;
        assert_eq!(scene.call_webhook(&path, &[("X-Signature", signature())], BODY).await, 200);
        main.until("to have run the second commit", WaitLimit::Run, applied(&second.sha)).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}
