//! Tests the conditions of a Stack and their transitions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, stack_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::{Program, Scene, WaitLimit, condition, has_condition, run};

#[test]
fn a_new_stack_has_observed_generation_minus_one() {
    run("unseen", async |scene| {
        // The response to the create request contains the Stack before its first reconciliation.
        let stack: Stack = scene
            .create(json!({
                "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "main"},
                "spec": {"stack": "dev", "suspend": true, "fluxSource": {"sourceRef": {"kind": "GitRepository", "name": "app"}}},
            }))
            .await;
        assert_eq!(stack.status.and_then(|status| status.observed_generation), Some(-1));
    });
}

#[test]
fn conditions_match_the_documented_table_in_every_phase() {
    run("conditions", async |scene| {
        let source = scene.source("app").await;
        let main = scene.start(scene.stack("main", &source)).await;
        let waiting = |stack: &Stack| {
            has_condition(stack, READY, "False", stack_reason::SOURCE_UNAVAILABLE)
                && has_condition(stack, RECONCILING, "True", stack_reason::SOURCE_UNAVAILABLE)
                && condition(stack, STALLED).is_none()
        };
        main.until("to wait for its source", WaitLimit::Reaction, waiting).await;

        let program = Program::new("conditions").step("slow", json!({"seconds": 3, "steps": 3}));
        let commit = source.push(&program.files()).await;
        main.log.wait_for("create", "slow", "begin").await;
        let running = main.get().await;
        assert!(has_condition(&running, READY, "Unknown", stack_reason::NOT_READY_IN_PROGRESS), "{running:#?}");
        assert!(has_condition(&running, RECONCILING, "True", stack_reason::STACK_PROCESSING), "{running:#?}");
        assert_eq!(condition(&running, STALLED), None);
        let message = condition(&running, RECONCILING).map(|c| c.message.clone()).unwrap_or_default();
        assert!(message.contains(&commit.revision()), "the message contains the revision: {message}");

        let done = main.until_applied(&commit).await;
        assert!(has_condition(&done, READY, "True", stack_reason::PROCESSING_COMPLETED), "{done:#?}");
        assert_eq!((condition(&done, RECONCILING), condition(&done, STALLED)), (None, None));
        let generation = done.metadata.generation;
        assert_eq!(condition(&done, READY).and_then(|ready| ready.observed_generation), generation);
        assert_never_ready_before(scene, &done);
    });
}

/// Checks that the condition Ready was never True before the final state.
fn assert_never_ready_before(scene: &Scene, done: &Stack) {
    let since = condition(done, READY).map(|ready| ready.last_transition_time.clone());
    let is_early = |ready: &Condition| ready.status == "True" && Some(&ready.last_transition_time) != since.as_ref();
    let states = scene.timeline.states_of::<Stack>();
    let early: Vec<_> =
        states.iter().filter_map(|stack| condition(stack, READY)).filter(|ready| is_early(ready)).collect();
    assert!(early.is_empty(), "{early:#?}");
}

/// A parsed Stack with so many values would need a hundred times the memory of its JSON text.
#[test]
fn a_stack_with_too_many_values_stalls_until_it_is_shortened() {
    run("values", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("values").output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.config.insert("list".to_owned(), json!(vec![json!({"": 0}); 60_000]));
        let main = scene.start(stack).await;
        let is_stalled = |stack: &Stack| {
            has_condition(stack, READY, "False", stack_reason::SPEC_INVALID)
                && has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
        };
        let stalled = main.until("to be stalled", WaitLimit::Reaction, is_stalled).await;
        let message = condition(&stalled, STALLED).map(|c| c.message.clone()).unwrap_or_default();
        assert!(message.contains("more than the maximum of 100000"), "{message}");
        main.until_event(stack_reason::SPEC_INVALID).await;
        assert!(main.updates().await.is_empty(), "the Stack does not run");
        main.change(json!({"spec": {"config": {"list": null}}})).await;
        main.until_applied(&commit).await;
    });
}

#[test]
fn an_invalid_spec_stalls_until_it_is_fixed() {
    run("invalid", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("invalid").output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        let reference = stack.spec.env_refs.get_mut("PROVIDER_LOG_URL").expect("provider log URL");
        let literal = reference.literal.take();
        let main = scene.start(stack).await;
        let stack = main
            .until("to be stalled", WaitLimit::Reaction, |stack| {
                has_condition(stack, READY, "False", stack_reason::SPEC_INVALID)
                    && has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
                    && condition(stack, RECONCILING).is_none()
            })
            .await;
        let message = condition(&stack, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default();
        assert!(message.contains("PROVIDER_LOG_URL"), "the message contains the variable: {message}");

        main.change(json!({"spec": {"envRefs": {"PROVIDER_LOG_URL": {"literal": literal}}}})).await;
        main.until_applied(&commit).await;
    });
}
