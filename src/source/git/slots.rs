//! Limits the number of concurrent tasks with slots. All repositories share these slots, and a task requires a slot of a
//! namespace whose Stacks or Workspaces use the repository.
//!
//! A task waits first until its namespace is below the limit per namespace, and then for a common slot. If there are at least
//! [`MIN_TO_RESERVE`] common slots, the last free slot is reserved for a namespace that holds no slot. A free slot is granted to
//! the waiting namespace that holds the fewest slots. If several namespaces hold the same number of slots, the slot is granted to
//! the namespace whose last grant is the oldest, and then to the task that has waited longest. If a namespace that holds no slot
//! waits, [`Slot::run`] ends a slow task, so that slow servers of other namespaces do not block this namespace.

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

/// The limits for one kind of task.
#[derive(Clone, Copy, Debug)]
struct Limits {
    total: usize,
    per_namespace: usize,
    slow_limits: SlowLimits,
}

/// The maximum time that a task may be behind [`RATE`] while a namespace that holds no slot waits.
#[derive(Clone, Copy, Debug)]
struct SlowLimits {
    /// Limit for a task of a namespace that holds several slots.
    several: Duration,
    /// Limit for the only running task of a namespace.
    only: Duration,
}

/// Limits for queries to servers. Each query runs a child process that opens a connection.
const QUERIES: Limits = Limits {
    total: 8,
    per_namespace: 4,
    slow_limits: SlowLimits { several: Duration::from_secs(1), only: Duration::from_secs(10) },
};
/// Limits for commits that are fetched or packed. Each commit has a directory on the volume. The first bytes of a pack arrive
/// after a handshake and after the server has assembled the pack.
const FETCHES: Limits = Limits {
    total: 3,
    per_namespace: 2,
    slow_limits: SlowLimits { several: Duration::from_secs(3), only: Duration::from_secs(10) },
};
/// Additional limits for packing. A packing task also holds one of the [`FETCHES`] slots. Each packing runs a child process with
/// a high memory limit. A packing receives no data, so it counts as slow from the start.
const PACKINGS: Limits = Limits { total: 2, per_namespace: 1, slow_limits: FETCHES.slow_limits };
/// Minimum total number of slots at which the last free slot is reserved. If there are fewer slots, two namespaces with one slot
/// each can use all slots.
const MIN_TO_RESERVE: usize = 3;
/// Maximum number of tasks of one namespace that may wait for a slot at the same time.
const WAITING_PER_NAMESPACE: usize = 10_000;

/// Data rate below which a task counts as slow, in bytes per second.
const RATE: u64 = 128 << 10;
/// Maximum number of times that the slow limits of a task are doubled.
const MAX_DOUBLINGS: u32 = 3;
/// Interval at which a task checks whether it must end because it is slow.
const CHECK: Duration = Duration::from_millis(250);

/// The slots for all kinds of tasks. Clones are cheap and share the slots.
#[derive(Clone, Debug)]
pub struct Slots {
    pub(super) queries: TaskSlots,
    pub(super) fetches: TaskSlots,
    pub(super) packings: TaskSlots,
}

impl Default for Slots {
    fn default() -> Self {
        let [queries, fetches, packings] = [QUERIES, FETCHES, PACKINGS].map(TaskSlots::new);
        Self { queries, fetches, packings }
    }
}

impl Slots {
    /// Returns the maximum number of bytes that concurrent fetches use on the volume, if each fetch uses `each` bytes.
    pub(super) fn volume_bytes(each: u64) -> u64 {
        each.saturating_mul(u64::try_from(FETCHES.total).unwrap_or(u64::MAX))
    }

    /// Returns the maximum memory of all concurrent child processes, in bytes.
    pub(super) fn memory_bytes(query: u64, fetch: u64, packing: u64) -> u64 {
        let all = [(QUERIES.total, query), (FETCHES.total - PACKINGS.total, fetch), (PACKINGS.total, packing)];
        all.iter().map(|(count, each)| u64::try_from(*count).unwrap_or(u64::MAX).saturating_mul(*each)).sum()
    }
}

/// The slots for one kind of task. Clones are cheap and share the slots.
#[derive(Clone, Debug)]
pub(super) struct TaskSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// Enforces the limit of each namespace.
    shares: FairSlots,
    /// The common slots. Locked only for short critical sections, and never across an await point.
    common: Mutex<Common>,
}

/// The holders of common slots, and the waiters in the order of their arrival.
#[derive(Debug, Default)]
struct Common {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    held: BTreeMap<u64, Held>,
    grants: u64,
    /// The number of the last grant to each namespace that holds a slot or waits for a slot.
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
    /// The time up to which the bytes received so far are sufficient for [`RATE`]. `None` while the task must not be ended.
    paid_until: Option<Instant>,
    /// Multiplier for the slow limits.
    factor: u32,
}

/// A slot that is held or waited for. Dropping the value releases the slot or leaves the queue.
#[derive(Debug)]
#[must_use = "dropping the value releases the slot"]
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

/// Waits for a slot in each of `namespaces`, which use the same repository, and returns the first slot that is granted. A
/// namespace without free slots therefore does not delay the other namespaces.
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

    /// Waits for a slot. Dropping the future leaves the queue.
    async fn acquire(&self, namespace: &str) -> Result<Slot, Busy> {
        let share = self.0.shares.acquire(namespace).await?;
        let (id, granted) = self.0.lock().enter(namespace, self.0.limits.total);
        let slot = Slot { slots: Arc::clone(&self.0), id, _share: share };
        granted.notified().await;
        Ok(slot)
    }
}

impl Slot {
    /// Runs the work. If the work is slow while a namespace that holds no slot waits, the future `work` is dropped, which kills
    /// its child process. `received` returns the number of bytes received so far, if known. `ended` is the number of consecutive
    /// times that the same work was ended. The slow limits are doubled for each time, so that work with a slow server completes
    /// eventually.
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

/// Returns the time in which a server must send this number of bytes.
fn time_at_rate(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / RATE)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Common> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common {
    /// Adds a waiter. The returned `Notify` is notified when the slot is granted, possibly before this function returns.
    fn enter(&mut self, namespace: &str, total: usize) -> (u64, Arc<Notify>) {
        let (id, granted) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.waiting.insert(id, Waiting { namespace: namespace.to_owned(), granted: Arc::clone(&granted) });
        self.grant(total);
        (id, granted)
    }

    /// Grants free slots to waiters.
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

    /// Removes the last grants of namespaces that neither hold a slot nor wait for a slot.
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

    /// Returns the slow task that must end because a namespace that holds no slot waits, if any. Among the slow tasks, this is
    /// the longest running task of the namespace that holds the most slots.
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
