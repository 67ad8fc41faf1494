//! Runs of a Pulumi stack that are proven to have ended without cleanup ("dead"). A lock that matches one of them is stale.
//! Pure functions.

use std::sync::Arc;

use jiff::Timestamp;

use crate::api::auto::{LockRecovery, TerminationEvidence, Update};
use crate::rpc::proto;

/// Maximum number of runs sent to the agent, latest first.
const MAX_DEAD_RUNS: usize = 5;

/// Returns the dead runs of the Pulumi stack that an Update is about to run.
pub fn dead_runs(update: &Update, all: &[Arc<Update>]) -> Vec<proto::DeadRun> {
    if update.spec.lock_recovery == LockRecovery::Manual {
        return Vec::new();
    }
    let is_sibling = |other: &&Arc<Update>| {
        other.metadata.namespace == update.metadata.namespace
            && other.metadata.uid != update.metadata.uid
            && other.spec.workspace_name == update.spec.workspace_name
            && other.spec.stack_name == update.spec.stack_name
    };
    let mut dead: Vec<_> = all.iter().filter(is_sibling).filter_map(|other| dead_run(other)).collect();
    dead.sort_by_key(|run| std::cmp::Reverse(run.ended));
    dead.truncate(MAX_DEAD_RUNS);
    dead
}

/// Returns the run of an Update if it was interrupted, is proven dead and has a recognizable lock.
pub fn dead_run(update: &Update) -> Option<proto::DeadRun> {
    let status = update.status.as_ref().filter(|_| update.is_complete())?;
    let is_proven = status.termination_evidence.is_some_and(|proof| proof != TerminationEvidence::User);
    if !is_proven || status.interrupted != Some(true) {
        return None;
    }
    let host = status.run.as_ref().map(|run| run.host.clone()).filter(|host| !host.is_empty())?;
    let pid = status.progress.as_ref().and_then(|progress| progress.pid)?;
    let milliseconds = |time: Timestamp| time.as_millisecond();
    Some(proto::DeadRun {
        host,
        pid: u32::try_from(pid).ok()?,
        started: milliseconds(status.start_time.as_ref()?.0),
        ended: milliseconds(status.end_time.as_ref()?.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{RunBinding, RunProgress, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{self, COMPLETE, Claim, Status};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn update(name: &str) -> Update {
        let spec =
            UpdateSpec { workspace_name: "app".to_owned(), stack_name: "dev".to_owned(), ..UpdateSpec::default() };
        let mut update = Update::new(name, spec);
        update.metadata.uid = Some(name.to_owned());
        update
    }

    fn ended(name: &str, second: i64, change: impl FnOnce(&mut Update)) -> Arc<Update> {
        let mut update = update(name);
        let mut conditions = Vec::new();
        let claim = Claim { kind: COMPLETE, status: Status::True, reason: "Updated", message: "" };
        conditions::set(&mut conditions, &claim, 1, at(second));
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
        update.status.as_mut().expect("there")
    }

    #[test]
    fn only_interrupted_runs_with_a_proven_end_are_dead_runs() {
        let rows: [(&str, fn(&mut Update), usize); 9] = [
            ("proven", |_| {}, 1),
            ("ended in order", |u| status(u).interrupted = None, 0),
            ("open", |u| status(u).conditions.clear(), 0),
            ("resolved by a user", |u| status(u).termination_evidence = Some(TerminationEvidence::User), 0),
            ("without evidence", |u| status(u).termination_evidence = None, 0),
            ("its process was never known", |u| status(u).progress = None, 0),
            ("on the network of its node", |u| status(u).run = Some(RunBinding::default()), 0),
            ("of another stack", |u| u.spec.stack_name = "prod".to_owned(), 0),
            ("of another workspace", |u| u.spec.workspace_name = "web".to_owned(), 0),
        ];
        for (name, change, wanted) in rows {
            assert_eq!(dead_runs(&update("next"), &[ended("a", 100, change)]).len(), wanted, "{name}");
        }
        let run = dead_runs(&update("next"), &[ended("a", 100, |_| {})]);
        let wanted = proto::DeadRun { host: "app-workspace-0".to_owned(), pid: 42, started: 95_000, ended: 100_000 };
        assert_eq!(run, [wanted]);
    }

    #[test]
    fn the_latest_dead_runs_are_sent_unless_lock_recovery_is_manual() {
        let all: Vec<_> = (0..9).map(|n| ended(&format!("u{n}"), 100 + n, |_| {})).collect();
        let ended: Vec<i64> = dead_runs(&update("next"), &all).iter().map(|run| run.ended / 1000).collect();
        assert_eq!(ended, [108, 107, 106, 105, 104]);
        let mut manual = update("next");
        manual.spec.lock_recovery = LockRecovery::Manual;
        assert!(dead_runs(&manual, &all).is_empty());
    }
}
