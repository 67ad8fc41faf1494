//! The lock of a dead run: removed when everything proves that it is one, and nobody works in the pod.

use crate::agent::command::Stdout;
use crate::agent::interactive_session;
use crate::agent::journal::Reader;
use crate::pulumi::arguments;
use crate::pulumi::failure::Lock;
use crate::pulumi::locks::{self, DeadProcess};

use super::context::Run;

impl Run {
    /// Removes the lock that kept a call of the CLI from the stack, by what that wrote to stderr; true when it is gone.
    ///
    /// The CLI removes all locks of the stack at once. As long as the dead one is there nobody can take another.
    pub(super) async fn removed_dead_lock(&self, stderr: &str) -> bool {
        let operation = &self.record.request().id;
        let Some(lock) = self.proven_dead(stderr) else { return false };
        let Lock { user, host, pid, time, .. } = &lock;
        // A failed look proves nothing.
        let session = interactive_session::find(&self.layout);
        if !matches!(session, Ok(None)) {
            tracing::warn!(
                operation,
                host,
                pid,
                time,
                ?session,
                "leaving the lock of a dead run: a person works in the pod"
            );
            return false;
        }
        match self.call(arguments::cancel(&self.wanted.stack), Stdout::Logged).await {
            Ok(ended) if ended.exit.success() => {
                tracing::warn!(operation, user, host, pid, time, "removed the lock of a dead run");
                true
            }
            Ok(ended) => {
                let said = ended.stderr.last_lines(5);
                tracing::error!(operation, host, pid, time, said, "cannot remove the lock of a dead run");
                false
            }
            Err(error) => {
                tracing::error!(operation, host, pid, time, %error, "cannot remove the lock of a dead run");
                false
            }
        }
    }

    /// The only lock there is, when it is a dead run's.
    fn proven_dead(&self, stderr: &str) -> Option<Lock> {
        let lock = locks::only_lock(stderr)?;
        let told = self.asked.dead_runs.as_ref()?;
        let known: Vec<_> = told.iter().cloned().chain(self.own_dead()).collect();
        locks::dead_holder(&lock, &known)?;
        Some(lock)
    }

    /// The processes of earlier operations in this pod. They have results, and no result is written while a process lives.
    fn own_dead(&self) -> Vec<DeadProcess> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut dead = Vec::new();
        for record in self.journal.finished(&self.wanted.stack) {
            let Some(result) = record.result() else { continue };
            match Reader::sessions(record.clone()) {
                Ok(pids) => dead.extend(pids.into_iter().map(|pid| DeadProcess {
                    host: host.clone(),
                    pid,
                    started: record.request().started,
                    ended: result.ended,
                })),
                Err(error) => {
                    tracing::warn!(operation = record.request().id, %error, "cannot read which processes it had");
                }
            }
        }
        dead
    }
}
