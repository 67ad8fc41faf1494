//! Tests Stacks with prerequisites and dependencies.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{DependencyReference, PrerequisiteReference, Requirement, Stack};
use serde_json::json;

use crate::harness::{Controller, Program, Scene, Source, StackHandle, WaitLimit, condition, has_condition, once, run};

/// Maximum age of the last successful run of a prerequisite.
const MAX_AGE: Duration = Duration::from_secs(30);

fn with_text(text: &str) -> Program {
    Program::new("chain").step("step", json!({"value": text}))
}

/// Returns a Stack that requires a recent successful run of another Stack.
fn stack_after(scene: &Scene, name: &str, source: &Source<'_>, base: &str) -> Stack {
    let mut stack = scene.stack(name, source);
    let requirement = Requirement { succeeded_within_duration: Some(format!("{}s", MAX_AGE.as_secs())) };
    stack.spec.prerequisites = vec![PrerequisiteReference { name: base.to_owned(), requirement: Some(requirement) }];
    stack
}

#[test]
fn outdated_prerequisites_in_a_chain_run_first() {
    run("chain", async |scene| {
        let [shared, own] = [scene.source("shared").await, scene.source("own").await];
        let first = shared.push(&with_text("one").files()).await;
        let own_first = own.push(&with_text("one").files()).await;
        let top = scene.start(stack_after(scene, "top", &own, "middle")).await;
        let waits = |stack: &Stack| has_condition(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED);
        let stack = top.until("to wait for the missing dependency", WaitLimit::Reaction, waits).await;
        let message = condition(&stack, READY).expect("Ready condition").message.clone();
        assert_eq!(message, "waiting for middle: not found");
        assert!(top.updates().await.is_empty());

        let middle = scene.start(stack_after(scene, "middle", &shared, "base")).await;
        let base = scene.start(scene.stack("base", &shared)).await;
        top.until_applied(&own_first).await;
        for stack in [&middle, &base] {
            stack.until_applied(&first).await;
            assert_eq!(stack.updates().await.len(), 1, "{}", stack.name);
        }
        until_stale(&middle).await;
        until_stale(&base).await;

        let own_second = own.push(&with_text("two").files()).await;
        top.until_applied(&own_second).await;
        for (stack, runs) in [(&base, 2), (&middle, 2), (&top, 2)] {
            assert_eq!(stack.updates().await.len(), runs, "{}", stack.name);
        }
        for stack in [&base, &middle] {
            let requests = format!("Sync request: \"after-{}-", stack.name);
            let why = stack.updates().await[1].spec.message.clone().unwrap_or_default();
            assert!(why.starts_with(&requests), "{}: {why}", stack.name);
        }
        assert_eq!(base.log.operations().await, once(&["create step"]), "the base has no changes");
        assert_eq!(top.log.operations().await, once(&["create step", "update step"]));
    });
}

async fn until_stale(stack: &StackHandle<'_>) {
    let stale = |stack: &Stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref()?.last_resync_time.clone());
        let limit = jiff::SignedDuration::try_from(MAX_AGE).expect("the maximum age");
        last.is_some_and(|time| Timestamp::now().duration_since(time.0) > limit)
    };
    stack.until("to have an outdated success", WaitLimit::Reaction, stale).await;
}

#[test]
fn a_stack_waits_until_its_dependencies_are_ready() {
    run("depends", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let mut on = scene.stack("on", &source);
        on.spec.suspend = Some(true);
        let on = scene.start(on).await;
        let dependent = scene.start(dependent_stack(scene, "dependent", &source, "on")).await;
        let stack = dependent
            .until("to wait", WaitLimit::Reaction, |stack| {
                has_condition(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED)
            })
            .await;
        let message = condition(&stack, READY).expect("Ready condition").message.clone();
        assert!(message.starts_with("waiting for on: not ready"), "{message}");
        on.change(json!({"spec": {"suspend": false}})).await;
        dependent.until_applied(&commit).await;
        on.until_applied(&commit).await;
        let runs = [&on, &dependent].map(|stack| stack.updates());
        let [first, second] = futures::future::join_all(runs).await.try_into().expect("two results");
        let ended = |updates: &[pulumi_controller::api::auto::Update]| {
            updates[0].status.clone().and_then(|status| status.end_time).map(|time| time.0)
        };
        assert!(ended(&first) <= second[0].metadata.creation_timestamp.clone().map(|time| time.0));
    });
}

#[test]
fn a_dependency_cycle_stalls_its_stacks_until_it_is_broken() {
    run("cycle", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let one = scene.start(dependent_stack(scene, "one", &source, "two")).await;
        let two = scene.start(dependent_stack(scene, "two", &source, "one")).await;
        for (stack, other) in [(&one, "two"), (&two, "one")] {
            let name = &stack.name;
            let reported = |stack: &Stack| has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID);
            let stack = stack.until("to report the cycle", WaitLimit::Reaction, reported).await;
            let message = condition(&stack, STALLED).expect("Stalled condition").message.clone();
            assert!(message.starts_with(&format!("dependency cycle: {name} -> {other} -> {name};")), "{message}");
        }
        two.change(json!({"spec": {"dependsOn": null}})).await;
        two.until_applied(&commit).await;
        one.until_applied(&commit).await;
    });
}

