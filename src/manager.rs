//! The role `manager`: builds what the controllers work with, and runs them until the process is told to end.

use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::reflector::{self, ObjectRef};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::artifact::{AllowedHosts, FetchSettings, Fetcher, Store};
use crate::config::{API_TIMEOUT, ManagerConfig, RECONCILE_TIMEOUT, SHUTDOWN_TIMEOUT};
use crate::controller::{authority, stack, update, workspace};
use crate::rpc::client::{Agents, PUT_SOURCE_TIMEOUT};
use crate::rpc::identity::Authority;
use crate::runtime::drive::Drive;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::runs::{Limits, RunGate};
use crate::runtime::scope::Scope;
use crate::runtime::writes::Writer;
use crate::server;
use crate::telemetry::metrics::Metrics;

/// How many wake-ups may wait; one that finds no room is no loss, since everything looks again by itself.
const WAKE_UPS: usize = 4096;
/// How many Workspaces are reconciled at the same time: many, since one that installs dependencies holds its place for
/// minutes. How many sources are streamed at once is bounded elsewhere.
const WORKSPACES_AT_ONCE: u16 = 64;
/// The name of the controller in events.
const COMPONENT: &str = "pulumi-controller";
/// The domain of the cluster's Services.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// How often the controller's own certificate is looked at.
const IDENTITY_CHECK: Duration = Duration::from_secs(6 * 60 * 60);

/// What all controllers share.
struct Parts {
    client: Client,
    reader: Reader,
    writer: Writer,
    metrics: Metrics,
    events: Events,
    agents: Agents,
    authority: Arc<Authority>,
    store: Store,
    fetcher: Fetcher,
    scope: Scope,
    tasks: TaskTracker,
}

/// Runs the controllers until `end` is cancelled.
pub async fn run(config: ManagerConfig, end: CancellationToken) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let (ready, is_ready) = watch::channel(false);
    let tasks = TaskTracker::new();
    serve_endpoints(&config, &metrics, is_ready, &tasks, &end).await?;
    let parts = build(&config, metrics, &tasks, &end).await?;
    tracing::info!("starting the controllers");
    ready.send_replace(true);
    run_controllers(&config, parts, &end).await;
    tasks.close();
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!("some tasks did not end in time; the runs that they were attached to go on");
    }
    Ok(())
}

async fn serve_endpoints(
    config: &ManagerConfig,
    metrics: &Metrics,
    is_ready: watch::Receiver<bool>,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let endpoints = [
        ("metrics", config.metrics_address, server::metrics_router(metrics.clone())),
        ("health", config.health_address, server::health_router(is_ready)),
    ];
    for (purpose, address, router) in endpoints {
        let Some(address) = address else { continue };
        let listener = server::listen(purpose, address).await?;
        let end = end.clone();
        tasks.spawn(async move {
            if let Err(error) = server::serve(purpose, listener, router, end).await {
                tracing::error!(%error, "endpoint ended");
            }
        });
    }
    Ok(())
}

async fn build(
    config: &ManagerConfig,
    metrics: Metrics,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> anyhow::Result<Parts> {
    let client = Client::try_default().await?;
    let reader = Reader::new(client.clone(), API_TIMEOUT);
    // One replica, replaced before another starts: it may always write. Leader election will say when.
    let (_, may_write) = watch::channel(true);
    let writer = Writer::new(client.clone(), API_TIMEOUT, may_write, metrics.clone());
    let instance = std::env::var("HOSTNAME").unwrap_or_default();
    let (events, event_task) = Events::new(writer.clone(), COMPONENT, &instance, metrics.clone());
    tasks.spawn(event_task.run(end.clone()));
    let authority = Arc::new(authority::load(&reader, &writer, &config.runtime_namespace).await?);
    let agents = Agents::new(&authority.issue_client(Timestamp::now())?, authority.certificate_pem())?;
    tasks.spawn(renew_identity(agents.clone(), authority.clone(), end.clone()));
    let store = Store::open(&config.storage_path, config.storage_size)?;
    let mut hosts = AllowedHosts::services_of(&config.runtime_namespace, CLUSTER_DOMAIN);
    for host in &config.artifact_hosts {
        hosts = hosts.and(host)?;
    }
    let mut settings = FetchSettings::new(hosts);
    settings.source_controller_host = config.source_controller_localhost.clone();
    let fetcher = Fetcher::new(settings, store.clone())?;
    let scope = Scope::new(config.watch_namespace.clone(), config.watch_label_selector.clone());
    Ok(Parts {
        client,
        reader,
        writer,
        metrics,
        events,
        agents,
        authority,
        store,
        fetcher,
        scope,
        tasks: tasks.clone(),
    })
}

/// Gives the controller a new certificate before its own ends.
async fn renew_identity(agents: Agents, authority: Arc<Authority>, end: CancellationToken) {
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(IDENTITY_CHECK) => {}
        }
        let renewed = authority.issue_client(Timestamp::now()).map_err(anyhow::Error::from).and_then(|issued| {
            agents.replace_identity(&issued, authority.certificate_pem())?;
            Ok(())
        });
        if let Err(error) = renewed {
            tracing::error!(error = format!("{error:#}"), "the controller's certificate was not renewed");
        }
    }
}

