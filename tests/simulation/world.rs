//! A cluster with two replicas of the controller, agents, a state backend and a provider, in one process on virtual time.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine;
use jiff::Timestamp;
use kube_sim::nodes::{NodeStep, Nodes};
use kube_sim::{Delivery, GroupResource, Key, Kinds, Options, Server};
use pulumi_controller::artifact::blocking;
use pulumi_controller::cli::{CommandLine, Role};
use pulumi_controller::config::ManagerConfig;
use pulumi_controller::manager::Replica;
use pulumi_controller::telemetry::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent::Agents;
use super::backend::Backend;
use super::clock;
use super::faults::{ApiFaults, Disturbance, Fault, Faults, Outage};
use super::oracles::{self, OnlyTheLeaderWrites};
use super::scenarios::condition;
use super::user;

/// Namespace of the Stacks.
pub const NAMESPACE: &str = "team";
/// Number of runs at the same time, which is less than the number of Stacks in some scenarios.
pub const RUN_LIMIT: usize = 2;
/// Number of replicas of the controller.
pub const REPLICAS: usize = 2;
/// Time after which the kubelet starts a crashed controller again.
const RESTART: Duration = Duration::from_secs(1);
/// Time that the steps of the kubelet, the StatefulSet controller and the garbage collector need.
const LATENCY: Duration = Duration::from_millis(200);
/// Interval at which [`World::until`] checks its condition.
const POLL: Duration = Duration::from_millis(500);
/// Time without faults after which each Stack must be Ready, or Stalled with an instruction.
const LIMIT: Duration = Duration::from_secs(600);
/// Name of the only node.
const NODE: &str = "node";

pub struct World {
    pub server: Server,
    pub backend: Backend,
    pub faults: Faults,
    /// Virtual time at which all faults have ended.
    healed: Duration,
    background: Vec<JoinHandle<()>>,
}

