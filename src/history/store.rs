//! Writes, reads and deletes the objects of the history.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, PutOptions, PutPayload};

use super::error::HistoryError;
use super::names::{FILES, File, KINDS, RunName};
use super::requests::Requests;
use super::retention::{self, Retention, StoredObject};
use super::volume_size::{self, OldestRuns, Usage};
use crate::telemetry::metrics::Metrics;

/// Maximum number of objects that [`HistoryStore::names`] and [`HistoryStore::enforce_limits`] read. If the history
/// contains more objects, each cleanup deletes only a part of the excess runs. The maximum exceeds the number of
/// objects that the retention limits permit, so that each cleanup finds excess runs.
const MAX_LISTED: usize = (Retention::MOST_RUNS + 5) * KINDS.len() * FILES.len();

/// The history store. Clones are cheap and share one storage client.
#[derive(Clone)]
pub struct HistoryStore(Arc<Shared>, Requests);

struct Shared {
    storage: Arc<dyn ObjectStore>,
    prefix: Path,
    base: String,
    retention: Retention,
    metrics: Metrics,
    /// Total size of all objects in bytes, if the history has a maximum size. If an object was written repeatedly, the
    /// value is too large until the next cleanup.
    size: AtomicU64,
}

impl Debug for HistoryStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HistoryStore").field("base", &self.0.base).finish_non_exhaustive()
    }
}

/// The location and the limits of a history.
#[derive(Debug)]
pub struct Place {
    pub storage: Box<dyn ObjectStore>,
    /// Prefix that all object names share. Empty on a volume, because the directory in the URL is the storage root.
    pub prefix: String,
    /// URL of the history, without parameters.
    pub base: String,
    pub retention: Retention,
}

impl HistoryStore {
    /// Creates a history in object storage.
    pub fn new(place: Place, metrics: Metrics) -> Self {
        Self::with_requests(place, Requests::default(), metrics)
    }

    /// Creates a history on a volume.
    pub(super) fn on_volume(place: Place, metrics: Metrics) -> Self {
        Self::with_requests(place, Requests::of_volume(), metrics)
    }

    fn with_requests(place: Place, requests: Requests, metrics: Metrics) -> Self {
        let Place { storage, prefix, base, retention } = place;
        let (storage, prefix, size) = (Arc::from(storage), Path::from(prefix), AtomicU64::new(0));
        HistoryStore(Arc::new(Shared { storage, prefix, base, retention, metrics, size }), requests)
    }

    /// Returns the same history for readers. The operations of the readers on a volume have separate permits, so that
    /// slow reads never prevent the controller from storing a run.
    #[must_use]
    pub fn for_readers(&self) -> Self {
        HistoryStore(self.0.clone(), self.1.with_separate_permits())
    }

    /// Creates a history in memory, for tests.
    #[cfg(test)]
    pub(crate) fn in_memory(prefix: &str, retention: Retention, metrics: Metrics) -> Self {
        let storage = Box::new(object_store::memory::InMemory::new());
        let base = format!("s3://runs/{prefix}").trim_end_matches('/').to_owned();
        HistoryStore::new(Place { storage, prefix: prefix.to_owned(), base, retention }, metrics)
    }

    /// Returns the URL of a run's directory.
    pub fn url(&self, run: &RunName) -> String {
        format!("{}/{}", self.0.base, run.directory())
    }

    /// Writes a file of a run. A repeated write replaces the file.
    pub async fn write(&self, run: &RunName, file: File, content: impl Into<Bytes>) -> Result<(), HistoryError> {
        let (name, content) = (run.object(file), content.into());
        let size = content.len() as u64;
        let (storage, location) = (self.0.storage.clone(), self.location(&name));
        let put = async move { storage.put_opts(&location, PutPayload::from(content), PutOptions::default()).await };
        self.1.send(put).await?.map_err(|source| HistoryError::Write { name, source })?;
        self.0.size.fetch_add(volume_size::counted(size), Ordering::Relaxed);
        Ok(())
    }

    /// Returns one of a run's files, or `None` if the file does not exist.
    pub async fn read(&self, run: &RunName, file: File) -> Result<Option<Bytes>, HistoryError> {
        self.read_object(&run.object(file)).await
    }

