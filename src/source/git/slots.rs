//! How many tasks for repositories run at once. All that follow repositories share these slots.
//!
//! A namespace waits for one of its own slots first, and then for one of the common ones. The last free common slot is reserved for a
//! namespace that holds none, if there are enough slots for that. A common slot that becomes free goes to the namespace that holds the fewest, among those to the one whose last slot was granted first, and then to the one that waits longest. A
//! namespace that holds none does not wait for slow servers of others: [`Slot::run`] ends a slow task for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_ok;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::runtime::fair_slots::{self, Busy, FairSlots};
use crate::source::git::error::GitError;

/// How many slots there are for one kind of task.
#[derive(Clone, Copy, Debug)]
struct Limits {
    total: usize,
    per_namespace: usize,
    slow_limits: SlowLimits,
}

/// How far a task may be behind [`RATE`] while a namespace that holds no slot waits.
#[derive(Clone, Copy, Debug)]
struct SlowLimits {
    /// A task of a namespace that holds several slots.
    several: Duration,
    /// The only task of its namespace.
    only: Duration,
}

/// Questions to servers at once. Each is a child process with a connection.
const QUESTIONS: Limits = Limits {
    total: 8,
    per_namespace: 4,
    slow_limits: SlowLimits { several: Duration::from_secs(1), only: Duration::from_secs(10) },
};
/// Commits that are fetched or packed at once. Each has a directory on the volume. The first bytes of a pack come after a handshake and
/// after the server has put it together.
const FETCHES: Limits = Limits {
    total: 3,
    per_namespace: 2,
    slow_limits: SlowLimits { several: Duration::from_secs(3), only: Duration::from_secs(10) },
};
/// Of these, commits that are packed at once. Each is a child process with much memory. It receives nothing, so it counts as slow from the
/// beginning.
const PACKINGS: Limits = Limits { total: 2, per_namespace: 1, slow_limits: FETCHES.slow_limits };
/// With fewer slots than this, none is reserved: two namespaces with one slot each use all of them.
const MIN_TO_RESERVE: usize = 3;
/// Repositories of one namespace that may wait for a slot at once.
const WAITING_PER_NAMESPACE: usize = 10_000;

/// Bytes per second that a task has to receive so that it is not slow.
const RATE: u64 = 128 << 10;
/// Maximum number of times that the slow_limits for the same work is doubled.
const MAX_DOUBLINGS: u32 = 3;
/// How often a task looks whether it is slow and has to end.
const CHECK: Duration = Duration::from_millis(250);

/// The slots of all kinds. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub struct Slots {
    pub(super) questions: TaskSlots,
    pub(super) fetches: TaskSlots,
    pub(super) packings: TaskSlots,
}

impl Default for Slots {
    fn default() -> Self {
        let [questions, fetches, packings] = [QUESTIONS, FETCHES, PACKINGS].map(TaskSlots::new);
        Self { questions, fetches, packings }
    }
}

impl Slots {
    /// The most bytes of the volume that fetches take at once, when each takes so many.
    pub(super) fn volume_bytes(each: u64) -> u64 {
        each.saturating_mul(u64::try_from(FETCHES.total).unwrap_or(u64::MAX))
    }

    /// The most bytes of memory that the child processes take at once.
    pub(super) fn memory_bytes(question: u64, fetch: u64, packing: u64) -> u64 {
        let all = [(QUESTIONS.total, question), (FETCHES.total - PACKINGS.total, fetch), (PACKINGS.total, packing)];
        all.iter().map(|(count, each)| u64::try_from(*count).unwrap_or(u64::MAX).saturating_mul(*each)).sum()
    }
}

/// The slots for one kind of task. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub(super) struct TaskSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// The own slots of each namespace.
    shares: FairSlots,
    /// The common slots. Locked for short sections only, never across an await.
    common: Mutex<Common>,
}

/// Who holds a common slot and who waits for one, by order of arrival.
#[derive(Debug, Default)]
struct Common {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    held: BTreeMap<u64, Held>,
    grants: u64,
    /// The number of the last grant to each namespace that holds a slot or waits for one.
    last_grants: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Waiting {
    namespace: String,
    granted: Arc<Notify>,
}

#[derive(Debug)]
struct Held {
    namespace: String,
    began: Instant,
    /// What it has received is enough until then, at [`RATE`] from its beginning. None while it must not be ended.
    paid_until: Option<Instant>,
    /// What its slow_limits is multiplied by.
    factor: u32,
}

/// A slot in use, until it is dropped.
#[derive(Debug)]
#[must_use = "the slot is free again when this is dropped"]
pub(super) struct Slot {
    slots: Arc<Shared>,
    id: u64,
    _share: fair_slots::Slot,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut common = self.slots.lock();
        common.waiting.remove(&self.id);
        common.held.remove(&self.id);
        common.grant(self.slots.limits.total);
        common.forget_idle();
    }
}

/// A slot of one of the namespaces that want a repository: the first that is to be had. So a namespace that has used up its share delays
/// no other one that follows the same repository.
pub(super) async fn of_any(slots: &TaskSlots, namespaces: &[String]) -> Result<Slot, GitError> {
    let waits = namespaces.iter().map(|namespace| slots.acquire(namespace).boxed());
    let acquired = match namespaces {
        [] => Err(Busy { waiting: 0 }),
        _ => select_ok(waits).await.map(|(slot, _)| slot),
    };
    acquired.map_err(|busy| GitError::NoSlot { waiting: busy.waiting })
}

