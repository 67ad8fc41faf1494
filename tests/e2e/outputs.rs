//! Tests outputs in the outputs Secret and in the status, and outputs that cannot be stored.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::READY;
use pulumi_controller::api::names;
use serde_json::{Value, json};

use crate::harness::{Program, WaitLimit, api_call, condition, run};

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

        // A Secret that the controller does not own has the name of the next run's outputs Secret.
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
