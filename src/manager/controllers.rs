//! Connects the controllers with their shared components, and starts the controllers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use futures::{Stream, StreamExt};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::{Program, Stack, StackReceiver};
use crate::artifact::{Fetcher, Store};
use crate::config::{ClusterPolicyPack, ManagerConfig, RECONCILE_TIMEOUT};
use crate::controller::namespaces::{NamespaceWatch, Namespaces};
use crate::controller::references::{self, References};
use crate::controller::{authority, program, receiver, stack, update, workspace};
use crate::history::HistoryStore;
use crate::manager::namespace_requeue::{objects_in, objects_of_namespace, runs_of_namespace};
use crate::rpc::client::{Agents, PUT_SOURCE_TIMEOUT};
use crate::runtime::backoff::Backoff;
use crate::runtime::controller::Start;
use crate::runtime::critical_tasks::CriticalTasks;
use crate::runtime::events::Events;
use crate::runtime::first_objects::FirstObjects;
use crate::runtime::index::{CacheSync, IndexWriter};
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::ReconcileRunner;
use crate::runtime::requeue::{self, Requeue, Requeues};
use crate::runtime::run_limiter::Limits;
use crate::runtime::scope::Scope;
use crate::runtime::writes::Writer;
use crate::source::flux::{Reference, Sources, parse_kind};
use crate::source::git::{self, Git};
use crate::subprocess::Subprocess;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// Limits for concurrent Workspace reconciliations. The limits are high, because a reconciliation waits for an agent,
/// which can be slow. A separate limit applies to concurrent source deliveries.
const WORKSPACES: Slots = Slots { total: 96, per_namespace: 32 };

/// Components that all controllers share.
pub(super) struct Parts {
    pub(super) client: Client,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) metrics: Metrics,
    pub(super) events: Events,
    pub(super) traces: Traces,
    pub(super) agents: Agents,
    pub(super) authority: watch::Receiver<Arc<authority::Generations>>,
    pub(super) store: Store,
    pub(super) fetcher: Fetcher,
    pub(super) scope: Scope,
    pub(super) tasks: TaskTracker,
    pub(super) critical_tasks: CriticalTasks,
    /// Run history, if enabled.
    pub(super) history: Option<HistoryStore>,
    pub(super) git_slots: git::Slots,
    /// Directory to which the controller fetches Git commits before it packs them.
    pub(super) git_work: PathBuf,
    /// Token that stops the controllers when it is canceled.
    pub(super) end: CancellationToken,
}

/// Limits for a kind's concurrent reconciliations.
#[derive(Clone, Copy)]
struct Slots {
    total: u16,
    per_namespace: u16,
}

impl Slots {
    /// Returns slots of which a single namespace can use at most three quarters.
    fn of(total: u16) -> Self {
        Slots { total, per_namespace: total - total / 4 }
    }
}

/// Runs all controllers until shutdown.
pub(super) async fn run(config: &ManagerConfig, parts: &Parts) {
    let (updates, updates_writer) = update::updates();
    let (requeue_workspace, requeued_workspaces) = requeue::queue::<Workspace>();
    let (agents, tasks, end) = (parts.agents.clone(), parts.tasks.clone(), parts.end.clone());
    let probes = workspace::AgentProbes::new(requeue_workspace.clone(), agents, tasks, end);
    let inputs = workspace::InputWatch::new(requeue_workspace.clone());
    let (requeue_update, requeued_updates) = requeue::queue::<Update>();
    let poll = references::Poll::default();
    let references = References::new(parts.reader.clone(), poll.clone());
    parts.critical_tasks.spawn(poll.run(
        parts.reader.clone(),
        requeue_update.clone(),
        requeue_workspace.clone(),
        parts.end.clone(),
    ));
    if let Some(selector) = config.watched_inputs.clone() {
        let watch = inputs.clone().run(parts.client.clone(), parts.scope.clone(), selector, parts.end.clone());
        parts.critical_tasks.spawn(watch);
    }
    let (workspaces, workspaces_writer) = reflector::store::<Workspace>();
    let requeues = (requeue_update.clone(), requeue_workspace.clone());
    let (namespaces, namespace_watch) = namespaces(config, parts, (&updates, workspaces), requeues.clone());
    let first_workspaces = FirstObjects::default();
    let wiring = Wiring { config, parts };
    let run_queue = wiring.run_queue();
    let interruptions = update::Interruptions::new(requeue_update.clone());
    let nodes = interruptions.clone().watch_nodes(updates.clone(), parts.reader.clone(), parts.end.clone());
    parts.critical_tasks.spawn(nodes);
    tokio::join!(
        wiring.stacks(
            (updates.clone(), run_queue.clone()),
            (requeue_workspace, first_workspaces.clone()),
            (namespaces.clone(), namespace_watch)
        ),
        wiring.updates(
            (updates.clone(), updates_writer),
            (run_queue, references.clone()),
            (namespaces.clone(), interruptions.clone()),
            (requeues, requeued_updates)
        ),
        wiring.workspaces(
            (workspaces_writer, first_workspaces, updates),
            (probes, inputs, references),
            (namespaces, interruptions),
            (requeue_update, requeued_workspaces)
        ),
        wiring.programs(),
        wiring.receivers(),
    );
}

