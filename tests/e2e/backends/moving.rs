//! Tests moving a Stack to another backend.

use pulumi_controller::api::conditions::{READY, stack_reason};
use serde_json::{Value, json};

use super::backend::Backend;
use super::suspend;
use crate::harness::{File, Program, StackHandle, WaitLimit, condition, has_condition, once, run};
use crate::runs_parts::exec;

/// Runs the steps in `docs/guides/backends.md`.
#[test]
fn a_stack_moves_from_s3_to_azure_without_a_change_of_resources() {
    run("moving", async |scene| {
        let source = scene.source("app").await;
        let program =
            |value: &str| Program::new("moving").step("step", json!({"value": value, "secretValue": "hidden"}));
        let first = source.push(&program("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let name = stack.spec.stack.clone();
        let main = scene.start(stack).await;
        main.until_applied(&first).await;

        suspend(&main).await;
        let exported = exec(scene, "main", &["pulumi", "stack", "export"]).await;
        assert!(!exported.contains("hidden"), "the exported state contains the secret in plain text");
        let azure = Backend::Azure.prepare(scene).await;
        let files = [program("one").file("Pulumi.yaml"), File { path: "state.json".to_owned(), content: exported }];
        let import = format!("pulumi stack init {name} && pulumi stack import --stack {name} --file state.json");
        azure.start_cli("laptop", &files, &import).await;
        azure.until_cli_succeeded("laptop").await;

        let moved = azure.stack("main", &source).spec;
        let mut variables = json!(moved.env_refs);
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            variables[name] = Value::Null;
        }
        let spec = json!({
            "backend": moved.backend, "envRefs": variables, "useLocalStackOnly": true, "preview": true, "suspend": false,
        });
        main.change(json!({"spec": spec})).await;
        until_previewed(&main).await;
        main.change(json!({"spec": {"useLocalStackOnly": null, "preview": null}})).await;
        main.until_event("ResourcesOrphaned").await;
        assert_eq!(main.log.operations().await, once(&["create step"]));

        let second = source.push(&program("two").files()).await;
        main.until_applied(&second).await;
        azure.destroy(&main).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step", "delete step"]));
    });
}

/// Waits until a preview of the Stack has reported no changes.
async fn until_previewed(main: &StackHandle<'_>) {
    main.until("to preview no changes", WaitLimit::Run, |stack| {
        has_condition(stack, READY, "True", stack_reason::PREVIEWED)
            && condition(stack, READY).is_some_and(|ready| ready.message.contains("no changes"))
    })
    .await;
}
