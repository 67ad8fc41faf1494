//! Identifies the update that is in progress for a stack in Pulumi Cloud. Pulumi Cloud rejects an update while another
//! update of the stack is in progress, but the error does not identify the other update.

use jiff::Timestamp;
use serde::Deserialize;

use super::console;
use super::failure::lock::ExitedProcess;

/// Maximum number of bytes that a message quotes from a Pulumi Cloud response.
const MAX_TEXT: usize = 256;
/// Maximum difference between the clocks of Pulumi Cloud and the node, in milliseconds. If the difference is larger,
/// the agent does not cancel an interrupted update. Pulumi Cloud then ends the update when the update's lease expires.
const MAX_CLOCK_DIFFERENCE: i64 = 60_000;
/// Result that the stack history contains for an update in progress.
const IN_PROGRESS: &str = "in-progress";
/// Label that precedes the login name in the output of `pulumi stack`.
const AUTHOR_LABEL: &str = "Requested By: ";
/// Label that precedes the URL in the output of `pulumi stack`.
const URL_LABEL: &str = "More information at: ";

/// An update in progress in Pulumi Cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActiveUpdate {
    /// Number of the update in the stack history.
    pub version: u64,
    /// Kind of the update, such as `update` or `destroy`.
    pub kind: String,
    /// Start time in RFC 3339 format.
    pub started: String,
    /// Login name of the user who started the update, if known.
    pub author: Option<String>,
    /// URL of the update, if known.
    pub url: Option<String>,
}

/// Entry of the JSON list that `pulumi stack history --json` prints.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HistoryEntry {
    version: u64,
    kind: String,
    start_time: String,
    result: String,
}

/// Parses the output of `pulumi stack history --json`. Returns `None` if the newest update is not in progress.
pub fn parse_history(json: &[u8]) -> Result<Option<ActiveUpdate>, serde_json::Error> {
    let entries: Vec<HistoryEntry> = serde_json::from_slice(json)?;
    let newest = entries.into_iter().next().filter(|entry| entry.result == IN_PROGRESS);
    Ok(newest.map(|entry| ActiveUpdate {
        version: entry.version,
        kind: for_message(&entry.kind),
        started: for_message(&entry.start_time),
        ..ActiveUpdate::default()
    }))
}

/// Parses the output of `pulumi stack`, and adds the user and the URL to the update.
pub fn parse_stack(update: ActiveUpdate, description: &str) -> ActiveUpdate {
    let author = description.lines().find_map(|line| line.trim().strip_prefix(AUTHOR_LABEL)).map(for_message);
    // Searches backwards for the URL, because the stack outputs precede the URL and can contain any text.
    let stack = description.lines().rev().find_map(|line| line.strip_prefix(URL_LABEL)).map(for_message);
    let url = stack.map(|stack| format!("{}/updates/{}", stack.trim_end_matches('/'), update.version));
    ActiveUpdate { author: author.filter(|author| !author.is_empty()), url, ..update }
}

impl ActiveUpdate {
    /// Returns whether a process started this update. This is the case if the process printed the update's URL, and if
    /// the update started during the lifetime of the process. The URL alone is not sufficient, because the update
    /// numbers restart at 1 after a user deletes and recreates the stack.
    pub fn is_of(&self, process: &ExitedProcess) -> bool {
        let has_url = self.url.is_some() && self.url == process.permalink;
        let lifetime = process.started - MAX_CLOCK_DIFFERENCE..=process.ended + MAX_CLOCK_DIFFERENCE;
        has_url && self.started.parse::<Timestamp>().is_ok_and(|time| lifetime.contains(&time.as_millisecond()))
    }

    /// Returns the message for the case that Pulumi Cloud rejected another update because this update is in progress.
    pub fn conflict_message(&self) -> String {
        format!(
            "another update of the stack is in progress: {}; if no process runs this update anymore, cancel it with \
             `pulumi cancel`",
            self.describe()
        )
    }

    /// Describes the update for a message. The message does not change while the update is in progress.
    pub fn describe(&self) -> String {
        let ActiveUpdate { version, kind, started, author, url } = self;
        let author = author.as_ref().map(|author| format!(" by {author}")).unwrap_or_default();
        let url = url.as_ref().map(|url| format!(" ({url})")).unwrap_or_default();
        format!("{kind} {version}{url}, started{author} at {started}")
    }
}

/// Converts a string to one line of limited length.
fn for_message(text: &str) -> String {
    let line = console::for_display(text).replace(['\n', '\t'], " ");
    console::shorten(line.trim(), MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTION: &str = "Current stack is dev:\n    Owner: acme\n    Update in progress:\n\tStarted: 2 minutes ago\n\t\
                               Requested By: alice\nCurrent stack resources (0):\n    No resources currently in this stack\n\n\
                               More information at: https://app.pulumi.com/acme/web/dev\n";

    fn history(result: &str) -> String {
        format!(
            r#"[{{"version": 7, "kind": "update", "startTime": "2026-11-21T10:22:01.000Z", "result": "{result}"}}]"#
        )
    }

    #[test]
    fn only_the_newest_update_can_be_in_progress() {
        for (json, expected) in [
            (history("in-progress"), Some(7)),
            (history("succeeded"), None),
            ("[]".to_owned(), None),
            (r#"[{"version": 8, "result": "failed"}, {"version": 7, "result": "in-progress"}]"#.to_owned(), None),
        ] {
            let found = parse_history(json.as_bytes()).expect("a valid history");
            assert_eq!(found.map(|update| update.version), expected, "{json}");
        }
        assert!(parse_history(b"{}").is_err() && parse_history(b"").is_err());
    }

    #[test]
    fn an_update_in_progress_is_described_with_its_user_and_url() {
        let update = parse_history(history("in-progress").as_bytes()).expect("a valid history").expect("in progress");
        assert_eq!(update.describe(), "update 7, started at 2026-11-21T10:22:01.000Z");
        let update = parse_stack(update, DESCRIPTION);
        assert_eq!(
            update.describe(),
            "update 7 (https://app.pulumi.com/acme/web/dev/updates/7), started by alice at 2026-11-21T10:22:01.000Z"
        );
        let started = update.started.parse::<Timestamp>().expect("a time").as_millisecond();
        let process = |permalink: Option<&str>, started: i64| ExitedProcess {
            host: "web-0".to_owned(),
            pid: 1,
            started,
            ended: started + 10_000,
            permalink: permalink.map(str::to_owned),
        };
        let link = Some("https://app.pulumi.com/acme/web/dev/updates/7");
        for (process, is_its) in [
            (process(link, started), true),
            (process(link, started - 10_000 - MAX_CLOCK_DIFFERENCE), true),
            (process(link, started - 10_001 - MAX_CLOCK_DIFFERENCE), false),
            (process(link, started + MAX_CLOCK_DIFFERENCE), true),
            (process(link, started + MAX_CLOCK_DIFFERENCE + 1), false),
            (process(Some("https://app.pulumi.com/acme/web/dev/updates/6"), started), false),
            (process(Some("https://app.pulumi.com/other/web/dev/updates/7"), started), false),
            (process(None, started), false),
        ] {
            assert_eq!(update.is_of(&process), is_its, "{process:?}");
        }
        let unknown = ActiveUpdate { started: update.started, ..ActiveUpdate::default() };
        assert!(!unknown.is_of(&process(None, started)), "the URL is unknown");
    }
}
