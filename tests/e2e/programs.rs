//! Tests Stacks with Programs, which require neither a repository nor Flux.

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt};
use pulumi_controller::api::conditions::{self, READY, STALLED, program_reason, stack_reason};
use pulumi_controller::api::pulumi::{Program as ProgramObject, ProgramReference, Stack};
use serde_json::{Value, json};

use crate::harness::{
    Poll, Program, Scene, WaitLimit, api_call, condition, has_condition, is_stalled, once, run, wait_until,
    waits_for_source,
};

#[test]
fn two_stacks_on_one_program_run_and_an_edit_runs_both_once() {
    run("program", async |scene| {
        let with_text = |text: &str| {
            Program::new("app").step("step", json!({"value": text})).output("result", json!("${step.value}"))
        };
        scene.create::<ProgramObject>(with_text("one").object("app")).await;
        let stacks = [
            scene.start(scene.stack_on_program("main", "app")).await,
            scene.start(scene.stack_on_program("other", "app")).await,
        ];
        let mut pods = Vec::new();
        for stack in &stacks {
            stack.until_revision("1").await;
            pods.push(stack.pod_and_restarts().await);
        }

        scene.patch::<ProgramObject>("app", with_text("two").object("app")).await;
        for (stack, pod) in stacks.iter().zip(pods) {
            let status = stack.until_revision("2").await.status.expect("a status");
            assert_eq!(json!(status.outputs), json!({"result": "two"}));
            assert_eq!(stack.pod_and_restarts().await, pod, "the pod is not replaced");
        }

        // A label change does not change the program, so no run starts. The run of the Stack `witness` proves that the
        // controller has observed the label change.
        scene.patch::<ProgramObject>("app", json!({"metadata": {"labels": {"team": "a"}}})).await;
        scene.start(scene.stack_on_program("witness", "app")).await.until_revision("2").await;
        for stack in &stacks {
            assert_eq!(stack.updates().await.len(), 2);
            assert_eq!(stack.log.operations().await, once(&["create step", "update step"]));
        }
    });
}

#[test]
fn the_program_status_contains_the_artifact_that_its_stacks_run() {
    run("program-status", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("text", json!("hello")).object("app")).await;
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        main.until_revision("1").await;
        until_program(scene, "app", "to be valid", |program| {
            reports(program, READY, "True", program_reason::SUCCEEDED)
        })
        .await;

        let kind = ApiResource::erase::<ProgramObject>(&());
        let programs: Api<DynamicObject> = Api::namespaced_with(scene.client.clone(), &scene.namespace, &kind);
        let status = api_call("reading the Program", programs.get("app")).await.data["status"].clone();
        let artifact = &status["artifact"];
        assert_eq!(status["observedGeneration"], json!(1));
        assert_eq!(artifact["revision"], json!("1"));
        assert_eq!(artifact["path"], json!(format!("programs/{}/app/1.tar.gz", scene.namespace)));
        assert_eq!(artifact.get("url"), None, "the Program has no artifact URL");
        let installed = main.workspace().await.status.and_then(|status| status.artifact).expect("artifact in status");
        assert_eq!(artifact["digest"], json!(installed.digest));
    });
}

#[test]
fn an_invalid_program_reports_the_error_and_keeps_the_last_state() {
    run("program-invalid", async |scene| {
        let good = Program::new("app").step("step", json!({"value": "one"})).output("result", json!("${step.value}"));
        scene.create::<ProgramObject>(good.object("app")).await;
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        main.until_revision("1").await;
        let before = main.workspace().await.status.and_then(|status| status.artifact).expect("artifact in status");

        let location = "program.resources.step must not have both properties";
        let both = json!({"program": {"resources": {"step": {"get": {"id": "some-id"}}}}});
        scene.patch::<ProgramObject>("app", both).await;
        let stalled = main
            .until("to report the location of the error in the Program", WaitLimit::Reaction, |stack| {
                has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
                    && condition(stack, READY).is_some_and(|ready| ready.message.contains(location))
            })
            .await;
        assert!(has_condition(&stalled, READY, "False", stack_reason::SPEC_INVALID));
        let status = stalled.status.expect("a status");
        assert_eq!(json!(status.outputs), json!({"result": "one"}));
        assert_eq!(status.last_applied_revision.as_deref(), Some("1"));
        let program = until_program(scene, "app", "to report the location of the error", |program| {
            reports(program, STALLED, "True", program_reason::SPEC_INVALID)
        })
        .await;
        let status = program.status.expect("a status");
        assert!(conditions::find(&status.conditions, READY).is_some_and(|ready| ready.message.contains(location)));
        assert_eq!(status.artifact.map(|artifact| artifact.digest), Some(before.digest.clone()));
        let after = main.workspace().await.status.and_then(|status| status.artifact).expect("artifact in status");
        assert_eq!(after, before);

        scene.patch::<ProgramObject>("app", json!({"program": {"resources": {"step": {"get": null}}}})).await;
        main.until_revision("3").await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "no resource is lost");
    });
}

