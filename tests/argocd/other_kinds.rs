//! Tests the health of Programs, StackReceivers, Workspaces and Updates in each state.

use pulumi_controller::api::auto::{RunBinding, RunProgress, Update, UpdateSpec, Workspace, WorkspaceSpec};
use pulumi_controller::api::auto::{UpdateStatus, WorkspaceStatus};
use pulumi_controller::api::pulumi::{NoToken, Program, ReceiverToken, StackReceiver};
use pulumi_controller::controller::update::outcome::RunOutcome;
use pulumi_controller::controller::workspace::{Report, State, set_conditions};
use pulumi_controller::controller::{program, receiver, update::status};
use serde_json::{Value, json};

use crate::health_check::{Health, health};
use crate::{at, deleted, expect_not_reconciled, expect_unobserved};

const DELETED: &str = "waiting for the deletion";

fn read<K: serde::de::DeserializeOwned>(kind: Value) -> K {
    serde_json::from_value(kind).expect("a valid object")
}

#[test]
fn an_invalid_program_is_degraded() {
    let program = |outputs: Value| -> Program {
        let metadata = json!({"name": "app", "namespace": "apps", "generation": 3});
        let mut program: Program = read(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": metadata, "program": {"outputs": outputs},
        }));
        program.status = Some(program::status_after(&program, &program::decide(&program), at(10)));
        program
    };
    let valid = program(json!({"a": 1}));
    assert_eq!(health(&valid), Health::new("Healthy", "program is valid"));
    let invalid = program(json!({"a": "${"}));
    let found = health(&invalid);
    assert_eq!(found.status, "Degraded");
    assert!(found.message.starts_with("program.outputs.a: "), "{found:?}");
    expect_not_reconciled(&valid);
    for program in [valid, invalid] {
        expect_unobserved(&program);
        assert_eq!(health(&deleted(&program)), Health::new("Progressing", DELETED));
    }
}

#[test]
fn a_receiver_without_token_is_progressing_and_an_unserved_receiver_is_degraded() {
    let receiver: StackReceiver = read(json!({
        "metadata": {"name": "push", "namespace": "apps", "generation": 3},
        "spec": {"type": "github", "secretRef": {"name": "hook"}, "resources": [{"name": "web"}]},
    }));
    let reconciled = |is_served: bool, path: Result<String, NoToken>| {
        let action = receiver::decide(&receiver, is_served, path);
        let mut receiver = receiver.clone();
        receiver.status = Some(receiver::status_after(&receiver, &action, at(10)));
        receiver
    };
    let path = || Ok(receiver.path(&ReceiverToken::from(&b"token"[..])));
    let missing = || Err(NoToken::NoSecret { secret: "apps/hook".to_owned() });
    expect_not_reconciled(&receiver);
    for (receiver, status, message) in [
        (reconciled(true, path()), "Healthy", "the webhook path is in status.webhookPath"),
        (reconciled(true, missing()), "Progressing", "Secret apps/hook not found; create it with the key `token`"),
        (
            reconciled(false, path()),
            "Degraded",
            "controller does not serve webhooks; start it with --receiver-addr=:9292",
        ),
    ] {
        assert_eq!(health(&receiver), Health::new(status, message));
        expect_unobserved(&receiver);
        assert_eq!(health(&deleted(&receiver)), Health::new("Progressing", DELETED));
        let mut suspended = receiver;
        suspended.spec.suspend = Some(true);
        assert_eq!(health(&suspended), Health::new("Suspended", "suspended"));
    }
}

#[test]
fn each_state_of_a_workspace_has_the_expected_health() {
    let mut workspace = Workspace::new("app", WorkspaceSpec::default());
    workspace.metadata.generation = Some(3);
    expect_not_reconciled(&workspace);
    for state in [State::Ready, State::Working, State::Failing, State::Stalled] {
        let expected = match state {
            State::Ready => "Healthy",
            State::Working | State::Failing => "Progressing",
            State::Stalled => "Degraded",
        };
        let report = Report { state, reason: "Reason", message: "pod app-workspace-0".to_owned(), again: None };
        let with_report = |workspace: &Workspace| {
            let generation = workspace.metadata.generation.expect("a generation");
            let mut status = WorkspaceStatus { observed_generation: Some(generation), ..WorkspaceStatus::default() };
            set_conditions(&mut status, &report, generation, at(10));
            Workspace { status: Some(status), ..workspace.clone() }
        };
        let reported = with_report(&workspace);
        assert_eq!(health(&reported), Health::new(expected, "pod app-workspace-0"), "{state:?}");
        expect_unobserved(&reported);
        let deleted = health(&with_report(&deleted(&reported)));
        let expected = match state {
            State::Ready => Health::new("Progressing", DELETED),
            State::Working | State::Failing | State::Stalled => Health::new(expected, "pod app-workspace-0"),
        };
        assert_eq!(deleted, expected, "{state:?}, then deleted");
    }
}

#[test]
fn each_phase_of_an_update_has_the_expected_health() {
    let mut update = Update::new("app-1", UpdateSpec::default());
    update.metadata.generation = Some(1);
    expect_not_reconciled(&update);
    let progress = RunProgress { summary: "3 done".to_owned(), ..RunProgress::default() };
    let ended = |outcome: &RunOutcome| status::recorded(&update, outcome, None, at(10));
    let succeeded = |message: &str| RunOutcome { failure: None, ..RunOutcome::failed("", message) };
    let rows: [(UpdateStatus, &str, &str); 9] = [
        (status::waiting(&update, "Queued", "waits for a slot", at(10)), "Progressing", "waits for a slot"),
        (status::bound(&update, &RunBinding::default(), at(10)), "Progressing", "run is starting"),
        (status::running(&update, Some(&progress), "runs", at(10)), "Progressing", "runs: 3 done"),
        (status::canceling(&update, None, "canceling the run", at(10)), "Progressing", "canceling the run"),
        (status::outcome_unknown(&update, None, "node lost", at(10)), "Degraded", "node lost"),
        (ended(&succeeded("")), "Healthy", "the run succeeded"),
        (ended(&succeeded("a warning")), "Healthy", "a warning"),
        (ended(&RunOutcome::failed("UpdateFailed", "boom")), "Degraded", "boom"),
        (
            ended(&RunOutcome::resolved("app-1=retry", "node lost")),
            "Degraded",
            "a user resolved the run with annotation pulumi.com/resolve: app-1=retry; node lost",
        ),
    ];
    for (status, expected, message) in rows {
        let update = Update { status: Some(status), ..update.clone() };
        assert_eq!(health(&update), Health::new(expected, message));
        expect_unobserved(&update);
        assert_eq!(health(&deleted(&update)), Health::new("Progressing", DELETED));
    }
}
