//! The source that the controller requests.

use crate::agent::refusal::Refusal;
use crate::artifact::{Digest, DigestError, Directory, DirectoryError, Limits};
use crate::rpc::proto;

/// The source that the controller requests.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) digest: Digest,
    pub(super) directory: Directory,
    /// Size of the archive in bytes.
    pub(super) size: u64,
    /// Limits for receiving and unpacking the archive.
    pub(super) limits: Limits,
    /// Environment of the installation of dependencies.
    pub(super) environment: Vec<proto::EnvironmentVariable>,
    /// Mounted directories that the installation waits for.
    pub(super) required_directories: Vec<String>,
}

impl Wanted {
    pub(super) fn is_same(&self, other: &Wanted) -> bool {
        self.digest == other.digest && self.directory == other.directory
    }

    pub(super) fn artifact(&self) -> proto::Artifact {
        proto::Artifact { digest: self.digest.to_string(), directory: self.directory.as_str().to_owned() }
    }
}

impl TryFrom<proto::SourceHeader> for Wanted {
    type Error = Refusal;

    fn try_from(header: proto::SourceHeader) -> Result<Self, Refusal> {
        let limits = limits(&header);
        let artifact = header.artifact.ok_or_else(|| Refusal::Invalid("source header has no artifact".to_owned()))?;
        Ok(Wanted {
            digest: artifact.digest.parse().map_err(|error: DigestError| invalid(&error))?,
            directory: artifact.directory.parse().map_err(|error: DirectoryError| invalid(&error))?,
            size: header.size,
            limits,
            environment: header.environment,
            required_directories: header.required_directories,
        })
    }
}

/// Returns the limits that the controller sets. Earlier versions of the controller set none.
fn limits(header: &proto::SourceHeader) -> Limits {
    let or = |requested: u64, default: u64| if requested == 0 { default } else { requested };
    let default = Limits::default();
    Limits {
        download_bytes: or(header.most_bytes, default.download_bytes),
        unpacked_bytes: or(header.most_unpacked_bytes, default.unpacked_bytes),
        ..default
    }
}

fn invalid(error: &dyn std::error::Error) -> Refusal {
    Refusal::Invalid(error.to_string())
}
