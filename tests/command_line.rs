//! Exit code and messages for an invalid command line or environment.

use std::process::Command;

use anyhow::Result;

/// Runs a manager with these flags and these variables in addition to the required ones. Returns its exit code and
/// standard error.
fn ended(flags: &[&str], environment: &[(&str, &str)]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulumi-controller"));
    command.env("RUNTIME_NAMESPACE", "flux-system").env("AGENT_IMAGE", "example.org/controller:v1");
    // If the process accepts an invalid value, it must not find a cluster.
    command.env("KUBECONFIG", "/dev/null").env_remove("KUBERNETES_SERVICE_HOST");
    let output = command.args(flags).envs(environment.iter().copied()).output()?;
    Ok((output.status.code(), String::from_utf8(output.stderr)?))
}

#[test]
fn an_unknown_feature_gate_or_flag_exits_with_a_code_and_a_message() -> Result<()> {
    let unknown_gate = "error: invalid feature gate \"NoSuchGate=true\" in --feature-gates: must be DisableConfigWatchers=true \
                        or DisableConfigWatchers=false\n";
    let rows: [(&[&str], i32, &str); 3] = [
        (&["--feature-gates=NoSuchGate=true"], 1, unknown_gate),
        (&["manager", "--feature-gates=DisableConfigWatchers=true,NoSuchGate=true"], 1, unknown_gate),
        (&["--no-such-flag"], 2, "error: unexpected argument '--no-such-flag' found"),
    ];
    for (flags, code, wanted) in rows {
        let (found, said) = ended(flags, &[])?;
        assert_eq!(found, Some(code), "{flags:?}: {said}");
        assert!(said.starts_with(wanted), "{flags:?}: {said}");
    }
    Ok(())
}

#[test]
fn substitute_artifact_hosts_are_read_from_the_environment() -> Result<()> {
    for variable in ["SOURCE_CONTROLLER_LOCALHOST", "SOURCE_WATCHER_LOCALHOST"] {
        let (code, said) = ended(&[], &[(variable, "http://a")])?;
        assert_eq!(code, Some(1), "{said}");
        let wanted =
            format!("error: invalid {variable}=\"http://a\": must be HOST or HOST:PORT without scheme and path\n");
        assert_eq!(said, wanted);
    }
    Ok(())
}
