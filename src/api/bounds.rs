//! Size limits of the custom resources. The schemas enforce them for users, and the controller observes them in the objects that it writes.
//!
//! The limits fit objects that users write or generate, and prevent a single object from exhausting the resources of the controller.

/// Maximum number of references to other objects in one list: Stacks, Secrets, ConfigMaps, ESC environments.
pub const REFERENCES: u32 = 100;
/// Maximum number of values in one map or list: configuration, variables, targets.
pub const ENTRIES: u32 = 1000;
/// Maximum number of entries in one section of a Program.
pub const PROGRAM_ENTRIES: u32 = 5000;
/// Maximum number of environment variables of a Workspace: those of its Stack, and as many from `workspaceTemplate`.
pub const WORKSPACE_ENV: u32 = 2 * ENTRIES + REFERENCES;
/// Maximum number of environment variable sources of a Workspace: those of its Stack, and as many from `workspaceTemplate`.
pub const WORKSPACE_ENV_FROM: u32 = 4 * REFERENCES;
/// Maximum number of configuration values of one Pulumi stack of a Workspace: the four maps of its Stack, and one map from
/// `workspaceTemplate`.
pub const WORKSPACE_CONFIG: u32 = 5 * ENTRIES;
/// Maximum number of ESC environments of one Pulumi stack of a Workspace: those of its Stack, and as many from `workspaceTemplate`.
pub const WORKSPACE_ENVIRONMENTS: u32 = 2 * REFERENCES;
/// Maximum number of Secrets and ConfigMaps that a Workspace references.
pub const REFERENCED_OBJECTS: u32 = WORKSPACE_ENV + WORKSPACE_ENV_FROM + WORKSPACE_CONFIG;
/// Maximum number of mounted Secrets and ConfigMaps whose hashes a status contains.
pub const MOUNTED_INPUTS: u32 = ENTRIES;
/// Maximum number of conditions of an object.
pub const CONDITIONS: u32 = 16;
/// Maximum number of operation kinds in the change summary of a run.
pub const OPERATIONS: u32 = 64;
/// Maximum number of pending creates in the status of an Update.
pub const PENDING_CREATES: u32 = 100;
/// Maximum number of history entries in a status.
pub const HISTORY: u32 = 16;

/// Maximum length of an object name, in characters.
pub const NAME: u32 = 253;
/// Maximum length of a namespace, in characters.
pub const NAMESPACE: u32 = 63;
/// Maximum length of a key of a Secret, a ConfigMap or the stack configuration, in characters.
pub const KEY: u32 = 1024;
/// Maximum length of a resource URN, in characters.
pub const URN: u32 = 4096;
/// Maximum length of a Pulumi stack name with its organization and project, in characters.
pub const STACK: u32 = 1024;
/// Maximum length of a source revision, in characters.
pub const REVISION: u32 = 2048;
/// Maximum length of other short strings, in characters.
pub const WORD: u32 = 1024;
/// Maximum length of a Pulumi ESC environment name, in characters.
pub const ENVIRONMENT: u32 = 512;
/// Maximum length of a path or a file pattern, in characters.
pub const PATH: u32 = 4096;

/// Maximum size of a template as JSON, in bytes: `workspaceTemplate`, `podTemplate`.
pub const TEMPLATE_BYTES: usize = 256 * 1024;
/// Maximum size of a small template as JSON, in bytes: `updateTemplate`, `serviceTemplate`, `resources`.
pub const SMALL_TEMPLATE_BYTES: usize = 64 * 1024;
