//! The role `manager`: builds the shared components and runs the controllers while this process is the leader, until shutdown.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::Resource;
use kube::runtime::reflector::{self, ObjectRef};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::{Program, Stack, StackReceiver};
use crate::artifact::{AllowedHosts, FetchSettings, Fetcher, Store};
use crate::config::{API_TIMEOUT, ManagerConfig, RECONCILE_TIMEOUT, RECONCILES_END, TASKS_END};
use crate::controller::references::{self, References};
use crate::controller::{authority, program, receiver as stack_receiver, stack, update, workspace};
use crate::receiver;
use crate::rpc::client::{Agents, PUT_SOURCE_TIMEOUT};
use crate::runtime::backoff::Backoff;
use crate::runtime::cache_sync::CacheSync;
use crate::runtime::client;
use crate::runtime::events::{Event, EventKind, Events, NotificationController, RetryPolicy};
use crate::runtime::index::IndexWriter;
use crate::runtime::lease::{Elector, Identity, Term};
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::ReconcileRunner;
use crate::runtime::run_limiter::{Limits, RunLimiter};
use crate::runtime::scope::Scope;
use crate::runtime::served_schemas;
use crate::runtime::writes::{Leadership, Writer};
use crate::server;
use crate::source::flux::{Sources, parse_kind};
use crate::source::git::{self, Git};
use crate::subprocess::Subprocess;
use crate::telemetry::metrics::Metrics;

/// Capacity of a wake-up queue. Dropping a wake-up is safe, because the periodic requeue covers it.
const WAKE_UPS: usize = 4096;
/// Concurrent reconciles of Workspaces. The number is large, because each reconcile waits for an agent, which can be slow. A separate limit
/// applies to concurrent deliveries of sources.
const WORKSPACES: Slots = Slots { total: 96, per_namespace: 32 };
/// Name of the controller in events.
const COMPONENT: &str = "pulumi-controller";
/// DNS domain of the cluster.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Components that all controllers share.
struct Parts {
    client: Client,
    reader: Reader,
    writer: Writer,
    metrics: Metrics,
    events: Events,
    agents: Agents,
    authority: watch::Receiver<Arc<authority::Generations>>,
    store: Store,
    fetcher: Fetcher,
    scope: Scope,
    tasks: TaskTracker,
    git_slots: git::Slots,
}

/// Components that exist in every replica, whether it is the leader or not.
struct Ground {
    client: Client,
    leadership: Leadership,
    metrics: Metrics,
    store: Store,
    fetcher: Fetcher,
    tasks: TaskTracker,
    /// Cancelled when no component emits events anymore.
    last_events: CancellationToken,
}

/// Runs the controllers while this process is the leader, until `end` is cancelled. Returns an error if the leadership is lost: the process
/// must exit and restart, which discards its pending writes.
pub async fn run(config: ManagerConfig, end: CancellationToken) -> anyhow::Result<()> {
    let metrics = Metrics::default();
    let (ready, is_ready) = watch::channel(false);
    let tasks = TaskTracker::new();
    serve_endpoints(&config, &metrics, is_ready, &tasks, &end).await?;
    let client = client::connect(metrics.clone()).await?;
    let (store, fetcher) = artifacts(&config)?;
    let receivers_known = take_webhooks(&config, &client, &metrics, &tasks, &end).await?;
    let subprocess = Subprocess::of_this_binary();
    // This check precedes readiness, so that a rollout keeps the replica that matches the installed definitions.
    tokio::select! {
        () = served_schemas::until_complete(&client, API_TIMEOUT, &subprocess) => {}
        () = end.cancelled() => return Ok(()),
    }
    // A replica that is not the leader must also become ready: during a rollout, the old replica releases its Lease only after the new one
    // is ready.
    tasks.spawn(async move {
        receivers_known.await;
        ready.send_replace(true);
    });
    let (mut elector, leadership) = match &config.leader_election {
        None => (None, Leadership::sole()),
        Some(election) => {
            let lease = (config.runtime_namespace.as_str(), election.lease_name.as_str());
            let identity = Identity::new(&instance(), &std::env::var("POD_UID").unwrap_or_default());
            let (elector, leadership) =
                Elector::new(client.clone(), lease, identity, election.clone(), metrics.clone());
            (Some(elector), leadership)
        }
    };
    if let Some(elector) = &mut elector {
        tokio::select! {
            () = elector.acquire() => tracing::info!(identity = elector.identity(), "became leader"),
            () = end.cancelled() => return Ok(()),
        }
    }
    let last_events = CancellationToken::new();
    let ground = Ground { client, leadership, metrics, store, fetcher, tasks, last_events };
    let Some(elector) = elector else { return lead(&config, ground, None, &end).await };
    let lease = (elector.lease(), elector.identity().to_owned());
    let mut term = Term::begin(elector);
    let led = tokio::select! {
        lost = term.lost() => return Err(lost.into()),
        led = lead(&config, ground, Some(lease), &end) => led,
    };
    term.end(config.leader_election.is_some_and(|election| election.release)).await;
    led
}

