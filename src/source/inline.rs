//! Inline sources, which a Workspace or a Stack's `workspaceTemplate` defines. This module performs no I/O.

use serde::Deserialize;
use serde_json::Value;

use crate::api::auto::{FluxArtifact, GitRepository, LocalDirectory, ProjectInfo, WorkspaceSpec};
use crate::artifact::{Digest, DigestError, Directory, DirectoryError, InPod, pack_file};
use crate::pulumi::project::{self, PROJECT_FILE};
use crate::source::git::RepositorySpec;
use crate::source::{Origin, Resolved};

/// The reason why an inline source is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InlineSourceError {
    #[error("{one} and {other} are mutually exclusive: remove one of them")]
    MutuallyExclusive { one: &'static str, other: &'static str },
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{field}: {error}")]
    Directory { field: &'static str, error: DirectoryError },
    #[error("flux.digest: {0}")]
    Digest(#[from] DigestError),
    #[error("failed to pack projectInfo: {0}")]
    Pack(#[from] std::io::Error),
    #[error("{0}")]
    Git(String),
    #[error("invalid source: {0}")]
    Template(#[from] serde_json::Error),
}

/// The Workspace fields that define a source.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InlineSource {
    git: Option<Box<GitRepository>>,
    flux: Option<FluxArtifact>,
    local: Option<LocalDirectory>,
    project_info: Option<ProjectInfo>,
}

impl InlineSource {
    /// Returns the source fields of a Workspace.
    pub fn of(spec: &WorkspaceSpec) -> Self {
        InlineSource {
            git: spec.git.clone(),
            flux: spec.flux.clone(),
            local: spec.local.clone(),
            project_info: spec.project_info.clone(),
        }
    }

    /// Returns the source fields of `workspaceTemplate.spec`.
    pub fn of_template(spec: &Value) -> Result<Self, InlineSourceError> {
        Ok(Option::<InlineSource>::deserialize(spec)?.unwrap_or_default())
    }

    /// Returns the name of the first field that is set.
    pub fn first(&self) -> Option<&'static str> {
        self.set_fields().next()
    }

    fn set_fields(&self) -> impl Iterator<Item = &'static str> {
        let fields = [
            ("git", self.git.is_some()),
            ("flux", self.flux.is_some()),
            ("local", self.local.is_some()),
            ("projectInfo", self.project_info.is_some()),
        ];
        fields.into_iter().filter_map(|(field, is_set)| is_set.then_some(field))
    }

    /// Returns the repository, if the source is a Git repository.
    pub fn repository(&self, namespace: &str) -> Result<Option<RepositorySpec>, InlineSourceError> {
        self.check_one()?;
        let repository = self.git.as_ref().map(|git| RepositorySpec::of_workspace(git, namespace));
        repository.transpose().map_err(InlineSourceError::Git)
    }

    fn check_one(&self) -> Result<(), InlineSourceError> {
        let mut set = self.set_fields();
        match (set.next(), set.next()) {
            (Some(one), Some(other)) => Err(InlineSourceError::MutuallyExclusive { one, other }),
            _ => Ok(()),
        }
    }

    /// Returns the source, or `None` if no source is set or the source is a Git repository.
    pub fn resolve(&self) -> Result<Option<Resolved>, InlineSourceError> {
        self.check_one()?;
        if let Some(flux) = &self.flux {
            return from_flux(flux).map(Some);
        }
        if let Some(local) = &self.local {
            return from_image(local).map(Some);
        }
        self.project_info.as_ref().map(from_project_info).transpose()
    }
}

/// Returns the source for files that the init containers provide.
pub fn from_init_containers() -> Resolved {
    resolve_in_pod(InPod::InitContainers, Directory::root())
}

