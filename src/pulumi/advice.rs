//! Advice for users on common failures. Patterns in the messages of the CLI, the language hosts and the providers
//! determine the advice. If a message matches no pattern, there is no advice. The controller makes no decision based on
//! the advice.

/// Advice for a container that ran out of memory.
pub const MORE_MEMORY: &str = "increase resources.limits.memory of the container `pulumi` in spec.workspaceTemplate";

const PASSPHRASE: &str = "the stack's secrets are encrypted with a passphrase: set PULUMI_CONFIG_PASSPHRASE to the passphrase of \
                          the stack in spec.envRefs or in a Secret of spec.envSecrets";
const OTHER_KEY: &str = "a secret in the stack's settings file is encrypted with a different passphrase or key than the file or \
                         the stack specifies: commit the file together with its secretsprovider and encryptedkey, or its \
                         encryptionsalt; or remove the secret from the file and set it in spec.secretsRef";
const NO_LOGIN: &str = "set the state backend in spec.backend; for Pulumi Cloud, set spec.pulumiCloudOIDC, or store an \
                        access token in a Secret and refer to it in spec.accessTokenSecret or spec.envRefs";
const REJECTED_IDENTITY: &str = "register the issuer in the organization, allow the audience for this issuer, and add a policy for the \
                                 subject and for the organization, team or user in spec.pulumiCloudOIDC";
const INVALID_TOKEN: &str = "store a valid access token in the Secret to which spec.envRefs or spec.accessTokenSecret refers; a run then starts within two minutes";
const MISSING_PERMISSION: &str = "the access token is valid but lacks a permission: use a token with the permission, or correct \
                                  the organization in spec.stack";
const UPDATE_IN_PROGRESS: &str =
    "wait until the other update ends; if no update is running, unlock the stack with `pulumi cancel`";
const PLUGIN: &str = "use an image with this plugin (spec.workspaceTemplate.spec.image), or let the CLI download it: do not set \
                      PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION";
const PLUGIN_CONNECTION: &str = "allow connections from the pod to the plugin server, or use an image with this plugin \
                                 (spec.workspaceTemplate.spec.image)";
const PLUGIN_RATE_LIMIT: &str = "the plugin server limits the number of downloads: for a plugin on GitHub, store an access token in a \
                                 Secret and set the variable GITHUB_TOKEN in spec.envRefs, or use an image with this plugin \
                                 (spec.workspaceTemplate.spec.image)";
const PLUGIN_REJECTED: &str = "the plugin server rejects the download: check the version and the download URL of the plugin; for a \
                               plugin in a private GitHub repository, store an access token in a Secret and set the variable \
                               GITHUB_TOKEN in spec.envRefs";
const PLUGIN_SERVER: &str = "the plugin server is unavailable: the controller retries the run";
const PLUGIN_ATTEMPTS: &str = "the plugin server does not respond, or responds with an error such as a rate limit, which the log of the pod \
                               contains: the controller retries the run; for a plugin on GitHub, store an access token in a Secret and set \
                               the variable GITHUB_TOKEN in spec.envRefs";
const READ_ONLY: &str = "the container cannot write to this directory: mount an emptyDir volume at the directory in podTemplate; for \
                         temporary files and plugins, you can also set the variables TMPDIR and PULUMI_HOME to directories on a volume";
const CONFIG_MISSING: &str = "set the value in spec.config or spec.configRef, or in spec.secretsRef if it is secret";
const CONFIG_TYPE: &str = "set a value of this type in spec.config; a value from a ConfigMap or a Secret is a string unless \
                           `json: true` is set";
const ENVIRONMENTS: &str =
    "only Pulumi Cloud supports environments: remove spec.environment, or use the Pulumi Cloud backend";
const ESC_CONFIGURATION: &str = "the configuration of this Pulumi stack is in an ESC environment: set the values in this environment, \
                                 and remove spec.config, spec.configRef, spec.secretsRef and the `config` section of the settings file";
const POLICY: &str = "change the program to comply with the policy, or ask the owner of the policy to change it";
const KILLED: &str = "a signal killed the program, usually because the container ran out of memory: increase \
                      resources.limits.memory of the container `pulumi` in spec.workspaceTemplate";
