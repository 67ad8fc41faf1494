//! Policy packs of a Stack: the packs in its spec, and the packs that the controller adds to all Stacks. All functions
//! are pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::auto::{ArtifactReference, Workspace, WorkspacePolicyPack};
use crate::api::pulumi::{PolicyException, PolicyPack, SourceReference, Stack};
use crate::api::{bounds, names};
use crate::controller::stack::workspace_state::{Readiness, readiness};
use crate::source::flux::Reference;
use crate::source::{Resolved, Unavailable, within};

/// Configuration key that applies to all policies in a policy pack.
const ALL: &str = "all";
/// Maximum length of a policy pack name, as in the schema.
const MAX_NAME: usize = 63;
/// Enforcement levels of Pulumi.
const LEVELS: &str = "`advisory`, `mandatory`, `remediate` or `disabled`";
/// Version of the configuration file format that contains exceptions. The Pulumi CLI reads the version only if it is a
/// number. CLI versions without exceptions reject a number in a configuration file.
const FORMAT_WITH_EXCEPTIONS: u32 = 2;
/// Prefix of a URN, and the minimum number of separators in a URN.
const URN: (&str, usize) = ("urn:pulumi:", 3);
/// Characters that have a special meaning for the CLI in the list of policy pack directories.
const SEPARATORS: [char; 2] = [',', '"'];

/// Policy pack that the controller adds to all Stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPack {
    /// Name of the policy pack. A policy pack in a Stack's spec cannot have the same name.
    pub name: String,
    /// Namespace of the source.
    pub namespace: String,
    pub source: Reference,
}

/// Policy pack that a Stack requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedPack {
    pub name: String,
    /// Namespace of the source.
    pub namespace: String,
    pub source: Reference,
    /// Content of the configuration file, in the format of the Pulumi CLI.
    pub config: BTreeMap<String, Value>,
}

/// Policy pack with its resolved source.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedPack {
    pub name: String,
    /// Namespace of the source. [`requested`] has checked that the Stack may use a source in this namespace.
    pub namespace: String,
    pub resolved: Resolved,
    pub config: BTreeMap<String, Value>,
    /// Whether the store contains the bytes of the artifact.
    pub in_store: bool,
}

/// Returns a Stack's policy packs: first the cluster-wide packs, which a Stack cannot change, and then the packs in the
/// spec. `own_only` forbids references to other namespaces.
pub fn requested(stack: &Stack, cluster: &[ClusterPack], own_only: bool) -> Result<Vec<RequestedPack>, Unavailable> {
    let of_cluster = cluster.iter().map(|ClusterPack { name, namespace, source }| {
        let (name, namespace, source) = (name.clone(), namespace.clone(), source.clone());
        Ok(RequestedPack { name, namespace, source, config: BTreeMap::new() })
    });
    let own = stack.namespace().unwrap_or_default();
    let mut names = BTreeSet::new();
    let of_stack = stack.spec.policy_packs.iter().map(|pack| match names.insert(&pack.name) {
        true => of_spec(pack, &own, own_only),
        false => Err(Unavailable::Invalid(format!("invalid spec.policyPacks: duplicate name {:?}", pack.name))),
    });
    of_cluster.chain(of_stack).collect()
}

