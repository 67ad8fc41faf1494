//! Tests leader election with two replicas. No other test runs at the same time.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::harness::{
    AuditLog, Controller, Poll, Program, Scene, StoppedProcess, WaitLimit, client, holders, in_scene, once,
    report_skipped, run_alone, wait_until,
};

/// Scales the controller to two replicas, runs a test, and scales the controller to one replica.
fn run_with_two_replicas(name: &str, test: impl AsyncFnOnce(&Controller, &Scene)) {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        controller.scale(2).await;
        let outcome =
            AssertUnwindSafe(in_scene(name, async |scene| test(&controller, scene).await)).catch_unwind().await;
        controller.scale(1).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

/// Returns a program whose run takes `seconds` seconds.
fn slow_program(seconds: u32) -> Program {
    Program::new("slow").step("slow", json!({"seconds": seconds, "steps": seconds})).output("n", json!("${slow.count}"))
}

#[test]
fn after_a_leader_is_killed_the_new_leader_records_the_run_once() {
    run_with_two_replicas("leader-killed", async |controller, scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow_program(20).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;
        let pod = main.pod_and_restarts().await;

        let leader = controller.until_leader_other_than("").await;
        controller.kill_pod(&leader).await;
        let next = controller.until_leader_other_than(&leader).await;
        until_reported_as_leader(scene, &next).await;

        let stack = main.until_applied(&commit).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"n": 0}));
        assert_eq!(main.log.operations().await, once(&["create slow"]));
        assert_eq!(main.pod_and_restarts().await, pod, "the run continues in the same pod");
        assert_eq!(main.updates().await.len(), 1);
    });
}

/// Waits for the event about the new leader, which has the same format as client-go's event.
async fn until_reported_as_leader(scene: &Scene, pod: &str) {
    let events: Api<Event> = Api::namespaced(scene.client.clone(), "flux-system");
    let of_elections = ListParams::default().fields("reason=LeaderElection");
    wait_until(format!("an Event that {pod} leads"), WaitLimit::Reaction, async || {
        let messages: Vec<String> = match events.list(&of_elections).await {
            Ok(found) => found.items.into_iter().filter_map(|event| event.message).collect(),
            Err(error) => return Poll::NotYet(error.to_string()),
        };
        let is_match = |message: &String| message.starts_with(pod) && message.ends_with("became leader");
        if messages.iter().any(is_match) { Poll::Found(()) } else { Poll::NotYet(format!("{messages:?}")) }
    })
    .await;
}

