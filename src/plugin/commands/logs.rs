//! `logs`: prints the log of a run. The command selects the run's lines from the workspace pod log.

use std::collections::VecDeque;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::text::printable;
use pulumi_controller::view::links;
use pulumi_controller::view::phase::Phase;
use pulumi_controller::view::run_log::{Line, MAX_BYTES, Window, is_pod_of, parameters};
use pulumi_controller::view::runs;
use tokio::time::{Instant, timeout_at};

use crate::plugin::args::LogFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::follow::POLL_INTERVAL;
use crate::plugin::progress::Progress;
use crate::plugin::screen;
use crate::plugin::select::full_name;

/// Delay between the end of a run and the last read of its log, because the last lines can arrive late.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Maximum delay between the end of the log and the end of the run in the status of the Update.
const COMPLETION: Duration = Duration::from_secs(10);
/// Maximum length of a line in a followed log, in bytes. The plugin splits longer lines. The agent also limits the
/// length, but a program can write to the log without the agent.
const MAX_LINE: u64 = 256 * 1024;

/// Prints the log of a run.
///
/// # Errors
///
/// Returns an error if the Stack or the run does not exist, if the run has not started, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &LogFlags) -> Result<(), PluginError> {
    let update = Box::pin(started(cluster, flags)).await?;
    let Some(window) = Window::of(&update).filter(|_| !ended_before_start(&update)) else {
        return Err(not_started(&update));
    };
    let mut window = if flags.raw { window.raw() } else { window };
    let (namespace, pod) = (cluster.namespace(), update.pod_name());
    let found: Option<Pod> = cluster.get_opt(namespace, &pod).await?;
    if !found.is_some_and(|pod| is_pod_of(&pod, &update)) {
        print_last_output(&update)?;
        return if flags.follow { check_complete(cluster, &update).await } else { Ok(()) };
    }
    if !flags.follow || window.end.is_some() {
        return Box::pin(print_tail(cluster, &update, &window, flags.tail)).await;
    }
    let parameters = parameters(&window, true, flags.tail);
    let log = Box::pin(cluster.open_log(namespace, &pod, &parameters).await?);
    follow(&cluster.without_deadline(), &update, Box::pin(lines(log)), &mut window).await
}

