//! The `manager` role builds the shared components, and runs the controllers while this process is the leader.

mod controllers;
mod namespace_requeue;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::controllers::Parts;
use crate::artifact::{AllowedHosts, FetchSettings, Fetcher, Store};
use crate::config::{API_TIMEOUT, ManagerConfig, RECONCILES_END, TASKS_END, WEBHOOKS_END};
use crate::controller::authority;
use crate::history::{self, HistoryStore};
use crate::history_api;
use crate::mutual_tls::{self, MutualTls, Peer};
use crate::receiver;
use crate::rpc::client::Dial;
use crate::runtime::client;
use crate::runtime::critical_tasks::CriticalTasks;
use crate::runtime::events::{Event, EventKind, Events, NotificationController, RetryPolicy};
use crate::runtime::lease::{Elector, Identity, Term};
use crate::runtime::reads::Reader;
use crate::runtime::scope::Scope;
use crate::runtime::served_schemas;
use crate::runtime::writes::{Leadership, Writer};
use crate::server;
use crate::source::git;
use crate::subprocess::Subprocess;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::{ExporterError, Traces};
use crate::ui;

/// Name of the controller in events.
const COMPONENT: &str = "pulumi-controller";
/// DNS domain of the cluster.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// A process that runs the controllers while it is the leader, with the components that every replica has. A simulation
/// creates replicas with its own client and its own connections to agents.
pub struct Replica {
    pub client: Client,
    pub metrics: Metrics,
    /// Name and UID of the pod of this replica.
    pub name: String,
    pub uid: String,
    /// Function that opens the connections to agents, instead of TLS over TCP.
    pub dial: Option<Dial>,
    store: Store,
    fetcher: Fetcher,
    /// Client for requests to notification-controller.
    event_client: mutual_tls::Client,
    /// Run history, if enabled.
    history: Option<HistoryStore>,
    tasks: TaskTracker,
    /// Token that is canceled after the last component has stopped emitting events.
    last_events: CancellationToken,
}

/// Runs the controllers while this process is the leader, until `end` is canceled. Returns an error if this process
/// loses the leadership. After the error, the process must exit to discard its pending writes.
pub async fn run(config: ManagerConfig, end: CancellationToken) -> anyhow::Result<()> {
    let (tasks, webhooks) = (TaskTracker::new(), TaskTracker::new());
    Box::pin(run_replica(config, &tasks, &webhooks, &end)).await?;
    // Every replica completes the requests that it has received, also if it was never the leader. The leader has already
    // released the Lease.
    tokio::join!(end_tasks(&tasks, TASKS_END), end_tasks(&webhooks, WEBHOOKS_END + TASKS_END));
    Ok(())
}

async fn run_replica(
    config: ManagerConfig,
    tasks: &TaskTracker,
    webhooks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let (ready, is_ready) = watch::channel(false);
    serve_endpoints(&config, &metrics, is_ready, tasks, end).await?;
    let client = client::connect(metrics.clone()).await?;
    let replica = Replica::new(&config, client.clone(), metrics.clone(), tasks.clone(), end)?;
    let receivers_listed = serve_webhooks(&config, &client, &metrics, webhooks, end).await?;
    serve_ui(&config, &client, replica.history.as_ref(), &metrics, tasks, end).await?;
    let subprocess = Subprocess::of_this_binary();
    // The replica becomes ready only when the installed CustomResourceDefinitions match this version. Until then, a
    // rollout keeps the old replica, which matches the definitions that were installed before.
    tokio::select! {
        () = served_schemas::until_complete(&client, API_TIMEOUT, &subprocess) => {}
        () = end.cancelled() => return Ok(()),
    }
    // A replica must become ready before it becomes the leader. During a rollout, the old replica releases the Lease
    // only when the new replica is ready.
    tasks.spawn(async move {
        receivers_listed.await;
        ready.send_replace(true);
    });
    replica.run(&config, end).await
}