    /// Returns an object, or `None` if the object does not exist.
    pub async fn read_object(&self, name: &str) -> Result<Option<Bytes>, HistoryError> {
        let name = name.to_owned();
        let (storage, location) = (self.0.storage.clone(), self.location(&name));
        let read = async move { storage.get_opts(&location, GetOptions::default()).await?.bytes().await };
        match self.1.send(read).await? {
            Ok(content) => Ok(Some(content)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(HistoryError::Read { name, source }),
        }
    }

    /// Deletes a Stack's runs that exceed the maximum number of runs or the maximum age. The runs of deleted Stacks
    /// with the same name count toward the maximum number.
    pub async fn enforce_limits(&self, run: &RunName, now: Timestamp) -> Result<(), HistoryError> {
        let objects = self.list(&run.stack_directory(), MAX_LISTED).await?;
        let retention = &self.0.retention;
        let mut old = retention::surplus(&objects, retention);
        old.extend(objects.into_iter().filter(|o| retention::is_expired(o, retention, now)).map(|o| o.name));
        old.sort_unstable();
        old.dedup();
        let deleted = self.delete(old).await;
        if retention.max_size.is_some_and(|most| self.0.size.load(Ordering::Relaxed) > most) {
            self.enforce_size().await?;
        }
        deleted
    }

    /// If the total size exceeds the maximum size, deletes the oldest runs of the namespaces with the largest
    /// histories.
    pub(super) async fn enforce_size(&self) -> Result<(), HistoryError> {
        if self.0.retention.max_size.is_none() {
            return Ok(());
        }
        let mut usage = Usage::default();
        self.for_each("", |object| usage.add(&object)).await?;
        let mut left = usage.total();
        for (namespace, excess) in usage.excess(&self.0.retention) {
            let mut oldest = OldestRuns::new(excess);
            self.for_each(&namespace, |object| oldest.add(object)).await?;
            left = left.saturating_sub(oldest.size());
            self.delete(oldest.into_names()).await?;
        }
        self.0.size.store(left, Ordering::Relaxed);
        Ok(())
    }

    /// Calls `visit` with each object in a directory. Keeps only one object in memory.
    async fn for_each(&self, directory: &str, mut visit: impl FnMut(StoredObject) + Send) -> Result<(), HistoryError> {
        let mut listing = self.listing(directory);
        while let Some((object, rest)) = self.1.next(listing).await? {
            listing = rest;
            if let Some(object) = self.stored(&object.map_err(HistoryError::List)?) {
                visit(object);
            }
        }
        Ok(())
    }

    /// Returns the names of at most [`MAX_LISTED`] objects in a directory.
    pub async fn names(&self, directory: &str) -> Result<Vec<String>, HistoryError> {
        Ok(self.list(directory, MAX_LISTED).await?.into_iter().map(|object| object.name).collect())
    }

    pub(super) fn retention(&self) -> &Retention {
        &self.0.retention
    }

    /// Returns at most `limit` objects in a directory.
    pub(super) async fn list(&self, directory: &str, limit: usize) -> Result<Vec<StoredObject>, HistoryError> {
        let mut listing = self.listing(directory);
        let mut objects = Vec::new();
        while objects.len() < limit
            && let Some((object, rest)) = self.1.next(listing).await?
        {
            listing = rest;
            objects.extend(self.stored(&object.map_err(HistoryError::List)?));
        }
        Ok(objects)
    }

    /// Deletes each object for which `is_old` returns true. Keeps only one batch of objects in memory.
    pub(super) async fn delete_where(
        &self,
        batch_size: usize,
        is_old: impl Fn(&StoredObject) -> bool + Send + Sync,
    ) -> Result<(), HistoryError> {
        let mut listing = self.listing("");
        let (mut batch, mut deleted) = (Vec::new(), Ok(()));
        while let Some((object, rest)) = self.1.next(listing).await? {
            listing = rest;
            let object = self.stored(&object.map_err(HistoryError::List)?);
            batch.extend(object.filter(&is_old).map(|object| object.name));
            if batch.len() >= batch_size {
                deleted = self.delete(std::mem::take(&mut batch)).await.and(deleted);
            }
        }
        self.delete(batch).await.and(deleted)
    }

    /// Deletes objects. Ignores objects that no longer exist. If deleting an object fails, deletes the other objects
    /// and then returns the last error.
    pub(super) async fn delete(&self, names: Vec<String>) -> Result<(), HistoryError> {
        if names.is_empty() {
            return Ok(());
        }
        let (mut count, mut failed) = (0, None);
        let locations: Vec<_> = names.iter().map(|name| Ok(self.location(name))).collect();
        let mut deleting = self.0.storage.delete_stream(futures::stream::iter(locations).boxed());
        loop {
            let (result, rest) = match self.1.next(deleting).await {
                Ok(Some(next)) => next,
                Ok(None) => break,
                // Stops after a timeout, because the remaining deletions would also time out.
                Err(timeout) => {
                    failed = Some(timeout);
                    break;
                }
            };
            deleting = rest;
            match result {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => count += 1,
                Err(error) => failed = Some(HistoryError::Delete(error)),
            }
        }
        self.0.metrics.history_deleted(count);
        failed.map_or(Ok(()), Err)
    }

    fn listing(&self, directory: &str) -> BoxStream<'static, Result<ObjectMeta, object_store::Error>> {
        let prefix = self.location(directory);
        self.0.storage.list(Some(&prefix).filter(|prefix| !prefix.as_ref().is_empty()))
    }

