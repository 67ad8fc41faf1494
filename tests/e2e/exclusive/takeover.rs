//! Tests the migration of Stacks from the Pulumi Kubernetes Operator. These tests run alone, because they stop the
//! controller while they create the operator's objects.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{self, READY};
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::{Program as ProgramObject, Stack};
use serde_json::json;

use crate::harness::{
    Controller, OperatorObjects, Poll, Program, Scene, StackHandle, WaitLimit, api_call, client, has_operator_fields,
    in_scene, is_done, kubectl, once, run_alone, wait_until,
};

/// Stops the controller, and runs a test in a scene. The test must start the controller.
fn run_without_controller(name: &str, test: impl AsyncFnOnce(&Scene, &Controller)) {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let outcome =
            AssertUnwindSafe(in_scene(name, async |scene| test(scene, &controller).await)).catch_unwind().await;
        controller.scale(1).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

#[test]
fn stacks_left_by_pko_are_adopted_without_a_run() {
    run_without_controller("takeover", async |scene, controller| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("takeover").step("step", json!({"value": text}));
        let first = source.push(&with_text("one").files()).await;
        source.artifact_of(&first).await;
        controller.scale(0).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.destroy_on_finalize = Some(true);
        let left = scene.create_operator_objects(stack, &first.revision()).await;
        let pod = until_pod_runs(scene, "main").await;
        controller.scale(1).await;

        let main = scene.stack_handle("main", &left.stack);
        until_taken_over(scene, &main, &left).await;
        until_another_pod_is_ready(scene, &main, &pod.uid().unwrap_or_default()).await;
        assert_eq!(main.updates().await.len(), 1, "only the Update of the operator exists");
        assert_eq!(main.log.operations().await, Vec::<String>::new(), "no run has started");

        let second = source.push(&with_text("two").files()).await;
        main.until_applied(&second).await;
        assert_eq!(main.log.operations().await, once(&["create step"]));
        main.delete().await;
        main.until_gone().await;
        assert_eq!(
            main.log.operations().await,
            once(&["create step", "delete step"]),
            "the deletion destroys the resource"
        );
        until_objects_are_deleted(scene).await;
    });
}

#[test]
fn deleting_an_adopted_stack_that_never_ran_here_destroys_it() {
    run_without_controller("takeover-end", async |scene, controller| {
        let source = scene.source("app").await;
        // The status of the operator's objects contains this project name.
        let program = Program::new("hello").step("step", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        // Another Stack creates the state in the backend, because the test cluster does not run the operator's agent.
        let creator = scene.start(scene.stack("maker", &source)).await;
        creator.until_applied(&commit).await;
        // Deleting this Stack releases the Pulumi stack before the next Stack manages the Pulumi stack.
        creator.delete().await;
        creator.until_gone().await;
        controller.scale(0).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.stack = scene.stack("maker", &source).spec.stack;
        stack.spec.destroy_on_finalize = Some(true);
        let left = scene.create_operator_objects(stack, &commit.revision()).await;
        controller.scale(1).await;

        let main = scene.stack_handle("main", &left.stack);
        until_taken_over(scene, &main, &left).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(creator.log.operations().await, once(&["create step", "delete step"]));
    });
}

#[test]
fn a_run_left_open_by_pko_is_recorded_and_rerun_after_a_state_check() {
    run_without_controller("takeover-run", async |scene, controller| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("takeover-run").step("step", json!({"value": "one"})).files()).await;
        source.artifact_of(&commit).await;
        controller.scale(0).await;
        let left = scene.create_operator_objects_with_open_run(scene.stack("main", &source), "main@sha1:before").await;
        until_pod_runs(scene, "main").await;
        controller.scale(1).await;

        let main = scene.stack_handle("main", &left.stack);
        let stack = main
            .until("to have run the commit", WaitLimit::Long, |stack| {
                let applied = stack.status.as_ref().and_then(|status| status.last_applied_revision.clone());
                is_done(stack) && applied == Some(commit.revision())
            })
            .await;
        assert_eq!(main.log.operations().await, once(&["create step"]));
        let theirs = wait_until("the operator's Update to be taken over", WaitLimit::Reaction, async || {
            let updates = main.updates().await;
            let theirs = updates
                .iter()
                .find(|update| update.name_any() == left.update.name_any())
                .expect("the Update of the operator");
            let is_held = theirs.finalizers().iter().any(|finalizer| finalizer == names::STACK_FINALIZER);
            match has_operator_fields(theirs) || is_held {
                true => Poll::NotYet(format!("{theirs:?}")),
                false => Poll::Found(theirs.clone()),
            }
        })
        .await;
        let status = theirs.status.expect("status");
        let failed = conditions::find(&status.conditions, conditions::FAILED).expect("Failed condition");
        assert_eq!((failed.status.as_str(), failed.reason.as_str()), ("True", "Aborted"), "{failed:?}");
        assert_eq!(stack.status.and_then(|status| status.current_update), None);
    });
}

