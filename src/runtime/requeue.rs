//! Requests from other components to reconcile objects immediately.
//!
//! A request only names an object, so a second request for a pending object is redundant. The requests are therefore
//! a set and not a channel, which would have to drop requests or block the sender when it is full. A dropped request
//! would delay the reconciliation until the next periodic requeue.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::task::AtomicWaker;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;

/// Creates an empty set of pending objects, and returns its write side and its read side.
///
/// The set contains each object at most once, and has no other limit. The number of objects in the cluster bounds its
/// size, because the components only request objects that exist, or that the spec of an existing object names. The
/// controller also reads the set continuously: the work queue receives the objects before a reconciliation slot is free,
/// and also keeps each object only once.
pub fn queue<K: Resource<DynamicType = ()>>() -> (Requeue<K>, Requeues<K>) {
    let objects = Objects { order: VecDeque::new(), members: HashSet::new(), is_closed: false };
    let shared = Arc::new(Shared { objects: Mutex::new(objects), reader: AtomicWaker::new() });
    (Requeue(Arc::new(Writer(shared.clone()))), Requeues(shared))
}

/// Write side of a set of pending objects. Clones are cheap and share the set.
pub struct Requeue<K: Resource<DynamicType = ()>>(Arc<Writer<K>>);

/// Read side of a set of pending objects. The stream yields the objects in the order of their requests. The stream ends
/// when all clones of the write side are dropped and no object is pending.
pub struct Requeues<K: Resource<DynamicType = ()>>(Arc<Shared<K>>);

/// Closes the set when the last clone of the write side is dropped.
struct Writer<K: Resource<DynamicType = ()>>(Arc<Shared<K>>);

struct Shared<K: Resource<DynamicType = ()>> {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    objects: Mutex<Objects<K>>,
    /// Wakes the task that waits for an object.
    reader: AtomicWaker,
}

struct Objects<K: Resource<DynamicType = ()>> {
    /// Pending objects in the order of their requests.
    order: VecDeque<ObjectRef<K>>,
    /// The same objects, to find a pending object quickly.
    members: HashSet<ObjectRef<K>>,
    /// Whether the read side, or the last clone of the write side, is dropped.
    is_closed: bool,
}

impl<K: Resource<DynamicType = ()>> Requeue<K> {
    /// Requests a reconciliation of an object. Has no effect if the object is already pending, or if the read side is
    /// dropped. Never blocks.
    pub fn request(&self, object: ObjectRef<K>) {
        let Requeue(writer) = self;
        let is_new = writer.0.lock().add(object);
        if is_new {
            writer.0.reader.wake();
        }
    }
}

impl<K: Resource<DynamicType = ()>> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, Objects<K>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> Objects<K> {
    /// Adds an object. Returns whether the object was not pending.
    fn add(&mut self, object: ObjectRef<K>) -> bool {
        let is_new = !self.is_closed && self.members.insert(object.clone());
        if is_new {
            self.order.push_back(object);
        }
        is_new
    }

    /// Removes and returns the object that has been pending for the longest time.
    fn next(&mut self) -> Option<ObjectRef<K>> {
        let object = self.order.pop_front()?;
        self.members.remove(&object);
        Some(object)
    }
}

impl<K: Resource<DynamicType = ()>> Stream for Requeues<K> {
    type Item = ObjectRef<K>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ObjectRef<K>>> {
        // The registration precedes the read, so that a concurrent request is either read or wakes the task.
        self.0.reader.register(context.waker());
        let mut objects = self.0.lock();
        match objects.next() {
            Some(object) => Poll::Ready(Some(object)),
            None if objects.is_closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl<K: Resource<DynamicType = ()>> Drop for Writer<K> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.reader.wake();
    }
}

impl<K: Resource<DynamicType = ()>> Drop for Requeues<K> {
    fn drop(&mut self) {
        let mut objects = self.0.lock();
        objects.is_closed = true;
        objects.order.clear();
        objects.members.clear();
    }
}

impl<K: Resource<DynamicType = ()>> Clone for Requeue<K> {
    fn clone(&self) -> Self {
        Requeue(self.0.clone())
    }
}

impl<K: Resource<DynamicType = ()>> fmt::Debug for Requeue<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Requeue").finish_non_exhaustive()
    }
}