/// Returns the name of the pod.
fn instance() -> String {
    std::env::var("HOSTNAME").unwrap_or_default()
}

/// Runs the leader until shutdown.
async fn lead(
    config: &ManagerConfig,
    ground: Ground,
    lease: Option<(Lease, String)>,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let (tasks, last_events) = (ground.tasks.clone(), ground.last_events.clone());
    let parts = tokio::select! {
        parts = build(config, ground, end) => parts?,
        () = end.cancelled() => return Ok(()),
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
        () = Box::pin(run_controllers(config, parts, end)) => {}
        () = late => tracing::warn!("reconciles still in progress after the shutdown timeout; the next leader repeats them"),
    }
    last_events.cancel();
    tasks.close();
    if tokio::time::timeout(TASKS_END, tasks.wait()).await.is_err() {
        tracing::warn!("tasks still running after the shutdown timeout");
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

/// Serves webhooks if enabled. The returned future completes when this replica can receive requests.
async fn take_webhooks(
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
            let settings = receiver::Settings {
                client: client.clone(),
                scope: scope(config),
                metrics: metrics.clone(),
                tasks: tasks.clone(),
                component: COMPONENT,
                instance: instance(),
                limits: server::Limits::default(),
            };
            Some(receiver::start(settings, listener, end))
        }
    };
    Ok(async move {
        if let Some(known) = started {
            known.await;
        }
    })
}

fn scope(config: &ManagerConfig) -> Scope {
    Scope::new(config.watch_namespace.clone(), config.watch_label_selector.clone())
}

/// Opens the artifact store and creates its fetcher.
fn artifacts(config: &ManagerConfig) -> anyhow::Result<(Store, Fetcher)> {
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
    let fetcher = Fetcher::new(settings, store.clone())?;
    Ok((store, fetcher))
}

/// Returns the directory for fetched Git commits that are not packed yet.
fn git_work(config: &ManagerConfig) -> std::path::PathBuf {
    config.storage_path.join("git")
}

async fn build(config: &ManagerConfig, ground: Ground, end: &CancellationToken) -> anyhow::Result<Parts> {
    let Ground { client, leadership, metrics, store, fetcher, tasks, last_events } = ground;
    let reader = Reader::new(client.clone(), API_TIMEOUT);
    let writer = Writer::new(client.clone(), API_TIMEOUT, leadership, metrics.clone());
    let notification_controller = config.events_address.clone().map(|address| NotificationController {
        address,
        client: fetcher.client(),
        retry_policy: RetryPolicy::default(),
    });
    let (events, event_task) =
        Events::with_notifications(writer.clone(), notification_controller, COMPONENT, &instance(), metrics.clone());
    tasks.spawn(event_task.run(last_events));
    let namespace = config.runtime_namespace.clone();
    let secrets = authority::SecretStore { reader: reader.clone(), writer: writer.clone(), namespace };
    let ca_rotator = authority::CaRotator::start(secrets, events.clone(), metrics.clone()).await?;
    let (agents, authority) = (ca_rotator.agents(), ca_rotator.authority());
    tasks.spawn(ca_rotator.run(end.clone()));
    let scope = scope(config);
    let git_slots = git::Slots::default();
    Ok(Parts { client, reader, writer, metrics, events, agents, authority, store, fetcher, scope, tasks, git_slots })
}

