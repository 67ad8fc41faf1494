//! Log of a run. The workspace pod log contains the output of all runs and the agent's messages. [`Window`]
//! selects a run's lines by their time and the prefix that the agent adds (see `agent/output.rs`).

use anstream::adapter::strip_str;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::LogParams;

use crate::api::auto::Update;
use crate::api::names;
use crate::text::printable;

/// Maximum size of a log in bytes if the request does not follow the log.
pub const MAX_BYTES: usize = 10 * 1024 * 1024;
/// Maximum delay of a run's lines after the recorded end of the run. The recorded times have a precision of one second.
const AFTER_END: SignedDuration = SignedDuration::from_secs(2);

/// Period of a run, and the prefix of the run's log lines.
#[derive(Clone, Debug)]
pub struct Window {
    pub start: Timestamp,
    /// End of the run, or `None` while the run is open.
    pub end: Option<Timestamp>,
    /// Prefix of the run's lines. `None` selects all lines within the period.
    prefix: Option<String>,
}

/// Position of a line relative to the run.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Line before the run, or a line that the agent or another run has written.
    Before,
    /// Line of the run, without its time and its prefix.
    Within(&'a str),
    After,
}

impl Window {
    pub fn of(update: &Update) -> Option<Self> {
        let status = update.status.as_ref()?;
        let end = status.end_time.as_ref().map(|time| time.0);
        let prefix = Some(format!("{}: ", update.name_any()));
        Some(Window { start: status.start_time.as_ref()?.0, end, prefix })
    }

    /// Selects all lines within the period, and keeps their prefixes and escape sequences.
    #[must_use]
    pub fn raw(self) -> Self {
        Window { prefix: None, ..self }
    }

    /// Parses a line that starts with its time.
    pub fn line<'a>(&self, line: &'a str) -> Line<'a> {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        let Ok(time) = time.parse::<Timestamp>() else { return Line::Within(line) };
        let is_after = |end: Timestamp| time.duration_since(end) > AFTER_END;
        match self.end {
            _ if time < self.start => Line::Before,
            Some(end) if is_after(end) => Line::After,
            _ => self.without_prefix(text).map_or(Line::Before, Line::Within),
        }
    }

    /// Returns the output in a line, or `None` if another run or the agent has written the line.
    fn without_prefix<'a>(&self, text: &'a str) -> Option<&'a str> {
        let Some(prefix) = &self.prefix else { return Some(text) };
        // The prefix ends with a space. If the run wrote an empty line, a tool that transports the log can remove this
        // trailing space.
        text.strip_prefix(prefix.as_str()).or_else(|| (text == prefix.trim_end()).then_some(""))
    }

    /// Returns a line of the run for display, without terminal escape sequences.
    pub fn text(&self, line: &str) -> String {
        match self.prefix {
            Some(_) => printable(&strip_str(line).to_string()),
            None => printable(line),
        }
    }
}

/// Returns the request parameters for a run's log.
pub fn parameters(window: &Window, follow: bool, tail_lines: Option<i64>) -> LogParams {
    LogParams {
        container: Some(names::PULUMI_CONTAINER.to_owned()),
        follow,
        limit_bytes: if follow { None } else { i64::try_from(MAX_BYTES).ok() },
        since_time: Some(window.start),
        tail_lines,
        timestamps: true,
        ..LogParams::default()
    }
}

/// Returns whether the run was executed in this pod. The pod name is not sufficient, because a later pod can have the
/// same name.
pub fn is_pod_of(pod: &Pod, update: &Update) -> bool {
    let binding = update.status.as_ref().and_then(|status| status.run.as_ref());
    binding.is_none_or(|binding| Some(&binding.pod_uid) == pod.metadata.uid.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::update;

    fn run_of_a_minute() -> Update {
        let status = json!({ "startTime": "2026-11-02T11:00:00Z", "endTime": "2026-11-02T11:01:00Z",
            "run": { "podUID": "uid-1", "agentStartID": "a", "settingsDigest": "b" } });
        update("web-1", "up", &status)
    }

    #[test]
    fn the_lines_of_a_run_are_selected_by_their_time() {
        let mut window = Window::of(&run_of_a_minute()).unwrap();
        assert_eq!(window.line("2026-11-02T10:59:59.9Z before"), Line::Before);
        assert_eq!(window.line("2026-11-02T11:00:00.1Z web-1: Updating (dev):"), Line::Within("Updating (dev):"));
        assert_eq!(window.line("2026-11-02T11:01:01Z web-1: Duration: 1m"), Line::Within("Duration: 1m"));
        assert_eq!(window.line("2026-11-02T11:01:03Z next run"), Line::After);
        assert_eq!(window.line("2026-11-02T11:00:01Z web-1: "), Line::Within(""), "an empty line");
        assert_eq!(window.line("2026-11-02T11:00:01Z web-1:"), Line::Within(""), "an empty line");
        assert_eq!(window.line("no time"), Line::Within("no time"));
        window.end = None;
        assert_eq!(window.line("2026-11-02T11:01:03Z web-1: more"), Line::Within("more"), "an open run");
    }

    #[test]
    fn the_lines_of_the_agent_and_of_other_runs_are_only_in_the_raw_log() {
        let window = Window::of(&run_of_a_minute()).unwrap();
        let raw = window.clone().raw();
        for line in ["{\"level\":\"info\"}", "web-0: earlier", "web-12: later", ""] {
            let with_time = format!("2026-11-02T11:00:01Z {line}");
            assert_eq!(window.line(&with_time), Line::Before, "{line}");
            assert_eq!(raw.line(&with_time), Line::Within(line));
        }
    }

    #[test]
    fn escape_sequences_are_removed_except_in_the_raw_log() {
        let window = Window::of(&run_of_a_minute()).unwrap();
        let rows = [
            ("\u{1b}[31mError\u{1b}[0m: no", "Error: no"),
            ("\u{1b}[1;38;5;9mred\u{1b}[K", "red"),
            ("\u{1b}]8;;https://example.com\u{1b}\\link\u{1b}]8;;\u{7}!", "link!"),
            ("Gr\u{fc}\u{df}e \u{2713}\ta\u{202e}b", "Gr\u{fc}\u{df}e \u{2713}\ta\u{fffd}b"),
        ];
        for (line, expected) in rows {
            assert_eq!(window.text(line), expected);
        }
        assert_eq!(window.raw().text("\u{1b}[31mError"), "\u{fffd}[31mError");
    }

    #[test]
    fn the_api_server_selects_the_last_lines() {
        let window = Window::of(&run_of_a_minute()).unwrap();
        let selected = parameters(&window, false, Some(5));
        assert_eq!((selected.tail_lines, selected.limit_bytes), (Some(5), Some(10 * 1024 * 1024)));
        assert_eq!(parameters(&window, true, None).limit_bytes, None, "a followed log has no limit");
    }
}