/// Creates the reader for namespace settings and, if the controller watches all namespaces, the namespace watch. When
/// the settings of a namespace change, the watch requeues the namespace's Updates that have not started. When a
/// namespace is deleted, the watch requeues the namespace's Workspaces.
fn namespaces(
    config: &ManagerConfig,
    parts: &Parts,
    (updates, workspaces): (&update::Updates, reflector::Store<Workspace>),
    (requeue_update, requeue_workspace): (Requeue<Update>, Requeue<Workspace>),
) -> (Namespaces, Option<NamespaceWatch>) {
    let (reader, is_paused) = (parts.reader.clone(), config.is_paused);
    if config.watch_namespace.is_some() {
        return (Namespaces::without_watch(reader, is_paused), None);
    }
    let requeue_runs = runs_of_namespace(updates.store().clone(), requeue_update);
    let requeue_workspaces = objects_of_namespace(workspaces, requeue_workspace);
    let (namespaces, watch) = Namespaces::with_watch(reader, is_paused, requeue_runs, requeue_workspaces);
    (namespaces, Some(watch))
}

/// Returns a stream of the Stacks that follow Git repositories. For each Stack, the stream also requeues the Workspace
/// with the same name, because this Workspace may wait for the artifact.
fn stacks_of(
    followers: mpsc::Receiver<git::Follower>,
    requeue: Requeue<Workspace>,
) -> impl Stream<Item = ObjectRef<Stack>> + Send {
    followers.map(move |(namespace, name)| {
        requeue.request(ObjectRef::new(&name).within(&namespace));
        ObjectRef::new(&name).within(&namespace)
    })
}

/// Converts a policy pack from the flags to the type that the Stack controller uses.
fn cluster_pack(pack: &ClusterPolicyPack) -> stack::ClusterPack {
    let (name, namespace) = (pack.name.clone(), pack.namespace.clone());
    let (kind, directory) = (parse_kind(&pack.kind), pack.directory.clone());
    let source = Reference { kind, name: pack.source.clone(), namespace: Some(namespace.clone()), directory };
    stack::ClusterPack { name, namespace, source }
}

/// Settings and components from which the manager builds the controllers.
#[derive(Clone, Copy)]
struct Wiring<'a> {
    config: &'a ManagerConfig,
    parts: &'a Parts,
}

