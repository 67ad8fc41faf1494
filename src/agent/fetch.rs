//! The `fetch` role of an init container, which receives the source before the init containers that need the source
//! start. The role serves the agent's gRPC service on the agent's port, and exits when the source is installed. The
//! agent starts after all init containers, and uses this source.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::Stream;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::layout::Layout;
use super::operations::Identity;
use super::refusal::Refusal;
use super::settings::Settings;
use super::source::Source;
use super::workspace_lock::WorkspaceLock;
use crate::file_watch::FileWatch;
use crate::rpc::proto;
use crate::rpc::proto::agent_server::{Agent, AgentServer};
use crate::rpc::protocol::PROTOCOL_VERSION;
use crate::rpc::server_tls::TlsAcceptor;

/// Maximum size of a request in bytes. A request contains at most one chunk of an archive.
const MAX_REQUEST: usize = 1024 * 1024;
const MAX_CONCURRENT_STREAMS: u32 = 16;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout for the server shutdown after the last reply. During the shutdown, the client receives this reply.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of the `fetch` role.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// Mount path of the share volume.
    pub share: PathBuf,
    /// Directory with the certificate, the key and the CA bundle.
    pub tls_directory: PathBuf,
    /// Address on which the gRPC service listens.
    pub address: SocketAddr,
    pub pod_uid: String,
}

/// Serves the gRPC service until a source is installed.
///
/// # Errors
///
/// Returns an error if the server stops before a source is installed, because the later init containers need the
/// source.
pub fn fetch(config: &FetchConfig) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    let fetched = runtime.block_on(run(config));
    // Waits for blocking tasks until the timeout expires.
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    fetched
}

async fn run(config: &FetchConfig) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to register a handler for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to register a handler for SIGINT")?;
    let service = Fetch::open(config)?;
    let (stop, done) = (service.stop.clone(), service.done.clone());
    let acceptor = TlsAcceptor::from_directory(&config.tls_directory, FileWatch::new())?;
    let listener =
        TcpListener::bind(config.address).await.with_context(|| format!("failed to listen on {}", config.address))?;
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .serve_with_incoming_shutdown(
            AgentServer::new(service).max_decoding_message_size(MAX_REQUEST),
            acceptor.incoming(listener),
            done.clone().cancelled_owned(),
        );
    tracing::info!(address = %config.address, "waiting for the source");
    // Without this timeout, a client with an open connection could delay the start of the pod.
    let closing = async {
        done.cancelled().await;
        tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        served = server => served.context("failed to serve gRPC")?,
        () = closing => {}
        _ = terminate.recv() => stop.cancel(),
        _ = interrupt.recv() => stop.cancel(),
    }
    anyhow::ensure!(done.is_cancelled(), "the pod was terminated before a source was installed");
    Ok(())
}

/// gRPC service of the `fetch` role, which accepts a source and rejects runs.
#[derive(Clone)]
struct Fetch {
    identity: Identity,
    source: Arc<Source>,
    /// Token that the role cancels when the pod terminates.
    stop: CancellationToken,
    /// Token that the role cancels when the source is installed.
    done: CancellationToken,
}

impl Fetch {
    fn open(config: &FetchConfig) -> anyhow::Result<Self> {
        let layout = Layout::new(&config.share);
        layout.create().with_context(|| format!("failed to prepare {}", config.share.display()))?;
        let settings = Arc::new(Settings::open(layout.clone()));
        let stop = CancellationToken::new();
        let source = Source::open(layout, WorkspaceLock::default(), settings, stop.clone())?.without_installing();
        let identity = Identity::new(config.pod_uid.clone()).context("failed to read /proc")?;
        Ok(Self { identity, source: Arc::new(source), stop, done: CancellationToken::new() })
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<proto::AttachReply, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Fetch {
    type AttachStream = Replies;

    async fn status(&self, _request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        let artifact = self.source.current_source();
        Ok(Response::new(proto::StatusReply {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            start_id: self.identity.start_id.clone(),
            pod_uid: self.identity.pod_uid.clone(),
            artifact: artifact.map(|current_source| proto::Artifact {
                digest: current_source.digest,
                directory: current_source.directory,
            }),
            protocol_version: PROTOCOL_VERSION,
            ..proto::StatusReply::default()
        }))
    }

    async fn put_source(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let parts = request.into_inner();
        let (source, done) = (self.source.clone(), self.done.clone());
        // Runs in a separate task, because the source installation must continue if the client disconnects.
        let putting = self.source.tasks.spawn(async move {
            let unchanged = source.put(parts).await?;
            if source.is_settled() {
                // The server replies to this call before it stops.
                done.cancel();
            }
            Ok::<_, Refusal>(unchanged)
        });
        let unchanged =
            putting.await.map_err(|error| Status::internal(format!("failed to install the source: {error}")))??;
        Ok(Response::new(proto::PutSourceReply { unchanged }))
    }

    async fn put_policy_pack(
        &self,
        _request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        Err(not_started())
    }

    async fn run(&self, _request: Request<proto::RunRequest>) -> Result<Response<proto::RunReply>, Status> {
        Err(not_started())
    }

    async fn attach(&self, _request: Request<proto::AttachRequest>) -> Result<Response<Replies>, Status> {
        Err(not_started())
    }

    async fn read_transcript(
        &self,
        _request: Request<proto::ReadTranscriptRequest>,
    ) -> Result<Response<proto::ReadTranscriptReply>, Status> {
        Err(not_started())
    }

    async fn acknowledge(
        &self,
        _request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        Err(not_started())
    }

    async fn cancel(&self, _request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        Err(not_started())
    }

    async fn drain(&self, _request: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        Err(not_started())
    }
}

fn not_started() -> Status {
    Refusal::Precondition(
        "the init containers are running: until they have finished, the pod accepts only a source".to_owned(),
    )
    .into()
}
