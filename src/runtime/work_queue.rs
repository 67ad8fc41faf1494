//! Work queue of a controller: the objects whose reconciliation is due, and the times of later reconciliations.
//!
//! kube-rs creates a task for each due object, and keeps its entry in tables that never shrink. After the start of a
//! controller with thousands of objects, all objects are due at the same time, and these tasks would use more memory
//! than the objects themselves. In this queue, a waiting object uses about a hundred bytes, and only the objects in
//! progress have a task.
//!
//! An object is in the queue at most once. If an object becomes due while its reconciliation is in progress, the next
//! reconciliation starts after the current one. [`Queue`] determines the order of the namespaces.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::backoff::ObjectKey;
use crate::runtime::fair_slots::queue::{Place, Priority, Queue};

/// Maximum delay until a requeue. The addition of a longer delay to an [`Instant`] could overflow.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Urgency of an object's reconciliation, which determines the slots that the reconciliation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The reconciliation shares the slots with all normal and queued objects.
    Normal,
    /// The object waits in a queue of the controller. Its reconciliation is normal, or urgent after
    /// [`WorkQueue::expedite`].
    Queued,
    /// The reconciliation uses separate slots, so it never waits for normal and queued objects. The number of urgent
    /// objects must be small.
    Urgent,
}

/// Slots that a reconciliation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Normal,
    Urgent,
}

/// Work queue. It contains an entry for each existing object that was added at least once.
#[derive(Debug)]
pub(super) struct WorkQueue {
    objects: HashMap<Arc<ObjectKey>, Object>,
    normal: Queue<Arc<ObjectKey>>,
    urgent: Queue<Arc<ObjectKey>>,
    /// Times of later reconciliations.
    delayed: BTreeSet<(Instant, Arc<ObjectKey>)>,
}

#[derive(Debug, Default)]
struct Object {
    state: State,
    /// Whether a reconciliation has started since the process started.
    has_begun: bool,
    /// Whether the next reconciliation precedes other reconciliations.
    is_promoted: bool,
    /// Whether the object was deleted during its reconciliation.
    is_deleted: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// The object waits for a change.
    #[default]
    Idle,
    Delayed(Instant),
    /// The object waits for a slot.
    Waiting(Urgency, Lane, Place),
    Running {
        lane: Lane,
        place: Place,
        /// Whether the object became due during the reconciliation.
        is_due: bool,
    },
}

/// Next step for an object after its reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The object became due during the reconciliation. The caller must add the object again.
    Add,
    /// The object was deleted during the reconciliation, so the queue no longer contains the object. If a new object
    /// has the same name, the caller must add this object.
    Deleted,
    /// The queue has recorded the time of the next reconciliation, or the object waits for a change.
    Recorded,
}

impl WorkQueue {
    /// Creates an empty queue. The limits apply to the normal reconciliations in progress and, separately, to the urgent
    /// reconciliations in progress.
    pub(super) fn new(total: usize, per_namespace: usize) -> Self {
        WorkQueue {
            objects: HashMap::new(),
            normal: Queue::new(total, per_namespace),
            urgent: Queue::new(total, per_namespace),
            delayed: BTreeSet::new(),
        }
    }

    /// Makes an existing object due. The first reconciliation of a normal object has low priority until the object is
    /// promoted.
    pub(super) fn add(&mut self, key: &ObjectKey, urgency: Urgency) {
        let key = self.entry(key);
        let Some(object) = self.objects.get_mut(&key) else { return };
        match &mut object.state {
            State::Running { is_due, .. } => {
                *is_due = true;
                return;
            }
            State::Waiting(known, ..) if *known == urgency => return,
            _ => {}
        }
        self.leave(&key);
        self.wait(key, urgency);
    }

    /// Returns the shared key of an object, and adds an idle entry if the queue does not contain the object.
    fn entry(&mut self, key: &ObjectKey) -> Arc<ObjectKey> {
        if let Some((key, _)) = self.objects.get_key_value(key) {
            return key.clone();
        }
        let key = Arc::new(key.clone());
        self.objects.insert(key.clone(), Object::default());
        key
    }

    /// Adds an object that waits for a slot.
    fn wait(&mut self, key: Arc<ObjectKey>, urgency: Urgency) {
        let Some(object) = self.objects.get_mut(&key) else { return };
        let (lane, priority) = match urgency {
            Urgency::Urgent => (Lane::Urgent, Priority::High),
            Urgency::Queued if object.is_promoted && object.has_begun => (Lane::Urgent, Priority::High),
            Urgency::Normal if !object.has_begun && !object.is_promoted => (Lane::Normal, Priority::Low),
            Urgency::Queued | Urgency::Normal => (Lane::Normal, Priority::High),
        };
        let queue = match lane {
            Lane::Normal => &mut self.normal,
            Lane::Urgent => &mut self.urgent,
        };
        object.state = State::Waiting(urgency, lane, queue.enqueue(&key.0, priority, key.clone()));
    }

