//! Metrics with the names that Flux dashboards and controller-runtime alerts expect, and additional ones of this controller.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets_range};
use prometheus_client::registry::Registry;

use crate::telemetry::activity::Activity;
use crate::telemetry::process::ProcessMetrics;
use crate::telemetry::runs::Runs;
use crate::telemetry::stacks::{Stacks, Standing};
use crate::telemetry::webhooks::{WebhookResult, Webhooks};

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Result of a reconcile, as in controller-runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReconcileResult {
    /// Success without a requeue.
    Success,
    /// Failure.
    Error,
    /// Requeue without a failure: success, unmet precondition or write conflict.
    RequeueAfter,
}

impl EncodeLabelValue for ReconcileResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            ReconcileResult::Success => "success",
            ReconcileResult::Error => "error",
            ReconcileResult::RequeueAfter => "requeue_after",
        };
        text.encode(encoder)
    }
}

/// Result of an artifact fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FetchResult {
    /// Downloaded from the source.
    Fetched,
    /// Present in the store.
    Cached,
    /// Not returned by the source, or rejected.
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectLabels {
    kind: &'static str,
    name: String,
    namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    result: ReconcileResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabels {
    controller: &'static str,
}

/// Labels of a controller's queue, which has the same name as the controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FetchLabels {
    result: FetchResult,
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

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    reconcile_duration: Histograms<ObjectLabels>,
    reconcile_time: Histograms<ControllerLabels>,
    reconciles: Family<ReconcileLabels, Counter>,
    reconcile_errors: Family<ControllerLabels, Counter>,
    reconcile_terminal_errors: Family<ControllerLabels, Counter>,
    reconcile_panics: Family<ControllerLabels, Counter>,
    active_workers: Family<ControllerLabels, Gauge>,
    max_workers: Family<ControllerLabels, Gauge>,
    queue_work: Histograms<QueueLabels>,
    activity: Activity,
    leader: Family<LeaseLabels, Gauge>,
    api_requests: Family<RequestLabels, Counter>,
    artifact_fetches: Family<FetchLabels, Counter>,
    runs: Runs,
    stacks_active: Gauge,
    stacks: Stacks,
    programs_active: Gauge,
    webhooks: Webhooks,
    events_dropped: Counter,
    notifications_dropped: Counter,
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
            reconcile_duration: Family::new_with_constructor(reconcile_histogram as fn() -> Histogram),
            reconcile_time: Family::new_with_constructor(reconcile_histogram as fn() -> Histogram),
            reconciles: Family::default(),
            reconcile_errors: Family::default(),
            reconcile_terminal_errors: Family::default(),
            reconcile_panics: Family::default(),
            active_workers: Family::default(),
            max_workers: Family::default(),
            queue_work: Family::new_with_constructor(reconcile_histogram as fn() -> Histogram),
            activity: Activity::default(),
            leader: Family::default(),
            api_requests: Family::default(),
            artifact_fetches: Family::default(),
            runs: Runs::default(),
            stacks_active: Gauge::default(),
            stacks: Stacks::default(),
            programs_active: Gauge::default(),
            webhooks: Webhooks::default(),
            events_dropped: Counter::default(),
            notifications_dropped: Counter::default(),
            api_writes: Family::default(),
            authority_expiry: Gauge::default(),
            authority_well: Gauge::default(),
        };
        metrics.registry = Arc::new(metrics.register());
        metrics
    }
}

/// Returns a histogram with the buckets of Flux.
fn reconcile_histogram() -> Histogram {
    Histogram::new(exponential_buckets_range(0.01, 1800.0, 10))
}

impl Metrics {
    /// Registers all metrics. The registry appends `_total` to the name of each counter.
    fn register(&self) -> Registry {
        let mut registry = Registry::default();
        self.register_reconciles(&mut registry);
        self.register_own(&mut registry);
        registry.register(
            "leader_election_master_status",
            "1 if this replica holds the Lease; otherwise 0",
            self.leader.clone(),
        );
        registry.register("rest_client_requests", "Number of requests to the API server", self.api_requests.clone());
        registry.register_collector(Box::new(self.activity.clone()));
        registry.register_collector(Box::new(ProcessMetrics));
        registry
    }

