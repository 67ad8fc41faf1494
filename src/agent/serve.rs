//! The `agent` role in the child process. The agent serves the gRPC service and the readiness endpoint until the
//! process receives SIGTERM or SIGINT. Then the agent cancels the running operation, writes the result to the
//! termination message, and waits until the controller has recorded the result.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::Server;

use super::cancellation;
use super::environment;
use super::home;
use super::install;
use super::install::cache::DependencyCache;
use super::journal::{Journal, JournalRecord};
use super::layout::Layout;
use super::mounts::InputHasher;
use super::operations::{Identity, Operations};
use super::resource_limits::{Failures, RETRY_INTERVAL};
use super::service::Service;
use super::settings::Settings;
use super::source::Source;
use super::workspace_lock::WorkspaceLock;
use crate::file_watch::FileWatch;
use crate::rpc::proto::agent_server::AgentServer;
use crate::rpc::server_tls::TlsAcceptor;

/// Number of worker threads. Two threads are sufficient for calls during a run, because the agent is mostly idle.
const WORKERS: usize = 2;
const BLOCKING_THREADS: usize = 8;
/// Maximum size of a gRPC message in bytes. A message can contain the settings and the environment of a run.
const MAX_REQUEST: usize = 4 * 1024 * 1024;
const MAX_CONCURRENT_STREAMS: u32 = 64;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time that the agent waits for unfinished calls before it exits.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a readiness request, including the response.
const READINESS_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent readiness requests. Further connections wait in the backlog of the listener.
const MAX_CONCURRENT_READINESS_REQUESTS: usize = 8;
/// Maximum size of a readiness request in bytes.
const MAX_READINESS_REQUEST_BYTES: usize = 2048;
/// Maximum time that the agent waits until the controller has recorded the results.
const RECORD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a termination message in bytes, which Kubernetes enforces.
const MAX_TERMINATION_MESSAGE: usize = 4096;
/// Maximum size of a result's message in bytes. JSON escapes can enlarge each byte to six bytes, and the termination
/// message must not exceed [`MAX_TERMINATION_MESSAGE`].
const MAX_RESULT_MESSAGE: usize = 600;

/// Configuration of the agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Mount path of the share volume.
    pub share: PathBuf,
    /// Mount path of the dependency cache volume. This path does not exist if the workspace has no cache.
    pub cache_directory: PathBuf,
    /// Maximum size of the archives in the dependency cache, in bytes.
    pub cache_size: u64,
    /// Directory with the certificate, the key and the CA bundle.
    pub tls_directory: PathBuf,
    /// Address on which the gRPC service listens.
    pub address: SocketAddr,
    /// Address on which the readiness endpoint listens.
    pub health_address: SocketAddr,
    /// Termination message file. The kubelet reads this file after the container has exited.
    pub termination_log: PathBuf,
    pub pod_uid: String,
    pub pod_name: String,
    /// Termination grace period of the pod.
    pub termination_grace: Duration,
    /// Minimum delay between the start of the agent and the background query for the CLI version. A call or a run that
    /// requires the version triggers an earlier query.
    pub version_after: Duration,
}

/// Serves the gRPC service and the readiness endpoint until the process receives SIGTERM or SIGINT.
pub fn serve(config: &AgentConfig) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    let served = runtime.block_on(run(config));
    // Waits for blocking tasks until the timeout expires.
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    served
}

