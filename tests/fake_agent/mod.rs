//! Fake agent that simulates the agents of any number of workspaces at one address. With this agent, a test of the
//! controller can use many Stacks without running their pods. All fake pods (`tests/cluster/cluster fake-nodes`) have
//! this IP address.
//!
//! Connections work in the same way as with real agents. All connections use TLS, and the server name of a connection
//! selects the workspace's certificate. The fake agent verifies and discards sources. Every run succeeds after a delay.
//! The fake agent can also emulate an agent of an older version.
#![allow(dead_code, reason = "each test uses a part of the fake agent")]

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
use pulumi_controller::file_watch::FileWatch;
use pulumi_controller::rpc::proto::agent_server::AgentServer;
use pulumi_controller::rpc::server_tls::TlsAcceptor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use pods::Pods;
use service::Service;
use workspace::{Key, Workspaces};

/// Running fake agent, which stops when the caller drops the value.
pub struct FakeAgent {
    workspaces: Arc<Workspaces>,
    counts: Arc<Counts>,
    /// Token that ends all runs when the token is canceled.
    finished: CancellationToken,
    _tasks: JoinSet<()>,
}

/// Behavior of a workspace's agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Behavior {
    /// Duration of a run, unless `finish_all` ends the run earlier.
    pub run_time: Duration,
    /// Whether the agent emulates an older version.
    pub is_older: bool,
    pub fault: Fault,
}

/// Fault or hostile behavior that an agent simulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// The agent returns results that exceed the API server's size limit and have timestamps outside the valid range.
    HugeResults,
    /// The agent starts to receive a source, and then stops reading.
    SlowSources,
    /// The agent reports progress continuously, each time with a different process ID.
    Floods,
}

/// Function that maps the name of a workspace to the behavior of its agent.
type Behaviors = Arc<dyn Fn(&str) -> Behavior + Send + Sync>;

/// Request counts since the agent started.
#[derive(Debug, Default)]
struct Counts {
    statuses: AtomicU64,
    sources: AtomicU64,
    runs: AtomicU64,
    acknowledged: AtomicU64,
    /// Number of progress streams since the agent started.
    attachments: AtomicU64,
    /// Number of currently open progress streams.
    attached: AtomicUsize,
}

impl FakeAgent {
    /// Starts an agent at an address. The agent simulates all workspaces in the cluster whose pods have this address.
    /// Each run takes `run_time`.
    pub async fn start(client: Client, address: SocketAddr, run_time: Duration) -> anyhow::Result<FakeAgent> {
        FakeAgent::start_with(client, address, move |_| Behavior { run_time, ..Behavior::default() }).await
    }

    /// Starts an agent with a separate behavior for each workspace.
    pub async fn start_with(
        client: Client,
        address: SocketAddr,
        behaviors: impl Fn(&str) -> Behavior + Send + Sync + 'static,
    ) -> anyhow::Result<FakeAgent> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address} for the fake agents"))?;
        let mut tasks = JoinSet::new();
        let pods = Pods::watch(&client, &mut tasks).await?;
        let connections = connections::accept(listener, client, &mut tasks);
        let service = Service::new(pods, None, Arc::new(behaviors))?;
        let (counts, finished) = (service.counts.clone(), service.finished.clone());
        let workspaces = service.workspaces.clone();
        let serving = Server::builder().serve_with_incoming(AgentServer::new(service), connections);
        tasks.spawn(report_end(serving));
        Ok(FakeAgent { workspaces, counts, finished, _tasks: tasks })
    }

    /// Starts an agent for a single workspace, without a cluster. The agent reads its certificates from a directory, as
    /// in a real pod.
    pub fn alone(listener: TcpListener, tls: &Path, pod_uid: &str, behavior: Behavior) -> anyhow::Result<FakeAgent> {
        let acceptor = TlsAcceptor::from_directory(tls, FileWatch::new()).context("the certificates of the agent")?;
        let key = Key { namespace: "default".to_owned(), name: "example".to_owned() };
        let service = Service::new(Pods::One(pod_uid.to_owned()), Some(key), Arc::new(move |_: &str| behavior))?;
        let (counts, finished) = (service.counts.clone(), service.finished.clone());
        let workspaces = service.workspaces.clone();
        let connections = acceptor.incoming(listener);
        let mut tasks = JoinSet::new();
        tasks.spawn(report_end(async move {
            Server::builder().serve_with_incoming(AgentServer::new(service), connections).await
        }));
        Ok(FakeAgent { workspaces, counts, finished, _tasks: tasks })
    }

    /// Copies a workspace's installed source. Workspaces that connect later start with this source.
    pub fn share_source(&self) {
        self.workspaces.share_source();
    }

    /// Returns the number of workspaces to which the controller has connected.
    pub fn workspaces(&self) -> usize {
        self.workspaces.number()
    }

    /// Returns the number of workspaces whose status the controller has requested since the agent started, or since the
    /// last call of `forget_called`.
    pub fn called(&self) -> usize {
        self.workspaces.called()
    }

    /// Resets the number of workspaces that `called` returns.
    pub fn forget_called(&self) {
        self.workspaces.forget_called();
    }

    /// Ends all open runs. Later runs end immediately.
    pub fn finish_all(&self) {
        self.finished.cancel();
    }

    /// Returns the number of distinct runs.
    pub fn runs(&self) -> u64 {
        self.counts.runs.load(Ordering::Relaxed)
    }

    /// Returns the number of status requests.
    pub fn statuses(&self) -> u64 {
        self.counts.statuses.load(Ordering::Relaxed)
    }

    /// Returns the number of received sources, including repeated deliveries.
    pub fn sources(&self) -> u64 {
        self.counts.sources.load(Ordering::Relaxed)
    }

    /// Returns the number of progress streams since the agent started.
    pub fn attachments(&self) -> u64 {
        self.counts.attachments.load(Ordering::Relaxed)
    }

    /// Returns the number of currently open progress streams.
    pub fn attached(&self) -> usize {
        self.counts.attached.load(Ordering::Relaxed)
    }

    /// Returns the number of distinct results that the controller has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.counts.acknowledged.load(Ordering::Relaxed)
    }

    /// Returns a summary of the requests.
    pub fn calls(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { statuses, sources, runs, .. } = &*self.counts;
        format!("fake agents: {} status calls, {} sources, {} runs", count(statuses), count(sources), count(runs))
    }
}

async fn report_end(serving: impl Future<Output = Result<(), tonic::transport::Error>>) {
    if let Err(error) = serving.await {
        println!("the fake agent ended: {error}");
    }
}
