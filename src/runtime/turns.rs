//! Decides which queued run starts next. Pure: it has no clock and no lock, and wakes nobody itself.
//!
//! A free slot goes to the namespace with the fewest open runs and, among equals, to the one that was served longest ago.
//! Within a namespace the run with the highest priority goes first, then the one that has been pending longest. So a
//! priority never delays the runs of another namespace, and neither does a large number of queued runs.

mod queue;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use queue::Queue;

/// How long a slot is reserved for a run that was woken. A run that does not come, because it is gone, must not block it.
const RESERVATION: Duration = Duration::from_secs(30);

/// How many runs may be open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    pub each_namespace: usize,
    pub each_node: usize,
}

/// A run that wants a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub uid: String,
    pub namespace: String,
    /// The Workspace that it runs in.
    pub workspace: String,
    /// The node that its pod is on.
    pub node: String,
    /// Runs with a higher priority start first within their namespace.
    pub priority: i32,
    /// Of runs with the same priority the one that has been pending longest starts first.
    pub pending_since: Timestamp,
}

/// Why a run has to wait. The text stays the same while the run waits, because it is written into a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    All { limit: usize },
    Namespace { name: String, limit: usize },
    Node { name: String, limit: usize },
}

impl fmt::Display for Full {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, whose, flag) = match self {
            Full::All { limit } => (limit, String::new(), "--max-concurrent-runs"),
            Full::Namespace { name, limit } => {
                (limit, format!(" of namespace {name}"), "--max-concurrent-runs-per-namespace")
            }
            Full::Node { name, limit } => (limit, format!(" of node {name}"), "--max-concurrent-runs-per-node"),
        };
        match limit {
            1 => write!(formatter, "queued: the only run slot{whose} is in use ({flag})"),
            limit => write!(formatter, "queued: all {limit} run slots{whose} are in use ({flag})"),
        }
    }
}

/// A run that is open.
struct Open {
    namespace: String,
    node: String,
    permits: usize,
}

/// A slot that is reserved for a run that may start.
struct Reserved<W> {
    run: Run,
    /// Orders the wake-ups.
    number: u64,
    /// How to wake it, until that was done.
    waker: Option<W>,
    until: Instant,
}

/// The open runs, those that may start, and those that are queued.
pub struct Turns<W> {
    limits: Limits,
    open: HashMap<String, Open>,
    reserved: HashMap<String, Reserved<W>>,
    queue: Queue<W>,
    reservations: u64,
}

impl<W> Turns<W> {
    pub fn new(limits: Limits) -> Self {
        let (open, reserved) = (HashMap::new(), HashMap::new());
        Turns { limits, open, reserved, queue: Queue::default(), reservations: 0 }
    }

    /// Opens a run if a slot is free for it. Else it is queued, and `waker` comes out of [`Turns::next_wake`] when it may
    /// start.
    pub fn ask(&mut self, run: &Run, waker: W, now: Instant) -> Result<(), Full> {
        let is_reserved = self.reserved.get(&run.uid).is_some_and(|reserved| reserved.run.node == run.node);
        if is_reserved || self.open.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        // On another node it needs another slot.
        self.reserved.remove(&run.uid);
        self.queue.insert(run.clone(), waker);
        self.reserve(now);
        if self.reserved.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        Err(self.why_full(run))
    }

    /// Opens a run whatever the limits say: one that has its slot, or that was open before this process.
    pub fn adopt(&mut self, run: &Run, now: Instant) {
        self.forget(&run.uid);
        let opened = || Open { namespace: run.namespace.clone(), node: run.node.clone(), permits: 0 };
        self.open.entry(run.uid.clone()).or_insert_with(opened).permits += 1;
        // Its reserved slot may have been on another node.
        self.reserve(now);
    }

    /// Returns one permit of an open run; with the last one its slot becomes free.
    pub fn close(&mut self, uid: &str, now: Instant) {
        if let Some(open) = self.open.get_mut(uid) {
            open.permits = open.permits.saturating_sub(1);
            if open.permits == 0 {
                self.open.remove(uid);
            }
        }
        self.reserve(now);
    }

    /// Removes a run that is queued or may start: it wants no slot any more.
    pub fn withdraw(&mut self, uid: &str, now: Instant) {
        self.forget(uid);
        self.reserve(now);
    }

    /// How to wake the next run that may start and does not know it yet.
    pub fn next_wake(&mut self, now: Instant) -> Option<W> {
        self.reserve(now);
        let unaware = self.reserved.values_mut().filter(|reserved| reserved.waker.is_some());
        unaware.min_by_key(|reserved| reserved.number)?.waker.take()
    }

    /// When a reserved slot goes to another run.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.reserved.values().map(|reserved| reserved.until).min()
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Since when the queued run is pending that is pending longest.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.queue.oldest()
    }

    fn forget(&mut self, uid: &str) {
        self.reserved.remove(uid);
        self.queue.remove(uid);
    }

    /// Reserves every free slot for the run that goes next.
    fn reserve(&mut self, now: Instant) {
        self.reserved.retain(|_, reserved| reserved.until > now);
        while self.taken() < self.limits.all {
            let (namespaces, nodes) = self.taken_by_namespace_and_node();
            let Some((run, waker)) = self.queue.take_next(&namespaces, &nodes, &self.limits) else { return };
            self.reservations += 1;
            let (number, until) = (self.reservations, now + RESERVATION);
            self.reserved.insert(run.uid.clone(), Reserved { run, number, waker: Some(waker), until });
        }
    }

    fn taken(&self) -> usize {
        self.open.len() + self.reserved.len()
    }

    fn taken_by_namespace_and_node(&self) -> (HashMap<String, usize>, HashMap<String, usize>) {
        let open = self.open.values().map(|open| (&open.namespace, &open.node));
        let reserved = self.reserved.values().map(|reserved| (&reserved.run.namespace, &reserved.run.node));
        let (mut namespaces, mut nodes) = (HashMap::new(), HashMap::new());
        for (namespace, node) in open.chain(reserved) {
            *namespaces.entry(namespace.clone()).or_default() += 1;
            *nodes.entry(node.clone()).or_default() += 1;
        }
        (namespaces, nodes)
    }

    fn why_full(&self, run: &Run) -> Full {
        let Limits { all, each_namespace, each_node } = self.limits;
        let (namespaces, nodes) = self.taken_by_namespace_and_node();
        let is_full =
            |taken: &HashMap<String, usize>, name: &str, limit| taken.get(name).copied().unwrap_or_default() >= limit;
        match () {
            () if is_full(&nodes, &run.node, each_node) => Full::Node { name: run.node.clone(), limit: each_node },
            () if is_full(&namespaces, &run.namespace, each_namespace) => {
                Full::Namespace { name: run.namespace.clone(), limit: each_namespace }
            }
            () => Full::All { limit: all },
        }
    }
}

#[cfg(test)]
mod tests;