fn of_spec(pack: &PolicyPack, own: &str, own_only: bool) -> Result<RequestedPack, Unavailable> {
    // The API server validates the name only in the version v1.
    if pack.name.len() > MAX_NAME || !names::is_object_name(&pack.name) {
        return Err(Unavailable::Invalid(format!(
            "invalid spec.policyPacks: a name must consist of at most {MAX_NAME} lowercase letters, digits and hyphens"
        )));
    }
    let field = format!("spec.policyPacks[{}]", pack.name);
    let source = Reference::of_field(&field, &pack.source_ref, pack.dir.as_deref())?;
    let directory = source.directory.as_str();
    if directory.contains(SEPARATORS) {
        return Err(Unavailable::Invalid(format!(
            "invalid {field}.dir: {directory:?} must not contain commas or quotation marks"
        )));
    }
    for (part, value) in [("config", json!(pack.config)), ("exceptions", json!(pack.exceptions))] {
        let (bytes, most) = (value.to_string().len(), bounds::POLICY_CONFIG_BYTES);
        if bytes > most {
            return Err(Unavailable::Invalid(format!(
                "{field}.{part} must be at most {most} bytes as JSON, but has {bytes}"
            )));
        }
    }
    for (policy, value) in &pack.config {
        check_level(value).map_err(|why| Unavailable::Invalid(format!("invalid {field}.config[{policy}]: {why}")))?;
    }
    for (id, exception) in &pack.exceptions {
        check_exception(id, exception)
            .map_err(|why| Unavailable::Invalid(format!("invalid {field}.exceptions[{id}]: {why}")))?;
    }
    let namespace = within(source.namespace.as_deref(), own).to_owned();
    if namespace != own && own_only {
        let (kind, name) = (&source.kind.kind, &source.name);
        return Err(Unavailable::Denied(format!(
            "{field}.sourceRef: {kind} {namespace}/{name} is in another namespace, and --no-cross-namespace-refs is set"
        )));
    }
    let mut config = pack.config.clone();
    if let Some(level) = pack.enforcement_level {
        config.insert(ALL.to_owned(), Value::from(level.as_str()));
    }
    if !pack.exceptions.is_empty() {
        config = [
            ("version".to_owned(), json!(FORMAT_WITH_EXCEPTIONS)),
            ("policies".to_owned(), json!(config)),
            ("exceptions".to_owned(), json!(pack.exceptions)),
        ]
        .into();
    }
    Ok(RequestedPack { name: pack.name.clone(), namespace, source, config })
}

/// Checks an exception. Without this check, a run with an invalid exception would fail.
fn check_exception(id: &str, exception: &PolicyException) -> Result<(), String> {
    let is_id = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if id.is_empty() || !id.chars().all(is_id) {
        return Err("the ID must consist of letters, digits, hyphens, dots and underscores".to_owned());
    }
    if exception.reason.trim().is_empty() {
        return Err("reason is required".to_owned());
    }
    if exception.r#match.is_empty() {
        return Err("match must contain an entry".to_owned());
    }
    for entry in &exception.r#match {
        if entry.policies.is_empty() || entry.policies.iter().any(|policy| policy.is_empty() || policy == ALL) {
            return Err(format!("match[].policies must contain the names of policies, and must not contain {ALL:?}"));
        }
        let is_urn = |urn: &String| urn.starts_with(URN.0) && urn.matches("::").count() >= URN.1;
        if entry.targets.is_empty() || !entry.targets.iter().all(is_urn) {
            return Err("match[].targets must contain URNs of resources".to_owned());
        }
    }
    Ok(())
}

/// Checks the enforcement level in a policy's configuration. Without this check, a run with an invalid level would
/// fail.
fn check_level(config: &Value) -> Result<(), String> {
    let level = match config {
        Value::String(level) => Some(level.as_str()),
        Value::Object(properties) => match properties.get("enforcementLevel") {
            None => None,
            Some(Value::String(level)) => Some(level.as_str()),
            Some(_) => return Err(format!("enforcementLevel must be {LEVELS}")),
        },
        _ => return Err("must be an enforcement level or an object with the properties of the policy".to_owned()),
    };
    match level {
        None | Some("advisory" | "mandatory" | "disabled" | "remediate") => Ok(()),
        Some(other) => Err(format!("the enforcement level {other:?} must be {LEVELS}")),
    }
}

/// Returns the cluster-wide packs in the format of a Stack's spec, so that the index of Stacks by source can contain
/// the sources of these packs.
pub fn in_spec(cluster: &[ClusterPack]) -> impl Iterator<Item = PolicyPack> {
    cluster.iter().map(|pack| PolicyPack {
        name: pack.name.clone(),
        source_ref: SourceReference {
            // `kind_of` reads only the group.
            api_version: Some(format!("{}/v1", pack.source.kind.group)),
            kind: pack.source.kind.kind.clone(),
            name: pack.source.name.clone(),
            namespace: Some(pack.namespace.clone()),
        },
        ..PolicyPack::default()
    })
}

/// Adds the policy pack's name to the reason why its artifact is not available.
pub fn named(name: &str, why: Unavailable) -> Unavailable {
    let with = |message: String| format!("policy pack {name}: {message}");
    match why {
        Unavailable::NotYet(message) => Unavailable::NotYet(with(message)),
        Unavailable::Stalled(message) => Unavailable::Stalled(with(message)),
        Unavailable::Invalid(message) => Unavailable::Invalid(with(message)),
        Unavailable::Denied(message) => Unavailable::Denied(with(message)),
        Unavailable::Resolving(message) => Unavailable::Resolving(with(message)),
    }
}

