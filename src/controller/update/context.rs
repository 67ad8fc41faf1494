//! What the reconcile of an Update works with.

use std::sync::{Arc, Once};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::Update;
use crate::controller::references::References;
use crate::controller::update::attachments::Attachments;
use crate::controller::update::groups::{UpdateGroup, Updates};
use crate::controller::update::queue::open_runs;
use crate::controller::update::timeouts::RunTimeouts;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::run_limiter::RunLimiter;
use crate::runtime::writes::Writer;
use crate::telemetry::metrics::Metrics;

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
    pub fn siblings(&self, update: &Update) -> Vec<Arc<Update>> {
        let namespace = update.namespace().unwrap_or_default();
        self.updates.in_group(&UpdateGroup::workspace(&namespace, &update.spec.workspace_name))
    }

    /// Before the first run is started, those that are open from before this process get their slots: else more would be open
    /// than may be.
    pub fn adopt_open_runs(&self) {
        self.adopted.call_once(|| {
            for (run, update) in open_runs(&self.updates.store().state()) {
                let permit = self.run_limiter.adopt(&run);
                self.attachments.keep(&run.uid, update, permit);
            }
        });
    }

    /// Keeps neither a task nor a place for a run that is not open: another leader may have recorded its end.
    pub fn forget(&self, update: &Update) {
        let uid = update.uid().unwrap_or_default();
        self.attachments.detach(&uid);
        self.run_limiter.withdraw(&uid);
    }
}