const SILENT_EXIT: &str = "the program ended without an error message: return or throw an error instead of ending the process; \
                           the log of the pod contains all output";
const EMPTY_INDEX: &str = "the package index has no version of this package, or pip cannot connect to the index: check the name \
                           of the package and the address of the index";
const DISK: &str = "a volume is full: increase the ephemeral storage of the pod or write less data; if the volume of the state \
                    backend is full, free space on this volume";
const NO_RUN_PROGRAM: &str = "runProgram requires Pulumi CLI 3.160.0 or later, and 3.169.0 or later together with refresh: use an image with a \
                              newer version (spec.workspaceTemplate.spec.image), or unset runProgram";
const NO_EXCEPTIONS: &str = "exceptions in spec.policyPacks require Pulumi CLI 3.274.0 or later: use an image with a newer version \
                             (spec.workspaceTemplate.spec.image), or remove the exceptions";
const LEGACY_LAYOUT: &str = "the state backend has a layout without projects, which the Pulumi CLI no longer supports: run `pulumi state upgrade` \
                             with Pulumi CLI 3.274.1 or earlier, and request a run";
const OLD_CLI: &str =
    "the Pulumi CLI in the image may be too old: use an image with a newer version (spec.workspaceTemplate.spec.image)";

/// Each entry has a list of patterns, and the advice for a line that matches one of the patterns. Patterns are in lower
/// case, and `*` matches any text. The first matching entry takes precedence.
const KNOWN: &[(&[&str], &str)] = &[
    (&["get stack secrets manager: *passphrase", "failed to decrypt: incorrect passphrase"], PASSPHRASE),
    (&["failed to decrypt", "cipher: message authentication failed"], OTHER_KEY),
    (&["incorrect passphrase", "passphrase must be set with pulumi_config_passphrase"], PASSPHRASE),
    (&["pulumi cloud rejected the serviceaccount token"], REJECTED_IDENTITY),
    (&["pulumi_access_token must be set", "this command requires logging in"], NO_LOGIN),
    (&["invalid access token", "unauthorized: no credentials provided or are invalid", "[401]"], INVALID_TOKEN),
    (&["[403]"], MISSING_PERMISSION),
    (&["another update is currently in progress"], UPDATE_IN_PROGRESS),
    (&["read-only file system", "erofs: "], READ_ONLY),
    (
        &[
            "rate limit exceeded: *http error fetching plugin",
            "github rate limit exceeded",
            "429 http error fetching plugin",
        ],
        PLUGIN_RATE_LIMIT,
    ),
    (
        &["403 http error fetching plugin", "401 http error fetching plugin", "404 http error fetching plugin"],
        PLUGIN_REJECTED,
    ),
    (&["http error fetching plugin"], PLUGIN_SERVER),
    (
        &[
            "could not automatically download*dial tcp",
            "could not automatically download*timeout",
            "could not automatically download*deadline exceeded",
            "could not automatically download*connection re",
            "could not automatically download*tls: ",
            "could not automatically download*x509: ",
            "could not find latest version for provider*dial tcp",
        ],
        PLUGIN_CONNECTION,
    ),
    // The CLI writes the responses only to its output.
    (&["could not automatically download*failed all * attempts"], PLUGIN_ATTEMPTS),
    (
        &[
            "no resource plugin '",
            "no language plugin '",
            "no analyzer plugin '",
            "could not automatically download and install",
            "plugin * not installed",
        ],
        PLUGIN,
    ),
    (&["is missing configuration value", "missing required configuration variable"], CONFIG_MISSING),
    (&["with configuration key * must be of type"], CONFIG_TYPE),
    (&["does not support environments"], ENVIRONMENTS),
    (
        &[
            "config set not supported for remote stack config",
            "cannot set config for a stack with cloud config",
            "which stacks with an esc-managed environment don't use",
            "is not supported on stacks with an esc-managed environment",
        ],
        ESC_CONFIGURATION,
    ),
    (&["violates the policy "], POLICY),
    (&["parsing \"version\": 2 is not a valid value; must be a string or object"], NO_EXCEPTIONS),
    (&["legacy diy state is "], LEGACY_LAYOUT),
    (&["unknown flag: --run-program"], NO_RUN_PROGRAM),
    (&["unknown flag: --", "does not satisfy the version range", "unknown command *for \"pulumi"], OLD_CLI),
    (&["exited with non-zero exit code: -1"], KILLED),
    (&["exited with non-zero exit code: "], SILENT_EXIT),
    (&["(from versions: none)"], EMPTY_INDEX),
    (&["heap out of memory", "cannot allocate memory", "enomem", "oomkilled"], MORE_MEMORY),
    (&["no space left on device", "enospc", "disk quota exceeded"], DISK),
];

