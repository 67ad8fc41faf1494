//! Tests the exit code and the messages for an invalid command line or environment.

use std::process::Command;

use anyhow::Result;

/// Runs the controller with `flags` and `environment` in addition to the required variables. Returns its exit code and
/// standard error.
fn run_controller(flags: &[&str], environment: &[(&str, &str)]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulumi-controller"));
    command.env("RUNTIME_NAMESPACE", "flux-system").env("AGENT_IMAGE", "example.org/controller:v1");
    // If the process wrongly accepts the value, it must not connect to a cluster.
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
    for (flags, code, expected) in rows {
        let (found, message) = run_controller(flags, &[])?;
        assert_eq!(found, Some(code), "{flags:?}: {message}");
        assert!(message.starts_with(expected), "{flags:?}: {message}");
    }
    Ok(())
}

#[test]
fn substitute_artifact_hosts_are_read_from_the_environment() -> Result<()> {
    for variable in ["SOURCE_CONTROLLER_LOCALHOST", "SOURCE_WATCHER_LOCALHOST"] {
        let (code, message) = run_controller(&[], &[(variable, "http://a")])?;
        assert_eq!(code, Some(1), "{message}");
        let expected =
            format!("error: invalid {variable}=\"http://a\": must be HOST or HOST:PORT without scheme and path\n");
        assert_eq!(message, expected);
    }
    Ok(())
}
