//! Converts the policy packs of a Workspace. All functions are pure.

use std::str::FromStr;

use super::spec_error::SpecError;
use crate::api::auto::{ArtifactReference, WorkspacePolicyPack, WorkspaceSpec};
use crate::artifact::Directory;
use crate::rpc::proto;
use crate::rpc::protocol::POLICY_PACK_VERSION;

/// Policy pack that a Workspace requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredPack {
    pub name: String,
    /// Artifact with a normalized directory.
    pub artifact: ArtifactReference,
    /// Whether the store contains the bytes of the artifact.
    pub is_stored: bool,
}

impl DesiredPack {
    /// Returns the artifact as the agent's protocol represents it.
    pub(super) fn to_proto(&self) -> proto::Artifact {
        artifact(&self.artifact)
    }
}

/// Returns the policy packs that a Workspace requests. `is_stored` returns whether the store contains an artifact.
pub(super) fn desired(
    spec: &WorkspaceSpec,
    is_stored: impl Fn(&ArtifactReference) -> bool,
) -> Result<Vec<DesiredPack>, SpecError> {
    let desired = spec.policy_packs.iter().map(|pack| -> Result<DesiredPack, SpecError> {
        let artifact = normalized(pack)?;
        Ok(DesiredPack { name: pack.name.clone(), is_stored: is_stored(&artifact), artifact })
    });
    desired.collect()
}

/// Returns the policy packs for the settings of a run.
pub(super) fn of_run(spec: &WorkspaceSpec) -> Result<Vec<proto::PolicyPack>, SpecError> {
    let packs = spec.policy_packs.iter().map(|pack| -> Result<proto::PolicyPack, SpecError> {
        let config = match pack.config.is_empty() {
            true => String::new(),
            false => serde_json::json!(pack.config).to_string(),
        };
        Ok(proto::PolicyPack { name: pack.name.clone(), artifact: Some(artifact(&normalized(pack)?)), config })
    });
    packs.collect()
}

/// Returns whether an agent with the given protocol version is too old to install the policy packs of a Workspace.
pub(super) fn exceed(spec: &WorkspaceSpec, protocol_version: u32) -> bool {
    !spec.policy_packs.is_empty() && protocol_version < POLICY_PACK_VERSION
}

fn normalized(pack: &WorkspacePolicyPack) -> Result<ArtifactReference, SpecError> {
    let dir = Directory::from_str(&pack.artifact.dir)?.as_str().to_owned();
    Ok(ArtifactReference { dir, ..pack.artifact.clone() })
}

fn artifact(artifact: &ArtifactReference) -> proto::Artifact {
    proto::Artifact { digest: artifact.digest.to_string(), directory: artifact.dir.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::artifact::Digest;

    fn spec(packs: Value) -> WorkspaceSpec {
        serde_json::from_value(json!({"policyPacks": packs})).expect("valid spec")
    }

    #[test]
    fn a_run_has_the_packs_of_its_workspace_with_normalized_directories() {
        let digest = Digest::of(b"pack");
        let spec = spec(json!([
            {"name": "house", "artifact": {"digest": digest, "dir": "./a/"}, "config": {"all": "advisory"}},
            {"name": "plain", "artifact": {"digest": digest}},
        ]));
        let packs = of_run(&spec).expect("valid packs");
        let found: Vec<_> = packs.iter().map(|pack| (pack.name.as_str(), pack.config.as_str())).collect();
        assert_eq!(found, [("house", "{\"all\":\"advisory\"}"), ("plain", "")]);
        let desired = desired(&spec, |artifact| artifact.dir.is_empty()).expect("valid packs");
        let found: Vec<_> = desired.iter().map(|pack| (pack.artifact.dir.as_str(), pack.is_stored)).collect();
        assert_eq!(found, [("a", false), ("", true)]);
        assert_eq!(packs[0].artifact, Some(desired[0].to_proto()), "a run and its delivery use the same names");
    }

    #[test]
    fn an_invalid_directory_is_an_error() {
        let spec = spec(json!([{"name": "house", "artifact": {"digest": Digest::of(b"pack"), "dir": "../a"}}]));
        assert!(of_run(&spec).is_err() && desired(&spec, |_| true).is_err());
    }

    #[test]
    fn only_packs_require_a_newer_agent() {
        let with_packs = spec(json!([{"name": "house", "artifact": {"digest": Digest::of(b"pack")}}]));
        for (spec, version, expected) in
            [(&WorkspaceSpec::default(), 0, false), (&with_packs, 6, true), (&with_packs, 7, false)]
        {
            assert_eq!(exceed(spec, version), expected, "{version}");
        }
    }
}
