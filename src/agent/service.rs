//! Implementation of the agent's gRPC service, which the controller calls.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::interactive_session;
use super::journal::{Item, Reader};
use super::mounts::{self, InputHasher};
use super::operations::{Admission, Operations};
use super::refusal::Refusal;
use crate::rpc::proto;
use crate::rpc::proto::agent_server::Agent;
use crate::rpc::proto::attach_reply::Part;
use crate::rpc::protocol::PROTOCOL_VERSION;

/// Maximum time that a run waits until the kubelet has mounted the required Secrets and ConfigMaps. A short time is
/// sufficient, because the controller triggers a sync of the pod before it starts the run.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(20);

/// The gRPC service. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub operations: Arc<Operations>,
    pub inputs: Arc<InputHasher>,
}

type Replies = Pin<Box<dyn Stream<Item = Result<proto::AttachReply, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Service {
    type AttachStream = Replies;

    async fn status(&self, request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        let (inputs, request) = (self.inputs.clone(), request.into_inner());
        let hashes = move || inputs.hashes(&request.config_files, &request.mounted_directories);
        let hashes = tokio::task::spawn_blocking(hashes).await.unwrap_or_default();
        let operations = &self.operations;
        let pulumi_version = operations.source.version.known();
        // Reads the candidate first. Otherwise, the reply would contain neither the candidate nor its source if the
        // installation ended between both reads.
        let candidate = operations.source.candidate();
        let artifact = operations.source.current_source();
        Ok(Response::new(proto::StatusReply {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            pulumi_version,
            start_id: operations.identity.start_id.clone(),
            pod_uid: operations.identity.pod_uid.clone(),
            artifact: artifact.map(|current_source| proto::Artifact {
                digest: current_source.digest,
                directory: current_source.directory,
            }),
            settings_digest: operations.settings.digest(),
            open_operation: operations.workspace_lock.open_operation().unwrap_or_default(),
            draining: operations.workspace_lock.is_draining(),
            candidate,
            interactive_session: interactive_session::find(&operations.layout)?,
            config_inputs: hashes.files.unwrap_or_default(),
            mounted_inputs: hashes.directories,
            project_name: operations.source.project_name(),
            protocol_version: PROTOCOL_VERSION,
            policy_packs: operations.source.policy_pack_states(),
            uncached: operations.source.uncached(),
        }))
    }

    async fn put_source(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let parts = request.into_inner();
        let source = self.operations.source.clone();
        // Runs in a separate task, because the source installation must continue if the client disconnects.
        let putting = self.operations.tasks.spawn(async move { source.put(parts).await });
        let unchanged =
            putting.await.map_err(|error| Status::internal(format!("failed to install the source: {error}")))??;
        Ok(Response::new(proto::PutSourceReply { unchanged }))
    }

    async fn put_policy_pack(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let parts = request.into_inner();
        let source = self.operations.source.clone();
        let putting = self.operations.tasks.spawn(async move { source.put_policy_pack(parts).await });
        let unchanged = putting
            .await
            .map_err(|error| Status::internal(format!("failed to receive the policy pack: {error}")))??;
        Ok(Response::new(proto::PutSourceReply { unchanged }))
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunReply>, Status> {
        let request = request.into_inner();
        // The guard must exist until the operation is in the journal. Otherwise, another client would conclude that the
        // operation never began.
        let call = self.operations.register(&request.id)?;
        if self.operations.journal.find(&request.id).is_none() {
            mounts::wait(&self.operations.layout, &request.required_directories, MOUNT_TIMEOUT).await?;
        }
        self.operations.source.stop_policy_packs_not_of(&request).await?;
        let (inputs, files) = (self.inputs.clone(), request.config_files.clone());
        let hashes = tokio::task::spawn_blocking(move || inputs.hashes(&files, &[])).await.unwrap_or_default();
        let (known, held) = match self.operations.run(&call, request, hashes.files.unwrap_or_default())? {
            Admission::Begun => (false, String::new()),
            Admission::Known => (true, String::new()),
            Admission::Held(why) => (false, why),
        };
        Ok(Response::new(proto::RunReply { known, held }))
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Result<Response<Replies>, Status> {
        let request = request.into_inner();
        let record = match request.prevent_start {
            true => self.operations.find_or_prevent(&request.id)?,
            false => self.operations.find(&request.id)?,
        };
        let replies = futures::stream::unfold(Reader::new(record, request.from), |mut reader| async {
            reader.next().await.map(|item| (Ok(reply(item)), reader))
        });
        Ok(Response::new(Box::pin(replies)))
    }

    async fn read_transcript(
        &self,
        request: Request<proto::ReadTranscriptRequest>,
    ) -> Result<Response<proto::ReadTranscriptReply>, Status> {
        let request = request.into_inner();
        let (id, part) = (request.id.clone(), request.part());
        let record = self.operations.journal.find(&id).ok_or_else(|| Refusal::UnknownOperation(id.clone()))?;
        if record.result().is_none() {
            return Err(Refusal::Precondition(format!("operation {id} has no result yet")).into());
        }
        let read = move || record.transcript().read(part, request.offset);
        let read = tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let (chunk, size) = read.map_err(Refusal::system("failed to read the transcript of the operation"))?;
        Ok(Response::new(proto::ReadTranscriptReply { chunk, size }))
    }

    async fn acknowledge(
        &self,
        request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        let id = request.into_inner().id;
        let record = self.operations.journal.find(&id).ok_or_else(|| Refusal::UnknownOperation(id.clone()))?;
        if record.result().is_none() {
            return Err(Refusal::Precondition(format!("operation {id} has no result yet")).into());
        }
        record.acknowledge().map_err(Refusal::system("failed to record the acknowledgment of the result"))?;
        Ok(Response::new(proto::AcknowledgeReply {}))
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        let proto::CancelRequest { id, pod_ends_in_seconds } = request.into_inner();
        self.operations.cancel(&id, pod_ends_in_seconds)?;
        Ok(Response::new(proto::CancelReply {}))
    }

    async fn drain(&self, _request: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        self.operations.workspace_lock.drain();
        let open_operation = self.operations.workspace_lock.open_operation().unwrap_or_default();
        Ok(Response::new(proto::DrainReply { open_operation }))
    }
}

fn reply(item: Item) -> proto::AttachReply {
    let part = match item {
        Item::Progress(progress) => Part::Progress(progress),
        Item::Result(result) => Part::Result(result.as_ref().clone()),
    };
    proto::AttachReply { part: Some(part) }
}
