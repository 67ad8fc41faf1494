//! The simulated agents. The process of an agent, with its CLI processes, lives as long as its container: see
//! `container`. The kubelet and the nodes are those of `kube-sim`.

mod cli;
mod connection;
mod container;
mod mounts;
mod plan;
mod program;
mod run;
mod service;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube_sim::nodes::{NodeStep, Nodes};
use kube_sim::{GroupResource, Key, Server};
use pulumi_controller::api::names::{PULUMI_CONTAINER, SHARE_VOLUME};
use pulumi_controller::rpc::client::{ByteStream, Dial};
use pulumi_controller::rpc::proto::agent_server::AgentServer;
use serde_json::Value;

use super::backend::Backend;
use super::faults::Faults;
use connection::Connection;
use container::{Container, Volume};
use service::Caller;

/// Size of the buffer of a connection, in bytes.
const BUFFER: usize = 64 * 1024;
/// Latency of the kubelet's end of a workspace pod. The agent itself ends the pod much earlier.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// All agents of the cluster. Cloning is cheap.
#[derive(Clone)]
pub struct Agents(Arc<Shared>);

struct Shared {
    server: Server,
    backend: Backend,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    /// Containers, by ID, including those that have ended.
    containers: BTreeMap<String, Arc<Container>>,
    /// Volumes, by the identity of their data.
    volumes: BTreeMap<String, Arc<Volume>>,
}

impl Agents {
    pub fn new(server: &Server, backend: &Backend) -> Agents {
        let content = Mutex::default();
        let agents = Agents(Arc::new(Shared { server: server.clone(), backend: backend.clone(), content }));
        let weak = Arc::downgrade(&agents.0);
        // The processes end before any client sees the end of their container.
        server.observe(move |change| {
            if let Some(shared) = weak.upgrade()
                && ["pods", "nodes"].contains(&change.key.resource.resource.as_str())
            {
                Agents(shared).sync();
            }
        });
        agents
    }

    /// Returns the function with which a replica connects to agents.
    pub fn dial(&self, replica: &str, faults: &Faults) -> Dial {
        let (agents, replica, faults) = (self.clone(), replica.to_owned(), faults.clone());
        Arc::new(move |address| {
            let (agents, replica, faults) = (agents.clone(), replica.clone(), faults.clone());
            Box::pin(async move { agents.connect(address, &replica, &faults).await })
        })
    }

    /// Returns the latency of a step of the kubelet, or `None` for the latency of the world. The containers of a
    /// workspace pod exit when the agent exits, or at the end of the grace period.
    pub fn latency(&self, step: &NodeStep) -> Option<Duration> {
        let NodeStep::Terminate { pod } = step else { return None };
        let pod = self.0.server.get_key(pod)?;
        self.content().containers.get(&container_id(&pod)?)?.is_running().then_some(NEVER)
    }

    async fn connect(&self, address: SocketAddr, replica: &str, faults: &Faults) -> io::Result<Box<dyn ByteStream>> {
        let container = self.at(address).ok_or(io::ErrorKind::ConnectionRefused)?;
        if faults.is_crashed(replica) {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        if container.is_unreachable() {
            return std::future::pending().await;
        }
        let (near, far) = tokio::io::duplex(BUFFER);
        let caller = Caller { container: container.clone(), replica: replica.to_owned(), faults: faults.clone() };
        let connections = futures::stream::iter([io::Result::Ok(Connection::new(far, &container))]);
        let server = tonic::transport::Server::builder().serve_with_incoming(AgentServer::new(caller), connections);
        tokio::spawn(server);
        Ok(Box::new(near))
    }

    /// Returns the running container of the pod with this address.
    fn at(&self, address: SocketAddr) -> Option<Arc<Container>> {
        let pods = self.0.server.list(&GroupResource::new("", "pods"), None);
        let pod = pods.iter().find(|pod| text(pod, "/status/podIP") == address.ip().to_string())?;
        let container = self.content().containers.get(&container_id(pod)?).cloned();
        container.filter(|container| container.is_running())
    }

    /// Starts and ends processes in accordance with the containers in the cluster.
    fn sync(&self) {
        let Shared { server, backend, .. } = &*self.0;
        let nodes: BTreeMap<String, bool> = server
            .list(&GroupResource::new("", "nodes"), None)
            .iter()
            .map(|node| (text(node, "/metadata/name").to_owned(), is_ready(node)))
            .collect();
        let known: Vec<Arc<Container>> = self.content().containers.values().cloned().collect();
        for container in known.iter().filter(|container| container.is_running()) {
            container.sync(server.get_key(&container.pod).as_deref(), nodes.get(&container.node).copied());
        }
        for pod in server.list(&GroupResource::new("", "pods"), None) {
            let Some(id) = container_id(&pod).filter(|_| is_container_running(&pod)) else { continue };
            if self.content().containers.contains_key(&id) || !nodes.contains_key(text(&pod, "/spec/nodeName")) {
                continue;
            }
            let key = Key::new(
                GroupResource::new("", "pods"),
                Some(text(&pod, "/metadata/namespace")),
                text(&pod, "/metadata/name"),
            );
            let data = Nodes::new(server).volume_data(&key, SHARE_VOLUME).unwrap_or_else(|| id.clone());
            let volume = self.content().volumes.entry(data).or_default().clone();
            let container = Container::start(server, backend, key, &pod, &id, volume);
            self.content().containers.insert(id, container);
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a text in an object, or an empty text.
fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.filter(|condition| text(condition, "/type") == "Ready").all(|ready| text(ready, "/status") == "True")
}

/// Returns the status of the `pulumi` container.
fn status(pod: &Value) -> Option<&Value> {
    let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
    statuses.iter().find(|status| text(status, "/name") == PULUMI_CONTAINER)
}

fn container_id(pod: &Value) -> Option<String> {
    Some(text(status(pod)?, "/containerID").to_owned()).filter(|id| !id.is_empty())
}

fn is_container_running(pod: &Value) -> bool {
    status(pod).is_some_and(|status| status.pointer("/state/running").is_some())
}
