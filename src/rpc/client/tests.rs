//! Tests for the client with a fake agent and real connections.

use std::io::{self, Cursor};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{AgentClient, CALL_TIMEOUT, CloseReason, Rate, RpcError, Sending, unary};
use crate::rpc::proto;
use crate::rpc::proto::agent_server::Agent;
use crate::rpc::proto::put_source_request::Part;
use crate::rpc::server_tls::tests::Serving;
use crate::rpc::transcript::MAX_CHUNK;

/// Agent that records calls.
#[derive(Clone, Default)]
pub(crate) struct FakeAgent {
    calls: Arc<Mutex<Vec<String>>>,
    sources: Arc<Mutex<Vec<Received>>>,
    /// Error that the agent returns for `Run`.
    refusal: Option<Status>,
    /// Length of the version that the agent returns for `Status`.
    version_length: usize,
    /// Result of a run, or `None` for the default result.
    result: Option<proto::Result>,
    /// Whether the agent stops reading a source after the first message.
    hangs: bool,
    /// Whether the agent returns `NOT_FOUND` for `Attach`.
    has_no_operations: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Received {
    header: Option<proto::SourceHeader>,
    bytes: Vec<u8>,
    longest_chunk: usize,
}

impl FakeAgent {
    /// Returns an agent that knows no operation, and rejects each call to `Run`.
    pub(crate) fn without_operations(refusal: Status) -> Self {
        FakeAgent { refusal: Some(refusal), has_no_operations: true, ..FakeAgent::default() }
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    fn record_call(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }
}

#[tonic::async_trait]
impl Agent for FakeAgent {
    type AttachStream = BoxStream<'static, Result<proto::AttachReply, Status>>;

    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        let agent_version = "v".repeat(self.version_length);
        let candidate = Some(proto::Candidate { failure: "\u{1b}ä".repeat(6000), ..Default::default() });
        let start_id = "start".into();
        Ok(Response::new(proto::StatusReply { agent_version, start_id, candidate, ..Default::default() }))
    }

    async fn put_source(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let mut stream = request.into_inner();
        if self.hangs {
            stream.message().await?;
            std::future::pending::<()>().await;
        }
        let mut received = Received::default();
        while let Some(message) = stream.message().await? {
            match message.part {
                Some(Part::Header(header)) => received.header = Some(header),
                Some(Part::Chunk(chunk)) => {
                    received.longest_chunk = received.longest_chunk.max(chunk.len());
                    received.bytes.extend(chunk);
                }
                None => return Err(Status::invalid_argument("an empty message")),
            }
        }
        let size = received.header.as_ref().map_or(0, |header| header.size);
        let whole = size == received.bytes.len() as u64;
        self.sources.lock().unwrap().push(received);
        if whole { Ok(Response::new(Default::default())) } else { Err(Status::invalid_argument("too short")) }
    }

    async fn put_policy_pack(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        self.record_call("put a policy pack".to_owned());
        self.put_source(request).await
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunReply>, Status> {
        self.record_call(format!("run {}", request.into_inner().id));
        match &self.refusal {
            Some(status) => Err(status.clone()),
            None => Ok(Response::new(proto::RunReply { known: true, ..Default::default() })),
        }
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let request = request.into_inner();
        let purpose = if request.prevent_start { " to prevent the start" } else { "" };
        self.record_call(format!("attach {} {}{purpose}", request.id, request.from));
        if self.has_no_operations {
            return Err(Status::not_found("no such operation"));
        }
        let progress = |sequence| proto::Progress { sequence, ..Default::default() };
        let parts = [
            proto::attach_reply::Part::Progress(progress(request.from)),
            proto::attach_reply::Part::Progress(progress(request.from + 1)),
            proto::attach_reply::Part::Result(self.result.clone().unwrap_or_else(done)),
        ];
        let replies = parts.map(|part| Ok(proto::AttachReply { part: Some(part) }));
        Ok(Response::new(Box::pin(futures::stream::iter(replies))))
    }

    async fn read_transcript(
        &self,
        request: Request<proto::ReadTranscriptRequest>,
    ) -> Result<Response<proto::ReadTranscriptReply>, Status> {
        let request = request.into_inner();
        self.record_call(format!("read transcript {} {} {}", request.id, request.part, request.offset));
        let content = vec![b'x'; MAX_CHUNK + 1];
        let rest = content.get(request.offset as usize..).unwrap_or_default();
        let chunk = rest[..rest.len().min(MAX_CHUNK)].to_vec();
        Ok(Response::new(proto::ReadTranscriptReply { chunk, size: content.len() as u64 }))
    }

    async fn acknowledge(
        &self,
        request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        self.record_call(format!("acknowledge {}", request.into_inner().id));
        Ok(Response::new(Default::default()))
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        self.record_call(format!("cancel {}", request.into_inner().id));
        Err(Status::not_found("no such operation"))
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        Ok(Response::new(proto::DrainReply { open_operation: "open".into() }))
    }
}

fn done() -> proto::Result {
    proto::Result { message: "done".into(), ..Default::default() }
}

/// Reader that returns some bytes and then an error.
struct BrokenReader(Cursor<Vec<u8>>);

impl AsyncRead for BrokenReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.0).poll_read(context, buffer);
        if buffer.filled().len() == before { Poll::Ready(Err(io::Error::other("the disk is gone"))) } else { polled }
    }
}

