//! Tests controller crashes and restarts. No other test runs at the same time.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{OUTPUTS_WRITTEN, READY, RECONCILING, is_true, outputs_reason, stack_reason};
use pulumi_controller::api::names::{LABEL_COMPONENT, workspace_pod};
use serde_json::json;

use crate::exclusive::sleeping;
use crate::harness::{
    Controller, Poll, Program, Scene, StackHandle, WaitLimit, client, has_condition, in_scene, is_done, kubectl, once,
    run_alone, run_program, run_with_cleanup, wait_until,
};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-pulumi");
/// Time that Kubernetes accepts and the controller's parser rejects.
const LATE: &str = "9999-12-31T23:59:59Z";

/// At each failpoint in the code, the controller exits once while the test creates, runs or deletes a Stack.
#[test]
fn a_restart_at_any_failpoint_neither_loses_nor_duplicates_a_run() {
    let failpoints = controller_failpoints();
    assert!(failpoints.len() > 3, "the code has failpoints: {failpoints:?}");
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let crashes = async || {
            for failpoint in &failpoints {
                println!("the controller exits at {failpoint}");
                in_scene("failpoint", async |scene| {
                    // Only the first process exits at the failpoint. The process after the restart ignores the
                    // failpoint.
                    controller.restart_with_failpoint(Some(failpoint)).await;
                    check_stack_lifecycle(scene, failpoint == EXPIRY_FAILPOINT).await;
                    controller.until_failpoint_reached(failpoint).await;
                })
                .await;
            }
        };
        run_with_cleanup(crashes, async || controller.restart_with_failpoint(None).await).await;
    });
}

/// Failpoint after the controller has recorded that a Stack has expired, and before it deletes the Stack.
const EXPIRY_FAILPOINT: &str = "stack-expired";
/// Failpoints that a run reaches when it executes an approved plan. The controller exits once at each of these
/// failpoints.
const STEPS_OF_APPROVED_RUN: [&str; 9] = [
    "stack-run-recorded",
    "stack-update-created",
    "update-bound",
    "update-pod-marked",
    "update-acknowledged",
    "update-result-seen",
    "update-recorded",
    "stack-result-seen",
    "stack-result-absorbed",
];

#[test]
fn a_restart_at_any_step_of_an_approved_run_executes_the_plan_once() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let crashes = async || {
            for failpoint in STEPS_OF_APPROVED_RUN {
                println!("the controller exits at {failpoint}");
                in_scene("approved-step", async |scene| check_approved_run(scene, &controller, failpoint).await).await;
            }
        };
        run_with_cleanup(crashes, async || controller.restart_with_failpoint(None).await).await;
    });
}

/// Executes an approved plan while the controller exits at the failpoint, and checks the run.
async fn check_approved_run(scene: &Scene, controller: &Controller, failpoint: &str) {
    controller.restart_with_failpoint(None).await;
    let role = "--clusterrole=pulumi-controller-approver";
    kubectl(&["--namespace", &scene.namespace, "create", "rolebinding", "alice", role, "--user=alice"], "").await;
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("approved").step("step", json!({"value": scene.id})).files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.approval = serde_json::from_value(json!({"mode": "Always"})).expect("approval settings");
    let main = scene.start(stack).await;
    let awaiting = main
        .until("to wait for an approval", WaitLimit::Run, |stack| {
            has_condition(stack, RECONCILING, "True", stack_reason::AWAITING_APPROVAL)
        })
        .await;
    controller.restart_with_failpoint(Some(failpoint)).await;
    let digest = awaiting.status.and_then(|status| status.plan).expect("a plan").digest.to_string();
    let approval = json!({
        "apiVersion": "pulumi.com/v1alpha1", "kind": "Approval", "metadata": {"name": "main"},
        "spec": {"stackRef": {"name": "main"}, "planDigest": digest, "decision": "Approve", "by": "alice"},
    });
    let create = ["--namespace", &scene.namespace, "--as", "alice", "create", "--filename", "-"];
    kubectl(&create, &approval.to_string()).await;
    let applied = main.until_applied(&commit).await;
    controller.until_failpoint_reached(failpoint).await;
    let last = applied.status.and_then(|status| status.last_update).expect("a run");
    assert_eq!(last.plan.map(|plan| plan.approved_by), Some(vec!["alice".to_owned()]));
    assert_eq!(main.log.operations().await, once(&["create step"]));
    let runs: BTreeSet<String> = scene.timeline.states_of::<Update>().iter().map(Update::name_any).collect();
    assert_eq!(runs.len(), 2, "one plan and one up: {runs:?}");
}

