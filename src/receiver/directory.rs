//! Index of StackReceivers by path. A StackReceiver watch keeps the index up to date.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio::time::Instant;

use crate::api::pulumi::StackReceiver;
use crate::receiver::call_limits::{CallLimits, RateLimit};

/// A receiver, with its call limits.
#[derive(Clone, Debug)]
pub struct Entry {
    pub receiver: Arc<StackReceiver>,
    pub limits: Arc<CallLimits>,
}

type Key = (String, String);

/// All receivers that this process watches. Clones are cheap and share the index.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<RwLock<Index>>);

/// Receivers by path. The hash map uses a random hash key, so that response times reveal no information about the
/// paths.
#[derive(Debug, Default)]
struct Index {
    paths: HashMap<String, Key>,
    entries: HashMap<Key, Entry>,
    /// Receivers that the initial list of a restarted watch has contained so far. After the list is complete, a
    /// receiver that is missing from the list no longer exists.
    listed: HashSet<Key>,
    /// Rate limits by namespace. The receivers of the namespace own the limit.
    namespaces: HashMap<String, Weak<RateLimit>>,
}

impl Directory {
    /// Returns the receiver with this path. Returns `None` if no receiver has this path, or if the receiver is
    /// suspended or being deleted.
    pub fn find(&self, path: &str) -> Option<Entry> {
        let index = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let entry = index.entries.get(index.paths.get(path)?)?;
        let receiver = &entry.receiver;
        let accepts_calls = !receiver.is_suspended() && receiver.metadata.deletion_timestamp.is_none();
        accepts_calls.then(|| entry.clone())
    }

    /// Applies a watch event.
    pub fn apply(&self, event: Event<StackReceiver>) {
        let mut index = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Apply(receiver) => index.insert(receiver),
            Event::Delete(receiver) => index.remove(&key(&receiver)),
            Event::Init => index.listed.clear(),
            Event::InitApply(receiver) => {
                index.listed.insert(key(&receiver));
                index.insert(receiver);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut index.listed);
                let gone: Vec<Key> = index.entries.keys().filter(|key| !listed.contains(key)).cloned().collect();
                gone.iter().for_each(|key| index.remove(key));
                index.namespaces.retain(|_, limit| limit.strong_count() > 0);
            }
        }
    }
}

impl Index {
    fn insert(&mut self, receiver: StackReceiver) {
        let key = key(&receiver);
        let limits = match self.entries.get(&key) {
            Some(entry) => entry.limits.clone(),
            None => Arc::new(CallLimits::new(self.limit_of_namespace(&key.0), Instant::now())),
        };
        self.remove(&key);
        if let Some(path) = path(&receiver) {
            self.paths.insert(path.to_owned(), key.clone());
        }
        self.entries.insert(key, Entry { receiver: Arc::new(receiver), limits });
    }

    fn remove(&mut self, key: &Key) {
        let Some(entry) = self.entries.remove(key) else { return };
        if let Some(path) = path(&entry.receiver) {
            self.paths.remove(path);
        }
        drop(entry);
        if self.namespaces.get(&key.0).is_some_and(|limit| limit.strong_count() == 0) {
            self.namespaces.remove(&key.0);
        }
    }

    /// Returns the rate limit that all receivers of a namespace share.
    fn limit_of_namespace(&mut self, namespace: &str) -> Arc<RateLimit> {
        if let Some(limit) = self.namespaces.get(namespace).and_then(Weak::upgrade) {
            return limit;
        }
        let limit = Arc::new(RateLimit::of_namespace(Instant::now()));
        self.namespaces.insert(namespace.to_owned(), Arc::downgrade(&limit));
        limit
    }
}

fn key(receiver: &StackReceiver) -> Key {
    (receiver.namespace().unwrap_or_default(), receiver.name_any())
}