impl World {
    /// Starts a cluster with one node and the replicas of the controller.
    pub fn start(seed: u64, planned: &[Fault], latency: Option<fastrand::Rng>) -> World {
        blocking::run_inline();
        let start = Timestamp::from_second(clock::START).expect("a timestamp");
        let server = Server::with_kinds(Options::new(seed, start), kinds());
        for namespace in ["flux-system", NAMESPACE] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            server.create(&namespace).expect("a namespace");
        }
        let faults = Faults::new(planned, latency);
        server.intercept(OnlyTheLeaderWrites::new(&server, &faults));
        server.intercept(ApiFaults::new(&faults));
        let requests = faults.clone();
        server.trace(move |line| requests.trace_request(line));
        let backend = Backend::default();
        backend.seed(seed);
        oracles::observe(&server, &backend, &faults);
        let agents = Agents::new(&server, &backend);
        let nodes = Nodes::new(&server);
        nodes.add_node(NODE).expect("a node");
        let (components, grace) = (nodes.clone(), agents.clone());
        let latency = move |step: &NodeStep| grace.latency(step).unwrap_or(LATENCY);
        let mut background = vec![tokio::spawn(async move { components.run(latency).await })];
        background.push(tokio::spawn(run_controllers(server.clone())));
        let user = user::resolve_interrupted_runs(server.clone(), backend.clone(), faults.clone());
        background.push(tokio::spawn(user));
        let restart: Vec<watch::Sender<Duration>> = (0..REPLICAS).map(|_| watch::channel(RESTART).0).collect();
        for (number, restart) in restart.iter().enumerate() {
            let name = format!("controller-{number}");
            background.push(tokio::spawn(run_replica(
                name,
                server.clone(),
                agents.clone(),
                faults.clone(),
                restart.subscribe(),
            )));
        }
        let disturber =
            Disturber { server: server.clone(), backend: backend.clone(), nodes, faults: faults.clone(), restart };
        let mut healed = Duration::ZERO;
        for fault in planned {
            match fault {
                Fault::Step(..) => {}
                Fault::At(millis, disturbance) => {
                    let at = Duration::from_millis(*millis);
                    healed = healed.max(at + disturbance.duration());
                    background.push(tokio::spawn(disturber.clone().disturb(at, disturbance.clone())));
                }
            }
        }
        World { server, backend, faults, healed, background }
    }

    /// Creates an object as a user.
    pub fn create(&self, object: &Value) {
        self.faults.trace(&format!("user creates {} {}", object["kind"], object["metadata"]["name"]));
        self.server.create(object).unwrap_or_else(|status| panic!("{object:#}: {status:?}"));
    }

    /// Changes an object as a user.
    pub fn edit(&self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.faults.trace(&format!("user changes {kind} {name}"));
        let key = Key::new(GroupResource::new("pulumi.com", kind), Some(NAMESPACE), name);
        self.server.edit(&key, change).unwrap_or_else(|status| panic!("{kind} {name}: {status:?}"));
    }

    /// Changes a value of a Secret as a user.
    pub fn edit_secret(&self, name: &str, key: &str, value: &str) {
        self.faults.trace(&format!("user changes Secret {name}"));
        let key_of_secret = Key::new(GroupResource::new("", "secrets"), Some(NAMESPACE), name);
        let edited = self.server.edit(&key_of_secret, |secret| {
            secret["data"][key] = base64::engine::general_purpose::STANDARD.encode(value).into();
        });
        edited.unwrap_or_else(|status| panic!("Secret {name}: {status:?}"));
    }

    /// Returns whether an Update is complete.
    pub fn is_complete(&self, update: &str) -> bool {
        let update = self.server.get(&GroupResource::new("auto.pulumi.com", "updates"), Some(NAMESPACE), update);
        update.is_some_and(|update| condition(&update, "Complete").is_some_and(|complete| complete["status"] == "True"))
    }

    /// Returns the pods of all Workspaces.
    pub fn pods(&self) -> Vec<Arc<Value>> {
        self.server.list(&GroupResource::new("", "pods"), Some(NAMESPACE))
    }

    /// Returns a Stack.
    pub fn stack(&self, name: &str) -> Option<Arc<Value>> {
        self.server.get(&GroupResource::new("pulumi.com", "stacks"), Some(NAMESPACE), name)
    }

    /// Deletes a Stack as a user.
    pub fn delete_stack(&self, name: &str) {
        self.faults.trace(&format!("user deletes Stack {name}"));
        let key = Key::new(GroupResource::new("pulumi.com", "stacks"), Some(NAMESPACE), name);
        self.server.delete(&key).unwrap_or_else(|status| panic!("{status:?}"));
    }

    /// Approves the plan of an Update as a user, unless the user has approved it.
    pub fn approve(&self, stack: &str, (update, digest): &(String, String), user: &str) {
        let name = format!("{update}-{user}");
        let approval = json!({
            "apiVersion": "pulumi.com/v1alpha1", "kind": "Approval", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"stackRef": {"name": stack}, "planDigest": digest, "decision": "Approve", "by": user},
        });
        if self.server.get(&GroupResource::new("pulumi.com", "approvals"), Some(NAMESPACE), &name).is_none() {
            self.create(&approval);
        }
    }

    /// Decides about the last run of a Stack as a user.
    pub fn resolve(&self, stack: &str, decision: &str) {
        self.faults.trace(&format!("user resolves Stack {stack} with {decision}"));
        self.edit("stacks", stack, |stack| {
            let update = stack["status"]["lastUpdate"]["name"].as_str().unwrap_or_default();
            stack["metadata"]["annotations"]["pulumi.com/resolve"] = format!("{update}={decision}").into();
        });
    }

    /// Waits until the condition is met. Returns whether it is met within the limit after the end of all faults.
    pub async fn until(&self, condition: impl Fn(&World) -> bool) -> bool {
        let limit = self.healed.saturating_sub(clock::elapsed()) + LIMIT;
        let until = async {
            while !condition(self) {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(limit, until).await.is_ok()
    }

    /// Waits until all faults have ended.
    pub async fn until_healed(&self) {
        tokio::time::sleep(self.healed.saturating_sub(clock::elapsed())).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for task in &self.background {
            task.abort();
        }
    }
}

/// Returns the built-in kinds and the kinds of the controller. All worlds share the parsed definitions.
pub fn kinds() -> Kinds {
    static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
        let mut kinds = Kinds::builtin().expect("the built-in kinds");
        let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/config/crd");
        for definition in std::fs::read_dir(definitions).expect("the definitions") {
            let path = definition.expect("a definition").path();
            let text = std::fs::read_to_string(&path).expect("a definition");
            if text.contains("kind: CustomResourceDefinition") {
                kinds.register(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
        }
        kinds
    });
    KINDS.clone()
}

/// Runs the garbage collector and the namespace controller.
async fn run_controllers(server: Server) {
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    server.observe(move |_| notify.notify_one());
    loop {
        changed.notified().await;
        tokio::time::sleep(LATENCY).await;
        server.run_controllers();
    }
}

/// Runs a replica of the controller, and starts it again after a crash. Each process has its own client, because requests
/// of a crashed process no longer arrive.
async fn run_replica(name: String, server: Server, agents: Agents, faults: Faults, restart: watch::Receiver<Duration>) {
    for number in 1.. {
        let process = format!("{name}.{number}");
        faults.trace(&format!("{process} starts"));
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        let storage = tempfile::tempdir().expect("a temporary directory");
        let config = config(&storage);
        let mut replica =
            Replica::new(&config, server.client(&process), Metrics::default(), tasks, &end).expect("a replica");
        (replica.name, replica.uid) = (name.clone(), format!("{name}-pod"));
        replica.dial = Some(agents.dial(&process, &faults));
        let stop = end.clone();
        let running = tokio::spawn(async move { replica.run(&config, &end).await });
        tokio::select! {
            biased;
            () = faults.until_crashed(&process) => {}
            ended = running => faults.trace(&format!("{process} has ended: {ended:?}")),
        }
        // The tasks of the process have no effect any more. The token ends them.
        faults.end(&process);
        stop.cancel();
        let delay = *restart.borrow();
        tokio::time::sleep(delay).await;
    }
}

fn config(storage: &tempfile::TempDir) -> ManagerConfig {
    use clap::Parser;
    let storage = format!("--storage-path={}", storage.path().display());
    // Fewer renewals of the Lease make an hour of rest cheaper.
    let flags = [
        "pulumi-controller",
        "--runtime-namespace=flux-system",
        "--agent-image=agent:v1",
        "--enable-leader-election",
        "--leader-election-lease-duration=120s",
        "--leader-election-renew-deadline=80s",
        "--leader-election-retry-period=30s",
        &format!("--max-concurrent-runs={RUN_LIMIT}"),
    ];
    let line = CommandLine::try_parse_from(flags.into_iter().chain([storage.as_str()])).expect("valid flags");
    match line.into_role() {
        Role::Manager(flags) => ManagerConfig::from_flags(flags).expect("valid flags"),
        other => panic!("{other:?}"),
    }
}

/// Executes the disturbances.
#[derive(Clone)]
struct Disturber {
    server: Server,
    backend: Backend,
    nodes: Nodes,
    faults: Faults,
    /// Time after which each replica starts again.
    restart: Vec<watch::Sender<Duration>>,
}

impl Disturber {
    #[expect(clippy::too_many_lines, reason = "one arm for each disturbance")]
    async fn disturb(self, at: Duration, disturbance: Disturbance) {
        tokio::time::sleep(at.saturating_sub(clock::elapsed())).await;
        self.faults.trace(&format!("!! {disturbance:?}"));
        let millis = Duration::from_millis;
        let name = |replica: usize| format!("controller-{replica}");
        match disturbance {
            Disturbance::Crash { replica, restart } => {
                if let Some(sender) = self.restart.get(replica) {
                    sender.send_replace(millis(restart));
                }
                self.faults.end(&self.process(replica));
            }
            Disturbance::PartitionAgents { replica, duration } => {
                self.faults.begin_outage(Outage::Agents, &name(replica), millis(duration));
            }
            Disturbance::PartitionApi { replica, duration } => {
                self.faults.begin_outage(Outage::Api, &name(replica), millis(duration));
                self.server.break_watches(&self.process(replica), None);
            }
            Disturbance::SlowApi { replica, duration, by } => {
                self.faults.begin_slow(&name(replica), millis(duration), millis(by));
            }
            Disturbance::LeaseOutage { replica, duration } => {
                self.faults.begin_outage(Outage::Lease, &name(replica), millis(duration));
            }
            Disturbance::DelayWatch { replica, resource, duration, by } => {
                self.deliver(replica, &resource, Delivery::Delayed(millis(by)), millis(duration)).await;
            }
            Disturbance::CollapseWatch { replica, resource, duration } => {
                self.deliver(replica, &resource, Delivery::Collapsed, millis(duration)).await;
            }
            Disturbance::ExpireWatches { replica } => self.server.expire_watches(&self.process(replica), None),
            Disturbance::Freeze { replica, duration } => {
                // A process that starts meanwhile sees the frozen state too.
                let revision = self.server.revision();
                let processes = self.processes(replica);
                processes.iter().for_each(|process| self.server.freeze(process, revision));
                tokio::time::sleep(millis(duration)).await;
                processes.iter().for_each(|process| self.server.unfreeze(process));
            }
            Disturbance::EvictPod => {
                if let Some(pod) = self.pod() {
                    let _ = self.nodes.evict(&pod, "The node was low on resource: memory.");
                }
            }
            Disturbance::ExitContainer => {
                if let Some(pod) = self.pod() {
                    let _ = self.nodes.exit_container(&pod, "pulumi", 137, "OOMKilled");
                }
            }
            Disturbance::LoseNode { duration } => {
                let _ = self.nodes.lose_node(NODE);
                tokio::time::sleep(millis(duration)).await;
                let _ = self.nodes.recover_node(NODE);
            }
            Disturbance::BackendOutage { duration } => {
                self.backend.set_down(true);
                tokio::time::sleep(millis(duration)).await;
                self.backend.set_down(false);
            }
            Disturbance::FailOperation => self.backend.fail_next_operation(),
        }
    }

    async fn deliver(&self, replica: usize, resource: &str, delivery: Delivery, duration: Duration) {
        let (group, resource) = resource.split_once('/').unwrap_or(("", resource));
        let resource = GroupResource::new(group, resource);
        let processes = self.processes(replica);
        for process in &processes {
            self.server.set_delivery(process, Some(resource.clone()), delivery);
        }
        tokio::time::sleep(duration).await;
        for process in &processes {
            self.server.set_delivery(process, Some(resource.clone()), Delivery::Immediate);
        }
    }

    /// Returns the name of the running process of a replica.
    fn process(&self, replica: usize) -> String {
        let processes = self.processes(replica);
        processes.iter().find(|process| !self.faults.is_crashed(process)).cloned().unwrap_or_default()
    }

    /// Returns the names of the current and of the next processes of a replica.
    fn processes(&self, replica: usize) -> Vec<String> {
        let all = (1..100).map(|number| format!("controller-{replica}.{number}"));
        all.filter(|process| !self.faults.is_crashed(process)).take(5).collect()
    }

    /// Returns the first workspace pod that runs.
    fn pod(&self) -> Option<Key> {
        let pods = self.server.list(&GroupResource::new("", "pods"), Some(NAMESPACE));
        let pod = pods.iter().find(|pod| pod["status"]["phase"] == "Running")?;
        let name = pod["metadata"]["name"].as_str()?;
        Some(Key::new(GroupResource::new("", "pods"), Some(NAMESPACE), name))
    }
}