async fn run_controllers(config: &ManagerConfig, parts: Parts, end: &CancellationToken) {
    let (updates, updates_writer) = update::updates();
    let (wake_workspace, woken_workspaces) = mpsc::channel::<ObjectRef<Workspace>>(WAKE_UPS);
    let probes = workspace::AgentProbes::new(wake_workspace.clone(), parts.tasks.clone(), end.clone());
    let inputs = workspace::InputWatch::new(wake_workspace.clone());
    let (wake_update, woken_updates) = mpsc::channel::<ObjectRef<Update>>(WAKE_UPS);
    let poll = references::Poll::default();
    let references = References::new(parts.reader.clone(), poll.clone());
    parts.tasks.spawn(poll.run(parts.reader.clone(), wake_update.clone(), wake_workspace.clone(), end.clone()));
    if let Some(selector) = config.watched_inputs.clone() {
        let watch = inputs.clone().run(parts.client.clone(), parts.scope.clone(), selector, end.clone());
        parts.tasks.spawn(watch);
    }
    tokio::join!(
        stacks(config, &parts, updates.clone(), wake_workspace, end.clone()),
        runs(config, &parts, (updates, updates_writer), references.clone(), (wake_update, woken_updates), end.clone()),
        workspaces(config, &parts, (probes, inputs, references), woken_workspaces, end.clone()),
        programs(config, &parts, end.clone()),
        receivers(config, &parts, end.clone()),
    );
}

async fn stacks(
    config: &ManagerConfig,
    parts: &Parts,
    updates: update::Updates,
    wake_workspace: mpsc::Sender<ObjectRef<Workspace>>,
    end: CancellationToken,
) {
    let (known_stacks, store) = stack::stacks();
    let sources = Sources::new(parts.client.clone());
    let (dependents, woken_dependents) = stack::Dependents::new(known_stacks.clone(), config.no_cross_namespace_refs);
    let duplicates = stack::DuplicateStacks::new(dependents.waker(), config.no_cross_namespace_refs);
    let (subprocess, tasks) = (Subprocess::of_this_binary(), parts.tasks.clone());
    let evaluator = stack::Evaluator::new(subprocess, dependents.waker(), tasks, end.clone());
    let (source_watches, woken) = stack::SourceWatches::new(
        parts.client.clone(),
        parts.scope.clone(),
        known_stacks.clone(),
        sources.clone(),
        parts.tasks.clone(),
        end.clone(),
    );
    let (git, followers) = follow_git(config, parts, &end);
    let mut wake_waiting = wake_workspace.clone();
    let context = Arc::new(stack::Context {
        sources,
        source_watches,
        git: git.clone(),
        dependents,
        stack_cache: stack::StackCache::default(),
        mutated_workspaces: stack::MutatedWorkspaces::default(),
        evaluator,
        duplicates: duplicates.clone(),
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        fetcher: parts.fetcher.clone(),
        store: parts.store.clone(),
        events: parts.events.clone(),
        metrics: parts.metrics.clone(),
        caches: CacheSync::default().with(&known_stacks).with(&updates),
        stacks: known_stacks.clone(),
        updates,
        watched: config.watched_inputs.clone(),
        interval_jitter: config.interval_jitter,
        default_service_account: config.default_service_account.clone(),
        scope: parts.scope.clone(),
        no_cross_namespace_refs: config.no_cross_namespace_refs,
        same_revision_kinds: config.same_revision_kinds.iter().map(|kind| parse_kind(kind)).collect(),
        requeue_dependency: config.requeue_dependency,
        wake_workspace,
    });
    let (metrics, slots) = (parts.metrics.clone(), Slots::of(config.concurrent));
    let runner = runner::<Stack>("stack-controller", RECONCILE_TIMEOUT, slots, config, parts, &end);
    let runner = Arc::new(runner.when_gone(move |gone| {
        metrics.stacks(known_stacks.store().len());
        duplicates.forget(gone);
        git.forget(gone);
    }));
    let followers = followers.map(move |(namespace, name)| {
        // Wake the Workspace, because it may wait for the artifact. Dropping the wake-up is safe, because the periodic requeue covers it.
        drop(wake_waiting.try_send(ObjectRef::new(&name).within(&namespace)));
        ObjectRef::new(&name).within(&namespace)
    });
    let woken = futures::stream::select(woken, followers);
    let feeds = stack::Feeds { store, woken, dependents: woken_dependents };
    let (client, ended) = (parts.client.clone(), end.cancelled_owned());
    stack::controller(client, &parts.scope, feeds, runner, context, ended).await;
}