    fn location(&self, name: &str) -> Path {
        let prefix = self.0.prefix.as_ref();
        match (prefix.is_empty(), name.is_empty()) {
            (true, _) => Path::from(name),
            (false, true) => self.0.prefix.clone(),
            (false, false) => Path::from(format!("{prefix}/{name}")),
        }
    }

    fn stored(&self, object: &ObjectMeta) -> Option<StoredObject> {
        let name = object.location.as_ref();
        let prefix = self.0.prefix.as_ref();
        let name = if prefix.is_empty() { name } else { name.strip_prefix(prefix)?.strip_prefix('/')? };
        let modified = Timestamp::from_second(object.last_modified.timestamp()).ok()?;
        Some(StoredObject { name: name.to_owned(), size: object.size, modified })
    }
}

#[cfg(test)]
mod tests {
    use object_store::local::LocalFileSystem;
    use std::time::Duration;

    use super::*;

    const RETENTION: Retention = Retention { max_runs: 2, max_age: Duration::from_secs(3600), max_size: None };

    fn history(prefix: &str, retention: Retention) -> HistoryStore {
        HistoryStore::in_memory(prefix, retention, Metrics::default())
    }

    fn run(number: i64) -> RunName {
        RunName {
            namespace: "apps".to_owned(),
            stack: "web".to_owned(),
            stack_uid: "uid".to_owned(),
            created: Timestamp::from_second(number).unwrap(),
            kind: "up",
            update_uid: number.to_string(),
        }
    }

    #[tokio::test]
    async fn a_repeated_write_replaces_the_file() {
        let history = history("team/a", RETENTION);
        history.write(&run(1), File::Summary, b"one".to_vec()).await.unwrap();
        history.write(&run(1), File::Summary, b"two".to_vec()).await.unwrap();
        assert_eq!(history.read(&run(1), File::Summary).await.unwrap().as_deref(), Some(b"two".as_slice()));
        assert_eq!(history.read(&run(1), File::Plan).await.unwrap(), None);
        assert_eq!(history.list("", 10).await.unwrap().len(), 1);
        assert_eq!(history.url(&run(1)), "s3://runs/team/a/apps/web/uid/19700101T000001Z-up-1");
    }

