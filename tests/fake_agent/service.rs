//! gRPC service of the fake agent.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::{Stream, StreamExt};
use prost::Message;
use pulumi_controller::artifact::{Digest, Hasher};
use pulumi_controller::rpc::proto;
use pulumi_controller::rpc::proto::agent_server::Agent;
use pulumi_controller::rpc::proto::attach_reply::Part as Attached;
use pulumi_controller::rpc::proto::put_source_request::Part;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::older::{self, Older};
use super::pods::Pods;
use super::workspace::{Key, Operation, Workspace, Workspaces};
use super::{Behavior, Behaviors, Counts, Fault};

pub(super) struct Service {
    pub(super) workspaces: Arc<Workspaces>,
    pods: Pods,
    /// The only workspace, or `None` if the agent serves several workspaces.
    only: Option<Key>,
    behaviors: Behaviors,
    older: Arc<Older>,
    pub(super) counts: Arc<Counts>,
    pub(super) finished: CancellationToken,
}

impl Service {
    pub(super) fn new(pods: Pods, only: Option<Key>, behaviors: Behaviors) -> anyhow::Result<Service> {
        let older = Arc::new(Older::load()?);
        let (workspaces, counts, finished) = Default::default();
        Ok(Service { workspaces, pods, only, behaviors, older, counts, finished })
    }

    /// Returns the workspace to which the connection belongs.
    fn key<R>(&self, request: &Request<R>) -> Result<Key, Status> {
        let known = self.only.as_ref().or_else(|| request.extensions().get::<Key>());
        known.cloned().ok_or_else(|| Status::internal("unknown caller"))
    }

    /// Calls a function with the workspace to which the connection belongs.
    fn with<T, R>(
        &self,
        request: &Request<R>,
        act: impl FnOnce(&mut Workspace) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let key = self.key(request)?;
        let uid = self.pods.uid(&key).ok_or_else(|| Status::unavailable("the workspace has no pod"))?;
        self.workspaces.with(&key, &uid, act)
    }

    fn operation<R>(&self, request: &Request<R>, id: &str) -> Result<Arc<Operation>, Status> {
        self.with(request, |workspace| workspace.find(id).ok_or_else(|| Status::not_found("no such operation")))
    }

    fn behavior<R>(&self, request: &Request<R>) -> Result<Behavior, Status> {
        Ok((self.behaviors)(&self.key(request)?.name))
    }

    /// Returns the message filter for the workspace of the connection.
    fn message_filter<R>(&self, request: &Request<R>) -> Result<MessageFilter, Status> {
        Ok(MessageFilter(self.behavior(request)?.is_older.then(|| self.older.clone())))
    }
}

/// Filter of messages. For an older agent, the filter removes the fields that are missing in the older version.
#[derive(Clone)]
struct MessageFilter(Option<Arc<Older>>);

