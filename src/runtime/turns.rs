//! Whose turn it is to run: so many at once in all, so many on each node, and every namespace its share. Pure: it has no
//! clock, no lock, and wakes nobody itself.
//!
//! Each one that waits gets a round when it comes: the round that is on, or the one after the last of its own namespace.
//! Those of an earlier round go first, so namespaces take turns, and one that waits is passed by a bounded number of
//! others only, however many come.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// How long a place is kept for one that was woken. One that does not come, because it is gone, must not block it.
const PLACE_KEPT: Duration = Duration::from_secs(30);

/// How many runs may be open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    pub each_node: usize,
}

/// A run that wants a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub uid: String,
    pub namespace: String,
    /// The node that its pod is on.
    pub node: String,
}

/// Why a run has to wait. In words that stay the same while it waits: they go into a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    All { limit: usize },
    Node { name: String, limit: usize },
}

impl fmt::Display for Full {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Full::All { limit: 1 } => write!(formatter, "waits for its turn: one run may be open at once"),
            Full::All { limit } => write!(formatter, "waits for its turn: {limit} runs may be open at once"),
            Full::Node { name, limit: 1 } => {
                write!(formatter, "waits for its turn: one run may be open at once on node {name}")
            }
            Full::Node { name, limit } => {
                write!(formatter, "waits for its turn: {limit} runs may be open at once on node {name}")
            }
        }
    }
}

/// The order of those who wait: by round, and within a round as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    round: u64,
    arrival: u64,
}

/// A run that is open.
struct Open {
    node: String,
    permits: usize,
}

/// A place that is kept for a run whose turn it is.
struct Kept<W> {
    run: Run,
    turn: Turn,
    /// How to wake it, until that was done.
    waker: Option<W>,
    until: Instant,
}

/// Who is open, whose turn it is, and who waits.
pub struct Turns<W> {
    limits: Limits,
    open: HashMap<String, Open>,
    kept: HashMap<String, Kept<W>>,
    waiting: BTreeMap<Turn, (Run, W)>,
    /// Where each one that waits is found.
    turns: HashMap<String, Turn>,
    /// The round that is on.
    round: u64,
    arrivals: u64,
}

impl<W> Turns<W> {
    pub fn new(limits: Limits) -> Self {
        Turns {
            limits,
            open: HashMap::new(),
            kept: HashMap::new(),
            waiting: BTreeMap::new(),
            turns: HashMap::new(),
            round: 0,
            arrivals: 0,
        }
    }

    /// Opens a run if it is its turn. Else it waits, and `waker` comes out of [`Turns::next_wake`] when its turn comes.
    pub fn ask(&mut self, run: &Run, waker: W, now: Instant) -> Result<(), Full> {
        if self.open.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        match self.kept.remove(&run.uid) {
            // The place is one on another node now: it keeps its turn, not its place.
            Some(kept) if kept.run.node != run.node => self.wait(run, waker, kept.turn),
            Some(_) => {
                self.adopt(run, now);
                return Ok(());
            }
            None => {
                let turn = self.turns.get(&run.uid).copied();
                let turn = turn.unwrap_or_else(|| self.new_turn(&run.namespace));
                self.wait(run, waker, turn);
            }
        }
        self.grant(now);
        if self.kept.contains_key(&run.uid) {
            self.adopt(run, now);
            return Ok(());
        }
        Err(self.why_full(&run.node))
    }

    /// Opens a run whatever the limits say: one that has its place, or that was open before this process.
    pub fn adopt(&mut self, run: &Run, now: Instant) {
        self.forget(&run.uid);
        let open = self.open.entry(run.uid.clone()).or_insert_with(|| Open { node: run.node.clone(), permits: 0 });
        open.permits += 1;
        // It may have been kept for on another node.
        self.grant(now);
    }

    /// One permit of an open run is given back; with the last of them, its place.
    pub fn close(&mut self, uid: &str, now: Instant) {
        if let Some(open) = self.open.get_mut(uid) {
            open.permits = open.permits.saturating_sub(1);
            if open.permits == 0 {
                self.open.remove(uid);
            }
        }
        self.grant(now);
    }

    /// One that waits, or whose turn it is, does not want a place any more.
    pub fn withdraw(&mut self, uid: &str, now: Instant) {
        self.forget(uid);
        self.grant(now);
    }

    /// How to wake one whose turn has come and who does not know it yet.
    pub fn next_wake(&mut self, now: Instant) -> Option<W> {
        self.grant(now);
        self.kept.values_mut().filter(|kept| kept.waker.is_some()).min_by_key(|kept| kept.turn)?.waker.take()
    }

    /// When a kept place is given to somebody else.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.kept.values().map(|kept| kept.until).min()
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn new_turn(&mut self, namespace: &str) -> Turn {
        let own = self.waiting.iter().rev().find(|(_, (run, _))| run.namespace == namespace);
        self.arrivals += 1;
        Turn { round: 1 + own.map_or(0, |(turn, _)| turn.round).max(self.round), arrival: self.arrivals }
    }

    fn wait(&mut self, run: &Run, waker: W, turn: Turn) {
        self.turns.insert(run.uid.clone(), turn);
        self.waiting.insert(turn, (run.clone(), waker));
    }

    fn forget(&mut self, uid: &str) {
        self.kept.remove(uid);
        if let Some(turn) = self.turns.remove(uid) {
            self.waiting.remove(&turn);
        }
    }

    /// Keeps every free place for the first who may take it.
    fn grant(&mut self, now: Instant) {
        self.kept.retain(|_, kept| kept.until > now);
        while self.taken() < self.limits.all {
            let next = self.waiting.iter().find(|(_, (run, _))| self.taken_on(&run.node) < self.limits.each_node);
            let Some(turn) = next.map(|(turn, _)| *turn) else { return };
            let Some((run, waker)) = self.waiting.remove(&turn) else { return };
            self.turns.remove(&run.uid);
            self.round = self.round.max(turn.round);
            let kept = Kept { run, turn, waker: Some(waker), until: now + PLACE_KEPT };
            self.kept.insert(kept.run.uid.clone(), kept);
        }
    }

    fn taken(&self) -> usize {
        self.open.len() + self.kept.len()
    }

    fn taken_on(&self, node: &str) -> usize {
        let open = self.open.values().filter(|open| open.node == node).count();
        open + self.kept.values().filter(|kept| kept.run.node == node).count()
    }

    fn why_full(&self, node: &str) -> Full {
        match self.taken_on(node) < self.limits.each_node {
            true => Full::All { limit: self.limits.all },
            false => Full::Node { name: node.to_owned(), limit: self.limits.each_node },
        }
    }
}

#[cfg(test)]
mod tests;
