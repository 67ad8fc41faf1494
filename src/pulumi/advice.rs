//! Advice for users about common failures, chosen by the messages of the CLI, its language hosts and providers. Advice is
//! informational only: the controller makes no decision by it, and unknown messages get none.

/// Advice for a container that ran out of memory.
pub const MORE_MEMORY: &str = "increase resources.limits.memory of the container `pulumi` in spec.workspaceTemplate";

const PASSPHRASE: &str = "the stack's secrets are encrypted with a passphrase: set PULUMI_CONFIG_PASSPHRASE to the passphrase of the \
                          stack in spec.envRefs or in a Secret of spec.envSecrets";
const OTHER_KEY: &str = "a secret in the stack's settings file is encrypted with a different passphrase or key than the stack: set the \
                         secret again with `pulumi config set --secret` and commit the file, or remove it from the file and set it \
                         in spec.secretsRef";
const NO_LOGIN: &str = "set the state backend in spec.backend; for Pulumi Cloud, reference the Secret with an access token in \
                        spec.accessTokenSecret";
const INVALID_TOKEN: &str = "store a valid access token in the Secret of spec.accessTokenSecret; the next run uses it";
const MISSING_PERMISSION: &str = "the access token is valid but lacks a permission: use a token with the permission, or correct the \
                                  organization in spec.stack";
const UPDATE_IN_PROGRESS: &str =
    "wait until the other update ends; if no update is running, unlock the stack with `pulumi cancel`";
const PLUGIN: &str = "use an image with this plugin (spec.workspaceTemplate.spec.image), or let the CLI download it: allow connections \
                      from the pod to the plugin server, and do not set PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION";
const CONFIG_MISSING: &str = "set the value in spec.config or spec.configRef, or in spec.secretsRef if it is secret";
const CONFIG_TYPE: &str = "set a value of this type in spec.config; a value from a ConfigMap or a Secret is a string unless \
                           `json: true` is set";
const ENVIRONMENTS: &str =
    "only Pulumi Cloud supports environments: remove spec.environment, or use the Pulumi Cloud backend";
const POLICY: &str = "change the program to comply with the policy, or ask the owner of the policy to change it";
const DISK: &str = "a volume is full: for a volume of the pod, increase the pod's ephemeral storage or write less data; for the state \
                    backend, free space there";
const OLD_CLI: &str = "the Pulumi CLI in the image may be too old: use an image with a newer version \
                       (spec.workspaceTemplate.spec.image)";

/// Patterns and the advice for a line that contains one of them. Patterns are lower case; `*` matches any text. The first match
/// wins.
const KNOWN: &[(&[&str], &str)] = &[
    (&["get stack secrets manager: *passphrase", "failed to decrypt: incorrect passphrase"], PASSPHRASE),
    (&["failed to decrypt", "cipher: message authentication failed"], OTHER_KEY),
    (&["incorrect passphrase", "passphrase must be set with pulumi_config_passphrase"], PASSPHRASE),
    (&["pulumi_access_token must be set", "this command requires logging in"], NO_LOGIN),
    (&["invalid access token", "unauthorized: no credentials provided or are invalid", "[401]"], INVALID_TOKEN),
    (&["[403]"], MISSING_PERMISSION),
    (&["another update is currently in progress"], UPDATE_IN_PROGRESS),
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
    (&["violates the policy "], POLICY),
    (&["unknown flag: --", "does not satisfy the version range", "unknown command *for \"pulumi"], OLD_CLI),
    (&["heap out of memory", "cannot allocate memory", "enomem", "oomkilled"], MORE_MEMORY),
    (&["no space left on device", "enospc", "disk quota exceeded"], DISK),
];

/// Returns advice for a failure message, if there is any.
pub fn about(failure: &str) -> Option<String> {
    failure.lines().find_map(missing_permission).or_else(|| {
        let lines: Vec<String> = failure.lines().map(str::to_lowercase).collect();
        let is_found = |texts: &[&str]| texts.iter().any(|text| lines.iter().any(|line| has(line, text)));
        KNOWN.iter().find(|(texts, _)| is_found(texts)).map(|(_, advice)| (*advice).to_owned())
    })
}