impl MessageFilter {
    fn pass<M: Message + Default>(&self, name: &str, message: M) -> Result<M, Status> {
        match &self.0 {
            None => Ok(message),
            Some(older) => older.pass(name, &message).map_err(|error| Status::internal(format!("{error:#}"))),
        }
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<proto::AttachReply, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Service {
    type AttachStream = Replies;

    async fn status(&self, request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        self.counts.statuses.fetch_add(1, Ordering::Relaxed);
        let mut reply = self.with(&request, |workspace| Ok(workspace.status()))?;
        self.workspaces.record_call(self.key(&request)?);
        if self.behavior(&request)?.is_older {
            older::VERSION.clone_into(&mut reply.agent_version);
        }
        self.message_filter(&request)?.pass("StatusReply", reply).map(Response::new)
    }

    async fn put_source(
        &self,
        mut request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        if self.behavior(&request)?.fault == Fault::SlowSources {
            request.get_mut().message().await?;
            std::future::pending::<()>().await;
        }
        let artifact = receive(request.get_mut()).await?;
        self.counts.sources.fetch_add(1, Ordering::Relaxed);
        let unchanged = self.with(&request, |workspace| workspace.put(artifact))?;
        self.message_filter(&request)?.pass("PutSourceReply", proto::PutSourceReply { unchanged }).map(Response::new)
    }

    async fn put_policy_pack(
        &self,
        mut request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let artifact = receive(request.get_mut()).await?;
        let unchanged = self.with(&request, |workspace| Ok(workspace.put_policy_pack(artifact)))?;
        self.message_filter(&request)?.pass("PutSourceReply", proto::PutSourceReply { unchanged }).map(Response::new)
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunReply>, Status> {
        let filter = self.message_filter(&request)?;
        let received = filter.pass("RunRequest", request.get_ref().clone())?;
        let run_time = self.behavior(&request)?.run_time;
        let finished = self.finished.clone();
        let known = self.with(&request, |workspace| workspace.run(&received, run_time, finished))?;
        self.counts.runs.fetch_add(u64::from(!known), Ordering::Relaxed);
        let reply = proto::RunReply { known, ..proto::RunReply::default() };
        filter.pass("RunReply", reply).map(Response::new)
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Result<Response<Replies>, Status> {
        let operation = self.operation(&request, &request.get_ref().id)?;
        let filter = self.message_filter(&request)?;
        let attached = Attachment::new(&self.counts);
        let started = (request.get_ref().from == 0).then(|| Attached::Progress(operation.started()));
        let fault = self.behavior(&request)?.fault;
        let (result_of, until) = (operation.clone(), operation);
        let result = futures::stream::once(async move {
            // The stream stays open until the result is available or the client disconnects.
            let _attached = attached;
            result_of.until_ended().await;
            Attached::Result(if fault == Fault::HugeResults { result_of.huge_result() } else { result_of.result() })
        });
        let flood = futures::stream::iter((fault == Fault::Floods).then(|| flood(until))).flatten();
        let parts = futures::stream::iter(started).chain(flood).chain(result);
        let replies = parts.map(move |part| filter.pass("AttachReply", proto::AttachReply { part: Some(part) }));
        Ok(Response::new(Box::pin(replies)))
    }

    async fn read_transcript(
        &self,
        request: Request<proto::ReadTranscriptRequest>,
    ) -> Result<Response<proto::ReadTranscriptReply>, Status> {
        if self.behavior(&request)?.is_older {
            return Err(Status::unimplemented("an older agent has no transcripts"));
        }
        self.operation(&request, &request.get_ref().id)?;
        Ok(Response::new(proto::ReadTranscriptReply::default()))
    }

    async fn acknowledge(
        &self,
        request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        let is_first = self.operation(&request, &request.get_ref().id)?.acknowledge();
        self.counts.acknowledged.fetch_add(u64::from(is_first), Ordering::Relaxed);
        Ok(Response::new(proto::AcknowledgeReply {}))
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        self.operation(&request, &request.get_ref().id)?.cancelled.cancel();
        Ok(Response::new(proto::CancelReply {}))
    }

    async fn drain(&self, request: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        let open_operation = self.with(&request, |workspace| {
            workspace.drain();
            Ok(workspace.open_operation())
        })?;
        self.message_filter(&request)?.pass("DrainReply", proto::DrainReply { open_operation }).map(Response::new)
    }
}

/// Sends progress events as fast as the client reads them, until the run ends.
fn flood(operation: Arc<Operation>) -> impl Stream<Item = Attached> + Send {
    let number = futures::stream::iter(1_u32..);
    let reported =
        number.map(move |number| operation.is_open().then(|| Attached::Progress(operation.another_process(number))));
    reported.take_while(|reported| std::future::ready(reported.is_some())).filter_map(std::future::ready)
}

/// Guard that counts a stream as open until the guard is dropped.
struct Attachment(Arc<Counts>);

impl Attachment {
    fn new(counts: &Arc<Counts>) -> Attachment {
        counts.attachments.fetch_add(1, Ordering::Relaxed);
        counts.attached.fetch_add(1, Ordering::Relaxed);
        Attachment(counts.clone())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.0.attached.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Receives a source, verifies the source as a real agent does, and discards the content.
async fn receive(parts: &mut Streaming<proto::PutSourceRequest>) -> Result<proto::Artifact, Status> {
    let header = match parts.message().await?.and_then(|message| message.part) {
        Some(Part::Header(header)) => header,
        _ => return Err(Status::invalid_argument("the first message must be the header")),
    };
    let artifact = header.artifact.unwrap_or_default();
    let expected = Digest::from_str(&artifact.digest).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let mut hasher = Hasher::new(expected.algorithm());
    let mut size = 0;
    while let Some(message) = parts.message().await? {
        let Some(Part::Chunk(bytes)) = message.part else {
            return Err(Status::invalid_argument("a message has no bytes"));
        };
        size += bytes.len() as u64;
        hasher.update(&bytes);
    }
    if size != header.size || !expected.verify(&hasher.finish()) {
        return Err(Status::data_loss("digest of the source does not match"));
    }
    Ok(artifact)
}
