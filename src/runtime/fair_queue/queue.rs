//! Queued runs in the order in which they start, and the number of slots in use.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

/// Run that needs a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub uid: String,
    pub namespace: String,
    /// Name of the Workspace of the run.
    pub workspace: String,
    /// Node of the workspace pod.
    pub node: String,
    /// Priority of the run in its namespace. Runs with a higher priority start first.
    pub priority: i32,
    /// Time since which the run is pending. Among runs with the same priority, the run that has been pending longest
    /// starts first.
    pub pending_since: Timestamp,
}

/// Maximum numbers of open runs: in total, in each namespace and on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    pub each_namespace: usize,
    pub each_node: usize,
}

/// Numbers of slots that are in use or reserved: in total, by namespace and by node.
#[derive(Default)]
pub(super) struct Taken<'t> {
    pub(super) all: usize,
    pub(super) by_namespace: HashMap<&'t str, usize>,
    pub(super) by_node: HashMap<&'t str, usize>,
    pub(super) by_both: HashMap<(&'t str, &'t str), usize>,
}

impl Taken<'_> {
    pub(super) fn in_namespace(&self, namespace: &str) -> usize {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }

    pub(super) fn on_node(&self, node: &str) -> usize {
        self.by_node.get(node).copied().unwrap_or_default()
    }

    pub(super) fn of_both(&self, namespace: &str, node: &str) -> usize {
        self.by_both.get(&(namespace, node)).copied().unwrap_or_default()
    }

    /// Returns whether the limits of the namespace and the node permit another run. The caller checks the total limit.
    pub(super) fn has_free_slot(&self, namespace: &str, node: &str, limits: &Limits) -> bool {
        self.on_node(node) < limits.each_node
            && self.in_namespace(namespace) < limits.each_namespace
            && !self.is_reserved(namespace, limits)
            && !self.is_reserved_on_node(namespace, node, limits)
    }

    /// Returns whether the free slots are reserved for namespaces with fewer open runs than this namespace.
    pub(super) fn is_reserved(&self, namespace: &str, limits: &Limits) -> bool {
        let own = self.in_namespace(namespace);
        shares_slots(limits) && own > 0 && limits.all.saturating_sub(self.all) <= own
    }

    /// Returns whether the free slots of the node are reserved for namespaces with fewer open runs on the node than
    /// this namespace.
    pub(super) fn is_reserved_on_node(&self, namespace: &str, node: &str, limits: &Limits) -> bool {
        let own = self.of_both(namespace, node);
        shares_slots(limits) && own > 0 && limits.each_node.saturating_sub(self.on_node(node)) <= own
    }
}

/// Returns whether some slots are reserved for other namespaces. This is not the case if the limits allow one namespace
/// to use all slots.
fn shares_slots(limits: &Limits) -> bool {
    limits.each_namespace < limits.all
}

/// Sort key of a run within its namespace. The run with the smallest key starts first. Runs with the same priority and
/// pending time are ordered by name, so that a restart of the controller does not change their order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    priority: Reverse<i32>,
    pending_since: Timestamp,
    workspace: String,
    uid: String,
}

impl Position {
    fn of(run: &Run) -> Self {
        Position {
            priority: Reverse(run.priority),
            pending_since: run.pending_since,
            workspace: run.workspace.clone(),
            uid: run.uid.clone(),
        }
    }
}

/// Queued runs of a namespace on one node.
type Runs<W> = BTreeMap<Position, (Run, W)>;

/// Namespace with queued runs.
#[derive(Default)]
struct Namespace {
    runs: usize,
    /// Logical time at which the namespace last received a slot, or at which its first run was queued if it has not
    /// received a slot yet.
    served: u64,
}

/// All queued runs by node, so that `next` can skip all runs of a node without a free slot.
pub(super) struct Queue<W> {
    runs: BTreeMap<String, BTreeMap<String, Runs<W>>>,
    /// Node, namespace and position of each run, by UID.
    found: HashMap<String, (String, String, Position)>,
    namespaces: HashMap<String, Namespace>,
    /// All runs by pending time, oldest first.
    by_age: BTreeSet<(Timestamp, String)>,
    clock: u64,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Queue {
            runs: BTreeMap::new(),
            found: HashMap::new(),
            namespaces: HashMap::new(),
            by_age: BTreeSet::new(),
            clock: 0,
        }
    }
}