#[test]
fn fifty_stacks_are_adopted_from_pko_without_a_run() {
    const STACKS: usize = 50;
    const RUNNING_PODS: usize = 5;
    run_without_controller("takeover-50", async |scene, controller| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("takeover-50").step("step", json!({"value": "one"})).files()).await;
        source.artifact_of(&commit).await;
        controller.scale(0).await;
        let mut left = BTreeMap::new();
        for number in 0..STACKS {
            let name = format!("s{number:02}");
            let stack = scene.stack(&name, &source);
            // Most Stacks have no Workspace, because the pods of all Stacks would overload the node.
            let stack = match number < RUNNING_PODS {
                true => scene.create_operator_objects(stack, &commit.revision()).await,
                false => scene.create_operator_objects_without_workspace(stack, &commit.revision()).await,
            };
            left.insert(name, stack);
        }
        controller.scale(1).await;

        let is_taken = |stack: &Stack| {
            let baseline =
                stack.status.as_ref().and_then(|s| s.last_update.as_ref()).and_then(|l| l.inputs.digest.clone());
            !has_operator_fields(stack) && baseline.is_some() && is_done(stack)
        };
        wait_until("all Stacks to be taken over", WaitLimit::Long, async || {
            let stacks = scene.list::<Stack>().await;
            let open: Vec<String> = stacks.iter().filter(|s| !is_taken(s)).map(Stack::name_any).collect();
            if open.is_empty() { Poll::Found(()) } else { Poll::NotYet(format!("not taken over: {open:?}")) }
        })
        .await;
        // The run of a Stack with a different source proves that the controller has had time to reconcile all migrated
        // Stacks.
        let other = scene.source("witness").await;
        let pushed = other.push(&Program::new("witness").step("step", json!({"value": "two"})).files()).await;
        scene.start(scene.stack("witness", &other)).await.until_applied(&pushed).await;

        let runs: Vec<String> = scene.timeline.states_of::<Update>().iter().map(Update::name_any).collect();
        let theirs = |name: &String| left.values().any(|left| &left.update.name_any() == name);
        let started: Vec<&String> = runs.iter().filter(|run| !theirs(run) && !run.starts_with("witness-")).collect();
        assert!(started.is_empty(), "runs were started: {started:?}");
        for stack in scene.list::<Stack>().await {
            let Some(before) = left.get(&stack.name_any()) else { continue };
            assert_eq!(json!(stack.spec), json!(before.stack.spec), "{}", stack.name_any());
            assert_eq!(stack.metadata.generation, before.stack.metadata.generation, "{}", stack.name_any());
        }
    });
}

