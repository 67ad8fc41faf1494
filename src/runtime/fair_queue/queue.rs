//! Queued runs in the order in which they start.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use crate::runtime::fair_queue::run::{GroupKey, Limits, Position, Run, Share};
use crate::runtime::fair_queue::taken::{Taken, WeightedUse};

/// Minimum number of namespaces without queued runs for which the queue keeps the last slot assignment. Before the
/// queue removes old entries, their number can grow to about twice this number.
const MIN_RECORDED: usize = 1024;

/// Key of a lane, which contains the queued runs of one namespace and one concurrency group. If the lane's first run on
/// a node cannot start, none of its other runs on this node can start.
type Lane = (String, Option<GroupKey>);

/// Queued runs of one lane on one node.
type Runs<W> = BTreeMap<Position, (Run, W)>;

/// Namespace with queued runs.
struct Namespace {
    runs: usize,
    share: Share,
    /// Logical time at which the namespace's first queued run joined the queue.
    joined: u64,
    /// Logical time at which the namespace last received a slot, for each shared group. The map contains only groups
    /// that several namespaces share.
    groups: HashMap<GroupKey, u64>,
}

/// Place of a queued run.
struct Found {
    node: String,
    lane: Lane,
    position: Position,
    /// Limit of the run's concurrency group.
    limit: Option<usize>,
}

/// First run of the namespace that may start.
struct Candidate<'q> {
    namespace: &'q str,
    /// Group that several namespaces share.
    shared: Option<&'q GroupKey>,
    position: &'q Position,
}

/// All queued runs. The runs are grouped by node, so `next` can skip all runs of a node without a free slot.
pub(super) struct Queue<W> {
    runs: BTreeMap<String, BTreeMap<Lane, Runs<W>>>,
    /// Place of each queued run, by Update UID.
    found: HashMap<String, Found>,
    namespaces: HashMap<String, Namespace>,
    /// Logical time at which each namespace last received a slot, or joined the queue if the namespace has received no
    /// slot yet. The map keeps namespaces without queued runs. Otherwise, a namespace would lose its turn when a run
    /// for a newer revision replaces the namespace's only run.
    served: HashMap<String, u64>,
    /// Limits that the queued runs of each group specify, and the number of runs with each limit.
    group_limits: HashMap<GroupKey, BTreeMap<usize, usize>>,
    clock: u64,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Queue {
            runs: BTreeMap::new(),
            found: HashMap::new(),
            namespaces: HashMap::new(),
            served: HashMap::new(),
            group_limits: HashMap::new(),
            clock: 0,
        }
    }
}

impl<W> Queue<W> {
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    /// Returns the start time of the longest current wait for a slot. The function ignores background runs, which are
    /// not urgent, and runs in full groups, which do not wait for a slot. `taken` contains the slots that are in use or
    /// reserved.
    pub(super) fn oldest(&self, taken: &Taken<'_>) -> Option<Timestamp> {
        let lanes = self.runs.values().flatten();
        let waiting = lanes.filter(|((_, group), _)| {
            group.as_ref().is_none_or(|group| taken.full_group(group, self.group_limit(group)).is_none())
        });
        let runs = waiting.flat_map(|(_, runs)| runs.values()).map(|(run, _)| run);
        runs.filter(|run| !run.is_background).map(Run::waits_since).min()
    }

    /// Returns the number of queued runs for each namespace that has queued runs.
    pub(super) fn by_namespace(&self) -> impl Iterator<Item = (&str, usize)> {
        self.namespaces.iter().map(|(name, namespace)| (name.as_str(), namespace.runs))
    }