impl Replica {
    /// Opens the storage of the replica. Reads the name and the UID of the pod from the environment.
    ///
    /// # Errors
    /// Fails if the storage cannot be opened, or if a setting of the storage or of the history is invalid.
    pub fn new(
        config: &ManagerConfig,
        client: Client,
        metrics: Metrics,
        tasks: TaskTracker,
        end: &CancellationToken,
    ) -> anyhow::Result<Replica> {
        let (artifact_servers, event_servers) = start_mutual_tls(config, &tasks, end);
        let (store, fetcher) = open_artifacts(config, artifact_servers)?;
        let event_client = mutual_tls::Client::new(Peer::EventServer, fetcher.client(), event_servers);
        let history = open_history(config, &metrics)?;
        let uid = std::env::var("POD_UID").unwrap_or_default();
        let (name, dial, last_events) = (instance(), None, CancellationToken::new());
        Ok(Replica { client, metrics, name, uid, dial, store, fetcher, event_client, history, tasks, last_events })
    }

    /// Waits until the replica is the leader, and then runs the controllers until `end` is canceled.
    ///
    /// # Errors
    /// Fails if the replica loses the leadership. The process must then exit to discard its pending writes.
    pub async fn run(self, config: &ManagerConfig, end: &CancellationToken) -> anyhow::Result<()> {
        let Some(election) = &config.leader_election else {
            return lead(config, self, Leadership::sole(), None, end).await;
        };
        let lease = (config.runtime_namespace.as_str(), election.lease_name.as_str());
        let (client, identity) = (self.client.clone(), Identity::new(&self.name, &self.uid));
        let (mut elector, leadership) = Elector::new(client, lease, identity, election.clone(), self.metrics.clone());
        tokio::select! {
            () = elector.acquire() => tracing::info!(identity = elector.identity(), "became leader"),
            () = end.cancelled() => return Ok(()),
        }
        let lease = (elector.lease(), elector.identity().to_owned());
        let mut term = Term::begin(elector);
        let led = tokio::select! {
            lost = term.lost() => return Err(lost.into()),
            led = lead(config, self, leadership, Some(lease), end) => led,
        };
        term.end(election.release).await;
        led
    }
}

/// Returns the name of the controller's pod.
fn instance() -> String {
    std::env::var("HOSTNAME").unwrap_or_default()
}

/// Runs the leader until shutdown.
async fn lead(
    config: &ManagerConfig,
    replica: Replica,
    leadership: Leadership,
    lease: Option<(Lease, String)>,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let (tasks, last_events) = (replica.tasks.clone(), replica.last_events.clone());
    let (critical_tasks, mut panics) = CriticalTasks::new(tasks.clone());
    let parts = tokio::select! {
        parts = Box::pin(build(config, replica, leadership, critical_tasks, end)) => parts?,
        () = end.cancelled() => {
            last_events.cancel();
            return Ok(());
        }
    };
    if let Some((lease, identity)) = lease {
        let message = format!("{identity} became leader");
        parts.events.publish(Event::new(&lease, EventKind::Normal, "LeaderElection", message));
    }
    tracing::info!("starting controllers");
    let late = async {
        end.cancelled().await;
        tokio::time::sleep(RECONCILES_END).await;
    };
    tokio::select! {
        () = Box::pin(controllers::run(config, &parts)) => {}
        Some(panic) = panics.recv() => std::panic::resume_unwind(panic),
        () = late => tracing::warn!("shutdown timed out with reconciliations in progress; the next leader repeats them"),
    }
    last_events.cancel();
    end_tasks(&tasks, TASKS_END).await;
    Ok(())
}

/// Waits until all tasks have ended, or until the timeout expires.
async fn end_tasks(tasks: &TaskTracker, timeout: Duration) {
    tasks.close();
    if tokio::time::timeout(timeout, tasks.wait()).await.is_err() {
        tracing::warn!("shutdown timed out with tasks in progress");
    }
}

/// Returns a token that is canceled when `delay` has passed since the cancellation of `end`.
fn canceled_after(end: &CancellationToken, delay: Duration, tasks: &TaskTracker) -> CancellationToken {
    let (end, delayed) = (end.clone(), CancellationToken::new());
    let token = delayed.clone();
    tasks.spawn(async move {
        end.cancelled().await;
        tokio::time::sleep(delay).await;
        token.cancel();
    });
    delayed
}

async fn serve_endpoints(
    config: &ManagerConfig,
    metrics: &Metrics,
    is_ready: watch::Receiver<bool>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let endpoints = [
        ("metrics", config.metrics_address, server::metrics_router(metrics.clone(), config.enable_pprof)),
        ("health", config.health_address, server::health_router(is_ready)),
    ];
    for (purpose, address, router) in endpoints {
        let Some(address) = address else { continue };
        let listener = server::listen(purpose, address).await?;
        let limits = server::endpoint_limits(config.enable_pprof);
        tasks.spawn(server::serve(purpose, listener, router, limits, tasks.clone(), end.clone()));
    }
    Ok(())
}

