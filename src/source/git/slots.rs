//! Limits the number of concurrent tasks for all repositories. Each task requires a slot. The slot belongs to a
//! namespace whose Stacks or Workspaces use the task's repository.
//!
//! A namespace's slot time is the total time for which its tasks have held slots. Once a slot is released, its slot
//! time decays by half in each [`HALF_LIFE`]. A namespace is light if its slot time is shorter than [`Limits::light`].
//!
//! A task waits until its namespace is below the limit per namespace, and then waits for a common slot. The waiting
//! namespace that holds the fewest slots receives the next free slot. Among namespaces with the same number of slots,
//! light namespaces come first, in the order of their arrival. The other namespaces follow in ascending order of slot
//! time.
//!
//! One common slot is reserved for light namespaces. If all slots are in use and a light namespace waits, [`Slot::run`]
//! aborts a task that meets two conditions: the task's namespace was light when the task started, and this namespace's
//! slot time now exceeds the waiting namespace's slot time by at least [`PREEMPTION`]. If several tasks meet these
//! conditions, [`Slot::run`] aborts the task that started last. Therefore, namespaces with slow servers or large
//! repositories cannot delay a light namespace for long. If a namespace that is not light waits and holds no slot,
//! [`Slot::run`] aborts a slow task.

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

/// Limits for one kind of task.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Number of common slots, including the slot that is reserved for light namespaces.
    total: usize,
    per_namespace: usize,
    /// Upper bound for the slot time of a light namespace.
    light: Duration,
    slow_limits: SlowLimits,
}

/// The maximum time by which a task may lag behind the data rate [`MIN_RATE`]. The limits apply only while another
/// namespace waits, is not light, and holds no slot.
#[derive(Clone, Copy, Debug)]
struct SlowLimits {
    /// Limit for a task whose namespace holds several slots.
    several: Duration,
    /// Limit for a task whose namespace holds only this slot.
    only: Duration,
}

/// Limits for queries to servers. Each query runs a child process that opens a connection.
const QUERIES: Limits = Limits {
    total: 8,
    per_namespace: 4,
    light: Duration::from_secs(1),
    slow_limits: SlowLimits { several: Duration::from_secs(1), only: Duration::from_secs(10) },
};
/// Limits for fetching and packing commits. Each commit requires a directory on the volume. Packing runs a child
/// process with a high memory limit. The slow limits include the time for the handshake, and the time that the server
/// needs to assemble the pack. A packing task receives no data, so the task lags from the start.
const FETCHES: Limits = Limits {
    total: 3,
    per_namespace: 2,
    light: Duration::from_secs(3),
    slow_limits: SlowLimits { several: Duration::from_secs(3), only: Duration::from_secs(10) },
};
/// Half-life of the slot time that released slots contribute.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Minimum difference in slot time for a preemption. For a light namespace that waits, the controller aborts only a
/// task whose namespace has a slot time that is longer by at least this value.
const PREEMPTION: Duration = Duration::from_secs(1);
/// Maximum number of consecutive aborted attempts after which a task may still use the reserved slot.
const MAX_ENDED_RESERVED: u32 = 1;
/// Minimum slot time for which the controller keeps a namespace's record, in seconds. When a task releases a slot, the
/// controller deletes the records of namespaces with a shorter slot time.
const NEGLIGIBLE: f64 = 0.01;
/// Maximum number of waiting tasks per namespace.
const MAX_WAITING_PER_NAMESPACE: usize = 10_000;

/// Minimum data rate of a task, in bytes per second. A task is slow if its lag behind this rate exceeds its slow limit.
const MIN_RATE: u64 = 128 << 10;
/// Maximum number of times that the controller doubles a task's slow limits.
const MAX_DOUBLINGS: u32 = 3;
/// Interval between two checks whether the controller must abort a task.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The slots for all kinds of tasks. Clones are cheap and share the slots.
#[derive(Clone, Debug)]
pub struct Slots {
    pub(super) queries: TaskSlots,
    pub(super) fetches: TaskSlots,
}