/// Creates the poller of Git repositories, and the stream of the objects that it wakes.
fn follow_git(config: &ManagerConfig, parts: &Parts, end: &CancellationToken) -> (Git, mpsc::Receiver<git::Follower>) {
    let settings = git::Settings {
        work: git_work(config),
        trust: config.git_trust_path.clone(),
        limits: git::Limits::default(),
        artifact_limits: config.artifact_limits.clone(),
        slots: parts.git_slots.clone(),
        subprocess: Subprocess::of_this_binary(),
    };
    let (client, store, tasks) = (parts.client.clone(), parts.store.clone(), parts.tasks.clone());
    Git::new(client, store, settings, tasks, end.clone())
}

async fn runs(
    config: &ManagerConfig,
    parts: &Parts,
    (updates, store): (update::Updates, IndexWriter<Update, update::UpdateGroup>),
    references: References,
    (wake, wakes): (mpsc::Sender<ObjectRef<Update>>, mpsc::Receiver<ObjectRef<Update>>),
    end: CancellationToken,
) {
    let limits = Limits {
        all: config.max_concurrent_runs,
        each_namespace: config.max_concurrent_runs_per_namespace,
        each_node: config.max_concurrent_runs_per_node,
    };
    let run_limiter = RunLimiter::new(limits, parts.metrics.clone());
    let attachments = update::Attachments::new(parts.agents.clone(), wake, parts.tasks.clone(), end.clone());
    let context = Arc::new(update::Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        attachments: attachments.clone(),
        run_limiter: run_limiter.clone(),
        events: parts.events.clone(),
        references,
        metrics: parts.metrics.clone(),
        updates,
        adopted: Arc::new(std::sync::Once::new()),
        timeouts: update::RunTimeouts { default: config.default_run_timeout, maximum: config.max_run_timeout },
    });
    let runner =
        runner::<Update>("update-controller", RECONCILE_TIMEOUT, Slots::of(config.concurrent), config, parts, &end);
    let runner = Arc::new(runner.when_gone(move |(namespace, name)| attachments.forget(namespace, name)));
    let feeds = update::Feeds { store, wakes, places: run_limiter.wakes() };
    let (client, ended) = (parts.client.clone(), end.cancelled_owned());
    update::controller(client, &parts.scope, feeds, runner, context, ended).await;
}

/// Creates the reconcile runner of a controller with the specified slots.
fn runner<K: Resource<DynamicType = ()>>(
    controller: &'static str,
    timeout: Duration,
    slots: Slots,
    config: &ManagerConfig,
    parts: &Parts,
    end: &CancellationToken,
) -> ReconcileRunner {
    parts.metrics.reconciles_at_once(controller, slots.total);
    let (shortest, longest) = config.retry_delays;
    let runner = ReconcileRunner::new::<K>(controller, timeout, parts.metrics.clone());
    let runner = runner.with_slots(slots.total.into(), slots.per_namespace.into(), end.clone());
    runner.with_backoff(Backoff::between(shortest, longest))
}