impl TaskSlots {
    fn new(limits: Limits) -> Self {
        let shares = fair_slots::Limits {
            total: Semaphore::MAX_PERMITS,
            per_key: limits.per_namespace,
            waiting_per_key: WAITING_PER_NAMESPACE,
        };
        Self(Arc::new(Shared { limits, shares: FairSlots::new(shares), common: Mutex::default() }))
    }

    /// Waits for a slot. A caller that stops waiting (its future is dropped) leaves nothing behind.
    async fn acquire(&self, namespace: &str) -> Result<Slot, Busy> {
        let share = self.0.shares.acquire(namespace).await?;
        let (id, granted) = self.0.lock().enter(namespace, self.0.limits.total);
        let slot = Slot { slots: Arc::clone(&self.0), id, _share: share };
        granted.notified().await;
        Ok(slot)
    }
}

impl Slot {
    /// Does the work, and drops it with its child process when the work is slow and a namespace that holds no slot waits. `received`
    /// returns the number of bytes received so far, where it is known. `ended` is how many times in a row this work was ended: each time
    /// doubles its slow_limits, so that a slow server that works is not ended for ever.
    pub(super) async fn run<T>(
        &self,
        what: &'static str,
        ended: u32,
        received: impl Fn() -> Option<u64>,
        work: impl Future<Output = Result<T, GitError>>,
    ) -> Result<T, GitError> {
        let mut work = Box::pin(work);
        let began = Instant::now();
        let (mut counted, mut paid_until) = (0_u64, began);
        if let Some(held) = self.slots.lock().held.get_mut(&self.id) {
            (held.paid_until, held.factor) = (Some(began), 1 << ended.min(MAX_DOUBLINGS));
        }
        loop {
            tokio::select! {
                done = &mut work => {
                    self.set_paid_until(None);
                    return done;
                }
                () = tokio::time::sleep(CHECK) => {}
            }
            let (bytes, now) = (received(), Instant::now());
            let more = bytes.unwrap_or_default().saturating_sub(counted);
            counted = counted.saturating_add(more);
            paid_until = paid_until.checked_add(time_at_rate(more)).map_or(now, |until| until.min(now));
            self.set_paid_until(Some(paid_until));
            let slow_limits = self.slots.limits.slow_limits;
            if self.slots.lock().to_end(slow_limits, now) == Some(self.id) {
                return Err(GitError::Ended { what: what.into(), after: now.duration_since(began), bytes });
            }
        }
    }

    fn set_paid_until(&self, until: Option<Instant>) {
        if let Some(held) = self.slots.lock().held.get_mut(&self.id) {
            held.paid_until = until;
        }
    }
}

/// How long a server may take to send so many bytes.
fn time_at_rate(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / RATE)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Common> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common {
    /// Notes who waits. The answer is notified once the slot is there, which may be at once.
    fn enter(&mut self, namespace: &str, total: usize) -> (u64, Arc<Notify>) {
        let (id, granted) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.waiting.insert(id, Waiting { namespace: namespace.to_owned(), granted: Arc::clone(&granted) });
        self.grant(total);
        (id, granted)
    }

    /// Hands out what is free.
    fn grant(&mut self, total: usize) {
        while self.held.len() < total {
            let order = |(id, waiting): &(&u64, &Waiting)| {
                (self.holds(&waiting.namespace), self.last_grants.get(&waiting.namespace).copied(), **id)
            };
            let is_last = total >= MIN_TO_RESERVE && self.held.len() + 1 == total;
            let may_have = |(_, waiting): &(&u64, &Waiting)| !is_last || self.holds(&waiting.namespace) == 0;
            let Some(id) = self.waiting.iter().filter(may_have).min_by_key(order).map(|(id, _)| *id) else { return };
            let Some(Waiting { namespace, granted }) = self.waiting.remove(&id) else { return };
            self.last_grants.insert(namespace.clone(), self.grants);
            self.grants += 1;
            self.held.insert(id, Held { namespace, began: Instant::now(), paid_until: None, factor: 1 });
            granted.notify_one();
        }
    }

    /// Forgets the namespaces that neither hold a slot nor wait for one.
    fn forget_idle(&mut self) {
        let Common { waiting, held, last_grants, .. } = self;
        last_grants.retain(|namespace, _| {
            held.values().any(|held| held.namespace == *namespace)
                || waiting.values().any(|waiting| waiting.namespace == *namespace)
        });
    }

    fn holds(&self, namespace: &str) -> usize {
        self.held.values().filter(|held| held.namespace == namespace).count()
    }

    /// The slow task that ends because a namespace that holds no slot waits: of the namespace that holds the most, the one that runs
    /// longest.
    fn to_end(&self, slow_limits: SlowLimits, now: Instant) -> Option<u64> {
        if !self.waiting.values().any(|waiting| self.holds(&waiting.namespace) == 0) {
            return None;
        }
        let slow = self.held.iter().filter_map(|(id, held)| {
            let holds = self.holds(&held.namespace);
            let limit = if holds > 1 { slow_limits.several } else { slow_limits.only } * held.factor;
            let is_slow = now.saturating_duration_since(held.paid_until?) >= limit;
            is_slow.then_some((holds, Reverse(held.began), *id))
        });
        slow.max().map(|(_, _, id)| id)
    }
}

#[cfg(test)]
mod tests;
