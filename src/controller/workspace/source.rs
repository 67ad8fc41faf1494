//! Source that a Workspace requests, and the origin of its bytes. Pure functions.

use std::str::FromStr;

use super::spec_error::SpecError;
use crate::api::auto::{ArtifactReference, WorkspaceSpec};
use crate::artifact::{Digest, Directory, InPod};
use crate::source::Origin;
use crate::source::inline::{InlineSource, InlineSourceError, from_init_containers};

/// Source that a Workspace requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WantedSource {
    /// With normalized digest and directory.
    pub artifact: ArtifactReference,
    /// Origin of the bytes. `None` if the controller that wrote `artifact` provides them.
    pub origin: Option<Origin>,
}

impl WantedSource {
    pub(super) fn is_in_pod(&self) -> bool {
        self.origin == Some(Origin::InPod)
    }

    /// Returns whether the user's init containers provide the source.
    pub(super) fn is_from_init_containers(&self) -> bool {
        let digest = Digest::from_str(&self.artifact.digest);
        digest.is_ok_and(|digest| InPod::of(&digest) == Some(InPod::InitContainers))
    }
}

/// Returns the source of a Workspace, which exactly one field specifies.
pub(super) fn wanted(spec: &WorkspaceSpec) -> Result<WantedSource, SpecError> {
    let written = InlineSource::of(spec);
    let resolved = match (&spec.artifact, written.first()) {
        (Some(_), Some(other)) => return Err(InlineSourceError::Two { one: "artifact", other }.into()),
        (Some(artifact), None) => return given(artifact),
        (None, _) => written.resolve()?.unwrap_or_else(from_init_containers),
    };
    let artifact = ArtifactReference {
        digest: resolved.digest.to_string(),
        revision: resolved.revision,
        dir: resolved.directory.as_str().to_owned(),
    };
    Ok(WantedSource { artifact, origin: Some(resolved.origin) })
}

/// Returns the source for an artifact that another controller or a user has resolved.
fn given(artifact: &ArtifactReference) -> Result<WantedSource, SpecError> {
    let digest = Digest::from_str(&artifact.digest)?;
    let origin = InPod::of(&digest).map(|_| Origin::InPod);
    let dir = Directory::from_str(&artifact.dir)?.as_str().to_owned();
    let artifact = ArtifactReference { digest: digest.to_string(), revision: artifact.revision.clone(), dir };
    Ok(WantedSource { artifact, origin })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(spec: Value) -> Result<WantedSource, String> {
        let spec: WorkspaceSpec = serde_json::from_value(spec).expect("a spec");
        wanted(&spec).map_err(|error| error.to_string())
    }

    #[test]
    fn a_workspace_has_exactly_one_source() {
        let digest = Digest::of(b"an archive").to_string();
        let by_stack = found(json!({"artifact": {"digest": digest, "revision": "main@sha1:1", "dir": "./a/"}}));
        let by_stack = by_stack.expect("valid");
        assert_eq!((by_stack.artifact.dir.as_str(), by_stack.origin), ("a", None));
        let by_hand = found(json!({"flux": {"url": "http://a/b", "digest": digest}})).expect("valid");
        assert_eq!(by_hand.origin, Some(Origin::Url("http://a/b".to_owned())));
        assert_eq!(by_hand.artifact, ArtifactReference { digest: digest.clone(), ..ArtifactReference::default() });
        assert!(found(json!({"local": {"dir": "/app"}})).expect("valid").is_in_pod());
        let none = found(json!({})).expect("valid");
        assert_eq!((none.is_in_pod(), none.artifact.digest), (true, InPod::InitContainers.digest().to_string()));
        let from_stack = found(json!({"artifact": {"digest": InPod::Image.digest().to_string(), "dir": "app"}}));
        assert!(from_stack.expect("valid").is_in_pod());

        let both = found(json!({"artifact": {"digest": digest}, "local": {"dir": "/app"}})).expect_err("refused");
        assert_eq!(both, "artifact and local are mutually exclusive: remove one of them");
        assert!(found(json!({"artifact": {"digest": "x"}})).expect_err("refused").starts_with("artifact.digest: "));
        assert!(found(json!({"local": {}})).expect_err("refused").starts_with("local.dir is missing"));
    }
}
