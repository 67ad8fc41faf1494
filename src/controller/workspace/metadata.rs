//! Defines the metadata that identifies the objects of a Workspace, and the hashes of their content.

use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::environment;
use crate::api::auto::{ArtifactReference, IdleKeep, WorkspaceSpec};
use crate::api::names::{LABEL_COMPONENT, LABEL_WORKSPACE_NAME, workspace_object};
use crate::api::pulumi::PulumiCloudOidc;

/// Annotation that contains the hash of a rendered StatefulSet or Service. The controller applies the object if the
/// hash of the existing object differs.
pub(super) const ANNOTATION_RENDERED: &str = "auto.pulumi.com/rendered-hash";
/// Length of the hash in bytes.
const HASH_BYTES: usize = 16;

/// Returns the labels that select all objects of a Workspace.
pub(super) fn labels(name: &str) -> Value {
    json!({LABEL_COMPONENT: "workspace", LABEL_WORKSPACE_NAME: name})
}

/// Returns the metadata of a Workspace object.
pub(super) fn metadata(name: &str, namespace: &str) -> Value {
    json!({"name": workspace_object(name), "namespace": namespace, "labels": labels(name)})
}

/// Returns whether the labels of an object contain the given Workspace name.
pub(super) fn is_ours<K: Resource>(object: &K, name: &str) -> bool {
    workspace_name(object) == Some(name)
}

/// Returns the Workspace name from the labels of an object.
pub(super) fn workspace_name<K: Resource>(object: &K) -> Option<&str> {
    object.labels().get(LABEL_WORKSPACE_NAME).map(String::as_str)
}

/// Returns the hash of the spec fields that determine the pod. A pod with a different hash is outdated. If the pod
/// depends on the source, `bound` contains the source, and the hash includes it.
///
/// The hash excludes the agent image and the controller defaults, because an upgrade of the controller would
/// otherwise replace all pods. An exception is the Secret that contains the default access token (`default_token`): a
/// pod without the volume for this Secret would have no credentials. The hash excludes the `serviceTemplate`, because
/// the Service does not affect the pod. It also excludes the Pulumi stacks and their configuration values, because
/// the agent receives them by RPC. The audience of the mounted token is the only field of `pulumiCloudOIDC` that the
/// hash includes.
pub(super) fn revision_hash(
    spec: &WorkspaceSpec,
    bound: Option<&ArtifactReference>,
    default_token: Option<&str>,
) -> String {
    // A changed controller default takes effect in the next pod of a Workspace.
    let kept = spec.idle.as_ref().filter(|idle| idle.keep != Some(IdleKeep::Nothing));
    let mut inputs = json!({
        // The hash excludes the revision, because a new revision with the same content does not change the pod.
        "artifact": bound.map(|artifact| json!({"digest": artifact.digest, "dir": artifact.dir})),
        "claim": kept.and_then(|idle| idle.claim.as_ref()),
        "defaultAccessTokenSecret": default_token,
        "env": spec.env,
        // A run inherits the variables of the container, which the kubelet sets when the container starts. The hash
        // excludes the entries that `mounted` describes completely, because an upgrade of the controller would
        // otherwise replace the pods of all Workspaces with `envFrom`.
        "envFrom": environment::unmounted_settings(spec),
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "keep": kept.and_then(|idle| idle.keep),
        // The kubelet updates the content of mounted objects in a running pod, but an additional object requires a
        // new volume.
        "mounted": environment::directories(spec).keys().collect::<Vec<_>>(),
        "oidcAudience": spec.pulumi_cloud_oidc.as_deref().map(PulumiCloudOidc::audience),
        "podTemplate": spec.pod_template,
        "resources": spec.resources,
        "securityProfile": spec.security_profile,
        "serviceAccountName": spec.service_account_name,
    });
    // The hash includes only inputs that have a value. If a later controller version adds a field, the hash therefore
    // changes only for Workspaces that set this field.
    if let Some(inputs) = inputs.as_object_mut() {
        inputs.retain(|_, input| !input.is_null() && input != &json!([]));
    }
    hash(&inputs)
}

