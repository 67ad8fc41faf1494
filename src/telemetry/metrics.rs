//! Metrics with the names that Flux dashboards and controller-runtime alerts expect, and additional controller metrics.

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::telemetry::process::ProcessMetrics;
use crate::telemetry::reconciles::Reconciles;
use crate::telemetry::runs::Runs;
use crate::telemetry::stacks::{StackState, Stacks};

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Result of an artifact fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FetchResult {
    /// The controller downloaded the artifact from the source.
    Fetched,
    /// The store already contained the artifact.
    Cached,
    /// The source did not return the artifact, or the controller rejected it.
    Failed,
}

impl EncodeLabelValue for FetchResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            FetchResult::Fetched => "fetched",
            FetchResult::Cached => "cached",
            FetchResult::Failed => "failed",
        };
        text.encode(encoder)
    }
}

/// Result of a webhook call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebhookResult {
    /// The controller has requested a run of each Stack that the StackReceiver selects.
    Accepted,
    /// The call is valid, but its event triggers no runs.
    Ignored,
    /// The path is unknown, or the call is not permitted.
    Refused,
    /// The call is valid, but the controller could not request runs of some Stacks.
    Failed,
}

impl EncodeLabelValue for WebhookResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            WebhookResult::Accepted => "accepted",
            WebhookResult::Ignored => "ignored",
            WebhookResult::Refused => "refused",
            WebhookResult::Failed => "failed",
        };
        text.encode(encoder)
    }
}

/// Result of writing a run to the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HistoryResult {
    /// The history contains all files of the run.
    Stored,
    /// The history lacks the transcript of the run.
    Incomplete,
    /// The controller could not write all files of the run.
    Failed,
}

impl EncodeLabelValue for HistoryResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            HistoryResult::Stored => "stored",
            HistoryResult::Incomplete => "incomplete",
            HistoryResult::Failed => "failed",
        };
        text.encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HistoryLabels {
    result: HistoryResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FetchLabels {
    result: FetchResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    result: WebhookResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LeaseLabels {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    verb: &'static str,
    kind: String,
}

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconciles: Reconciles,
    leader: Family<LeaseLabels, Gauge>,
    api_requests: Family<RequestLabels, Counter>,
    artifact_fetches: Family<FetchLabels, Counter>,
    history_runs: Family<HistoryLabels, Counter>,
    history_deletions: Counter,
    runs: Runs,
    stacks_active: Gauge,
    stacks: Stacks,
    programs_active: Gauge,
    webhooks: Family<WebhookLabels, Counter>,
    events_dropped: Counter,
    notifications_dropped: Counter,
    spans_exported: Counter,
    spans_dropped: Counter,
    api_writes: Family<WriteLabels, Counter>,
    authority_expiry: Gauge,
    authority_well: Gauge,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Metrics {
            registry: Arc::default(),
            reconciles: Reconciles::default(),
            leader: Family::default(),
            api_requests: Family::default(),
            artifact_fetches: Family::default(),
            history_runs: Family::default(),
            history_deletions: Counter::default(),
            runs: Runs::default(),
            stacks_active: Gauge::default(),
            stacks: Stacks::default(),
            programs_active: Gauge::default(),
            webhooks: Family::default(),
            events_dropped: Counter::default(),
            notifications_dropped: Counter::default(),
            spans_exported: Counter::default(),
            spans_dropped: Counter::default(),
            api_writes: Family::default(),
            authority_expiry: Gauge::default(),
            authority_well: Gauge::default(),
        };
        metrics.registry = Arc::new(metrics.register());
        metrics
    }
}

impl Metrics {
    /// Registers all metrics. The encoder appends `_total` to the name of each counter.
    fn register(&self) -> Registry {
        let mut registry = Registry::default();
        self.reconciles.register(&mut registry);
        self.register_own(&mut registry);
        registry.register(
            "leader_election_master_status",
            "1 if this replica holds the Lease; otherwise 0",
            self.leader.clone(),
        );
        registry.register("rest_client_requests", "Number of requests to the API server", self.api_requests.clone());
        registry.register_collector(Box::new(ProcessMetrics));
        registry
    }

