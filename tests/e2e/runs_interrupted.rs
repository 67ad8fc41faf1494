//! Tests interrupted runs: evidence that a run has ended, pending creates, and user decisions.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::{LockRecovery, TerminationEvidence, Update, UpdatePhase};
use pulumi_controller::api::conditions::{self, FAILED, PROGRESSING, READY, STALLED, stack_reason, update_reason};
use pulumi_controller::api::names::{
    ANNOTATION_REQUESTED_AT, ANNOTATION_RESOLVE, TAINT_OUT_OF_SERVICE, UPDATE_FINALIZER, workspace_pod,
};
use serde_json::json;

use crate::harness::{Program, Scene, StackHandle, WaitLimit, api_call, condition, from_json, has_condition, run};
use crate::runs_parts::{failure, in_pod, kill_cli, read, running_update, slow, until_update};

#[test]
fn deleting_a_pod_aborts_its_run_and_does_not_count_as_a_failure() {
    run("pod-deleted", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("pod-deleted", 12).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let first = running_update(scene, &main).await.name_any();
        scene.delete::<Pod>(&workspace_pod("main")).await;

        let stack = main.until_applied_within(WaitLimit::Long, &commit).await;
        let aborted = read(scene, &first).await;
        assert_eq!(failure(&aborted), Some(update_reason::ABORTED), "{:?}", aborted.status);
        assert_eq!(stack.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
        let expected = ["create slow begin", "create slow cancelled", "create slow begin", "create slow done"];
        assert_eq!(main.log.operations().await, expected);
        assert_eq!(main.updates().await.len(), 2);
    });
}

/// If the deletion has a grace period of zero, the processes receive no SIGTERM.
#[test]
fn a_run_is_retried_after_its_pod_is_force_deleted() {
    run("pod-forced", async |scene| {
        let source = scene.source("app").await;
        let program = |value: &str, seconds: u32| {
            Program::new("pod-forced").step("slow", json!({"value": value, "seconds": seconds, "steps": 1}))
        };
        let first = source.push(&program("one", 0).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let pod = main.pod().await.uid();
        let second = source.push(&program("two", 15).files()).await;
        main.log.wait_for("update", "slow", "begin").await;
        let open = main.get().await.status.and_then(|status| status.current_update);
        let interrupted = open.expect("the open run").name;
        let by_force = DeleteParams::default().grace_period(0);
        api_call("deleting the pod by force".to_owned(), scene.api::<Pod>().delete(&workspace_pod("main"), &by_force))
            .await;

        let stack = main.until_applied_within(WaitLimit::Long, &second).await;
        let ended = read(scene, &interrupted).await;
        assert_eq!(failure(&ended), Some(update_reason::ABORTED), "{:?}", ended.status);
        assert_eq!(stack.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
        assert_ne!(main.pod().await.uid(), pod);
        let mut operations = main.log.operations().await;
        // The provider can exit before it reports the cancellation, so this event is optional.
        operations.retain(|operation| operation != "update slow cancelled");
        let expected =
            ["create slow begin", "create slow done", "update slow begin", "update slow begin", "update slow done"];
        assert_eq!(operations, expected);
    });
}

#[test]
fn a_destroy_whose_pod_is_deleted_is_retried_and_completes() {
    run("destroy-cut", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("destroy-cut", 8).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        main.delete().await;
        main.log.wait_for("delete", "slow", "begin").await;
        scene.delete::<Pod>(&workspace_pod("main")).await;
        main.until_gone().await;
        let mut operations = main.log.operations().await;
        // The provider can complete its operation before it receives the signal, so this event is optional.
        operations.retain(|operation| operation != "delete slow cancelled");
        let expected =
            ["create slow begin", "create slow done", "delete slow begin", "delete slow begin", "delete slow done"];
        assert_eq!(operations, expected, "the resource is deleted before the Stack");
    });
}

/// Kills a Stack's CLI while the CLI creates a resource, which leaves a pending create in the state. Returns the name
/// of the Update that detects the pending create.
async fn until_pending_create(scene: &Scene, main: &StackHandle<'_>) -> String {
    let killed = kill_cli(scene, main).await.name_any();
    let stack = main
        .until("to report the pending create", WaitLimit::Long, |stack| {
            has_condition(stack, READY, "False", stack_reason::PENDING_CREATES)
                && has_condition(stack, STALLED, "True", stack_reason::PENDING_CREATES)
        })
        .await;
    let message = condition(&stack, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default();
    assert!(message.contains("testing:index:Step::slow") && message.contains(ANNOTATION_RESOLVE), "{message}");
    let killed = read(scene, &killed).await;
    let status = killed.status.clone().unwrap_or_default();
    assert_eq!((failure(&killed), status.interrupted), (Some(update_reason::ABORTED), Some(true)));
    // The provider can report a cancellation after the CLI has exited, so the test counts only the operation's `begin`
    // event.
    let begun = main.log.operations().await.into_iter().filter(|operation| operation == "create slow begin").count();
    assert_eq!(begun, 1, "the resource is created once");
    stack.status.and_then(|status| status.last_update?.name).expect("a run has a name")
}

/// Tests that the Stack runs after a user has resolved the pending create with this decision.
fn resolve_with(name: &str, word: &str) {
    run(name, async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow(name, 10).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let resource = until_pending_create(scene, &main).await;

        main.annotate(ANNOTATION_RESOLVE, "another-update=retry").await;
        main.until("to report that the annotation names another run", WaitLimit::Reaction, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.message.contains("names another-update"))
        })
        .await;
        let resolution = format!("{resource}={word}");
        main.annotate(ANNOTATION_RESOLVE, &resolution).await;
        let stack = main.until_applied_within(WaitLimit::Long, &commit).await;
        assert_eq!(stack.status.and_then(|status| status.handled_resolve), Some(resolution));
        let mut operations = main.log.operations().await;
        operations.retain(|operation| operation != "create slow cancelled");
        let expected = ["create slow begin", "create slow begin", "create slow done"];
        assert_eq!(operations, expected, "the run continues after the decision");
    });
}

