//! A stand-in for the agents of any number of workspaces, at one address: for tests of the controller with more Stacks
//! than a machine has room for pods. Fake pods (`tests/cluster/cluster fake-nodes`) name that address as theirs.
//!
//! It is called as agents are: TLS with the workspace's own certificate, told apart by the server name that the
//! controller asks for. It takes sources and forgets their bytes, and every run succeeds after a while.

mod connections;
mod pods;
mod service;
mod workspace;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use pulumi_controller::rpc::proto::agent_server::AgentServer;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::transport::Server;

use pods::Pods;
use service::Service;
use workspace::Workspaces;

/// The stand-in at work; it ends when this is dropped.
pub struct StandIn {
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

/// What it was asked for since it began.
#[derive(Debug, Default)]
struct Counts {
    statuses: AtomicU64,
    sources: AtomicU64,
    runs: AtomicU64,
}

impl StandIn {
    /// Answers at an address for all workspaces of the cluster whose pods name it. A run takes `run_time`.
    pub async fn start(client: Client, address: SocketAddr, run_time: Duration) -> anyhow::Result<StandIn> {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot stand in for agents at {address}"))?;
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        let pods = Pods::watch(&client, &mut tasks).await?;
        let connections = connections::accept(listener, client, &mut tasks);
        let service = Service { workspaces: Workspaces::default(), pods, run_time, counts: counts.clone() };
        let serving = Server::builder().serve_with_incoming(AgentServer::new(service), connections);
        tasks.spawn(async move {
            if let Err(error) = serving.await {
                println!("the agents' stand-in ended: {error}");
            }
        });
        Ok(StandIn { counts, _tasks: tasks })
    }

    /// A sentence about the calls so far.
    pub fn calls(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { statuses, sources, runs } = &*self.counts;
        format!("agents were asked {} times, got {} sources, ran {}", count(statuses), count(sources), count(runs))
    }
}