#[test]
fn a_rollback_to_pko_succeeds_after_the_workspaces_are_deleted() {
    run_without_controller("takeover-back", async |scene, controller| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("takeover-back").step("step", json!({"value": "one"})).files()).await;
        source.artifact_of(&commit).await;
        controller.scale(0).await;
        let left = scene.create_operator_objects(scene.stack("main", &source), &commit.revision()).await;
        controller.scale(1).await;
        let main = scene.stack_handle("main", &left.stack);
        until_taken_over(scene, &main, &left).await;

        // The test deletes the Workspace, as the migration guide describes.
        scene.delete::<Workspace>("main").await;
        wait_until("the Workspace and its pod to be deleted", WaitLimit::Run, async || {
            let workspaces = scene.list::<Workspace>().await.len();
            let (pods, sets) = (scene.list::<Pod>().await.len(), scene.list::<StatefulSet>().await.len());
            let services = scene.list::<Service>().await.len();
            match workspaces + pods + sets + services {
                0 => Poll::Found(()),
                _ => Poll::NotYet(format!(
                    "{workspaces} Workspaces, {pods} pods, {sets} StatefulSets, {services} Services"
                )),
            }
        })
        .await;
        controller.scale(0).await;
        let stack = main.get().await;
        let last = stack.status.clone().and_then(|status| status.last_update).expect("a run");
        assert_eq!(last.last_successful_commit, Some(commit.revision()), "the operator compares the revisions");
        assert_eq!(Some(last.inputs.generation), stack.metadata.generation);

        // Simulates writes of the operator. The operator applies the Workspace without force, and the Stack status with
        // force.
        let before = left.workspace.expect("the Workspace of the operator");
        let mut again = Workspace::new("main", before.spec);
        again.metadata.labels = before.metadata.labels;
        again.metadata.owner_references = before.metadata.owner_references;
        let theirs = PatchParams::apply(names::OPERATOR_FIELD_MANAGER);
        let api = scene.api::<Workspace>();
        api_call("applying the operator's Workspace", api.patch("main", &theirs, &Patch::Apply(&again))).await;
        let status = json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "status": {"observedGeneration": stack.metadata.generation, "observedReconcileRequest": "", "outputs": {"result": "x"}},
        });
        let theirs = PatchParams::apply("pulumi-kubernetes-operator/stack-status").force();
        let api = scene.api::<Stack>();
        let written = api.patch_status("main", &theirs, &Patch::Apply(&status)).await;
        api_call("applying the operator's status", async { written }).await;
        scene.delete::<Workspace>("main").await;
        controller.scale(1).await;
    });
}

/// Waits until the operator is neither the field manager nor the owner of any object, and checks that the Stack spec is
/// unchanged.
async fn until_taken_over(scene: &Scene, main: &StackHandle<'_>, left: &OperatorObjects) {
    main.until("to be taken over", WaitLimit::Run, |stack| !has_operator_fields(stack) && is_done(stack)).await;
    let object = names::workspace_object(&main.name);
    wait_until("Workspace, Service, StatefulSet and Update to be taken over", WaitLimit::Run, async || {
        let workspace = scene.list::<Workspace>().await.into_iter().find(|o| o.name_any() == main.name);
        let service = scene.list::<Service>().await.into_iter().find(|o| o.name_any() == object);
        let stateful_set = scene.list::<StatefulSet>().await.into_iter().find(|o| o.name_any() == object);
        let (Some(workspace), Some(service), Some(set)) = (workspace, service, stateful_set) else {
            return Poll::NotYet("an object is missing".to_owned());
        };
        let updates = scene.list::<Update>().await;
        let theirs = [has_operator_fields(&workspace), has_operator_fields(&service), has_operator_fields(&set)];
        let has_operator_update = updates.iter().any(has_operator_fields);
        // The controller first becomes the field manager of the objects, and then removes the operator's owner
        // references.
        let owners = service.owner_references().len() + set.owner_references().len();
        if theirs == [false; 3] && !has_operator_update && owners == 0 {
            Poll::Found(())
        } else {
            Poll::NotYet(format!("{theirs:?} {has_operator_update} {owners}"))
        }
    })
    .await;
    let set = api_call("reading the StatefulSet", scene.api::<StatefulSet>().get(&object)).await;
    let spec = json!(set.spec);
    assert_eq!(spec["updateStrategy"], json!({"type": "OnDelete"}));
    for of_the_operator in ["AGENT_MEMLIMIT", "POD_SA_NAME", "FLUX_URL", "/share/agent", "/share/tini"] {
        assert!(!spec.to_string().contains(of_the_operator), "{of_the_operator} remains in {spec}");
    }
    let stack = main.get().await;
    assert_eq!(json!(stack.spec), json!(left.stack.spec), "the spec is unchanged");
    assert_eq!(stack.metadata.generation, left.stack.metadata.generation);
}

async fn until_pod_runs(scene: &Scene, stack: &str) -> Pod {
    let name = names::workspace_pod(stack);
    wait_until(format!("the operator's pod {name} to run"), WaitLimit::Run, async || {
        let pods = scene.list::<Pod>().await;
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        match pods.iter().find(|pod| pod.name_any() == name) {
            Some(pod) if phase(pod) == "Running" => Poll::Found(pod.clone()),
            Some(pod) => Poll::NotYet(format!("{:?}", pod.status)),
            None => Poll::NotYet("no object".to_owned()),
        }
    })
    .await
}

