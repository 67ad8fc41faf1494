//! The API group `pulumi.com`.

mod git;
mod history;
mod program;
mod pulumi_stack;
mod receiver;
mod references;
mod stack;
mod stack_status;

pub use git::{BasicAuth, GitAuth, GitHubAppAuth, GitReference, SshAuth};
pub use history::Snapshot;
pub use program::{
    Configuration, CustomTimeouts, Plugin, Plugins, Program, ProgramArtifact, ProgramDefinition, ProgramResource,
    ProgramSpec, ProgramStatus, PulumiRequirements, ResourceGetter, ResourceOptions,
};
pub use pulumi_stack::PulumiStack;
pub use receiver::{
    NoToken, ReceiverResource, ReceiverToken, ReceiverType, StackReceiver, StackReceiverSpec, StackReceiverStatus,
    TokenReference,
};
pub use references::{
    ConfigMapSelector, ConfigReference, EnvironmentSelector, FileSelector, FluxSource, LiteralRef, ProgramReference,
    ResourceRef, SecretSelector, SourceReference,
};
pub use stack::{DependencyReference, PrerequisiteReference, Requirement, Stack, StackSpec, WorkspaceReclaimPolicy};
pub use stack_status::{CurrentUpdate, LastUpdate, StackStatus};
