//! Runs a process in a container with the user's permissions, like `kubectl exec`.

use std::pin::pin;

use anstream::adapter::strip_str;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams};
use pulumi_controller::api::names;
use pulumi_controller::text::{chain, printable};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::time::timeout_at;

use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;

/// Size of each stream buffer between the connection and the plugin, in bytes.
const BUFFER: usize = 64 * 1024;
/// Maximum length of a line, in bytes. The plugin splits longer lines.
const MAX_LINE: u64 = 64 * 1024;
/// Maximum size of a process's stdout and stderr, in bytes each.
pub const MAX_OUTPUT: u64 = 256 * 1024 * 1024;

/// Process to run in a workspace pod.
pub struct Process<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    /// Name of the process in messages, such as `pulumi preview`.
    pub name: &'a str,
    pub command: Vec<String>,
    /// Bytes for stdin. The plugin keeps stdin open after the last byte, because older API servers cannot close stdin
    /// without closing the connection. The process therefore cannot read until the end of stdin, and must know the
    /// number of bytes.
    pub input: Option<&'a [u8]>,
}

/// Runs a process, passes each output line to `stdout` or `stderr`, and returns the exit code.
///
/// # Errors
///
/// Returns an error if the process cannot start, if the connection closes before the process exits, if an output
/// exceeds its limit, or if the timeout expires.
pub async fn run(
    cluster: &Cluster,
    process: &Process<'_>,
    stdout: impl FnMut(&[u8]) -> Result<(), PluginError>,
    stderr: impl FnMut(&[u8]) -> Result<(), PluginError>,
) -> Result<i32, PluginError> {
    let what = || format!("run `{}` in Pod {}/{}", process.name, process.namespace, process.pod);
    let api: Api<Pod> = Api::namespaced(cluster.client(), process.namespace);
    let parameters = AttachParams::default()
        .container(names::PULUMI_CONTAINER)
        .stdin(process.input.is_some())
        .max_stdin_buf_size(BUFFER)
        .max_stdout_buf_size(BUFFER)
        .max_stderr_buf_size(BUFFER);
    let mut attached = cluster.call(what, api.exec(process.pod, process.command.clone(), &parameters)).await?;
    let (status, input) = (attached.take_status(), attached.stdin());
    let (output, errors) = (attached.stdout(), attached.stderr());
    let status = async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    };
    let outputs =
        async { tokio::try_join!(receive(output, process.name, stdout), receive(errors, process.name, stderr)) };
    let ended = ended(status, outputs);
    let transfer = async {
        tokio::select! {
            ended = ended => ended,
            // `send` keeps stdin open until the process exits.
            () = send(input, process.input.unwrap_or_default()) => Ok(None),
        }
    };
    let transferred = timeout_at(cluster.deadline(), transfer).await.unwrap_or_else(|_| Err(timed_out(&what())));
    if let Some(status) = transferred? {
        return exit_code(&status).map_err(|cause| PluginError::Failed(format!("failed to {}: {cause}", what())));
    }
    let cause = match timeout_at(cluster.deadline(), attached.join()).await {
        Ok(Err(error)) => chain(&error),
        Ok(Ok(())) => "the connection ended before the process".to_owned(),
        Err(_) => return Err(timed_out(&what())),
    };
    Err(PluginError::Failed(format!("failed to {}: {cause}; check the pod, and retry the command", what())))
}

/// Waits until the process exits and both outputs are closed. Returns the status of the process, or `None` if the
/// connection has failed. After a connection failure, the output streams never end.
async fn ended(
    status: impl Future<Output = Option<Status>>,
    outputs: impl Future<Output = Result<((), ()), PluginError>>,
) -> Result<Option<Status>, PluginError> {
    let mut status = pin!(status);
    let mut outputs = pin!(outputs);
    tokio::select! {
        read = &mut outputs => {
            read?;
            Ok(status.await)
        }
        found = &mut status => {
            if found.is_some() {
                outputs.await?;
            }
            Ok(found)
        }
    }
}