async fn until_another_pod_is_ready(scene: &Scene, main: &StackHandle<'_>, before: &str) {
    let name = names::workspace_pod(&main.name);
    wait_until(format!("the pod {name} to be replaced"), WaitLimit::Run, async || {
        let pod = scene.list::<Pod>().await.into_iter().find(|pod| pod.name_any() == name);
        let workspace = scene.list::<Workspace>().await.into_iter().find(|w| w.name_any() == main.name);
        let status = workspace.and_then(|workspace| workspace.status).unwrap_or_default();
        let uid = pod.as_ref().and_then(Pod::uid).unwrap_or_default();
        let is_ready = conditions::is_true(&status.conditions, READY) && status.pod_uid.as_deref() == Some(&uid);
        if uid != before && is_ready {
            Poll::Found(())
        } else {
            Poll::NotYet(format!("{uid}: {:?}", status.conditions))
        }
    })
    .await;
}

async fn until_objects_are_deleted(scene: &Scene) {
    wait_until("all objects of the Stack to be deleted", WaitLimit::Reaction, async || {
        let left = [
            scene.list::<Workspace>().await.len(),
            scene.list::<Update>().await.len(),
            scene.list::<StatefulSet>().await.len(),
            scene.list::<Service>().await.len(),
            scene.list::<Pod>().await.len(),
        ];
        if left == [0; 5] { Poll::Found(()) } else { Poll::NotYet(format!("{left:?}")) }
    })
    .await;
}

/// Returns a CustomResourceDefinition for another kind, whose status has the same schema as a Program's status.
fn program_status_definition(required: &[&str]) -> serde_json::Value {
    let text = || json!({"type": "string"});
    let artifact = json!({
        "type": "object", "required": required,
        "properties": {
            "path": text(), "url": text(), "revision": text(), "digest": text(), "size": {"type": "integer"},
            "lastUpdateTime": {"type": "string", "format": "date-time"},
        },
    });
    let status = json!({"type": "object", "properties": {"artifact": artifact}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "programcopies.test.pulumi-controller"},
        "spec": {
            "group": "test.pulumi-controller", "scope": "Namespaced",
            "names": {"kind": "ProgramCopy", "plural": "programcopies", "singular": "programcopy"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"status": status}}},
            }],
        },
    })
}

#[test]
fn the_pko_program_crd_accepts_programs_without_a_url() {
    run_alone(async || {
        in_scene("no-url", async |scene| {
            let program =
                scene.create::<ProgramObject>(Program::new("app").output("result", json!("hello")).object("app")).await;
            let ours = wait_until("the artifact of the Program", WaitLimit::Reaction, async || {
                let found: Vec<ProgramObject> = scene.list().await;
                let status = found.first().and_then(|program| program.status.clone());
                match status.and_then(|status| status.artifact) {
                    Some(artifact) => Poll::Found(serde_json::to_value(artifact).expect("valid JSON")),
                    None => Poll::NotYet("no object".to_owned()),
                }
            })
            .await;
            assert!(ours.get("url").is_none(), "{} has a URL: {ours}", program.name_any());
            let apply = async |definition| {
                let input = serde_json::to_string(&definition).expect("valid JSON");
                kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", "-"], &input).await;
                kubectl(&["wait", "--for=condition=Established", "crd/programcopies.test.pulumi-controller"], "").await;
            };
            apply(program_status_definition(&[])).await;
            let copy = json!({
                "apiVersion": "test.pulumi-controller/v1", "kind": "ProgramCopy",
                "metadata": {"name": "app", "namespace": &scene.namespace},
            });
            kubectl(&["apply", "--filename", "-"], &copy.to_string()).await;
            let namespace = format!("--namespace={}", scene.namespace);
            let set_status = async |artifact: &serde_json::Value| {
                let patch = json!({"status": {"artifact": artifact}}).to_string();
                let arguments = [
                    "patch",
                    "programcopy",
                    "app",
                    &namespace,
                    "--subresource=status",
                    "--type=merge",
                    "--patch",
                    &patch,
                ];
                kubectl(&arguments, "").await
            };
            set_status(&ours).await;

            // The operator's CustomResourceDefinition requires the field `url`.
            apply(program_status_definition(&["lastUpdateTime", "path", "revision", "url"])).await;
            kubectl(&["annotate", "programcopy", "app", &namespace, "a=b"], "").await;
            let mut theirs = ours.clone();
            theirs["url"] = json!("http://operator/programs/apps/app/1");
            set_status(&theirs).await;
            kubectl(&["delete", "crd", "programcopies.test.pulumi-controller"], "").await;
        })
        .await;
    });
}