#[test]
fn a_stack_waits_for_its_program_to_be_created() {
    run("program-late", async |scene| {
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        let what = format!("Program {}/app does not exist", scene.namespace);
        let reports_program =
            |stack: &Stack| condition(stack, READY).is_some_and(|ready| ready.message.contains(&what));
        main.until("to report that its Program does not exist", WaitLimit::Reaction, |stack| {
            waits_for_source(stack) && reports_program(stack)
        })
        .await;
        // The controller marks the Stack as stalled only after a delay, because users often create the Program shortly
        // after the Stack.
        main.until("to be stalled", WaitLimit::Run, |stack| {
            is_stalled(stack, stack_reason::SOURCE_UNAVAILABLE) && reports_program(stack)
        })
        .await;
        scene.create::<ProgramObject>(Program::new("app").output("text", json!("hello")).object("app")).await;
        let stack = main.until_revision("1").await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"text": "hello"}));
    });
}

#[test]
fn a_stack_with_a_deleted_program_is_destroyed_with_the_copy_in_its_pod() {
    run("program-gone", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").step("step", json!({"value": "one"})).object("app")).await;
        let mut stack = scene.stack_on_program("main", "app");
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_revision("1").await;

        scene.delete::<ProgramObject>("app").await;
        main.until("to report that its Program does not exist", WaitLimit::Reaction, waits_for_source).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
    });
}

#[test]
fn a_program_recreated_under_the_same_name_runs() {
    run("program-recreated", async |scene| {
        let program = |text: &str| Program::new("app").output("text", json!(text)).object("app");
        scene.create::<ProgramObject>(program("one")).await;
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        main.until_revision("1").await;
        scene.delete::<ProgramObject>("app").await;
        scene.create::<ProgramObject>(program("two")).await;
        // The new Program has the same generation as the deleted Program, but a different digest.
        main.until("to run the new Program", WaitLimit::Run, |stack| {
            stack.status.as_ref().is_some_and(|status| status.outputs.get("text") == Some(&json!("two")))
        })
        .await;
    });
}

#[test]
fn a_stack_with_no_source_or_two_sources_reports_the_error() {
    run("program-or-flux", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("text", json!("hello")).object("app")).await;
        let mut stack = scene.stack_on("main", "not-there");
        stack.spec.program_ref = Some(ProgramReference { name: "app".to_owned() });
        let main = scene.start(stack).await;
        let reports_both = |stack: &Stack| {
            has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
                && condition(stack, READY).is_some_and(|ready| {
                    ready.message.contains("spec.fluxSource") && ready.message.contains("spec.programRef")
                })
        };
        main.until("to report that it has two sources", WaitLimit::Reaction, reports_both).await;
        main.change(json!({"spec": {"fluxSource": null, "programRef": null}})).await;
        main.until("to report that it has no source", WaitLimit::Reaction, |stack| {
            is_stalled(stack, stack_reason::SOURCE_UNAVAILABLE)
                && condition(stack, READY).is_some_and(|ready| ready.message.contains("no source is specified"))
        })
        .await;
        main.change(json!({"spec": {"programRef": {"name": "app"}}})).await;
        main.until_revision("1").await;
    });
}

#[test]
fn config_values_of_every_type_from_both_sections_reach_the_program() {
    run("program-config", async |scene| {
        let content = json!({
            "config": {
                "greeting": "hello",
                "count": {"type": "integer", "default": 2},
                "names": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
            },
            "configuration": {
                "flag": {"type": "Boolean", "default": true},
                "settings": {"type": "Object", "default": {"host": "localhost"}},
                "sizes": {"type": "List<Number>"},
                "token": {"type": "String", "default": "hidden", "secret": true},
            },
            "outputs": {
                "greeting": "${greeting}", "count": "${count}", "names": "${names}", "flag": "${flag}",
                "host": "${settings.host}", "sizes": "${sizes}", "token": "${token}",
            },
        });
        let object =
            json!({"apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {"name": "app"}, "program": content});
        scene.create::<ProgramObject>(object).await;
        let mut stack = scene.stack_on_program("main", "app");
        let config = [("count", json!(3)), ("settings", json!({"host": "example.com"})), ("sizes", json!([1, 2.5]))];
        stack.spec.config = config.map(|(key, value)| (key.to_owned(), value)).into();
        let main = scene.start(stack).await;
        let outputs = main.until_revision("1").await.status.expect("a status").outputs;
        let expected: Value = json!({
            "greeting": "hello", "count": 3, "names": ["a"], "flag": true,
            "host": "example.com", "sizes": [1, 2.5], "token": "[secret]",
        });
        assert_eq!(json!(outputs), expected);
    });
}

/// Waits until the Program matches `predicate`.
async fn until_program(
    scene: &Scene,
    name: &str,
    what: &str,
    predicate: impl Fn(&ProgramObject) -> bool,
) -> ProgramObject {
    wait_until(format!("the Program {name} {what}"), WaitLimit::Reaction, async || {
        match scene.api::<ProgramObject>().get(name).await {
            Ok(program) if predicate(&program) => Poll::Found(program),
            Ok(program) => Poll::NotYet(format!("{} has {:?}", program.name_any(), program.status)),
            Err(error) => Poll::NotYet(error.to_string()),
        }
    })
    .await
}

/// Returns whether the Program has this condition with this status and reason for its current generation.
fn reports(program: &ProgramObject, kind: &str, status: &str, reason: &str) -> bool {
    let conditions = program.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions::find(conditions, kind).is_some_and(|condition| {
        condition.status == status
            && condition.reason == reason
            && condition.observed_generation == program.metadata.generation
    })
}