fn resolve_in_pod(source: InPod, directory: Directory) -> Resolved {
    // An in-pod source has no revision. As in the Pulumi Kubernetes Operator, the field is empty.
    Resolved {
        origin: Origin::InPod,
        revision: String::new(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: source.digest(),
        directory,
    }
}

fn from_flux(flux: &FluxArtifact) -> Result<Resolved, InlineSourceError> {
    if flux.url.is_empty() {
        return Err(InlineSourceError::Missing("flux.url"));
    }
    let directory = flux.dir.as_deref().unwrap_or_default().parse();
    Ok(Resolved {
        origin: Origin::Url(flux.url.clone()),
        revision: String::new(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: flux.digest.parse()?,
        directory: directory.map_err(|error| InlineSourceError::Directory { field: "flux.dir", error })?,
    })
}

fn from_image(local: &LocalDirectory) -> Result<Resolved, InlineSourceError> {
    let directory = local.dir.parse::<Directory>();
    let directory = directory.map_err(|error| InlineSourceError::Directory { field: "local.dir", error })?;
    if directory.is_root() {
        return Err(InlineSourceError::Missing("local.dir"));
    }
    Ok(resolve_in_pod(InPod::Image, directory))
}

fn from_project_info(info: &ProjectInfo) -> Result<Resolved, InlineSourceError> {
    for (field, value) in [("projectInfo.name", &info.name), ("projectInfo.runtime", &info.runtime)] {
        if value.is_empty() {
            return Err(InlineSourceError::Missing(field));
        }
    }
    let bytes = pack_file(PROJECT_FILE, project::minimal_project_file(&info.name, &info.runtime).as_bytes())?;
    let digest = Digest::of(&bytes);
    Ok(Resolved {
        origin: Origin::Made(bytes.into()),
        revision: String::new(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest,
        directory: Directory::root(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DIGEST: &str = "sha256:54a0b53c31a856bb28d128223bf9817ad2c81036ced1456729c4650f947c1cf5";

    fn resolved(spec: Value) -> Result<Option<Resolved>, String> {
        let spec: WorkspaceSpec = serde_json::from_value(spec).expect("a spec");
        InlineSource::of(&spec).resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn each_source_field_resolves_to_a_source() {
        let found = |spec: Value| resolved(spec).expect("valid").expect("a source");
        let flux = found(json!({"flux": {"url": "http://a/b", "digest": DIGEST, "dir": "./infra/"}}));
        assert_eq!(flux.origin, Origin::Url("http://a/b".to_owned()));
        assert_eq!((flux.digest.to_string().as_str(), flux.directory.as_str()), (DIGEST, "infra"));
        let local = found(json!({"local": {"dir": "/app/infra"}}));
        assert_eq!((InPod::of(&local.digest), local.directory.as_str()), (Some(InPod::Image), "app/infra"));
        let head = found(json!({"projectInfo": {"name": "app", "runtime": "nodejs"}}));
        let Origin::Made(bytes) = &head.origin else { panic!("expected bytes: {head:?}") };
        assert_eq!(head.digest, Digest::of(bytes));
        assert_eq!(
            head,
            found(json!({"projectInfo": {"name": "app", "runtime": "nodejs"}})),
            "the archive is reproducible"
        );
        assert_eq!(resolved(json!({})), Ok(None));
        assert_eq!(InPod::of(&from_init_containers().digest), Some(InPod::InitContainers));
    }

    #[test]
    fn the_error_for_an_invalid_source_names_its_field() {
        let rows = [
            (
                json!({"flux": {"url": "u", "digest": DIGEST}, "local": {"dir": "/a"}}),
                "flux and local are mutually exclusive",
            ),
            (
                json!({"local": {"dir": "/a"}, "projectInfo": {"name": "a", "runtime": "b"}}),
                "local and projectInfo are mutually exclusive: remove one of them",
            ),
            (json!({"git": {"url": "u"}, "flux": {"digest": DIGEST}}), "git and flux are mutually exclusive"),
            (json!({"flux": {"digest": DIGEST}}), "flux.url is missing"),
            (json!({"flux": {"url": "u"}}), "flux.digest: digest is empty"),
            (json!({"flux": {"url": "u", "digest": "md5:00"}}), "flux.digest: insecure digest algorithm md5"),
            (json!({"flux": {"url": "u", "digest": DIGEST, "dir": "../x"}}), "flux.dir: directory \"../x\""),
            (json!({"local": {"dir": "/"}}), "local.dir is missing"),
            (json!({"local": {}}), "local.dir is missing"),
            (json!({"local": {"dir": "/a/../../b"}}), "local.dir: directory"),
            (json!({"projectInfo": {"name": "", "runtime": "b"}}), "projectInfo.name is missing"),
        ];
        for (spec, expected) in rows {
            let error = resolved(spec.clone()).expect_err("refused");
            assert!(error.starts_with(expected), "{spec}: {error}");
        }
    }
}
