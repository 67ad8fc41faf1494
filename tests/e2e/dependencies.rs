//! Tests a program whose dependencies the agent cannot install.

use k8s_openapi::api::core::v1::Event;
use pulumi_controller::api::conditions::{READY, stack_reason, workspace_reason};
use serde_json::json;

use crate::harness::{File, Program, Scene, WaitLimit, condition, is_stalled, once, run};

/// The installation fails because the test image has no Node.js.
#[test]
fn a_failed_dependency_installation_is_reported_until_the_next_source() {
    run("dependencies", async |scene: &Scene| {
        let source = scene.source("app").await;
        let program = Program::new("dependencies");
        let first = source.push(&program.clone().step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let installed = main.workspace().await.status.and_then(|status| status.artifact);

        let project = "name: dependencies\nruntime: nodejs\n";
        let file = |path: &str, content: &str| File { path: path.to_owned(), content: content.to_owned() };
        source.push(&[file("Pulumi.yaml", project), file("index.js", "")]).await;
        let stack = main
            .until("to report that the dependencies cannot be installed", WaitLimit::Reaction, |stack| {
                is_stalled(stack, stack_reason::WORKSPACE_FAILED)
                    && condition(stack, READY)
                        .is_some_and(|ready| ready.message.contains(workspace_reason::INSTALLATION_FAILED))
            })
            .await;
        let message = condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("`pulumi install` failed") && message.contains("nodejs"), "{message}");
        let events = main.until_event(stack_reason::WORKSPACE_FAILED).await;
        let is_cause =
            |event: &Event| event.message.as_ref().is_some_and(|text| text.contains("`pulumi install` failed"));
        assert!(events.iter().any(is_cause), "{events:?}");
        assert_eq!(
            main.workspace().await.status.and_then(|status| status.artifact),
            installed,
            "the previous source remains installed"
        );
        assert!(main.pod_log("pulumi").await.contains("install: "), "the log of the pod contains the output");

        let third = source.push(&program.step("step", json!({"value": "two"})).files()).await;
        main.until_applied(&third).await;
        assert_eq!(main.updates().await.len(), 2, "no run uses the failed source");
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}
