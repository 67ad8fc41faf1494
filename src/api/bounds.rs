//! Size limits for the custom resources. The schemas contain the limits, and the API server enforces them. The
//! controller also applies the limits to the objects that it writes.
//!
//! The limits permit all objects that the controller generates, and prevent a single object from exhausting the
//! controller's resources.

/// Maximum number of references in one list, such as the references to Stacks, Secrets, ConfigMaps or ESC environments.
pub const REFERENCES: u32 = 100;
/// Maximum number of patterns in one list. The limit is low, because the controller matches each pattern against all
/// resources that a run changes.
pub const PATTERNS: u32 = 20;
/// Maximum number of values in one map or list, such as configuration, environment variables or targets.
pub const ENTRIES: u32 = 1000;
/// Maximum number of entries in one section of a Program.
pub const PROGRAM_ENTRIES: u32 = 5000;
/// Maximum number of environment variables in a Workspace: [`ENTRIES`] from its Stack, [`ENTRIES`] from
/// `workspaceTemplate`, and a reserve for variables that the controller adds.
pub const WORKSPACE_ENV: u32 = 2 * ENTRIES + REFERENCES;
/// Maximum number of `envFrom` entries in a Workspace: 2 × [`REFERENCES`] from its Stack, and the same number from
/// `workspaceTemplate`.
pub const WORKSPACE_ENV_FROM: u32 = 4 * REFERENCES;
/// Maximum number of configuration values for a Pulumi stack in a Workspace: [`ENTRIES`] for each of the Stack's maps
/// `config`, `configRef`, `secrets` and `secretsRef`, and for the list in `workspaceTemplate`.
pub const WORKSPACE_CONFIG: u32 = 5 * ENTRIES;
/// Maximum number of ESC environments for a Pulumi stack in a Workspace: [`REFERENCES`] from its Stack, and
/// [`REFERENCES`] from `workspaceTemplate`.
pub const WORKSPACE_ENVIRONMENTS: u32 = 2 * REFERENCES;
/// Maximum number of different Secrets and ConfigMaps that a Workspace references. The limit is lower than the number of
/// references, because the controller reads each object before a run, and the pod has a volume for each object. The
/// schema cannot express the limit, so the controller rejects a Workspace that exceeds it.
pub const REFERENCED_OBJECTS: u32 = 2 * REFERENCES;
/// Maximum number of mounted Secrets and ConfigMaps whose hashes a status contains.
pub const MOUNTED_INPUTS: u32 = ENTRIES;
/// Maximum number of parallel resource operations in a run. The CLI allocates memory for each operation before the
/// engine starts: a million operations use more than 13 GiB.
pub const PARALLEL: u32 = 10_000;
/// Maximum number of environment variables that a status lists because a run ignored them.
pub const IGNORED_VARIABLES: u32 = 20;
/// Maximum number of conditions per object.
pub const CONDITIONS: u32 = 16;
/// Maximum number of operation types, such as `create`, in a run's change summary.
pub const OPERATIONS: u32 = 64;
/// Maximum number of pending creates that an Update status lists.
pub const PENDING_CREATES: u32 = 100;
/// Maximum number of changed resources that a status lists for a preview.
pub const PLANNED_RESOURCES: u32 = 200;
/// Maximum number of changed properties that a status lists for a resource.
pub const PLANNED_PROPERTIES: u32 = 20;
/// Maximum number of policy packs in a Stack, and of policy packs that the controller adds to all Stacks.
pub const POLICY_PACKS: u32 = 10;
/// Maximum number of policy packs in a Workspace.
pub const WORKSPACE_POLICY_PACKS: u32 = 2 * POLICY_PACKS;
/// Maximum number of exceptions for a policy pack.
pub const POLICY_EXCEPTIONS: u32 = 100;
/// Maximum number of objects to which the controller writes the outputs of a Stack.
pub const OUTPUT_OBJECTS: u32 = 10;
/// Maximum number of policy violations in a status.
pub const POLICY_VIOLATIONS: u32 = 20;
/// Maximum number of history entries in a status.
pub const HISTORY: u32 = 16;
/// Maximum number of OIDC issuers in a StackReceiver.
pub const OIDC_PROVIDERS: u32 = 8;
/// Maximum length of the URL of an OIDC issuer, in characters.
pub const ISSUER_URL: u32 = 512;
/// Maximum length of the audience of an OIDC token, in characters.
pub const AUDIENCE: u32 = 256;
/// Maximum number of recent runs in a status.
pub const RUNS: u32 = 10;
/// Maximum number of orphaned Pulumi stacks in a status.
pub const ORPHANED_STACKS: u32 = 10;
/// Maximum number of Pulumi stacks of other Stacks in an Update.
pub const APPLIED_BY_OTHERS: u32 = 100;
/// Maximum number of approvers that a status lists for a recent run.
pub const RUN_APPROVERS: u32 = 10;

/// Maximum length of an object name, in characters.
pub const NAME: u32 = 253;
/// Maximum length of a namespace, in characters.
pub const NAMESPACE: u32 = 63;
/// Maximum length of a key in a Secret, a ConfigMap or a Pulumi configuration, in characters.
pub const KEY: u32 = 1024;
/// Maximum length of a resource URN, in characters.
pub const URN: u32 = 4096;
/// Maximum length of a Pulumi stack name with organization and project, in characters.
pub const STACK: u32 = 1024;
/// Maximum length of a source revision, in characters.
pub const REVISION: u32 = 2048;
/// Maximum length of any other short string, in characters.
pub const WORD: u32 = 1024;
/// Maximum length of a message in a status, in characters.
pub const MESSAGE: u32 = 8 * 1024;
/// Maximum length of a Pulumi ESC environment name, in characters.
pub const ENVIRONMENT: u32 = 512;
/// Maximum length of a path or a file pattern, in characters.
pub const PATH: u32 = 4096;

/// Maximum length of a duration, such as `1h30m`, in characters.
pub const DURATION: u32 = 64;

/// Maximum size of `workspaceTemplate` and `podTemplate`, encoded as JSON, in bytes.
pub const TEMPLATE_BYTES: usize = 256 * 1024;
/// Maximum size of a policy pack's configuration, encoded as JSON, in bytes.
pub const POLICY_CONFIG_BYTES: usize = 64 * 1024;
/// Maximum size of `updateTemplate`, `serviceTemplate` and `resources`, encoded as JSON, in bytes.
pub const SMALL_TEMPLATE_BYTES: usize = 64 * 1024;
