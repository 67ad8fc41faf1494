//! Client with which the controller calls agents. Each call has a timeout, and each reply has a size limit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::byte_rate::NamespaceRates;
pub use super::client_tls::ClientIdentityError;
use super::client_tls::{self, CloseReason};
pub use super::sending::Sending;
use super::sending::{Rate, source_messages};
use super::transcript::PartContent;
use super::unary_channel::UnaryChannel;
use crate::rpc::bounds;
use crate::rpc::identity::Issued;
use crate::rpc::proto;
use crate::rpc::proto::agent_client::AgentClient as Calls;
use crate::telemetry::chain;

/// Timeout for connecting to an agent, including the TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for all calls except `Run`, `PutSource` and `PutPolicyPack`.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a call to `Run`.
pub const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for a call to `PutSource` or `PutPolicyPack`. During this call, the agent receives, verifies and unpacks an
/// archive.
pub const PUT_SOURCE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Interval between keepalive pings on a connection without traffic.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Timeout for the response to a keepalive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a reply in bytes. Results have a higher limit, because they contain the outputs.
const MAX_REPLY: usize = 1024 * 1024;
/// Maximum size of a result in bytes. The controller stores the outputs of the result in a Secret, whose size limit is
/// 1 MiB.
const MAX_RESULT: usize = 4 * 1024 * 1024;
/// Maximum amount of data that a connection has received but not processed, in bytes. A hostile agent can fill this
/// window with small messages, which the controller processes even after the agent has terminated.
const RECEIVE_WINDOW: u32 = 256 * 1024;
/// Maximum size of headers in bytes. Headers can contain error messages, in which an encoded character has up to twelve
/// bytes.
const MAX_HEADERS: u32 = 128 * 1024;
/// Maximum length of an error message in bytes.
const MAX_MESSAGE: usize = 8 * 1024;
/// Minimum rate at which an agent must receive a source. A slower agent could occupy the slot of a source stream for a
/// long time.
const MIN_RATE: Rate = Rate { bytes: 640 * 1024, within: Duration::from_secs(20) };

/// Content of a stream of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Source,
    PolicyPack,
}

/// Value of [`RpcError::call`] if the connection setup has failed.
const CONNECT: &str = "connect";

/// Error from the connection setup or from a call.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}: {message} ({code:?})", failed_action(call))]
pub struct RpcError {
    /// Name of the called method, or `connect` for the connection setup.
    pub call: &'static str,
    pub code: Code,
    /// Message from the agent or the network stack, truncated to the maximum length.
    pub message: String,
}

fn failed_action(call: &str) -> String {
    if call == CONNECT {
        "failed to connect to the agent".to_owned()
    } else {
        format!("failed to call {call} of the agent")
    }
}

impl RpcError {
    /// Returns whether the agent was unreachable or did not respond before the timeout. The agent may still have
    /// executed the call.
    pub fn is_unavailable(&self) -> bool {
        match self.code {
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Aborted => true,
            Code::Ok
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Internal
            | Code::DataLoss
            | Code::Unauthenticated => false,
        }
    }

    /// Returns whether the agent did not respond before the timeout, or received a source too slowly.
    pub fn is_timeout(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// Returns whether the agent has rejected the call, and would also reject an immediate retry.
    pub fn is_refusal(&self) -> bool {
        match self.code {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss
            | Code::Unauthenticated => true,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable => false,
        }
    }

    /// Returns whether the agent has rejected the call because of the agent's current state. A later call can succeed.
    pub fn is_precondition(&self) -> bool {
        self.code == Code::FailedPrecondition
    }

    /// Returns whether the agent reports that the requested object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    fn new(call: &'static str, code: Code, message: &str) -> Self {
        let mut message = message.to_owned();
        bounds::cut(&mut message, MAX_MESSAGE);
        RpcError { call, code, message }
    }

    fn timeout(call: &'static str, limit: Duration) -> Self {
        RpcError::new(call, Code::DeadlineExceeded, &format!("no response within {} s", limit.as_secs()))
    }

    fn status(call: &'static str, status: &Status) -> Self {
        // Errors from broken connections have different codes, but the error source is always a transport error.
        let broken = std::error::Error::source(status).is_some();
        let code = if broken { Code::Unavailable } else { status.code() };
        match std::error::Error::source(status) {
            Some(source) => RpcError::new(call, code, &format!("{}: {}", status.message(), chain(source))),
            None => RpcError::new(call, code, status.message()),
        }
    }

    /// Adds the reason why the agent closed the connection, unless the message already contains this reason.
    fn because_of(self, close_reason: &CloseReason) -> Self {
        match close_reason.get() {
            Some(reason) if self.is_unavailable() && !self.message.contains(&reason) => {
                RpcError::new(self.call, self.code, &format!("{reason}: {}", self.message))
            }
            _ => self,
        }
    }
}

