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
fn states_of_a_backend_and_a_stack_that_the_cli_rejects_have_advice() {
    let line = "=".repeat(80);
    let table = [
        (
            format!(
                "\n{line}\nLegacy DIY state is no longer supported, please use Pulumi v3.274.1 or earlier\nto upgrade your \
                 state to project mode using:\n'pulumi state upgrade'\n\nSee \
                 https://github.com/pulumi/pulumi/issues/19566.\n{line}"
            ),
            LEGACY_LAYOUT,
        ),
        (
            format!("\n{line}\nLegacy DIY state is deprecated, please upgrade your state to project mode using:\n"),
            LEGACY_LAYOUT,
        ),
        (
            "failed to encrypt config key web:token: config set not supported for remote stack config: use `pulumi env set \
             acme/web pulumiConfig.web:token --secret <value>`"
                .to_owned(),
            ESC_CONFIGURATION,
        ),
        ("failed to encrypt 2 values: cannot set config for a stack with cloud config".to_owned(), ESC_CONFIGURATION),
        (
            "Pulumi.dev.yaml has values under `config:`, which stacks with an ESC-managed environment don't use. Remove the \
             `config:` section, then set each value with `pulumi config set` (`--secret` for secrets)"
                .to_owned(),
            ESC_CONFIGURATION,
        ),
        ("parsing \"version\": 2 is not a valid value; must be a string or object".to_owned(), NO_EXCEPTIONS),
    ];
    for (message, advice) in table {
        assert_eq!(about(&message).as_deref(), Some(advice), "{message}");
    }
}

#[test]
fn files_that_flux_excludes_have_advice() {
    for (message, extension) in [
        (
            "failed to compute archive hash for \"archive\": open /share/workspace/function.zip: no such file or directory",
            ".zip",
        ),
        ("Error reading file at path ./logo.png: open ./logo.png: no such file or directory", ".png"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'dist/app.tar.gz'", ".tar.gz"),
        ("Error: ENOENT: no such file or directory, open 'Photo.JPG'", ".jpg"),
    ] {
        let advice = about(&format!("the first line\n{message}")).unwrap();
        assert!(
            advice.contains(&format!("spec.ignore of the GitRepository or Bucket, for example to `!*{extension}`")),
            "{message}: {advice}"
        );
    }
}

/// Asserts that each message of a table has its advice, also between other lines.
fn assert_advice(table: &[(&str, &str)]) {
    for (message, advice) in table {
        let failure = format!("the first line\n{message}\nthe last line");
        assert_eq!(about(&failure).as_deref(), Some(*advice), "{message}");
        assert_eq!(with(&failure), format!("{failure}\n({advice})"));
    }
}

#[test]
fn failed_downloads_of_plugins_have_specific_advice() {
    assert_advice(&[
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok' at version v1.0.7, install the \
             plugin using `pulumi plugin install resource tok v1.0.7`: error downloading provider tok to file: failed to \
             download plugin: tok-1.0.7: 403 HTTP error fetching plugin from http://plugins/pulumi-resource-tok.tar.gz",
            PLUGIN_REJECTED,
        ),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok': error downloading provider \
             tok to file: rate limit exceeded: 403 HTTP error fetching plugin from https://api.github.com/repos/a/b",
            PLUGIN_RATE_LIMIT,
        ),
        (
            "error downloading provider tok to file: 429 HTTP error fetching plugin from http://plugins/a",
            PLUGIN_RATE_LIMIT,
        ),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok' at version v1.0.7, install the \
             plugin using `pulumi plugin install resource tok v1.0.7`: error downloading provider tok to file: failed to \
             download plugin: tok-1.0.7: failed all 5 attempts",
            PLUGIN_ATTEMPTS,
        ),
        ("error downloading provider tok to file: 503 HTTP error fetching plugin from http://plugins/a", PLUGIN_SERVER),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok': error downloading provider \
             tok to file: open /tmp/pulumi-plugin-tar3062549130: read-only file system",
            READ_ONLY,
        ),
        (
            "error installing provider tok: creating plugin root: mkdir /home/pulumi/.pulumi: read-only file system",
            READ_ONLY,
        ),
        ("Error: EROFS: read-only file system, open '/app/x'", READ_ONLY),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok': error downloading provider \
             tok to file: Get \"https://get.pulumi.com/a\": dial tcp: lookup get.pulumi.com on 10.96.0.10:53: no such host",
            PLUGIN_CONNECTION,
        ),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok': error downloading provider \
             tok to file: Get \"https://get.pulumi.com/a\": net/http: TLS handshake timeout",
            PLUGIN_CONNECTION,
        ),
        (
            "Could not automatically download and install resource plugin 'pulumi-resource-tok': error downloading provider \
             tok to file: Get \"https://a\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
            PLUGIN_CONNECTION,
        ),
        ("Could not automatically download and install resource plugin 'pulumi-resource-tok': corrupt archive", PLUGIN),
    ]);
}

#[test]
fn known_errors_of_the_cli_and_its_plugins_have_advice() {
    let table = [
        ("PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions", NO_LOGIN),
        ("this command requires logging in; try running `pulumi login` first", NO_LOGIN),
        (
            "Pulumi Cloud rejected the ServiceAccount token (issuer \"https://kubernetes\", subject \"s\", audience \"a\"): [401] \
             Unauthorized: No credentials provided or are invalid.",
            REJECTED_IDENTITY,
        ),
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
        ("validating stack config: Stack 'dev' with configuration key 'size' must be of type 'integer'", CONFIG_TYPE),
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
    assert_advice(&table);
    for message in [
        "dial tcp 10.0.0.1:443: connection refused",
        "no such file: a.zipper",
        "cannot read a.zip",
        "it fails",
        "",
        "a plugin\nis not installed",
        "no space",
        "cannot create resource \"x\"",
    ] {
        assert_eq!(with(message), message);
    }
}

#[test]
fn the_advice_for_a_missing_permission_names_the_service_account() {
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
    for (message, expected) in table {
        let advice = about(message).expect("known message");
        assert!(advice.starts_with(expected), "{advice}");
    }
    assert_eq!(
        about("pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
        None
    );
}

proptest! {
    #[test]
    fn arbitrary_text_never_causes_a_panic(text in "(User \"system:serviceaccount:|:|\" cannot | resource \"|\"|in the namespace \"|.|\\n){0,20}") {
        let _ = with(&text);
    }
}
