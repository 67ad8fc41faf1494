//! Removes the lock of a run that is proven dead, unless a user works in the pod.

use crate::agent::command::Stdout;
use crate::agent::interactive_session;
use crate::agent::journal::Reader;
use crate::pulumi::arguments;
use crate::pulumi::failure::{self, DeadProcess, Lock};

use super::context::Run;

impl Run {
    /// Removes the lock that blocked a call of the CLI, if the error output of the call proves that its holder is dead.
    /// Returns whether the lock is gone.
    ///
    /// The CLI removes all locks of the stack at once. No other lock can exist, because nothing can lock the stack
    /// while the dead lock exists.
    pub(super) async fn removed_dead_lock(&self, stderr: &str) -> bool {
        let operation = &self.record.request().id;
        let Some(lock) = self.proven_dead(stderr) else { return false };
        let Lock { user, host, pid, time, .. } = &lock;
        // A failed search does not prove that there is no session.
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

    /// Returns the lock if it is the only one and belongs to a dead run.
    fn proven_dead(&self, stderr: &str) -> Option<Lock> {
        let lock = failure::only_lock(stderr)?;
        let told = self.asked.dead_runs.as_ref()?;
        let known: Vec<_> = told.iter().cloned().chain(self.own_dead()).collect();
        failure::dead_holder(&lock, &known)?;
        Some(lock)
    }

    /// Returns the processes of earlier operations in this pod. They have a result, which is not written while a
    /// process lives.
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