/// Network address of an agent, and the name that the agent's certificate must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentAddress {
    pub ip: IpAddr,
    pub port: u16,
    pub server_name: String,
    /// Namespace of the pod. The agents in a namespace share a rate limit.
    pub namespace: String,
}

/// Bytes of a connection to an agent.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Function that opens the connection to an agent, instead of TLS over TCP. A simulation uses it to connect the
/// controller to simulated agents in the same process.
pub type Dial = Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> + Send + Sync>;

/// Factory for connections to agents. The connections use the identity of the controller. Cloning is cheap.
#[derive(Clone)]
pub struct Agents {
    tls: Arc<ArcSwap<ClientConfig>>,
    rates: NamespaceRates,
    dial: Option<Dial>,
}

impl Agents {
    /// Creates a factory that trusts agents whose certificate is from one of these authorities (PEM, any number of
    /// certificates). A connection presents the first client certificate that the agent accepts.
    pub fn new(clients: &[Issued], authorities_pem: &str) -> Result<Self, ClientIdentityError> {
        let config = client_tls::configuration(clients, authorities_pem)?;
        Ok(Agents { tls: Arc::new(ArcSwap::from_pointee(config)), rates: NamespaceRates::default(), dial: None })
    }

    /// Opens the connections with this function.
    pub fn with_dial(self, dial: Option<Dial>) -> Self {
        Agents { dial, ..self }
    }

    /// Uses these certificates for the new connections of this factory and all its clones. Open connections continue to
    /// use the previous certificates.
    pub fn replace_identity(&self, clients: &[Issued], authorities_pem: &str) -> Result<(), ClientIdentityError> {
        self.tls.store(Arc::new(client_tls::configuration(clients, authorities_pem)?));
        Ok(())
    }

    /// Returns whether a server accepts connections at this address.
    pub async fn is_listening(&self, address: SocketAddr) -> bool {
        match &self.dial {
            Some(dial) => dial(address).await.is_ok(),
            None => TcpStream::connect(address).await.is_ok(),
        }
    }

    /// Connects to an agent. The connection ends when the caller drops the client and all its streams.
    pub async fn connect(&self, address: &AgentAddress) -> Result<AgentClient, RpcError> {
        let call = CONNECT;
        let name = ServerName::try_from(address.server_name.clone())
            .map_err(|_| RpcError::new(call, Code::InvalidArgument, "the server name is not a valid DNS name"))?;
        let endpoint = Endpoint::from_shared(format!("http://{}", address.server_name))
            .map_err(|error| RpcError::new(call, Code::InvalidArgument, &chain(&error)))?
            .tcp_nodelay(true)
            .initial_stream_window_size(RECEIVE_WINDOW)
            .initial_connection_window_size(RECEIVE_WINDOW)
            .http2_max_header_list_size(MAX_HEADERS)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let (tls, target) = (self.tls.clone(), SocketAddr::new(address.ip, address.port));
        let close_reason = CloseReason::default();
        let (reason, rates, namespace) = (close_reason.clone(), self.rates.clone(), address.namespace.clone());
        let dial = self.dial.clone();
        let connector = tower::service_fn(move |_| {
            let (tls, name, reason) = (tls.load_full(), name.clone(), reason.clone());
            let (rates, namespace, dial) = (rates.clone(), namespace.clone(), dial.clone());
            let limit = move |stream| rates.limit(&namespace, stream);
            async move {
                let stream: Box<dyn ByteStream> = match dial {
                    Some(dial) => dial(target).await?,
                    None => Box::new(client_tls::connect(target, name, tls, limit, reason).await?),
                };
                io::Result::Ok(TokioIo::new(stream))
            }
        });
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect_with_connector(connector));
        let channel = match connecting.await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                return Err(RpcError::new(call, Code::Unavailable, &format!("{target}: {}", chain(&error))));
            }
            Err(_) => {
                let message = format!("{target}: no connection within {} s", CONNECT_TIMEOUT.as_secs());
                return Err(RpcError::new(call, Code::Unavailable, &message));
            }
        };
        let streams = Calls::new(channel.clone()).max_decoding_message_size(MAX_RESULT);
        let calls = Calls::new(UnaryChannel(channel)).max_decoding_message_size(MAX_REPLY);
        Ok(AgentClient { calls, streams, close_reason })
    }
}

/// Connection to an agent. Cloning is cheap.
#[derive(Clone)]
pub struct AgentClient {
    /// Client for calls with one reply message.
    calls: Calls<UnaryChannel>,
    /// Client for calls whose reply is a stream of messages.
    streams: Calls<Channel>,
    close_reason: CloseReason,
}