#[test]
fn a_killed_cli_leaves_no_lock_but_pending_creates_to_clear() {
    resolve_with("doubt-clear", "clear");
}

#[test]
fn resolving_pending_creates_with_retry_starts_a_run() {
    resolve_with("doubt-retry", "retry");
}

#[test]
fn an_abandoned_run_is_retried_only_after_a_new_request() {
    run("doubt-abandon", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("doubt-abandon", 10).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let resource = until_pending_create(scene, &main).await;
        let runs = main.updates().await.len();
        let resolution = format!("{resource}=abandon");
        main.annotate(ANNOTATION_RESOLVE, &resolution).await;
        main.until("to have recorded the resolution", WaitLimit::Reaction, |stack| {
            stack.status.as_ref().and_then(|status| status.handled_resolve.as_deref()) == Some(&resolution)
                && condition(stack, STALLED).is_some_and(|stalled| stalled.message.contains("a user abandoned"))
        })
        .await;
        assert_eq!(main.updates().await.len(), runs);
        main.annotate(ANNOTATION_REQUESTED_AT, "now").await;
        let again = main
            .until("to have reconciled again", WaitLimit::Run, |stack| {
                let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
                last.is_some_and(|last| last.inputs.requested_at.as_deref() == Some("now"))
            })
            .await;
        assert!(
            has_condition(&again, STALLED, "True", stack_reason::PENDING_CREATES),
            "no run starts and the Stack is stalled again"
        );
    });
}

