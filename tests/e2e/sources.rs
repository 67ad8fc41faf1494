//! Tests Stacks with every kind of source.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{SourceArtifact, Stack};
use serde_json::{Value, json};

use crate::harness::{
    File, Poll, Program, Scene, StackHandle, WaitLimit, api_call, condition, from_json, is_done, is_stalled, once, run,
    wait_until, waits_for_source,
};

fn with_text(text: &str) -> Vec<File> {
    Program::new("sources").step("step", json!({"value": text})).output("result", json!("${step.value}")).files()
}

/// Waits for the second of two revisions, and checks that both revisions ran in the same pod.
async fn assert_runs_in_same_pod(main: &StackHandle<'_>, pod: (String, i32), revision: &str) {
    let stack = main.until_revision(revision).await;
    assert_eq!(json!(stack.status.expect("a status").outputs), json!({"result": "two"}));
    assert_eq!(main.pod_and_restarts().await, pod, "the pod and its containers are not replaced");
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    assert_eq!(main.updates().await.len(), 2);
}

#[test]
fn the_next_tag_of_an_oci_artifact_starts_a_run_in_the_same_pod() {
    run("oci", async |scene| {
        let repository = scene.oci_repository("app");
        let first = repository.push(&with_text("one")).await;
        // The Stack refers to an old API version, which the installed version of Flux may no longer serve.
        let stack = scene.stack_on_kind("main", Some("source.toolkit.fluxcd.io/v1beta2"), &repository.object);
        let main = scene.start(stack).await;
        main.until_revision(&first).await;
        let pod = main.pod_and_restarts().await;

        let second = repository.push(&with_text("two")).await;
        assert_runs_in_same_pod(&main, pod, &second).await;
    });
}

#[test]
fn artifact_origin_is_in_status_events_and_update_message() {
    run("origin", async |scene| {
        let repository = scene.oci_repository("app");
        let (one, two) = (
            "main@sha1:1111111111111111111111111111111111111111",
            "main@sha1:2222222222222222222222222222222222222222",
        );
        let first = repository.push_with_origin(&with_text("one"), one).await;
        let main = scene.start(scene.stack_on_kind("main", None, &repository.object)).await;
        let stack = main.until_revision(&first).await;
        assert_eq!(stack.status.expect("a status").last_applied_origin_revision.as_deref(), Some(one));
        let second = repository.push_with_origin(&with_text("two"), two).await;
        let status = main.until_revision(&second).await.status.expect("a status");
        assert_eq!(status.last_applied_origin_revision.as_deref(), Some(two));
        assert_eq!(status.last_attempted_revision.as_deref(), Some(second.as_str()));

        let messages: Vec<String> = main.updates().await.into_iter().filter_map(|update| update.spec.message).collect();
        assert_eq!(
            messages,
            [
                format!("Initial stack update (origin revision: {one})"),
                format!("New commit detected: \"{second}\" (origin revision: {two})")
            ]
        );
        let history: Vec<Value> = status.history.iter().map(|snapshot| json!(snapshot.metadata)).collect();
        assert_eq!(
            history,
            [json!({"revision": second, "originRevision": two}), json!({"revision": first, "originRevision": one})]
        );
        until_reported(scene, "StackCreated", &second, two).await;
    });
}

/// Waits for an event with this reason and both revisions.
async fn until_reported(scene: &Scene, reason: &str, revision: &str, origin: &str) {
    wait_until(format!("an event {reason} on {origin}"), WaitLimit::Reaction, async || {
        let events = api_call("listing events", scene.api::<Event>().list(&Default::default())).await.items;
        let reported: Vec<Value> = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some(reason))
            .map(|event| json!(event.metadata.annotations))
            .collect();
        let is_match = |reported: &&Value| {
            reported["pulumi.com/revision"] == revision && reported["pulumi.com/originRevision"] == origin
        };
        match reported.iter().find(is_match) {
            Some(reported) => {
                assert_eq!(reported["pulumi.com/commit_status"], "update", "{reported}");
                Poll::Found(())
            }
            None => Poll::NotYet(format!("{reported:?}")),
        }
    })
    .await;
}

