//! The API group `auto.pulumi.com`.

mod git;
mod key_reference;
mod update;
mod workspace;

pub use git::{GitHubAppKeys, GitRepository, GitRepositoryAuth};
pub use key_reference::{KeyReference, SecretKeySelector};
pub use update::{
    LockRecovery, PendingCreates, RunBinding, RunProgress, RunProject, TerminationEvidence, Update, UpdateKind,
    UpdatePhase, UpdateSpec, UpdateStatus,
};
pub use workspace::{
    ArtifactReference, ConfigItem, ConfigValueFrom, FluxArtifact, LocalDirectory, ProjectInfo, Workspace,
    WorkspaceSpec, WorkspaceStack, WorkspaceStatus,
};