async fn run(config: &AgentConfig) -> anyhow::Result<()> {
    // Registers the signal handlers before the first task starts, because a signal must end all tasks.
    let mut sigterm = signal(SignalKind::terminate()).context("failed to register a handler for SIGTERM")?;
    let mut sigint = signal(SignalKind::interrupt()).context("failed to register a handler for SIGINT")?;
    let stop = CancellationToken::new();
    install::end_leftover_processes(&Layout::new(&config.share)).await;
    let operations = Arc::new(open(config, &stop)?);
    operations.recover().await?;
    operations.source.resume();
    let watch = FileWatch::new();
    let acceptor = TlsAcceptor::from_directory(&config.tls_directory, watch.clone())?;
    let listener =
        TcpListener::bind(config.address).await.with_context(|| format!("failed to listen on {}", config.address))?;
    let health_listener = TcpListener::bind(config.health_address)
        .await
        .with_context(|| format!("failed to listen on {}", config.health_address))?;
    let workspace_lock = operations.workspace_lock.clone();
    let health = serve_readiness(health_listener, TaskTracker::new(), move || !workspace_lock.is_terminating());
    // Uses a separate tracker, because the shutdown must not wait for the version query.
    let (source, after) = (operations.source.clone(), config.version_after);
    TaskTracker::new().spawn(async move { source.version.query_later(after).await });
    let service = AgentServer::new(Service {
        operations: operations.clone(),
        inputs: Arc::new(InputHasher::new(&config.tls_directory, watch)),
    })
    .max_decoding_message_size(MAX_REQUEST)
    .max_encoding_message_size(MAX_REQUEST);
    let close = CancellationToken::new();
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .serve_with_incoming_shutdown(service, acceptor.incoming(listener), close.clone().cancelled_owned());
    tracing::info!(
        address = %config.address, pod = config.pod_name, start = operations.identity.start_id, "agent ready"
    );
    let ending = async {
        tokio::select! {
            _ = sigterm.recv() => {}
            _ = sigint.recv() => {}
        }
        tracing::info!("agent shutting down");
        stop.cancel();
        terminate(&operations, config.termination_grace, &config.termination_log).await;
        close.cancel();
        tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        served = server => served.context("failed to serve gRPC"),
        () = health => anyhow::bail!("the readiness endpoint stopped"),
        // Drops the server and all unfinished calls after the timeout.
        () = ending => Ok(()),
    }
}

fn open(config: &AgentConfig, stop: &CancellationToken) -> anyhow::Result<Operations> {
    let layout = Layout::new(&config.share).with_cache(&config.cache_directory);
    layout.create().with_context(|| format!("failed to prepare {}", config.share.display()))?;
    home::prepare(&layout).with_context(|| format!("failed to prepare {}", layout.home().display()))?;
    environment::record_mounted(&layout);
    let workspace_lock = WorkspaceLock::default();
    let settings = Arc::new(Settings::open(layout.clone()));
    let source = Source::open(layout.clone(), workspace_lock.clone(), settings.clone(), stop.clone())?;
    let source = Arc::new(source.with_cache(DependencyCache::open(&layout, config.cache_size)));
    let journal = Arc::new(Journal::open(&layout.operations())?);
    let identity = Identity::new(config.pod_uid.clone()).context("failed to read /proc")?;
    let cancellation_grace = cancellation::cancellation_grace(config.termination_grace);
    Ok(Operations::new(identity, layout, workspace_lock, journal, source, settings, cancellation_grace))
}

/// Serves the readiness endpoint until the caller drops the future. The endpoint uses HTTP without TLS on a separate
/// port, has a single path and limits the request size. The endpoint calls `is_ready` for each connection.
async fn serve_readiness(listener: TcpListener, tasks: TaskTracker, is_ready: impl Fn() -> bool) {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_READINESS_REQUESTS));
    let mut failures = Failures::default();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                failures.reset();
                let ready = is_ready();
                tasks.spawn(async move {
                    // Ignores errors, because an error affects only this client.
                    let _ = tokio::time::timeout(READINESS_TIMEOUT, serve_readiness_request(stream, ready)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                failures.record("accept a readiness connection", &error);
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

async fn serve_readiness_request(mut stream: TcpStream, ready: bool) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 512];
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let length = stream.read(&mut buffer).await?;
        if length == 0 || request.len() + length > MAX_READINESS_REQUEST_BYTES {
            return Ok(());
        }
        request.extend_from_slice(buffer.get(..length).unwrap_or_default());
    }
    stream.write_all(readiness_response(&request, ready).as_bytes()).await?;
    stream.shutdown().await
}