impl Default for Slots {
    fn default() -> Self {
        let [queries, fetches] = [QUERIES, FETCHES].map(TaskSlots::new);
        Self { queries, fetches }
    }
}

impl Slots {
    /// Returns the maximum number of bytes that concurrent fetches use on the volume. `each` is the maximum number of
    /// bytes per fetch.
    pub(super) fn volume_bytes(each: u64) -> u64 {
        each.saturating_mul(u64::try_from(FETCHES.total).unwrap_or(u64::MAX))
    }

    /// Returns the maximum total memory that concurrent child processes use, in bytes. `query` is the memory limit for
    /// a child process that queries a server. `fetch` is the memory limit for a child process that fetches or packs a
    /// commit.
    pub(super) fn memory_bytes(query: u64, fetch: u64) -> u64 {
        let all = [(QUERIES.total, query), (FETCHES.total, fetch)];
        all.iter().map(|(count, each)| u64::try_from(*count).unwrap_or(u64::MAX).saturating_mul(*each)).sum()
    }
}

/// The slots for one kind of task. Clones are cheap and share the slots.
#[derive(Clone, Debug)]
pub(super) struct TaskSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: Limits,
    /// Enforces the limit per namespace.
    shares: FairSlots,
    /// The common slots. Hold the mutex only for short critical sections, and never across an `.await`.
    common: Mutex<Common>,
}

/// The holders of common slots, and the waiters in the order of their arrival.
#[derive(Debug, Default)]
struct Common {
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    held: BTreeMap<u64, Held>,
    /// The slot time that released slots contribute, per namespace.
    used: BTreeMap<String, Used>,
}

#[derive(Debug)]
struct Waiting {
    namespace: String,
    /// Number of consecutive aborted attempts at the same work.
    ended: u32,
    granted: Arc<Notify>,
}

#[derive(Debug)]
struct Held {
    namespace: String,
    /// Whether the namespace was light when it received the slot. If not, the slot cannot be the reserved slot.
    may_be_reserved: bool,
    started: Instant,
    /// The time until which the received bytes satisfy [`MIN_RATE`]. `None` while the controller must not abort the
    /// task.
    covered_until: Option<Instant>,
    /// Multiplier for the slow limits.
    factor: u32,
}

/// The slot time that a namespace's released slots contribute. The slot time decays by half in each [`HALF_LIFE`].
#[derive(Clone, Copy, Debug)]
struct Used {
    seconds: f64,
    at: Instant,
}

impl Used {
    fn seconds_at(self, now: Instant) -> f64 {
        let half_lives = now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.seconds * (-half_lives).exp2()
    }
}

/// A slot, or a position in a slot queue. Dropping the value releases the slot or leaves the queue.
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
        common.release(self.id);
        common.grant(&self.slots.limits, Instant::now());
    }
}

/// Waits for a slot in the queues of all `namespaces` simultaneously, and returns the first granted slot. Therefore, a
/// namespace without free slots does not delay the other namespaces that use the same repository. `ended` is the number
/// of consecutive aborted attempts at the same work.
pub(super) async fn of_any(slots: &TaskSlots, namespaces: &[String], ended: u32) -> Result<Slot, GitError> {
    let waits = namespaces.iter().map(|namespace| slots.acquire(namespace, ended).boxed());
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
            waiting_per_key: MAX_WAITING_PER_NAMESPACE,
        };
        Self(Arc::new(Shared { limits, shares: FairSlots::new(shares), common: Mutex::default() }))
    }

    /// Waits for a slot. Dropping the future leaves the queue.
    async fn acquire(&self, namespace: &str, ended: u32) -> Result<Slot, Busy> {
        let share = self.0.shares.acquire(namespace).await?;
        let (id, granted) = {
            let mut common = self.0.lock();
            let entered = common.enqueue(namespace, ended);
            common.grant(&self.0.limits, Instant::now());
            entered
        };
        let slot = Slot { slots: Arc::clone(&self.0), id, _share: share };
        granted.notified().await;
        Ok(slot)
    }
}