/// Appends the advice for a failure message, if there is any.
pub fn with(failure: &str) -> String {
    match about(failure) {
        Some(advice) => format!("{failure}\n({advice})"),
        None => failure.to_owned(),
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
        "allow ServiceAccount {namespace}/{name} to {verb} {resource}{group} {scope} with {kinds}, or set another ServiceAccount in \
         spec.serviceAccountName"
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wrong_passphrase_is_distinguished_from_a_wrong_key() {
        let table = [
            ("getting stack configuration: get stack secrets manager: incorrect passphrase", PASSPHRASE),
            ("get stack secrets manager: failed to decrypt: incorrect passphrase", PASSPHRASE),
            (
                "failed to decrypt: incorrect passphrase, please set PULUMI_CONFIG_PASSPHRASE to the correct passphrase or set \
                 PULUMI_CONFIG_PASSPHRASE_FILE to a file containing the passphrase",
                PASSPHRASE,
            ),
            (
                "could not create secrets manager for new stack: passphrase must be set with PULUMI_CONFIG_PASSPHRASE or \
                 PULUMI_CONFIG_PASSPHRASE_FILE environment variables",
                PASSPHRASE,
            ),
            ("validating stack config: cipher: message authentication failed", OTHER_KEY),
            ("failed to decrypt encrypted configuration value 'web:token': incorrect passphrase", OTHER_KEY),
        ];
        for (message, advice) in table {
            assert_eq!(about(message).as_deref(), Some(advice), "{message}");
        }
    }

    #[test]
    fn known_errors_of_the_cli_and_its_plugins_have_advice() {
        let table = [
            ("PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions", NO_LOGIN),
            ("this command requires logging in; try running `pulumi login` first", NO_LOGIN),
            ("problem logging in: Invalid access token", INVALID_TOKEN),
            ("Unauthorized: No credentials provided or are invalid.", INVALID_TOKEN),
            ("getting stack: [403] Forbidden", MISSING_PERMISSION),
            ("[409] Conflict: Another update is currently in progress.", UPDATE_IN_PROGRESS),
            (
                "Error: error resolving type of resource a: internal error loading package \"random\": rpc error: code = Unknown \
                 desc = no resource plugin 'pulumi-resource-random' found in the workspace or on your $PATH",
                PLUGIN,
            ),
            (
                "failed to load language plugin nope: no language plugin 'pulumi-language-nope' found in the workspace or on your \
                 $PATH",
                PLUGIN,
            ),
            (
                "could not start policy pack \"/p\" because the built-in analyzer plugin that runs policy plugins is missing: no \
                 analyzer plugin 'pulumi-analyzer-policy-nope' found in the workspace or on your $PATH",
                PLUGIN,
            ),
            ("resource plugin aws v6.1.0 not installed", PLUGIN),
            ("validating stack config: Stack 'dev' is missing configuration value 'size'", CONFIG_MISSING),
            ("missing required configuration variable 'size'; run `pulumi config` to set", CONFIG_MISSING),
            ("Error: Missing required configuration variable 'web:size'", CONFIG_MISSING),
            (
                "validating stack config: Stack 'dev' with configuration key 'size' must be of type 'integer'",
                CONFIG_TYPE,
            ),
            ("backend file:///state does not support environments; use Pulumi Cloud", ENVIRONMENTS),
            ("aws:s3/bucket:Bucket logs: violates the policy no-public of pack house 1.2.0: it is public", POLICY),
            ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", MORE_MEMORY),
            ("fork/exec /plugins/pulumi-resource-aws: cannot allocate memory", MORE_MEMORY),
            (
                "could not create stack: An IO error occurred while writing the new snapshot file: blob (key \
                 \".pulumi/stacks/example/dev.json\") (code=Unknown): write /state/dev.json.attrs: no space left on device",
                DISK,
            ),
            ("npm error code ENOSPC", DISK),
        ];
        for (message, advice) in table {
            let failure = format!("the first line\n{message}\nthe last line");
            assert_eq!(about(&failure).as_deref(), Some(advice), "{message}");
            assert_eq!(with(&failure), format!("{failure}\n({advice})"));
        }
        for message in ["it fails", "", "a plugin\nis not installed", "no space", "cannot create resource \"x\""] {
            assert_eq!(with(message), message);
        }
    }

    #[test]
    fn advice_for_a_missing_permission_names_the_service_account() {
        let table = [
            (
                "creating step: making the ConfigMap apps/made: Kubernetes answered 403 Forbidden: configmaps is forbidden: User \
                 \"system:serviceaccount:apps:deployer\" cannot create resource \"configmaps\" in API group \"\" in the namespace \
                 \"apps\"",
                "allow ServiceAccount apps/deployer to create configmaps in namespace apps with a Role and a RoleBinding, or",
            ),
            (
                "clusterroles.rbac.authorization.k8s.io \"a\" is forbidden: User \"system:serviceaccount:apps:deployer\" cannot \
                 patch resource \"clusterroles\" in API group \"rbac.authorization.k8s.io\" at the cluster scope",
                "allow ServiceAccount apps/deployer to patch clusterroles.rbac.authorization.k8s.io at the cluster scope with a \
                 ClusterRole and a ClusterRoleBinding, or",
            ),
        ];
        for (message, wanted) in table {
            let advice = about(message).expect("known message");
            assert!(advice.starts_with(wanted), "{advice}");
        }
        assert_eq!(
            about("pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
            None
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(User \"system:serviceaccount:|:|\" cannot | resource \"|\"|in the namespace \"|.|\\n){0,20}") {
            let _ = with(&text);
        }
    }
}
