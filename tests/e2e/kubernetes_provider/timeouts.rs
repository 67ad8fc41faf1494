//! Tests objects that do not become available within the timeout of the provider or of the run.

use pulumi_controller::api::conditions::READY;
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use super::{deploy, deploy_web, read, until_message};
use crate::harness::{Scene, WaitLimit, condition, kubectl, run};

/// An image that the node does not have.
const MISSING_IMAGE: &str = "localhost/pulumi-controller-test/missing:test";

/// Changes fields of the Program with a JSON patch, and returns the new revision of the source.
async fn change_fields(scene: &Scene, changes: Value) -> String {
    let arguments = ["--namespace", &scene.namespace, "patch", "program/web", "--type", "json", "--patch"];
    kubectl(&[&arguments[..], &[&changes.to_string()]].concat(), "").await;
    read(scene, "program/web", "{.metadata.generation}").await
}

fn image(image: &str) -> Value {
    let path = "/program/resources/server/properties/spec/template/spec/containers/0/image";
    json!({"op": "replace", "path": path, "value": image})
}

fn timeouts(timeout: &str) -> Value {
    let path = "/program/resources/server/options/customTimeouts";
    json!({"op": "replace", "path": path, "value": {"create": timeout, "update": timeout}})
}

#[test]
fn a_deployment_that_does_not_become_available_fails_the_run_with_the_cause() {
    run("provider-await", async |scene| {
        let web = deploy_web(scene).await;
        let working =
            read(scene, "program/web", "{.program.resources.server.properties.spec.template.spec.containers[0].image}")
                .await;
        change_fields(scene, json!([image(MISSING_IMAGE), timeouts("20s")])).await;
        let message = until_message(&web, WaitLimit::Long, "timed out waiting to be Ready").await;
        assert!(message.contains(MISSING_IMAGE), "the message names the image: {message}");
        assert_eq!(read(scene, "deployment/web", "{.status.availableReplicas}").await, "1", "the previous pod remains");
        let revision = change_fields(scene, json!([image(&working), timeouts("2m")])).await;
        web.until_revision_within(WaitLimit::Long, &revision).await;
    });
}

#[test]
fn a_run_that_ends_while_the_provider_waits_is_continued_by_the_next_run() {
    run("provider-timeout", async |scene| {
        // The program never runs successfully before the timeout of the run, which is shorter than the timeout of the
        // provider.
        let web = deploy(scene, "kubernetes-yaml", "web").await;
        web.change(json!({"spec": {"suspend": true}})).await;
        let working =
            read(scene, "program/web", "{.program.resources.server.properties.spec.template.spec.containers[0].image}")
                .await;
        change_fields(scene, json!([image(MISSING_IMAGE)])).await;
        web.change(json!({"spec": {"suspend": null, "timeout": "30s"}})).await;
        let timed_out = web
            .until("to report the timeout", WaitLimit::Long, |stack: &Stack| {
                let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
                last.is_some_and(|last| last.state.as_deref() == Some("failed"))
            })
            .await;
        let message = condition(&timed_out, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("timeout"), "{message}");
        let revision = change_fields(scene, json!([image(&working)])).await;
        web.change(json!({"spec": {"timeout": "5m"}})).await;
        web.until_revision_within(WaitLimit::Long, &revision).await;
        assert_eq!(read(scene, "deployment/web", "{.status.availableReplicas}").await, "1");
    });
}