impl Wiring<'_> {
    /// Creates the reconcile runner of a controller.
    fn runner<K>(&self, controller: &'static str, timeout: Duration, slots: Slots) -> ReconcileRunner
    where
        K: Resource<DynamicType = ()>,
    {
        let metrics = &self.parts.metrics;
        metrics.reconciles().set_max_concurrent(controller, slots.total);
        let (shortest, longest) = self.config.retry_delays;
        let runner = ReconcileRunner::new::<K>(controller, timeout, metrics.clone());
        let runner = runner.with_slots(slots.total.into(), slots.per_namespace.into());
        runner.with_backoff(Backoff::between(shortest, longest))
    }

    /// Creates the reconcile runner of a controller with the default timeout and slots.
    fn default_runner<K: Resource<DynamicType = ()>>(&self, controller: &'static str) -> ReconcileRunner {
        self.runner::<K>(controller, RECONCILE_TIMEOUT, Slots::of(self.config.concurrent))
    }

    fn start<S>(&self, store: S, runner: ReconcileRunner) -> Start<S> {
        let Parts { client, reader, writer, events, scope, end, .. } = self.parts;
        let (client, reader, writer, events) = (client.clone(), reader.clone(), writer.clone(), events.clone());
        Start {
            client,
            reader,
            writer,
            events,
            scope: scope.clone(),
            store,
            runner: Arc::new(runner),
            end: end.clone(),
        }
    }

    fn run_queue(&self) -> update::RunQueue {
        let config = self.config;
        let limits = Limits {
            all: config.max_concurrent_runs,
            each_namespace: config.max_concurrent_runs_per_namespace,
            each_node: config.max_concurrent_runs_per_node,
        };
        update::RunQueue::new(limits, config.concurrency_groups.clone(), self.parts.metrics.clone())
    }

    /// Creates the Git repository poller, and the stream of objects that the poller enqueues.
    fn follow_git(&self) -> (Git, mpsc::Receiver<git::Follower>) {
        let parts = self.parts;
        let settings = git::Settings {
            work: parts.git_work.clone(),
            trust: self.config.git_trust_path.clone(),
            limits: git::Limits::default(),
            artifact_limits: self.config.artifact_limits.clone(),
            slots: parts.git_slots.clone(),
            subprocess: Subprocess::of_this_binary(),
        };
        Git::new(parts.client.clone(), parts.store.clone(), settings, parts.tasks.clone(), parts.end.clone())
    }

    /// Creates the source watches, and the stream of Stacks that the watches enqueue.
    fn source_watches(
        &self,
        stacks: &stack::Stacks,
        sources: &Sources,
    ) -> (stack::SourceWatches, impl Stream<Item = ObjectRef<Stack>> + Send + use<>) {
        let Parts { client, scope, critical_tasks, end, .. } = self.parts;
        let (stacks, sources) = (stacks.clone(), sources.clone());
        stack::SourceWatches::new(client.clone(), scope.clone(), stacks, sources, critical_tasks.clone(), end.clone())
    }

    /// Starts the namespace watch if the controller watches all namespaces.
    fn watch_namespaces(
        &self,
        watch: Option<NamespaceWatch>,
        stacks: reflector::Store<Stack>,
        requeue: Requeue<Stack>,
    ) {
        let Parts { client, critical_tasks, end, .. } = self.parts;
        let stacks_of = move |namespace: &str| objects_in(&stacks, namespace);
        if let Some(watch) = watch {
            critical_tasks.spawn(watch.run(client.clone(), stacks_of, requeue, end.clone()));
        }
    }

    /// Creates the reconcile runner of the Stack controller, which removes the state of deleted Stacks.
    fn stack_runner(
        &self,
        stacks: stack::Stacks,
        (duplicates, destroy_limit): (stack::DuplicateStacks, stack::DestroyLimit),
        git: Git,
    ) -> ReconcileRunner {
        let metrics = self.parts.metrics.clone();
        self.default_runner::<Stack>("stack-controller").on_deleted(move |gone| {
            metrics.set_stack_count(stacks.store().len());
            // A new Stack with the same name has already replaced the entries of the deleted Stack.
            if stacks.store().get(&ObjectRef::new(&gone.1).within(&gone.0)).is_none() {
                duplicates.forget(gone);
                destroy_limit.end(gone);
            }
            git.forget(gone);
        })
    }

    async fn stacks(
        self,
        (updates, run_queue): (update::Updates, update::RunQueue),
        (requeue_workspace, first_workspaces): (Requeue<Workspace>, FirstObjects<Workspace>),
        (namespaces, namespace_watch): (Namespaces, Option<NamespaceWatch>),
    ) {
        let (config, parts) = (self.config, self.parts);
        let (known_stacks, store) = stack::stacks();
        let sources = Sources::new(parts.client.clone());
        let no_cross_namespace_refs = config.no_cross_namespace_refs;
        let (dependents, requeued_dependents) = stack::Dependents::new(known_stacks.clone(), no_cross_namespace_refs);
        let duplicates = stack::DuplicateStacks::new(dependents.requeue(), no_cross_namespace_refs);
        let (tasks, end) = (parts.tasks.clone(), parts.end.clone());
        let evaluator = stack::Evaluator::new(Subprocess::of_this_binary(), dependents.requeue(), tasks, end);
        let (source_watches, requeued) = self.source_watches(&known_stacks, &sources);
        let (git, followers) = self.follow_git();
        let requeue_waiting = requeue_workspace.clone();
        let (known_approvals, approvals) = stack::approvals();
        let destroy_limit = stack::DestroyLimit::new(config.max_destroys);
        self.watch_namespaces(namespace_watch, known_stacks.store().clone(), dependents.requeue());
        let context = Arc::new(stack::Context {
            sources,
            source_watches,
            git: git.clone(),
            dependents,
            stack_cache: stack::StackCache::default(),
            mutated_workspaces: stack::MutatedWorkspaces::default(),
            first_workspaces,
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
            run_queue,
            approvals: known_approvals,
            namespaces,
            destroy_limit: destroy_limit.clone(),
            watched: config.watched_inputs.clone(),
            interval_jitter: config.interval_jitter,
            default_service_account: config.default_service_account.clone(),
            scope: parts.scope.clone(),
            no_cross_namespace_refs,
            cluster_policy_packs: config.policy_packs.iter().map(cluster_pack).collect(),
            same_revision_kinds: config.same_revision_kinds.iter().map(|kind| parse_kind(kind)).collect(),
            requeue_dependency: config.requeue_dependency,
            requeue_workspace,
            arrivals: stack::Arrivals::new(parts.traces.is_enabled()),
        });
        let runner = self.stack_runner(known_stacks, (duplicates, destroy_limit), git);
        let requeued = futures::stream::select(requeued, stacks_of(followers, requeue_waiting));
        let feeds = stack::Feeds { approvals, requeued, dependents: requeued_dependents };
        Box::pin(stack::controller(self.start(store, runner), feeds, context)).await;
    }

    async fn updates(
        self,
        (updates, store): (update::Updates, IndexWriter<Update, update::UpdateGroup>),
        (run_queue, references): (update::RunQueue, References),
        (namespaces, interruptions): (Namespaces, update::Interruptions),
        ((requeue, requeue_workspace), requeues): ((Requeue<Update>, Requeue<Workspace>), Requeues<Update>),
    ) {
        let (config, parts) = (self.config, self.parts);
        let (tasks, end) = (parts.tasks.clone(), parts.end.clone());
        let history = parts.history.clone().map(|store| {
            let (agents, metrics) = (parts.agents.clone(), parts.metrics.clone());
            update::HistoryWriter::new(store, agents, requeue.clone(), tasks.clone(), end.clone(), metrics)
        });
        let cli_endpoint = config.traces.as_ref().and_then(|traces| traces.workspace_endpoint.as_deref());
        let traces = update::RunTraces::new(parts.traces.clone(), cli_endpoint);
        let mut requeue_waiting = update::requeue_after_run(updates.clone(), requeue.clone());
        let mut requeue_workspace = workspace::run_changes(requeue_workspace);
        let mut withdraw_deleted = update::withdraw_deleted(updates.clone(), run_queue.run_limiter.clone());
        let on_event = move |event: &Event<Update>| {
            withdraw_deleted(event);
            requeue_waiting(event);
            requeue_workspace(event);
        };
        let attachments = update::Attachments::new(parts.agents.clone(), requeue, tasks, end);
        let attachments = attachments.with_steps(traces.is_enabled());
        let context = Arc::new(update::Context {
            reader: parts.reader.clone(),
            writer: parts.writer.clone(),
            attachments: attachments.clone(),
            interruptions,
            history,
            stored_secrets: update::StoredSecrets::default(),
            run_limiter: run_queue.run_limiter.clone(),
            events: parts.events.clone(),
            references,
            namespaces,
            concurrency_groups: run_queue.concurrency_groups,
            metrics: parts.metrics.clone(),
            updates,
            adopted: Arc::default(),
            timeouts: update::RunTimeouts { default: config.default_run_timeout, maximum: config.max_run_timeout },
            eviction_protection: config.eviction_protection,
            cluster_name: config.cluster_name.as_str().into(),
            traces,
        });
        let runner = self.default_runner::<Update>("update-controller");
        // Open runs have separate slots.
        parts.metrics.reconciles().set_max_concurrent("update-controller", config.concurrent.saturating_mul(2));
        let runner = runner.on_deleted(move |(namespace, name)| attachments.forget(namespace, name));
        let feeds = update::Feeds { requeues, slots: run_queue.run_limiter.requeues(), on_event };
        Box::pin(update::controller(self.start(store, runner), feeds, context)).await;
    }

    /// Creates the pools of idle pods, and starts their maintenance if pools are enabled.
    fn pool(&self, namespaces: Namespaces) -> workspace::Pool {
        let Parts { client, scope, reader, writer, authority, critical_tasks, end, .. } = self.parts;
        let (pool, cache) = workspace::Pool::new(self.config.max_idle_pods);
        if pool.is_enabled() {
            let parts = workspace::MaintenanceParts {
                client: client.clone(),
                scope: scope.clone(),
                reader: reader.clone(),
                writer: writer.clone(),
                authority: authority.clone(),
                namespaces,
            };
            critical_tasks.spawn(workspace::Maintenance::new(pool.clone(), parts).run(cache, end.clone()));
        }
        pool
    }

    async fn workspaces(
        self,
        (store, first_workspaces, updates): (
            reflector::store::Writer<Workspace>,
            FirstObjects<Workspace>,
            update::Updates,
        ),
        (probes, inputs, references): (workspace::AgentProbes, workspace::InputWatch, References),
        (namespaces, interruptions): (Namespaces, update::Interruptions),
        (requeue_update, requeues): (Requeue<Update>, Requeues<Workspace>),
    ) {
        let (config, parts) = (self.config, self.parts);
        let (pool, polls) = (self.pool(namespaces.clone()), workspace::Polls::default());
        let on_event = update::requeue_of_workspace(updates.clone(), requeue_update);
        let (git, followers) = self.follow_git();
        let context = Arc::new(workspace::Context {
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
                default_access_token_secret: config.default_access_token_secret.clone(),
                assigns_user: config.assign_workspace_user,
                eviction_protection: config.eviction_protection,
                restrictions: workspace::PodRestrictions {
                    is_restricted: config.restrict_workspace_pods,
                    service_accounts: config.allowed_service_accounts.clone(),
                },
                storage: config.storage.clone(),
            },
            default_service_account: config.default_service_account.clone(),
            default_idle_after: config.default_workspace_idle_after,
            watched: config.watched_inputs.clone(),
            probes,
            inputs: inputs.clone(),
            polls: polls.clone(),
            references,
            namespaces,
            pool: pool.clone(),
            first_workspaces,
            memory: workspace::Memory::default(),
        });
        let followers = followers.map(|(namespace, name)| ObjectRef::new(&name).within(&namespace));
        let requeues = futures::stream::select(requeues, followers);
        let on_pod = move |pod: &_| interruptions.observe_pod(pod);
        let feeds = workspace::Feeds { requeues, on_event, on_pod };
        // A reconciliation waits until the agent has received the source and installed its dependencies.
        let timeout = PUT_SOURCE_TIMEOUT + RECONCILE_TIMEOUT;
        let known = context.clone();
        let runner = self.runner::<Workspace>("workspace-controller", timeout, WORKSPACES).on_deleted(move |gone| {
            known.memory.forget_workspace(&gone.0, &gone.1);
            inputs.forget(&gone.0, &gone.1);
            polls.forget(&gone.0, &gone.1);
            pool.withdraw(&gone.0, &gone.1);
            git.forget(gone);
        });
        Box::pin(workspace::controller(self.start(store, runner), feeds, context)).await;
    }

    async fn programs(self) {
        let parts = self.parts;
        let (known, store) = reflector::store::<Program>();
        let context = Arc::new(program::Context {
            reader: parts.reader.clone(),
            writer: parts.writer.clone(),
            events: parts.events.clone(),
            metrics: parts.metrics.clone(),
            programs: known.clone(),
        });
        let metrics = parts.metrics.clone();
        let runner = self.default_runner::<Program>("program-controller");
        let runner = runner.on_deleted(move |_| metrics.set_program_count(known.len()));
        program::controller(self.start(store, runner), context).await;
    }

    async fn receivers(self) {
        let parts = self.parts;
        let (_, store) = reflector::store::<StackReceiver>();
        let context = Arc::new(receiver::Context {
            reader: parts.reader.clone(),
            writer: parts.writer.clone(),
            events: parts.events.clone(),
            is_served: self.config.receiver_address.is_some(),
        });
        let runner = self.default_runner::<StackReceiver>("stackreceiver-controller");
        receiver::controller(self.start(store, runner), context).await;
    }
}