/// Extensions of the files that source-controller and `flux push artifact` exclude by default.
const EXCLUDED_BY_FLUX: [&str; 8] = [".jpg", ".jpeg", ".gif", ".png", ".wmv", ".flv", ".tar.gz", ".zip"];

/// Returns the advice for a failure message, if any.
pub fn about(failure: &str) -> Option<String> {
    failure.lines().find_map(missing_permission).or_else(|| failure.lines().find_map(excluded_file)).or_else(|| {
        let lines: Vec<String> = failure.lines().map(str::to_lowercase).collect();
        let is_found = |texts: &[&str]| texts.iter().any(|text| lines.iter().any(|line| has(line, text)));
        KNOWN.iter().find(|(texts, _)| is_found(texts)).map(|(_, advice)| (*advice).to_owned())
    })
}

/// Returns the failure message with its advice, if any. Does not repeat advice that the message already contains.
pub fn with(failure: &str) -> String {
    match about(failure) {
        Some(advice) if !failure.contains(&advice) => format!("{failure}\n({advice})"),
        _ => failure.to_owned(),
    }
}

fn has(line: &str, text: &str) -> bool {
    let mut rest = line;
    text.split('*').all(|part| {
        let found = rest.split_once(part);
        rest = found.map_or(rest, |(_, after)| after);
        found.is_some()
    })
}

/// Returns advice for a missing file that is not part of Flux artifacts by default.
fn excluded_file(line: &str) -> Option<String> {
    let line = line.to_lowercase();
    if !["no such file", "filenotfound", "enoent"].iter().any(|error| line.contains(error)) {
        return None;
    }
    let words = line.split(|c: char| c.is_whitespace() || "'\"`:,()[]".contains(c));
    let extension = words
        .filter_map(|word| EXCLUDED_BY_FLUX.iter().find(|extension| word.trim_end_matches('.').ends_with(*extension)))
        .next()?;
    Some(format!(
        "if the Stack has a Flux source: Flux excludes *{extension} files by default; set spec.ignore of the GitRepository or \
         Bucket, for example to `!*{extension}`, or push the OCI artifact with `--ignore-paths`"
    ))
}

/// Returns advice for a missing RBAC permission. The API server writes:
/// `User "system:serviceaccount:NAMESPACE:NAME" cannot VERB resource "RESOURCE" in API group "GROUP" in the namespace
/// "NAMESPACE"`.
fn missing_permission(line: &str) -> Option<String> {
    let (_, from_user) = line.split_once("User \"system:serviceaccount:")?;
    let (account, after) = from_user.split_once("\" cannot ")?;
    let (namespace, name) = account.split_once(':')?;
    let (verb, after) = after.split_once(" resource \"")?;
    let (resource, after) = after.split_once('"')?;
    let quoted = |after_words: &str| Some(after.split_once(after_words)?.1.split_once('"')?.0.to_owned());
    let group = quoted("in API group \"").filter(|group| !group.is_empty());
    let group = group.map(|group| format!(".{group}")).unwrap_or_default();
    let (scope, kinds) = match quoted("in the namespace \"") {
        Some(scope) => (format!("in namespace {scope}"), "a Role and a RoleBinding"),
        None => ("at the cluster scope".to_owned(), "a ClusterRole and a ClusterRoleBinding"),
    };
    Some(format!(
        "allow ServiceAccount {namespace}/{name} to {verb} {resource}{group} {scope} with {kinds}, or set another \
         ServiceAccount in spec.serviceAccountName"
    ))
}

#[cfg(test)]
mod tests;