#[test]
fn manual_lock_recovery_keeps_the_lock_of_an_interrupted_run() {
    run("manual-lock", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow("manual-lock", 10).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.lock_recovery = LockRecovery::Manual;
        let main = scene.start(stack).await;
        // The CLI needs a lock to change the state, but not to read the state.
        let resource = until_pending_create(scene, &main).await;
        main.annotate(ANNOTATION_RESOLVE, &format!("{resource}=clear")).await;
        let locked = main
            .until("to report the holder of the lock", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_CONFLICT)
            })
            .await;
        let message = condition(&locked, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("main-workspace-0") && message.contains(" since "), "{message}");
        main.change(json!({"spec": {"lockRecovery": "Automatic"}})).await;
        // The earlier decision remains valid, because no run has executed the decision yet.
        main.until_applied_within(WaitLimit::Long, &commit).await;
        let mut reasons = Vec::new();
        for update in main.updates().await {
            let conditions = update.status.map(|status| status.conditions).unwrap_or_default();
            reasons.extend(conditions::find(&conditions, FAILED).map(|failed| failed.reason.clone()));
        }
        assert_eq!(reasons.iter().filter(|reason| *reason == update_reason::PENDING_CREATES).count(), 1, "{reasons:?}");
    });
}

/// Depending on the node configuration, the kernel kills either the largest process or all processes in the container.
#[test]
fn an_out_of_memory_run_reports_the_memory_limit() {
    run("memory", async |scene| {
        let source = scene.source("app").await;
        let big = Program::new("memory").step("big", json!({"holdMegabytes": 2000, "seconds": 1}));
        source.push(&big.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["resources"]["limits"] =
            json!({"memory": "600Mi"});
        let main = scene.start(stack).await;
        main.until("to report the memory limit", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            let message = last.and_then(|last| last.message.as_deref()).unwrap_or_default();
            message.contains("OOMKilled") && message.contains("limit of 600Mi")
        })
        .await;
    });
}

