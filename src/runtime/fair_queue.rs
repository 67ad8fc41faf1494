//! Queue of runs, which selects the run that starts next. The queue uses no clock and no lock: the caller passes the
//! current time to the functions. The caller requeues the Updates whose runs may start.
//!
//! The queue assigns a free slot to the namespace with the lowest ratio of open runs to its weight. If several
//! namespaces have the same ratio, the queue selects the namespace that has waited longest since its last slot
//! assignment.
//!
//! The queue prevents one namespace from occupying all slots. A namespace with the weight 1 can start another run only
//! if there are more free slots than open runs of this namespace, both on the node and in total. One namespace
//! therefore uses at most half of the slots (rounded up), a second namespace at most half of the remaining slots, and
//! so on. A namespace with a higher weight needs proportionally fewer free slots. The queue reserves no slots if the
//! flags allow one namespace to use all slots. The queue can also adopt more open runs of a namespace than it would
//! grant. These surplus runs take no slots from other namespaces.
//!
//! Within a namespace, the run with the highest rank starts first. A higher priority and a longer waiting time increase
//! the rank. A background run, such as a drift check, has a lower rank. The number and the ranks of a namespace's
//! queued runs do not affect when the runs of other namespaces start.
//!
//! A run acquires its slot only when the total limit and the limits of its namespace, its node and its concurrency
//! group all permit the run. A queued run therefore holds no slot, and deadlocks are impossible.

pub mod estimate;
pub mod forecast;
mod full;
mod queue;
mod run;
mod taken;

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::slots::{LOCAL_GROUPS, SlotReport};
use queue::Queue;
use taken::Taken;

pub use full::Full;
pub use run::{Group, GroupKey, Limits, Run, Share};

/// Time for which a slot remains reserved for a run that may start. A reservation must expire, because the run may have
/// been deleted.
const RESERVATION: Duration = Duration::from_secs(30);

/// Open run.
struct Open {
    run: Run,
    permits: usize,
}

/// Slot that is reserved for a run that may start.
struct Reserved<W> {
    run: Run,
    /// Sequence number of the reservation. The caller requeues the runs in ascending order of their sequence numbers.
    number: u64,
    /// Key of the run to requeue, or `None` after [`FairQueue::next_requeue`] has returned the key.
    key: Option<W>,
    until: Instant,
}

/// Open runs, runs that may start, and queued runs.
pub struct FairQueue<W> {
    limits: Limits,
    open: HashMap<String, Open>,
    reserved: HashMap<String, Reserved<W>>,
    queue: Queue<W>,
    reservations: u64,
}

impl<W> FairQueue<W> {
    pub fn new(limits: Limits) -> Self {
        let (open, reserved) = (HashMap::new(), HashMap::new());
        FairQueue { limits, open, reserved, queue: Queue::default(), reservations: 0 }
    }

    /// Assigns a free slot to a run, or queues the run if no slot is free. When the queued run may start,
    /// [`FairQueue::next_requeue`] returns `key`.
    pub fn request(&mut self, run: &Run, key: W, now: Instant) -> Result<(), Full> {
        let is_reserved = self.reserved.get(&run.uid).is_some_and(|reserved| reserved.run.has_same_place(run));
        if is_reserved || self.open.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        // The run may have moved to another node or group, where it needs another slot.
        self.reserved.remove(&run.uid);
        self.queue.insert(run.clone(), key);
        self.reserve(now);
        if self.reserved.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        Err(self.full_reason(run))
    }

    /// Assigns a slot to a run regardless of the limits, because the run has a reserved slot, started before this
    /// process or started in another shard.
    pub fn adopt(&mut self, run: &Run, now: Instant) {
        self.forget(&run.uid);
        let open = self.open.entry(run.uid.clone()).or_insert_with(|| Open { run: run.clone(), permits: 0 });
        open.permits += 1;
        // The first permit of a run can lack the start time, because a run acquires its slot before it starts.
        open.run.started = open.run.started.or(run.started);
        // If the run had a reserved slot on another node, that slot is now free for a queued run.
        self.reserve(now);
    }

    /// Releases one permit of an open run. When the last permit is released, the run's slot becomes free.
    pub fn close(&mut self, uid: &str, now: Instant) {
        if let Some(open) = self.open.get_mut(uid) {
            open.permits = open.permits.saturating_sub(1);
            if open.permits == 0 {
                self.open.remove(uid);
            }
        }
        self.reserve(now);
    }

    /// Removes a run from the queue and frees its reserved slot, because the run no longer needs a slot.
    pub fn withdraw(&mut self, uid: &str, now: Instant) {
        self.forget(uid);
        self.reserve(now);
    }

    /// Withdraws all queued runs and all runs with a reserved slot that do not satisfy `is_needed`. The open runs keep
    /// their slots. Returns the UIDs of the withdrawn runs.
    pub fn retain(&mut self, is_needed: impl Fn(&str) -> bool, now: Instant) -> Vec<String> {
        let waiting = self.queue.runs().chain(self.reserved.values().map(|reserved| &reserved.run));
        let withdrawn: Vec<String> = waiting.filter(|run| !is_needed(&run.uid)).map(|run| run.uid.clone()).collect();
        withdrawn.iter().for_each(|uid| self.forget(uid));
        self.reserve(now);
        withdrawn
    }

    /// Returns the `key` of the next run that may start. The function returns each `key` only once.
    pub fn next_requeue(&mut self, now: Instant) -> Option<W> {
        self.reserve(now);
        let not_requeued = self.reserved.values_mut().filter(|reserved| reserved.key.is_some());
        not_requeued.min_by_key(|reserved| reserved.number)?.key.take()
    }