impl AgentClient {
    /// Returns the state of the pod: versions, source, settings and open operation.
    pub async fn status(&self) -> Result<proto::StatusReply, RpcError> {
        self.status_with_inputs(proto::StatusRequest::default()).await
    }

    /// Returns the same state as [`AgentClient::status`], and the hashes of the requested files and directories.
    pub async fn status_with_inputs(&self, request: proto::StatusRequest) -> Result<proto::StatusReply, RpcError> {
        let mut calls = self.calls.clone();
        let requested = request.mounted_directories.clone();
        let mut reply = unary(&self.close_reason, "Status", CALL_TIMEOUT, calls.status(request)).await?;
        bounds::truncate_status(&mut reply, &requested, Timestamp::now().as_millisecond());
        Ok(reply)
    }

    /// Sends a source. The header must contain the number of bytes that the reader returns. The function reports the
    /// stream's progress to `sending`. When the function returns, the agent has installed the source or is still
    /// preparing the source. [`AgentClient::status`] returns the progress of the preparation. A second call with the
    /// same digest and directory has no effect.
    pub async fn put_source<R>(
        &self,
        header: proto::SourceHeader,
        reader: R,
        sending: &Sending,
    ) -> Result<proto::PutSourceReply, RpcError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.put_source_at(header, reader, sending, MIN_RATE).await
    }

    /// Sends a source in the same way as [`AgentClient::put_source`], with the minimum rate `min_rate`.
    pub(super) async fn put_source_at<R>(
        &self,
        header: proto::SourceHeader,
        reader: R,
        sending: &Sending,
        min_rate: Rate,
    ) -> Result<proto::PutSourceReply, RpcError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.put(Delivery::Source, header, reader, sending, min_rate).await
    }

    /// Sends a policy pack. When the function returns, the agent is installing the pack, and [`AgentClient::status`]
    /// returns the progress. A second call with the same digest and directory has no effect.
    pub async fn put_policy_pack<R>(
        &self,
        header: proto::SourceHeader,
        reader: R,
        sending: &Sending,
    ) -> Result<proto::PutSourceReply, RpcError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        self.put(Delivery::PolicyPack, header, reader, sending, MIN_RATE).await
    }

    async fn put<R>(
        &self,
        delivery: Delivery,
        header: proto::SourceHeader,
        reader: R,
        sending: &Sending,
        min_rate: Rate,
    ) -> Result<proto::PutSourceReply, RpcError>
    where
        R: AsyncRead + Send + Unpin + 'static,
    {
        let broken = Arc::new(Mutex::new(None));
        let messages = source_messages(header, reader, broken.clone(), sending.clone());
        let mut calls = self.calls.clone();
        let (call, request) = match delivery {
            Delivery::Source => ("PutSource", async move { calls.put_source(messages).await }.boxed()),
            Delivery::PolicyPack => ("PutPolicyPack", async move { calls.put_policy_pack(messages).await }.boxed()),
        };
        let reply = tokio::select! {
            reply = unary(&self.close_reason, call, PUT_SOURCE_TIMEOUT, request) => reply,
            error = too_slow(sending, call, min_rate) => Err(error),
        };
        let broken = broken.lock().ok().and_then(|mut error| error.take());
        match broken {
            Some(error) => Err(RpcError::new(call, Code::Aborted, &format!("failed to read the artifact: {error}"))),
            None => reply,
        }
    }

    /// Starts an operation. A second call with the same operation ID has no effect.
    pub async fn run(&self, request: proto::RunRequest) -> Result<proto::RunReply, RpcError> {
        let mut calls = self.calls.clone();
        let mut reply = unary(&self.close_reason, "Run", RUN_TIMEOUT, calls.run(request)).await?;
        bounds::truncate_run_reply(&mut reply);
        Ok(reply)
    }

    /// Streams an operation's progress from the sequence number `from`, followed by the operation's result.
    pub async fn attach(&self, id: &str, from: u64) -> Result<Attachment, RpcError> {
        self.attach_with(proto::AttachRequest { id: id.to_owned(), from, prevent_start: false }).await
    }

    /// Streams an operation's progress and result in the same way as [`AgentClient::attach`]. An agent that does not
    /// know the operation also rejects each later call to `Run` for the operation, even if an earlier connection still
    /// contains such a call. An agent of an older version does not reject the call.
    pub async fn attach_or_prevent_start(&self, id: &str, from: u64) -> Result<Attachment, RpcError> {
        self.attach_with(proto::AttachRequest { id: id.to_owned(), from, prevent_start: true }).await
    }

    async fn attach_with(&self, request: proto::AttachRequest) -> Result<Attachment, RpcError> {
        let mut streams = self.streams.clone();
        let stream = unary(&self.close_reason, "Attach", CALL_TIMEOUT, streams.attach(request)).await?;
        Ok(Attachment { stream, close_reason: self.close_reason.clone() })
    }

    /// Returns a part of a finished operation's transcript, compressed with gzip. Returns an empty part if the
    /// operation has no such part.
    pub async fn transcript(&self, id: &str, part: proto::TranscriptPart) -> Result<Vec<u8>, RpcError> {
        const CALL: &str = "ReadTranscript";
        let mut content = PartContent::new(part);
        loop {
            let mut calls = self.calls.clone();
            let request =
                proto::ReadTranscriptRequest { id: id.to_owned(), part: part.into(), offset: content.offset() };
            let reply = unary(&self.close_reason, CALL, CALL_TIMEOUT, calls.read_transcript(request)).await?;
            match content.add(&reply) {
                Ok(true) => return Ok(content.into_bytes()),
                Ok(false) => {}
                Err(message) => return Err(RpcError::new(CALL, Code::DataLoss, &message)),
            }
        }
    }

    /// Confirms that the controller has recorded the result of an operation outside the pod.
    pub async fn acknowledge(&self, id: &str) -> Result<(), RpcError> {
        let mut calls = self.calls.clone();
        let request = proto::AcknowledgeRequest { id: id.to_owned() };
        unary(&self.close_reason, "Acknowledge", CALL_TIMEOUT, calls.acknowledge(request)).await.map(|_| ())
    }

    /// Cancels an operation gracefully, and forcefully when the grace period of the agent ends. A repeated call has no
    /// effect.
    pub async fn cancel(&self, id: &str) -> Result<(), RpcError> {
        let mut calls = self.calls.clone();
        let request = proto::CancelRequest { id: id.to_owned(), pod_ends_in_seconds: 0 };
        unary(&self.close_reason, "Cancel", CALL_TIMEOUT, calls.cancel(request)).await.map(|_| ())
    }

    /// Cancels an operation in a pod that is being deleted. `seconds` is the time until the kubelet kills the containers.
    pub async fn end_with_pod(&self, id: &str, seconds: u32) -> Result<(), RpcError> {
        let mut calls = self.calls.clone();
        let request = proto::CancelRequest { id: id.to_owned(), pod_ends_in_seconds: seconds.max(1) };
        unary(&self.close_reason, "Cancel", CALL_TIMEOUT, calls.cancel(request)).await.map(|_| ())
    }

    /// Makes the agent reject new operations. The reply contains the ID of the open operation.
    pub async fn drain(&self) -> Result<proto::DrainReply, RpcError> {
        let mut calls = self.calls.clone();
        let mut reply = unary(&self.close_reason, "Drain", CALL_TIMEOUT, calls.drain(proto::DrainRequest {})).await?;
        bounds::truncate_drain_reply(&mut reply);
        Ok(reply)
    }
}

