//! API group `auto.pulumi.com`.

mod plan;
mod run_history;
mod sleep;
mod source_metadata;
mod update;
mod update_status;
mod workspace;

pub use plan::{PlanReference, PlannedResource, PreviewOf, UpdatePlan};
pub use run_history::RunHistory;
pub use sleep::{IdleKeep, PooledPod, WorkspaceIdle, WorkspaceSleep};
pub use source_metadata::SourceMetadata;
pub use update::{LockRecovery, PendingCreates, Update, UpdateKind, UpdateSpec};
pub use update_status::{RunBinding, RunProgress, RunProject, TerminationEvidence, UpdatePhase, UpdateStatus};
pub use workspace::{
    ArtifactReference, ConfigItem, ConfigValueFrom, FluxArtifact, GitHubAppKeys, GitRepository, GitRepositoryAuth,
    KeyReference, LocalDirectory, ProjectInfo, SecretKeySelector, Workspace, WorkspacePolicyPack, WorkspaceSpec,
    WorkspaceStack, WorkspaceStatus,
};