impl<K: Resource<DynamicType = ()>> fmt::Debug for Requeues<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Requeues").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, StreamExt};

    use super::*;
    use crate::api::auto::Workspace;

    fn workspace(name: &str) -> ObjectRef<Workspace> {
        ObjectRef::new(name).within("apps")
    }

    /// Returns the names of the pending objects, and removes the objects.
    fn pending(requeues: &mut Requeues<Workspace>) -> Vec<String> {
        std::iter::from_fn(|| requeues.next().now_or_never().flatten()).map(|object| object.name).collect()
    }

    #[test]
    fn each_pending_object_is_returned_once_in_the_order_of_the_requests() {
        let rows: [(&str, &[&str], &[&str]); 4] = [
            ("no request", &[], &[]),
            ("different objects", &["c", "a", "b"], &["c", "a", "b"]),
            ("a pending object keeps its position", &["a", "b", "a", "c", "b"], &["a", "b", "c"]),
            ("only repeated requests", &["a", "a", "a"], &["a"]),
        ];
        for (name, requests, expected) in rows {
            let (requeue, mut requeues) = queue();
            requests.iter().for_each(|request| requeue.request(workspace(request)));
            assert_eq!(pending(&mut requeues), expected, "{name}");
            requeue.request(workspace("a"));
            assert_eq!(pending(&mut requeues), ["a"], "{name}: a returned object is no longer pending");
        }
    }

    #[test]
    fn objects_with_the_same_name_in_different_namespaces_differ() {
        let (requeue, mut requeues) = queue::<Workspace>();
        requeue.request(ObjectRef::new("a").within("one"));
        requeue.request(ObjectRef::new("a").within("two"));
        let mut newer = ObjectRef::<Workspace>::new("a").within("one");
        newer.extra.resource_version = Some("2".to_owned());
        requeue.request(newer);
        assert_eq!(pending(&mut requeues), ["a", "a"], "the resource version does not distinguish objects");
    }

    #[test]
    fn no_request_is_lost_without_a_reader_task() {
        let (requeue, mut requeues) = queue();
        let names: Vec<String> = (0..10_000).map(|number| number.to_string()).collect();
        for _ in 0..2 {
            names.iter().for_each(|name| requeue.clone().request(workspace(name)));
        }
        assert_eq!(requeues.0.lock().order.len(), names.len(), "repeated requests need no memory");
        assert_eq!(pending(&mut requeues), names);
        assert!(requeues.0.lock().members.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_wakes_the_waiting_reader() {
        let (requeue, mut requeues) = queue();
        let reader = tokio::spawn(async move { (requeues.next().await, requeues.next().await, requeues.next().await) });
        tokio::time::sleep(Duration::from_secs(1)).await;
        requeue.request(workspace("a"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let another = requeue.clone();
        drop(requeue);
        another.request(workspace("b"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!reader.is_finished(), "a clone of the write side is left");
        drop(another);
        let read = tokio::time::timeout(Duration::from_secs(1), reader).await.expect("the reader is awake");
        assert_eq!(read.expect("no panic"), (Some(workspace("a")), Some(workspace("b")), None));
    }

    #[tokio::test]
    async fn the_stream_ends_after_the_last_pending_object() {
        let (requeue, requeues) = queue();
        requeue.request(workspace("a"));
        drop(requeue);
        assert_eq!(requeues.collect::<Vec<_>>().await, [workspace("a")]);
    }

    #[test]
    fn requests_without_a_read_side_use_no_memory() {
        let (requeue, requeues) = queue();
        requeue.request(workspace("a"));
        drop(requeues);
        requeue.request(workspace("b"));
        let objects = requeue.0.0.lock();
        assert!(objects.order.is_empty() && objects.members.is_empty());
    }
}
