//! Tests a Stack's workspace pod.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::names::{ANNOTATION_RECONCILIATION_REQUEST, PULUMI_CONTAINER, workspace_pod};
use serde_json::json;

use crate::by_hand::condition_is;
use crate::harness::{
    FaultServer, Poll, Program, Scene, WaitLimit, archive, condition, has_condition, is_done, is_stalled, once, run,
    wait_until,
};

/// Scheduling gate that keeps a pod pending until the test removes the gate.
const GATE: &str = "pulumi-controller.test/held-back";

#[test]
fn a_deleted_pod_is_recreated_with_its_source() {
    run("pod-deleted", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("pod-deleted").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let (old, _) = main.pod_and_restarts().await;

        scene.delete::<Pod>(&workspace_pod("main")).await;
        main.annotate(ANNOTATION_RECONCILIATION_REQUEST, "after the pod was deleted").await;
        main.until("to have run in the new pod", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack)
                && last.is_some_and(|update| {
                    update.inputs.reconcile_request.as_deref() == Some("after the pod was deleted")
                })
        })
        .await;
        let (new, _) = main.pod_and_restarts().await;
        assert_ne!(old, new);
        let status = main.workspace().await.status.unwrap_or_default();
        assert_eq!(status.pod_uid.as_deref(), Some(new.as_str()));
        assert_eq!(status.artifact.map(|artifact| artifact.revision), Some(commit.revision()));
        assert_eq!(
            main.log.operations().await,
            once(&["create step"]),
            "the state is kept and no resource is created again"
        );
    });
}

#[test]
fn a_source_deleted_before_the_pod_starts_is_cached_and_fetched_once() {
    run("source-gone-early", async |scene| {
        let server = FaultServer::of(scene);
        let program = Program::new("source-gone-early").step("step", json!({"value": "one"}));
        let artifact = server.upload("good", archive(&program.files())).await;
        let source = scene.flux_object("ExternalArtifact", "externalartifacts", "app");
        source.create(json!({})).await;
        source.publish(&artifact).await;
        let mut stack = scene.stack_on_kind("main", None, &source);
        let template = stack.spec.workspace_template.get_or_insert_default();
        template["spec"]["podTemplate"] = json!({"spec": {"schedulingGates": [{"name": GATE}]}});
        let main = scene.start(stack).await;
        until_gated(scene).await;
        server.set_faults("good", json!({"status": 404})).await;
        remove_gate(scene).await;
        main.until_revision(&artifact.revision).await;
        let (old, _) = main.pod_and_restarts().await;
        let pod = json!(main.pod().await.spec.expect("a pod has a spec")).to_string();
        let (_, url) = artifact.url.split_once("//").expect("a URL has a scheme");
        let (host, path) = url.split_once('/').expect("a URL has a path");
        for word in [host, path] {
            assert!(!pod.contains(word), "the pod contains {word}: {pod}");
        }

        scene.delete::<Pod>(&workspace_pod("main")).await;
        until_gated(scene).await;
        main.annotate(ANNOTATION_RECONCILIATION_REQUEST, "in another pod").await;
        remove_gate(scene).await;
        main.until("to have run in another pod", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack)
                && last.is_some_and(|last| last.inputs.reconcile_request.as_deref() == Some("in another pod"))
        })
        .await;
        assert_ne!(main.pod_and_restarts().await.0, old);
        assert_eq!(main.log.operations().await, once(&["create step"]));
        assert_eq!(server.requests("good").await, 1, "one request for both pods");
    });
}

/// Waits until a pod is pending only because of the scheduling gate.
async fn until_gated(scene: &Scene) {
    wait_until("a pod with the scheduling gate", WaitLimit::Run, async || {
        let pods = scene.list::<Pod>().await;
        let is_gated =
            |pod: &Pod| pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten()).any(|g| g.name == GATE);
        if pods.iter().any(is_gated) { Poll::Found(()) } else { Poll::NotYet(format!("{} pods", pods.len())) }
    })
    .await;
}

async fn remove_gate(scene: &Scene) {
    scene.patch::<Pod>(&workspace_pod("main"), json!({"spec": {"schedulingGates": null}})).await;
}

#[test]
fn unsupported_template_fields_are_rejected_with_their_name() {
    run("unsupported", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("unsupported").output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        let template = stack.spec.workspace_template.get_or_insert_default();
        template["spec"]["podTemplate"] = json!({"spec": {"shareProcessNamespace": true}});
        let main = scene.start(stack).await;
        let stack = main
            .until("to reject the shared process namespace", WaitLimit::Reaction, |stack| {
                has_condition(stack, READY, "False", stack_reason::WORKSPACE_FAILED)
            })
            .await;
        let message = condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("shareProcessNamespace"), "{message}");

        main.change(json!({"spec": {"workspaceTemplate": {"spec": {"podTemplate": null}}}})).await;
        let stack = main.until_applied(&commit).await;
        assert_eq!(condition(&stack, STALLED), None);
    });
}

#[test]
fn a_pod_template_is_merged_into_the_pod() {
    run("template", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("template").output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        let template = stack.spec.workspace_template.get_or_insert_default();
        template["spec"]["podTemplate"] = json!({
            "metadata": {"labels": {"team": "payments"}},
            "spec": {
                "terminationGracePeriodSeconds": 5,
                "containers": [{"name": PULUMI_CONTAINER, "env": [{"name": "GREETING", "value": "hello"}]}],
            },
        });
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        let pod = main.pod().await;
        assert_eq!(pod.labels().get("team").map(String::as_str), Some("payments"));
        let spec = pod.spec.expect("a pod has a spec");
        assert_eq!(spec.termination_grace_period_seconds, Some(5));
        let names: Vec<_> = spec.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, [PULUMI_CONTAINER], "the container is merged by name");
        let greeting = spec.containers[0].env.iter().flatten().find(|variable| variable.name == "GREETING");
        assert_eq!(greeting.and_then(|variable| variable.value.as_deref()), Some("hello"));
    });
}

#[test]
fn a_reverted_change_is_removed_from_the_workspace_without_a_run() {
    run("reverted", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("reverted").output("text", json!("hello")).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let before = main.workspace().await.spec;

        let broken = json!({"image": "127.0.0.1:1/there-is-no-such-image:1", "serviceAccountName": "there-is-none"});
        main.change(json!({"spec": {"workspaceTemplate": {"spec": broken}}})).await;
        main.until("to report the pod", WaitLimit::Run, |stack| is_stalled(stack, stack_reason::WORKSPACE_FAILED))
            .await;
        let fixed = json!({"image": before.image, "serviceAccountName": null});
        main.change(json!({"spec": {"workspaceTemplate": {"spec": fixed}}})).await;
        main.until("to be ready without a run", WaitLimit::Reaction, is_done).await;
        wait_until("the Workspace to be restored", WaitLimit::Run, async || {
            let workspace = main.workspace().await;
            let is_ready = condition_is(&workspace, READY, "True", &[]);
            if is_ready && workspace.spec == before { Poll::Found(()) } else { Poll::NotYet(format!("{workspace:?}")) }
        })
        .await;
        assert_eq!(main.updates().await.len(), 1, "no further run");
    });
}

#[test]
fn a_manually_edited_workspace_is_corrected_before_the_next_run() {
    run("edited", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("edited").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;

        let lost = json!({"spec": {
            "artifact": {"digest": format!("sha256:{}", "a".repeat(64)), "revision": "none"},
            "env": [{"name": "PULUMI_BACKEND_URL", "value": "file:///tmp"}],
        }});
        scene.patch::<Workspace>("main", lost).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]), "the Stack's backend is used");
    });
}