fn readiness_response(request: &[u8], ready: bool) -> String {
    let is_readiness = request.starts_with(b"GET /readyz ");
    let (status, body) = match (is_readiness, ready) {
        (false, _) => ("404 Not Found", "not found\n"),
        (true, true) => ("200 OK", "ok\n"),
        (true, false) => ("503 Service Unavailable", "agent is shutting down\n"),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TerminationMessage<'a> {
    id: &'a str,
    outcome: &'a str,
    message: &'a str,
    /// Whether the state can contain pending operations.
    interrupted: bool,
}

/// Cancels the running operation. The agent waits until the operation ends, or until only the last phase of `grace`
/// remains: see [`cancellation::reserve`]. Then the agent reports all results, and syncs a persistent volume.
async fn terminate(operations: &Arc<Operations>, grace: Duration, log: &Path) {
    let begin = Instant::now();
    operations.terminate();
    operations.tasks.close();
    let end = begin + grace.saturating_sub(cancellation::reserve(grace));
    let has_ended = timeout_at(end, operations.tasks.wait()).await.is_ok();
    if !has_ended {
        tracing::error!("the operation did not end within the termination grace period");
    }
    let sync = async {
        if has_ended {
            operations.source.sync_for_next_pod().await;
        }
    };
    // Syncs concurrently, because a slow volume must not delay the results.
    tokio::join!(report_results(operations, log), sync);
}

/// Writes the termination message, and waits for at most [`RECORD_TIMEOUT`] until the controller has recorded all
/// results.
async fn report_results(operations: &Arc<Operations>, log: &Path) {
    let pending = operations.journal.unacknowledged();
    let Some(last) = pending.last() else { return };
    if let Err(error) = std::fs::write(log, termination_message(last)) {
        tracing::warn!(path = %log.display(), %error, "failed to write the termination message");
    }
    tracing::info!(operations = pending.len(), "waiting for the controller to record the results");
    let end = Instant::now() + RECORD_TIMEOUT;
    for record in &pending {
        let mut state = record.watch();
        if timeout_at(end, state.wait_for(|state| state.acknowledged)).await.is_err() {
            tracing::warn!(
                operation = record.request().id,
                "timed out waiting for the controller to record the result"
            );
            return;
        }
    }
}

/// Returns the termination message of the container, which contains the result of a run as JSON.
pub fn termination_message(record: &JournalRecord) -> Vec<u8> {
    let Some(result) = record.result() else { return Vec::new() };
    let end = result.message.floor_char_boundary(MAX_RESULT_MESSAGE);
    let message = TerminationMessage {
        id: &record.request().id,
        outcome: result.outcome().as_str_name(),
        message: result.message.get(..end).unwrap_or_default(),
        interrupted: result.interrupted,
    };
    let mut text = serde_json::to_vec(&message).unwrap_or_default();
    text.truncate(MAX_TERMINATION_MESSAGE);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::journal::Request;
    use crate::rpc::proto;

    #[test]
    fn only_a_get_request_for_readyz_returns_the_readiness() {
        for (request, ready, expected) in [
            ("GET /readyz HTTP/1.1\r\n\r\n", true, "HTTP/1.1 200 "),
            ("GET /readyz HTTP/1.1\r\n\r\n", false, "HTTP/1.1 503 "),
            ("GET / HTTP/1.1\r\n\r\n", true, "HTTP/1.1 404 "),
            ("POST /readyz HTTP/1.1\r\n\r\n", true, "HTTP/1.1 404 "),
        ] {
            assert!(readiness_response(request.as_bytes(), ready).starts_with(expected), "{request}");
        }
    }

    #[test]
    fn the_termination_message_is_json_within_the_kubernetes_size_limit() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        let request = Request { id: "one".into(), ..Request::default() };
        let record = journal.begin(request).unwrap();
        let outcome = proto::Outcome::Canceled.into();
        journal.finish(&record, proto::Result { outcome, message: "\u{1}".repeat(9000), ..Default::default() });
        let text = termination_message(&record);
        assert!(text.len() <= MAX_TERMINATION_MESSAGE, "{}", text.len());
        let parsed: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((parsed["id"].as_str(), parsed["outcome"].as_str()), (Some("one"), Some("OUTCOME_CANCELED")));
        assert_eq!(parsed["interrupted"].as_bool(), Some(false));
    }
}
