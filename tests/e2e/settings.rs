//! Changes of a Stack's settings that its running pod takes over.

use k8s_openapi::api::core::v1::{Pod, Secret};
use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::names::workspace_pod;
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector};
use serde_json::json;

use crate::harness::{Patience, Program, condition, once, run};

#[test]
fn a_changed_config_value_and_a_removed_one_take_effect_without_a_new_pod() {
    run("config-change", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("config-change")
            .config("greeting", "nothing was said")
            .config("tone", "neutral")
            .output("said", json!("${greeting} (${tone})"));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.config = [("greeting".to_owned(), json!("hello")), ("tone".to_owned(), json!("friendly"))].into();
        let main = scene.start(stack).await;
        let said = async || {
            let status = main.until_applied(&commit).await.status.expect("a status");
            status.outputs.get("said").cloned().unwrap_or_default()
        };
        assert_eq!(said().await, json!("hello (friendly)"));
        let pod = main.pod_and_restarts().await;

        main.change(json!({"spec": {"config": {"greeting": "good morning"}}})).await;
        assert_eq!(said().await, json!("good morning (friendly)"));

        main.change(json!({"spec": {"config": {"greeting": null}}})).await;
        assert_eq!(
            said().await,
            json!("nothing was said (friendly)"),
            "a removed key is gone from the stack's settings"
        );

        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.updates().await.len(), 3);
    });
}

#[test]
fn a_rotated_secret_reaches_the_next_run_in_the_same_pod() {
    run("rotation", async |scene| {
        // Where the provider reports to is the secret: a run with the old value fails, a run with the new one does not.
        let wrong = json!({"metadata": {"name": "log"}, "stringData": {"url": "http://127.0.0.1:9"}});
        scene.create::<Secret>(wrong).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("rotation").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        let right = stack.spec.env_refs.remove("PROVIDER_LOG_URL").and_then(|r| r.literal).expect("a literal").value;
        let secret = Some(SecretSelector { namespace: None, name: "log".to_owned(), key: "url".to_owned() });
        let reference = ResourceRef { kind: "Secret".to_owned(), secret, literal: None };
        stack.spec.env_refs.insert("PROVIDER_LOG_URL".to_owned(), reference);
        let main = scene.start(stack).await;
        main.until("to fail with the old value", Patience::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.reason == stack_reason::UPDATE_FAILED)
        })
        .await;
        let pod = main.pod_and_restarts().await;

        scene.patch::<Secret>("log", json!({"stringData": {"url": right}})).await;
        // The kubelet looks after a pod that changes at once, and after the others about every minute.
        scene
            .patch::<Pod>(
                &workspace_pod("main"),
                json!({"metadata": {"annotations": {"pulumi-controller.test/changed": "1"}}}),
            )
            .await;
        main.until_applied_within(Patience::Long, &commit).await;

        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.log.sentences().await, once(&["create step"]));
    });
}
