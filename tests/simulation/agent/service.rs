//! The service of the agents, behind the generated trait. The faults of the world decide which calls arrive.

use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use pulumi_controller::agent::journal::{Item, Reader};
use pulumi_controller::agent::refusal::Refusal;
use pulumi_controller::artifact::{Digest, Hasher};
use pulumi_controller::rpc::proto;
use pulumi_controller::rpc::proto::agent_server::Agent;
use pulumi_controller::rpc::proto::attach_reply::Part as Attached;
use pulumi_controller::rpc::proto::put_source_request::Part;
use pulumi_controller::rpc::protocol::PROTOCOL_VERSION;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::super::faults::Faults;
use super::container::{Admission, Container};
use super::program::Program;

/// Maximum time that a run waits for the required Secrets and ConfigMaps.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which a run looks for them.
const POLL: Duration = Duration::from_millis(500);

/// Service for the connection of a replica to an agent.
pub struct Caller {
    pub container: Arc<Container>,
    pub replica: String,
    pub faults: Faults,
}

impl Caller {
    /// Handles a call with the faults of this call: it can get lost before or after the agent handles it.
    async fn call<T>(
        &self,
        name: &str,
        handle: impl AsyncFnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let fault = self.faults.next(&self.replica, &format!("{name} {}", self.container.pod.name()));
        fault.before().await.map_err(|()| Status::unavailable("connection lost before the call"))?;
        let result = handle().await;
        fault.after().await.map_err(|()| Status::unavailable("connection lost after the call"))?;
        result.map(Response::new)
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<proto::AttachReply, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Caller {
    type AttachStream = Replies;

    async fn status(&self, request: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        self.faults.check(&self.replica).await?;
        let (container, request) = (&self.container, request.into_inner());
        let interactive_session = container.has_session().then(|| proto::InteractiveSession {
            command: "pulumi up".to_owned(),
            pid: 1,
            since: 0,
        });
        Ok(Response::new(proto::StatusReply {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            pulumi_version: "v3.259.0".to_owned(),
            start_id: container.id.clone(),
            pod_uid: container.pod_uid.clone(),
            artifact: container.artifact(),
            settings_digest: container.settings_digest(),
            open_operation: container.workspace_lock.open_operation().unwrap_or_default(),
            draining: container.workspace_lock.is_draining(),
            candidate: None,
            interactive_session,
            config_inputs: container.mounts.hash_of_files(&request.config_files),
            project_name: container.project_name(),
            protocol_version: PROTOCOL_VERSION,
            mounted_inputs: container.mounts.hashes(&request.mounted_directories).collect(),
            policy_packs: Vec::new(),
            uncached: None,
        }))
    }

    async fn put_source(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let (artifact, bytes) = receive(request.into_inner()).await?;
        self.call("PutSource", async || {
            let program = Program::read(&bytes).ok_or_else(|| Status::invalid_argument("not a Pulumi YAML program"))?;
            Ok(proto::PutSourceReply { unchanged: self.container.install(artifact, program)? })
        })
        .await
    }

    async fn put_policy_pack(
        &self,
        _: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        Err(Status::unimplemented("policy packs are not simulated"))
    }

    async fn run(&self, request: Request<proto::RunRequest>) -> Result<Response<proto::RunReply>, Status> {
        let request = request.into_inner();
        self.call("Run", async || {
            let container = &self.container;
            let call = container.register(&request.id)?;
            if container.journal.find(&request.id).is_none() {
                let end = Instant::now() + MOUNT_TIMEOUT;
                while let Some(empty) = container.mounts.empty(&request.required_directories) {
                    if Instant::now() >= end {
                        return Err(Refusal::Precondition(format!("nothing is mounted at {empty}")).into());
                    }
                    tokio::time::sleep(POLL).await;
                }
            }
            let config_inputs = container.mounts.hash_of_files(&request.config_files);
            Ok(match container.run(&call, request, config_inputs)? {
                Admission::Begun => proto::RunReply { known: false, held: String::new() },
                Admission::Known => proto::RunReply { known: true, held: String::new() },
                Admission::Held(held) => proto::RunReply { known: false, held },
            })
        })
        .await
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Result<Response<Replies>, Status> {
        let request = request.into_inner();
        self.call("Attach", async || {
            let record = self.container.find(&request.id, request.prevent_start)?;
            let replies = futures::stream::unfold(Reader::new(record, request.from), |mut reader| async {
                reader.next().await.map(|item| (Ok(reply(item)), reader))
            });
            Ok(Box::pin(replies) as Replies)
        })
        .await
    }

    async fn read_transcript(
        &self,
        request: Request<proto::ReadTranscriptRequest>,
    ) -> Result<Response<proto::ReadTranscriptReply>, Status> {
        self.faults.check(&self.replica).await?;
        let request = request.into_inner();
        let record = self.container.journal.find(&request.id);
        record.ok_or_else(|| Status::from(Refusal::UnknownOperation(request.id)))?;
        Ok(Response::new(proto::ReadTranscriptReply { chunk: Vec::new(), size: 0 }))
    }

    async fn acknowledge(
        &self,
        request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        let id = request.into_inner().id;
        self.call("Acknowledge", async || {
            let record = self.container.journal.find(&id).ok_or_else(|| Refusal::UnknownOperation(id.clone()))?;
            if record.result().is_none() {
                return Err(Refusal::Precondition(format!("operation {id} has no result yet")).into());
            }
            record.acknowledge().map_err(Refusal::system("failed to record the acknowledgment of the result"))?;
            Ok(proto::AcknowledgeReply {})
        })
        .await
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        let proto::CancelRequest { id, pod_ends_in_seconds } = request.into_inner();
        self.call("Cancel", async || {
            self.container.cancel(&id, pod_ends_in_seconds)?;
            Ok(proto::CancelReply {})
        })
        .await
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        self.call("Drain", async || {
            let workspace_lock = &self.container.workspace_lock;
            workspace_lock.drain();
            Ok(proto::DrainReply { open_operation: workspace_lock.open_operation().unwrap_or_default() })
        })
        .await
    }
}

fn reply(item: Item) -> proto::AttachReply {
    let part = match item {
        Item::Progress(progress) => Attached::Progress(progress),
        Item::Result(result) => Attached::Result(result.as_ref().clone()),
    };
    proto::AttachReply { part: Some(part) }
}

/// Receives an archive, and verifies its digest as a real agent does.
async fn receive(mut parts: Streaming<proto::PutSourceRequest>) -> Result<(proto::Artifact, Vec<u8>), Status> {
    let header = match parts.message().await?.and_then(|message| message.part) {
        Some(Part::Header(header)) => header,
        _ => return Err(Status::invalid_argument("the first message must be the header")),
    };
    let artifact = header.artifact.unwrap_or_default();
    let expected = Digest::from_str(&artifact.digest).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let mut bytes = Vec::new();
    while let Some(message) = parts.message().await? {
        let Some(Part::Chunk(chunk)) = message.part else { return Err(Status::invalid_argument("no bytes")) };
        bytes.extend_from_slice(&chunk);
    }
    let mut hasher = Hasher::new(expected.algorithm());
    hasher.update(&bytes);
    match expected.verify(&hasher.finish()) {
        true => Ok((artifact, bytes)),
        false => Err(Status::data_loss("digest of the source does not match")),
    }
}