#[test]
fn new_bucket_content_starts_a_run_in_the_same_pod() {
    run("bucket", async |scene| {
        let bucket = scene.bucket("app");
        let first = bucket.put(&with_text("one"), None).await;
        let stack = scene.stack_on_kind("main", Some("source.toolkit.fluxcd.io/v1beta1"), &bucket.object);
        let main = scene.start(stack).await;
        main.until_revision(&first.revision).await;
        let pod = main.pod_and_restarts().await;

        let second = bucket.put(&with_text("two"), Some(&first)).await;
        assert_runs_in_same_pod(&main, pod, &second.revision).await;
    });
}

#[test]
fn new_content_of_an_external_artifact_starts_a_run_in_the_same_pod() {
    run("external", async |scene| {
        let producer = scene.source("producer").await;
        let first = producer.artifact_of(&producer.push(&with_text("one")).await).await;
        let external = scene.flux_object("ExternalArtifact", "externalartifacts", "app");
        // The test creates the Stack before its source. The watch for this kind must therefore cause the run.
        let main = scene.start(scene.stack_on_kind("main", None, &external)).await;
        until_stalled(&main, &["does not exist"]).await;
        external.create(json!({})).await;
        until_waiting_for_artifact(&main).await;
        external.publish(&first).await;
        main.until_revision(&first.revision).await;
        let pod = main.pod_and_restarts().await;

        let second = producer.artifact_of(&producer.push(&with_text("two")).await).await;
        external.publish(&second).await;
        assert_runs_in_same_pod(&main, pod, &second.revision).await;
    });
}

