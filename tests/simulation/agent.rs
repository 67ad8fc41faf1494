//! The simulated agents, behind the generated service of the agent protocol. An agent lives as long as its container,
//! and its journal as long as its pod.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::Stream;
use kube_sim::{GroupResource, Server};
use pulumi_controller::artifact::{Digest, Hasher};
use pulumi_controller::rpc::client::{ByteStream, Dial};
use pulumi_controller::rpc::proto::agent_server::{Agent, AgentServer};
use pulumi_controller::rpc::proto::attach_reply::Part as Attached;
use pulumi_controller::rpc::proto::put_source_request::Part;
use pulumi_controller::rpc::proto::{self, progress::Event};
use pulumi_controller::rpc::protocol::{PROTOCOL_VERSION, settings_digest};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::backend::{Backend, Process};
use super::faults::Faults;

/// Size of the buffer of a connection, in bytes.
const BUFFER: usize = 64 * 1024;

/// All agents of the cluster. Cloning is cheap.
#[derive(Clone)]
pub struct Agents {
    server: Server,
    backend: Backend,
    by_pod: Arc<Mutex<BTreeMap<String, Arc<PodAgent>>>>,
}

impl Agents {
    pub fn new(server: &Server, backend: &Backend) -> Agents {
        Agents { server: server.clone(), backend: backend.clone(), by_pod: Arc::default() }
    }

    /// Returns the function with which a replica connects to agents.
    pub fn dial(&self, replica: &str, faults: &Faults) -> Dial {
        let (agents, replica, faults) = (self.clone(), replica.to_owned(), faults.clone());
        Arc::new(move |address| {
            let (agents, replica, faults) = (agents.clone(), replica.clone(), faults.clone());
            Box::pin(async move { agents.connect(address, &replica, &faults) })
        })
    }

    fn connect(&self, address: SocketAddr, replica: &str, faults: &Faults) -> io::Result<Box<dyn ByteStream>> {
        let agent = self.at(address).ok_or(io::ErrorKind::ConnectionRefused)?;
        if faults.is_crashed(replica) {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        let (near, far) = tokio::io::duplex(BUFFER);
        let call = Caller { agent, replica: replica.to_owned(), faults: faults.clone() };
        let connections = futures::stream::iter([io::Result::Ok(far)]);
        let server = tonic::transport::Server::builder().serve_with_incoming(AgentServer::new(call), connections);
        tokio::spawn(server);
        Ok(Box::new(near))
    }

    /// Returns the agent of the running pod with this address.
    fn at(&self, address: SocketAddr) -> Option<Arc<PodAgent>> {
        let pods = self.server.list(&GroupResource::new("", "pods"), None);
        let text = |pod: &Value, path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let pod = pods.iter().find(|pod| text(pod, "/status/podIP") == address.ip().to_string())?;
        if text(pod, "/status/phase") != "Running" {
            return None;
        }
        let uid = text(pod, "/metadata/uid");
        let mut by_pod = self.by_pod.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(PodAgent::new(&uid, &text(pod, "/metadata/name"), &self.backend));
        Some(by_pod.entry(uid.clone()).or_insert_with(new).clone())
    }
}

struct PodAgent {
    pod_uid: String,
    pod_name: String,
    backend: Backend,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    artifact: Option<proto::Artifact>,
    program: BTreeMap<String, String>,
    settings_digest: String,
    is_draining: bool,
    journal: BTreeMap<String, Arc<Run>>,
    /// Runs that the controller has prevented from starting.
    prevented: Vec<String>,
}

/// A run in the journal.
struct Run {
    began: i64,
    result: watch::Sender<Option<proto::Result>>,
    canceled: CancellationToken,
}

impl PodAgent {
    fn new(pod_uid: &str, pod_name: &str, backend: &Backend) -> PodAgent {
        let (pod_uid, pod_name) = (pod_uid.to_owned(), pod_name.to_owned());
        PodAgent { pod_uid, pod_name, backend: backend.clone(), content: Mutex::default() }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_id(&self) -> String {
        format!("start-{}", self.pod_uid)
    }

    fn run(&self, id: &str) -> Result<Arc<Run>, Status> {
        self.content().journal.get(id).cloned().ok_or_else(|| Status::not_found("no such operation"))
    }

    /// Starts the CLI. Returns whether the agent knew the run.
    fn start(self: &Arc<Self>, request: proto::RunRequest) -> Result<bool, Status> {
        let mut content = self.content();
        if content.journal.contains_key(&request.id) {
            return Ok(true);
        }
        let settings = request.settings.clone().unwrap_or_default();
        let refused = [
            (content.prevented.contains(&request.id), "the run was prevented"),
            (content.is_draining, "the agent is being drained"),
            (!content.open_run().is_empty(), "another run is open"),
            (request.pod_uid != self.pod_uid, "the pod has another UID"),
            (request.start_id != self.start_id(), "the agent has restarted"),
            (request.artifact != content.artifact, "another source is installed"),
            (request.settings_digest != settings_digest(&settings), "the settings do not match their digest"),
        ];
        if let Some((_, why)) = refused.into_iter().find(|(applies, _)| *applies) {
            return Err(Status::failed_precondition(why));
        }
        content.settings_digest.clone_from(&request.settings_digest);
        let run = Arc::new(Run { began: now(), result: watch::channel(None).0, canceled: CancellationToken::new() });
        content.journal.insert(request.id.clone(), run.clone());
        let process = Process {
            name: format!("{} in {}", request.name, self.pod_name),
            kind: request.kind(),
            stack: settings.stack,
            program: content.program.clone(),
        };
        let backend = self.backend.clone();
        tokio::spawn(async move {
            let (outcome, changes) = backend.run(&process, &run.canceled).await;
            run.result.send_replace(Some(proto::Result {
                outcome: outcome.into(),
                started: run.began,
                ended: now(),
                changes: changes.into_iter().collect(),
                ..proto::Result::default()
            }));
        });
        Ok(false)
    }
}

impl Content {
    fn open_run(&self) -> String {
        let open = self.journal.iter().find(|(_, run)| run.result.borrow().is_none());
        open.map(|(id, _)| id.clone()).unwrap_or_default()
    }
}

/// Service for the connection of a replica to an agent.
struct Caller {
    agent: Arc<PodAgent>,
    replica: String,
    faults: Faults,
}

impl Caller {
    /// Handles a call with the faults of this call: it can get lost before or after the agent handles it.
    async fn call<T>(
        &self,
        name: &str,
        handle: impl AsyncFnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let fault = self.faults.next(&self.replica, &format!("{name} {}", self.agent.pod_name));
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

    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        self.faults.check(&self.replica).await?;
        let content = self.agent.content();
        Ok(Response::new(proto::StatusReply {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            pulumi_version: "v3.259.0".to_owned(),
            start_id: self.agent.start_id(),
            pod_uid: self.agent.pod_uid.clone(),
            artifact: content.artifact.clone(),
            settings_digest: content.settings_digest.clone(),
            open_operation: content.open_run(),
            draining: content.is_draining,
            project_name: "simulated".to_owned(),
            protocol_version: PROTOCOL_VERSION,
            ..proto::StatusReply::default()
        }))
    }

