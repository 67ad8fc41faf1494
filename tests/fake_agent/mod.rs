//! a fake agent of any number of workspaces, at one address: for tests of the controller with more Stacks
//! than a machine has room for pods. Fake pods (`tests/cluster/cluster fake-nodes`) name that address as theirs.
//!
//! It is called as agents are: TLS with the workspace's own certificate, told apart by the server name that the
//! controller asks for. It takes sources and forgets their bytes, and every run succeeds after a while. Where it is told
//! so it is an agent of an earlier version.
#![allow(dead_code, reason = "each who has agents stood in for needs a part of it")]

mod connections;
mod older;
mod pods;
mod service;
mod workspace;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use pulumi_controller::rpc::proto::agent_server::AgentServer;
use pulumi_controller::rpc::server_tls::TlsAcceptor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use pods::Pods;
use service::Service;
use workspace::{Key, Workspaces};

/// The fake agent at work; it ends when this is dropped.
pub struct FakeAgent {
    workspaces: Arc<Workspaces>,
    counts: Arc<Counts>,
    /// Ends all runs.
    finished: CancellationToken,
    _tasks: JoinSet<()>,
}

/// What kind of agent a workspace has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// How long a run takes, unless all are ended before.
    pub run_time: Duration,
    /// Whether it is of an earlier version.
    pub is_older: bool,
    pub malice: Malice,
}

/// What an agent does to harm the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Malice {
    #[default]
    None,
    /// Its results are much larger than the API server takes, and of another century.
    HugeResults,
    /// It begins to take a source and then reads no more.
    SlowSources,
    /// It tells of its runs without a pause, each time of another process.
    Floods,
}

/// By the workspace's name.
type Manners = Arc<dyn Fn(&str) -> Manner + Send + Sync>;

/// What it was asked for since it began.
#[derive(Debug, Default)]
struct Counts {
    statuses: AtomicU64,
    sources: AtomicU64,
    runs: AtomicU64,
    acknowledged: AtomicU64,
    /// How often somebody began to follow a run.
    attachments: AtomicU64,
    /// Streams of progress that are open now.
    attached: AtomicUsize,
}

impl FakeAgent {
    /// Answers at an address for all workspaces of the cluster whose pods name it. A run takes `run_time`.
    pub async fn start(client: Client, address: SocketAddr, run_time: Duration) -> anyhow::Result<FakeAgent> {
        FakeAgent::start_with(client, address, move |_| Manner { run_time, ..Manner::default() }).await
    }

    /// The same, with what each workspace's agent is like.
    pub async fn start_with(
        client: Client,
        address: SocketAddr,
        manners: impl Fn(&str) -> Manner + Send + Sync + 'static,
    ) -> anyhow::Result<FakeAgent> {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot stand in for agents at {address}"))?;
        let mut tasks = JoinSet::new();
        let pods = Pods::watch(&client, &mut tasks).await?;
        let connections = connections::accept(listener, client, &mut tasks);
        let service = Service::new(pods, None, Arc::new(manners))?;
        let (counts, finished) = (service.counts.clone(), service.finished.clone());
        let workspaces = service.workspaces.clone();
        let serving = Server::builder().serve_with_incoming(AgentServer::new(service), connections);
        tasks.spawn(end_of(serving));
        Ok(FakeAgent { workspaces, counts, finished, _tasks: tasks })
    }

    /// Stands in for one agent, without a cluster: with the certificates in a folder, as an agent has them.
    pub fn alone(listener: TcpListener, tls: &Path, pod_uid: &str, manner: Manner) -> anyhow::Result<FakeAgent> {
        let acceptor = TlsAcceptor::from_directory(tls).context("the certificates of the agent")?;
        let key = Key { namespace: "default".to_owned(), name: "example".to_owned() };
        let service = Service::new(Pods::One(pod_uid.to_owned()), Some(key), Arc::new(move |_: &str| manner))?;
        let (counts, finished) = (service.counts.clone(), service.finished.clone());
        let workspaces = service.workspaces.clone();
        let connections = acceptor.incoming(listener);
        let mut tasks = JoinSet::new();
        tasks.spawn(end_of(async move {
            Server::builder().serve_with_incoming(AgentServer::new(service), connections).await
        }));
        Ok(FakeAgent { workspaces, counts, finished, _tasks: tasks })
    }

    /// Workspaces that are called for the first time from now on have a source in place: that of one that was called before.
    pub fn share_source(&self) {
        self.workspaces.share_source();
    }

    /// How many workspaces were called.
    pub fn workspaces(&self) -> usize {
        self.workspaces.number()
    }

    /// Ends all runs that are open; those that begin from now on end at once.
    pub fn finish_all(&self) {
        self.finished.cancel();
    }

    /// How many runs were started, each counted once.
    pub fn runs(&self) -> u64 {
        self.counts.runs.load(Ordering::Relaxed)
    }

    /// How often agents were asked how they are.
    pub fn statuses(&self) -> u64 {
        self.counts.statuses.load(Ordering::Relaxed)
    }

    /// How many sources were put, each time counted.
    pub fn sources(&self) -> u64 {
        self.counts.sources.load(Ordering::Relaxed)
    }

    /// How often somebody began to follow a run.
    pub fn attachments(&self) -> u64 {
        self.counts.attachments.load(Ordering::Relaxed)
    }

    /// How many runs the controller follows now.
    pub fn attached(&self) -> usize {
        self.counts.attached.load(Ordering::Relaxed)
    }

    /// How many results were acknowledged, each counted once.
    pub fn acknowledged(&self) -> u64 {
        self.counts.acknowledged.load(Ordering::Relaxed)
    }

    /// A sentence about the calls so far.
    pub fn calls(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { statuses, sources, runs, .. } = &*self.counts;
        format!("agents were asked {} times, got {} sources, ran {}", count(statuses), count(sources), count(runs))
    }
}

async fn end_of(serving: impl Future<Output = Result<(), tonic::transport::Error>>) {
    if let Err(error) = serving.await {
        println!("the fake agent ended: {error}");
    }
}
