//! Tests the controller's agent client with an agent of an older version, over a real connection.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use pulumi_controller::artifact::{Algorithm, Hasher};
use pulumi_controller::rpc::client::{AgentAddress, AgentClient, Agents, Sending};
use pulumi_controller::rpc::identity::Authority;
use pulumi_controller::rpc::proto;
use pulumi_controller::rpc::proto::attach_reply::Part;
use pulumi_controller::rpc::protocol::PROTOCOL_VERSION;
use pulumi_controller::rpc::protocol::settings_digest;
use tokio::net::TcpListener;

use crate::fake_agent::{Behavior, FakeAgent};

const SERVER_NAME: &str = "example-workspace.default.svc";
const POD_UID: &str = "11111111-2222-3333-4444-555555555555";
const RUN_TIME: Duration = Duration::from_millis(200);
/// Timeout of a run.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An agent, and a client with a connection to this agent.
struct Pair {
    fake_agent: FakeAgent,
    client: AgentClient,
    _tls: tempfile::TempDir,
}

async fn pair(is_older: bool) -> Pair {
    let now = jiff::Timestamp::now();
    let authority = Authority::generate(now).expect("an authority");
    let server = authority.issue_server(&[SERVER_NAME.to_owned()], now).expect("a certificate of the agent");
    let tls = tempfile::tempdir().expect("a folder");
    for (name, content) in [
        ("tls.crt", server.certificate_pem.as_str()),
        ("tls.key", server.key_pem.as_str()),
        ("ca.crt", authority.certificate_pem()),
    ] {
        fs::write(tls.path().join(name), content).expect("write the file");
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("address of the listener");
    let behavior = Behavior { run_time: RUN_TIME, is_older, ..Behavior::default() };
    let fake_agent = FakeAgent::alone(listener, tls.path(), POD_UID, behavior).expect("a fake agent");
    let client = authority.issue_client(now).expect("a certificate of the controller");
    let agents = Agents::new(&[client], authority.certificate_pem()).expect("an identity");
    let address = AgentAddress {
        ip: address.ip(),
        port: address.port(),
        server_name: SERVER_NAME.to_owned(),
        namespace: "apps".to_owned(),
    };
    let client = agents.connect(&address).await.expect("the agent responds");
    Pair { fake_agent, client, _tls: tls }
}

/// Executes a run with the same calls as the controller and with all features of the current protocol, and returns the
/// result.
async fn run(client: &AgentClient) -> proto::Result {
    let bytes = b"an archive".as_slice();
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(bytes);
    let artifact = proto::Artifact { digest: hasher.finish().to_string(), directory: String::new() };
    let size = bytes.len() as u64;
    let header = proto::SourceHeader { artifact: Some(artifact.clone()), size, ..proto::SourceHeader::default() };
    client.put_source(header, bytes, &Sending::default()).await.expect("the agent accepts the source");
    let status = client.status().await.expect("status of the agent");
    assert_eq!(status.artifact.as_ref(), Some(&artifact));
    let settings = proto::Settings { stack: "dev".to_owned(), ..proto::Settings::default() };
    let request = proto::RunRequest {
        id: "update".to_owned(),
        kind: proto::OperationKind::Up.into(),
        pod_uid: status.pod_uid,
        start_id: status.start_id,
        artifact: Some(artifact),
        settings_digest: settings_digest(&settings),
        settings: Some(settings),
        dead_runs: vec![proto::DeadRun {
            host: "example-workspace-0".to_owned(),
            pid: 7,
            started: 1,
            ended: 2,
            permalink: String::new(),
        }],
        pending_creates: proto::PendingCreates::Stop.into(),
        timeout_seconds: 600,
        idle_timeout_seconds: 60,
        ..proto::RunRequest::default()
    };
    let reply = client.run(request.clone()).await.expect("the run starts");
    assert_eq!((reply.known, reply.held.as_str()), (false, ""), "the run starts immediately");
    let again = client.run(request).await.expect("the second request succeeds");
    assert!(again.known, "the agent already knows the run");
    let mut parts = client.attach("update", 0).await.expect("attach to the run");
    let mut has_started = false;
    loop {
        match parts.next().await.expect("the stream continues").expect("a message before the end of the stream").part {
            Some(Part::Progress(progress)) => {
                has_started |= matches!(progress.event, Some(proto::progress::Event::Started(_)));
            }
            Some(Part::Result(result)) => {
                assert!(has_started, "the stream reports the start of the CLI");
                client.acknowledge("update").await.expect("acknowledge the result");
                return result;
            }
            None => panic!("unknown message kind in the stream"),
        }
    }
}

#[tokio::test]
async fn a_run_with_an_older_agent_completes_and_is_recorded_once() {
    let whole = async {
        let pair = pair(true).await;
        let status = pair.client.status().await.expect("status of the agent");
        assert_eq!((status.agent_version.as_str(), status.interactive_session), ("0.0.9", None));
        assert_eq!(status.protocol_version, 0, "an older agent reports no protocol version");
        let result = Box::pin(run(&pair.client)).await;
        assert_eq!(result.outcome(), proto::Outcome::Succeeded);
        assert_eq!(result.changes.get("same"), Some(&1), "{result:?}");
        assert!(!result.outputs.is_empty(), "{result:?}");
        let unknown =
            (result.last_output.as_str(), result.holders.len(), result.pending_creates.len(), result.interrupted);
        assert_eq!(unknown, ("", 0, 0, false), "unknown fields are empty");
        assert_eq!((pair.fake_agent.runs(), pair.fake_agent.acknowledged()), (1, 1));
        let unknown = pair.client.attach_or_prevent_start("unknown", 0).await.expect_err("an unknown operation");
        assert!(unknown.is_not_found(), "{unknown}");
    };
    Box::pin(tokio::time::timeout(TIMEOUT, whole)).await.expect("the test ends within the timeout");
}

/// A current agent must support the features that the older agent in the other test lacks.
#[tokio::test]
async fn a_current_agent_reports_fields_that_an_older_agent_lacks() {
    let whole = async {
        let pair = pair(false).await;
        let status = pair.client.status().await.expect("status of the agent");
        assert_eq!(status.agent_version, env!("CARGO_PKG_VERSION"));
        assert_eq!(status.protocol_version, PROTOCOL_VERSION);
        let result = Box::pin(run(&pair.client)).await;
        assert_eq!(result.outcome(), proto::Outcome::Succeeded);
        assert!(result.last_output.contains("unchanged"), "{result:?}");
    };
    Box::pin(tokio::time::timeout(TIMEOUT, whole)).await.expect("the test ends within the timeout");
}
