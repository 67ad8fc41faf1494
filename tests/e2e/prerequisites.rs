//! Stacks that have to be done before others.

use std::time::Duration;

use jiff::Timestamp;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{DependencyReference, PrerequisiteReference, Requirement, Stack};
use serde_json::json;

use crate::harness::{Patience, Program, Scene, Source, StackHandle, condition, once, run, says};

/// How long ago a prerequisite may have succeeded here.
const FRESH: Duration = Duration::from_secs(30);

fn saying(text: &str) -> Program {
    Program::new("chain").step("step", json!({"value": text}))
}

/// A Stack that needs another one to have succeeded a short while ago.
fn after(scene: &Scene, name: &str, source: &Source<'_>, base: &str) -> Stack {
    let mut stack = scene.stack(name, source);
    let requirement = Requirement { succeeded_within_duration: Some(format!("{}s", FRESH.as_secs())) };
    stack.spec.prerequisites = vec![PrerequisiteReference { name: base.to_owned(), requirement: Some(requirement) }];
    stack
}

#[test]
fn prerequisites_that_ran_too_long_ago_are_run_again_first_in_a_chain() {
    run("chain", async |scene| {
        let [shared, own] = [scene.source("shared").await, scene.source("own").await];
        let first = shared.push(&saying("one").files()).await;
        let own_first = own.push(&saying("one").files()).await;
        let top = scene.start(after(scene, "top", &own, "middle")).await;
        let waits = |stack: &Stack| says(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED);
        let stack = top.until("to wait for what is not there", Patience::Reaction, waits).await;
        let message = condition(&stack, READY).expect("it is there").message.clone();
        assert_eq!(message, "waits for middle: it does not exist");
        assert!(top.updates().await.is_empty());

        let middle = scene.start(after(scene, "middle", &shared, "base")).await;
        let base = scene.start(scene.stack("base", &shared)).await;
        top.until_applied(&own_first).await;
        for stack in [&middle, &base] {
            stack.until_applied(&first).await;
            assert_eq!(stack.updates().await.len(), 1, "{}", stack.name);
        }
        until_stale(&middle).await;
        until_stale(&base).await;

        let own_second = own.push(&saying("two").files()).await;
        top.until_applied(&own_second).await;
        for (stack, runs) in [(&base, 2), (&middle, 2), (&top, 2)] {
            assert_eq!(stack.updates().await.len(), runs, "{}", stack.name);
        }
        for stack in [&base, &middle] {
            let asked = format!("Sync request: \"after-{}-", stack.name);
            let why = stack.updates().await[1].spec.message.clone().unwrap_or_default();
            assert!(why.starts_with(&asked), "{}: {why}", stack.name);
        }
        assert_eq!(base.log.sentences().await, once(&["create step"]), "nothing had changed there");
        assert_eq!(top.log.sentences().await, once(&["create step", "update step"]));
    });
}

async fn until_stale(stack: &StackHandle<'_>) {
    let stale = |stack: &Stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref()?.last_resync_time.clone());
        let limit = jiff::SignedDuration::try_from(FRESH).expect("a short time");
        last.is_some_and(|time| Timestamp::now().duration_since(time.0) > limit)
    };
    stack.until("to have run a while ago", Patience::Reaction, stale).await;
}

#[test]
fn a_stack_waits_until_those_that_it_depends_on_are_ready() {
    run("depends", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&saying("one").files()).await;
        let mut on = scene.stack("on", &source);
        on.spec.suspend = Some(true);
        let on = scene.start(on).await;
        let dependent = scene.start(depending(scene, "dependent", &source, "on")).await;
        let stack = dependent
            .until("to wait", Patience::Reaction, |stack| {
                says(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED)
            })
            .await;
        let message = condition(&stack, READY).expect("it is there").message.clone();
        assert!(message.starts_with("waits for on: it is not ready"), "{message}");
        on.change(json!({"spec": {"suspend": false}})).await;
        dependent.until_applied(&commit).await;
        on.until_applied(&commit).await;
        let runs = [&on, &dependent].map(|stack| stack.updates());
        let [first, second] = futures::future::join_all(runs).await.try_into().expect("two");
        let ended = |updates: &[pulumi_controller::api::auto::Update]| {
            updates[0].status.clone().and_then(|status| status.end_time).map(|time| time.0)
        };
        assert!(ended(&first) <= second[0].metadata.creation_timestamp.clone().map(|time| time.0));
    });
}

#[test]
fn stacks_that_wait_for_each_other_are_told_so_and_run_once_one_of_them_waits_no_more() {
    run("cycle", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&saying("one").files()).await;
        let one = scene.start(depending(scene, "one", &source, "two")).await;
        let two = scene.start(depending(scene, "two", &source, "one")).await;
        for (stack, other) in [(&one, "two"), (&two, "one")] {
            let name = &stack.name;
            let told = |stack: &Stack| says(stack, STALLED, "True", stack_reason::SPEC_INVALID);
            let stack = stack.until("to be told of the cycle", Patience::Reaction, told).await;
            let message = condition(&stack, STALLED).expect("it is there").message.clone();
            assert!(message.starts_with(&format!("{name} needs {other} needs {name}: none of them")), "{message}");
        }
        two.change(json!({"spec": {"dependsOn": null}})).await;
        two.until_applied(&commit).await;
        one.until_applied(&commit).await;
        let mut elsewhere = depending(scene, "elsewhere", &source, "one");
        elsewhere.spec.depends_on[0].namespace = Some("default".to_owned());
        let elsewhere = scene.start(elsewhere).await;
        let refused = |stack: &Stack| says(stack, STALLED, "True", stack_reason::SPEC_INVALID);
        let stack = elsewhere.until("to be refused", Patience::Reaction, refused).await;
        let message = condition(&stack, STALLED).expect("it is there").message.clone();
        assert!(message.contains("cross-namespace refs are not allowed"), "{message}");
    });
}

fn depending(scene: &Scene, name: &str, source: &Source<'_>, on: &str) -> Stack {
    let mut stack = scene.stack(name, source);
    stack.spec.depends_on = vec![DependencyReference { name: on.to_owned(), namespace: None, ready_expr: None }];
    stack
}
