//! Objects with all their recent versions. One counter numbers all changes, so that a list, a watch and a frozen view of
//! any recent revision have consistent content.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::Value;

/// Number of changes that the store keeps. A watch that needs older changes fails with `410 Gone`.
pub(crate) const DEFAULT_HISTORY: usize = 10_000;

/// Resource of the API, without a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    pub group: String,
    /// Plural name, such as `pods`.
    pub resource: String,
}

impl GroupResource {
    pub fn new(group: &str, resource: &str) -> Self {
        GroupResource { group: group.to_owned(), resource: resource.to_owned() }
    }
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group.as_str() {
            "" => formatter.write_str(&self.resource),
            group => write!(formatter, "{}.{group}", self.resource),
        }
    }
}

/// Place of an object. The order is that of lists: by the path `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub resource: GroupResource,
    path: String,
}

impl Key {
    /// Creates the key of an object. `namespace` is `None` for a cluster-scoped object.
    pub fn new(resource: GroupResource, namespace: Option<&str>, name: &str) -> Self {
        let path = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"));
        Key { resource, path }
    }

    pub fn namespace(&self) -> Option<&str> {
        self.path.split_once('/').map(|(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.path.split_once('/').map_or(&self.path, |(_, name)| name)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.resource, self.path)
    }
}

/// Committed change of an object.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    pub key: Key,
    /// Object before the change, or `None` after a creation.
    pub old: Option<Arc<Value>>,
    /// Object after the change, or `None` after a deletion.
    pub new: Option<Arc<Value>>,
    /// Client or component that made the change.
    pub actor: String,
}

impl Change {
    /// Returns the object after the change, or the deleted object with the resource version of its deletion.
    pub fn object(&self) -> Arc<Value> {
        match (&self.new, &self.old) {
            (Some(new), _) => new.clone(),
            (None, Some(old)) => {
                let mut object = Value::clone(old);
                set_resource_version(&mut object, self.revision);
                Arc::new(object)
            }
            (None, None) => Arc::default(),
        }
    }
}

type Versions = Vec<(u64, Option<Arc<Value>>)>;

/// Objects and their recent versions.
#[derive(Debug)]
pub(crate) struct Store {
    revision: u64,
    /// Oldest revision from which a watch can start.
    compacted: u64,
    history: usize,
    objects: BTreeMap<Key, Versions>,
    log: VecDeque<Change>,
}

impl Store {
    pub(crate) fn new(history: usize) -> Self {
        Store { revision: 1, compacted: 1, history: history.max(1), objects: BTreeMap::new(), log: VecDeque::new() }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key)?.last()?.1.clone()
    }

    /// Returns the object at a revision.
    pub(crate) fn get_at(&self, key: &Key, revision: u64) -> Option<Arc<Value>> {
        at(self.objects.get(key)?, revision)
    }

    /// Stores a new version of an object, or deletes it. Returns the change.
    pub(crate) fn put(&mut self, key: Key, object: Option<Value>, actor: &str) -> Change {
        self.revision += 1;
        let new = object.map(|mut object| {
            set_resource_version(&mut object, self.revision);
            Arc::new(object)
        });
        let versions = self.objects.entry(key.clone()).or_default();
        let old = versions.last().and_then(|(_, object)| object.clone());
        versions.push((self.revision, new.clone()));
        let change = Change { revision: self.revision, key, old, new, actor: actor.to_owned() };
        self.log.push_back(change.clone());
        if self.log.len() > self.history
            && let Some(oldest) = self.log.front().map(|change| change.revision)
        {
            self.compact(oldest);
        }
        change
    }

    /// Forgets the changes up to a revision.
    pub(crate) fn compact(&mut self, revision: u64) {
        let revision = revision.min(self.revision);
        self.compacted = self.compacted.max(revision);
        while self.log.front().is_some_and(|change| change.revision <= revision) {
            let Some(change) = self.log.pop_front() else { break };
            let Some(versions) = self.objects.get_mut(&change.key) else { continue };
            let kept_from = versions.iter().rposition(|(at, _)| *at <= revision).unwrap_or(0);
            versions.drain(..kept_from);
            if versions.len() == 1 && versions.first().is_some_and(|(_, object)| object.is_none()) {
                self.objects.remove(&change.key);
            }
        }
    }

    /// Returns the objects of a resource at a revision, after the path `after`.
    pub(crate) fn list<'s>(
        &'s self,
        resource: &GroupResource,
        namespace: Option<&str>,
        revision: u64,
        after: &str,
    ) -> impl Iterator<Item = (&'s Key, Arc<Value>)> + use<'s> {
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let start = Key { resource: resource.clone(), path: after.max(prefix.as_str()).to_owned() };
        let (resource, prefix) = (resource.clone(), prefix);
        let bound = if after.is_empty() { Bound::Included(start) } else { Bound::Excluded(start) };
        self.objects
            .range((bound, Bound::Unbounded))
            .take_while(move |(key, _)| key.resource == resource && key.path.starts_with(&prefix))
            .filter_map(move |(key, versions)| Some((key, at(versions, revision)?)))
    }

    /// Returns the path of a key in lists.
    pub(crate) fn path(key: &Key) -> &str {
        &key.path
    }

    /// Returns all existing objects.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter().filter_map(|(key, versions)| Some((key, versions.last()?.1.as_ref()?)))
    }

    /// Returns the changes after a revision.
    pub(crate) fn changes_after(&self, revision: u64) -> impl Iterator<Item = &Change> {
        let start = self.log.partition_point(|change| change.revision <= revision);
        self.log.iter().skip(start)
    }
}

