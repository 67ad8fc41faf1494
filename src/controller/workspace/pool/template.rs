//! Derives the template for the pods in a pool. All functions are pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};

use crate::api::names::{
    ANNOTATION_REVISION_HASH, LABEL_POOL, LABEL_POOL_SHARD, LABEL_WORKSPACE_NAME, POOL_POD_PREFIX, pool_pod_tls_secret,
};
use crate::controller::workspace::environment::has_name;
use crate::controller::workspace::init_containers::FETCH_CONTAINER;
use crate::controller::workspace::metadata::hash;
use crate::controller::workspace::pod::set_tls_secret;
use crate::controller::workspace::render::Rendered;
use crate::controller::workspace::storage::CACHE_VOLUME;

/// Number of pool key digits in a pod name.
const KEY_DIGITS: usize = 10;
/// Number of random letters in a pod name.
const RANDOM_LETTERS: usize = 6;
/// Pod metadata that changes when a Workspace takes the pod. Unlike a container in a StatefulSet pod, a container in
/// a pool pod could read the metadata before it changes.
const CHANGED_METADATA: [&str; 2] = ["metadata.labels", "metadata.annotations"];

/// Template for the pods in a pool: a Workspace's pod template without the Workspace name.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolTemplate {
    /// Key of the pool: a hash of the template and the CA bundle. Workspaces with the same key can take the same
    /// pods. The template contains the image, the ServiceAccount and all mounted objects. A Workspace can therefore
    /// only take a pod that has the same permissions as the Workspace's own pod.
    pub key: String,
    template: Value,
}

impl PoolTemplate {
    /// Returns the pool template for a Workspace pod. Returns `None` if a pool cannot provide the pod, for example
    /// because the pod contains the source or uses its own persistent volume.
    pub fn of(rendered: &Rendered, is_source_in_pod: bool, authorities_pem: &str) -> Option<Self> {
        let mut template = rendered.stateful_set.pointer("/spec/template")?.clone();
        remove(&mut template, "/metadata/labels", LABEL_WORKSPACE_NAME);
        // A `podTemplate` could set this label, and no shard would then manage the pods.
        remove(&mut template, "/metadata/labels", LABEL_POOL_SHARD);
        remove(&mut template, "/metadata/annotations", ANNOTATION_REVISION_HASH);
        set_tls_secret(&mut template, "");
        let key = hash(&json!([template, authorities_pem]));
        (!is_source_in_pod && is_poolable(&template)).then_some(PoolTemplate { key, template })
    }

    /// Returns a new pod name. The name ends with letters, because a StatefulSet adopts pods whose names end with a
    /// number.
    pub fn pod_name(&self) -> String {
        let key: String = self.key.chars().take(KEY_DIGITS).collect();
        let random: String = std::iter::repeat_with(fastrand::lowercase).take(RANDOM_LETTERS).collect();
        format!("{POOL_POD_PREFIX}{key}-{random}")
    }

    /// Returns a new pool pod for the pool of a shard. `kubectl drain` evicts the pod only if a controller owns it.
    pub fn pod(&self, namespace: &str, name: &str, shard: Option<&str>, owner: &OwnerReference) -> Value {
        let mut pod = self.template.clone();
        set_tls_secret(&mut pod, &pool_pod_tls_secret(name));
        insert(&mut pod, "/metadata", "name", json!(name));
        insert(&mut pod, "/metadata", "namespace", json!(namespace));
        insert(&mut pod, "/metadata", "ownerReferences", json!([owner]));
        insert(&mut pod, "/metadata/labels", LABEL_POOL, json!(self.key));
        if let Some(shard) = shard {
            insert(&mut pod, "/metadata/labels", LABEL_POOL_SHARD, json!(shard));
        }
        pod
    }
}

/// Returns whether several pods with the template can exist, and can start before the source is known.
fn is_poolable(template: &Value) -> bool {
    let items = |list: &str| template.pointer(list).and_then(Value::as_array).into_iter().flatten();
    let is_persistent = |volume: &Value| {
        volume.get("persistentVolumeClaim").is_some_and(|claim| !claim.is_null()) && !has_name(volume, CACHE_VOLUME)
    };
    let reads_source = items("/spec/initContainers").any(|container| has_name(container, FETCH_CONTAINER));
    let has_own_volume = items("/spec/volumes").any(is_persistent);
    let uses_host_network = template.pointer("/spec/hostNetwork").and_then(Value::as_bool).unwrap_or_default();
    let text = template.to_string();
    let reads_metadata = CHANGED_METADATA.iter().any(|field| text.contains(field));
    !reads_source && !has_own_volume && !uses_host_network && !reads_metadata
}