/// For a short time, two replicas can both be the leader. The test makes this condition permanent. Without leader
/// election, only the other mechanisms in ARCHITECTURE.md ("Why no run starts twice") prevent repeated runs.
#[test]
fn two_simultaneous_leaders_run_each_revision_once() {
    run_with_two_replicas("two-leaders", async |controller, scene| {
        let before = controller.arguments().await;
        let alone = |argument: &&String| !argument.contains("leader-elect");
        let without: Vec<String> = before.iter().filter(alone).cloned().collect();
        assert!(without.len() < before.len(), "leader election is disabled: {before:?}");
        controller.start_with(&without, 2).await;
        let outcome = AssertUnwindSafe(both_lead(scene)).catch_unwind().await;
        controller.start_with(&before, 2).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}

async fn both_lead(scene: &Scene) {
    let source = scene.source("app").await;
    let program = |value: &str| Program::new("two").step("step", json!({"value": value, "seconds": 2, "steps": 2}));
    let first = source.push(&program("one").files()).await;
    let mut stacks = Vec::new();
    for number in 0..6 {
        stacks.push(scene.start(scene.stack(&format!("s{number}"), &source)).await);
    }
    for stack in &stacks {
        stack.until_applied(&first).await;
    }
    for value in ["two", "three"] {
        let next = source.push(&program(value).files()).await;
        for stack in &stacks {
            stack.until_applied(&next).await;
        }
    }
    for stack in &stacks {
        let operations = stack.log.operations().await;
        assert_eq!(operations, once(&["create step", "update step", "update step"]), "{}", stack.name);
        let updates = stack.updates().await;
        assert_eq!(updates.len(), 3, "{}: one run for each revision: {updates:#?}", stack.name);
    }
}

/// SIGSTOP suspends the leader process until another replica is the leader and the run is complete. All pending writes
/// of the suspended process are then stale.
#[test]
fn a_leader_that_hung_past_its_lease_writes_nothing_on_resume() {
    let Some(audit) = AuditLog::open() else {
        report_skipped("leader-hung", "the processes and the audit log of an existing cluster are not accessible");
        return;
    };
    run_with_two_replicas("leader-hung", async |controller, scene| {
        let source = scene.source("app").await;
        let commit = source.push(&slow_program(20).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.log.wait_for("create", "slow", "begin").await;

        let leader = controller.until_leader_other_than("").await;
        assert!(!audit.writes_of(&leader).is_empty(), "the audit log contains the writes of the leader");
        let stopped = StoppedProcess::in_pod(&leader);
        let next = controller.until_leader_other_than(&leader).await;
        main.until_applied(&commit).await;
        assert!(!audit.writes_of(&next).is_empty(), "the new leader did the remaining work");
        let before = audit.writes_of(&leader);
        drop(stopped);
        let code = controller.until_container_restarted(&leader).await;
        assert_eq!(code, 1, "the previous leader exits with an error");
        assert_eq!(audit.writes_of(&leader), before, "the previous leader writes nothing more");

        assert_eq!(controller.until_leader_other_than("").await, next, "the previous leader is a follower");
        assert_eq!(main.log.operations().await, once(&["create slow"]));
        assert_eq!(main.updates().await.len(), 1);
    });
}

#[test]
fn a_restart_during_a_run_releases_the_lease_before_it_expires() {
    run_alone(async || {
        in_scene("handed-over", async |scene| {
            let controller = Controller::new(&scene.client);
            let source = scene.source("app").await;
            let commit = source.push(&slow_program(20).files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.log.wait_for("create", "slow", "begin").await;

            let before = controller.until_leader_other_than("").await;
            let states = controller.watch_lease();
            controller.restart(1).await;
            let after = controller.until_leader_other_than(&before).await;
            let holders = holders(&states);
            assert_eq!(
                holders,
                [before.as_str(), "", after.as_str()],
                "the leader releases the lease and the new leader acquires it"
            );

            main.until_applied(&commit).await;
            assert_eq!(main.log.operations().await, once(&["create slow"]));
            assert_eq!(main.updates().await.len(), 1);
        })
        .await;
    });
}

#[test]
fn both_replicas_serve_health_and_metrics_and_only_one_reports_leading() {
    run_with_two_replicas("endpoints", async |controller, scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("metrics").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let leader = controller.until_leader_other_than("").await;
        let stack_labels = format!("kind=\"Stack\",name=\"{}\",namespace=\"{}\"", main.name, scene.namespace);
        for pod in controller.pods().await.iter().map(ResourceExt::name_any) {
            assert_eq!(controller.get_endpoint(&pod, 9440, "/healthz").await, "ok");
            assert_eq!(controller.get_endpoint(&pod, 9440, "/readyz").await, "ok");
            let metrics = controller.get_endpoint(&pod, 8080, "/metrics").await;
            let leads = u8::from(pod == leader);
            let status = format!("leader_election_master_status{{name=\"pulumi-controller-leader-election\"}} {leads}");
            assert!(metrics.lines().any(|line| line == status), "{pod} reports {status} in\n{metrics}");
            for name in ["rest_client_requests_total{", "process_cpu_seconds_total ", "process_resident_memory_bytes "]
            {
                assert!(metrics.lines().any(|line| line.starts_with(name)), "{pod} shows {name} in\n{metrics}");
            }
            let reconciles = format!("gotk_reconcile_duration_seconds_count{{{stack_labels}}}");
            assert_eq!(
                metrics.contains(&reconciles),
                pod == leader,
                "the leader reconciles the Stack: {pod}\n{metrics}"
            );
        }
        main.delete().await;
        main.until_gone().await;
        wait_until("the series of the Stack to be removed", WaitLimit::Reaction, async || {
            let metrics = controller.get_endpoint(&leader, 8080, "/metrics").await;
            if metrics.contains(&stack_labels) { Poll::NotYet(stack_labels.clone()) } else { Poll::Found(()) }
        })
        .await;
    });
}
