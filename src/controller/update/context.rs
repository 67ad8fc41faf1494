//! Dependencies of an Update reconciliation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::join_all;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::OnceCell;

use crate::api::auto::Update;
use crate::controller::namespaces::Namespaces;
use crate::controller::references::References;
use crate::controller::update::attachments::Attachments;
use crate::controller::update::deadline;
use crate::controller::update::history::HistoryWriter;
use crate::controller::update::interruptions::Interruptions;
use crate::controller::update::queue::{UpdateGroup, Updates, open_runs};
use crate::controller::update::request::RunTimeouts;
use crate::controller::update::stored_secrets::StoredSecrets;
use crate::controller::update::trace::RunTraces;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::run_limiter::{Permit, Run, RunLimiter, Share};
use crate::runtime::writes::Writer;
use crate::telemetry::metrics::Metrics;

/// Dependencies of an Update reconciliation. Clones are cheap.
#[derive(Clone)]
pub struct Context {
    pub reader: Reader,
    pub writer: Writer,
    pub attachments: Attachments,
    pub interruptions: Interruptions,
    /// Writer of the run history, or `None` if the history is disabled.
    pub history: Option<HistoryWriter>,
    pub stored_secrets: StoredSecrets,
    pub run_limiter: RunLimiter<ObjectRef<Update>>,
    pub events: Events,
    pub references: References,
    /// Namespace settings, such as the pause and the run slot share.
    pub namespaces: Namespaces,
    /// Limits for the concurrency groups that namespaces can share, by name.
    pub concurrency_groups: Arc<BTreeMap<String, u32>>,
    pub metrics: Metrics,
    /// All Updates that the controller watches.
    pub updates: Updates,
    /// Guard that ensures that [`Context::adopt_open_runs`] assigns slots only once per process.
    pub adopted: Arc<OnceCell<()>>,
    pub timeouts: RunTimeouts,
    /// Whether the controller protects the pod of a run from evictions, if the Workspace does not decide.
    pub eviction_protection: bool,
    /// Cluster name for the Pulumi stack tags, or an empty string.
    pub cluster_name: Arc<str>,
    pub traces: RunTraces,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// Returns all Updates of the same Workspace, including `update`.
    pub fn siblings(&self, update: &Update) -> Vec<Arc<Update>> {
        let namespace = update.namespace().unwrap_or_default();
        self.updates.in_group(&UpdateGroup::workspace(&namespace, &update.spec.workspace_name))
    }

    /// Assigns slots to the open runs that an earlier process started, before the first new run starts. Otherwise,
    /// the number of open runs could exceed the limit.
    pub async fn adopt_open_runs(&self) {
        self.adopted.get_or_init(|| self.adopt_each_open_run()).await;
    }

    async fn adopt_each_open_run(&self) {
        let open = open_runs(&self.updates.store().state());
        let namespaces: BTreeSet<String> = open.into_iter().map(|(run, _)| run.namespace).collect();
        let shares = namespaces.into_iter().map(|namespace| async move {
            let share = self.share_of(&namespace).await;
            (namespace, share)
        });
        let shares: BTreeMap<String, Share> = join_all(shares).await.into_iter().collect();
        // Runs may have ended in the meantime, so the method reads the open runs again.
        for (run, update) in open_runs(&self.updates.store().state()) {
            let share = shares.get(&run.namespace).copied().unwrap_or_default();
            let permit = self.run_limiter.adopt(&Run { share, ..run.clone() });
            self.hold_slot(&update, permit, Timestamp::now());
        }
    }

    /// Holds the slot of an open run until the run ends. `now` is the start of the deadline if the status does not
    /// contain the time at which the binding was recorded.
    pub fn hold_slot(&self, update: &Update, permit: Permit<ObjectRef<Update>>, now: Timestamp) {
        let started = update.status.as_ref().and_then(|status| status.start_time.as_ref());
        let deadline = deadline::latest_end(update, self.timeouts, started.map_or(now, |started| started.0));
        self.attachments.hold_slot(&update.uid().unwrap_or_default(), ObjectRef::from_obj(update), permit, deadline);
    }

    /// Returns the share of the run slots that a namespace receives, or the default share if the read fails. The share
    /// determines how many adopted runs of the namespace take slots from other namespaces.
    pub async fn share_of(&self, namespace: &str) -> Share {
        match self.namespaces.run_settings(namespace).await {
            Ok(settings) => settings.run_share.share,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    namespace,
                    "failed to read the run slot share"
                );
                Share::default()
            }
        }
    }

    /// Stops the task of a run that is no longer open, and releases its slot. This process can have such a task if
    /// another leader has recorded the result of the run.
    pub fn forget(&self, update: &Update) {
        let uid = update.uid().unwrap_or_default();
        self.attachments.detach(&uid);
        self.interruptions.forget(&uid);
        self.history.iter().for_each(|history| history.forget(&uid));
        self.stored_secrets.forget(&uid);
        self.run_limiter.withdraw(&uid);
    }
}