async fn run_controllers(config: &ManagerConfig, parts: Parts, end: &CancellationToken) {
    let (updates, updates_writer) = reflector::store::<Update>();
    let (wake_workspace, woken_workspaces) = mpsc::channel::<ObjectRef<Workspace>>(WAKE_UPS);
    let (update_news, news) = mpsc::channel::<ObjectRef<Update>>(WAKE_UPS);
    let limits = Limits { all: config.max_concurrent_runs, each_node: config.max_concurrent_runs_per_node };
    let gate = RunGate::new(limits, parts.metrics.clone());
    let stacks = Arc::new(stack::Context {
        client: parts.client.clone(),
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        fetcher: parts.fetcher.clone(),
        store: parts.store.clone(),
        events: parts.events.clone(),
        metrics: parts.metrics.clone(),
        updates: updates.clone(),
        wake_workspace,
    });
    let runs = Arc::new(update::Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        attachments: update::Attachments::new(parts.agents.clone(), update_news, parts.tasks.clone()),
        gate: gate.clone(),
        events: parts.events.clone(),
        updates: updates.clone(),
    });
    let feeds = update::Feeds { store: updates_writer, news, places: gate.wakes() };
    let stack_drive = Arc::new(Drive::new::<Stack>("stack-controller", RECONCILE_TIMEOUT, parts.metrics.clone()));
    let update_drive = Arc::new(Drive::new::<Update>("update-controller", RECONCILE_TIMEOUT, parts.metrics.clone()));
    let ended = || end.clone().cancelled_owned();
    tokio::join!(
        stack::controller(&parts.scope, stack_drive, stacks, config.concurrent, ended()),
        update::controller(parts.client.clone(), &parts.scope, feeds, update_drive, runs, config.concurrent, ended()),
        workspaces(config, &parts, woken_workspaces, end.clone()),
    );
}

async fn workspaces(
    config: &ManagerConfig,
    parts: &Parts,
    wakes: mpsc::Receiver<ObjectRef<Workspace>>,
    end: CancellationToken,
) {
    let (_, workspaces) = reflector::store::<Workspace>();
    // Its own, cut-down copy of the Updates: it is filled before it wakes a Workspace.
    let (updates, updates_writer) = reflector::store::<Update>();
    let context = Arc::new(workspace::Context {
        client: parts.client.clone(),
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        agents: parts.agents.clone(),
        authority: parts.authority.clone(),
        artifacts: parts.store.clone(),
        updates,
        events: parts.events.clone(),
        pods: workspace::PodSettings {
            agent_image: config.agent_image.clone(),
            agent_image_pull_policy: None,
            default_image: config.default_workspace_image.clone(),
        },
        memory: workspace::Memory::default(),
    });
    let watches = workspace::Watches { scope: parts.scope.clone(), workspaces, updates: updates_writer, wakes };
    // It waits for a source to be put in place, and for what that installs.
    let timeout = PUT_SOURCE_TIMEOUT + RECONCILE_TIMEOUT;
    let drive = Arc::new(Drive::new::<Workspace>("workspace-controller", timeout, parts.metrics.clone()));
    workspace::controller(context, watches, drive, WORKSPACES_AT_ONCE, end).await;
}