fn timed_out(what: &str) -> PluginError {
    PluginError::TimedOut(format!(
        "timed out: failed to {what} within the maximum duration; the process can still be running in the pod; to wait \
         longer, increase --timeout"
    ))
}

/// Writes the input, and then keeps stdin open until the caller drops the future.
async fn send(writer: Option<impl AsyncWrite + Unpin>, input: &[u8]) {
    let mut writer = writer;
    if let Some(writer) = &mut writer {
        // The function ignores write errors, because a process that exits before it has read its input reports the
        // cause itself.
        let _ = writer.write_all(input).await;
    }
    std::future::pending::<()>().await;
}

/// Reads an output line by line.
async fn receive(
    reader: Option<impl AsyncRead + Unpin>,
    name: &str,
    mut write: impl FnMut(&[u8]) -> Result<(), PluginError>,
) -> Result<(), PluginError> {
    let Some(reader) = reader else { return Ok(()) };
    let mut reader = BufReader::new(reader);
    let mut total = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await;
        let length =
            read.map_err(|error| PluginError::Failed(format!("failed to read the output of `{name}`: {error}")))?;
        if length == 0 {
            return Ok(());
        }
        total += u64::try_from(length).unwrap_or(u64::MAX);
        if total > MAX_OUTPUT {
            let limit = MAX_OUTPUT / 1024 / 1024;
            return Err(PluginError::Failed(format!("the output of `{name}` exceeds {limit} MiB")));
        }
        write(&line)?;
    }
}

/// Converts an output line to printable text without colors. The Pulumi CLI and a program can print color sequences even with
/// `--color=never`.
pub fn printable_output(line: &[u8]) -> String {
    printable(&strip_str(&String::from_utf8_lossy(line).replace('\r', "")).to_string())
}

/// Returns the exit code from the status that the API server sends when the process exits, or the failure cause.
fn exit_code(status: &Status) -> Result<i32, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let mut causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let code = causes.find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_deref()?.parse().ok());
    code.ok_or_else(|| status.message.clone().unwrap_or_else(|| "the API server reported no exit code".to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_exit_code_is_in_the_causes_of_the_status() {
        let of = |status: serde_json::Value| exit_code(&serde_json::from_value(status).unwrap());
        assert_eq!(of(json!({ "metadata": {}, "status": "Success" })), Ok(0));
        let failed = json!({ "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code",
            "details": { "causes": [{ "reason": "ExitCode", "message": "137" }] } });
        assert_eq!(of(failed), Ok(137));
        let missing = json!({ "metadata": {}, "status": "Failure", "message": "container not found" });
        assert_eq!(of(missing), Err("container not found".to_owned()));
    }

    #[tokio::test]
    async fn the_status_ends_the_wait_only_if_the_outputs_have_been_read() {
        let success = || Status { status: Some("Success".to_owned()), ..Status::default() };
        let read = || async { Ok(((), ())) };
        let never = std::future::pending::<Result<((), ()), PluginError>>;
        assert_eq!(ended(async { Some(success()) }, read()).await.unwrap(), Some(success()));
        assert_eq!(ended(async { None }, never()).await.unwrap(), None, "a failed connection does not end the outputs");
        let failed = async { Err(PluginError::Failed("too long".to_owned())) };
        assert!(ended(std::future::pending(), failed).await.is_err());
    }

    #[tokio::test]
    async fn an_output_is_read_in_lines_with_a_maximum_length() {
        let text = format!("one\n{}\nlast", "x".repeat(70_000));
        let mut lengths = Vec::new();
        let write = |line: &[u8]| {
            lengths.push(line.len());
            Ok(())
        };
        receive(Some(text.as_bytes()), "pulumi", write).await.unwrap();
        assert_eq!(lengths, [4, 65_536, 70_001 - 65_536, 4]);
        assert_eq!(printable_output(b"a\x1b[2J\x7f\r\n"), "a\n");
        assert_eq!(
            printable_output("\x1b[33mWarning\x1b[0m: caf\u{e9}\u{202e}\n".as_bytes()),
            "Warning: caf\u{e9}\u{fffd}\n"
        );
    }
}