    async fn put_source(
        &self,
        request: Request<Streaming<proto::PutSourceRequest>>,
    ) -> Result<Response<proto::PutSourceReply>, Status> {
        let (artifact, bytes) = receive(request.into_inner()).await?;
        self.call("PutSource", async || {
            let mut content = self.agent.content();
            let unchanged = content.artifact.as_ref() == Some(&artifact);
            if !unchanged && !content.open_run().is_empty() {
                return Err(Status::failed_precondition("a run is open"));
            }
            content.program = resources(&bytes).ok_or_else(|| Status::invalid_argument("not a Pulumi YAML program"))?;
            content.artifact = Some(artifact);
            Ok(proto::PutSourceReply { unchanged })
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
            let known = self.agent.start(request)?;
            Ok(proto::RunReply { known, held: String::new() })
        })
        .await
    }

    async fn attach(&self, request: Request<proto::AttachRequest>) -> Result<Response<Replies>, Status> {
        let request = request.into_inner();
        self.call("Attach", async || {
            if request.prevent_start && !self.agent.content().journal.contains_key(&request.id) {
                self.agent.content().prevented.push(request.id.clone());
            }
            let run = self.agent.run(&request.id)?;
            let event = Some(Event::Started(proto::Started { pid: 1 }));
            let started = Attached::Progress(proto::Progress { sequence: 0, time: run.began, event });
            let mut result = run.result.subscribe();
            let ended = async move {
                let result = result.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
                result.map(Attached::Result).ok_or_else(|| Status::unavailable("the agent has ended"))
            };
            let parts = futures::StreamExt::chain(futures::stream::iter([Ok(started)]), futures::stream::once(ended));
            let replies = futures::StreamExt::map(parts, |part| Ok(proto::AttachReply { part: Some(part?) }));
            Ok(Box::pin(replies) as Replies)
        })
        .await
    }

    async fn read_transcript(
        &self,
        _: Request<proto::ReadTranscriptRequest>,
    ) -> Result<Response<proto::ReadTranscriptReply>, Status> {
        Err(Status::unimplemented("transcripts are not simulated"))
    }

    async fn acknowledge(
        &self,
        request: Request<proto::AcknowledgeRequest>,
    ) -> Result<Response<proto::AcknowledgeReply>, Status> {
        let id = request.into_inner().id;
        self.call("Acknowledge", async || {
            self.agent.content().journal.remove(&id);
            Ok(proto::AcknowledgeReply {})
        })
        .await
    }

    async fn cancel(&self, request: Request<proto::CancelRequest>) -> Result<Response<proto::CancelReply>, Status> {
        let id = request.into_inner().id;
        self.call("Cancel", async || {
            self.agent.run(&id)?.canceled.cancel();
            Ok(proto::CancelReply {})
        })
        .await
    }

    async fn drain(&self, _: Request<proto::DrainRequest>) -> Result<Response<proto::DrainReply>, Status> {
        self.call("Drain", async || {
            let mut content = self.agent.content();
            content.is_draining = true;
            Ok(proto::DrainReply { open_operation: content.open_run() })
        })
        .await
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
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

/// Returns the resources of the program in an archive, by name, with their properties.
fn resources(archive: &[u8]) -> Option<BTreeMap<String, String>> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(archive));
    for entry in archive.entries().ok()? {
        let mut entry = entry.ok()?;
        if entry.path().ok()?.file_name()? != "Pulumi.yaml" {
            continue;
        }
        let mut text = String::new();
        entry.read_to_string(&mut text).ok()?;
        let program: Value = serde_saphyr::from_str(&text).ok()?;
        let resources = program.get("resources").and_then(Value::as_object).cloned().unwrap_or_default();
        return Some(resources.into_iter().map(|(name, resource)| (name, resource.to_string())).collect());
    }
    None
}
