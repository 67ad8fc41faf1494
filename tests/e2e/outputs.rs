//! Tests outputs in the outputs Secret and in the status, and outputs that the controller cannot store.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{OUTPUTS_WRITTEN, READY, outputs_reason, stack_reason};
use pulumi_controller::api::names;
use serde_json::{Value, json};

use crate::harness::{Poll, Program, WaitLimit, api_call, condition, has_condition, run, wait_until};

#[test]
fn each_run_has_an_outputs_secret_and_removed_outputs_are_dropped() {
    run("outputs", async |scene| {
        let source = scene.source("app").await;
        let first = Program::new("outputs")
            .output("url", json!("http://example.com"))
            .output("old name", json!({"list": [1, "two"]}))
            .output("token", json!({"fn::secret": {"inner": "hunter22"}}));
        let first = source.push(&first.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let status = main.until_applied(&first).await.status.expect("a status");
        let shown = json!({"url": "http://example.com", "old_name": {"list": [1, "two"]}, "token": "[secret]"});
        assert_eq!(json!(status.outputs), shown);
        let update = main.updates().await.remove(0);
        let secret = outputs_of(scene, &update).await;
        assert_eq!(secret.immutable, Some(true));
        assert_eq!(secret.annotations().get(names::ANNOTATION_SECRETS).map(String::as_str), Some("[\"token\"]"));
        assert_eq!(secret.labels().get(names::LABEL_COMPONENT).map(String::as_str), Some("update"));
        assert_eq!(secret.labels().get(names::LABEL_UPDATE_NAME), Some(&update.name_any()));
        let owner = secret.owner_references().first().expect("owner reference to the Update");
        assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Update", update.metadata.uid.as_ref()));
        let values = |secret: &Secret| -> Value {
            let data = secret.data.clone().unwrap_or_default();
            let read = |value: &[u8]| serde_json::from_slice::<Value>(value).expect("an output is JSON");
            data.into_iter().map(|(key, value)| (key, read(&value.0))).collect()
        };
        let kept = json!({
            "url": "http://example.com", "old_name": {"list": [1, "two"]}, "token": {"inner": "hunter22"},
        });
        assert_eq!(values(&secret), kept);

        let second = source.push(&Program::new("outputs").output("url", json!("http://example.org")).files()).await;
        let status = main.until_applied(&second).await.status.expect("a status");
        assert_eq!(json!(status.outputs), json!({"url": "http://example.org"}));
        let none = source.push(&Program::new("outputs").step("step", json!({"value": "one"})).files()).await;
        let status = main.until_applied(&none).await.status.expect("a status");
        assert_eq!(json!(status.outputs), json!({}));
        let updates = main.updates().await;
        assert_eq!(updates[2].status.as_ref().and_then(|status| status.outputs.clone()), None, "no outputs");
        assert_eq!(
            values(&outputs_of(scene, &updates[0]).await),
            kept,
            "the outputs of the previous run are unchanged"
        );
    });
}

/// Returns the values of a Secret.
async fn secret_values(scene: &crate::harness::Scene, name: &str) -> Value {
    let secret = api_call(format!("reading {name}"), scene.api::<Secret>().get(name)).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value.0))).collect()
}

#[test]
fn outputs_are_written_to_objects_that_change_with_each_run_and_with_the_spec() {
    run("outputs-objects", async |scene| {
        let source = scene.source("app").await;
        let program = |url: &str| {
            Program::new("outputs")
                .output("url", json!(url))
                .output("ports", json!([80, 443]))
                .output("token", json!({"fn::secret": "hunter22"}))
        };
        let first = source.push(&program("http://one").files()).await;
        scene.create::<Secret>(json!({"metadata": {"name": "foreign"}, "stringData": {"url": "mine"}})).await;
        let mut stack = scene.stack("main", &source);
        let objects = json!([
            {"kind": "Secret", "name": "database", "rename": {"url": "URL"}, "labels": {"team": "blue"}},
            {"kind": "ConfigMap", "name": "settings"},
            {"kind": "Secret", "name": "foreign", "keys": ["url"]},
        ]);
        stack.spec.write_outputs_to = serde_json::from_value(objects).expect("objects");
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        let failed = main
            .until("to report the Secret of another owner", WaitLimit::Run, |stack| {
                has_condition(stack, OUTPUTS_WRITTEN, "False", outputs_reason::OUTPUTS_NOT_WRITTEN)
            })
            .await;
        let message = condition(&failed, OUTPUTS_WRITTEN).map(|found| found.message.clone()).unwrap_or_default();
        assert!(message.contains("Secret foreign exists and does not belong to this Stack"), "{message}");
        main.until_event("OutputsNotWritten").await;
        assert_eq!(secret_values(scene, "foreign").await, json!({"url": "mine"}));
        let expected = json!({"URL": "http://one", "ports": "[80,443]", "token": "hunter22"});
        assert_eq!(secret_values(scene, "database").await, expected);
        let settings = api_call("reading settings", scene.api::<ConfigMap>().get("settings")).await;
        assert_eq!(json!(settings.data), json!({"url": "http://one", "ports": "[80,443]"}));
        assert_eq!(settings.labels().get("reconcile.fluxcd.io/watch").map(String::as_str), Some("Enabled"));

        let second = source.push(&Program::new("outputs").output("url", json!("http://two")).files()).await;
        main.until_applied(&second).await;
        assert_eq!(secret_values(scene, "database").await, json!({"URL": "http://two"}), "removed outputs are removed");

        let database = json!([{"kind": "Secret", "name": "database"}]);
        main.change(json!({"spec": {"writeOutputsTo": database}})).await;
        main.until("to have written all outputs", WaitLimit::Run, |stack| {
            has_condition(stack, OUTPUTS_WRITTEN, "True", outputs_reason::OUTPUTS_WRITTEN)
        })
        .await;
        assert_eq!(secret_values(scene, "database").await, json!({"url": "http://two"}));
        let gone = api_call("reading settings", scene.api::<ConfigMap>().get_opt("settings")).await;
        assert!(gone.is_none(), "an object that the spec no longer contains is deleted");
        main.delete().await;
        main.until_gone().await;
        wait_until("the Secret is deleted with the Stack", WaitLimit::Reaction, async || {
            match api_call("reading database", scene.api::<Secret>().get_opt("database")).await {
                None => Poll::Found(()),
                Some(_) => Poll::NotYet("the Secret exists".to_owned()),
            }
        })
        .await;
        assert_eq!(secret_values(scene, "foreign").await, json!({"url": "mine"}));
    });
}

