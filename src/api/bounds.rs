//! How much of a kind one object may hold. The schemas say so to users; the controller keeps to it in what it writes.
//!
//! Large enough for what people write by hand or generate, small enough that one object cannot occupy the controller.

/// Other objects in one list: Stacks, Secrets, ConfigMaps, environments.
pub const REFERENCES: u32 = 100;
/// Entries of one map or list of values: configuration, variables, targets.
pub const ENTRIES: u32 = 1000;
/// Entries of one section of a Program.
pub const PROGRAM_ENTRIES: u32 = 5000;
/// Environment variables of a Workspace: those of its Stack, and as many of `workspaceTemplate`.
pub const WORKSPACE_ENV: u32 = 2 * ENTRIES + REFERENCES;
/// Sources of environment variables of a Workspace: those of its Stack, and as many of `workspaceTemplate`.
pub const WORKSPACE_ENV_FROM: u32 = 4 * REFERENCES;
/// Configuration values of one stack of a Workspace: the four maps of its Stack, and another one of `workspaceTemplate`.
pub const WORKSPACE_CONFIG: u32 = 5 * ENTRIES;
/// ESC environments of one stack of a Workspace: those of its Stack, and as many of `workspaceTemplate`.
pub const WORKSPACE_ENVIRONMENTS: u32 = 2 * REFERENCES;
/// Secrets and ConfigMaps that a Workspace refers to.
pub const REFERENCED_OBJECTS: u32 = WORKSPACE_ENV + WORKSPACE_ENV_FROM + WORKSPACE_CONFIG;
/// Secrets and ConfigMaps of a pod whose changes the status tells.
pub const MOUNTED_INPUTS: u32 = ENTRIES;
/// Conditions of an object.
pub const CONDITIONS: u32 = 16;
/// Kinds of changes of a run.
pub const OPERATIONS: u32 = 64;
/// Resources whose creation is in doubt after a run.
pub const PENDING_CREATES: u32 = 100;
/// Earlier runs that a status keeps.
pub const HISTORY: u32 = 16;

/// Characters of the name of an object of Kubernetes.
pub const NAME: u32 = 253;
/// Characters of a namespace.
pub const NAMESPACE: u32 = 63;
/// Characters of a key of a Secret, a ConfigMap, or a stack's configuration.
pub const KEY: u32 = 1024;
/// Characters of the URN of a resource.
pub const URN: u32 = 4096;
/// Characters of the name of a stack with its organization and project.
pub const STACK: u32 = 1024;
/// Characters of a source's revision.
pub const REVISION: u32 = 2048;
/// Characters of other short texts.
pub const WORD: u32 = 1024;
/// Characters of an environment of Pulumi ESC.
pub const ENVIRONMENT: u32 = 512;
/// Characters of a path or a pattern of files.
pub const PATH: u32 = 4096;

/// Bytes of a template as JSON: `workspaceTemplate`, `podTemplate`.
pub const TEMPLATE_BYTES: usize = 256 * 1024;
/// Bytes of a smaller template as JSON: `updateTemplate`, `serviceTemplate`, `resources`.
pub const SMALL_TEMPLATE_BYTES: usize = 64 * 1024;
