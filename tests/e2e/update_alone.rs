//! Tests Updates that a user creates for a user-defined Workspace or for a Stack's Workspace.

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use pulumi_controller::api::auto::{Update, UpdatePhase};
use pulumi_controller::api::conditions::update_reason;
use pulumi_controller::api::names::UPDATE_FINALIZER;
use pulumi_controller::artifact::Algorithm;
use serde_json::{Value, json};

use crate::by_hand::{phase, run_update, stack_name, until_succeeded, update, workspace};
use crate::harness::{Poll, Program, ProviderLog, Scene, Source, WaitLimit, kubectl, once, run, wait_until};
use crate::runs_parts::{failure, slow, until_update};

/// Creates a Workspace with this program and without a Stack.
async fn workspace_with(scene: &Scene, source: &Source<'_>, program: &Program) {
    let commit = source.push(&program.files()).await;
    let artifact = source.artifact_of(&commit).await;
    workspace(scene, "main", json!({"flux": {"url": artifact.url, "digest": artifact.digest}})).await;
}

fn log(scene: &Scene) -> ProviderLog {
    ProviderLog::of(&stack_name(scene))
}

#[test]
fn standalone_updates_support_all_operations_and_options() {
    run("update-alone", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("alone").step("one", json!({"value": "a"})).step("two", json!({"value": "a"}));
        workspace_with(scene, &source, &program).await;
        let log = log(scene);
        let stack = stack_name(scene);
        let urn = |name: &str| format!("urn:pulumi:{stack}::alone::testing:index:Step::{name}");

        // The Update has no owner, and waits until its Workspace is ready.
        let preview =
            run_update(scene, "preview", "main", "preview", json!({"parallel": 1, "message": "manual preview"})).await;
        assert!(preview.owner_references().is_empty());
        assert!(log.operations().await.is_empty(), "a preview changes nothing");
        let all = json!({
            "parallel": 1, "message": "by hand", "expectNoChanges": false, "target": [urn("one")], "targetDependents": true,
            "refresh": true, "continueOnError": true, "remove": true, "runProgram": true,
        });
        let up = run_update(scene, "up", "main", "up", all).await;
        assert_eq!(log.operations().await, once(&["create one"]), "the run creates only the target");
        let bound = up.status.expect("a status").run.and_then(|run| run.artifact).expect("artifact of the run");
        assert_eq!(bound.digest.algorithm(), Algorithm::Sha256, "{bound:?}");
        run_update(scene, "up-all", "main", "up", json!({"replace": [urn("one")]})).await;
        run_update(scene, "refresh", "main", "refresh", json!({"expectNoChanges": true, "runProgram": true})).await;
        update(scene, "unchanged", "main", "up", json!({"expectNoChanges": true})).await;
        until_succeeded(scene, "unchanged").await;
        let options = json!({"target": [urn("two")], "continueOnError": true, "refresh": true});
        run_update(scene, "destroy-two", "main", "destroy", options).await;
        run_update(scene, "destroy", "main", "destroy", json!({"remove": true})).await;
        let mut operations = log.operations().await;
        operations.retain(|operation| operation.starts_with("create") || operation.starts_with("delete"));
        let ended = |operation: &str, resource: &str| {
            let expected = format!("{operation} {resource} done");
            operations.iter().filter(|operation| **operation == expected).count()
        };
        // One run has replaced the first resource, and the destroy has deleted it. The provider has therefore created
        // and deleted this resource twice.
        assert_eq!([ended("create", "one"), ended("delete", "one")], [2, 2], "{operations:?}");
        assert_eq!([ended("create", "two"), ended("delete", "two")], [1, 1], "{operations:?}");

        // The destroy has removed the Pulumi stack from the backend, so a refresh fails.
        update(scene, "nothing", "main", "refresh", json!({})).await;
        let nothing = until_update(scene, "nothing", "to have failed", WaitLimit::Run, |update| {
            phase(update) == Some(UpdatePhase::Failed)
        })
        .await;
        assert_eq!(failure(&nothing), Some(update_reason::UPDATE_FAILED), "{:?}", nothing.status);
    });
}

#[test]
fn updates_of_one_workspace_run_oldest_first_and_expire_after_their_ttl() {
    run("update-queue", async |scene| {
        let source = scene.source("app").await;
        workspace_with(scene, &source, &slow("update-queue", 8)).await;
        update(scene, "a-first", "main", "up", json!({"ttlAfterCompleted": "5s"})).await;
        log(scene).wait_for("create", "slow", "begin").await;
        // The creation times differ by at least a second, so the age determines the order of the runs. The names have
        // the opposite order.
        for name in ["z-second", "b-third"] {
            let created = update(scene, name, "main", "refresh", json!({})).await;
            let second = created.creation_timestamp();
            wait_until("the next second", WaitLimit::Reaction, async || match scene.list::<Update>().await.len() {
                _ if second
                    .as_ref()
                    .is_some_and(|time| jiff::Timestamp::now().duration_since(time.0).as_secs() >= 1) =>
                {
                    Poll::Found(())
                }
                count => Poll::NotYet(format!("{count} Updates")),
            })
            .await;
        }
        until_update(scene, "z-second", "to wait", WaitLimit::Reaction, |update| {
            phase(update) == Some(UpdatePhase::Waiting)
        })
        .await;
        let started =
            |update: &Update| update.status.as_ref().and_then(|status| status.start_time.clone()).map(|time| time.0);
        let ended =
            |update: &Update| update.status.as_ref().and_then(|status| status.end_time.clone()).map(|time| time.0);
        let second = until_succeeded(scene, "z-second").await;
        let third = until_succeeded(scene, "b-third").await;
        assert!(started(&third) >= ended(&second), "{second:?} {third:?}");
        scene.until_gone::<Update>("a-first", WaitLimit::Run).await;
        let operations = log(scene).operations().await;
        assert_eq!(operations.iter().filter(|operation| *operation == "create slow begin").count(), 1);
    });
}

