//! The pod that a Stack runs in.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::names::{ANNOTATION_RECONCILIATION_REQUEST, PULUMI_CONTAINER, workspace_pod};
use serde_json::json;

use crate::harness::{Patience, Program, condition, is_done, once, run, says};

#[test]
fn s16_a_deleted_pod_comes_back_and_has_its_source_again() {
    run("pod-deleted", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("pod-deleted").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let (old, _) = main.pod_and_restarts().await;

        scene.delete::<Pod>(&workspace_pod("main")).await;
        main.annotate(ANNOTATION_RECONCILIATION_REQUEST, "after the pod was deleted").await;
        main.until("to have run in the new pod", Patience::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            is_done(stack)
                && last.is_some_and(|update| update.reconcile_request.as_deref() == Some("after the pod was deleted"))
        })
        .await;
        let (new, _) = main.pod_and_restarts().await;
        assert_ne!(old, new);
        let status = main.workspace().await.status.unwrap_or_default();
        assert_eq!(status.pod_uid.as_deref(), Some(new.as_str()));
        assert_eq!(status.artifact.map(|artifact| artifact.revision), Some(commit.revision()));
        assert_eq!(
            main.log.sentences().await,
            once(&["create step"]),
            "the state was kept, so nothing had to be made again"
        );
    });
}

#[test]
fn what_is_unsupported_in_a_template_is_refused_by_name() {
    run("unsupported", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("unsupported").output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        let template = stack.spec.workspace_template.get_or_insert_default();
        template["spec"]["podTemplate"] = json!({"spec": {"shareProcessNamespace": true}});
        let main = scene.start(stack).await;
        let stack = main
            .until("to refuse the shared processes", Patience::Reaction, |stack| {
                says(stack, READY, "False", stack_reason::NOT_READY_STALLED)
                    || says(stack, READY, "False", stack_reason::WORKSPACE_FAILED)
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
        assert_eq!(names, [PULUMI_CONTAINER], "it was merged by name, not added");
        let greeting = spec.containers[0].env.iter().flatten().find(|variable| variable.name == "GREETING");
        assert_eq!(greeting.and_then(|variable| variable.value.as_deref()), Some("hello"));
    });
}