    fn register_reconciles(&self, registry: &mut Registry) {
        registry.register(
            "gotk_reconcile_duration_seconds",
            "Duration in seconds of the reconciles of an object",
            self.reconcile_duration.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Duration in seconds of reconciles",
            self.reconcile_time.clone(),
        );
        registry.register("controller_runtime_reconcile", "Number of completed reconciles", self.reconciles.clone());
        registry.register(
            "controller_runtime_reconcile_errors",
            "Number of failed reconciles",
            self.reconcile_errors.clone(),
        );
        registry.register(
            "controller_runtime_terminal_reconcile_errors",
            "Number of failed reconciles that are not retried until the object changes",
            self.reconcile_terminal_errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_panics",
            "Number of reconciles that panicked",
            self.reconcile_panics.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Number of reconciles in progress",
            self.active_workers.clone(),
        );
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciles",
            self.max_workers.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Duration in seconds of reconciles",
            self.queue_work.clone(),
        );
    }

    fn register_own(&self, registry: &mut Registry) {
        registry.register(
            "pulumi_controller_artifact_fetches",
            "Number of artifact requests",
            self.artifact_fetches.clone(),
        );
        self.runs.register(registry);
        // `stacks_active`, `programs_active` and two metrics of `Stacks` have the names of the Pulumi Kubernetes Operator.
        registry.register("stacks_active", "Number of Stacks", self.stacks_active.clone());
        registry.register_collector(Box::new(self.stacks.clone()));
        registry.register("programs_active", "Number of Programs", self.programs_active.clone());
        self.webhooks.register(registry);
        registry.register(
            "pulumi_controller_events_dropped",
            "Number of Kubernetes events that could not be written",
            self.events_dropped.clone(),
        );
        registry.register(
            "pulumi_controller_notifications_dropped",
            "Number of events that could not be sent to notification-controller",
            self.notifications_dropped.clone(),
        );
        registry.register(
            "pulumi_controller_api_writes",
            "Number of API requests that change an object",
            self.api_writes.clone(),
        );
        registry.register(
            "pulumi_controller_authority_expiry_timestamp_seconds",
            "Expiry of the signing certificate authority in seconds since the Unix epoch",
            self.authority_expiry.clone(),
        );
        registry.register(
            "pulumi_controller_authority_well",
            "1 if the Secret of the certificate authority was valid when last read; otherwise 0",
            self.authority_well.clone(),
        );
    }

    /// Returns the metrics as OpenMetrics text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Sets the maximum number of concurrent reconciles of a controller.
    pub fn reconciles_at_once(&self, controller: &'static str, most: u16) {
        self.max_workers.get_or_create(&ControllerLabels { controller }).set(i64::from(most));
    }

    /// Records the start of a reconcile. `object` is the namespace and name.
    pub fn reconcile_begun(&self, controller: &'static str, object: &(String, String)) {
        self.activity.begin(controller, object);
        self.active_workers.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Records the end of a reconcile.
    pub fn reconcile_ended(
        &self,
        controller: &'static str,
        (kind, namespace, name): (&'static str, &str, &str),
        result: ReconcileResult,
        duration: Duration,
    ) {
        self.activity.end(controller, &(namespace.to_owned(), name.to_owned()));
        let seconds = duration.as_secs_f64();
        let labels = ObjectLabels { kind, name: name.to_owned(), namespace: namespace.to_owned() };
        self.reconcile_duration.get_or_create(&labels).observe(seconds);
        self.reconcile_time.get_or_create(&ControllerLabels { controller }).observe(seconds);
        self.queue_work.get_or_create(&QueueLabels { name: controller, controller }).observe(seconds);
        self.reconciles.get_or_create(&ReconcileLabels { controller, result }).inc();
        if result == ReconcileResult::Error {
            self.reconcile_errors.get_or_create(&ControllerLabels { controller }).inc();
        }
        self.active_workers.get_or_create(&ControllerLabels { controller }).dec();
    }

    /// Counts a reconcile that failed and is not retried until the object changes.
    pub fn reconcile_stalled(&self, controller: &'static str) {
        self.reconcile_terminal_errors.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Counts a reconcile that panicked.
    pub fn reconcile_panicked(&self, controller: &'static str) {
        self.reconcile_panics.get_or_create(&ControllerLabels { controller }).inc();
    }

    /// Removes the series of a deleted object.
    pub fn forget(&self, kind: &'static str, namespace: &str, name: &str) {
        let labels = ObjectLabels { kind, name: name.to_owned(), namespace: namespace.to_owned() };
        self.reconcile_duration.remove(&labels);
        if kind == "Stack" {
            self.stacks.forget(namespace, name);
        }
    }

    /// Counts an artifact fetch.
    pub fn artifact_fetch(&self, result: FetchResult) {
        self.artifact_fetches.get_or_create(&FetchLabels { result }).inc();
    }

    /// Returns the metrics of runs.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Sets the number of Stacks.
    pub fn stacks(&self, count: usize) {
        self.stacks_active.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Sets the state of a Stack.
    pub fn stack_stands(&self, namespace: &str, name: &str, standing: Standing) {
        self.stacks.note(namespace, name, standing);
    }

    /// Sets the number of Programs.
    pub fn programs(&self, count: usize) {
        self.programs_active.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Counts a webhook call.
    pub fn webhook(&self, result: WebhookResult) {
        self.webhooks.count(result);
    }

    /// Counts a Kubernetes event that was not written.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// Counts an event that was not posted to the notification-controller.
    pub fn notification_dropped(&self) {
        self.notifications_dropped.inc();
    }

    /// Sets whether this process holds a Lease.
    pub fn leads(&self, lease: &str, leads: bool) {
        self.leader.get_or_create(&LeaseLabels { name: lease.to_owned() }).set(i64::from(leads));
    }

    /// Counts a request to the API server. `code` is `None` if there was no response.
    pub fn api_request(&self, code: Option<u16>, method: &str, host: &str) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = RequestLabels { code, method: method.to_owned(), host: host.to_owned() };
        self.api_requests.get_or_create(&labels).inc();
    }

    /// Records a check of the certificate authority.
    pub fn authority(&self, expiry: Option<jiff::Timestamp>, is_well: bool) {
        self.authority_expiry.set(expiry.map_or(0, jiff::Timestamp::as_second));
        self.authority_well.set(i64::from(is_well));
    }

    /// Counts a request that changes the API.
    pub fn api_write(&self, verb: &'static str, kind: &str) {
        self.api_writes.get_or_create(&WriteLabels { verb, kind: kind.to_owned() }).inc();
    }
}

#[cfg(test)]
mod tests;
