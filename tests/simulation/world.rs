//! A cluster with the controller, agents, a state backend and a provider, in one process on virtual time.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use jiff::Timestamp;
use kube_sim::nodes::Nodes;
use kube_sim::{GroupResource, Key, Kinds, Options, Server};
use pulumi_controller::artifact::blocking;
use pulumi_controller::cli::{CommandLine, Role};
use pulumi_controller::config::ManagerConfig;
use pulumi_controller::manager::Replica;
use pulumi_controller::telemetry::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::agent::Agents;
use super::backend::Backend;
use super::faults::{ApiFaults, Fault, Faults};

/// Namespace of the Stacks.
pub const NAMESPACE: &str = "team";
/// Start of the virtual time.
const START: &str = "2030-01-01T00:00:00Z";
/// Time after which the kubelet starts a crashed controller again.
const RESTART: Duration = Duration::from_secs(1);
/// Time that the steps of the kubelet, the StatefulSet controller and the garbage collector need.
const LATENCY: Duration = Duration::from_millis(200);
/// Interval at which [`World::until`] checks its condition.
const POLL: Duration = Duration::from_millis(500);

pub struct World {
    pub server: Server,
    pub backend: Backend,
    pub faults: Faults,
    background: Vec<JoinHandle<()>>,
}

impl World {
    /// Starts a cluster with one node and one replica of the controller.
    pub fn start(seed: u64, planned: &[Fault]) -> World {
        blocking::run_inline();
        let start: Timestamp = START.parse().expect("a timestamp");
        let server = Server::with_kinds(Options::new(seed, start), kinds());
        for namespace in ["flux-system", NAMESPACE] {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            server.create(&namespace).expect("a namespace");
        }
        let faults = Faults::new(planned);
        server.intercept(ApiFaults::new(&faults));
        let backend = Backend::default();
        let agents = Agents::new(&server, &backend);
        let nodes = Nodes::new(&server);
        nodes.add_node("node").expect("a node");
        let kubelet = tokio::spawn(async move { nodes.run(|_| LATENCY).await });
        let (collecting, changed) = (server.clone(), Arc::new(Notify::new()));
        let notify = changed.clone();
        server.observe(move |_| notify.notify_one());
        let collector = tokio::spawn(async move {
            loop {
                changed.notified().await;
                tokio::time::sleep(LATENCY).await;
                collecting.run_controllers();
            }
        });
        let controller = tokio::spawn(run_controller(server.clone(), agents, faults.clone()));
        World { server, backend, faults, background: vec![kubelet, collector, controller] }
    }

    /// Creates an object as a user.
    pub fn create(&self, object: &Value) {
        self.server.create(object).unwrap_or_else(|status| panic!("{object:#}: {status:?}"));
    }

    /// Returns a Stack.
    pub fn stack(&self, name: &str) -> Option<Arc<Value>> {
        self.server.get(&GroupResource::new("pulumi.com", "stacks"), Some(NAMESPACE), name)
    }

    /// Deletes a Stack as a user.
    pub fn delete_stack(&self, name: &str) {
        let key = Key::new(GroupResource::new("pulumi.com", "stacks"), Some(NAMESPACE), name);
        self.server.delete(&key).unwrap_or_else(|status| panic!("{status:?}"));
    }

    /// Waits until the condition is met, or until the virtual time has passed. Returns whether it is met.
    pub async fn until(&self, limit: Duration, condition: impl Fn(&World) -> bool) -> bool {
        let until = async {
            while !condition(self) {
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(limit, until).await.is_ok()
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
fn kinds() -> Kinds {
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

/// Runs the controller, and starts it again one second after a crash. Each process has its own client, because requests
/// of a crashed process no longer arrive.
async fn run_controller(server: Server, agents: Agents, faults: Faults) {
    for number in 1.. {
        let actor = format!("controller-{number}");
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        let storage = tempfile::tempdir().expect("a temporary directory");
        let config = config(&storage);
        let mut replica =
            Replica::new(&config, server.client(&actor), Metrics::default(), tasks, &end).expect("a replica");
        (replica.name, replica.uid) = ("controller".to_owned(), "controller-pod".to_owned());
        replica.dial = Some(agents.dial(&actor, &faults));
        let stop = end.clone();
        let running = tokio::spawn(async move { replica.run(&config, &end).await });
        tokio::select! {
            ended = running => eprintln!("{actor} has ended: {ended:?}"),
            () = faults.crash() => {}
        }
        // The tasks of the process have no effect any more. The token ends them.
        faults.end(&actor);
        stop.cancel();
        tokio::time::sleep(RESTART).await;
    }
}

fn config(storage: &tempfile::TempDir) -> ManagerConfig {
    use clap::Parser;
    let storage = format!("--storage-path={}", storage.path().display());
    let flags =
        ["pulumi-controller", "--runtime-namespace=flux-system", "--agent-image=agent:v1", "--enable-leader-election"];
    let line = CommandLine::try_parse_from(flags.into_iter().chain([storage.as_str()])).expect("valid flags");
    match line.into_role() {
        Role::Manager(flags) => ManagerConfig::from_flags(flags).expect("valid flags"),
        other => panic!("{other:?}"),
    }
}