impl<W> Queue<W> {
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.by_age.first().map(|(since, _)| *since)
    }

    /// Returns the namespaces with queued runs, and the number of these runs.
    pub(super) fn by_namespace(&self) -> impl Iterator<Item = (&str, usize)> {
        self.namespaces.iter().map(|(name, namespace)| (name.as_str(), namespace.runs))
    }

    /// Adds a run, or replaces the entry of the run if it is already queued.
    pub(super) fn insert(&mut self, run: Run, key: W) {
        let clock = self.tick();
        let namespace = self.namespaces.entry(run.namespace.clone());
        // The new entry is counted before the old entry is removed. Otherwise, a namespace with only this run would
        // lose its position.
        namespace.or_insert(Namespace { runs: 0, served: clock }).runs += 1;
        self.remove(&run.uid);
        let position = Position::of(&run);
        self.by_age.insert((run.pending_since, run.uid.clone()));
        self.found.insert(run.uid.clone(), (run.node.clone(), run.namespace.clone(), position.clone()));
        let namespaces = self.runs.entry(run.node.clone()).or_default();
        namespaces.entry(run.namespace.clone()).or_default().insert(position, (run, key));
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<(Run, W)> {
        let (node, namespace, position) = self.found.remove(uid)?;
        self.by_age.remove(&(position.pending_since, uid.to_owned()));
        let of_node = self.runs.get_mut(&node)?;
        let runs = of_node.get_mut(&namespace)?;
        let removed = runs.remove(&position);
        if runs.is_empty() {
            of_node.remove(&namespace);
        }
        if of_node.is_empty() {
            self.runs.remove(&node);
        }
        if let Some(queued) = self.namespaces.get_mut(&namespace) {
            queued.runs = queued.runs.saturating_sub(1);
            if queued.runs == 0 {
                self.namespaces.remove(&namespace);
            }
        }
        removed
    }

    /// Returns the UID of the run that starts next, or `None` if no queued run may start. `taken` contains the slots
    /// that are in use or reserved.
    pub(super) fn next(&self, taken: &Taken<'_>, limits: &Limits) -> Option<&str> {
        let nodes = self.runs.iter().filter(|(node, _)| taken.on_node(node) < limits.each_node);
        let queues = nodes.flat_map(|(node, namespaces)| namespaces.iter().map(move |(name, runs)| (node, name, runs)));
        let candidates = queues.filter(|(node, namespace, _)| taken.has_free_slot(namespace, node, limits));
        let candidates = candidates.filter_map(|(_, namespace, runs)| {
            let served = self.namespaces.get(namespace).map_or(0, |namespace| namespace.served);
            Some((taken.in_namespace(namespace), served, runs.first_key_value()?.0))
        });
        candidates.min().map(|(_, _, next)| next.uid.as_str())
    }

    /// Removes a run, and records that its namespace received a slot.
    pub(super) fn take(&mut self, uid: &str) -> Option<(Run, W)> {
        let clock = self.tick();
        let taken = self.remove(uid)?;
        if let Some(namespace) = self.namespaces.get_mut(&taken.0.namespace) {
            namespace.served = clock;
        }
        Some(taken)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

#[cfg(test)]
impl<W> Queue<W> {
    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        let queued = self.runs.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        queued.map(|(run, _)| run)
    }

    /// Returns whether all indexes of the queued runs are consistent.
    pub(super) fn is_consistent(&self) -> bool {
        let counted: usize = self.namespaces.values().map(|namespace| namespace.runs).sum();
        let is_found =
            |run: &Run| self.found.get(&run.uid).is_some_and(|(.., position)| *position == Position::of(run));
        let oldest = self.runs().map(|run| run.pending_since).min();
        self.oldest() == oldest
            && counted == self.found.len()
            && self.runs().count() == self.found.len()
            && self.runs().all(is_found)
    }
}
