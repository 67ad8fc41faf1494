//! Reads the Pulumi states from the backend: the S3 server, or Pulumi Cloud with `CHAOS_BACKEND=cloud`.

use std::collections::BTreeMap;
use std::time::Duration;

use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use serde::Deserialize;

use crate::facts::State;
use crate::harness::{Environment, PulumiCloud};
use crate::provider_log::get;

const REGION: &str = "us-east-1";
/// Bucket that contains all states. `tests/cluster/cluster up` creates the bucket.
const BUCKET: &str = "state";
/// Validity period of a presigned request.
const SIGNATURE_VALIDITY: Duration = Duration::from_secs(300);
/// Resource type of the test provider.
const STEP: &str = "testing:index:Step";

/// Backend of all Pulumi stacks of a chaos test.
pub enum Backend {
    S3(S3Backend),
    Cloud(PulumiCloud),
}

/// Returns whether the chaos test uses Pulumi Cloud.
pub fn is_cloud() -> bool {
    std::env::var("CHAOS_BACKEND").is_ok_and(|backend| backend == "cloud")
}

impl Backend {
    /// Returns the state of a Pulumi stack, or an empty state if the backend does not contain the stack.
    pub async fn state(&self, project: &str, stack: &str) -> State {
        match self {
            Backend::S3(backend) => backend.state(stack).await,
            Backend::Cloud(cloud) => match cloud.state((project, stack)).await {
                Some(text) => facts_of(serde_json::from_str::<Deployment>(&text).map(|state| state.deployment))
                    .unwrap_or_else(|error| panic!("the state of {stack} is invalid: {error}\n{text}")),
                None => State::default(),
            },
        }
    }

    /// Returns the locks of a Pulumi stack: lock files or, in Pulumi Cloud, updates in progress.
    pub async fn locks(&self, project: &str, stack: &str) -> Vec<String> {
        match self {
            Backend::S3(backend) => backend.locks(stack).await,
            Backend::Cloud(cloud) => {
                let updates = cloud.updates((project, stack)).await.into_iter();
                let open = updates.filter(|update| update.status == "running");
                open.map(|update| format!("update {}", update.version)).collect()
            }
        }
    }
}

pub struct S3Backend {
    bucket: Bucket,
    credentials: Credentials,
    project: String,
}

impl S3Backend {
    pub fn of(project: &str) -> S3Backend {
        let environment = Environment::get();
        let endpoint = environment.s3_url.parse().expect("S3_URL is a URL");
        let bucket = Bucket::new(endpoint, UrlStyle::Path, BUCKET, REGION).expect("a valid bucket name");
        let credentials = Credentials::new(environment.s3_access_key.clone(), environment.s3_secret_key.clone());
        S3Backend { bucket, credentials, project: project.to_owned() }
    }

    async fn state(&self, stack: &str) -> State {
        let key = format!(".pulumi/stacks/{}/{stack}.json", self.project);
        if !self.keys(&key).await.contains(&key) {
            return State::default();
        }
        let url = self.bucket.get_object(Some(&self.credentials), &key).sign(SIGNATURE_VALIDITY);
        let text = get(url.as_str()).await;
        read(&text).unwrap_or_else(|error| panic!("the state {key} is invalid: {error}\n{text}"))
    }

    async fn locks(&self, stack: &str) -> Vec<String> {
        self.keys(&format!(".pulumi/locks/organization/{}/{stack}/", self.project)).await
    }

    /// Returns the object keys with a prefix. The client library can sign only object requests. If the requested object
    /// key is empty, S3 responds with a list of keys.
    async fn keys(&self, prefix: &str) -> Vec<String> {
        let mut list = self.bucket.get_object(Some(&self.credentials), "");
        list.query_mut().insert("list-type", "2");
        list.query_mut().insert("prefix", prefix.to_owned());
        let text = get(list.sign(SIGNATURE_VALIDITY).as_str()).await;
        keys_in(&text).unwrap_or_else(|| panic!("the list of {prefix} is incomplete:\n{text}"))
    }
}