#[test]
fn cross_namespace_references_are_rejected() {
    run("denied", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let mut after = dependent_stack(scene, "after", &source, "one");
        after.spec.depends_on[0].namespace = Some("default".to_owned());
        let mut fed = scene.stack("fed", &source);
        fed.spec.flux_source.as_mut().expect("source reference").source_ref.namespace = Some("default".to_owned());
        let denied = |stack: &Stack| has_condition(stack, STALLED, "True", stack_reason::ACCESS_DENIED);
        for (stack, words) in [(after, "Stack default/one"), (fed, "GitRepository default/app")] {
            let stack = scene.start(stack).await;
            let found = stack.until("to be denied", WaitLimit::Reaction, denied).await;
            let message = condition(&found, STALLED).expect("Stalled condition").message.clone();
            assert!(message.contains(&format!("{words} is in another namespace")), "{message}");
            let own = json!({"dependsOn": null, "fluxSource": {"sourceRef": {"namespace": scene.namespace}}});
            stack.change(json!({"spec": own})).await;
            stack.until_applied(&commit).await;
        }
    });
}

#[test]
fn a_stack_waits_until_its_ready_expression_is_true() {
    run("expression", async |scene| {
        let base = scene.source("base").await;
        let stage = |stage: &str| Program::new("base").output("stage", json!(stage)).files();
        let closed = base.push(&stage("closed")).await;
        let needed = scene.start(scene.stack("needed", &base)).await;
        needed.until_applied(&closed).await;
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let mut waiting = dependent_stack(scene, "waiting", &source, "needed");
        waiting.spec.depends_on[0].ready_expr = Some("dep.status.outputs.stage == self.spec.config.stage".to_owned());
        waiting.spec.config.insert("stage".to_owned(), json!("open"));
        let waiting = scene.start(waiting).await;
        let stack = waiting
            .until("to wait", WaitLimit::Reaction, |stack| {
                has_condition(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED)
            })
            .await;
        let message = condition(&stack, READY).expect("Ready condition").message.clone();
        assert_eq!(message, "waiting for needed: readyExpr is false");
        base.push(&stage("open")).await;
        waiting.until_applied(&commit).await;
        waiting.change(json!({"spec": {"dependsOn": [{"name": "needed", "readyExpr": "dep.status.("}]}})).await;
        source.push(&with_text("two").files()).await;
        let invalid = |stack: &Stack| has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID);
        let stack = waiting.until("to report the expression", WaitLimit::Reaction, invalid).await;
        let message = condition(&stack, STALLED).expect("Stalled condition").message.clone();
        assert!(message.contains("readyExpr of needed") && message.contains("failed to compile"), "{message}");
    });
}

#[test]
fn an_expression_over_its_memory_limit_stalls_only_its_stack() {
    run("greedy-expression", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let needed = scene.start(scene.stack("needed", &source)).await;
        needed.until_applied(&commit).await;
        let controller = Controller::new(&scene.client);
        let before = restarts(&controller.pods().await);
        let mut greedy = dependent_stack(scene, "greedy", &source, "needed");
        // The expression would expand to a string of 10 GB.
        let expression = format!("'aaaaaaaaaa'{} == ''", ".replace('a', 'aaaaaaaaaa')".repeat(9));
        greedy.spec.depends_on[0].ready_expr = Some(expression);
        let greedy = scene.start(greedy).await;
        let stalled = |stack: &Stack| has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID);
        let stack = greedy.until("to exceed the limit", WaitLimit::Reaction, stalled).await;
        let message = condition(&stack, STALLED).expect("Stalled condition").message.clone();
        let words = ["readyExpr of needed", "memory limit of 96Mi exceeded", "simplify the expression"];
        assert!(words.iter().all(|part| message.contains(part)), "{message}");
        let commit = source.push(&with_text("two").files()).await;
        needed.until_applied(&commit).await;
        assert_eq!(restarts(&controller.pods().await), before, "the controller has not restarted");
        greedy.change(json!({"spec": {"dependsOn": [{"name": "needed", "readyExpr": "true"}]}})).await;
        greedy.until_applied(&commit).await;
    });
}

/// Returns the controller pods with the restart counts of their containers.
fn restarts(pods: &[Pod]) -> Vec<(String, i32)> {
    let count = |pod: &Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        (pod.name_any(), containers.map(|container| container.restart_count).sum())
    };
    pods.iter().map(count).collect()
}

fn dependent_stack(scene: &Scene, name: &str, source: &Source<'_>, on: &str) -> Stack {
    let mut stack = scene.stack(name, source);
    stack.spec.depends_on = vec![DependencyReference { name: on.to_owned(), namespace: None, ready_expr: None }];
    stack
}
