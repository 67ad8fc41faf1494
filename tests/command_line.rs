//! Tests the exit codes and messages of the controller and the kubectl plugin for invalid command lines and
//! environments.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

/// Runs the controller with `flags`, and with `environment` in addition to the required variables. Returns the exit
/// code and stderr.
fn run_controller(flags: &[&str], environment: &[(&str, &str)]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pulumi-controller"));
    command.env("RUNTIME_NAMESPACE", "flux-system").env("AGENT_IMAGE", "example.org/controller:v1");
    // The process must not connect to a cluster if it wrongly accepts an invalid value.
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

/// Runs the kubectl plugin without a cluster. Returns the exit code, stdout and stderr.
fn run_plugin(arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-pulumi"));
    command.env("KUBECONFIG", "/dev/null").env_remove("KUBERNETES_SERVICE_HOST");
    let output = command.args(arguments).output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

#[test]
fn the_plugin_reports_invalid_arguments_and_a_missing_cluster() -> Result<()> {
    let rows: [(&[&str], i32, &str); 8] = [
        // Errors of `diff` have exit code 1, because exit code 2 means that the preview contains changes.
        (&["diff"], 1, "error: the following required arguments were not provided"),
        (&["diff", "web"], 1, "✗ failed to connect to the cluster: "),
        (&["stack", "state", "delete", "web"], 2, "error: the following required arguments were not provided"),
        (&["version"], 1, "✗ failed to connect to the cluster: "),
        (&["get", "--no-such-flag"], 2, "error: unexpected argument '--no-such-flag' found"),
        (&["get", "--timeout", "soon"], 2, "error: invalid value 'soon' for '--timeout <DURATION>'"),
        (&["get"], 1, "✗ failed to connect to the cluster: "),
        (&["get", "--kubeconfig", "/no/such/file"], 1, "✗ failed to connect to the cluster: "),
    ];
    for (arguments, code, expected) in rows {
        let (found, _, message) = run_plugin(arguments)?;
        assert_eq!(found, Some(code), "{arguments:?}: {message}");
        assert!(message.starts_with(expected), "{arguments:?}: {message}");
    }
    Ok(())
}

#[test]
fn the_exit_code_does_not_depend_on_the_reader_of_stderr() -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-pulumi"));
    command.env("KUBECONFIG", "/dev/null").env_remove("KUBERNETES_SERVICE_HOST");
    let mut child = command.arg("get").stderr(Stdio::piped()).spawn()?;
    drop(child.stderr.take());
    assert_eq!(child.wait()?.code(), Some(1));
    Ok(())
}

/// Writes a kubeconfig for a server that is not available, and returns the flag with its path.
fn kubeconfig(directory: &Path) -> Result<String> {
    let file = directory.join("config");
    let text = "current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\n\
                clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n";
    std::fs::write(&file, text)?;
    Ok(format!("--kubeconfig={}", file.display()))
}

#[test]
fn an_invalid_namespace_is_not_reported_as_changes() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kubeconfig = kubeconfig(directory.path())?;
    for (command, code) in [("get", 2), ("diff", 1)] {
        let (found, _, message) = run_plugin(&[command, "web", "--namespace=", &kubeconfig])?;
        assert_eq!(found, Some(code), "{command}: {message}");
        assert!(message.starts_with("✗ invalid --namespace=: use the name of a namespace"), "{command}: {message}");
    }
    Ok(())
}

#[test]
fn the_list_of_servers_without_a_proxy_can_have_empty_entries() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kubeconfig = kubeconfig(directory.path())?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-pulumi"));
    command.env("HTTPS_PROXY", "http://127.0.0.1:1").env("NO_PROXY", ",localhost,");
    let output = command.args(["get", kubeconfig.as_str()]).output()?;
    let message = String::from_utf8(output.stderr)?;
    assert!(message.starts_with("✗ failed to list objects of kind Stack in namespace default: "), "{message}");
    Ok(())
}

#[test]
fn the_plugin_completes_commands_without_a_cluster() -> Result<()> {
    let (code, script, _) = run_plugin(&["completion"])?;
    assert_eq!(code, Some(0));
    assert!(script.starts_with("#!/bin/sh\n"), "{script}");
    let (code, found, _) = run_plugin(&["__complete", "--", "-n", "apps", "resu"])?;
    assert_eq!((code, found.as_str()), (Some(0), "resume\tResume suspended Stacks\n:4\n"));
    let (code, found, _) = run_plugin(&["__complete", "--", "stack", "state", "ren"])?;
    assert_eq!((code, found.as_str()), (Some(0), "rename\tRename a resource\n:4\n"));
    let (code, found, _) = run_plugin(&["__complete", "--", "get", ""])?;
    assert_eq!((code, found.as_str()), (Some(0), ":4\n"), "Stacks of a cluster without a connection");
    Ok(())
}
