//! `logs`: prints the log of a run. The log of the workspace pod contains all runs, so the lines are selected by time.

use std::collections::VecDeque;
use std::time::Duration;

use futures::{AsyncBufReadExt as _, Stream, StreamExt as _};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::LogParams;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use tokio::time::Instant;

use crate::plugin::args::LogFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::follow::POLL_INTERVAL;
use crate::plugin::progress::Progress;
use crate::plugin::screen::{self, printable};
use crate::plugin::select::full_name;
use crate::plugin::updates;

/// Maximum size of a log that is not followed.
const MAX_BYTES: i64 = 10 * 1024 * 1024;
/// Time after the recorded end of a run within which lines still belong to the run. The recorded times have a precision
/// of one second.
const AFTER_END: SignedDuration = SignedDuration::from_secs(2);
/// Time after the end of a run within which its last lines arrive.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Prints the log of a run.
///
/// # Errors
///
/// Returns an error if the Stack or the run does not exist, if the run has not started, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &LogFlags) -> Result<(), PluginError> {
    let update = Box::pin(started(cluster, flags)).await?;
    let Some(mut window) = Window::of(&update) else { return Err(not_started(&update)) };
    let (namespace, pod) = (cluster.namespace(), names::workspace_pod(&update.spec.workspace_name));
    let found: Option<Pod> = cluster.get_opt(namespace, &pod).await?;
    if !found.is_some_and(|pod| is_pod_of(&pod, &update)) {
        return print_last_output(&update);
    }
    let follows = flags.follow && window.end.is_none();
    let parameters = LogParams {
        container: Some(names::PULUMI_CONTAINER.to_owned()),
        follow: follows,
        limit_bytes: (!follows).then_some(MAX_BYTES),
        since_time: Some(window.start),
        tail_lines: flags.tail.filter(|_| follows),
        timestamps: true,
        ..LogParams::default()
    };
    let log = Box::pin(cluster.open_log(namespace, &pod, &parameters).await?);
    if follows {
        follow(cluster, &update, log.lines(), &mut window).await
    } else {
        print_tail(log.lines(), &window, flags.tail).await
    }
}

