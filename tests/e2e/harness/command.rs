//! Runs command-line tools such as `kubectl`.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a program, and returns stdout or, if the program fails, stderr. Pulumi writes errors to stdout.
pub async fn try_run_program(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.spawn();
    let mut child = started.unwrap_or_else(|error| {
        panic!("{program} is not on the PATH that `tests/cluster/cluster exec` sets: {error}");
    });
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let work = async {
        stdin.write_all(input.as_bytes()).await.expect("the program reads its input");
        drop(stdin);
        child.wait_with_output().await.expect("the program ends")
    };
    let output = tokio::time::timeout(TIMEOUT, work).await;
    let output = output.unwrap_or_else(|_| panic!("{program} {arguments:?} did not end within {TIMEOUT:?}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false if output.stderr.is_empty() => Err(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

/// Runs a program, and returns stdout. Panics if the program fails.
pub async fn run_program(program: &str, arguments: &[&str], input: &str) -> String {
    let result = try_run_program(program, arguments, input).await;
    result.unwrap_or_else(|problem| panic!("{program} {arguments:?}: {problem}"))
}

/// Runs `kubectl`, and returns stdout or, if the command fails, stderr.
pub async fn try_kubectl(arguments: &[&str], input: &str) -> Result<String, String> {
    try_run_program("kubectl", arguments, input).await
}

/// Runs `kubectl`, and returns stdout. Panics if the command fails.
pub async fn kubectl(arguments: &[&str], input: &str) -> String {
    run_program("kubectl", arguments, input).await
}
