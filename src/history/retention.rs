//! Decides which runs the history keeps. All functions are pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::names;

/// Minimum size that counts for an object, in bytes. The value is the usual block size of a file system. It limits the
/// number of objects on a volume.
const MIN_SIZE: u64 = 4096;
/// Percentage of the maximum size that remains in use after a cleanup, so that the next runs need no cleanup.
const KEPT_PERCENT: u64 = 90;

/// Limits of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Maximum number of runs of each type per name of a Stack.
    pub max_runs: usize,
    /// Maximum age of a run. Zero disables the limit.
    pub max_age: Duration,
    /// Maximum total size in bytes. `None` if the size is not limited.
    pub max_size: Option<u64>,
}

/// Object in the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredObject {
    /// Name, relative to the prefix of the history.
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) modified: Timestamp,
}

impl StoredObject {
    fn counted_size(&self) -> u64 {
        counted(self.size)
    }
}

/// Returns the size that counts for an object.
pub(super) fn counted(size: u64) -> u64 {
    size.max(MIN_SIZE)
}

/// Returns whether an object is older than the maximum age. Objects that do not belong to the history never expire.
pub(super) fn is_expired(object: &StoredObject, retention: &Retention, now: Timestamp) -> bool {
    let limit = SignedDuration::try_from(retention.max_age).unwrap_or(SignedDuration::MAX);
    !retention.max_age.is_zero() && names::parse(&object.name).is_some() && now.duration_since(object.modified) > limit
}

/// Returns the objects of the Stacks with one name that exceed the maximum number of runs. Each type of run has its own limit, so that
/// frequent previews, such as drift checks, do not displace the updates.
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

/// Returns the objects to delete so that the total size is below the maximum, and the remaining size in bytes. Deletes
/// the oldest runs of the namespace that uses the most space, so that a namespace cannot displace the history of the
/// others.
pub(super) fn over_size(objects: &[StoredObject], retention: &Retention) -> (Vec<String>, u64) {
    let mut total: u64 = objects.iter().map(StoredObject::counted_size).sum();
    let Some(most) = retention.max_size.filter(|most| total > *most) else { return (Vec::new(), total) };
    let target = most.saturating_mul(KEPT_PERCENT) / 100;
    let mut namespaces: BTreeMap<&str, Namespace<'_>> = BTreeMap::new();
    for object in objects {
        let Some(name) = names::parse(&object.name) else { continue };
        let namespace = namespaces.entry(name.namespace).or_default();
        namespace.size += object.counted_size();
        namespace.runs.entry((name.time, name.run)).or_default().push(object);
    }
    let mut deleted = Vec::new();
    while total > target {
        let Some(largest) = namespaces.values_mut().max_by_key(|namespace| namespace.size) else { break };
        let Some((_, run)) = largest.runs.pop_first() else { break };
        let size: u64 = run.iter().map(|object| object.counted_size()).sum();
        largest.size = largest.size.saturating_sub(size);
        total = total.saturating_sub(size);
        deleted.extend(run.iter().map(|object| object.name.clone()));
    }
    (deleted, total)
}

/// Runs of a namespace, by time.
#[derive(Default)]
struct Namespace<'a> {
    size: u64,
    runs: BTreeMap<(&'a str, &'a str), Vec<&'a StoredObject>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETENTION: Retention =
        Retention { max_runs: 2, max_age: Duration::from_secs(3600), max_size: Some(10 * MIN_SIZE) };

    /// Returns the directory of a run. For example, `7-up-a` is a run in the seventh second of a day.
    fn directory(run: &str) -> String {
        let (second, rest) = run.split_once('-').unwrap();
        format!("20261126T{second:0>6}Z-{rest}")
    }

    fn object(namespace: &str, run: &str, size: u64) -> StoredObject {
        let name = format!("{namespace}/web/uid/{}/summary.json", directory(run));
        StoredObject { name, size, modified: Timestamp::from_second(10_000).unwrap() }
    }

    /// Returns the runs of objects in the format of the argument of `directory`.
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
    fn the_oldest_runs_of_the_largest_namespace_are_deleted_first() {
        let mut objects = vec![object("small", "1-up-a", 1), object("small", "2-up-b", 1)];
        objects.extend((10..19).map(|time| object("large", &format!("{time}-up-x"), 1)));
        let (deleted, left) = over_size(&objects, &RETENTION);
        assert_eq!(times(&deleted), ["10-up-x", "11-up-x"]);
        assert_eq!(left, 9 * MIN_SIZE);
        let (deleted, left) = over_size(&objects[..10], &RETENTION);
        assert_eq!((deleted, left), (Vec::new(), 10 * MIN_SIZE));
        let unlimited = Retention { max_size: None, ..RETENTION };
        assert!(over_size(&objects, &unlimited).0.is_empty());
    }

    #[test]
    fn objects_of_other_programs_are_never_deleted() {
        for name in ["backup.tar", "apps/web/uid/1-up-a/summary.json", "apps/web/uid/2026-11-26/summary.json"] {
            let foreign = StoredObject { name: name.to_owned(), ..object("apps", "1-up-a", 1 << 40) };
            let (now, none) = (Timestamp::from_second(999_999_999).unwrap(), Retention { max_runs: 0, ..RETENTION });
            assert!(!is_expired(&foreign, &none, now), "{name}");
            let foreign = [foreign];
            assert!(over_size(&foreign, &none).0.is_empty() && surplus(&foreign, &none).is_empty(), "{name}");
        }
    }
}
