//! What is asked of an operation besides its source and its settings.

use crate::agent::cancellation::Limits;
use crate::agent::refusal::Refusal;
use crate::pulumi::arguments::OperationKind;
use crate::pulumi::locks::DeadProcess;
use crate::rpc::proto;

/// Read from the request once, so that nothing unknown is taken for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub kind: OperationKind,
    pub limits: Limits,
    pub pending_creates: proto::PendingCreates,
    /// Processes that are proven dead; none when no lock may be removed, also none of those that the agent knows of.
    pub dead_runs: Option<Vec<DeadProcess>>,
}

impl Asked {
    pub fn of(request: &proto::RunRequest) -> Result<Self, Refusal> {
        let kind = match request.kind() {
            proto::OperationKind::Up => OperationKind::Up,
            proto::OperationKind::Destroy => OperationKind::Destroy,
            proto::OperationKind::Unspecified => {
                return Err(Refusal::Invalid(format!("the agent does not know operations of kind {}", request.kind)));
            }
        };
        let pending_creates = proto::PendingCreates::try_from(request.pending_creates).map_err(|_| {
            let number = request.pending_creates;
            Refusal::Invalid(format!("the agent does not know what to do about creations in doubt by number {number}"))
        })?;
        let limits = Limits::from_seconds(request.timeout_seconds, request.idle_timeout_seconds);
        let dead_runs = request.lock_recovery.then(|| request.dead_runs.iter().map(dead_process).collect());
        Ok(Asked { kind, limits, pending_creates, dead_runs })
    }
}

fn dead_process(run: &proto::DeadRun) -> DeadProcess {
    DeadProcess { host: run.host.clone(), pid: run.pid, started: run.started, ended: run.ended }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_and_without_lock_recovery_nobody_is_dead() {
        let up = proto::RunRequest { kind: proto::OperationKind::Up.into(), ..Default::default() };
        for (request, word) in [
            (proto::RunRequest { kind: 0, ..up.clone() }, "kind 0"),
            (proto::RunRequest { kind: 99, ..up.clone() }, "kind 99"),
            (proto::RunRequest { pending_creates: 99, ..up.clone() }, "number 99"),
        ] {
            let refusal = Asked::of(&request).unwrap_err().to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
        let dead = proto::DeadRun { host: "web-0".into(), pid: 42, started: 1, ended: 2 };
        for (lock_recovery, dead_runs, expected) in [
            (false, vec![dead.clone()], None),
            (false, vec![], None),
            (true, vec![], Some(vec![])),
            (true, vec![dead.clone()], Some(vec![dead_process(&dead)])),
        ] {
            let request = proto::RunRequest { lock_recovery, dead_runs, ..up.clone() };
            assert_eq!(Asked::of(&request).unwrap().dead_runs, expected);
        }
    }
}