/// Starts the webhook server if it is enabled. The returned future completes when this replica can accept webhook
/// calls, or after a timeout. During the shutdown, the server accepts calls for [`WEBHOOKS_END`], and `tasks` ends later
/// than the tasks of the leader.
async fn serve_webhooks(
    config: &ManagerConfig,
    client: &Client,
    metrics: &Metrics,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<impl Future<Output = ()> + use<>> {
    let started = match config.receiver_address {
        None => None,
        Some(address) => {
            let listener = server::listen("webhooks", address).await?;
            let end = canceled_after(end, WEBHOOKS_END, tasks);
            let settings = receiver::Settings {
                client: client.clone(),
                scope: scope(config),
                metrics: metrics.clone(),
                tasks: tasks.clone(),
                component: COMPONENT,
                instance: instance(),
                limits: receiver::connection_limits(),
                // An issuer can be part of the Git server. Both then have the same private authority.
                issuers: receiver::IssuerSettings::new(config.git_trust_path.join("ca.crt")),
            };
            Some(receiver::start(settings, listener, &end))
        }
    };
    Ok(async move {
        if let Some(listed) = started {
            listed.await;
        }
    })
}

/// Starts the web UI if it is enabled. Every replica serves the web UI, so that a Service can select all replicas.
async fn serve_ui(
    config: &ManagerConfig,
    client: &Client,
    history: Option<&HistoryStore>,
    metrics: &Metrics,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(settings) = &config.ui else { return Ok(()) };
    let listener = server::listen("the web UI", settings.address).await?;
    let settings = ui::Settings {
        client: client.clone(),
        without_credentials: client::connect_without_credentials(metrics.clone()).await?,
        scope: scope(config),
        history: history.cloned(),
        cluster_name: config.cluster_name.clone(),
        oidc: settings.oidc.clone(),
        tasks: tasks.clone(),
    };
    ui::start(settings, listener, end)?;
    Ok(())
}

fn scope(config: &ManagerConfig) -> Scope {
    Scope::new(config.watch_namespace.clone(), config.watch_label_selector.clone())
}

/// Starts the connection to the SPIFFE Workload API, if a flag authorizes a server. Returns the settings of mutual TLS
/// with artifact servers and with event servers.
fn start_mutual_tls(
    config: &ManagerConfig,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> (Option<MutualTls>, Option<MutualTls>) {
    let Some(settings) = &config.mutual_tls else { return (None, None) };
    let (identity, task) = mutual_tls::Identity::new(&settings.endpoint, end.clone());
    tasks.spawn(task);
    let with = |authorized: &[mutual_tls::AuthorizedId]| {
        (!authorized.is_empty()).then(|| MutualTls { identity: identity.clone(), authorized: authorized.into() })
    };
    (with(&settings.artifact_servers), with(&settings.event_servers))
}

/// Opens the artifact store and creates the fetcher that writes to the store.
fn open_artifacts(config: &ManagerConfig, mutual_tls: Option<MutualTls>) -> anyhow::Result<(Store, Fetcher)> {
    let store = Store::open(&config.storage_path, config.storage_size)?;
    git::prepare(&git_work(config))?;
    let mut hosts = AllowedHosts::services_of(&config.runtime_namespace, CLUSTER_DOMAIN);
    for host in &config.artifact_hosts {
        hosts = hosts.and(host)?;
    }
    let mut settings = FetchSettings::new(hosts);
    settings.own_namespace_only = config.no_cross_namespace_refs;
    settings.download_bytes = config.artifact_limits.download_bytes;
    settings.source_controller_host = config.source_controller_localhost.clone();
    settings.source_watcher_host = config.source_watcher_localhost.clone();
    settings.mutual_tls = mutual_tls;
    let fetcher = Fetcher::new(settings, store.clone())?;
    Ok((store, fetcher))
}

/// Opens the run history if it is enabled.
fn open_history(config: &ManagerConfig, metrics: &Metrics) -> anyhow::Result<Option<HistoryStore>> {
    let Some(history) = &config.history else { return Ok(None) };
    Ok(Some(history::open(&history.url, history.retention, metrics.clone())?))
}

/// Starts the run history cleanup and, if enabled, the run history endpoint. Only the leader can access a run history
/// on a volume.
async fn serve_history(
    config: &ManagerConfig,
    client: &Client,
    history: Option<&HistoryStore>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(history) = history else { return Ok(()) };
    tasks.spawn(history.clone().clean_up(end.clone()));
    if let Some(address) = config.history.as_ref().and_then(|history| history.address) {
        let listener = server::listen("the history", address).await?;
        let router = history_api::router(client.clone(), history.clone());
        let limits = server::endpoint_limits(false);
        tasks.spawn(server::serve("the history", listener, router, limits, tasks.clone(), end.clone()));
    }
    Ok(())
}

/// Returns the directory to which the controller fetches Git commits before it packs them.
fn git_work(config: &ManagerConfig) -> std::path::PathBuf {
    config.storage_path.join("git")
}

async fn build(
    config: &ManagerConfig,
    replica: Replica,
    leadership: Leadership,
    critical_tasks: CriticalTasks,
    end: &CancellationToken,
) -> anyhow::Result<Parts> {
    let Replica { client, metrics, name, dial, store, fetcher, event_client, history, tasks, last_events, .. } =
        replica;
    let reader = Reader::new(client.clone(), API_TIMEOUT);
    let writer = Writer::new(client.clone(), API_TIMEOUT, leadership, metrics.clone());
    let notification_controller = config.events_address.clone().map(|address| NotificationController {
        address,
        client: event_client,
        retry_policy: RetryPolicy::default(),
    });
    let (events, event_task) =
        Events::with_notifications(writer.clone(), notification_controller, COMPONENT, &name, metrics.clone());
    critical_tasks.spawn(event_task.run(last_events.clone()));
    let traces = start_traces(config, &fetcher, &metrics, &tasks, last_events)?;
    let namespace = config.runtime_namespace.clone();
    let secrets = authority::SecretStore { reader: reader.clone(), writer: writer.clone(), namespace };
    let ca_rotator = authority::CaRotator::start(secrets, events.clone(), metrics.clone()).await?;
    let (agents, authority) = (ca_rotator.agents().with_dial(dial), ca_rotator.authority());
    critical_tasks.spawn(ca_rotator.run(end.clone()));
    serve_history(config, &client, history.as_ref(), &tasks, end).await?;
    Ok(Parts {
        client,
        reader,
        writer,
        metrics,
        events,
        traces,
        agents,
        authority,
        store,
        fetcher,
        scope: scope(config),
        tasks,
        critical_tasks,
        history,
        git_slots: git::Slots::default(),
        git_work: git_work(config),
        end: end.clone(),
    })
}

/// Starts the trace export if a collector is configured. The export ends when `end` is canceled, after the
/// components have queued the last spans.
fn start_traces(
    config: &ManagerConfig,
    fetcher: &Fetcher,
    metrics: &Metrics,
    tasks: &TaskTracker,
    end: CancellationToken,
) -> Result<Traces, ExporterError> {
    let Some(export) = &config.traces else { return Ok(Traces::default()) };
    let (instance, cluster) = (instance(), config.cluster_name.as_str());
    let (traces, task) = Traces::new(&export.collector, fetcher.client(), (&instance, cluster), metrics.clone())?;
    tasks.spawn(task.run(end));
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn webhooks_are_accepted_for_some_time_after_the_shutdown_has_started() {
        let (end, tasks, begin) = (CancellationToken::new(), TaskTracker::new(), Instant::now());
        let delayed = canceled_after(&end, WEBHOOKS_END, &tasks);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!delayed.is_cancelled());
        end.cancel();
        delayed.cancelled().await;
        assert_eq!(begin.elapsed(), Duration::from_secs(60) + WEBHOOKS_END);
        end_tasks(&tasks, TASKS_END).await;
        assert!(tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_shutdown_waits_for_tasks_in_progress_until_the_timeout() {
        for (duration, expected) in [(Duration::from_secs(1), Duration::from_secs(1)), (TASKS_END * 2, TASKS_END)] {
            let (tasks, begin) = (TaskTracker::new(), Instant::now());
            tasks.spawn(tokio::time::sleep(duration));
            end_tasks(&tasks, TASKS_END).await;
            assert_eq!(begin.elapsed(), expected, "task of {duration:?}");
        }
    }
}