/// Creates, runs and deletes a Stack. If `expires` is true, the controller deletes the Stack. Checks that one run
/// creates each resource once, that one run deletes each resource once, and that the controller writes the outputs to
/// an object.
async fn check_stack_lifecycle(scene: &Scene, expires: bool) {
    let source = scene.source("app").await;
    // The program has an output, because the controller reaches one failpoint when it creates the outputs Secret.
    let program =
        Program::new("failpoint").step("step", json!({"value": scene.id})).output("n", json!("${step.count}"));
    let commit = source.push(&program.files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.destroy_on_finalize = Some(true);
    let objects = json!([{"kind": "ConfigMap", "name": "outputs"}]);
    stack.spec.write_outputs_to = serde_json::from_value(objects).expect("objects");
    let main = scene.start(stack).await;
    let applied = main.until_applied(&commit).await;
    assert!(has_condition(&applied, OUTPUTS_WRITTEN, "True", outputs_reason::OUTPUTS_WRITTEN), "{applied:?}");
    match expires {
        true => {
            let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(15);
            let end = end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            main.change(json!({"spec": {"expiresAt": end}})).await;
        }
        false => main.delete().await,
    }
    main.until_gone().await;
    assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
    let runs: BTreeSet<String> = scene.timeline.states_of::<Update>().iter().map(Update::name_any).collect();
    // The change to `spec.expiresAt` starts no run.
    assert_eq!(runs.len(), 2, "one up and one destroy: {runs:?}");
}

/// Returns the failpoints in the controller code. Excludes the failpoints that the controller reaches while a Workspace
/// falls asleep or wakes up. Also excludes the agent's failpoints, because the agent is a separate process.
fn controller_failpoints() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut names = BTreeSet::new();
    let mut folders = vec![source.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the source can be listed").flatten() {
            let path = entry.path();
            if path.is_dir() && path != source.join("agent") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("the source can be read");
                let calls = text.split("failpoint::hit(\"").skip(1);
                names.extend(calls.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    names.retain(|name| !sleeping::FAILPOINTS.contains(&name.as_str()));
    names
}

#[test]
fn a_controller_killed_during_a_run_reattaches_after_its_restart() {
    run_alone(async || {
        in_scene("killed", async |scene| {
            let source = scene.source("app").await;
            let program = Program::new("killed")
                .step("slow", json!({"seconds": 20, "steps": 20}))
                .output("n", json!("${slow.count}"));
            let commit = source.push(&program.files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.log.wait_for("create", "slow", "begin").await;
            let before = main.updates().await;
            let pod = main.pod_and_restarts().await;

            let controller = Controller::new(&scene.client);
            let killed = controller.kill().await;
            controller.until_available().await;
            assert_ne!(controller.pod().await.uid().unwrap_or_default(), killed, "another controller pod runs");
            assert_eq!(main.log.operations().await, ["create slow begin"], "the run continues without a controller");

            let stack = main.until_applied(&commit).await;
            assert_eq!(json!(stack.status.expect("a status").outputs), json!({"n": 0}));
            assert_eq!(main.log.operations().await, once(&["create slow"]));
            assert_eq!(main.pod_and_restarts().await, pod);
            let after = main.updates().await;
            assert_eq!((before.len(), after.len()), (1, 1));
            let binding = |updates: &[Update]| updates[0].status.clone().and_then(|status| status.run);
            assert_eq!(binding(&before), binding(&after), "the run is not started again");
            assert!(binding(&after).is_some());
        })
        .await;
    });
}

/// The new controller pod's artifact store is empty, and the workspace pod contains the source from another directory
/// in the artifact.
#[test]
fn a_new_directory_starts_a_run_even_if_the_artifact_store_is_lost() {
    run_alone(async || {
        in_scene("lost-store", async |scene| {
            let source = scene.source("app").await;
            let step = |text: &str| Program::new("lost-store").step("step", json!({"value": text}));
            let files = [step("one").file("one/Pulumi.yaml"), step("two").file("two/Pulumi.yaml")];
            let commit = source.push(&files).await;
            let mut stack = scene.stack("main", &source);
            stack.spec.flux_source.as_mut().expect("Flux source").dir = Some("one".to_owned());
            let main = scene.start(stack).await;
            main.until_applied(&commit).await;

            let controller = Controller::new(&scene.client);
            controller.kill().await;
            controller.until_available().await;
            main.change(json!({"spec": {"fluxSource": {"dir": "two"}}})).await;
            main.until_applied(&commit).await;
            assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
            assert_eq!(main.updates().await.len(), 2);
        })
        .await;
    });
}

#[test]
fn a_commit_pushed_while_the_controller_is_down_starts_a_run_later() {
    run_alone(async || {
        in_scene("away", async |scene| {
            let source = scene.source("app").await;
            let with_text = |text: &str| Program::new("away").step("step", json!({"value": text}));
            let first = source.push(&with_text("one").files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied(&first).await;
            let pod = main.pod_and_restarts().await;

            let controller = Controller::new(&scene.client);
            controller.kill().await;
            let second = source.push(&with_text("two").files()).await;
            source.artifact_of(&second).await;
            controller.until_available().await;
            main.until_applied(&second).await;
            assert_eq!(main.pod_and_restarts().await, pod);
            assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
            assert_eq!(main.updates().await.len(), 2);
        })
        .await;
    });
}

#[test]
fn a_stack_left_reconciling_becomes_ready_again_without_a_run() {
    run_alone(async || {
        in_scene("left-at-work", async |scene| {
            let source = scene.source("app").await;
            let program = Program::new("left-at-work").step("step", json!({"value": "one"}));
            let commit = source.push(&program.files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied(&commit).await;

            let controller = Controller::new(&scene.client);
            let without_controller = async || {
                controller.scale(0).await;
                set_stale_run_conditions(&main).await;
            };
            run_with_cleanup(without_controller, async || controller.scale(1).await).await;
            main.until("to be Ready again", WaitLimit::Reaction, is_done).await;
            assert_eq!(main.updates().await.len(), 1);
            assert_eq!(main.log.operations().await, once(&["create step"]));
        })
        .await;
    });
}

/// The test removes both the installed source and the artifact store to simulate the replacement of all nodes.
#[test]
fn a_new_pod_gets_its_source_even_if_the_artifact_store_is_lost() {
    run_alone(async || {
        in_scene("store-lost", async |scene| {
            let source = scene.source("app").await;
            let program = Program::new("store-lost").step("step", json!({"value": "one"}));
            let commit = source.push(&program.files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied(&commit).await;
            let (old, _) = main.pod_and_restarts().await;

            let controller = Controller::new(&scene.client);
            let without_controller = async || {
                controller.scale(0).await;
                scene.delete::<Pod>(&workspace_pod("main")).await;
            };
            run_with_cleanup(without_controller, async || controller.scale(1).await).await;
            wait_until("the source to be installed in another pod", WaitLimit::Run, async || {
                let workspace = main.workspace().await;
                let status = workspace.status.clone().unwrap_or_default();
                let is_new = status.pod_uid.as_ref().is_some_and(|uid| *uid != old);
                let is_ready = is_true(&status.conditions, READY);
                match is_new && is_ready && status.artifact == workspace.spec.artifact {
                    true => Poll::Found(()),
                    false => Poll::NotYet(format!("{status:?}")),
                }
            })
            .await;
            main.until("to be Ready", WaitLimit::Reaction, is_done).await;
            assert_eq!(main.updates().await.len(), 1, "the restart starts no run");
        })
        .await;
    });
}

/// The API server accepts values that the controller's parser rejects. Stacks with such values must not prevent the
/// controller and the kubectl plugin from listing the other Stacks.
#[test]
fn a_new_controller_reconciles_other_stacks_despite_unparsable_ones() {
    run_alone(async || {
        in_scene("unreadable", async |scene| {
            let nested = (0..300).fold(json!({}), |inner, _| json!({"a": inner}));
            let nested = json!({"stack": "dev", "workspaceTemplate": {"spec": {"podTemplate": nested}}});
            let names = ["nested", "late"].map(|kind| format!("{kind}-{}", scene.id));
            let others = async || {
                let late = json!({"stack": "dev", "expiresAt": LATE, "destroyOnFinalize": false});
                for (name, spec) in names.iter().zip([nested, late]) {
                    let metadata = json!({"name": name, "namespace": "default"});
                    let stack =
                        json!({"apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": spec});
                    kubectl(&["create", "--validate=false", "--filename", "-"], &stack.to_string()).await;
                }
                let controller = Controller::new(&scene.client);
                controller.kill().await;
                controller.until_available().await;
                let source = scene.source("app").await;
                let program = Program::new("unreadable").step("step", json!({"value": "one"}));
                let commit = source.push(&program.files()).await;
                scene.start(scene.stack("main", &source)).await.until_applied(&commit).await;
                for name in &names {
                    let stack = format!("stack.pulumi.com/{name}");
                    let condition = ["--for", "condition=Stalled", "--timeout", "50s"];
                    kubectl(&[&["wait", &stack, "--namespace", "default"][..], &condition].concat(), "").await;
                }
                let listed = run_program(PLUGIN, &["get", "--all-namespaces"], "").await;
                assert!(listed.contains(&scene.namespace) && !listed.contains(&names[0]), "{listed}");
            };
            run_with_cleanup(others, async || {
                let stacks = ["--namespace", "default", "--ignore-not-found", &names[0], &names[1]];
                kubectl(&[&["delete", "stack.pulumi.com"][..], &stacks].concat(), "").await;
            })
            .await;
        })
        .await;
    });
}

/// A user who can change an object can also write its managed fields, with a time that the controller's parser rejects.
/// A pod or a StatefulSet with such a time must not prevent the controller from listing the other objects, and the log
/// must not contain the list.
#[test]
fn a_new_controller_reconciles_stacks_despite_invalid_managed_fields_of_a_pod() {
    run_alone(async || {
        in_scene("managed-fields", async |scene| {
            let name = format!("late-{}", scene.id);
            let create = async || {
                for object in labeled_objects(&name) {
                    kubectl(&["create", "--filename", "-"], &object.to_string()).await;
                }
                for (kind, api_version) in [("pod", "v1"), ("statefulset", "apps/v1")] {
                    let entry = json!({
                        "manager": name, "operation": "Update", "apiVersion": api_version, "time": LATE,
                        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}},
                    });
                    let patch = json!([{"op": "add", "path": "/metadata/managedFields/-", "value": entry}]).to_string();
                    let object = [kind, &name, "--namespace", "default"];
                    kubectl(&[&["patch"][..], &object, &["--type", "json", "--patch", &patch]].concat(), "").await;
                    let read = [&["get"][..], &object, &["--show-managed-fields", "--output", "json"]].concat();
                    assert!(kubectl(&read, "").await.contains(LATE), "the API server accepts the time");
                }
                let controller = Controller::new(&scene.client);
                controller.kill().await;
                controller.until_available().await;
                let source = scene.source("app").await;
                let program = Program::new("managed-fields").step("step", json!({"value": "one"}));
                let commit = source.push(&program.files()).await;
                scene.start(scene.stack("main", &source)).await.until_applied(&commit).await;
                let logged = controller.log_lines(&name).await;
                assert!(logged.is_empty(), "the log contains the list: {} lines", logged.len());
            };
            run_with_cleanup(create, async || {
                let objects = ["pod,statefulset", &name, "--namespace", "default", "--ignore-not-found"];
                kubectl(&[&["delete", "--grace-period", "0", "--force"][..], &objects].concat(), "").await;
            })
            .await;
        })
        .await;
    });
}

/// Returns a pod and a StatefulSet that the watches of the controller select. No container starts.
fn labeled_objects(name: &str) -> [serde_json::Value; 2] {
    let labels = json!({LABEL_COMPONENT: "workspace", "team": name});
    let metadata = json!({"name": name, "namespace": "default", "labels": labels});
    let containers = json!([{"name": "main", "image": "none"}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"schedulingGates": [{"name": "pulumi.com/test"}], "containers": containers},
    });
    let stateful_set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata,
        "spec": {
            "replicas": 0, "serviceName": name, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    });
    [pod, stateful_set]
}

/// Sets the conditions that a Stack has during a run, although no run is open.
async fn set_stale_run_conditions(main: &StackHandle<'_>) {
    let generation = main.get().await.metadata.generation;
    let stale = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "running up",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
        })
    };
    let ready = stale(READY, "Unknown", stack_reason::NOT_READY_IN_PROGRESS);
    let reconciling = stale(RECONCILING, "True", stack_reason::STACK_PROCESSING);
    main.change_status(json!({"conditions": [ready, reconciling]})).await;
    assert!(!is_done(&main.get().await), "no other actor restores the status");
}