    #[tokio::test]
    async fn the_oldest_runs_of_a_stack_are_deleted() {
        for prefix in ["", "team/a"] {
            let history = history(prefix, RETENTION);
            let other = RunName { stack: "other".to_owned(), ..run(0) };
            history.write(&other, File::Summary, Vec::new()).await.unwrap();
            for number in 1..=4 {
                history.write(&run(number), File::Output, vec![1]).await.unwrap();
                history.write(&run(number), File::Summary, vec![1]).await.unwrap();
                history.enforce_limits(&run(number), Timestamp::now()).await.unwrap();
            }
            let names: Vec<String> = history.list("", 99).await.unwrap().into_iter().map(|o| o.name).collect();
            assert_eq!(names.len(), 5, "{names:?}");
            assert!(names.iter().any(|name| name.starts_with("apps/other/")), "{names:?}");
            assert!(!names.iter().any(|name| name.contains("-up-1/") || name.contains("-up-2/")), "{names:?}");
        }
    }

    #[tokio::test]
    async fn a_recreated_stack_has_no_additional_runs() {
        let history = history("", RETENTION);
        let longer = RunName { stack: "web2".to_owned(), ..run(0) };
        history.write(&longer, File::Summary, Vec::new()).await.unwrap();
        for number in 1..=5 {
            let run = RunName { stack_uid: format!("uid-{}", 9 - number), ..run(number) };
            history.write(&run, File::Summary, Vec::new()).await.unwrap();
            history.enforce_limits(&run, Timestamp::now()).await.unwrap();
        }
        let mut names: Vec<String> = history.list("", 99).await.unwrap().into_iter().map(|o| o.name).collect();
        names.sort_unstable();
        let updates: Vec<&str> = names.iter().filter_map(|name| name.split('/').nth(3)).collect();
        assert_eq!(updates, ["19700101T000005Z-up-5", "19700101T000004Z-up-4", "19700101T000000Z-up-0"], "{names:?}");
    }

    #[tokio::test]
    async fn the_largest_number_of_runs_is_enforced() {
        let retention = Retention { max_runs: Retention::MOST_RUNS, ..RETENTION };
        let history = history("", retention);
        let most = i64::try_from(Retention::MOST_RUNS).unwrap();
        for (kind, file) in KINDS.into_iter().flat_map(|kind| FILES.map(|file| (kind, file))) {
            for number in 1..=most + 1 {
                history.write(&RunName { kind, ..run(number) }, file, Vec::new()).await.unwrap();
            }
        }
        history.enforce_limits(&run(most), Timestamp::now()).await.unwrap();
        let mut names = history.names("apps/web").await.unwrap();
        assert_eq!(names.len(), Retention::MOST_RUNS * KINDS.len() * FILES.len());
        names.retain(|name| name.contains("/19700101T000001Z-"));
        assert!(names.is_empty(), "the oldest run of each type is deleted: {names:?}");
    }

    #[tokio::test]
    async fn a_volume_never_grows_beyond_its_maximum_size() {
        let retention = Retention { max_runs: 1000, max_size: Some(1024 * 1024), ..RETENTION };
        let history = history("", retention);
        for number in 1..=40 {
            history.write(&run(number), File::Output, vec![1; 100 * 1024]).await.unwrap();
            history.enforce_limits(&run(number), Timestamp::now()).await.unwrap();
            let total: u64 = history.list("", 1000).await.unwrap().iter().map(|object| object.size).sum();
            assert!(total <= 1024 * 1024, "{total} bytes after {number} runs");
        }
        assert!(history.read(&run(40), File::Output).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_deleted_does_not_stop_the_retention() {
        let directory = tempfile::tempdir().unwrap();
        let storage = LocalFileSystem::new_with_prefix(directory.path()).unwrap();
        let (prefix, base) = (String::new(), "file:///runs".to_owned());
        let place = Place { storage: Box::new(storage), prefix, base, retention: RETENTION };
        let history = HistoryStore::on_volume(place, Metrics::default());
        history.write(&run(1), File::Summary, Vec::new()).await.unwrap();
        history.write(&run(2), File::Summary, Vec::new()).await.unwrap();
        // The storage cannot delete a directory.
        let names = vec![run(1).object(File::Summary), "apps".to_owned(), run(2).object(File::Summary)];
        let error = history.delete(names).await.unwrap_err();
        assert!(matches!(error, HistoryError::Delete(_)), "{error}");
        assert!(history.list("", 10).await.unwrap().is_empty());
        history.delete(vec![run(1).object(File::Summary)]).await.unwrap();
    }
}
