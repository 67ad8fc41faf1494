//! Determines the source that a Workspace requests, and the origin of its bytes. The current revision of a Git
//! repository becomes the artifact of the Workspace, as if a Stack had set the artifact.

use std::str::FromStr;

use kube::ResourceExt;

use super::spec_error::SpecError;
use crate::api::auto::{ArtifactReference, Workspace, WorkspaceSpec};
use crate::api::conditions::{READY, find};
use crate::artifact::{Directory, InPod};
use crate::source::git::{Git, KnownArtifact, Lookup, RepositorySpec};
use crate::source::inline::{InlineSource, InlineSourceError, from_init_containers};
use crate::source::{Origin, Unavailable};

/// Source that a Workspace requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredSource {
    /// Artifact with a normalized digest and directory.
    pub artifact: ArtifactReference,
    /// Origin of the bytes, or `None` if the controller that set `artifact` also provides the bytes.
    pub origin: Option<Origin>,
}

impl DesiredSource {
    pub(super) fn is_in_pod(&self) -> bool {
        self.origin == Some(Origin::InPod)
    }

    /// Returns whether user-defined init containers provide the source.
    pub(super) fn is_from_init_containers(&self) -> bool {
        InPod::of(&self.artifact.digest) == Some(InPod::InitContainers)
    }
}

/// Returns the source of a Workspace. At most one field in the spec can define the source. If no field defines the
/// source, the init containers provide it.
pub(super) fn desired(spec: &WorkspaceSpec) -> Result<DesiredSource, SpecError> {
    let written = InlineSource::of(spec);
    let resolved = match (&spec.artifact, written.first()) {
        (Some(_), Some(other)) => return Err(InlineSourceError::MutuallyExclusive { one: "artifact", other }.into()),
        (Some(artifact), None) => return from_artifact_reference(artifact),
        (None, _) => written.resolve()?.unwrap_or_else(from_init_containers),
    };
    let artifact = ArtifactReference {
        digest: resolved.digest,
        revision: resolved.revision,
        dir: resolved.directory.as_str().to_owned(),
    };
    Ok(DesiredSource { artifact, origin: Some(resolved.origin) })
}

/// Returns the source for an artifact that another controller or a user has set.
fn from_artifact_reference(artifact: &ArtifactReference) -> Result<DesiredSource, SpecError> {
    let origin = InPod::of(&artifact.digest).map(|_| Origin::InPod);
    let dir = Directory::from_str(&artifact.dir)?.as_str().to_owned();
    Ok(DesiredSource { artifact: ArtifactReference { dir, ..artifact.clone() }, origin })
}

