//! Stores an ended run in the history before the controller records the result of the run. The status can therefore
//! contain the reference to the stored run, and the pod keeps the transcript until the run is stored.
//!
//! A background task reads the transcript from the agent and writes the files. The reconciliation does not block on the
//! task, because the task requeues the Update at its end. If the task fails, the controller records the result without
//! the history. Each step can be repeated, because the names of the files depend only on the Update.

mod summary;
mod transfer;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
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
use crate::telemetry::metrics::{HistoryResult, Metrics};

/// Limits of concurrently stored runs, in total and for each namespace. The files of a run use at most 7 MiB of memory.
const SLOTS: Limits = Limits { total: 6, per_key: 3, waiting_per_key: 64 };
/// Duration of an outage after a failed write. During an outage, the controller makes only one short attempt per run.
const OUTAGE: Duration = Duration::from_secs(60);
/// Maximum number of run states in memory. The controller removes the state of a run after the recording of its result.
const MAX_RUNS: usize = 1024;
/// Maximum length of a message in the status, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Reason of the event about a run that is not in the history.
const NOT_STORED: &str = "HistoryNotStored";

/// State of an ended run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The run has no history, because the history is disabled or the run did not start.
    Never,
    /// The task has not ended. The task requeues the Update at its end.
    NotYet,
    /// The task has ended.
    Done(RunHistory),
}

/// Writes ended runs to the history. Cheap to clone.
#[derive(Clone)]
pub struct HistoryWriter(Arc<Shared>);

struct Shared {
    store: HistoryStore,
    agents: Agents,
    requeue: mpsc::Sender<ObjectRef<Update>>,
    tasks: TaskTracker,
    end: CancellationToken,
    metrics: Metrics,
    slots: FairSlots,
    /// State of each run with a task, by UID of the Update. The lock is never held across an `.await`.
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
        requeue: mpsc::Sender<ObjectRef<Update>>,
        tasks: TaskTracker,
        end: CancellationToken,
        metrics: Metrics,
    ) -> Self {
        let (slots, runs, failed) = (FairSlots::new(SLOTS), Mutex::default(), Mutex::default());
        HistoryWriter(Arc::new(Shared { store, agents, requeue, tasks, end, metrics, slots, runs, failed }))
    }

    /// Returns the state of an ended run. The first call for a run starts the task of the run.
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
            // The controller stores a run again if its state is removed. The repetition is harmless.
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

    /// Returns whether the task of a run has not ended.
    pub(super) fn is_storing(&self, uid: &str) -> bool {
        self.runs().get(uid) == Some(&Stored::NotYet)
    }

    /// Removes the state of a run whose result is recorded.
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
        // The state may have been removed while the task was running. The task does not add a removed state again.
        if let Some(state) = self.runs().get_mut(&job.uid) {
            *state = Stored::Done(history);
        }
        // If the queue is full, the Update waits for its periodic requeue.
        drop(self.0.requeue.clone().try_send(job.update.clone()));
        if result != HistoryResult::Failed {
            self.delete_old(&job).await;
        }
    }

    /// Returns whether the last write failed recently. During an outage, the controller shortens the attempts, so that
    /// the timeout does not delay each run.
    fn is_in_outage(&self) -> bool {
        self.failed().is_some_and(|failed| failed.elapsed() < OUTAGE)
    }

    /// Records a failed write. Returns its message.
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

/// Publishes an event if the run is not in the history. A run that is stored without its transcript causes no event,
/// because the transcript of an interrupted run is often lost with the pod.
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
