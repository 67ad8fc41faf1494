//! Selects the runs to delete from a volume that exceeds its maximum size. All functions are pure. Callers add the
//! objects one at a time, because the controller's memory might not hold a list of all objects on a volume.

use std::collections::BTreeMap;

use super::names;
use super::retention::{Retention, StoredObject};

/// Minimum size, in bytes, with which each object counts toward the total size. The value is the usual block size of
/// file systems. The minimum also limits the number of objects on a volume.
const MIN_SIZE: u64 = 4096;
/// Percentage of the maximum size to which a cleanup shrinks the history. Without the free space, every following run
/// would trigger another cleanup.
const KEPT_PERCENT: u64 = 90;
/// Maximum number of objects that one cleanup deletes per namespace. A larger surplus requires several cleanups.
const MAX_DELETED: usize = 50_000;

/// Returns the size with which an object counts toward the total size.
pub(super) fn counted(size: u64) -> u64 {
    size.max(MIN_SIZE)
}

/// Space that the objects on a volume use, in bytes.
#[derive(Debug, Default)]
pub(super) struct Usage {
    total: u64,
    /// Space that each namespace's runs use, without objects that do not belong to the history.
    namespaces: BTreeMap<String, u64>,
}

impl Usage {
    pub(super) fn add(&mut self, object: &StoredObject) {
        let size = counted(object.size);
        self.total += size;
        if let Some(name) = names::parse(&object.name) {
            match self.namespaces.get_mut(name.namespace) {
                Some(used) => *used += size,
                None => drop(self.namespaces.insert(name.namespace.to_owned(), size)),
            }
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of bytes to delete in each namespace, if the total size exceeds the maximum size. The cleanup
    /// shrinks the largest histories to the same size, so that no namespace can displace another namespace's history.
    pub(super) fn excess(&self, retention: &Retention) -> Vec<(String, u64)> {
        let Some(most) = retention.max_size.filter(|most| self.total > *most) else { return Vec::new() };
        let excess = self.total - most.saturating_mul(KEPT_PERCENT) / 100;
        let kept = self.kept_by_each(excess);
        let surplus = |(name, used): (&String, &u64)| Some((name.clone(), used.checked_sub(kept)?));
        self.namespaces.iter().filter_map(surplus).filter(|(_, surplus)| *surplus > 0).collect()
    }

    /// Returns the size to which the largest histories must shrink to free `excess` bytes.
    fn kept_by_each(&self, excess: u64) -> u64 {
        let mut sizes: Vec<u64> = self.namespaces.values().copied().collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let (mut sum, mut count) = (0_u64, 0_u64);
        for (index, size) in sizes.iter().enumerate() {
            (sum, count) = (sum + size, count + 1);
            let next = sizes.get(index + 1).copied().unwrap_or_default();
            if sum.saturating_sub(count.saturating_mul(next)) >= excess {
                return sum.saturating_sub(excess) / count;
            }
        }
        0
    }
}

/// Time and directory of a run.
type RunKey = (String, String);

/// Collects a namespace's oldest runs until their total size is at least `excess` bytes.
#[derive(Debug)]
pub(super) struct OldestRuns {
    excess: u64,
    max_objects: usize,
    size: u64,
    objects: usize,
    /// Size and object names of each run.
    runs: BTreeMap<RunKey, (u64, Vec<String>)>,
    /// Oldest run that must not be deleted. The collector ignores further objects of this run and of newer runs, so
    /// that every deleted run is complete.
    first_kept: Option<RunKey>,
}

impl OldestRuns {
    pub(super) fn new(excess: u64) -> Self {
        Self::with_max_objects(excess, MAX_DELETED)
    }

    fn with_max_objects(excess: u64, max_objects: usize) -> Self {
        OldestRuns { excess, max_objects, size: 0, objects: 0, runs: BTreeMap::new(), first_kept: None }
    }

    pub(super) fn add(&mut self, object: StoredObject) {
        let Some(name) = names::parse(&object.name) else { return };
        let key = (name.time.to_owned(), name.run.to_owned());
        if self.first_kept.as_ref().is_some_and(|first| key >= *first) {
            return;
        }
        let size = counted(object.size);
        let run = self.runs.entry(key).or_default();
        run.0 += size;
        run.1.push(object.name);
        self.size += size;
        self.objects += 1;
        while self.is_newest_surplus()
            && let Some((key, (size, names))) = self.runs.pop_last()
        {
            self.size = self.size.saturating_sub(size);
            self.objects = self.objects.saturating_sub(names.len());
            self.first_kept = Some(key);
        }
    }

    /// Returns whether the collector must drop the newest collected run, because the older runs are large enough or the
    /// number of objects exceeds the maximum.
    fn is_newest_surplus(&self) -> bool {
        let newest = self.runs.last_key_value().map_or(0, |(_, (size, _))| *size);
        self.size.saturating_sub(newest) >= self.excess || self.objects > self.max_objects
    }

    /// Returns the total size of the collected runs, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the object names of the collected runs, oldest run first.
    pub(super) fn into_names(self) -> Vec<String> {
        self.runs.into_values().flat_map(|(_, names)| names).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    const RETENTION: Retention = Retention { max_runs: 2, max_age: Duration::ZERO, max_size: Some(10 * MIN_SIZE) };

    /// Returns an object of a run. The run was created at `second`.
    fn object(namespace: &str, second: usize, file: &str, size: u64) -> StoredObject {
        let name = format!("{namespace}/web/uid/20261126T{second:0>6}Z-up-x/{file}");
        StoredObject { name, size, modified: Timestamp::UNIX_EPOCH }
    }

    fn summary(namespace: &str, second: usize) -> StoredObject {
        object(namespace, second, "summary.json", 1)
    }

    fn usage(objects: &[StoredObject]) -> Usage {
        let mut usage = Usage::default();
        objects.iter().for_each(|object| usage.add(object));
        usage
    }

    /// Returns the number of blocks to delete in each namespace.
    fn excess(sizes: &[(&str, usize)], max_size: Option<u64>) -> Vec<(String, u64)> {
        let objects = sizes.iter().flat_map(|(namespace, count)| (0..*count).map(|time| summary(namespace, time)));
        let excess = usage(&objects.collect::<Vec<_>>()).excess(&Retention { max_size, ..RETENTION });
        excess.into_iter().map(|(namespace, bytes)| (namespace, bytes / MIN_SIZE)).collect()
    }

    #[test]
    fn the_largest_namespaces_shrink_to_the_same_size() {
        let rows: [(&[(&str, usize)], &[(&str, u64)]); 6] = [
            (&[], &[]),
            (&[("large", 8), ("small", 2)], &[]),
            (&[("large", 9), ("small", 2)], &[("large", 2)]),
            (&[("a", 6), ("b", 6)], &[("a", 1), ("b", 1)]),
            (&[("a", 20), ("b", 10), ("c", 1)], &[("a", 16), ("b", 6)]),
            (&[("a", 12)], &[("a", 3)]),
        ];
        for (sizes, expected) in rows {
            let expected: Vec<_> = expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
            assert_eq!(excess(sizes, RETENTION.max_size), expected, "{sizes:?}");
        }
        assert!(excess(&[("a", 12)], None).is_empty());
    }

    #[test]
    fn objects_of_other_programs_count_but_are_never_deleted() {
        let foreign = StoredObject { name: "backup.tar".to_owned(), ..object("apps", 1, "summary.json", 1 << 40) };
        let used = usage(&[foreign.clone(), summary("apps", 1)]);
        assert_eq!(used.total(), (1 << 40) + MIN_SIZE);
        assert_eq!(used.excess(&RETENTION), [("apps".to_owned(), MIN_SIZE)]);
        let mut oldest = OldestRuns::new(MIN_SIZE);
        oldest.add(foreign);
        assert_eq!((oldest.size(), oldest.into_names()), (0, Vec::new()));
    }

    #[test]
    fn the_oldest_complete_runs_are_deleted_in_any_order_of_the_objects() {
        let mut objects: Vec<StoredObject> = (1..=9).map(|second| summary("apps", second)).collect();
        objects.extend((1..=9).map(|second| object("apps", second, "output.log.gz", 1)));
        let reversed = objects.iter().rev().cloned().collect();
        for objects in [objects, reversed] {
            for (blocks, max_objects, runs) in
                [(3, 100, 2), (4, 100, 2), (5, 100, 3), (99, 100, 9), (99, 7, 3), (0, 100, 0)]
            {
                let mut oldest = OldestRuns::with_max_objects(blocks * MIN_SIZE, max_objects);
                objects.iter().for_each(|object| oldest.add(object.clone()));
                assert_eq!(oldest.size(), 2 * runs * MIN_SIZE, "{blocks} {max_objects}");
                let mut expected: Vec<String> = objects.iter().map(|object| object.name.clone()).collect();
                expected.sort_unstable();
                expected.truncate(usize::try_from(2 * runs).unwrap());
                let mut names = oldest.into_names();
                names.sort_unstable();
                assert_eq!(names, expected, "{blocks} {max_objects}");
            }
        }
    }
}