/// Parses the keys in an object list. Returns `None` if the response is not a complete list. The function does not
/// unescape XML, because the keys contain no special characters.
fn keys_in(text: &str) -> Option<Vec<String>> {
    let is_whole = text.contains("<ListBucketResult") && !text.contains("<IsTruncated>true</IsTruncated>");
    let keys = || text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
    is_whole.then(|| keys().map(|(key, _)| key.to_owned()).collect())
}

/// Fields of a state file that the checks require.
#[derive(Deserialize)]
struct File {
    checkpoint: Checkpoint,
}

#[derive(Deserialize)]
struct Checkpoint {
    latest: Option<Snapshot>,
}

/// Fields of a state exported from Pulumi Cloud that the checks require.
#[derive(Deserialize)]
struct Deployment {
    deployment: Option<Snapshot>,
}

#[derive(Deserialize)]
struct Snapshot {
    #[serde(default)]
    resources: Vec<Resource>,
    #[serde(default)]
    pending_operations: Vec<PendingOperation>,
}

#[derive(Deserialize)]
struct Resource {
    urn: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    inputs: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct PendingOperation {
    resource: Resource,
    #[serde(rename = "type")]
    kind: String,
}

fn read(text: &str) -> serde_json::Result<State> {
    facts_of(serde_json::from_str::<File>(text).map(|file| file.checkpoint.latest))
}

fn facts_of(snapshot: serde_json::Result<Option<Snapshot>>) -> serde_json::Result<State> {
    let Some(snapshot) = snapshot? else { return Ok(State::default()) };
    let called = |resource: &Resource| {
        resource.inputs.get("name").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    };
    let resources = snapshot.resources.into_iter().filter(|resource| resource.kind == STEP);
    let pending = snapshot.pending_operations.into_iter();
    let creations = pending.filter(|operation| operation.kind == "creating" && operation.resource.kind == STEP);
    Ok(State {
        resources: resources.map(|resource| (resource.urn.clone(), called(&resource))).collect(),
        pending_creates: creations.map(|operation| operation.resource.urn).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_listing_yields_keys_only_if_it_is_complete() {
        let list =
            |inner: &str| format!("<?xml version=\"1.0\"?><ListBucketResult xmlns=\"s3\">{inner}</ListBucketResult>");
        let two = "<Contents><Key>a/b.json</Key></Contents><Contents><Key>a/c.json</Key></Contents>";
        assert_eq!(keys_in(&list(two)).unwrap(), ["a/b.json", "a/c.json"]);
        assert_eq!(keys_in(&list("<KeyCount>0</KeyCount>")).unwrap(), [""; 0]);
        assert_eq!(keys_in(&list("<IsTruncated>true</IsTruncated>")), None);
        assert_eq!(keys_in("<Error><Code>NoSuchKey</Code></Error>"), None);
    }

    #[test]
    fn a_state_file_yields_resources_and_pending_operations() {
        let urn = |name: &str| format!("urn:pulumi:dev::chaos::testing:index:Step::{name}");
        let step = |name: &str| serde_json::json!({"urn": urn(name), "type": STEP, "custom": true, "id": "x", "inputs": {"name": format!("{name}@3")}});
        let root = serde_json::json!({"urn": "urn:pulumi:dev::chaos::pulumi:pulumi:Stack::chaos-dev", "type": "pulumi:pulumi:Stack"});
        let latest = serde_json::json!({
            "manifest": {}, "resources": [root, step("first")],
            "pending_operations": [{"resource": step("second"), "type": "creating"}, {"resource": step("third"), "type": "updating"}],
        });
        let file = serde_json::json!({"version": 3, "checkpoint": {"stack": "organization/chaos/dev", "latest": latest.clone()}});
        let state = read(&file.to_string()).unwrap();
        assert_eq!(state.resources, BTreeMap::from([(urn("first"), "first@3".to_owned())]));
        assert_eq!(state.pending_creates, [urn("second")].into());

        let empty = serde_json::json!({"version": 3, "checkpoint": {"stack": "organization/chaos/dev"}});
        assert!(read(&empty.to_string()).unwrap().resources.is_empty());
        assert!(read("{}").is_err());
        let exported = serde_json::json!({"version": 3, "deployment": latest});
        let exported = serde_json::from_value::<Deployment>(exported).map(|state| state.deployment);
        assert_eq!(facts_of(exported).unwrap().pending_creates, [urn("second")].into());
    }
}