impl Slot {
    /// Runs the work. If another namespace waits and the controller must abort the work, drops the future `work`, which
    /// kills its child process. `received` returns the number of received bytes, if known. `ended` is the number of
    /// consecutive aborted attempts at the same work. Each aborted attempt doubles the slow limits, up to
    /// [`MAX_DOUBLINGS`] times, so that work with a slow server completes eventually.
    pub(super) async fn run<T>(
        &self,
        what: &'static str,
        ended: u32,
        received: impl Fn() -> Option<u64>,
        work: impl Future<Output = Result<T, GitError>>,
    ) -> Result<T, GitError> {
        let mut work = Box::pin(work);
        let started = Instant::now();
        let (mut counted, mut covered_until) = (0_u64, started);
        if let Some(held) = self.slots.lock().held.get_mut(&self.id) {
            (held.covered_until, held.factor) = (Some(started), 1 << ended.min(MAX_DOUBLINGS));
        }
        loop {
            tokio::select! {
                done = &mut work => {
                    self.set_covered_until(None);
                    return done;
                }
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            let (bytes, now) = (received(), Instant::now());
            let more = bytes.unwrap_or_default().saturating_sub(counted);
            counted = counted.saturating_add(more);
            covered_until = covered_until.checked_add(time_at_rate(more)).map_or(now, |until| until.min(now));
            self.set_covered_until(Some(covered_until));
            if self.must_end(now) {
                return Err(GitError::Ended { what: what.into(), after: now.duration_since(started), bytes });
            }
        }
    }

    fn must_end(&self, now: Instant) -> bool {
        let (mut common, limits) = (self.slots.lock(), &self.slots.limits);
        // Grants free slots here, because a waiting namespace can become light as time passes.
        common.grant(limits, now);
        common.task_to_end(limits, now) == Some(self.id)
    }

    fn set_covered_until(&self, until: Option<Instant>) {
        if let Some(held) = self.slots.lock().held.get_mut(&self.id) {
            held.covered_until = until;
        }
    }
}

/// Returns the time that a server with the data rate [`MIN_RATE`] needs to send this number of bytes.
fn time_at_rate(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / MIN_RATE)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Common> {
        self.common.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common {
    /// Adds a waiter. Returns the waiter's ID, and the `Notify` that reports that the waiter has received a slot.
    fn enqueue(&mut self, namespace: &str, ended: u32) -> (u64, Arc<Notify>) {
        let (id, granted) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        let waiting = Waiting { namespace: namespace.to_owned(), ended, granted: Arc::clone(&granted) };
        self.waiting.insert(id, waiting);
        (id, granted)
    }

    /// Grants free slots to waiters.
    fn grant(&mut self, limits: &Limits, now: Instant) {
        while self.held.len() < limits.total {
            let only_light = self.unreserved_held(limits, now) + 1 >= limits.total;
            let may_have =
                |(_, waiting): &(&u64, &Waiting)| !only_light || self.may_have_reserved(waiting, limits, now);
            let order = |(id, waiting): &(&u64, &Waiting)| {
                let used = Duration::from_secs_f64(self.slot_time(&waiting.namespace, now));
                let is_light = self.may_have_reserved(waiting, limits, now);
                (self.holds(&waiting.namespace), (!is_light).then_some(used), **id)
            };
            let Some(id) = self.waiting.iter().filter(may_have).min_by_key(order).map(|(id, _)| *id) else { return };
            let Some(waiting) = self.waiting.remove(&id) else { return };
            let may_be_reserved = self.may_have_reserved(&waiting, limits, now);
            let Waiting { namespace, granted, .. } = waiting;
            self.held.insert(id, Held { namespace, may_be_reserved, started: now, covered_until: None, factor: 1 });
            granted.notify_one();
        }
    }

    /// Releases a slot, and records the time for which the task held the slot.
    fn release(&mut self, id: u64) {
        let now = Instant::now();
        if let Some(Held { namespace, started, .. }) = self.held.remove(&id) {
            let used = self.used.entry(namespace).or_insert(Used { seconds: 0.0, at: now });
            let held = now.saturating_duration_since(started).as_secs_f64();
            *used = Used { seconds: used.seconds_at(now) + held, at: now };
        }
        self.used.retain(|_, used| used.seconds_at(now) >= NEGLIGIBLE);
    }

    fn holds(&self, namespace: &str) -> usize {
        self.held.values().filter(|held| held.namespace == namespace).count()
    }

    /// Returns a namespace's slot time in seconds, including the slots that the namespace currently holds.
    fn slot_time(&self, namespace: &str, now: Instant) -> f64 {
        let released = self.used.get(namespace).map_or(0.0, |used| used.seconds_at(now));
        let held = self.held.values().filter(|held| held.namespace == namespace);
        released + held.map(|held| now.saturating_duration_since(held.started).as_secs_f64()).sum::<f64>()
    }

    fn is_light(&self, namespace: &str, limits: &Limits, now: Instant) -> bool {
        self.slot_time(namespace, now) < limits.light.as_secs_f64()
    }

    fn may_have_reserved(&self, waiting: &Waiting, limits: &Limits, now: Instant) -> bool {
        let Waiting { namespace, ended, .. } = waiting;
        *ended <= MAX_ENDED_RESERVED && self.holds(namespace) == 0 && self.is_light(namespace, limits, now)
    }

    /// Returns how many of the held slots cannot be the reserved slot.
    fn unreserved_held(&self, limits: &Limits, now: Instant) -> usize {
        let is_light = |held: &&Held| held.may_be_reserved && self.is_light(&held.namespace, limits, now);
        self.held.len() - self.held.values().filter(is_light).count()
    }

    /// If the controller must abort a task because a namespace without a slot waits, returns the task.
    fn task_to_end(&self, limits: &Limits, now: Instant) -> Option<u64> {
        let without_slot = self.waiting.values().filter(|waiting| self.holds(&waiting.namespace) == 0);
        let (light, others): (Vec<_>, Vec<_>) =
            without_slot.partition(|waiting| self.may_have_reserved(waiting, limits, now));
        // Requires a larger difference if many namespaces start tasks simultaneously, for example after a restart. With
        // the usual difference, the controller would abort many tasks, and their work would be lost.
        let excess = if light.len() > limits.total { limits.light } else { PREEMPTION };
        let preempted = light.iter().find_map(|waiting| self.task_to_preempt(&waiting.namespace, limits, excess, now));
        preempted.or_else(|| if others.is_empty() { None } else { self.slow_task_to_end(limits.slow_limits, now) })
    }

    /// If all slots are in use, returns the task that the controller must abort in favor of a waiting light namespace.
    /// The slot time of the task's namespace must exceed the waiting namespace's slot time by at least `excess`. If
    /// several tasks meet these conditions, returns the task that started last.
    fn task_to_preempt(&self, waiting: &str, limits: &Limits, excess: Duration, now: Instant) -> Option<u64> {
        let limit = self.slot_time(waiting, now) + excess.as_secs_f64();
        let exceeds = |(_, held): &(&u64, &Held)| {
            held.may_be_reserved && held.covered_until.is_some() && self.slot_time(&held.namespace, now) >= limit
        };
        let last = self.held.iter().filter(exceeds).max_by_key(|(id, held)| (held.started, **id)).map(|(id, _)| *id);
        last.filter(|_| self.held.len() >= limits.total)
    }

    /// Returns the slow task that the controller must abort. This is the longest running slow task of the namespace
    /// that holds the most slots.
    fn slow_task_to_end(&self, limits: SlowLimits, now: Instant) -> Option<u64> {
        let slow = self.held.iter().filter_map(|(id, held)| {
            let holds = self.holds(&held.namespace);
            let limit = if holds > 1 { limits.several } else { limits.only } * held.factor;
            let is_slow = now.saturating_duration_since(held.covered_until?) >= limit;
            is_slow.then_some((holds, Reverse(held.started), *id))
        });
        slow.max().map(|(_, _, id)| id)
    }
}

#[cfg(test)]
mod tests;
