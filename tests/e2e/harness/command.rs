//! Runs `kubectl` as a user does.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the standard output of `kubectl`, or the standard error if the command fails.
pub async fn try_kubectl(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut kubectl = tokio::process::Command::new("kubectl");
    kubectl.args(arguments).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = kubectl.spawn().expect("kubectl is on the PATH that `tests/cluster/cluster exec` sets");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let work = async {
        stdin.write_all(input.as_bytes()).await.expect("kubectl reads its input");
        drop(stdin);
        child.wait_with_output().await.expect("kubectl ends")
    };
    let output = tokio::time::timeout(TIMEOUT, work).await;
    let output = output.unwrap_or_else(|_| panic!("kubectl {arguments:?} did not end within {TIMEOUT:?}"));
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Runs `kubectl` and panics if it fails.
pub async fn kubectl(arguments: &[&str], input: &str) -> String {
    try_kubectl(arguments, input).await.unwrap_or_else(|problem| panic!("kubectl {arguments:?}: {problem}"))
}