/// Returns the Update of the run. With `--follow`, waits until the run starts.
async fn started(cluster: &Cluster, flags: &LogFlags) -> Result<Update, PluginError> {
    let namespace = cluster.namespace();
    let mut progress = Progress::new();
    loop {
        let stack: Stack = cluster.get(namespace, &flags.stack).await?;
        let name = flags.run.as_deref().or_else(|| updates::current_or_last(&stack));
        let update: Option<Update> = match name {
            Some(name) => Some(cluster.get(namespace, name).await?),
            None => None,
        };
        let state = match update {
            Some(update) if has_started(&update) => return Ok(update),
            Some(update) => format!("run {} of Stack {} has not started", update.name_any(), full_name(&stack)),
            None => format!("Stack {} has no run", full_name(&stack)),
        };
        if !flags.follow {
            return Err(PluginError::NotReady(format!("{state}; to wait for the start, use --follow")));
        }
        progress.state(&state);
        if Instant::now() + POLL_INTERVAL > cluster.deadline() {
            return Err(PluginError::TimedOut(format!(
                "timed out: {state}; run: kubectl pulumi explain {}",
                flags.stack
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn has_started(update: &Update) -> bool {
    update.is_complete() || update.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// Returns the error about a run that has ended before it started.
fn not_started(update: &Update) -> PluginError {
    let message = update.status.as_ref().and_then(|status| status.message.as_deref());
    PluginError::NotReady(format!("run {} did not start: {}", update.name_any(), message.unwrap_or("no message")))
}

/// Returns whether the run was in this pod. A later pod has the same name.
fn is_pod_of(pod: &Pod, update: &Update) -> bool {
    let binding = update.status.as_ref().and_then(|status| status.run.as_ref());
    binding.is_none_or(|binding| Some(&binding.pod_uid) == pod.metadata.uid.as_ref())
}

/// Prints the last lines of the output in the status of the Update.
fn print_last_output(update: &Update) -> Result<(), PluginError> {
    let status = update.status.as_ref();
    let text = status.and_then(|status| status.last_output.as_deref().or(status.message.as_deref()));
    eprintln!("ℹ The pod of run {} no longer exists. These are the last lines of its output:", update.name_any());
    screen::write(format!("{}\n", printable(text.unwrap_or("(no output)"))).as_bytes())
}

/// Period of a run.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: Timestamp,
    /// End of the run, or `None` while the run is open.
    end: Option<Timestamp>,
}

/// Position of a line relative to the run.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Before,
    /// Contains the line without its time.
    Within(&'a str),
    After,
}

impl Window {
    fn of(update: &Update) -> Option<Self> {
        let status = update.status.as_ref()?;
        let end = status.end_time.as_ref().map(|time| time.0);
        Some(Window { start: status.start_time.as_ref()?.0, end })
    }

    /// Parses a line that starts with its time.
    fn line<'a>(&self, line: &'a str) -> Line<'a> {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        let Ok(time) = time.parse::<Timestamp>() else { return Line::Within(line) };
        let is_after = |end: Timestamp| time.duration_since(end) > AFTER_END;
        match self.end {
            _ if time < self.start => Line::Before,
            Some(end) if is_after(end) => Line::After,
            _ => Line::Within(text),
        }
    }
}

fn read_error(error: &std::io::Error) -> PluginError {
    PluginError::Failed(format!("failed to read the log: {error}; retry the command"))
}

/// Prints the lines of a run that has ended, or the lines until now.
async fn print_tail(
    mut lines: impl Stream<Item = std::io::Result<String>> + Unpin,
    window: &Window,
    tail: Option<i64>,
) -> Result<(), PluginError> {
    let limit = tail.map_or(usize::MAX, |lines| usize::try_from(lines).unwrap_or_default());
    let mut last = VecDeque::new();
    while let Some(line) = lines.next().await {
        match window.line(&line.map_err(|error| read_error(&error))?) {
            Line::Before => {}
            Line::Within(text) => {
                last.push_back(format!("{}\n", printable(text)));
                if last.len() > limit {
                    last.pop_front();
                }
            }
            Line::After => break,
        }
    }
    for line in last {
        screen::write(line.as_bytes())?;
    }
    Ok(())
}

/// Prints the lines of an open run until the run ends.
async fn follow(
    cluster: &Cluster,
    update: &Update,
    mut lines: impl Stream<Item = std::io::Result<String>> + Unpin,
    window: &mut Window,
) -> Result<(), PluginError> {
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    let mut stop: Option<Instant> = None;
    loop {
        let line = tokio::select! {
            line = lines.next() => line,
            _ = poll.tick() => {
                if stop.is_some_and(|stop| Instant::now() >= stop) {
                    return Ok(());
                }
                let current: Option<Update> = cluster.get_opt(cluster.namespace(), &update.name_any()).await?;
                if current.as_ref().is_none_or(Update::is_complete) {
                    window.end = current.as_ref().and_then(Window::of).and_then(|window| window.end);
                    stop = stop.or_else(|| Some(Instant::now() + LAST_LINES));
                }
                continue;
            }
        };
        let Some(line) = line else { return Ok(()) };
        match window.line(&line.map_err(|error| read_error(&error))?) {
            Line::Before => {}
            Line::Within(text) => screen::write(format!("{}\n", printable(text)).as_bytes())?,
            Line::After => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::update;

    fn run_of_a_minute() -> Update {
        let status = json!({ "startTime": "2026-11-02T11:00:00Z", "endTime": "2026-11-02T11:01:00Z",
            "run": { "podUID": "uid-1", "agentStartID": "a", "settingsDigest": "b" } });
        update("web-1", "up", &status)
    }

    #[test]
    fn the_lines_of_a_run_are_selected_by_their_time() {
        let mut window = Window::of(&run_of_a_minute()).unwrap();
        assert_eq!(window.line("2026-11-02T10:59:59.9Z before"), Line::Before);
        assert_eq!(window.line("2026-11-02T11:00:00.1Z Updating (dev):"), Line::Within("Updating (dev):"));
        assert_eq!(window.line("2026-11-02T11:01:01Z Duration: 1m"), Line::Within("Duration: 1m"));
        assert_eq!(window.line("2026-11-02T11:01:03Z next run"), Line::After);
        assert_eq!(window.line("2026-11-02T11:00:01Z"), Line::Within(""), "an empty line");
        assert_eq!(window.line("no time"), Line::Within("no time"));
        window.end = None;
        assert_eq!(window.line("2026-11-02T11:01:03Z more"), Line::Within("more"), "an open run");
    }

    #[test]
    fn a_log_belongs_to_the_pod_of_the_run() {
        let pod = |uid: &str| serde_json::from_value(json!({ "metadata": { "uid": uid } })).unwrap();
        assert!(is_pod_of(&pod("uid-1"), &run_of_a_minute()));
        assert!(!is_pod_of(&pod("uid-2"), &run_of_a_minute()));
        assert!(has_started(&run_of_a_minute()));
        assert!(!has_started(&update("web-2", "up", &json!({ "phase": "Waiting" }))));
    }
}