async fn connected(agent: &FakeAgent) -> (Serving, AgentClient) {
    let serving = Serving::start(agent.clone()).await;
    let client = serving.agents().connect(&serving.address()).await.unwrap();
    (serving, client)
}

fn header(size: u64) -> proto::SourceHeader {
    let artifact = proto::Artifact { digest: "sha256:abc".into(), directory: "infra".into() };
    proto::SourceHeader { artifact: Some(artifact), size, ..Default::default() }
}

#[tokio::test]
async fn a_source_is_sent_completely_and_in_chunks() {
    let agent = FakeAgent::default();
    let (_serving, client) = connected(&agent).await;
    let bytes: Vec<u8> = (0..1024 * 1024 + 7_u32).map(|number| (number % 251) as u8).collect();
    let size = bytes.len() as u64;
    client.put_source(header(size), Cursor::new(bytes.clone()), &Sending::default()).await.unwrap();
    client.put_source(header(0), tokio::io::empty(), &Sending::default()).await.unwrap();
    let received = agent.sources.lock().unwrap().clone();
    assert_eq!(received[0], Received { header: Some(header(size)), bytes, longest_chunk: 256 * 1024 });
    assert_eq!(received[1], Received { header: Some(header(0)), bytes: vec![], longest_chunk: 0 });
}

#[tokio::test]
async fn a_source_stream_is_aborted_if_the_agent_reads_too_slowly() {
    let agent = FakeAgent { hangs: true, ..FakeAgent::default() };
    let (_serving, client) = connected(&agent).await;
    let (size, sending) = (64 * 1024 * 1024, Sending::default());
    let least = Rate { bytes: 16 * 1024 * 1024, within: Duration::from_millis(200) };
    let bytes = tokio::io::repeat(1).take(size);
    let put = client.put_source_at(header(size), Box::pin(bytes), &sending, least);
    let error = tokio::time::timeout(Duration::from_secs(20), put)
        .await
        .expect("the call ends before the timeout")
        .unwrap_err();
    assert!(error.is_timeout() && error.message.contains("the minimum is 16777216 bytes"), "{error}");
    let done = tokio::time::timeout(Duration::from_millis(1), sending.done());
    assert!(done.await.is_err(), "the stream was not sent completely");
}

#[tokio::test]
async fn a_stream_is_complete_when_the_connection_has_accepted_all_bytes() {
    let agent = FakeAgent { hangs: true, ..FakeAgent::default() };
    let (_serving, client) = connected(&agent).await;
    let sending = Sending::default();
    // The complete source fits into the connection's buffers, so the stream completes even though the agent does not
    // read the source.
    let least = Rate { bytes: 1024 * 1024, within: Duration::from_millis(100) };
    let put = client.put_source_at(header(7), Cursor::new(vec![1; 7]), &sending, least);
    let put = tokio::time::timeout(Duration::from_secs(1), put);
    let done = tokio::time::timeout(Duration::from_millis(900), sending.done());
    let (put, done) = tokio::join!(put, done);
    assert!(done.is_ok() && put.is_err(), "the call continues without a minimum rate: {put:?}");
}

#[tokio::test]
async fn a_hostile_result_is_bounded_when_it_is_received() {
    let hostile = proto::Result {
        permalink: "x".repeat(1024 * 1024),
        changes: (0..50_000).map(|number| (format!("create-{number}"), 1)).collect(),
        ..done()
    };
    let agent = FakeAgent { result: Some(hostile), ..FakeAgent::default() };
    let (_serving, client) = connected(&agent).await;
    let mut attachment = client.attach("42", 0).await.unwrap();
    let mut found = None;
    while let Some(reply) = attachment.next().await.unwrap() {
        if let Some(proto::attach_reply::Part::Result(result)) = reply.part {
            found = Some(result);
        }
    }
    let found = found.expect("result is set");
    assert_eq!((found.message.as_str(), found.permalink.as_str(), found.changes.len()), ("done", "", 32));
}

