//! Tests programs that are invalid, print too much or lack inputs. The Stack reports each failure with a specific
//! message, and recovers after a commit that fixes the program.

use k8s_openapi::api::core::v1::{Pod, Secret};
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, stack_reason};
use pulumi_controller::api::names::workspace_pod;
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector, Stack};
use serde_json::json;

use crate::harness::{File, Program, Scene, StackHandle, WaitLimit, condition, has_condition, once, run};

#[test]
fn a_compile_error_reports_its_location_and_keeps_the_outputs() {
    run("uncompiled", async |scene| {
        let source = scene.source("app").await;
        let good =
            Program::new("uncompiled").step("step", json!({"value": "one"})).output("result", json!("${step.value}"));
        let first = source.push(&good.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;

        let typed = Program::new("uncompiled").step("step", json!({"value": "${stpe.value}"}));
        source.push(&typed.files()).await;
        let failed = main
            .until("to report the missing value", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
                    && condition(stack, READY)
                        .is_some_and(|ready| ["stpe", "not found"].iter().all(|w| ready.message.contains(w)))
            })
            .await;
        assert!(has_condition(&failed, RECONCILING, "True", stack_reason::RETRYING_AFTER_FAILURE));
        let status = failed.status.unwrap_or_default();
        assert_eq!(status.outputs.get("result"), Some(&json!("one")));
        assert_eq!(status.last_applied_revision, Some(first.revision()));

        let unknown = "name: uncompiled\nruntime: yaml\nresources:\n  step:\n    type: testing:index:Stpe\n";
        source.push(&[File { path: "Pulumi.yaml".to_owned(), content: unknown.to_owned() }]).await;
        main.until("to report the unknown type", WaitLimit::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.status == "False" && ready.message.contains("Stpe"))
        })
        .await;

        let last = source.push(&good.files()).await;
        main.until_applied(&last).await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "no resource is lost");
    });
}

/// The agent, its journal, the pod log and the Stack status must limit the size of the CLI output.
#[test]
fn a_program_that_prints_a_hundred_megabytes_completes() {
    run("loud", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("loud").step("step", json!({"printMegabytes": 100})).output("text", json!("hello"));
        let commit = source.push(&program.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied_within(WaitLimit::Long, &commit).await;
        let (_, restarts) = main.pod_and_restarts().await;
        assert_eq!(restarts, 0, "no container ran out of memory");
        assert_eq!(main.log.operations().await, once(&["create step"]));
        let size = serde_json::to_vec(&stack).expect("a Stack can be written").len();
        assert!(size < 64 * 1024, "the Stack has {size} bytes");

        let loud_and_failing = Program::new("loud").step("step", json!({"printMegabytes": 100, "failOn": "update"}));
        source.push(&loud_and_failing.files()).await;
        let failed = main
            .until("to report the cause, not the output", WaitLimit::Long, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
                    && condition(stack, READY).is_some_and(|ready| ready.message.contains("the input failOn is update"))
            })
            .await;
        let message = condition(&failed, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.len() <= 8 * 1024, "{} bytes", message.len());
    });
}

#[test]
fn a_stack_waits_for_a_missing_secret_and_reports_a_missing_key() {
    run("no-secret", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("no-secret").output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        let secret = SecretSelector { namespace: None, name: "credentials".to_owned(), key: "token".to_owned() };
        let reference = ResourceRef { kind: "Secret".to_owned(), secret: Some(secret), ..ResourceRef::default() };
        stack.spec.env_refs.insert("TOKEN".to_owned(), reference);
        let main = scene.start(stack).await;
        let names = |stack: &Stack, words: &[&str]| {
            condition(stack, READY).is_some_and(|ready| words.iter().all(|word| ready.message.contains(word)))
        };
        main.until("to report the missing Secret", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "Unknown", stack_reason::NOT_READY_IN_PROGRESS)
                && names(stack, &["Secret \"credentials\" (environment variable TOKEN): not found"])
        })
        .await;
        let pod = main.pod_and_restarts().await;

        scene.create::<Secret>(json!({"metadata": {"name": "credentials"}, "stringData": {"other": "value"}})).await;
        main.until("to report the missing key", WaitLimit::Long, |stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
                && has_condition(stack, RECONCILING, "True", stack_reason::RETRYING_AFTER_FAILURE)
                && names(stack, &["TOKEN", "\"token\"", "\"credentials\"", "no such key"])
        })
        .await;

        scene.patch::<Secret>("credentials", json!({"stringData": {"token": "secret-word"}})).await;
        trigger_kubelet_sync(scene, &main, "1").await;
        let stack = main.until_applied_within(WaitLimit::Long, &commit).await;
        assert_eq!(condition(&stack, STALLED), None);
        assert_eq!(main.pod_and_restarts().await, pod, "the pod is not replaced");
    });
}

/// Changes a pod annotation, because the kubelet syncs a changed pod immediately. The kubelet syncs other pods only
/// about every minute.
async fn trigger_kubelet_sync(scene: &Scene, stack: &StackHandle<'_>, value: &str) {
    let patch = json!({"metadata": {"annotations": {"pulumi-controller.test/changed": value}}});
    scene.patch::<Pod>(&workspace_pod(&stack.name), patch).await;
}
