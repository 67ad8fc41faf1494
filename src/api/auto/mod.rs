//! API group `auto.pulumi.com`.

mod git_repository;
mod plan;
mod run_history;
mod sleep;
mod source_metadata;
mod update;
mod update_status;
mod workspace;

pub use git_repository::{GitHubAppKeys, GitRepository, GitRepositoryAuth, SecretKeySelector};
pub use plan::{PlanReference, PlannedResource, PreviewOf, UpdatePlan};
pub use run_history::RunHistory;
pub use sleep::{IdleKeep, PooledPod, WorkspaceIdle, WorkspaceSleep};
pub use source_metadata::SourceMetadata;
pub use update::{AppliedByOther, LockRecovery, PendingCreates, Update, UpdateKind, UpdateSpec};
pub use update_status::{RunBinding, RunProgress, RunProject, TerminationEvidence, UpdatePhase, UpdateStatus};
pub use workspace::{
    ArtifactReference, ConfigItem, ConfigValueFrom, FluxArtifact, KeyReference, LocalDirectory, ProjectInfo, Workspace,
    WorkspacePolicyPack, WorkspaceSpec, WorkspaceStack, WorkspaceStatus,
};