    /// Returns the time at which the next reservation expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.reserved.values().map(|reserved| reserved.until).min()
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of open and queued runs of each namespace and concurrency group, and the start of the longest
    /// wait for a slot.
    pub fn uses(&self) -> SlotReport {
        let mut uses = SlotReport { oldest: self.queue.oldest(&self.taken_slots()), ..SlotReport::default() };
        for open in self.open.values() {
            uses.namespaces.entry(open.run.namespace.clone()).or_default().open += 1;
            if let Some(group) = &open.run.group {
                uses.groups.entry(label(&group.key).to_owned()).or_default().open += 1;
            }
        }
        for (namespace, queued) in self.queue.by_namespace() {
            uses.namespaces.entry(namespace.to_owned()).or_default().queued += queued;
        }
        for (group, queued) in self.queue.by_group() {
            uses.groups.entry(label(group).to_owned()).or_default().queued += queued;
        }
        uses
    }

    fn forget(&mut self, uid: &str) {
        self.reserved.remove(uid);
        self.queue.remove(uid);
    }

    /// Removes expired reservations, and reserves each free slot for the next queued run.
    fn reserve(&mut self, now: Instant) {
        self.reserved.retain(|_, reserved| reserved.until > now);
        while let Some(uid) = self.next_uid() {
            let Some((run, key)) = self.queue.take(&uid) else { return };
            self.reservations += 1;
            let (number, until) = (self.reservations, now + RESERVATION);
            self.reserved.insert(run.uid.clone(), Reserved { run, number, key: Some(key), until });
        }
    }

    /// Returns the UID of the next run to start, or `None` if no slot is free or no queued run may start.
    fn next_uid(&self) -> Option<String> {
        if self.queue.len() == 0 {
            return None;
        }
        let taken = self.taken_slots();
        if taken.all >= self.limits.all {
            return None;
        }
        self.queue.next(&taken, &self.limits).map(str::to_owned)
    }

    fn taken_slots(&self) -> Taken<'_> {
        Taken::of(self.open_runs(), &self.limits)
    }

    /// Returns the open runs and the runs with a reserved slot.
    fn open_runs(&self) -> impl Iterator<Item = &Run> {
        self.open.values().map(|open| &open.run).chain(self.reserved.values().map(|reserved| &reserved.run))
    }

    /// Returns the reason why a queued run waits, or `None` if the run is not queued.
    pub fn wait_of(&self, uid: &str) -> Option<Full> {
        self.queue.get(uid).map(|run| self.full_reason(run))
    }

    /// Returns the reason why a run that is not queued yet would wait, or `None` if the run could start now. No queued
    /// run can start now, because the queue reserves each free slot. A new run can therefore start if the limits permit
    /// this run.
    pub fn wait_of_new(&self, run: &Run) -> Option<Full> {
        let taken = self.taken_slots();
        let is_free = taken.all < self.limits.all
            && taken.has_free_slot(&run.namespace, &run.node, run.share, &self.limits)
            && self.full_group(run, &taken).is_none();
        (!is_free).then(|| self.full_reason(run))
    }

    fn ahead_of(&self, run: &Run) -> usize {
        self.queue.ahead_of(run)
    }

    /// Returns a copy of the queue for a simulation. In the copy, all reserved slots are in use, and each run is its
    /// own key. The copy also contains `target`, even if this run is not queued yet.
    fn simulated_with(&self, target: &Run) -> FairQueue<Run> {
        let open = self.open_runs().map(|run| (run.uid.clone(), Open { run: run.clone(), permits: 1 })).collect();
        let mut queue = self.queue.simulated();
        queue.insert(target.clone(), target.clone());
        FairQueue { open, queue, ..FairQueue::new(self.limits) }
    }

    /// Returns the reason why a queued run waits. If several limits are reached, the reason is the limit with the
    /// smallest scope, because a free slot in a larger scope would not start the run.
    fn full_reason(&self, run: &Run) -> Full {
        let Limits { all, each_node, .. } = self.limits;
        let taken = self.taken_slots();
        let (namespace, node, share) = (&run.namespace, &run.node, run.share);
        let of_namespace = self.limits.of_namespace(share);
        match self.full_group(run, &taken) {
            Some(full) => full,
            None if taken.in_namespace(namespace) >= of_namespace => {
                Full::Namespace { name: namespace.clone(), limit: of_namespace, is_annotated: share.limit.is_some() }
            }
            None if taken.on_node(node) >= each_node => Full::Node { name: node.clone(), limit: each_node },
            None if taken.all >= all => Full::All { limit: all },
            None if taken.is_reserved_on_node(namespace, node, share, &self.limits) => {
                Full::ReservedOnNode { name: node.clone() }
            }
            None if taken.is_reserved(namespace, share, &self.limits) => Full::Reserved,
            // The run waits because the next slot goes to another run of its group.
            None => Full::All { limit: all },
        }
    }

    /// Returns the concurrency group of a run if the group has no free slot. The limit in the run also applies if the
    /// run is not queued yet.
    fn full_group(&self, run: &Run, taken: &Taken<'_>) -> Option<Full> {
        let Group { key, limit } = run.group.as_ref()?;
        let queued = self.queue.group_limit(key).map_or(*limit, |queued| queued.min(*limit));
        let limit = taken.full_group(key, Some(queued))?;
        Some(Full::Group { name: key.name.clone(), limit, is_shared: key.namespace.is_none() })
    }
}

/// Returns the metric label for a group. Groups that belong to a single namespace share one label. Tenants choose the
/// names of these groups, so separate labels would make the cardinality of the metrics unbounded.
fn label(group: &GroupKey) -> &str {
    if group.namespace.is_none() { &group.name } else { LOCAL_GROUPS }
}

#[cfg(test)]
mod tests;