fn at(versions: &Versions, revision: u64) -> Option<Arc<Value>> {
    versions.iter().rev().find(|(at, _)| *at <= revision)?.1.clone()
}

/// Sets the resource version of an object.
pub(crate) fn set_resource_version(object: &mut Value, revision: u64) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(namespace: &str, name: &str) -> Key {
        Key::new(GroupResource::new("", "pods"), Some(namespace), name)
    }

    fn names(store: &Store, namespace: Option<&str>, revision: u64, after: &str) -> Vec<String> {
        let pods = GroupResource::new("", "pods");
        store.list(&pods, namespace, revision, after).map(|(key, _)| Store::path(key).to_owned()).collect()
    }

    #[test]
    fn lists_have_the_order_of_paths_and_show_any_recent_revision() {
        let mut store = Store::new(100);
        for (namespace, name) in [("a", "x"), ("a-b", "x"), ("a", "b")] {
            store.put(key(namespace, name), Some(json!({ "metadata": {} })), "");
        }
        let before = store.revision();
        store.put(key("a", "b"), None, "");
        assert_eq!(names(&store, None, store.revision(), ""), ["a-b/x", "a/x"]);
        assert_eq!(names(&store, None, before, ""), ["a-b/x", "a/b", "a/x"]);
        assert_eq!(names(&store, Some("a"), before, ""), ["a/b", "a/x"]);
        assert_eq!(names(&store, None, before, "a/b"), ["a/x"]);
        assert_eq!(names(&store, None, 1, ""), [""; 0]);
    }

    #[test]
    fn compaction_forgets_changes_and_keeps_objects() {
        let mut store = Store::new(100);
        store.put(key("a", "x"), Some(json!({ "metadata": {} })), "");
        store.put(key("a", "y"), Some(json!({ "metadata": {} })), "");
        let change = store.put(key("a", "x"), None, "");
        assert_eq!(change.object().pointer("/metadata/resourceVersion"), Some(&json!("4")));
        store.compact(store.revision());
        assert_eq!(store.changes_after(1).count(), 0);
        assert_eq!(store.compacted(), 4);
        assert_eq!(names(&store, None, store.revision(), ""), ["a/y"]);
        assert_eq!(store.objects.len(), 1);
    }

    #[test]
    fn the_history_is_bounded() {
        let mut store = Store::new(3);
        for _ in 0..10 {
            store.put(key("a", "x"), Some(json!({ "metadata": {} })), "");
        }
        assert_eq!(store.log.len(), 3);
        assert_eq!(store.compacted(), 8);
        assert_eq!(store.changes_after(8).count(), 3);
    }
}
