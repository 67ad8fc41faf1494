//! The version of the CLI in the image.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_util::task::TaskTracker;

use super::command::{Call, CallError, Stdout};
use super::environment;
use super::layout::Layout;
use super::output::PodLog;
use crate::pulumi::arguments;

/// Timeout of the call of the CLI.
const CLI_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a caller waits for the version. The CLI can be slow on a busy node; a later call returns the version.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The version of the CLI. It is queried once, when it is needed or some time after the start of the pod.
#[derive(Clone)]
pub struct CliVersion {
    layout: Layout,
    tasks: TaskTracker,
    found: Arc<OnceCell<String>>,
}

impl CliVersion {
    pub fn new(layout: Layout, tasks: TaskTracker) -> Self {
        CliVersion { layout, tasks, found: Arc::default() }
    }

    /// Returns the version as the CLI printed it; empty if the image has no working CLI or the CLI has not been queried
    /// yet.
    pub fn known(&self) -> String {
        self.found.get().cloned().unwrap_or_default()
    }

    /// Queries the version after a random delay between `after` and twice `after`: the query costs about a third of a
    /// small run, and must not slow down a new pod or hit all pods at once.
    pub async fn find_later(&self, after: Duration) {
        tokio::time::sleep(after.mul_f64(1.0 + fastrand::f64())).await;
        self.get().await;
    }

    /// Returns the version as the CLI prints it; empty if the image has no working CLI or it does not answer in time.
    pub async fn get(&self) -> String {
        if let Some(version) = self.found.get() {
            return version.clone();
        }
        let finder = self.clone();
        // A separate task, which continues after the caller's timeout. The cell runs one query at a time.
        let finding = self.tasks.spawn(async move { finder.found.get_or_try_init(|| finder.find()).await.cloned() });
        match tokio::time::timeout(ANSWER_TIMEOUT, finding).await {
            Ok(Ok(Ok(version))) => version,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "failed to query the version of the CLI");
                String::new()
            }
            _ => String::new(),
        }
    }

    async fn find(&self) -> Result<String, CallError> {
        let environment = match environment::build(&self.layout, &[]) {
            Ok(environment) => environment,
            Err(error) => return Err(CallError::Start(std::io::Error::other(error))),
        };
        let call = Call {
            arguments: arguments::version(),
            directory: self.layout.root(),
            environment: &environment.variables,
            operation: &format!("version-{}", uuid::Uuid::new_v4()),
            limit: CLI_TIMEOUT,
            log: PodLog { name: "version".to_owned(), redactor: environment.redactor() },
            stdin: None,
            stdout: Stdout::Captured,
            begun: &|_| {},
        };
        let ended = call.run().await?;
        if !ended.exit.success() {
            tracing::warn!(how = ended.how(), "the image has no working CLI");
            return Ok(String::new());
        }
        let printed = String::from_utf8_lossy(&ended.captured);
        Ok(printed.lines().next().unwrap_or_default().trim().chars().take(64).collect())
    }
}