/// A program can prevent its agent from enforcing the timeout. To simulate this case, the test moves the run's start
/// time to the past.
#[test]
fn the_controller_deletes_the_pod_of_a_run_that_exceeds_its_deadline() {
    run("deadline", async |scene| {
        let source = scene.source("app").await;
        source.push(&slow("deadline", 300).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let pod = main.pod().await.uid();
        let name = running_update(scene, &main).await.name_any();
        let patch = Patch::Merge(json!({"status": {"startTime": "2026-01-01T00:00:00Z"}}));
        let (api, parameters) = (scene.api::<Update>(), PatchParams::default());
        api_call("changing the start time", api.patch_status(&name, &parameters, &patch)).await;
        request_reconcile(scene, &name, "1").await;
        let ended = until_update(scene, &name, "to have ended", WaitLimit::Run, Update::is_complete).await;
        let message = ended.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
        assert_eq!(failure(&ended), Some(update_reason::ABORTED), "{message}");
        for part in ["exceeded its timeout of 3h0m0s", "the controller deleted its pod"] {
            assert!(message.contains(part), "{part} is missing in {message}");
        }
        let second = source.push(&slow("deadline", 1).files()).await;
        main.until_applied(&second).await;
        assert_ne!(main.pod().await.uid(), pod);
    });
}

/// The kubelet checks the disk usage about every ten seconds. If a pod exceeds its limit, the kubelet evicts the pod
/// without a grace period.
#[test]
fn an_evicted_run_reports_the_kubelet_message_and_is_retried() {
    run("evicted", async |scene| {
        let source = scene.source("app").await;
        let program = |value: &str, seconds: u32| {
            Program::new("evicted").step("slow", json!({"value": value, "seconds": seconds, "steps": seconds}))
        };
        let first = source.push(&program("one", 1).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["resources"]["limits"] =
            json!({"ephemeral-storage": "200Mi"});
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        let pod = main.pod().await.uid();
        // The run is long, so that the kubelet detects the storage usage during the run, even on a busy machine.
        let second = source.push(&program("two", 100).files()).await;
        main.log.wait_for("update", "slow", "begin").await;
        let open = main.get().await.status.and_then(|status| status.current_update);
        let interrupted = open.expect("the open run").name;
        in_pod(scene, &main.name, "head -c 300000000 /dev/zero >/share/filler").await;

        let stack = main.until_applied_within(WaitLimit::Long, &second).await;
        assert_eq!(stack.status.and_then(|status| status.last_update).map(|last| last.failures), Some(0));
        let ended = read(scene, &interrupted).await;
        let conditions = ended.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let failed = conditions::find(&conditions, FAILED).expect("Failed condition");
        assert_eq!(failed.reason, update_reason::ABORTED);
        assert!(failed.message.contains("Evicted: ") && failed.message.contains("200Mi"), "{}", failed.message);
        assert_ne!(main.pod().await.uid(), pod);
    });
}

/// Creates an Update whose status contains an open run in a pod on this node, as if the controller had been restarted
/// during the run. The run never reports a result.
///
/// The test cluster has only one real node. This node must not fail, because all tests use it. The test therefore uses
/// a Node object without a machine, and an Update whose run no agent has started. The controller reads only API
/// objects, so it handles this run like a run on a lost node.
async fn create_lost_run(scene: &Scene, node: &str) -> String {
    let name = "ghost-1";
    scene
        .create::<Update>(json!({
            "metadata": {"name": name, "finalizers": [UPDATE_FINALIZER]},
            "spec": {"workspaceName": "ghost", "stackName": "dev", "type": "up", "artifact": {"digest": format!("sha256:{}", "0".repeat(64))}},
        }))
        .await;
    until_update(scene, name, "to be created", WaitLimit::Reaction, |update| {
        update.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
    })
    .await;
    let run = json!({
        "podUID": "gone", "agentStartID": "start", "settingsDigest": "sha256:0", "host": "ghost-workspace-0",
        "nodeName": node, "containerID": "containerd://gone",
    });
    let patch = Patch::Merge(json!({"status": {"run": run, "startTime": "2026-01-01T00:00:00Z"}}));
    let (api, parameters) = (scene.api::<Update>(), PatchParams::default());
    api_call("recording the run", api.patch_status(name, &parameters, &patch)).await;
    request_reconcile(scene, name, "1").await;
    let unknown = until_update(scene, name, "to have an unknown outcome", WaitLimit::Reaction, |update| {
        update.status.as_ref().is_some_and(|status| status.phase == Some(UpdatePhase::OutcomeUnknown))
    })
    .await;
    let conditions = unknown.status.unwrap_or_default().conditions;
    let progressing = conditions::find(&conditions, PROGRESSING).expect("Progressing condition");
    assert_eq!(progressing.reason, update_reason::RUN_OUTCOME_UNKNOWN);
    for word in ["ghost-workspace-0", node, "ghost-1=retry"] {
        assert!(progressing.message.contains(word), "{word} is missing in {}", progressing.message);
    }
    name.to_owned()
}

async fn request_reconcile(scene: &Scene, update: &str, value: &str) {
    let annotations = json!({ANNOTATION_REQUESTED_AT: value});
    scene.patch::<Update>(update, json!({"metadata": {"annotations": annotations}})).await;
}

async fn until_ended(scene: &Scene, update: &str) -> Update {
    until_update(scene, update, "to have ended", WaitLimit::Reaction, Update::is_complete).await
}

fn nodes(scene: &Scene) -> Api<Node> {
    Api::all(scene.client.clone())
}

/// Creates a Node without a machine. The scheduler assigns no pods to this Node.
async fn create_node(scene: &Scene) -> String {
    let name = format!("lost-{}", scene.id);
    let node: Node = from_json(json!({"metadata": {"name": name}, "spec": {"unschedulable": true}}));
    api_call("making a Node", nodes(scene).create(&PostParams::default(), &node)).await;
    name
}

async fn delete_node(scene: &Scene, name: &str) {
    api_call("deleting the Node", nodes(scene).delete(name, &DeleteParams::default())).await;
}

#[test]
fn a_run_on_an_unreachable_node_ends_after_the_out_of_service_taint() {
    run("node-off", async |scene| {
        let node = create_node(scene).await;
        let update = create_lost_run(scene, &node).await;
        let taint = json!({"key": TAINT_OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
        let patch = Patch::Merge(json!({"spec": {"taints": [taint]}}));
        api_call("tainting the Node", nodes(scene).patch(&node, &PatchParams::default(), &patch)).await;
        request_reconcile(scene, &update, "2").await;
        let ended = until_ended(scene, &update).await;
        delete_node(scene, &node).await;
        let status = ended.status.clone().unwrap_or_default();
        assert_eq!(
            (failure(&ended), status.termination_evidence),
            (Some(update_reason::ABORTED), Some(TerminationEvidence::NodeOutOfService))
        );
        assert!(status.message.is_some_and(|message| message.contains(&node)));
    });
}

/// The test cluster has a single node, so the binding of the run names another Node, which has the taint.
#[test]
fn a_run_on_a_node_that_is_being_removed_is_interrupted_and_repeated() {
    run("node-removed", async |scene| {
        let node = create_node(scene).await;
        let source = scene.source("app").await;
        let commit = source.push(&slow("node-removed", 25).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let first = running_update(scene, &main).await.name_any();
        let binding = Patch::Merge(json!({"status": {"run": {"nodeName": node}}}));
        let (api, parameters) = (scene.api::<Update>(), PatchParams::default());
        api_call("moving the run to the Node", api.patch_status(&first, &parameters, &binding)).await;
        let taint = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
        let patch = Patch::Merge(json!({"spec": {"taints": [taint]}}));
        api_call("tainting the Node", nodes(scene).patch(&node, &PatchParams::default(), &patch)).await;

        main.until_applied_within(WaitLimit::Long, &commit).await;
        delete_node(scene, &node).await;
        let interrupted = read(scene, &first).await;
        assert_eq!(failure(&interrupted), Some(update_reason::ABORTED), "{:?}", interrupted.status);
        let expected = ["create slow begin", "create slow cancelled", "create slow begin", "create slow done"];
        assert_eq!(main.log.operations().await, expected);
        assert_eq!(main.updates().await.len(), 2);
    });
}

#[test]
fn a_run_on_a_deleted_node_is_aborted() {
    run("node-gone", async |scene| {
        let node = create_node(scene).await;
        let update = create_lost_run(scene, &node).await;
        delete_node(scene, &node).await;
        request_reconcile(scene, &update, "2").await;
        let ended = until_ended(scene, &update).await;
        let status = ended.status.clone().unwrap_or_default();
        assert_eq!(
            (failure(&ended), status.termination_evidence),
            (Some(update_reason::ABORTED), Some(TerminationEvidence::NodeGone))
        );
    });
}

#[test]
fn a_resolve_annotation_on_an_update_ends_a_run_with_unknown_outcome() {
    run("user-resolves", async |scene| {
        let node = create_node(scene).await;
        let update = create_lost_run(scene, &node).await;
        let resolution = |value: &str| json!({"metadata": {"annotations": {ANNOTATION_RESOLVE: value}}});
        scene.patch::<Update>(&update, resolution("another=retry")).await;
        until_update(
            scene,
            &update,
            "to report that the annotation names another run",
            WaitLimit::Reaction,
            |update| {
                let conditions = update.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                conditions::find(conditions, PROGRESSING)
                    .is_some_and(|c| c.message.contains("the annotation names another"))
            },
        )
        .await;
        scene.patch::<Update>(&update, resolution("ghost-1=abandon")).await;
        let ended = until_ended(scene, &update).await;
        delete_node(scene, &node).await;
        let status = ended.status.clone().unwrap_or_default();
        assert_eq!(failure(&ended), Some(update_reason::RUN_OUTCOME_UNKNOWN));
        assert_eq!(status.handled_resolve.as_deref(), Some("ghost-1=abandon"));
        assert_eq!(status.termination_evidence, Some(TerminationEvidence::User));
    });
}
