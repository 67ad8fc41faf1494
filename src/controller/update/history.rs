//! Stores a completed run in the run history before the controller records the result of the run. The status can
//! therefore refer to the stored run, and the pod keeps the transcript until the run is stored.
//!
//! A background task reads the transcript from the agent and writes the files. The reconciliation does not wait for
//! the task, because the task requeues the Update when it completes. If the task fails, the controller records the
//! result without the history. Each step can be repeated, because the file names depend only on the Update.

mod summary;
mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::auto::{RunHistory, Update, Workspace};
use crate::api::conditions;
use crate::controller::update::outcome::RunOutcome;
use crate::history::{HistoryError, HistoryStore, RunName};
use crate::rpc::client::{AgentAddress, Agents};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::fair_slots::{FairSlots, Limits};
use crate::runtime::requeue::Requeue;
use crate::telemetry::metrics::{HistoryResult, Metrics};

/// Limits for concurrently stored runs, in total and for each namespace. The files of one run use at most 7 MiB of
/// memory.
const SLOTS: Limits = Limits { total: 6, per_key: 3, waiting_per_key: 64 };
/// Duration of the outage that the controller assumes after a failed write. During an outage, the controller makes
/// only one short attempt per run.
const OUTAGE: Duration = Duration::from_secs(60);
/// Maximum number of run states in memory. The controller removes the state of a run after it has recorded the
/// result.
const MAX_RUNS: usize = 1024;
/// Maximum length of a message in the status, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Reason of the event that reports that a run is not in the history.
const NOT_STORED: &str = "HistoryNotStored";

/// State of the task that stores a completed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The controller does not store the run, because the history is disabled or the run did not start.
    Never,
    /// The task is in progress, and requeues the Update when it completes.
    NotYet,
    /// The task has completed.
    Done(RunHistory),
}

/// Writes completed runs to the run history. Clones are cheap.
#[derive(Clone)]
pub struct HistoryWriter(Arc<Shared>);

struct Shared {
    store: HistoryStore,
    agents: Agents,
    requeue: Requeue<Update>,
    tasks: TaskTracker,
    end: CancellationToken,
    metrics: Metrics,
    slots: FairSlots,
    /// Task state of each run, by UID of the Update. Never hold the lock across an `.await`.
    runs: Mutex<HashMap<String, Stored>>,
    /// Time of the last failed write.
    failed: Mutex<Option<Instant>>,
}

/// Run to store.
struct Job {
    update: ObjectRef<Update>,
    uid: String,
    run: RunName,
    /// Address of the agent that has the transcript.
    agent: Option<AgentAddress>,
    /// Whether the CLI may have run. If `false`, no transcript exists.
    has_run: bool,
    summary: summary::Summary,
    plan: Vec<u8>,
}

impl HistoryWriter {
    pub fn new(
        store: HistoryStore,
        agents: Agents,
        requeue: Requeue<Update>,
        tasks: TaskTracker,
        end: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        let (slots, runs, failed) = (FairSlots::new(SLOTS), Mutex::default(), Mutex::default());
        HistoryWriter(Arc::new(Shared { store, agents, requeue, tasks, end, metrics, slots, runs, failed }))
    }

    /// Returns the task state of a completed run. The first call for a run starts the task.
    pub(super) fn store(
        &self,
        update: &Update,
        workspace: Option<&Workspace>,
        outcome: &RunOutcome,
        agent: Option<AgentAddress>,
    ) -> Stored {
        if update.status.as_ref().is_none_or(|status| status.run.is_none()) {
            return Stored::Never;
        }
        let uid = update.uid().unwrap_or_default();
        let mut runs = self.runs();
        if let Some(state) = runs.get(&uid) {
            return state.clone();
        }
        if runs.len() >= MAX_RUNS {
            // If the state of a run is removed, the controller stores the run again. The repetition is harmless.
            runs.clear();
        }
        runs.insert(uid.clone(), Stored::NotYet);
        drop(runs);
        let job = Job {
            update: ObjectRef::from_obj(update),
            uid,
            run: summary::run_name(update, workspace),
            agent,
            has_run: outcome.evidence.is_some(),
            summary: summary::of(update, workspace, outcome),
            plan: outcome.plan_file.clone(),
        };
        let this = self.clone();
        self.0.tasks.spawn(async move {
            let end = this.0.end.clone();
            tokio::select! {
                () = end.cancelled() => {}
                () = Box::pin(this.run(job)) => {}
            }
        });
        Stored::NotYet
    }

    /// Returns whether the task of a run is in progress.
    pub(super) fn is_storing(&self, uid: &str) -> bool {
        self.runs().get(uid) == Some(&Stored::NotYet)
    }

    /// Removes the task state of a run whose result is recorded.
    pub fn forget(&self, uid: &str) {
        self.runs().remove(uid);
    }

    async fn run(&self, job: Job) {
        let namespace = job.run.namespace.clone();
        let stored = self.transfer(&job).await;
        let (history, result) = match stored {
            Ok(None) => (RunHistory { url: Some(self.0.store.url(&job.run)), message: None }, HistoryResult::Stored),
            Ok(Some(missing)) => {
                let (url, message) = (Some(self.0.store.url(&job.run)), Some(shorten(&missing)));
                (RunHistory { url, message }, HistoryResult::Incomplete)
            }
            Err(error) => (RunHistory { url: None, message: Some(shorten(&error)) }, HistoryResult::Failed),
        };
        if let Some(error) = &history.message {
            tracing::warn!(namespace, update = job.update.name, error, "the history does not contain the complete run");
        }
        self.0.metrics.history_run(result);
        // If the state was removed while the task was running, the task does not add the state again.
        if let Some(state) = self.runs().get_mut(&job.uid) {
            *state = Stored::Done(history);
        }
        self.0.requeue.request(job.update.clone());
        if result != HistoryResult::Failed {
            self.delete_old(&job).await;
        }
    }

    /// Returns whether the last write failed recently. During an outage, the controller makes shorter attempts, so
    /// that timeouts do not delay each run.
    fn is_in_outage(&self) -> bool {
        self.failed().is_some_and(|failed| failed.elapsed() < OUTAGE)
    }

    /// Records a failed write, and returns the error message.
    fn failed_write(&self, error: &HistoryError) -> String {
        *self.failed() = Some(Instant::now());
        error.to_string()
    }

    fn ended_outage(&self) {
        *self.failed() = None;
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<String, Stored>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes an event if the run is not in the history. Publishes no event if only the transcript is missing, because
/// the transcript of an interrupted run is often lost with the pod.
pub(super) fn report(update: &Update, outcome: &RunOutcome, events: &Events) {
    let lost = outcome.history.as_ref().filter(|history| history.url.is_none());
    if let Some(message) = lost.and_then(|history| history.message.as_ref()) {
        let message = format!("the run is not in the history: {message}");
        events.publish(Event::new(update, EventKind::Warning, NOT_STORED, message));
    }
}

fn shorten(message: &str) -> String {
    conditions::shorten(&message.replace(char::is_control, " "), MAX_MESSAGE)
}

#[cfg(test)]
mod tests;