fn remove(template: &mut Value, fields: &str, name: &str) {
    if let Some(fields) = template.pointer_mut(fields).and_then(Value::as_object_mut) {
        fields.remove(name);
    }
}

fn insert(pod: &mut Value, fields: &str, name: &str, value: Value) {
    if let Some(fields) = pod.pointer_mut(fields).and_then(Value::as_object_mut) {
        fields.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{Workspace, WorkspaceSpec};
    use crate::controller::workspace::{PodSettings, render};

    fn template_of(name: &str, spec: Value) -> Option<PoolTemplate> {
        let settings = PodSettings {
            agent_image: "controller:1".to_owned(),
            agent_image_pull_policy: None,
            default_image: "pulumi".to_owned(),
            default_access_token_secret: None,
            assigns_user: true,
            eviction_protection: true,
            restrictions: Default::default(),
            storage: Default::default(),
        };
        let digest = crate::artifact::Digest::of(b"source");
        let mut spec: WorkspaceSpec = serde_json::from_value(spec).expect("valid spec");
        spec.artifact = serde_json::from_value(json!({"digest": digest, "revision": "main"})).expect("valid artifact");
        let rendered = render(name, "team", &Workspace::new(name, spec), &settings).expect("renders");
        PoolTemplate::of(&rendered, false, "authorities")
    }

    #[test]
    fn workspaces_with_the_same_pod_have_the_same_pool() {
        let key = |name: &str, spec: Value| template_of(name, spec).expect("poolable").key;
        let plain = key("app", json!({}));
        assert_eq!(plain, key("other", json!({})), "the name is not part of the key");
        assert_eq!(plain, key("app", json!({"stacks": [{"name": "dev"}]})), "the agent receives the stacks");
        let mut keys = vec![plain];
        for spec in [
            json!({"image": "pulumi/pulumi:1"}),
            json!({"serviceAccountName": "deployer"}),
            json!({"env": [{"name": "A", "value": "1"}]}),
            json!({"envFrom": [{"secretRef": {"name": "aws"}}]}),
            json!({"idle": {"keep": "Caches"}}),
            json!({"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}),
        ] {
            let key = key("app", spec.clone());
            assert!(!keys.contains(&key), "{spec}");
            keys.push(key);
        }
    }

    #[test]
    fn a_pod_that_depends_on_its_workspace_has_no_pool() {
        let volume = |volume: Value| json!({"podTemplate": {"spec": {"volumes": [volume]}}});
        let rows = [
            (json!({}), true),
            (json!({"idle": {"keep": "Caches"}}), true),
            (volume(json!({"name": "scratch", "emptyDir": {}})), true),
            (json!({"idle": {"keep": "Volume", "claim": "share"}}), false),
            (volume(json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})), false),
            (json!({"podTemplate": {"spec": {"hostNetwork": true}}}), false),
            (json!({"podTemplate": {"spec": {"initContainers": [{"name": "prepare", "image": "busybox"}]}}}), false),
            (json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]}), false),
        ];
        for (spec, expected) in rows {
            assert_eq!(template_of("app", spec.clone()).is_some(), expected, "{spec}");
        }
    }

    #[test]
    fn the_pod_of_a_pool_belongs_to_no_workspace_and_has_its_own_certificate() {
        let template_labels = json!({"metadata": {"labels": {"auto.pulumi.com/pool-shard": "other"}}});
        let template = template_of("app", json!({"podTemplate": template_labels})).expect("poolable");
        let name = template.pod_name();
        assert!(name.starts_with("pulumi-pool-") && name.ends_with(|last: char| last.is_ascii_lowercase()), "{name}");
        let owner = OwnerReference { name: "app-workspace".to_owned(), ..OwnerReference::default() };
        let pod = template.pod("team", &name, None, &owner);
        let mut labels = json!({"auto.pulumi.com/component": "workspace", "auto.pulumi.com/pool": template.key});
        assert_eq!(pod["metadata"]["labels"], labels);
        let of_shard = template.pod("team", &name, Some("73fdc1be"), &owner);
        labels["auto.pulumi.com/pool-shard"] = json!("73fdc1be");
        assert_eq!(of_shard["metadata"]["labels"], labels);
        assert_eq!(pod["metadata"]["name"], json!(name));
        assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], json!("app-workspace"));
        let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
        let tls = volumes.iter().find(|volume| volume["name"] == "tls").expect("a volume with the certificate");
        assert_eq!(tls["secret"]["secretName"], json!(format!("{name}-tls")));
        assert!(!pod.to_string().contains("app-workspace-tls"));
    }
}