    /// Removes an object that is not running from the waiting and delayed objects. Frees the slot of a running object.
    fn leave(&mut self, key: &Arc<ObjectKey>) {
        let Some(object) = self.objects.get_mut(key) else { return };
        match std::mem::take(&mut object.state) {
            State::Idle => {}
            State::Delayed(at) => {
                self.delayed.remove(&(at, key.clone()));
            }
            State::Waiting(_, Lane::Normal, place) | State::Running { lane: Lane::Normal, place, .. } => {
                self.normal.leave(&key.0, place, true);
            }
            State::Waiting(_, Lane::Urgent, place) | State::Running { lane: Lane::Urgent, place, .. } => {
                self.urgent.leave(&key.0, place, true);
            }
        }
    }

    /// Returns the next object whose reconciliation can start, and grants it a slot.
    pub(super) fn start(&mut self) -> Option<Arc<ObjectKey>> {
        let key = self.urgent.grant().or_else(|| self.normal.grant())?;
        let object = self.objects.get_mut(&key)?;
        if let State::Waiting(_, lane, place) = object.state {
            *object = Object {
                state: State::Running { lane, place, is_due: false },
                has_begun: true,
                is_promoted: false,
                is_deleted: false,
            };
        }
        Some(key)
    }

    /// Ends a reconciliation. `delay` is the time until the next reconciliation. Without `delay`, the object waits for a
    /// change.
    pub(super) fn finish(&mut self, key: &Arc<ObjectKey>, delay: Option<Duration>, now: Instant) -> Next {
        let Some(object) = self.objects.get(key) else { return Next::Deleted };
        let (is_due, is_deleted) = (matches!(object.state, State::Running { is_due: true, .. }), object.is_deleted);
        self.leave(key);
        if is_deleted {
            self.remove(key);
            return Next::Deleted;
        }
        if is_due {
            return Next::Add;
        }
        if let (Some(delay), Some(object)) = (delay, self.objects.get_mut(key)) {
            let at = now + delay.min(MAX_DELAY);
            object.state = State::Delayed(at);
            self.delayed.insert((at, key.clone()));
        }
        Next::Recorded
    }

    /// Returns the time of the next delayed reconciliation.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Removes and returns a delayed object that is due. The caller must add the object.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Arc<ObjectKey>> {
        self.next_time().filter(|at| *at <= now)?;
        let (_, key) = self.delayed.pop_first()?;
        self.objects.get_mut(&key)?.state = State::Idle;
        Some(key)
    }

    /// Returns the number of objects that wait for a slot.
    pub(super) fn depth(&self) -> usize {
        self.normal.waiting() + self.urgent.waiting()
    }

    /// Returns whether a reconciliation of the object has started since the process started.
    pub(super) fn has_begun(&self, key: &ObjectKey) -> bool {
        self.objects.get(key).is_some_and(|object| object.has_begun && !object.is_deleted)
    }

    /// Gives the first reconciliation of an existing object high priority. Later reconciliations always have high
    /// priority. The promotion also applies if the object becomes due later.
    pub(super) fn promote(&mut self, key: &ObjectKey) {
        if !self.has_begun(key) {
            self.set_promoted(key);
        }
    }

    /// Makes the next reconciliation of a queued object urgent. The object must have been reconciled before.
    pub(super) fn expedite(&mut self, key: &ObjectKey) {
        if self.has_begun(key) {
            self.set_promoted(key);
        }
    }

    fn set_promoted(&mut self, key: &ObjectKey) {
        let key = self.entry(key);
        let Some(object) = self.objects.get_mut(&key) else { return };
        if std::mem::replace(&mut object.is_promoted, true) {
            return;
        }
        if let State::Waiting(urgency, ..) = object.state {
            self.leave(&key);
            self.wait(key, urgency);
        }
    }

    /// Removes a deleted object. If its reconciliation is in progress, the object keeps its slot until the end of the
    /// reconciliation.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        let Some((key, object)) = self.objects.get_key_value(key) else { return };
        let (key, is_running) = (key.clone(), matches!(object.state, State::Running { .. }));
        if is_running {
            self.objects.entry(key).and_modify(|object| object.is_deleted = true);
        } else {
            self.leave(&key);
            self.remove(&key);
        }
    }

    fn remove(&mut self, key: &Arc<ObjectKey>) {
        self.objects.remove(key);
        // The queue contains each Update, of which thousands can exist for a short time.
        if self.objects.len() < self.objects.capacity() / 4 {
            self.objects.shrink_to(2 * self.objects.len());
        }
    }

    /// Returns the keys of all objects.
    pub(super) fn keys(&self) -> Vec<Arc<ObjectKey>> {
        self.objects.keys().cloned().collect()
    }

    /// Returns the sorted names of the promoted objects.
    #[cfg(test)]
    pub(super) fn promoted(&self) -> Vec<String> {
        let promoted = self.objects.iter().filter(|(_, object)| object.is_promoted);
        let mut names: Vec<String> = promoted.map(|(key, _)| key.1.clone()).collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests;