/// Returns the hash of a JSON value. The order of the fields does not affect the hash.
pub(super) fn hash(value: &Value) -> String {
    let digest = Sha256::digest(canonical(value).to_string());
    hex::encode(digest.iter().take(HASH_BYTES).copied().collect::<Vec<u8>>())
}

fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            Value::Object(
                sorted.into_iter().map(|(name, value)| (name.clone(), canonical(value))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{WorkspaceIdle, WorkspaceStack};

    fn oidc(organization: &str, audience: Option<&str>) -> PulumiCloudOidc {
        PulumiCloudOidc {
            organization: organization.to_owned(),
            audience: audience.map(str::to_owned),
            ..PulumiCloudOidc::default()
        }
    }

    fn base() -> WorkspaceSpec {
        WorkspaceSpec { image: Some("pulumi/pulumi:1".to_owned()), ..WorkspaceSpec::default() }
    }

    #[test]
    fn the_revision_hash_is_the_same_in_each_release() {
        // If this value changes, an upgrade of the controller replaces all workspace pods.
        assert_eq!(revision_hash(&base(), None, None), "627b77386ec931620d739b83141f54f7");
    }

    #[test]
    fn every_pod_setting_in_the_spec_changes_the_revision_hash() {
        let changes: [fn(&mut WorkspaceSpec); 14] = [
            |spec| spec.image = None,
            |spec| spec.image_pull_policy = Some("Always".to_owned()),
            |spec| spec.env = vec![json!({"name": "A", "value": "1"})],
            |spec| spec.env_from = vec![json!({"secretRef": {"name": "aws"}})],
            |spec| spec.env_from = vec![json!({"configMapRef": {"name": "aws"}})],
            |spec| spec.resources = Some(json!({"limits": {"memory": "1Gi"}})),
            |spec| spec.pod_template = Some(json!({"spec": {"nodeSelector": {"a": "b"}}})),
            |spec| spec.service_account_name = Some("deployer".to_owned()),
            |spec| spec.security_profile = Some("baseline".to_owned()),
            |spec| spec.idle = Some(WorkspaceIdle { keep: Some(IdleKeep::Caches), ..WorkspaceIdle::default() }),
            |spec| spec.idle = Some(WorkspaceIdle { keep: Some(IdleKeep::Volume), ..WorkspaceIdle::default() }),
            |spec| spec.idle = Some(WorkspaceIdle { claim: Some("a".to_owned()), ..WorkspaceIdle::default() }),
            |spec| spec.pulumi_cloud_oidc = Some(Box::new(oidc("acme", None))),
            |spec| spec.pulumi_cloud_oidc = Some(Box::new(oidc("acme", Some("urn:example")))),
        ];
        let mut seen = vec![revision_hash(&base(), None, None), revision_hash(&base(), None, Some("pulumi-cloud"))];
        assert_ne!(seen[0], seen[1]);
        for change in changes {
            let mut spec = base();
            change(&mut spec);
            let hash = revision_hash(&spec, None, None);
            assert!(!seen.contains(&hash), "{spec:?}");
            seen.push(hash);
        }
    }

    #[test]
    fn every_change_of_env_from_changes_the_revision_hash() {
        let of = |env_from: Value, others: &Value| {
            let mut spec = json!({"image": "pulumi/pulumi:1", "envFrom": env_from});
            for (field, value) in others.as_object().expect("is a map") {
                spec[field] = value.clone();
            }
            revision_hash(&serde_json::from_value(spec).expect("valid spec"), None, None)
        };
        let plain = json!({"secretRef": {"name": "aws"}});
        let prefixed = |prefix: &str| json!({"secretRef": {"name": "aws"}, "prefix": prefix});
        let optional = |prefix: &str| json!({"secretRef": {"name": "aws", "optional": true}, "prefix": prefix});
        let key = json!({"secretKeyRef": {"name": "aws", "key": "k"}});
        let config = json!({"stacks": [{"name": "dev", "config": [{"key": "k", "valueFrom": key}]}]});
        let env = json!({"env": [{"name": "K", "valueFrom": key}]});
        let container = json!({"name": "pulumi", "env": env["env"]});
        let template = json!({"podTemplate": {"spec": {"containers": [container]}}});
        let none = json!({});
        let rows = [
            ("removed", &none, json!([plain]), json!([])),
            ("removed, but the configuration references the object", &config, json!([plain]), json!([])),
            ("removed, but a variable references the object", &env, json!([plain]), json!([])),
            ("removed, but the template references the object", &template, json!([plain]), json!([])),
            ("one of two entries removed", &none, json!([plain, prefixed("A_")]), json!([prefixed("A_")])),
            ("the other of two entries removed", &none, json!([plain, prefixed("A_")]), json!([plain])),
            ("a new prefix", &none, json!([plain]), json!([prefixed("A_")])),
            ("another prefix", &none, json!([prefixed("A_")]), json!([prefixed("B_")])),
            ("another prefix of an optional object", &none, json!([optional("A_")]), json!([optional("B_")])),
            ("now optional", &none, json!([prefixed("")]), json!([optional("")])),
        ];
        for (name, others, before, after) in rows {
            assert_ne!(of(before, others), of(after, others), "{name}");
        }
    }

    #[test]
    fn the_revision_hash_of_plain_env_from_entries_is_the_same_in_each_release() {
        let env_from =
            vec![json!({"secretRef": {"name": "aws"}}), json!({"prefix": "", "configMapRef": {"name": "a"}})];
        let spec = WorkspaceSpec { env_from, ..base() };
        let expected = json!({"image": "pulumi/pulumi:1", "mounted": ["ConfigMap/a", "Secret/aws"]});
        assert_eq!(revision_hash(&spec, None, None), hash(&expected));
    }

    fn digest(content: &str) -> crate::artifact::Digest {
        crate::artifact::Digest::of(content.as_bytes())
    }

    #[test]
    fn fields_unrelated_to_the_pod_do_not_change_the_revision_hash() {
        let mut spec = base();
        spec.artifact = Some(ArtifactReference { digest: digest("a"), revision: String::new(), dir: String::new() });
        spec.service_template = Some(json!({"metadata": {"labels": {"a": "b"}}}));
        spec.idle = Some(WorkspaceIdle { after: Some("30m".to_owned()), keep: Some(IdleKeep::Nothing), claim: None });
        spec.stacks = vec![WorkspaceStack { name: "dev".to_owned(), ..Default::default() }];
        assert_eq!(revision_hash(&spec, None, None), revision_hash(&base(), None, None));
        let with_oidc = |oidc| WorkspaceSpec { pulumi_cloud_oidc: Some(Box::new(oidc)), ..base() };
        let team = PulumiCloudOidc { team: Some("platform".to_owned()), ..oidc("acme", None) };
        let of_team = revision_hash(&with_oidc(team), None, None);
        assert_eq!(of_team, revision_hash(&with_oidc(oidc("acme", None)), None, None), "the token is the same");
    }

    #[test]
    fn the_revision_hash_depends_on_the_source_content_not_its_revision() {
        let source = |content: &str, revision: &str, dir: &str| {
            let (digest, revision, dir) = (digest(content), revision.to_owned(), dir.to_owned());
            revision_hash(&base(), Some(&ArtifactReference { digest, revision, dir }), None)
        };
        let bound = source("a", "main@sha1:1", "infra");
        assert_ne!(bound, revision_hash(&base(), None, None));
        assert_ne!(bound, source("b", "main@sha1:1", "infra"));
        assert_ne!(bound, source("a", "main@sha1:1", "other"));
        assert_eq!(bound, source("a", "main@sha1:2", "infra"));
    }
}
