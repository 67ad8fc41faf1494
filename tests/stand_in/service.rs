//! The answers to the controller's calls.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{Stream, StreamExt};
use pulumi_controller::artifact::{Digest, Hasher};
use pulumi_controller::rpc::proto;
use pulumi_controller::rpc::proto::agent_server::Agent;
use pulumi_controller::rpc::proto::attach_reply::Part as Attached;
use pulumi_controller::rpc::proto::put_source_request::Part;
use tonic::{Request, Response, Status, Streaming};

use super::Counts;
use super::pods::Pods;
use super::workspace::{Key, Operation, Workspace, Workspaces};

pub(super) struct Service {
    pub(super) workspaces: Workspaces,
    pub(super) pods: Pods,
    /// How long a run takes.
    pub(super) run_time: Duration,
    pub(super) counts: Arc<Counts>,
}

impl Service {
    /// Does something with the workspace that the connection is about.
    fn with<T, R>(
        &self,
        request: &Request<R>,
        act: impl FnOnce(&mut Workspace) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let key = request.extensions().get::<Key>().ok_or_else(|| Status::internal("called by nobody"))?;
        let uid = self.pods.uid(key).ok_or_else(|| Status::unavailable("the workspace has no pod"))?;
        self.workspaces.with(key, &uid, act)
    }

    fn operation<R>(&self, request: &Request<R>, id: &str) -> Result<Arc<Operation>, Status> {
        self.with(request, |workspace| workspace.find(id).ok_or_else(|| Status::not_found("no such operation")))
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<proto::AttachReply, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Service {
    type AttachStream = Replies;

    async fn status(&self, request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        self.counts.statuses.fetch_add(1, Ordering::Relaxed);
        self.with(&request, |workspace| Ok(workspace.status())).map(Response::new)
    }

    async fn put_source(
        &self,
        mut request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let artifact = receive(request.get_mut()).await?;
        self.counts.sources.fetch_add(1, Ordering::Relaxed);
        let unchanged = self.with(&request, |workspace| workspace.put(artifact))?;
        Ok(Response::new(proto::PutSourceReply { unchanged }))
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunReply>, Status> {
        let known = self.with(&request, |workspace| workspace.run(request.get_ref(), self.run_time))?;
        self.counts.runs.fetch_add(u64::from(!known), Ordering::Relaxed);
        Ok(Response::new(proto::RunReply { known }))
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Result<Response<Replies>, Status> {
        let operation = self.operation(&request, &request.get_ref().id)?;
        let started = (request.get_ref().from == 0).then(|| Attached::Progress(operation.started()));
        let result = futures::stream::once(async move {
            tokio::select! {
                () = tokio::time::sleep_until(operation.ends) => {}
                () = operation.cancelled.cancelled() => {}
            }
            Attached::Result(operation.result())
        });
        let parts = futures::stream::iter(started).chain(result);
        Ok(Response::new(Box::pin(parts.map(|part| Ok(proto::AttachReply { part: Some(part) })))))
    }

    async fn acknowledge(
        &self,
        request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        self.operation(&request, &request.get_ref().id)?;
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
        Ok(Response::new(proto::DrainReply { open_operation }))
    }
}

/// Takes a source, verifies it as an agent does, and forgets its bytes.
async fn receive(parts: &mut Streaming<proto::PutSourceRequest>) -> Result<proto::Artifact, Status> {
    let header = match parts.message().await?.and_then(|message| message.part) {
        Some(Part::Header(header)) => header,
        _ => return Err(Status::invalid_argument("the first message is no header")),
    };
    let artifact = header.artifact.unwrap_or_default();
    let wanted = Digest::from_str(&artifact.digest).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let mut hasher = Hasher::new(wanted.algorithm());
    let mut size = 0;
    while let Some(message) = parts.message().await? {
        let Some(Part::Chunk(bytes)) = message.part else {
            return Err(Status::invalid_argument("a message holds no bytes"));
        };
        size += bytes.len() as u64;
        hasher.update(&bytes);
    }
    if size != header.size || !wanted.verify(&hasher.finish()) {
        return Err(Status::data_loss("the bytes are not those that were announced"));
    }
    Ok(artifact)
}
