//! Tests for the interrupted runs in a request, whose locks the agent may remove.

use super::*;
use crate::api::auto::{RunBinding, RunProgress, UpdateSpec, UpdateStatus};
use crate::api::conditions::{self, COMPLETE, ConditionUpdate, Status};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

fn update(name: &str) -> Update {
    let spec = UpdateSpec { workspace_name: "app".to_owned(), stack_name: "dev".to_owned(), ..UpdateSpec::default() };
    let mut update = Update::new(name, spec);
    update.metadata.uid = Some(name.to_owned());
    update
}

fn ended(name: &str, second: i64, change: impl FnOnce(&mut Update)) -> Arc<Update> {
    let mut update = update(name);
    let mut conditions = Vec::new();
    let condition = ConditionUpdate { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
    conditions::set(&mut conditions, &condition, 1, at(second));
    update.status = Some(UpdateStatus {
        conditions,
        run: Some(RunBinding { host: "app-workspace-0".to_owned(), ..RunBinding::default() }),
        progress: Some(RunProgress { pid: Some(42), ..RunProgress::default() }),
        start_time: Some(Time(at(second - 5))),
        end_time: Some(Time(at(second))),
        interrupted: Some(true),
        termination_evidence: Some(TerminationEvidence::Container),
        ..UpdateStatus::default()
    });
    change(&mut update);
    Arc::new(update)
}

fn status(update: &mut Update) -> &mut UpdateStatus {
    update.status.as_mut().expect("value is set")
}

#[test]
fn a_request_contains_only_interrupted_runs_with_a_proven_end() {
    const URL: &str = "https://app.pulumi.com/acme/app/dev/updates/7";
    const CONFLICT: ConditionUpdate<'_> = ConditionUpdate {
        kind: conditions::FAILED,
        status: Status::True,
        reason: update_reason::UPDATE_CONFLICT,
        message: "",
    };
    let rows: [(&str, fn(&mut Update), usize); 11] = [
        ("proven", |_| {}, 1),
        ("ended without interruption", |u| status(u).interrupted = None, 0),
        ("ended with a conflict", |u| conditions::set(&mut status(u).conditions, &CONFLICT, 1, at(100)), 0),
        ("open", |u| status(u).conditions.clear(), 0),
        ("resolved by a user", |u| status(u).termination_evidence = Some(TerminationEvidence::User), 0),
        ("without evidence", |u| status(u).termination_evidence = None, 0),
        ("without a process ID", |u| status(u).progress = None, 0),
        ("with host networking", |u| status(u).run = Some(RunBinding::default()), 0),
        (
            "with a URL and without a process ID",
            |u| (status(u).progress, status(u).permalink) = (None, Some(URL.to_owned())),
            1,
        ),
        ("of another stack", |u| u.spec.stack_name = "prod".to_owned(), 0),
        ("of another workspace", |u| u.spec.workspace_name = "web".to_owned(), 0),
    ];
    for (name, change, expected) in rows {
        assert_eq!(interrupted_runs(&update("next"), &[ended("a", 100, change)]).len(), expected, "{name}");
    }
    let run = interrupted_runs(&update("next"), &[ended("a", 100, |_| {})]);
    let (host, permalink) = ("app-workspace-0".to_owned(), String::new());
    let expected = proto::DeadRun { host, pid: 42, started: 95_000, ended: 100_000, permalink };
    assert_eq!(run, [expected]);
    let run = interrupted_runs(
        &update("next"),
        &[ended("a", 100, |u| (status(u).progress, status(u).permalink) = (None, Some(URL.to_owned())))],
    );
    let identified: Vec<_> = run.iter().map(|run| (run.host.as_str(), run.pid, run.permalink.as_str())).collect();
    assert_eq!(identified, [("", 0, URL)]);
}

#[test]
fn the_latest_interrupted_runs_are_sent_unless_lock_recovery_is_manual() {
    let all: Vec<_> = (0..9).map(|n| ended(&format!("u{n}"), 100 + n, |_| {})).collect();
    let ended: Vec<i64> = interrupted_runs(&update("next"), &all).iter().map(|run| run.ended / 1000).collect();
    assert_eq!(ended, [108, 107, 106, 105, 104]);
    let mut manual = update("next");
    manual.spec.lock_recovery = LockRecovery::Manual;
    assert!(interrupted_runs(&manual, &all).is_empty());
}
