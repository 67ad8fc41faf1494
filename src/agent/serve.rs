//! The `agent` role in the child process: serves the controller until a signal ends it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;

use super::cancellation;
use super::config::AgentConfig;
use super::health;
use super::inputs::Inputs;
use super::install;
use super::journal::Journal;
use super::layout::Layout;
use super::operations::{Identity, Operations};
use super::service::Service;
use super::settings::Settings;
use super::source::Source;
use super::termination;
use super::workspace_lock::WorkspaceLock;
use crate::rpc::proto::agent_server::AgentServer;
use crate::rpc::server_tls::TlsAcceptor;

/// The agent is mostly idle: two threads can serve calls during a run.
const WORKERS: usize = 2;
const BLOCKING_THREADS: usize = 8;
/// Maximum size of a message in bytes: settings and environment of a run.
const MAX_REQUEST: usize = 4 * 1024 * 1024;
const STREAMS_AT_ONCE: u32 = 64;
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Maximum time for open calls to end when the agent exits.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT.
pub fn serve(config: &AgentConfig) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    let served = runtime.block_on(run(config));
    // Blocking tasks must not delay the exit.
    runtime.shutdown_timeout(CLOSE_LIMIT);
    served
}

async fn run(config: &AgentConfig) -> anyhow::Result<()> {
    // Registered before anything starts that a signal must end.
    let mut terminate = signal(SignalKind::terminate()).context("failed to register a handler for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to register a handler for SIGINT")?;
    let stop = CancellationToken::new();
    install::end_leftovers(&Layout::new(&config.share))
        .await
        .context("failed to end the remaining processes of an installation")?;
    let operations = Arc::new(open(config, &stop)?);
    operations.recover().await?;
    operations.source.resume();
    let acceptor = TlsAcceptor::from_directory(&config.tls_directory)?;
    let listener =
        TcpListener::bind(config.address).await.with_context(|| format!("failed to listen on {}", config.address))?;
    let health_listener = TcpListener::bind(config.health_address)
        .await
        .with_context(|| format!("failed to listen on {}", config.health_address))?;
    let workspace_lock = operations.workspace_lock.clone();
    let health = health::serve(health_listener, TaskTracker::new(), move || !workspace_lock.is_terminating());
    // A separate tracker: the shutdown does not wait for the version.
    let (source, after) = (operations.source.clone(), config.version_after);
    TaskTracker::new().spawn(async move { source.version.find_later(after).await });
    let service = AgentServer::new(Service {
        operations: operations.clone(),
        inputs: Arc::new(Inputs::new(&config.tls_directory)),
    })
    .max_decoding_message_size(MAX_REQUEST)
    .max_encoding_message_size(MAX_REQUEST);
    let close = CancellationToken::new();
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .max_concurrent_streams(STREAMS_AT_ONCE)
        .serve_with_incoming_shutdown(service, acceptor.incoming(listener), close.clone().cancelled_owned());
    tracing::info!(
        address = %config.address, pod = config.pod_name, start = operations.identity.start_id, "agent ready"
    );
    let ending = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("agent shutting down");
        stop.cancel();
        termination::terminate(&operations, config.termination_grace, &config.termination_log).await;
        close.cancel();
        tokio::time::sleep(CLOSE_LIMIT).await;
    };
    tokio::select! {
        served = server => served.context("failed to serve gRPC"),
        () = health => anyhow::bail!("the readiness endpoint stopped"),
        // Calls that are still open after the limit are dropped.
        () = ending => Ok(()),
    }
}

fn open(config: &AgentConfig, stop: &CancellationToken) -> anyhow::Result<Operations> {
    let layout = Layout::new(&config.share);
    layout.create().with_context(|| format!("failed to prepare {}", config.share.display()))?;
    let workspace_lock = WorkspaceLock::default();
    let settings = Arc::new(Settings::open(layout.clone()));
    let source = Arc::new(Source::open(layout.clone(), workspace_lock.clone(), settings.clone(), stop.clone())?);
    let journal = Arc::new(Journal::open(&layout.operations())?);
    let identity = Identity::new(config.pod_uid.clone()).context("failed to read /proc")?;
    let cancellation_grace = cancellation::cancellation_grace(config.termination_grace);
    Ok(Operations::new(identity, layout, workspace_lock, journal, source, settings, cancellation_grace))
}
