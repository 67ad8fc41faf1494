//! Names of the objects in the history storage. All functions are pure.
//!
//! An object name has the form `NAMESPACE/STACK/UID/TIME-TYPE-UID/FILE`. An object's name depends only on immutable
//! metadata, so a repeated write replaces the same object. The names of a Stack's runs sort lexically in chronological
//! order.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Maximum length of each part of a name, in bytes.
const MAX_PART: usize = 253;
/// Run types that can occur in object names.
pub(super) const KINDS: [&str; 5] = ["up", "preview", "destroy", "refresh", UNKNOWN];
/// Number of date digits in a name.
const DATE_DIGITS: usize = 8;
/// Number of time digits in a name.
const TIME_DIGITS: usize = 6;
/// Placeholder for an unknown value in a name.
const UNKNOWN: &str = "unknown";

/// A file of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// Cause, inputs and result of a run. The controller writes this file last, so a run with this file is complete.
    Summary,
    Output,
    Events,
    Steps,
    Plan,
}

/// All files of a run.
pub const FILES: [File; 5] = [File::Summary, File::Output, File::Events, File::Steps, File::Plan];

impl File {
    pub fn name(self) -> &'static str {
        match self {
            File::Summary => "summary.json",
            File::Output => "output.log.gz",
            File::Events => "events.jsonl.gz",
            File::Steps => "diff.jsonl.gz",
            File::Plan => "plan.json.gz",
        }
    }
}

/// Metadata that identifies a run in the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunName {
    pub namespace: String,
    /// Name of the Stack, or of the Workspace if the run belongs to no Stack.
    pub stack: String,
    /// UID of the Stack, or of the Workspace if the run belongs to no Stack.
    pub stack_uid: String,
    /// Creation time of the Update.
    pub created: Timestamp,
    /// Type of the run, such as `up`.
    pub kind: &'static str,
    /// UID of the Update.
    pub update_uid: String,
}

impl RunName {
    /// Returns the directory that contains the runs of all Stacks with this name, including deleted Stacks.
    pub fn stack_directory(&self) -> String {
        [&self.namespace, &self.stack].map(|part| safe(part)).join("/")
    }

    /// Returns the run's directory.
    pub fn directory(&self) -> String {
        let (stack, uid, update) = (self.stack_directory(), safe(&self.stack_uid), safe(&self.update_uid));
        format!("{stack}/{uid}/{}-{}-{update}", time(self.created), self.kind)
    }

    /// Returns the object name for one of the run's files.
    pub fn object(&self, file: File) -> String {
        format!("{}/{}", self.directory(), file.name())
    }
}

/// Parts of an object name in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectName<'a> {
    pub(super) namespace: &'a str,
    /// Directory of the run.
    pub(super) run: &'a str,
    /// Name of the run's directory. The name starts with the creation time of the run.
    pub(super) time: &'a str,
    pub(super) kind: &'a str,
}

/// Returns the parts of an object name, or `None` if the object does not belong to the history. The check is strict,
/// because other programs may use the same storage and the cleanup must not delete their objects.
pub(super) fn parse(name: &str) -> Option<ObjectName<'_>> {
    let (run, file) = name.rsplit_once('/')?;
    let parts: Vec<&str> = run.split('/').collect();
    let [namespace, _, _, time] = parts.as_slice() else { return None };
    let (created, rest) = time.split_once('-')?;
    let (kind, _) = rest.split_once('-')?;
    let is_known = is_time(created) && KINDS.contains(&kind) && FILES.iter().any(|known| known.name() == file);
    is_known.then_some(ObjectName { namespace, run, time, kind })
}

/// Returns whether the object belongs to a run that was created at this time or later. Returns `false` for an object
/// that does not belong to the history.
pub fn is_since(name: &str, since: Timestamp) -> bool {
    let since = time(since);
    let created = parse(name).and_then(|name| name.time.get(..since.len()));
    created.is_some_and(|created| created >= since.as_str())
}