    /// Returns the number of queued runs for each group that has queued runs.
    pub(super) fn by_group(&self) -> impl Iterator<Item = (&GroupKey, usize)> {
        self.group_limits.iter().map(|(group, limits)| (group, limits.values().sum()))
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &Run> {
        let queued = self.runs.values().flat_map(BTreeMap::values).flat_map(BTreeMap::values);
        queued.map(|(run, _)| run)
    }

    pub(super) fn get(&self, uid: &str) -> Option<&Run> {
        let Found { node, lane, position, .. } = self.found.get(uid)?;
        self.runs.get(node)?.get(lane)?.get(position).map(|(run, _)| run)
    }

    /// Returns the number of queued runs in the same namespace that rank higher than the given run.
    pub(super) fn ahead_of(&self, run: &Run) -> usize {
        let own = Position::of(run);
        let others = self.found.values().filter(|other| other.lane.0 == run.namespace);
        others.filter(|other| other.position < own).count()
    }

    /// Returns the share of a namespace with queued runs.
    pub(super) fn share(&self, namespace: &str) -> Share {
        self.namespaces.get(namespace).map(|namespace| namespace.share).unwrap_or_default()
    }

    /// Returns the lowest limit that a group's queued runs specify.
    pub(super) fn group_limit(&self, group: &GroupKey) -> Option<usize> {
        self.group_limits.get(group)?.first_key_value().map(|(limit, _)| *limit)
    }

    /// Adds a run, or replaces the entry of a run that is already queued. The share in this run becomes the namespace's
    /// share.
    pub(super) fn insert(&mut self, run: Run, key: W) {
        let clock = self.tick();
        let new = || Namespace { runs: 0, share: run.share, joined: clock, groups: HashMap::new() };
        let namespace = self.namespaces.entry(run.namespace.clone()).or_insert_with(new);
        namespace.share = run.share;
        // The queue counts the new entry before it removes the old entry. Otherwise, a namespace with only this run
        // would lose its position.
        namespace.runs += 1;
        self.served.entry(run.namespace.clone()).or_insert(clock);
        self.remove(&run.uid);
        let position = Position::of(&run);
        let lane = (run.namespace.clone(), run.group.as_ref().map(|group| group.key.clone()));
        let limit = run.group.as_ref().map(|group| group.limit);
        if let Some(group) = &run.group {
            *self.group_limits.entry(group.key.clone()).or_default().entry(group.limit).or_default() += 1;
        }
        let found = Found { node: run.node.clone(), lane: lane.clone(), position: position.clone(), limit };
        self.found.insert(run.uid.clone(), found);
        let lanes = self.runs.entry(run.node.clone()).or_default();
        lanes.entry(lane).or_default().insert(position, (run, key));
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<(Run, W)> {
        let Found { node, lane, position, limit } = self.found.remove(uid)?;
        if let (Some(group), Some(limit)) = (&lane.1, limit) {
            self.remove_limit(group, limit);
        }
        if let Some(queued) = self.namespaces.get_mut(&lane.0) {
            queued.runs = queued.runs.saturating_sub(1);
            if queued.runs == 0 {
                self.namespaces.remove(&lane.0);
                self.forget_idle_namespaces();
            }
        }
        let lanes = self.runs.get_mut(&node)?;
        let runs = lanes.get_mut(&lane)?;
        let removed = runs.remove(&position);
        if runs.is_empty() {
            lanes.remove(&lane);
        }
        if lanes.is_empty() {
            self.runs.remove(&node);
        }
        removed
    }

    fn remove_limit(&mut self, group: &GroupKey, limit: usize) {
        let Some(limits) = self.group_limits.get_mut(group) else { return };
        if let Some(runs) = limits.get_mut(&limit) {
            *runs = runs.saturating_sub(1);
            if *runs == 0 {
                limits.remove(&limit);
            }
        }
        if limits.is_empty() {
            self.group_limits.remove(group);
        }
    }

    /// Limits the number of recorded namespaces without queued runs by removing their oldest records.
    fn forget_idle_namespaces(&mut self) {
        if self.served.len() <= self.namespaces.len() + 2 * MIN_RECORDED {
            return;
        }
        let is_idle = |name: &String| !self.namespaces.contains_key(name);
        let mut idle: Vec<u64> = self.served.iter().filter(|(name, _)| is_idle(name)).map(|(_, at)| *at).collect();
        idle.sort_unstable();
        let oldest = idle.iter().rev().nth(MIN_RECORDED).copied().unwrap_or_default();
        let namespaces = &self.namespaces;
        self.served.retain(|name, at| namespaces.contains_key(name) || *at > oldest);
    }

    /// Returns the UID of the next run to start, or `None` if no queued run may start. `taken` contains the slots that
    /// are in use or reserved.
    pub(super) fn next(&self, taken: &Taken<'_>, limits: &Limits) -> Option<&str> {
        let candidates = self.candidates(taken, limits);
        let turns = self.turns(&candidates, taken);
        let precedence = |candidate: &Candidate<'_>| {
            let namespace = candidate.namespace;
            let uses = WeightedUse { open: taken.in_namespace(namespace), weight: self.share(namespace).weight };
            (uses, self.served.get(namespace).copied().unwrap_or_default())
        };
        // Computes the precedence only once for each candidate, because forecasts call this function often.
        let by_precedence = candidates.values().map(|candidate| (precedence(candidate), candidate));
        let (_, first) = by_precedence
            .min_by(|(first, a), (second, b)| first.cmp(second).then_with(|| a.position.cmp(b.position)))?;
        let turn = first.shared.and_then(|group| turns.get(group)).and_then(|namespace| candidates.get(namespace));
        Some(turn.unwrap_or(first).position.uid())
    }

    /// Returns, for each namespace, the first run that may start.
    fn candidates(&self, taken: &Taken<'_>, limits: &Limits) -> BTreeMap<&str, Candidate<'_>> {
        let nodes = self.runs.iter().filter(|(node, _)| taken.on_node(node) < limits.each_node);
        let lanes = nodes.flat_map(|(node, lanes)| lanes.iter().map(move |(lane, runs)| (node, lane, runs)));
        let free = lanes.filter(|(node, (namespace, group), _)| {
            taken.has_free_slot(namespace, node, self.share(namespace), limits)
                && group.as_ref().is_none_or(|group| taken.full_group(group, self.group_limit(group)).is_none())
        });
        let mut candidates: BTreeMap<&str, Candidate<'_>> = BTreeMap::new();
        for (_, (namespace, group), runs) in free {
            let Some((position, _)) = runs.first_key_value() else { continue };
            let shared = group.as_ref().filter(|group| group.namespace.is_none());
            let candidate = Candidate { namespace, shared, position };
            match candidates.get(namespace.as_str()) {
                Some(first) if first.position <= candidate.position => {}
                _ => drop(candidates.insert(namespace, candidate)),
            }
        }
        candidates
    }

    /// Returns, for each shared group, the namespace whose run receives the group's next slot. Without turns, a
    /// namespace with many open runs outside the group would never get a slot of the group. Only a namespace whose
    /// first run belongs to the group takes a turn, so its other runs do not delay the group.
    fn turns<'q>(
        &self,
        candidates: &BTreeMap<&'q str, Candidate<'q>>,
        taken: &Taken<'_>,
    ) -> HashMap<&'q GroupKey, &'q str> {
        let precedence = |group: &GroupKey, namespace: &str| {
            let queued = self.namespaces.get(namespace);
            let served = queued.map(|queued| queued.groups.get(group).copied().unwrap_or(queued.joined));
            let weight = queued.map(|queued| queued.share).unwrap_or_default().weight;
            (WeightedUse { open: taken.of_group_in(group, namespace), weight }, served)
        };
        let mut turns: HashMap<&'q GroupKey, &'q str> = HashMap::new();
        for candidate in candidates.values() {
            let Some(group) = candidate.shared else { continue };
            let first = turns.get(group).copied();
            let own = precedence(group, candidate.namespace);
            if first.is_none_or(|first| own < precedence(group, first)) {
                turns.insert(group, candidate.namespace);
            }
        }
        turns
    }

    /// Removes a run from the queue, and records that its namespace received a slot. The returned run has the current
    /// share of the namespace.
    pub(super) fn take(&mut self, uid: &str) -> Option<(Run, W)> {
        let clock = self.tick();
        let share = self.share(&self.found.get(uid)?.lane.0);
        let (run, key) = self.remove(uid)?;
        self.served.insert(run.namespace.clone(), clock);
        let shared = run.group.as_ref().filter(|group| group.key.namespace.is_none());
        if let (Some(namespace), Some(group)) = (self.namespaces.get_mut(&run.namespace), shared) {
            namespace.groups.insert(group.key.clone(), clock);
        }
        Some((Run { share, ..run }, key))
    }

    /// Returns a copy of the queue in which each run is its own requeue key.
    pub(super) fn simulated(&self) -> Queue<Run> {
        let mut copy = Queue::default();
        for run in self.runs() {
            let run = Run { share: self.share(&run.namespace), ..run.clone() };
            copy.insert(run.clone(), run);
        }
        for (name, namespace) in &mut copy.namespaces {
            if let Some(queued) = self.namespaces.get(name) {
                (namespace.joined, namespace.groups) = (queued.joined, queued.groups.clone());
            }
        }
        for (name, at) in &mut copy.served {
            *at = self.served.get(name).copied().unwrap_or(*at);
        }
        copy.clock = self.clock;
        copy
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

#[cfg(test)]
impl<W> Queue<W> {
    pub(super) fn recorded(&self) -> usize {
        self.served.len()
    }

    /// Returns whether all indexes agree about the queued runs.
    pub(super) fn is_consistent(&self) -> bool {
        let counted: usize = self.namespaces.values().map(|namespace| namespace.runs).sum();
        let in_groups: usize = self.by_group().map(|(_, runs)| runs).sum();
        let is_found = |run: &Run| self.found.get(&run.uid).is_some_and(|found| found.position == Position::of(run));
        counted == self.found.len()
            && self.runs().count() == self.found.len()
            && in_groups == self.runs().filter(|run| run.group.is_some()).count()
            && self.namespaces.keys().all(|name| self.served.contains_key(name))
            && self.runs().all(is_found)
    }
}