/// Replaces `spec.git` in `workspace` with an artifact that contains the current revision of the Git repository.
/// Returns the origin of the bytes, or `None` if the Workspace has no Git repository or keeps the artifact of an
/// earlier revision. A sleeping Workspace keeps its artifact, because a new commit does not wake it up, and a failure
/// of the Git server must not affect its readiness.
pub(super) fn resolve(workspace: &mut Workspace, git: &Git) -> Result<Option<Origin>, Unavailable> {
    let follower = (workspace.namespace().unwrap_or_default(), workspace.name_any());
    let desired = match repository(workspace) {
        Ok(Some(desired)) => desired,
        other => {
            git.forget(&follower);
            return other.map(|_| None);
        }
    };
    if let Some(artifact) = of_last_pod(workspace) {
        git.forget(&follower);
        put(workspace, artifact);
        return Ok(None);
    }
    let known = known(workspace);
    let lookup = Lookup { known, ..Lookup::default() };
    match git.resolve(&follower, &desired, &lookup) {
        Ok(resolved) => {
            let artifact = ArtifactReference {
                digest: resolved.digest,
                revision: resolved.revision,
                dir: resolved.directory.as_str().to_owned(),
            };
            put(workspace, artifact);
            Ok(Some(resolved.origin))
        }
        // A ready Workspace keeps its artifact and remains ready until the controller has resolved the revision.
        Err(error @ Unavailable::Resolving(_)) => match ready(workspace) {
            Some(artifact) => {
                put(workspace, artifact);
                Ok(None)
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Returns the Git repository of a Workspace. Returns `None` if the spec contains an artifact or no repository, or if
/// the Workspace is being deleted.
fn repository(workspace: &Workspace) -> Result<Option<RepositorySpec>, Unavailable> {
    if workspace.spec.artifact.is_some() || workspace.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let desired = InlineSource::of(&workspace.spec).repository(&workspace.namespace().unwrap_or_default());
    desired.map_err(|error| Unavailable::Invalid(error.to_string()))
}

fn put(workspace: &mut Workspace, artifact: ArtifactReference) {
    let spec = std::mem::take(&mut workspace.spec);
    workspace.spec = WorkspaceSpec { git: None, artifact: Some(artifact), ..spec };
}

/// Returns the revision and the digest of the artifact in the pod.
fn known(workspace: &Workspace) -> Option<KnownArtifact> {
    let artifact = workspace.status.as_ref()?.artifact.as_ref()?;
    let (revision, digest) = (artifact.revision.clone(), artifact.digest.clone());
    Some(KnownArtifact { revision, digest, selection: None, metadata: None })
}

/// Returns the artifact in the last pod if the Workspace is sleeping. When the Workspace wakes up, the controller
/// removes this artifact from the status, and resolves the revision again.
fn of_last_pod(workspace: &Workspace) -> Option<ArtifactReference> {
    workspace.status.as_ref().filter(|status| status.is_asleep())?.artifact.clone()
}

/// Returns the artifact in the pod if the Workspace is ready with its current spec.
fn ready(workspace: &Workspace) -> Option<ArtifactReference> {
    let status = workspace.status.as_ref()?;
    let ready = find(&status.conditions, READY).filter(|ready| ready.status == "True")?;
    (ready.observed_generation == workspace.metadata.generation).then(|| status.artifact.clone())?
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::artifact::Digest;
    use crate::controller::test_parts::TestParts;
    use crate::runtime::fake_api::{FakeResponse, client};

    fn found(spec: Value) -> Result<DesiredSource, String> {
        let spec: WorkspaceSpec = serde_json::from_value(spec).expect("valid spec");
        desired(&spec).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_sleeping_workspace_does_not_query_its_repository() {
        let parts = TestParts::new(client(|_| FakeResponse::refusal(404, "NotFound")).0);
        let artifact = json!({"digest": Digest::of(b"an archive"), "revision": "main@sha1:1", "dir": "infra"});
        let sleep = json!({"since": "2026-01-01T11:30:00Z"});
        let rows = [
            ("asleep", json!({"sleep": sleep, "artifact": artifact}), true),
            ("woken up", json!({}), false),
            ("asleep again", json!({"sleep": sleep, "artifact": artifact}), true),
            ("awake with an artifact", json!({"artifact": artifact}), false),
            ("a pod of an older controller", json!({"sleep": sleep, "artifact": artifact, "podUID": "pod"}), false),
        ];
        for (name, status, keeps) in rows {
            let mut workspace: Workspace = serde_json::from_value(json!({
                "metadata": {"name": "app", "namespace": "team"}, "status": status,
                "spec": {"git": {"url": "https://git.example.com/app"}},
            }))
            .expect("valid Workspace");
            let resolved = resolve(&mut workspace, &parts.git);
            let kept = workspace.spec.artifact.as_ref().map(|artifact| artifact.revision.as_str());
            match keeps {
                true => assert_eq!((resolved, kept), (Ok(None), Some("main@sha1:1")), "{name}"),
                false => assert!(matches!(resolved, Err(Unavailable::Resolving(_))) && kept.is_none(), "{name}"),
            }
        }
    }

    #[test]
    fn a_workspace_has_exactly_one_source() {
        let digest = Digest::of(b"an archive");
        let by_stack = found(json!({"artifact": {"digest": digest, "revision": "main@sha1:1", "dir": "./a/"}}));
        let by_stack = by_stack.expect("valid");
        assert_eq!((by_stack.artifact.dir.as_str(), by_stack.origin), ("a", None));
        let by_hand = found(json!({"flux": {"url": "http://a/b", "digest": digest}})).expect("valid");
        assert_eq!(by_hand.origin, Some(Origin::Url("http://a/b".to_owned())));
        assert_eq!(
            by_hand.artifact,
            ArtifactReference { digest: digest.clone(), revision: String::new(), dir: String::new() }
        );
        assert!(found(json!({"local": {"dir": "/app"}})).expect("valid").is_in_pod());
        let none = found(json!({})).expect("valid");
        assert_eq!((none.is_in_pod(), none.artifact.digest), (true, InPod::InitContainers.digest()));
        let from_stack = found(json!({"artifact": {"digest": InPod::Image.digest(), "dir": "app"}}));
        assert!(from_stack.expect("valid").is_in_pod());

        let both = found(json!({"artifact": {"digest": digest}, "local": {"dir": "/app"}})).expect_err("rejected");
        assert_eq!(both, "artifact and local are mutually exclusive: remove one of them");
        assert!(found(json!({"local": {}})).expect_err("should be rejected").starts_with("local.dir is missing"));
    }
}