/// Returns a time in the format that object names use. The results sort lexically in chronological order.
fn time(time: Timestamp) -> String {
    time.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Returns whether a string has the time format that names use, such as `20261126T184207Z`.
fn is_time(text: &str) -> bool {
    let are_digits = |part: &str, length: usize| part.len() == length && part.bytes().all(|b| b.is_ascii_digit());
    let parts = text.strip_suffix('Z').and_then(|text| text.split_once('T'));
    parts.is_some_and(|(date, time)| are_digits(date, DATE_DIGITS) && are_digits(time, TIME_DIGITS))
}

/// Converts a string to a part of a name. Users control some of the strings, so the result contains only characters
/// that are safe in file names and URLs.
fn safe(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let part: String = text.chars().take(MAX_PART).map(|c| if is_safe(c) { c } else { '_' }).collect();
    match part.trim_start_matches('.') {
        "" => UNKNOWN.to_owned(),
        rest => rest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunName {
        RunName {
            namespace: "apps".to_owned(),
            stack: "web".to_owned(),
            stack_uid: "1b2c".to_owned(),
            created: "2026-11-26T18:42:07Z".parse().unwrap(),
            kind: "up",
            update_uid: "9f8e-7d".to_owned(),
        }
    }

    #[test]
    fn the_name_of_an_object_contains_the_stack_the_time_and_the_uid() {
        let name = run().object(File::Summary);
        assert_eq!(name, "apps/web/1b2c/20261126T184207Z-up-9f8e-7d/summary.json");
        let parsed = parse(&name).unwrap();
        assert_eq!((parsed.namespace, parsed.kind), ("apps", "up"));
        assert_eq!((parsed.run, parsed.time), (run().directory().as_str(), "20261126T184207Z-up-9f8e-7d"));
    }

    #[test]
    fn the_name_of_an_object_contains_the_creation_time() {
        let rows = [
            ("1970-01-01T00:00:00Z", true),
            ("2026-11-26T18:42:06Z", true),
            ("2026-11-26T18:42:07.9Z", true),
            ("2026-11-26T18:42:08Z", false),
            ("2027-01-01T00:00:00Z", false),
        ];
        for (since, expected) in rows {
            assert_eq!(is_since(&run().object(File::Output), since.parse().unwrap()), expected, "{since}");
        }
        assert!(!is_since("apps/web/1b2c/other/summary.json", Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn hostile_metadata_stays_in_its_directory() {
        let rows = [("../../etc", "_.._etc"), ("..", "unknown"), ("", "unknown"), ("a/b c\n", "a_b_c_"), ("ä", "_")];
        for (text, expected) in rows {
            assert_eq!(safe(text), expected, "{text:?}");
        }
        let run = RunName { stack_uid: "../other".to_owned(), update_uid: "x".repeat(9000), ..run() };
        assert_eq!(run.object(File::Output).split('/').count(), 5);
        assert!(run.object(File::Output).len() < 400);
    }

    #[test]
    fn other_objects_are_not_part_of_the_history() {
        for name in ["", "summary.json", "apps/web/1b2c/summary.json", "apps/web/1b2c/20261126T184207Z-up-9f8e/other"] {
            assert_eq!(parse(name), None, "{name}");
        }
        let rows = [
            ("20261126T184207Z-up-9f8e", true),
            ("20261126T184207Z-preview-9f8e", true),
            ("20261126T184207Z-unknown-9f8e", true),
            ("20261126T184207Z-backup-9f8e", false),
            ("20261126T184207Z-up", false),
            ("20261126T184207-up-9f8e", false),
            ("20261126184207Z-up-9f8e", false),
            ("2026112xT184207Z-up-9f8e", false),
            ("120261126T184207Z-up-9f8e", false),
            ("2026-11-26-up-9f8e", false),
            ("1-up-9f8e", false),
            ("-up-9f8e", false),
        ];
        for (run, is_known) in rows {
            assert_eq!(parse(&format!("apps/web/1b2c/{run}/summary.json")).is_some(), is_known, "{run}");
        }
    }
}