#[tokio::test]
async fn a_failed_artifact_read_is_reported() {
    let agent = FakeAgent::default();
    let (_serving, client) = connected(&agent).await;
    let reader = BrokenReader(Cursor::new(vec![1; 300 * 1024]));
    let error = client.put_source(header(400 * 1024), reader, &Sending::default()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to call PutSource of the agent: failed to read the artifact: the disk is gone (Aborted)"
    );
}

#[tokio::test]
async fn progress_is_ordered_and_ends_with_the_result() {
    let agent = FakeAgent::default();
    let (_serving, client) = connected(&agent).await;
    let mut attachment = client.attach("42", 7).await.unwrap();
    let mut seen = Vec::new();
    while let Some(reply) = attachment.next().await.unwrap() {
        seen.push(match reply.part.unwrap() {
            proto::attach_reply::Part::Progress(progress) => progress.sequence.to_string(),
            proto::attach_reply::Part::Result(result) => result.message,
        });
    }
    assert_eq!(seen, ["7", "8", "done"]);
}

#[tokio::test]
async fn unary_calls_return_the_reply_or_the_error_of_the_agent() {
    let agent = FakeAgent::default();
    let (_serving, client) = connected(&agent).await;
    let request = proto::RunRequest { id: "1".into(), ..Default::default() };
    assert!(client.run(request).await.unwrap().known);
    client.acknowledge("2").await.unwrap();
    let refused = client.cancel("3").await.unwrap_err();
    assert!(refused.is_not_found() && refused.is_refusal() && !refused.is_unavailable(), "{refused}");
    assert_eq!(client.drain().await.unwrap().open_operation, "open");
    assert_eq!(*agent.calls.lock().unwrap(), ["run 1", "acknowledge 2", "cancel 3"]);
}

#[tokio::test]
async fn the_error_for_a_rejected_call_contains_the_bounded_agent_message() {
    let message = format!("another source\u{1b}[31m is installed {}", "ä".repeat(6000));
    let agent = FakeAgent { refusal: Some(Status::failed_precondition(message)), ..FakeAgent::default() };
    let (_serving, client) = connected(&agent).await;
    let error = client.run(proto::RunRequest::default()).await.unwrap_err();
    assert_eq!((error.call, error.code), ("Run", Code::FailedPrecondition));
    assert!(error.is_refusal() && !error.is_unavailable());
    assert!(error.message.starts_with("another source [31m is installed ä"), "{error}");
    assert!(error.message.len() <= 8 * 1024);
}

#[tokio::test]
async fn the_failure_message_of_a_candidate_source_is_truncated() {
    let (_serving, client) = connected(&FakeAgent::default()).await;
    let failure = client.status().await.unwrap().candidate.unwrap().failure;
    assert!(failure.starts_with(" ä") && failure.len() <= 8 * 1024, "{} bytes", failure.len());
}

#[tokio::test]
async fn an_oversized_response_is_rejected() {
    let agent = FakeAgent { version_length: 9 * 1024 * 1024, ..FakeAgent::default() };
    let (_serving, client) = connected(&agent).await;
    let error = client.status().await.unwrap_err();
    assert_eq!((error.call, error.code), ("Status", Code::OutOfRange));
}

#[tokio::test]
async fn an_unreachable_agent_is_reported_as_unavailable() {
    let serving = Serving::start(FakeAgent::default()).await;
    let (agents, mut address) = (serving.agents(), serving.address());
    // The port was free a moment ago, so no process is listening on this port.
    address.port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = agents.connect(&address).await.map(|_| ()).unwrap_err();
    assert!(error.is_unavailable() && error.message.contains("refused"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_response_times_out() {
    let silence = std::future::pending::<Result<tonic::Response<()>, Status>>();
    let error = unary(&CloseReason::default(), "Status", CALL_TIMEOUT, silence).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to call Status of the agent: no response within 10 s (DeadlineExceeded)");
    assert!(error.is_unavailable());
}

#[test]
fn no_status_code_means_both_rejected_and_unavailable() {
    for code in (0..17).map(Code::from_i32) {
        let error = RpcError::new("Run", code, "");
        assert!(!(error.is_refusal() && error.is_unavailable()), "{code:?}");
    }
}

#[tokio::test]
async fn a_part_of_a_transcript_is_read_in_chunks() {
    let agent = FakeAgent::default();
    let (_serving, client) = connected(&agent).await;
    let content = client.transcript("a", proto::TranscriptPart::Events).await.unwrap();
    assert_eq!(content.len(), MAX_CHUNK + 1);
    let calls = agent.calls.lock().unwrap().clone();
    assert_eq!(calls, ["read transcript a 2 0", "read transcript a 2 262144"]);
}
