//! A local port that `kubectl port-forward` forwards to a pod of the controller.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::controller::NAMESPACE;
use super::wait::WaitLimit;

/// A forwarded port. Dropping the guard ends `kubectl`.
pub struct PortForward {
    /// URL of the local port.
    pub url: String,
    _kubectl: Child,
    /// `kubectl` ends if it cannot write its output.
    _output: Lines<BufReader<ChildStdout>>,
}

impl PortForward {
    pub async fn to_pod(pod: &str, port: u16) -> PortForward {
        let (pod, ports) = (format!("pod/{pod}"), format!(":{port}"));
        let mut command = Command::new("kubectl");
        command.args(["--namespace", NAMESPACE, "port-forward", "--address", "127.0.0.1", &pod, &ports]);
        let started = command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut kubectl = started.expect("`tests/cluster/cluster exec` adds kubectl to the PATH");
        let mut output = BufReader::new(kubectl.stdout.take().expect("stdout is piped")).lines();
        let line = timeout(WaitLimit::Call.limit(), output.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("kubectl did not forward the port {port} of {pod} in time"));
        let line = line.expect("kubectl writes a text").unwrap_or_default();
        let local = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
        let local = local.unwrap_or_else(|| panic!("forwarding the port {port} of {pod}: {line:?}"));
        PortForward { url: format!("http://127.0.0.1:{local}"), _kubectl: kubectl, _output: output }
    }
}