/// Returns the policy packs without the policy packs in the spec that repeat a policy pack of the cluster. The first
/// `cluster` packs are the policy packs of the cluster.
///
/// The Pulumi engine starts each directory of the pod only once. The last configuration replaces the earlier
/// configurations, so a Stack could disable a policy pack of the cluster by listing it again. A repeated pack without a
/// configuration must not replace the configuration of the cluster either, so the run contains only the pack of the
/// cluster.
///
/// # Errors
/// Returns an error if a policy pack in the spec has another configuration than the same policy pack of the cluster, or
/// than the same policy pack earlier in the spec.
pub fn distinct(mut packs: Vec<ResolvedPack>, cluster: usize) -> Result<Vec<ResolvedPack>, Unavailable> {
    let of_spec = packs.split_off(cluster.min(packs.len()));
    for pack in of_spec {
        let is_same = |other: &ResolvedPack| {
            (&other.resolved.digest, &other.resolved.directory) == (&pack.resolved.digest, &pack.resolved.directory)
        };
        if let Some(other) = packs.iter().take(cluster).find(|other| is_same(other)) {
            if pack.config.is_empty() || pack.config == other.config {
                continue;
            }
            return Err(Unavailable::Invalid(format!(
                "invalid spec.policyPacks[{}]: the archive and the directory are those of policy pack {}, which a \
                 Stack can neither disable nor configure; remove the entry or its configuration",
                pack.name, other.name
            )));
        }
        let mut earlier = packs.iter().skip(cluster);
        if let Some(other) = earlier.find(|other| is_same(other) && other.config != pack.config) {
            return Err(Unavailable::Invalid(format!(
                "invalid spec.policyPacks[{}]: the archive and the directory are those of policy pack {}, but the \
                 configuration differs",
                pack.name, other.name
            )));
        }
        packs.push(pack);
    }
    Ok(packs)
}

/// Returns the policy packs for the spec of the Workspace.
pub fn artifacts(packs: &[ResolvedPack]) -> Vec<WorkspacePolicyPack> {
    let artifact = |pack: &ResolvedPack| WorkspacePolicyPack {
        name: pack.name.clone(),
        artifact: ArtifactReference {
            digest: pack.resolved.digest.clone(),
            revision: pack.resolved.revision.clone(),
            dir: pack.resolved.directory.as_str().to_owned(),
        },
        config: pack.config.clone(),
    };
    packs.iter().map(artifact).collect()
}

/// Returns the first policy pack whose bytes the pod requires and the store lacks.
pub fn to_fetch<'a>(packs: &'a [ResolvedPack], workspace: Option<&Workspace>) -> Option<&'a ResolvedPack> {
    let is_installed = |workspace: &Workspace| {
        workspace.spec.policy_packs == artifacts(packs) && matches!(readiness(workspace), Readiness::Ready)
    };
    packs.iter().find(|pack| !pack.in_store).filter(|_| !workspace.is_some_and(is_installed))
}

/// Returns the first policy pack whose bytes the store lacks. Returns `None` unless the pod waits for bytes.
pub fn lacking<'a>(packs: &'a [ResolvedPack], workspace: Option<&Workspace>) -> Option<&'a ResolvedPack> {
    let waits = workspace.is_some_and(|workspace| matches!(readiness(workspace), Readiness::LacksSource(_)));
    packs.iter().find(|pack| !pack.in_store).filter(|_| waits)
}

/// Maps the name of each policy pack to a hash of the pack and its configuration.
pub fn inputs(packs: &[ResolvedPack]) -> BTreeMap<String, String> {
    let hash = |pack: &ResolvedPack| {
        let Resolved { digest, directory, content_id, .. } = &pack.resolved;
        let content = content_id.clone().unwrap_or_else(|| digest.to_string());
        hex::encode(Sha256::digest(json!([content, directory.as_str(), pack.config]).to_string()))
    };
    packs.iter().map(|pack| (pack.name.clone(), hash(pack))).collect()
}

/// Returns the message for the Update if a policy pack is new or has changed since the last run. A removed pack starts
/// no run.
pub fn changed(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Option<String> {
    now.iter().find_map(|(name, hash)| match before.get(name) {
        Some(before) if before == hash => None,
        Some(_) => Some(format!("Policy pack {name} has changed")),
        None => Some(format!("Policy pack {name} was added")),
    })
}

#[cfg(test)]
mod tests;