    fn register_own(&self, registry: &mut Registry) {
        registry.register(
            "pulumi_controller_artifact_fetches",
            "Number of artifact requests",
            self.artifact_fetches.clone(),
        );
        registry.register(
            "pulumi_controller_history_runs",
            "Number of runs that the controller has written to the history",
            self.history_runs.clone(),
        );
        registry.register(
            "pulumi_controller_history_deleted_objects",
            "Number of objects that the controller has deleted from the history",
            self.history_deletions.clone(),
        );
        self.runs.register(registry);
        // `stacks_active`, `programs_active` and two metrics of [`Stacks`] have the names that the Pulumi Kubernetes
        // Operator uses.
        registry.register("stacks_active", "Number of Stacks", self.stacks_active.clone());
        registry.register_collector(Box::new(self.stacks.clone()));
        registry.register("programs_active", "Number of Programs", self.programs_active.clone());
        registry.register("pulumi_controller_webhooks", "Number of webhook calls", self.webhooks.clone());
        registry.register(
            "pulumi_controller_events_dropped",
            "Number of Kubernetes events that the controller could not write",
            self.events_dropped.clone(),
        );
        registry.register(
            "pulumi_controller_notifications_dropped",
            "Number of events that the controller could not send to notification-controller",
            self.notifications_dropped.clone(),
        );
        self.register_traces(registry);
        registry.register(
            "pulumi_controller_api_writes",
            "Number of API requests that change an object",
            self.api_writes.clone(),
        );
        registry.register(
            "pulumi_controller_authority_expiry_timestamp_seconds",
            "Expiry time of the signing certificate authority in seconds since the Unix epoch",
            self.authority_expiry.clone(),
        );
        registry.register(
            "pulumi_controller_authority_well",
            "1 if the Secret of the certificate authority was valid at the last check; otherwise 0",
            self.authority_well.clone(),
        );
    }

    fn register_traces(&self, registry: &mut Registry) {
        let (exported, dropped) = (self.spans_exported.clone(), self.spans_dropped.clone());
        registry.register("pulumi_controller_spans_exported", "Number of spans that the collector received", exported);
        registry.register(
            "pulumi_controller_spans_dropped",
            "Number of spans that the controller could not export",
            dropped,
        );
    }

    /// Returns the metrics as OpenMetrics text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Returns the metrics of reconciliations.
    pub fn reconciles(&self) -> &Reconciles {
        &self.reconciles
    }

    /// Removes the time series of a deleted object.
    pub fn forget(&self, kind: &'static str, namespace: &str, name: &str) {
        self.reconciles.forget(kind, namespace, name);
        if kind == "Stack" {
            self.stacks.remove(namespace, name);
        }
    }

    /// Counts an artifact fetch.
    pub fn artifact_fetch(&self, result: FetchResult) {
        self.artifact_fetches.get_or_create(&FetchLabels { result }).inc();
    }

    /// Counts an attempt to write a run to the history.
    pub fn history_run(&self, result: HistoryResult) {
        self.history_runs.get_or_create(&HistoryLabels { result }).inc();
    }

    /// Counts objects that the controller has deleted from the history.
    pub fn history_deleted(&self, objects: usize) {
        self.history_deletions.inc_by(u64::try_from(objects).unwrap_or(u64::MAX));
    }

    /// Returns the metrics of runs.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Sets the number of Stacks.
    pub fn set_stack_count(&self, count: usize) {
        self.stacks_active.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the state of a Stack.
    pub fn record_stack(&self, namespace: &str, name: &str, state: StackState) {
        self.stacks.record(namespace, name, state);
    }

    /// Sets the number of Programs.
    pub fn set_program_count(&self, count: usize) {
        self.programs_active.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a webhook call.
    pub fn webhook(&self, result: WebhookResult) {
        self.webhooks.get_or_create(&WebhookLabels { result }).inc();
    }

    /// Counts a Kubernetes event that the controller could not write.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// Counts an event that the controller could not send to notification-controller.
    pub fn notification_dropped(&self) {
        self.notifications_dropped.inc();
    }

    /// Counts spans that the collector has received.
    pub fn spans_exported(&self, count: usize) {
        self.spans_exported.inc_by(count as u64);
    }

    /// Counts spans that the controller could not export.
    pub fn spans_dropped(&self, count: usize) {
        self.spans_dropped.inc_by(count as u64);
    }

    /// Sets whether this process holds a Lease.
    pub fn leads(&self, lease: &str, leads: bool) {
        self.leader.get_or_create(&LeaseLabels { name: lease.to_owned() }).set(i64::from(leads));
    }

    /// Counts a request to the API server. `code` is `None` if the API server did not respond.
    pub fn api_request(&self, code: Option<u16>, method: &str, host: &str) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = RequestLabels { code, method: method.to_owned(), host: host.to_owned() };
        self.api_requests.get_or_create(&labels).inc();
    }

    /// Records the result of a certificate authority check. `expiry` is the expiry time of the certificate.
    pub fn authority(&self, expiry: Option<jiff::Timestamp>, is_well: bool) {
        self.authority_expiry.set(expiry.map_or(0, jiff::Timestamp::as_second));
        self.authority_well.set(i64::from(is_well));
    }

    /// Counts a request that changes an object in the API server.
    pub fn api_write(&self, verb: &'static str, kind: &str) {
        self.api_writes.get_or_create(&WriteLabels { verb, kind: kind.to_owned() }).inc();
    }
}

#[cfg(test)]
mod tests;