/// Concurrent reconciles of a kind.
#[derive(Clone, Copy)]
struct Slots {
    total: u16,
    per_namespace: u16,
}

impl Slots {
    /// Limits one namespace to three quarters of the slots.
    fn of(total: u16) -> Self {
        Slots { total, per_namespace: total - total / 4 }
    }
}

async fn workspaces(
    config: &ManagerConfig,
    parts: &Parts,
    (probes, inputs, references): (workspace::AgentProbes, workspace::InputWatch, References),
    wakes: mpsc::Receiver<ObjectRef<Workspace>>,
    end: CancellationToken,
) {
    let (_, workspaces) = reflector::store::<Workspace>();
    // A separate, reduced cache of Updates, which is updated before it wakes a Workspace.
    let (updates, updates_writer) = update::updates();
    let (git, followers) = follow_git(config, parts, &end);
    let context = Arc::new(workspace::Context {
        client: parts.client.clone(),
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        agents: parts.agents.clone(),
        authority: parts.authority.clone(),
        artifacts: parts.store.clone(),
        artifact_limits: config.artifact_limits.clone(),
        fetcher: parts.fetcher.clone(),
        git: git.clone(),
        metrics: parts.metrics.clone(),
        caches: CacheSync::default().with(&updates),
        updates,
        events: parts.events.clone(),
        pods: workspace::PodSettings {
            agent_image: config.agent_image.clone(),
            agent_image_pull_policy: None,
            default_image: config.default_workspace_image.clone(),
            restrictions: workspace::PodRestrictions {
                is_restricted: config.restrict_workspace_pods,
                service_accounts: config.allowed_service_accounts.clone(),
            },
        },
        default_service_account: config.default_service_account.clone(),
        probes,
        inputs: inputs.clone(),
        references,
        memory: workspace::Memory::default(),
    });
    let followers = followers.map(|(namespace, name)| ObjectRef::new(&name).within(&namespace));
    let wakes = futures::stream::select(wakes, followers);
    let watches = workspace::Watches { scope: parts.scope.clone(), workspaces, updates: updates_writer, wakes };
    // A reconcile waits until the agent has received the source and installed its dependencies.
    let timeout = PUT_SOURCE_TIMEOUT + RECONCILE_TIMEOUT;
    let runner = runner::<Workspace>("workspace-controller", timeout, WORKSPACES, config, parts, &end);
    let runner = runner.when_gone(move |gone| {
        inputs.forget(&gone.0, &gone.1);
        git.forget(gone);
    });
    workspace::controller(context, watches, Arc::new(runner), end).await;
}

async fn programs(config: &ManagerConfig, parts: &Parts, end: CancellationToken) {
    let (known, store) = reflector::store::<Program>();
    let context = Arc::new(program::Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        events: parts.events.clone(),
        metrics: parts.metrics.clone(),
        programs: known.clone(),
    });
    let metrics = parts.metrics.clone();
    let runner =
        runner::<Program>("program-controller", RECONCILE_TIMEOUT, Slots::of(config.concurrent), config, parts, &end);
    let runner = Arc::new(runner.when_gone(move |_| metrics.programs(known.len())));
    let (client, ended) = (parts.client.clone(), end.cancelled_owned());
    program::controller(client, &parts.scope, store, runner, context, ended).await;
}

async fn receivers(config: &ManagerConfig, parts: &Parts, end: CancellationToken) {
    let (_, store) = reflector::store::<StackReceiver>();
    let context = Arc::new(stack_receiver::Context {
        reader: parts.reader.clone(),
        writer: parts.writer.clone(),
        events: parts.events.clone(),
        is_served: config.receiver_address.is_some(),
    });
    let runner = runner::<StackReceiver>(
        "stackreceiver-controller",
        RECONCILE_TIMEOUT,
        Slots::of(config.concurrent),
        config,
        parts,
        &end,
    );
    let (client, ended) = (parts.client.clone(), end.cancelled_owned());
    stack_receiver::controller(client, &parts.scope, store, Arc::new(runner), context, ended).await;
}
