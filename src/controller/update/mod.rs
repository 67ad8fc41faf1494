//! Update: one run, written ahead, attached to, recorded once.

mod act;
mod attachments;
mod dead_runs;
mod decide;
mod groups;
mod observe;
mod outcome;
mod outputs;
mod pod_termination;
mod progress;
mod queue;
mod request;
mod status;
mod timeouts;
mod watches;

#[cfg(test)]
mod record_tests;

use std::sync::{Arc, Once};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

pub use attachments::Attachments;
pub use dead_runs::dead_run;
pub use groups::{UpdateGroup, Updates, updates};
pub use outputs::is_of as is_outputs_of;
#[cfg(test)]
pub(crate) use queue::run_in;
pub use request::{required_protocol_version, waits_for_references};
pub use timeouts::RunTimeouts;
pub use watches::{Feeds, controller};

use crate::api::auto::Update;
use crate::controller::references::References;
use crate::controller::update::act::Next;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::run_limiter::RunLimiter;
use crate::runtime::writes::Writer;
use crate::telemetry::metrics::Metrics;

/// How many steps one reconcile takes at most before it lets others have their turn.
const STEPS: usize = 6;

/// What an Update's reconcile works with.
#[derive(Clone)]
pub struct Context {
    pub reader: Reader,
    pub writer: Writer,
    pub attachments: Attachments,
    pub run_limiter: RunLimiter<ObjectRef<Update>>,
    pub events: Events,
    pub references: References,
    pub metrics: Metrics,
    /// All Updates that the controller watches.
    pub updates: Updates,
    /// Whether the runs that are open from before this process have their slots.
    pub adopted: Arc<Once>,
    pub timeouts: RunTimeouts,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// All Updates of the Workspace of an Update, itself included.
    fn siblings(&self, update: &Update) -> Vec<Arc<Update>> {
        let namespace = update.namespace().unwrap_or_default();
        self.updates.in_group(&UpdateGroup::workspace(&namespace, &update.spec.workspace_name))
    }

    /// Before the first run is started, those that are open from before this process get their slots: else more would be open
    /// than may be.
    fn adopt_open_runs(&self) {
        self.adopted.call_once(|| {
            for (run, update) in queue::open_runs(&self.updates.store().state()) {
                let permit = self.run_limiter.adopt(&run);
                self.attachments.keep(&run.uid, update, permit);
            }
        });
    }

    /// Keeps neither a task nor a place for a run that is not open: another leader may have recorded its end.
    fn forget(&self, update: &Update) {
        let uid = update.uid().unwrap_or_default();
        self.attachments.detach(&uid);
        self.run_limiter.withdraw(&uid);
    }
}

/// Brings an Update forward: observe, decide, act; status is part of each act.
pub async fn reconcile(update: Arc<Update>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.adopt_open_runs();
    // The cache may lag behind our own last write; what a run is bound to must not.
    let namespace = update.namespace().unwrap_or_default();
    let Some(live) = context.reader.get_opt::<Update>(&namespace, &update.name_any()).await? else {
        context.forget(&update);
        return Ok(Outcome::Settled);
    };
    let live = context.writer.take_over(&live).await?.unwrap_or(live);
    let mut update = Box::new(live);
    for _ in 0..STEPS {
        let observed = observe::observe(*update, &context).await?;
        let now = Timestamp::now();
        let action = decide::decide(&observed, now);
        tracing::debug!(action = action.name(), "decided");
        match act::act(&observed, action, &context, now).await? {
            Next::Again(next) => update = next,
            Next::Rest(None) => return Ok(Outcome::Settled),
            Next::Rest(Some(after)) => return Ok(Outcome::After(after)),
        }
    }
    Ok(Outcome::After(Duration::from_secs(1)))
}