async fn outputs_of(scene: &crate::harness::Scene, update: &Update) -> Secret {
    let name = update.status.as_ref().and_then(|status| status.outputs.clone()).expect("outputs in the status");
    assert_eq!(name, format!("{}-stack-outputs", update.name_any()));
    api_call("reading the outputs", scene.api::<Secret>().get(&name)).await
}

#[test]
fn a_failure_to_store_outputs_is_reported_but_does_not_fail_the_run() {
    run("outputs-refused", async |scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("outputs").output("result", json!(text));
        let first = source.push(&with_text("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied(&first).await;

        // Another client has already created a Secret with the name of the next run's outputs Secret.
        let next = names::update("main", &stack.uid().unwrap_or_default(), 2);
        let name = names::outputs_secret(&next);
        scene.create::<Secret>(json!({"metadata": {"name": name}, "stringData": {"result": "\"foreign\""}})).await;
        let second = source.push(&with_text("two").files()).await;
        let stack = main.until_applied(&second).await;
        let message = condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("failed to store the outputs") && message.contains(&name), "{message}");
        let status = stack.status.expect("a status");
        let last = status.last_update.expect("a run");
        assert_eq!((last.name.as_deref(), last.state.as_deref()), (Some(next.as_str()), Some("succeeded")));
        assert_eq!(json!(status.outputs), json!({"result": "one"}), "the status keeps the previous outputs");

        let third = source.push(&with_text("three").files()).await;
        let stack = main.until("to have outputs again", WaitLimit::Run, |stack| {
            let status = stack.status.clone().unwrap_or_default();
            status.last_applied_revision == Some(third.revision())
                && status.outputs.get("result") == Some(&json!("three"))
        });
        let stack = stack.await;
        let message = condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        let lost = ["failed to store the outputs", "outputs of the run are not available"];
        assert!(!lost.iter().any(|text| message.contains(text)), "{message}");
    });
}

#[test]
fn a_stack_that_configures_itself_waits_after_several_runs() {
    run("outputs-loop", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("outputs-loop").config("word", "x").output("word", json!("${word}x"));
        let first = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        let objects = json!([{"kind": "ConfigMap", "name": "own"}]);
        stack.spec.write_outputs_to = serde_json::from_value(objects).expect("objects");
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        // Each run's output changes the next run's configuration.
        main.change(json!({"spec": {"configRef": {"word": {"name": "own", "key": "word"}}}})).await;
        let waiting = main
            .until("to wait because its inputs change often", WaitLimit::Long, |stack| {
                has_condition(stack, READY, "False", stack_reason::INPUTS_CHANGE_OFTEN)
            })
            .await;
        let runs = waiting.status.map(|status| status.runs).unwrap_or_default();
        let repeated =
            runs.iter().filter(|run| run.cause.as_deref().is_some_and(|cause| cause.ends_with("has changed")));
        assert_eq!(repeated.count(), 6, "{runs:?}");
        main.until_event("InputsChangeOften").await;

        main.annotate(names::ANNOTATION_REQUESTED_AT, "despite the loop").await;
        main.until("to have run on request", WaitLimit::Long, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.is_some_and(|last| last.inputs.requested_at.as_deref() == Some("despite the loop"))
        })
        .await;
    });
}
