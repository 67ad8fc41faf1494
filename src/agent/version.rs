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

/// How long the CLI may take to say its version.
const CLI_TIMEOUT: Duration = Duration::from_secs(60);
/// How long somebody waits who wants to know it: the CLI may be slow on a busy node, and the answer comes the next time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Found once: when somebody needs it, or when the pod has been there for a while.
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

    /// As the CLI printed it; empty when there is no working CLI, or as long as nobody has asked it.
    pub fn known(&self) -> String {
        self.found.get().cloned().unwrap_or_default()
    }

    /// Finds it after a while, and not all pods at once: it costs as much as a third of a small run, and pods that are
    /// new have better to do.
    pub async fn find_later(&self, after: Duration) {
        tokio::time::sleep(after.mul_f64(1.0 + fastrand::f64())).await;
        self.get().await;
    }

    /// As the CLI prints it; empty when there is no working CLI, or as long as it is not known.
    pub async fn get(&self) -> String {
        if let Some(version) = self.found.get() {
            return version.clone();
        }
        let finder = self.clone();
        // In a task of its own: it goes on when nobody waits any more. The cell lets one of them look at a time.
        let finding = self.tasks.spawn(async move { finder.found.get_or_try_init(|| finder.find()).await.cloned() });
        match tokio::time::timeout(ANSWER_TIMEOUT, finding).await {
            Ok(Ok(Ok(version))) => version,
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "cannot find the version of the CLI");
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