/// Returns the Update that records the run. With `--follow`, waits until the run starts.
async fn started(cluster: &Cluster, flags: &LogFlags) -> Result<Update, PluginError> {
    let namespace = cluster.namespace();
    let mut progress = Progress::new();
    loop {
        let stack: Stack = cluster.get(namespace, &flags.stack).await?;
        let name = flags.run.as_deref().or_else(|| runs::current_or_last(&stack));
        let update: Option<Update> = match name {
            Some(name) => match cluster.get_opt(namespace, name).await? {
                Some(update) => Some(update),
                None => return Err(deleted(&stack, name)),
            },
            None => None,
        };
        let state = match update {
            Some(update) if has_started(&update) => return Ok(update),
            Some(update) => format!("run {} of Stack {} has not started", update.name_any(), full_name(&stack)),
            None => format!("Stack {} has no run", full_name(&stack)),
        };
        let explain = format!("kubectl pulumi explain -n {namespace} {}", flags.stack);
        if !flags.follow {
            let advice = match Phase::of(&stack) {
                Phase::Stalled => format!("no run starts until a user acts; run: {explain}"),
                _ => "to wait for the start, use --follow".to_owned(),
            };
            return Err(PluginError::NotReady(format!("{state}; {advice}")));
        }
        progress.state(&state);
        if Instant::now() + POLL_INTERVAL > cluster.deadline() {
            return Err(PluginError::TimedOut(format!("timed out: {state}; run: {explain}")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn has_started(update: &Update) -> bool {
    update.is_complete() || update.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// Returns whether a run ended before its agent started the Pulumi CLI, for example because a Secret lacks a key. The Pulumi
/// Kubernetes Operator does not record the evidence that a run has ended.
fn ended_before_start(update: &Update) -> bool {
    let evidence = update.status.as_ref().and_then(|status| status.termination_evidence);
    update.is_complete() && evidence.is_none() && !update.is_started_by_operator()
}

/// Returns the error for a run whose Update no longer exists. The error contains the run's result from the Stack
/// status.
fn deleted(stack: &Stack, name: &str) -> PluginError {
    let namespace = stack.namespace().unwrap_or_default();
    let Some(run) = stack.status.iter().flat_map(|status| &status.runs).find(|run| run.name == name) else {
        return PluginError::NotFound {
            request: "read Update".to_owned(),
            kind: "Update".to_owned(),
            namespace,
            name: name.to_owned(),
        };
    };
    let output = match run.history_url.as_deref().map(links::stored_run) {
        Some(Some(url)) => format!("its output is in the history of runs: {url}/output.log.gz"),
        Some(None) => {
            "its output is in the history of runs on the volume of the controller; to read the output, open the \
                       run in the web UI, or use the HTTP endpoint of the history"
                .to_owned()
        }
        None => "its output is not stored; to store the output of runs, configure the history of runs".to_owned(),
    };
    let result = format!("{} {}", run.kind, run.state);
    PluginError::Missing(format!("the Update of run {name} ({result}) in namespace {namespace} was deleted; {output}"))
}

/// Returns the error for a run that did not start, for example because a user canceled it.
fn not_started(update: &Update) -> PluginError {
    let message = update.status.as_ref().and_then(|status| status.message.as_deref());
    PluginError::NotReady(format!("run {} did not start: {}", update.name_any(), message.unwrap_or("no message")))
}

/// Prints the last output lines from the status of the Update.
fn print_last_output(update: &Update) -> Result<(), PluginError> {
    let status = update.status.as_ref();
    let text = status.and_then(|status| status.last_output.as_deref().or(status.message.as_deref()));
    let name = update.name_any();
    Progress::new().note(&format!("The pod of run {name} no longer exists. These are the last lines of its output:"));
    screen::write(format!("{}\n", printable(text.unwrap_or("(no output)"))).as_bytes())
}

fn read_error(error: &std::io::Error) -> PluginError {
    PluginError::Failed(format!("failed to read the log: {error}; retry the command"))
}

/// Last lines of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tail {
    lines: VecDeque<String>,
    /// Whether the selected log contains lines that do not belong to the run.
    has_other_lines: bool,
    /// Whether the log reached the size limit before the run's last line.
    is_cut: bool,
}

/// Prints the log lines that a run has written so far.
async fn print_tail(cluster: &Cluster, update: &Update, window: &Window, tail: Option<i64>) -> Result<(), PluginError> {
    let pod = &update.pod_name();
    let mut found = Box::pin(request_tail(cluster, pod, window, tail, tail)).await?;
    // The lines of the first request include lines from other runs or from the agent, and can therefore lack lines of
    // this run. The second request reads the log without a line limit.
    if tail.is_some() && found.has_other_lines {
        found = Box::pin(request_tail(cluster, pod, window, None, tail)).await?;
    }
    let message = update.status.as_ref().and_then(|status| status.message.as_deref());
    if let Some(message) = message.filter(|_| found.lines.is_empty() && update.is_complete()) {
        Progress::new().note(&printable(&format!("run {} has written no output: {message}", update.name_any())));
    }
    for line in found.lines {
        screen::write(line.as_bytes())?;
    }
    if found.is_cut {
        Progress::new().note(&cut_note(cluster.namespace(), pod));
    }
    Ok(())
}

fn cut_note(namespace: &str, pod: &str) -> String {
    format!(
        "The log reached the limit of {} MiB, so later lines of the run are missing. For the complete log: kubectl logs \
         -n {namespace} {pod} -c {}",
        MAX_BYTES / 1024 / 1024,
        names::PULUMI_CONTAINER
    )
}

/// Reads the last `tail` lines of a run from the last `tail_lines` lines of the pod log.
async fn request_tail(
    cluster: &Cluster,
    pod: &str,
    window: &Window,
    tail_lines: Option<i64>,
    tail: Option<i64>,
) -> Result<Tail, PluginError> {
    let parameters = parameters(window, false, tail_lines);
    let log = Box::pin(cluster.open_log(cluster.namespace(), pod, &parameters).await?);
    timeout_at(cluster.deadline(), read_tail(log, window, tail, MAX_BYTES)).await.unwrap_or_else(|_| {
        Err(PluginError::TimedOut(format!(
            "timed out: failed to read the log of Pod {}/{pod} within the maximum duration; to wait longer, increase \
             --timeout",
            cluster.namespace()
        )))
    })
}

/// Reads at most `max_bytes` bytes of the log, and selects the last lines of a run.
async fn read_tail(
    mut log: impl AsyncBufRead + Unpin,
    window: &Window,
    tail: Option<i64>,
    max_bytes: usize,
) -> Result<Tail, PluginError> {
    let limit = tail.map_or(usize::MAX, |lines| usize::try_from(lines).unwrap_or_default());
    let mut found = Tail::default();
    let mut read = 0;
    loop {
        // The size limit can cut a character, so the last line is not always valid UTF-8.
        let mut line = Vec::new();
        let length = log.read_until(b'\n', &mut line).await.map_err(|error| read_error(&error))?;
        if length == 0 {
            found.is_cut = read >= max_bytes;
            return Ok(found);
        }
        read += length;
        match window.line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n'])) {
            Line::Before => found.has_other_lines = true,
            Line::Within(text) => {
                found.lines.push_back(format!("{}\n", window.text(text)));
                if found.lines.len() > limit {
                    found.lines.pop_front();
                }
            }
            Line::After => {
                found.has_other_lines = true;
                return Ok(found);
            }
        }
    }
}

/// Checks that a run whose log has ended is complete. The log also ends if the pod ends, or if a proxy closes the
/// connection.
async fn check_complete(cluster: &Cluster, update: &Update) -> Result<(), PluginError> {
    let until = Instant::now() + COMPLETION;
    loop {
        let current: Option<Update> = cluster.get_opt(cluster.namespace(), &update.name_any()).await?;
        if current.as_ref().is_none_or(Update::is_complete) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(PluginError::Failed(format!(
                "failed to follow the log of run {}: the log has ended, but the run is open; retry the command",
                update.name_any()
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Returns the lines of a log as they arrive.
fn lines(log: impl AsyncBufRead + Unpin) -> impl Stream<Item = std::io::Result<String>> {
    futures::stream::try_unfold(log, |mut log| async move {
        let mut line = Vec::new();
        let length = (&mut log).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        let text = || String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
        Ok::<_, std::io::Error>((length > 0).then(|| (text(), log)))
    })
}

/// Prints the lines of an open run until the run completes.
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
        let Some(line) = line else { return check_complete(cluster, update).await };
        match window.line(&line.map_err(|error| read_error(&error))?) {
            Line::Before => {}
            Line::Within(text) => screen::write(format!("{}\n", window.text(text)).as_bytes())?,
            Line::After => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::cluster::tests::cluster;
    use crate::plugin::fixtures::{condition, stack, update};

    fn run_of_a_minute() -> Update {
        let status = json!({ "startTime": "2026-11-02T11:00:00Z", "endTime": "2026-11-02T11:01:00Z",
            "run": { "podUID": "uid-1", "agentStartID": "a", "settingsDigest": "b" } });
        update("web-1", "up", &status)
    }

    #[tokio::test]
    async fn the_last_lines_are_complete_or_the_limit_is_reported() {
        let window = Window::of(&run_of_a_minute()).unwrap();
        let log = "2026-11-02T11:00:01Z web-1: one\r\n2026-11-02T11:00:02Z web-1: two\n\
                   2026-11-02T11:00:03Z web-1: thr\u{e9}\n";
        let lines = |texts: &[&str]| texts.iter().map(|text| format!("{text}\n")).collect::<VecDeque<_>>();
        let complete = read_tail(log.as_bytes(), &window, Some(2), MAX_BYTES).await.unwrap();
        assert_eq!(complete, Tail { lines: lines(&["two", "thr\u{e9}"]), ..Tail::default() });
        // The limit cuts the last character.
        let max_bytes = log.len() - 2;
        let cut = read_tail(&log.as_bytes()[..max_bytes], &window, Some(1), max_bytes).await.unwrap();
        assert_eq!(cut, Tail { lines: lines(&["thr\u{fffd}"]), is_cut: true, ..Tail::default() });
        let later = format!("{log}2026-11-02T11:02:00Z next run\n");
        let found = read_tail(later.as_bytes(), &window, Some(2), later.len()).await.unwrap();
        assert_eq!(found, Tail { lines: lines(&["two", "thr\u{e9}"]), has_other_lines: true, is_cut: false });
        let mixed = format!("2026-11-02T11:00:01Z {{}}\n{log}");
        let found = read_tail(mixed.as_bytes(), &window, Some(1), mixed.len() + 1).await.unwrap();
        assert_eq!(found, Tail { lines: lines(&["thr\u{e9}"]), has_other_lines: true, is_cut: false });
        assert!(cut_note("apps", "web-workspace-0").contains("10 MiB"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_ends_before_its_run_is_an_error() {
        let complete = json!({ "conditions": [condition("Complete", "True", "Succeeded", "")] });
        for (status, is_complete) in [(complete, true), (json!({ "phase": "Running" }), false)] {
            let object = serde_json::to_value(update("web-1", "up", &status)).unwrap();
            let (cluster, _) = cluster(move |_| Some((200, object.clone())));
            let log = futures::stream::iter([Ok("2026-11-02T11:00:01Z web-1: one".to_owned())]);
            let mut window = Window::of(&run_of_a_minute()).unwrap();
            let found = follow(&cluster, &run_of_a_minute(), log, &mut window).await;
            assert_eq!(found.is_ok(), is_complete, "{status}: {found:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_run_without_its_pod_is_an_error_with_follow() {
        let status = json!({ "phase": "Running", "startTime": "2026-11-02T11:00:00Z" });
        let open = serde_json::to_value(update("web-1", "up", &status)).unwrap();
        let stack = stack("web", &json!({}), &json!({ "currentUpdate": { "name": "web-1" } }));
        let stack = serde_json::to_value(stack).unwrap();
        let missing = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404 });
        let (cluster, _) = cluster(move |target| {
            let found = if target.contains("/updates/") { &open } else { &stack };
            Some(if target.contains("/pods/") { (404, missing.clone()) } else { (200, found.clone()) })
        });
        for (follow, is_ok) in [(false, true), (true, false)] {
            let flags = LogFlags { stack: "web".to_owned(), run: None, follow, tail: None, raw: false };
            let found = Box::pin(run(&cluster, &flags)).await;
            assert_eq!(found.is_ok(), is_ok, "{follow}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_followed_line_has_a_maximum_length_and_any_bytes() {
        let limit = usize::try_from(MAX_LINE).unwrap();
        let log = [&b"caf\xe9\r\n"[..], "x".repeat(limit + 1).as_bytes(), b"\nlast"].concat();
        let found: Vec<String> = lines(log.as_slice()).map(Result::unwrap).collect().await;
        assert_eq!(found.iter().map(String::len).collect::<Vec<_>>(), ["caf\u{fffd}".len(), limit, 1, 4]);
        assert_eq!((found[0].as_str(), found[3].as_str()), ("caf\u{fffd}", "last"));
    }

    #[test]
    fn the_error_about_a_deleted_run_names_its_stored_output() {
        let run =
            |name: &str, url: Option<&str>| json!({ "name": name, "type": "up", "state": "failed", "historyURL": url });
        let on_volume = run("web-3", Some("file:///data/history/apps/web/3"));
        let status = json!({ "runs": [on_volume, run("web-2", Some("s3://runs/apps/web/2")), run("web-1", None)] });
        let stack = stack("web", &json!({}), &status);
        let rows = [
            ("web-3", "on the volume of the controller; to read the output, open the run in the web UI"),
            (
                "web-2",
                "(up failed) in namespace apps was deleted; its output is in the history of runs: s3://runs/apps/web/2/",
            ),
            ("web-1", "its output is not stored"),
            ("web-9", "Update apps/web-9 does not exist"),
        ];
        for (name, expected) in rows {
            let error = deleted(&stack, name);
            assert!(error.to_string().contains(expected) && !error.to_string().contains("file:"), "{error}");
            assert_eq!(error.exit_code(), 3, "{name}");
        }
    }

    #[tokio::test]
    async fn a_run_that_did_not_start_has_no_log() {
        let refused = |evidence: &str| {
            let mut status = json!({ "startTime": "2026-11-02T11:00:00Z", "endTime": "2026-11-02T11:00:01Z",
                "conditions": [condition("Complete", "True", "Updated", "")], "message": "Secret keys lacks the key token" });
            if !evidence.is_empty() {
                status["terminationEvidence"] = json!(evidence);
            }
            update("web-1", "up", &status)
        };
        assert!(ended_before_start(&refused("")) && !ended_before_start(&refused("Agent")));
        let object = serde_json::to_value(refused("")).unwrap();
        let stack = stack("web", &json!({}), &json!({ "lastUpdate": { "name": "web-1" } }));
        let stack = serde_json::to_value(stack).unwrap();
        let (cluster, _) = cluster(move |target| {
            Some((200, if target.contains("/updates/") { object.clone() } else { stack.clone() }))
        });
        let flags = LogFlags { stack: "web".to_owned(), run: None, follow: false, tail: None, raw: false };
        let error = Box::pin(run(&cluster, &flags)).await.unwrap_err();
        assert_eq!(error.to_string(), "run web-1 did not start: Secret keys lacks the key token");
    }

    #[tokio::test]
    async fn a_stalled_stack_without_runs_needs_an_explanation() {
        for (conditions, expected) in [
            (json!([condition("Stalled", "True", "WorkspaceFailed", "why")]), "kubectl pulumi explain -n apps web"),
            (json!([condition("Reconciling", "True", "StackProcessing", "why")]), "use --follow"),
        ] {
            let stack = serde_json::to_value(stack("web", &json!({}), &json!({ "conditions": conditions }))).unwrap();
            let (cluster, _) = cluster(move |_| Some((200, stack.clone())));
            let flags = LogFlags { stack: "web".to_owned(), run: None, follow: false, tail: None, raw: false };
            let error = Box::pin(run(&cluster, &flags)).await.unwrap_err();
            assert!(error.to_string().ends_with(expected), "{error}");
        }
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