/// Stream that returns an operation's progress and then its result.
#[derive(Debug)]
pub struct Attachment {
    stream: tonic::Streaming<proto::AttachReply>,
    close_reason: CloseReason,
}

impl Attachment {
    /// Returns the next message, or `None` if the agent has ended the stream. This function has no timeout, because an
    /// operation can make no progress for a long time. The connection's keepalive pings detect that the agent is lost.
    pub async fn next(&mut self) -> Result<Option<proto::AttachReply>, RpcError> {
        let next = self.stream.message().await;
        let mut next = next.map_err(|status| RpcError::status("Attach", &status).because_of(&self.close_reason))?;
        if let Some(reply) = &mut next {
            bounds::truncate_attach_reply(reply, Timestamp::now().as_millisecond());
        }
        Ok(next)
    }
}

async fn unary<T>(
    close_reason: &CloseReason,
    call: &'static str,
    limit: Duration,
    request: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, RpcError> {
    match tokio::time::timeout(limit, request).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(RpcError::status(call, &status).because_of(close_reason)),
        Err(_) => Err(RpcError::timeout(call, limit)),
    }
}

/// Waits until a stream is slower than `rate`, and then returns an error. The function never returns after the
/// connection has sent the complete stream.
async fn too_slow(sending: &Sending, call: &'static str, rate: Rate) -> RpcError {
    let received = sending.until_slower(rate).await;
    let seconds = rate.within.as_secs();
    let message = format!("the agent received {received} bytes in {seconds} s; the minimum is {} bytes", rate.bytes);
    RpcError::new(call, Code::DeadlineExceeded, &message)
}

#[cfg(test)]
pub(crate) mod tests;