#[test]
fn a_restored_artifact_starts_a_run_only_if_its_content_changed() {
    run("artifact-back", async |scene| {
        let producer = scene.source("producer").await;
        let first = producer.artifact_of(&producer.push(&with_text("one")).await).await;
        let external = scene.flux_object("ExternalArtifact", "externalartifacts", "app");
        external.create(json!({})).await;
        external.publish(&first).await;
        let main = scene.start(scene.stack_on_kind("main", None, &external)).await;
        main.until_revision(&first.revision).await;

        external.withdraw().await;
        until_waiting_for_artifact(&main).await;
        external.publish(&first).await;
        main.until("to be Ready again", WaitLimit::Reaction, is_done).await;
        assert_eq!(main.updates().await.len(), 1, "the Stack has already run");

        let second = producer.artifact_of(&producer.push(&with_text("two")).await).await;
        assert_ne!(second.digest, first.digest);
        external.publish(&SourceArtifact { revision: first.revision.clone(), ..second }).await;
        main.until("to have run the new content", WaitLimit::Run, |stack| {
            let text = stack.status.as_ref().and_then(|status| status.outputs.get("result"));
            is_done(stack) && text == Some(&json!("two"))
        })
        .await;
        let messages: Vec<String> = main.updates().await.into_iter().filter_map(|update| update.spec.message).collect();
        let second_message = format!("New commit detected: \"{}\"", first.revision);
        assert_eq!(messages, ["Initial stack update".to_owned(), second_message]);
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn a_source_kind_and_its_rbac_can_be_added_and_removed_at_any_time() {
    run("foreign", async |scene| {
        let producer = scene.source("producer").await;
        let commit = producer.push(&with_text("one")).await;
        let first = producer.artifact_of(&commit).await;
        let group = format!("{}.artifacts.example.com", scene.id);
        let report = scene.source_object(&group, "Report", "reports", "app");
        let api_version = format!("{group}/v1alpha1");
        let mut stack = scene.stack_on_kind("main", Some(&api_version), &report);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        let not_served = format!("does not serve Report.{group}");
        until_stalled(&main, &[&not_served]).await;
        // A source kind that the API server does not serve does not affect Stacks with other source kinds.
        scene.start(scene.stack("other", &producer)).await.until_applied(&commit).await;
        until_stalled(&main, &[&not_served]).await;

        install(scene, &group).await;
        let right = format!("get, list and watch on reports.{group}");
        until_stalled(&main, &["cannot get resource \"reports\"", &right]).await;

        allow(scene, &group).await;
        until_stalled(&main, &["does not exist"]).await;
        report.create(json!({})).await;
        report.publish(&first).await;
        main.until_revision(&first.revision).await;
        let pod = main.pod_and_restarts().await;

        let second = producer.artifact_of(&producer.push(&with_text("two")).await).await;
        report.publish(&second).await;
        assert_runs_in_same_pod(&main, pod, &second.revision).await;

        // Deleting the CustomResourceDefinition also deletes the source, but not the Updates.
        remove(scene, &group).await;
        until_stalled(&main, &[&group]).await;
        assert_eq!(main.updates().await.len(), 2);

        // The source and the Workspace no longer exist, so the destroy can use only the state in the backend.
        scene.delete::<Workspace>("main").await;
        scene.until_gone::<Workspace>("main", WaitLimit::Run).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step", "delete step"]));
    });
}

#[test]
fn an_invalid_source_reference_stalls_the_stack() {
    run("no-source", async |scene| {
        let nothing = scene.source_object("", "Secret", "secrets", "state");
        let main = scene.start(scene.stack_on_kind("main", Some("v1"), &nothing)).await;
        main.until("to be stalled because of its reference", WaitLimit::Reaction, |stack| {
            condition(stack, STALLED)
                .is_some_and(|stalled| stalled.message.contains("\"v1\": must have the form GROUP/VERSION"))
        })
        .await;
    });
}

/// Waits until the Stack is stalled because of an invalid spec or source. The message must contain all `texts`.
async fn until_stalled(main: &StackHandle<'_>, texts: &[&str]) -> Stack {
    main.until(&format!("to be stalled by its source with {texts:?}"), WaitLimit::Reaction, |stack| {
        is_stalled(stack, stack_reason::SOURCE_UNAVAILABLE) && ready_contains(stack, texts)
    })
    .await
}

/// Waits until the Stack reports that its source has no artifact yet. The Stack must not be stalled.
async fn until_waiting_for_artifact(main: &StackHandle<'_>) -> Stack {
    main.until("to wait for an artifact", WaitLimit::Reaction, |stack| {
        waits_for_source(stack) && ready_contains(stack, &["has no artifact yet"])
    })
    .await
}

fn ready_contains(stack: &Stack, texts: &[&str]) -> bool {
    condition(stack, READY).is_some_and(|ready| texts.iter().all(|text| ready.message.contains(text)))
}

/// Installs a CustomResourceDefinition whose objects have `status.artifact`.
async fn install(scene: &Scene, group: &str) {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
    });
    let names = json!({"plural": "reports", "singular": "report", "kind": "Report", "listKind": "ReportList"});
    let definition = json!({
        "metadata": {"name": format!("reports.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    });
    create_in_cluster::<CustomResourceDefinition>(scene, definition).await;
}

/// Grants the controller permission to read the kind, with the RBAC rules that the condition message describes.
async fn allow(scene: &Scene, group: &str) {
    let rule = json!({"apiGroups": [group], "resources": ["reports"], "verbs": ["get", "list", "watch"]});
    let labels = json!({"pulumi.com/aggregate-to-source-reader": "true"});
    let role = json!({"metadata": {"name": format!("reader.{group}"), "labels": labels}, "rules": [rule]});
    create_in_cluster::<ClusterRole>(scene, role).await;
}

async fn remove(scene: &Scene, group: &str) {
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let name = format!("reports.{group}");
    api_call(format!("deleting {name}"), definitions.delete(&name, &DeleteParams::default())).await;
    let roles: Api<ClusterRole> = Api::all(scene.client.clone());
    let name = format!("reader.{group}");
    api_call(format!("deleting {name}"), roles.delete(&name, &DeleteParams::default())).await;
}

async fn create_in_cluster<K>(scene: &Scene, object: Value)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let action = format!("creating {} {}", K::kind(&()), object["metadata"]["name"]);
    api_call(action, Api::<K>::all(scene.client.clone()).create(&PostParams::default(), &from_json(object))).await;
}
