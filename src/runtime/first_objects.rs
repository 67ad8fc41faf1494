//! Store of the objects in a watch's initial list, for the first reconciliations after a controller has started.
//!
//! A reconciliation reads its objects from the API server, because the caches contain only some fields. After its
//! start, a controller reconciles all objects. Without this store, the controller would read each object again,
//! although the watch has just listed it. [`FirstObjects`] keeps these objects in compressed form until each reader has
//! received them. A watch event about an object removes the object from the store, so a reader never receives an
//! outdated version.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use kube::Resource;
use kube::runtime::watcher::Event;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::runtime::backoff::ObjectKey;

/// Maximum total size of the compressed objects, in bytes. The controllers read all further listed objects from the API
/// server.
const MAX_SIZE: usize = 64 * 1024 * 1024;
/// Retention period of the objects after the list is complete. The retention period limits the memory for objects that
/// no reader requests.
const RETENTION: Duration = Duration::from_secs(15 * 60);

/// Store of the objects in one watch's initial list. Cheap to clone. All clones share the objects.
pub struct FirstObjects<K> {
    state: Arc<Mutex<State>>,
    kind: PhantomData<fn() -> K>,
}

/// Component that receives each object of the initial list at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FirstReader {
    StackController = 1,
    WorkspaceController = 2,
}

/// Bit set of all readers.
const ALL_READERS: u8 = FirstReader::StackController as u8 | FirstReader::WorkspaceController as u8;

/// State of the store. Hold the lock only for short critical sections, and never across an `.await`.
#[derive(Default)]
struct State {
    phase: Phase,
    objects: HashMap<ObjectKey, Entry>,
    /// Total size of the compressed objects, in bytes.
    size: usize,
}

#[derive(Clone, Copy, Default)]
enum Phase {
    #[default]
    Unlisted,
    Listing,
    /// The initial list became complete at this time.
    Listed(Instant),
    /// The watch was interrupted or has listed its objects again.
    Ended,
}

struct Entry {
    compressed: Box<[u8]>,
    /// Readers that have not received the object, as a bit set.
    readers: u8,
}

impl<K> Clone for FirstObjects<K> {
    fn clone(&self) -> Self {
        FirstObjects { state: self.state.clone(), kind: PhantomData }
    }
}

impl<K> Default for FirstObjects<K> {
    fn default() -> Self {
        FirstObjects { state: Arc::default(), kind: PhantomData }
    }
}

impl<K: Resource + Serialize + DeserializeOwned> FirstObjects<K> {
    /// Handles an event of the watch. Stores the objects of the initial list, and removes each object that has changed
    /// since.
    pub fn handle(&self, event: &Event<K>) {
        let mut state = self.lock();
        match (event, state.phase) {
            (Event::Init, Phase::Unlisted) => state.phase = Phase::Listing,
            (Event::Init, _) => state.end(),
            (Event::InitApply(object), Phase::Listing) => state.add(object),
            (Event::InitDone, Phase::Listing) => state.phase = Phase::Listed(Instant::now()),
            (Event::InitApply(_) | Event::InitDone, _) => {}
            (Event::Apply(object) | Event::Delete(object), _) => state.remove(&key(object)),
        }
    }

    /// Removes all objects after an interruption of the watch, because the objects may have changed.
    pub fn end(&self) {
        self.lock().end();
    }

    /// Returns an object if `reader` has not received it yet and the object has not changed since the initial list.
    pub fn take(&self, reader: FirstReader, namespace: &str, name: &str) -> Option<K> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut state = self.lock();
        match state.phase {
            Phase::Listed(at) if at.elapsed() < RETENTION => {}
            Phase::Listed(_) => state.end(),
            Phase::Unlisted | Phase::Listing | Phase::Ended => return None,
        }
        let entry = state.objects.get_mut(&key)?;
        let is_first = entry.readers & reader as u8 != 0;
        entry.readers &= !(reader as u8);
        let object = is_first.then(|| decompress(&entry.compressed)).flatten();
        if entry.readers == 0 {
            state.remove(&key);
        }
        object
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add<K: Resource + Serialize>(&mut self, object: &K) {
        let Some(compressed) = compress(object) else { return };
        if self.size + compressed.len() > MAX_SIZE {
            return;
        }
        let key = key(object);
        self.remove(&key);
        self.size += compressed.len();
        self.objects.insert(key, Entry { compressed, readers: ALL_READERS });
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.objects.remove(key) {
            self.size -= entry.compressed.len();
        }
        if self.objects.is_empty() {
            self.objects.shrink_to_fit();
        }
    }

