//! API group `pulumi.com`.

mod approval;
mod cloud_oidc;
mod concurrency;
mod drift;
mod output_objects;
mod policy;
mod program;
mod receiver;
mod references;
mod run_record;
mod schedule;
mod stack;
mod stack_status;

pub use approval::{
    Approval, ApprovalDecision, ApprovalMode, ApprovalPolicy, ApprovalSpec, ApprovedPlan, ApprovedStack, NO_LIMIT,
    StackPlan,
};
pub use cloud_oidc::PulumiCloudOidc;
pub use concurrency::{BoundConcurrencyGroup, ConcurrencyGroup};
pub use drift::{DriftIgnoreRule, DriftMode, DriftPolicy, StackDrift};
pub use output_objects::{OutputObject, OutputObjectKind, OutputObjectReference};
pub use policy::{
    EnforcementLevel, PolicyException, PolicyExceptionMatch, PolicyPack, PolicyViolation, PolicyViolations,
};
pub use program::{
    Configuration, CustomTimeouts, Plugin, Plugins, Program, ProgramArtifact, ProgramDefinition, ProgramResource,
    ProgramSpec, ProgramStatus, PulumiRequirements, ResourceGetter, ResourceOptions,
};
pub use receiver::{
    NoToken, OidcProvider, ReceiverResource, ReceiverToken, ReceiverType, StackReceiver, StackReceiverSpec,
    StackReceiverStatus, TokenReference,
};
pub use references::{
    BasicAuth, ConfigMapSelector, ConfigReference, EnvironmentSelector, FileSelector, FluxSource, GitAuth,
    GitHubAppAuth, GitReference, LiteralRef, OrphanedStack, ProgramReference, PulumiStack, ResourceRef, SecretSelector,
    SourceArtifact, SourceReference, SshAuth,
};
pub use run_record::RunRecord;
pub use schedule::{DriftSchedule, Freeze, RunSchedule, RunWindow, Weekday};
pub use stack::{DependencyReference, PrerequisiteReference, Requirement, Stack, StackSpec, WorkspaceReclaimPolicy};
pub use stack_status::{CurrentUpdate, LastUpdate, RunInputs, Snapshot, StackStatus};
