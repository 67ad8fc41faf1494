//! Selects the runs that exceed the history limits. All functions are pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::names;

/// Limits for the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum number of runs per type that the history keeps for all Stacks with the same name in a namespace.
    pub max_runs: usize,
    /// Maximum age of a run. Zero disables the limit.
    pub max_age: Duration,
    /// Maximum total size in bytes. `None` disables the limit.
    pub max_size: Option<u64>,
}

impl Retention {
    /// Maximum of [`Retention::max_runs`]. The cleanup after a run reads the names of all files of a Stack.
    pub const MOST_RUNS: usize = 200;
}

/// An object in the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredObject {
    /// Name of the object, relative to the history prefix.
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) modified: Timestamp,
}

/// Returns whether an object exceeds the maximum age. Objects that do not belong to the history never expire.
pub(super) fn is_expired(object: &StoredObject, retention: &Retention, now: Timestamp) -> bool {
    let limit = SignedDuration::try_from(retention.max_age).unwrap_or(SignedDuration::MAX);
    !retention.max_age.is_zero() && names::parse(&object.name).is_some() && now.duration_since(object.modified) > limit
}

/// Returns the names of the objects that belong to runs beyond the maximum number. `objects` must contain the objects
/// of all Stacks with the same name. Each run type has a separate limit, so that frequent previews, such as drift
/// checks, do not displace updates.
pub(super) fn surplus(objects: &[StoredObject], retention: &Retention) -> Vec<String> {
    let mut runs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for object in objects {
        if let Some(name) = names::parse(&object.name) {
            runs.entry(name.kind).or_default().insert(name.time);
        }
    }
    let old: BTreeSet<&str> =
        runs.values().flat_map(|times| times.iter().rev().skip(retention.max_runs)).copied().collect();
    let is_old = |object: &&StoredObject| names::parse(&object.name).is_some_and(|name| old.contains(name.time));
    objects.iter().filter(is_old).map(|object| object.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Retention = Retention { max_runs: 2, max_age: Duration::from_secs(3600), max_size: None };

    /// Returns the directory of a run. For example, `7-up-a` is a run that was created at second 7.
    fn directory(run: &str) -> String {
        let (second, rest) = run.split_once('-').unwrap();
        format!("20261126T{second:0>6}Z-{rest}")
    }

    fn object(namespace: &str, run: &str, size: u64) -> StoredObject {
        let name = format!("{namespace}/web/uid/{}/summary.json", directory(run));
        StoredObject { name, size, modified: Timestamp::from_second(10_000).unwrap() }
    }

    /// Returns the runs to which the objects belong, in the format that `directory` accepts.
    fn times(names: &[String]) -> Vec<String> {
        let time = |name: &String| {
            let (second, rest) = name.rsplit('/').nth(1)?.strip_prefix("20261126T")?.split_once('Z')?;
            Some(format!("{}{rest}", second.trim_start_matches('0')))
        };
        names.iter().filter_map(time).collect()
    }

    #[test]
    fn objects_of_the_history_expire() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let run = object("apps", "1-up-a", 1);
        assert!(!is_expired(&run, &RETENTION, at(13_600)) && is_expired(&run, &RETENTION, at(13_601)));
        assert!(!is_expired(&run, &Retention { max_age: Duration::ZERO, ..RETENTION }, at(999_999_999)));
        let foreign = StoredObject { name: "backup.tar".to_owned(), ..run };
        assert!(!is_expired(&foreign, &RETENTION, at(999_999_999)));
    }

    #[test]
    fn the_newest_runs_of_each_type_are_kept() {
        let all = ["1-up-a", "2-preview-b", "3-up-c", "4-preview-d", "5-up-e", "6-preview-f"];
        let mut objects: Vec<StoredObject> = all.map(|time| object("apps", time, 1)).into();
        let output = format!("apps/web/uid/{}/output.log.gz", directory("1-up-a"));
        objects.push(StoredObject { name: output, ..objects[0].clone() });
        let notes = format!("apps/web/uid/{}/notes.txt", directory("0-up-x"));
        objects.push(StoredObject { name: notes, ..objects[0].clone() });
        assert_eq!(times(&surplus(&objects, &RETENTION)), ["1-up-a", "2-preview-b", "1-up-a"]);
        assert!(surplus(&objects[2..6], &RETENTION).is_empty());
    }

    #[test]
    fn objects_of_other_programs_are_never_deleted() {
        for name in ["backup.tar", "apps/web/uid/1-up-a/summary.json", "apps/web/uid/2026-11-26/summary.json"] {
            let foreign = StoredObject { name: name.to_owned(), ..object("apps", "1-up-a", 1 << 40) };
            let (now, none) = (Timestamp::from_second(999_999_999).unwrap(), Retention { max_runs: 0, ..RETENTION });
            assert!(!is_expired(&foreign, &none, now), "{name}");
            let foreign = [foreign];
            assert!(surplus(&foreign, &none).is_empty(), "{name}");
        }
    }
}