    fn end(&mut self) {
        *self = State { phase: Phase::Ended, ..State::default() };
    }
}

fn key<K: Resource>(object: &K) -> ObjectKey {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn compress<K: Serialize>(object: &K) -> Option<Box<[u8]>> {
    let json = serde_json::to_vec(object).ok()?;
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&json).ok()?;
    Some(encoder.finish().ok()?.into_boxed_slice())
}

/// Decompresses an object. The function parses the complete text, because a parser that reads from a stream would be
/// additional code in the binary for each type.
fn decompress<K: DeserializeOwned>(compressed: &[u8]) -> Option<K> {
    let mut text = String::new();
    DeflateDecoder::new(compressed).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;
    use crate::api::auto::{Workspace, WorkspaceSpec};

    fn workspace(name: &str) -> Workspace {
        let spec = WorkspaceSpec { image: Some("pulumi".to_owned()), ..WorkspaceSpec::default() };
        let mut workspace = Workspace::new(name, spec);
        workspace.metadata.namespace = Some("team".to_owned());
        workspace
    }

    fn listed(names: &[&str]) -> FirstObjects<Workspace> {
        let first = FirstObjects::default();
        first.handle(&Event::Init);
        names.iter().for_each(|name| first.handle(&Event::InitApply(workspace(name))));
        first.handle(&Event::InitDone);
        first
    }

    fn take(first: &FirstObjects<Workspace>, reader: FirstReader, name: &str) -> Option<String> {
        first.take(reader, "team", name).map(|found| {
            assert_eq!(found.spec.image.as_deref(), Some("pulumi"));
            found.name_any()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn each_reader_receives_an_object_of_the_first_list_once() {
        let first = listed(&["app", "other"]);
        for reader in [FirstReader::StackController, FirstReader::WorkspaceController] {
            assert_eq!(take(&first, reader, "app").as_deref(), Some("app"));
            assert_eq!(take(&first, reader, "app"), None, "the second read");
        }
        assert_eq!(take(&first, FirstReader::StackController, "missing"), None);
        let state = first.lock();
        assert_eq!(state.objects.len(), 1, "the object was removed after both reads");
        assert_eq!(state.size, state.objects.values().map(|entry| entry.compressed.len()).sum::<usize>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_object_is_not_returned() {
        let events: [(&str, Event<Workspace>); 3] = [
            ("changed", Event::Apply(workspace("app"))),
            ("deleted", Event::Delete(workspace("app"))),
            ("listed again", Event::Init),
        ];
        for (what, event) in events {
            let first = listed(&["app"]);
            first.handle(&event);
            first.handle(&Event::InitApply(workspace("app")));
            first.handle(&Event::InitDone);
            assert_eq!(take(&first, FirstReader::StackController, "app"), None, "{what}");
            assert_eq!(first.lock().size, 0, "{what}");
        }
        let first = listed(&["app"]);
        first.end();
        assert_eq!(take(&first, FirstReader::StackController, "app"), None, "the watch was interrupted");
    }

    #[tokio::test(start_paused = true)]
    async fn objects_are_returned_only_between_the_end_of_the_list_and_the_end_of_the_retention_period() {
        let first = FirstObjects::default();
        first.handle(&Event::Init);
        first.handle(&Event::InitApply(workspace("app")));
        assert_eq!(take(&first, FirstReader::StackController, "app"), None, "the list is incomplete");
        first.handle(&Event::InitDone);
        tokio::time::advance(RETENTION).await;
        assert_eq!(take(&first, FirstReader::StackController, "app"), None, "the retention period has ended");
        assert!(first.lock().objects.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_total_size_is_limited() {
        let first = FirstObjects::default();
        first.handle(&Event::Init);
        first.lock().size = MAX_SIZE;
        first.handle(&Event::InitApply(workspace("app")));
        first.handle(&Event::InitDone);
        assert_eq!(take(&first, FirstReader::StackController, "app"), None);
    }
}
