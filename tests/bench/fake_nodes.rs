//! A fake node, which KWOK (`tests/cluster/cluster fake-nodes`) keeps Ready. KWOK immediately reports the pods of the
//! node as running, and the fake agent responds for all these pods.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use pulumi_controller::api::names::AGENT_PORT;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use crate::harness::api_call;
use crate::progress::until_count;

const NAME: &str = "fake0";
/// Key of the label, the annotation and the taint on fake nodes. KWOK manages the nodes with this annotation.
const FAKE_NODE_KEY: &str = "kwok.x-k8s.io/node";
const TIMEOUT: Duration = Duration::from_secs(60);

/// Environment variable that contains the IP address of fake pods.
const ADDRESS: &str = "FAKE_POD_ADDRESS";

/// Returns whether the cluster manages fake nodes.
#[allow(dead_code, reason = "only the end-to-end tests are skipped")]
pub fn are_available() -> bool {
    std::env::var_os(ADDRESS).is_some()
}

/// Returns the address in the status of fake pods, which is the address of the real node.
pub fn address() -> SocketAddr {
    let address = std::env::var(ADDRESS).expect("FAKE_POD_ADDRESS is not set: run `tests/cluster/cluster fake-nodes`");
    SocketAddr::new(address.parse().expect("an address"), AGENT_PORT)
}

/// Creates the fake node, and waits until the node accepts pods.
pub async fn create(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({
        "metadata": {"name": NAME, "labels": {FAKE_NODE_KEY: "fake"}, "annotations": {FAKE_NODE_KEY: "fake"}},
        "spec": {"taints": [{"key": FAKE_NODE_KEY, "value": "fake", "effect": "NoSchedule"}]},
    });
    let node: Node = serde_json::from_value(node).expect("a node");
    if api_call("reading the fake node", nodes.get_opt(NAME)).await.is_none() {
        api_call("creating the fake node", nodes.create(&PostParams::default(), &node)).await;
    }
    until_count("the fake node is ready", 1, TIMEOUT, async || {
        let node = api_call("reading the fake node", nodes.get(NAME)).await;
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True").count();
        (ready, format!("{} is not Ready", node.name_any()))
    })
    .await;
}

/// Changes a Stack's workspace template so that its pod runs on the fake node.
pub fn place(mut stack: Stack) -> Stack {
    if let Some(template) = &mut stack.spec.workspace_template {
        let toleration = json!({"key": FAKE_NODE_KEY, "operator": "Exists", "effect": "NoSchedule"});
        let placement = json!({"nodeSelector": {FAKE_NODE_KEY: "fake"}, "tolerations": [toleration]});
        template["spec"]["podTemplate"] = json!({"spec": placement});
    }
    stack
}
