//! Tests Secrets and ConfigMaps with the Flux watch label. A change to such an object starts a run of each Stack that
//! refers to the object.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::names::workspace_pod;
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector};
use serde_json::{Value, json};

use crate::harness::{Poll, Program, StackHandle, WaitLimit, condition, once, run, wait_until};
use crate::settings::trigger_input_sync;

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"reconcile.fluxcd.io/watch": "Enabled"}})
}

async fn messages(main: &StackHandle<'_>) -> Vec<String> {
    main.updates().await.into_iter().filter_map(|update| update.spec.message).collect()
}

#[test]
fn a_changed_watched_secret_starts_a_run_when_the_pod_has_its_value() {
    run("watched-secret", async |scene| {
        // The Secret contains the provider log address. A run with the old value fails, and the next retry is due only
        // after an hour.
        let wrong = json!({"metadata": metadata("log"), "stringData": {"url": "http://127.0.0.1:9"}});
        scene.create::<Secret>(wrong).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("watched-secret").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        let right = stack.spec.env_refs.remove("PROVIDER_LOG_URL").and_then(|r| r.literal).expect("a literal").value;
        let secret = Some(SecretSelector { namespace: None, name: "log".to_owned(), key: "url".to_owned() });
        let reference = ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() };
        stack.spec.env_refs.insert("PROVIDER_LOG_URL".to_owned(), reference);
        stack.spec.retry_interval = Some("1h".to_owned());
        let main = scene.start(stack).await;
        main.until("to fail with the old value", WaitLimit::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.reason == stack_reason::UPDATE_FAILED)
        })
        .await;
        let pod = main.pod_and_restarts().await;

        scene.patch::<Secret>("log", json!({"stringData": {"url": right}})).await;
        wait_until("a run with the new value", WaitLimit::Long, async || {
            trigger_input_sync(scene, &main).await;
            let status = main.get().await.status.unwrap_or_default();
            match status.last_applied_revision {
                applied if applied == Some(commit.revision()) && status.current_update.is_none() => Poll::Found(()),
                applied => Poll::NotYet(format!("{applied:?}; {:?}", status.conditions)),
            }
        })
        .await;
        let messages = messages(&main).await;
        assert_eq!(messages.len(), 2, "the first run used the new value: {messages:?}");
        assert_eq!(messages[1], "Secret log has changed");
        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}

#[test]
fn only_changes_of_config_maps_with_the_watch_label_start_a_run() {
    run("watched-map", async |scene| {
        scene.create::<ConfigMap>(json!({"metadata": metadata("watched"), "data": {"UNUSED": "one"}})).await;
        scene.create::<ConfigMap>(json!({"metadata": {"name": "plain"}, "data": {"UNUSED_TOO": "one"}})).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("watched-map").output("result", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.envs = vec!["watched".to_owned(), "plain".to_owned()];
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        let inputs = async || main.workspace().await.status.unwrap_or_default().mounted_inputs;
        let before = inputs().await;
        assert!(
            ["ConfigMap/plain", "ConfigMap/watched"].iter().all(|object| before.contains_key(*object)),
            "{before:?}"
        );

        scene.patch::<ConfigMap>("plain", json!({"data": {"UNUSED_TOO": "two"}})).await;
        wait_until("the pod to have the plain ConfigMap", WaitLimit::Long, async || {
            trigger_input_sync(scene, &main).await;
            let now = inputs().await;
            if now["ConfigMap/plain"] != before["ConfigMap/plain"] {
                return Poll::Found(());
            }
            Poll::NotYet(format!("{now:?}"))
        })
        .await;

        scene.patch::<ConfigMap>("watched", json!({"data": {"UNUSED": "two"}})).await;
        // Changes the pod, because the kubelet syncs a changed pod immediately. The test does not request a Workspace
        // reconciliation.
        let touched = json!({"metadata": {"annotations": {"pulumi-controller.test/changed": "1"}}});
        scene.patch::<Pod>(&workspace_pod("main"), touched).await;
        wait_until("the run after the label is set", WaitLimit::Long, async || {
            // The Stack records its current Update before the Update exists, so the test reads the Updates first.
            let messages = messages(&main).await;
            let status = main.get().await.status.unwrap_or_default();
            if messages.len() > 1 && status.current_update.is_none() {
                return Poll::Found(());
            }
            Poll::NotYet(format!("{messages:?}; {:?}", status.conditions))
        })
        .await;
        let messages = messages(&main).await;
        assert_eq!(messages[1..], ["ConfigMap watched has changed"], "no run for the unwatched ConfigMap");
        let status = main.get().await.status.expect("a status");
        let known = status.last_update.expect("a run").inputs.mounted_inputs;
        let now = inputs().await;
        assert_eq!(known["ConfigMap/watched"], now["ConfigMap/watched"], "no further run is due");
        assert_eq!(
            known["ConfigMap/plain"], before["ConfigMap/plain"],
            "the recorded hash of an unwatched object does not change"
        );
    });
}
