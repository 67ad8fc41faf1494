//! Selects the queued run that starts next. The functions are pure: they use no clock and no lock. The caller requeues
//! the runs that may start.
//!
//! A free slot is assigned to the namespace with the fewest open runs. Among several such namespaces, the slot is
//! assigned to the namespace whose last slot assignment is the oldest. A namespace can start another run only if the
//! number of free slots exceeds the number of its open runs, on the node and in total. One namespace therefore uses at
//! most half of the slots (rounded up), a second namespace at most half of the remaining slots, and so on. This rule
//! does not apply if the limits allow one namespace to use all slots.
//!
//! Within a namespace, the run with the highest priority starts first. Among runs with the same priority, the run that
//! has been pending longest starts first. Neither the priority nor the number of queued runs of a namespace delays the
//! runs of another namespace.

mod queue;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::telemetry::slots::SlotUses;
use queue::{Queue, Taken};

pub use queue::{Limits, Run};

/// Time for which a slot is reserved for a run that may start. The time is limited, because the run may no longer
/// exist.
const RESERVATION: Duration = Duration::from_secs(30);

/// Reason why a run must wait for a slot. The status contains the text, so the text contains no numbers that change
/// often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    All {
        limit: usize,
    },
    Namespace {
        name: String,
        limit: usize,
    },
    Node {
        name: String,
        limit: usize,
    },
    /// The free slots are reserved for namespaces with fewer open runs than this namespace.
    Reserved,
    /// The free slots of the node are reserved for namespaces with fewer open runs on the node than this namespace.
    ReservedOnNode {
        name: String,
    },
}

impl fmt::Display for Full {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("waiting for a run slot: ")?;
        match self {
            Full::All { limit } => write!(formatter, "{limit} of {limit} in use (--max-concurrent-runs)"),
            Full::Namespace { name, limit } => {
                write!(formatter, "{limit} of {limit} in use by namespace {name} (--max-concurrent-runs-per-namespace)")
            }
            Full::Node { name, limit } => {
                write!(formatter, "{limit} of {limit} in use on node {name} (--max-concurrent-runs-per-node)")
            }
            Full::Reserved => formatter
                .write_str("the free slots are reserved for namespaces with fewer runs (--max-concurrent-runs)"),
            Full::ReservedOnNode { name } => write!(
                formatter,
                "the free slots of node {name} are reserved for namespaces with fewer runs on this node \
                 (--max-concurrent-runs-per-node)"
            ),
        }
    }
}

/// Open run.
struct Open {
    namespace: String,
    node: String,
    permits: usize,
}

/// Slot that is reserved for a run that may start.
struct Reserved<W> {
    run: Run,
    /// Sequence number, which determines the order in which the runs are requeued.
    number: u64,
    /// Value that identifies the run to requeue, or `None` if [`FairQueue::next_requeue`] has already returned
    /// this value.
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

    /// Assigns a slot to a run if one is free. Otherwise, queues the run. When the run may start,
    /// [`FairQueue::next_requeue`] returns `key`.
    pub fn request(&mut self, run: &Run, key: W, now: Instant) -> Result<(), Full> {
        let is_reserved = self.reserved.get(&run.uid).is_some_and(|reserved| reserved.run.node == run.node);
        if is_reserved || self.open.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        // The run may have moved to another node. It then needs a slot on that node.
        self.reserved.remove(&run.uid);
        self.queue.insert(run.clone(), key);
        self.reserve(now);
        if self.reserved.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        Err(self.full_reason(run))
    }

    /// Assigns a slot to a run regardless of the limits. The run has a reserved slot, or it started before this process
    /// did.
    pub fn adopt(&mut self, run: &Run, now: Instant) {
        self.forget(&run.uid);
        let new = || Open { namespace: run.namespace.clone(), node: run.node.clone(), permits: 0 };
        self.open.entry(run.uid.clone()).or_insert_with(new).permits += 1;
        // The run may have had a reserved slot on another node. This slot is now free for a queued run.
        self.reserve(now);
    }

    /// Releases one permit of an open run. The slot of the run becomes free when the last permit is released.
    pub fn close(&mut self, uid: &str, now: Instant) {
        if let Some(open) = self.open.get_mut(uid) {
            open.permits = open.permits.saturating_sub(1);
            if open.permits == 0 {
                self.open.remove(uid);
            }
        }
        self.reserve(now);
    }

    /// Removes a run that is queued or has a reserved slot, and that no longer needs a slot.
    pub fn withdraw(&mut self, uid: &str, now: Instant) {
        self.forget(uid);
        self.reserve(now);
    }

    /// Returns the `key` of the next run that may start. Each `key` is returned once.
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

    /// Returns the time since which the oldest queued run has been pending, or `None` if no run is queued.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.queue.oldest()
    }

    /// Returns the numbers of open and queued runs by namespace.
    pub fn uses(&self) -> SlotUses {
        let mut uses = SlotUses::new();
        for open in self.open.values() {
            uses.entry(open.namespace.clone()).or_default().open += 1;
        }
        for (namespace, queued) in self.queue.by_namespace() {
            uses.entry(namespace.to_owned()).or_default().queued += queued;
        }
        uses
    }

    fn forget(&mut self, uid: &str) {
        self.reserved.remove(uid);
        self.queue.remove(uid);
    }

    /// Removes expired reservations, and reserves the free slots for queued runs in the order in which the runs start.
    fn reserve(&mut self, now: Instant) {
        self.reserved.retain(|_, reserved| reserved.until > now);
        while self.taken() < self.limits.all {
            let next = self.queue.next(&self.taken_slots(), &self.limits).map(str::to_owned);
            let Some((run, key)) = next.and_then(|uid| self.queue.take(&uid)) else { return };
            self.reservations += 1;
            let (number, until) = (self.reservations, now + RESERVATION);
            self.reserved.insert(run.uid.clone(), Reserved { run, number, key: Some(key), until });
        }
    }

    fn taken(&self) -> usize {
        self.open.len() + self.reserved.len()
    }

    fn taken_slots(&self) -> Taken<'_> {
        let open = self.open.values().map(|open| (open.namespace.as_str(), open.node.as_str()));
        let reserved = self.reserved.values().map(|reserved| (&reserved.run.namespace, &reserved.run.node));
        let reserved = reserved.map(|(namespace, node)| (namespace.as_str(), node.as_str()));
        let mut taken = Taken::default();
        for (namespace, node) in open.chain(reserved) {
            *taken.by_namespace.entry(namespace).or_default() += 1;
            *taken.by_node.entry(node).or_default() += 1;
            taken.all += 1;
            *taken.by_both.entry((namespace, node)).or_default() += 1;
        }
        taken
    }

    fn full_reason(&self, run: &Run) -> Full {
        let Limits { all, each_namespace, each_node } = self.limits;
        let taken = self.taken_slots();
        let (namespace, node) = (&run.namespace, &run.node);
        match () {
            () if taken.on_node(node) >= each_node => Full::Node { name: node.clone(), limit: each_node },
            () if taken.in_namespace(namespace) >= each_namespace => {
                Full::Namespace { name: namespace.clone(), limit: each_namespace }
            }
            () if taken.all >= all => Full::All { limit: all },
            () if taken.is_reserved_on_node(namespace, node, &self.limits) => {
                Full::ReservedOnNode { name: node.clone() }
            }
            () if taken.is_reserved(namespace, &self.limits) => Full::Reserved,
            () => Full::All { limit: all },
        }
    }
}

#[cfg(test)]
mod tests;