fn path(receiver: &StackReceiver) -> Option<&str> {
    receiver.status.as_ref()?.webhook_path.as_deref()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::receiver::call_limits::{EVENT_INTERVAL, RateExceeded};

    fn receiver(name: &str, path: Option<&str>, change: Value) -> StackReceiver {
        let mut object = json!({
            "metadata": {"name": name, "namespace": "apps"},
            "spec": {"type": "generic", "secretRef": {"name": "hook"}, "resources": [{"name": "web"}]},
            "status": {"webhookPath": path},
        });
        crate::runtime::fake_api::apply_json_merge_patch(&mut object, &change);
        serde_json::from_value(object).expect("a StackReceiver")
    }

    fn found(directory: &Directory, path: &str) -> Option<String> {
        directory.find(path).map(|entry| entry.receiver.name_any())
    }

    #[test]
    fn a_path_is_valid_until_its_receiver_is_changed_or_deleted() {
        let directory = Directory::default();
        let some = |name: &str| Some(name.to_owned());
        directory.apply(Event::Init);
        directory.apply(Event::InitApply(receiver("a", Some("/hook/1"), json!({}))));
        directory.apply(Event::InitApply(receiver("b", None, json!({}))));
        directory.apply(Event::InitDone);
        assert_eq!([found(&directory, "/hook/1"), found(&directory, "/hook/2")], [some("a"), None]);
        directory.apply(Event::Apply(receiver("a", Some("/hook/2"), json!({}))));
        assert_eq!([found(&directory, "/hook/1"), found(&directory, "/hook/2")], [None, some("a")]);
        for change in
            [json!({"spec": {"suspend": true}}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})]
        {
            directory.apply(Event::Apply(receiver("a", Some("/hook/2"), change.clone())));
            assert_eq!(found(&directory, "/hook/2"), None, "{change}");
        }
        directory.apply(Event::Apply(receiver("a", Some("/hook/2"), json!({}))));
        directory.apply(Event::Apply(receiver("b", Some("/hook/3"), json!({}))));
        directory.apply(Event::Delete(receiver("a", Some("/hook/2"), json!({}))));
        assert_eq!([found(&directory, "/hook/2"), found(&directory, "/hook/3")], [None, some("b")]);
        // Restarts the watch. A user deleted receiver b during the interruption, so the watch reports no deletion.
        directory.apply(Event::Init);
        assert_eq!(found(&directory, "/hook/3"), some("b"), "existing receivers are kept until the list is complete");
        directory.apply(Event::InitDone);
        assert_eq!(found(&directory, "/hook/3"), None);
    }

    #[test]
    fn the_rate_limit_survives_a_change_of_the_receiver() {
        let directory = Directory::default();
        let now = Instant::now();
        directory.apply(Event::Apply(receiver("a", Some("/hook/1"), json!({}))));
        let limits = directory.find("/hook/1").expect("there").limits;
        while limits.count_call(now).is_ok() {}
        assert!(limits.may_publish(now) && !limits.may_publish(now) && limits.may_publish(now + EVENT_INTERVAL));
        directory.apply(Event::Apply(receiver("a", Some("/hook/1"), json!({"spec": {"type": "github"}}))));
        assert!(directory.find("/hook/1").expect("there").limits.count_call(now).is_err());
    }

    #[test]
    fn the_receivers_of_a_namespace_share_a_rate_limit() {
        let directory = Directory::default();
        let other = json!({"metadata": {"namespace": "other"}});
        let receivers: Vec<StackReceiver> = (0..6)
            .map(|number| receiver(&number.to_string(), Some(format!("/hook/{number}").as_str()), json!({})))
            .collect();
        receivers.iter().cloned().for_each(|receiver| directory.apply(Event::Apply(receiver)));
        directory.apply(Event::Apply(receiver("a", Some("/hook/other"), other)));
        let now = Instant::now();
        let call = |path: &str| {
            let limits = directory.find(path).expect("there").limits;
            limits.count_call(now).and_then(|()| limits.count_run_request(now))
        };
        for receiver in 0..5 {
            assert!((0..20).all(|_| call(&format!("/hook/{receiver}")).is_ok()));
        }
        assert_eq!(call("/hook/5"), Err(RateExceeded::Namespace));
        assert_eq!(call("/hook/other"), Ok(()));
        receivers.into_iter().for_each(|receiver| directory.apply(Event::Delete(receiver)));
        let namespaces: Vec<String> = directory.0.read().unwrap().namespaces.keys().cloned().collect();
        assert_eq!(namespaces, ["other"], "the limit is removed with the last receiver");
    }
}