#[test]
fn deleting_a_running_update_cancels_it_and_starts_the_next() {
    run("update-cancel", async |scene| {
        let source = scene.source("app").await;
        workspace_with(scene, &source, &slow("update-cancel", 60)).await;
        let created = update(scene, "long", "main", "up", json!({})).await;
        assert!(created.finalizers().is_empty(), "the Update is created without finalizers");
        log(scene).wait_for("create", "slow", "begin").await;
        let running = until_update(scene, "long", "to have a finalizer", WaitLimit::Reaction, |update| {
            update.finalizers().iter().any(|finalizer| finalizer == UPDATE_FINALIZER)
        })
        .await;
        let edit = Patch::Merge(json!({"spec": {"timeout": "1m"}}));
        let refused =
            scene.api::<Update>().patch("long", &PatchParams::default(), &edit).await.unwrap_err().to_string();
        assert!(refused.contains("spec is immutable while the run is open"), "{refused}");
        update(scene, "never", "main", "up", json!({})).await;
        scene.patch::<Update>("never", json!({"spec": {"priority": 1}})).await;
        scene.delete::<Update>("never").await;
        scene.until_gone::<Update>("never", WaitLimit::Reaction).await;

        scene.delete::<Update>(&running.name_any()).await;
        log(scene).wait_for("create", "slow", "cancelled").await;
        scene.until_gone::<Update>("long", WaitLimit::Run).await;
        let operations = log(scene).operations().await;
        let begun = operations.iter().filter(|operation| *operation == "create slow begin").count();
        assert_eq!(begun, 1, "the Update that was deleted in the queue did not run");
        // The success of this run proves that the state contains neither a lock nor a pending operation.
        run_update(scene, "after", "main", "destroy", json!({})).await;
    });
}

#[test]
fn an_update_that_cannot_be_parsed_fails() {
    run("update-unparsed", async |scene| {
        // The API server accepts this time, but the parser of the controller and of this test does not.
        let spec = json!({
            "workspaceName": "main", "stackName": "dev", "type": "up", "pendingSince": "9999-12-31T23:59:59Z",
        });
        let metadata = json!({"name": "unparsed", "namespace": scene.namespace});
        let kind = json!({"apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update"});
        let object =
            json!({"apiVersion": kind["apiVersion"], "kind": kind["kind"], "metadata": metadata, "spec": spec});
        kubectl(&["create", "--filename", "-"], &object.to_string()).await;
        let of_update = ["--namespace", scene.namespace.as_str(), "update/unparsed"];
        let with = |arguments: &[&'static str]| -> Vec<&str> { arguments.iter().copied().chain(of_update).collect() };
        kubectl(&with(&["wait", "--for=condition=Complete", "--timeout=30s"]), "").await;
        let reason = r#"jsonpath={.status.conditions[?(@.type=="Failed")].reason}/{.status.observedGeneration}"#;
        assert_eq!(kubectl(&with(&["get", "--output", reason]), "").await.trim(), "SpecInvalid/1");
        kubectl(&with(&["delete"]), "").await;
    });
}

#[test]
fn a_user_created_update_runs_in_the_workspace_of_a_stack() {
    run("update-guest", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("update-guest").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied(&commit).await;
        let of_stack = json!({"stackName": stack.spec.stack, "expectNoChanges": true});
        run_update(scene, "guest", "main", "refresh", of_stack).await;
        let artifact = json!({"digest": format!("sha256:{}", "0".repeat(64))});
        let wrong: Value = json!({"stackName": stack.spec.stack, "artifact": artifact});
        update(scene, "wrong", "main", "up", wrong).await;
        let wrong = until_update(scene, "wrong", "to be rejected", WaitLimit::Reaction, |update| {
            phase(update) == Some(UpdatePhase::Failed)
        })
        .await;
        assert_eq!(failure(&wrong), Some(update_reason::SPEC_INVALID), "{:?}", wrong.status);
        let next = source.push(&Program::new("update-guest").step("step", json!({"value": "two"})).files()).await;
        main.until_applied(&next).await;
        let operations = main.log.operations().await;
        let changes: Vec<_> = operations.into_iter().filter(|operation| !operation.starts_with("read")).collect();
        assert_eq!(changes, once(&["create step", "update step"]), "the Stack continues as before");
    });
}
