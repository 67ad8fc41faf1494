//! The one gate for starting runs: so many at once that none fails from the crowd, in the order in which they came.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::telemetry::metrics::Metrics;

/// How long a place is kept for one that was woken. One that does not come, because it is gone, must not block it.
const PLACE_KEPT: Duration = Duration::from_secs(30);

/// At most so many runs at once. `W` is how one that waits is woken, for instance a reference to its object. Cheap to
/// clone.
pub struct RunGate<W> {
    shared: Arc<Shared<W>>,
}

impl<W> Clone for RunGate<W> {
    fn clone(&self) -> Self {
        RunGate { shared: self.shared.clone() }
    }
}

struct Shared<W> {
    limit: usize,
    metrics: Metrics,
    /// Something changed that may let the next one in.
    changed: Notify,
    /// Locked for short sections only, never across an await.
    state: Mutex<State<W>>,
}

struct State<W> {
    /// Runs that are open, with the number of their permits.
    open: HashMap<String, usize>,
    /// Places kept for those that were woken, and until when.
    kept: HashMap<String, Instant>,
    waiting: VecDeque<(String, W)>,
}

/// One run may be open as long as this lives.
#[must_use = "the place is given back when the permit is dropped"]
pub struct Permit<W> {
    uid: String,
    shared: Arc<Shared<W>>,
}

impl<W> std::fmt::Debug for Permit<W> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Permit").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl<W> Drop for Permit<W> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(count) = state.open.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                state.open.remove(&self.uid);
            }
        }
        self.shared.tell(state);
    }
}

impl<W> RunGate<W> {
    /// `limit` is the number of runs that may be open at once.
    pub fn new(limit: usize, metrics: Metrics) -> Self {
        let state = State { open: HashMap::new(), kept: HashMap::new(), waiting: VecDeque::new() };
        RunGate { shared: Arc::new(Shared { limit, metrics, changed: Notify::new(), state: Mutex::new(state) }) }
    }

    /// A place for a run, or none now: then `waker` comes out of [`RunGate::wakes`] when it is its turn.
    pub fn acquire(&self, uid: &str, waker: W) -> Option<Permit<W>> {
        let mut state = self.shared.lock();
        state.release_stale_places();
        let position = state.waiting.iter().position(|(waiting, _)| waiting == uid);
        let free = self.shared.limit.saturating_sub(state.open.len() + state.kept.len());
        let its_turn = position.unwrap_or(state.waiting.len()) < free;
        if its_turn || state.open.contains_key(uid) || state.kept.contains_key(uid) {
            return Some(self.open(state, uid));
        }
        match position.and_then(|position| state.waiting.get_mut(position)) {
            Some(place) => place.1 = waker,
            None => state.waiting.push_back((uid.to_owned(), waker)),
        }
        self.shared.tell(state);
        None
    }

    /// A place for a run that is open already, from before a restart. It counts, and is never refused.
    pub fn adopt(&self, uid: &str) -> Permit<W> {
        let state = self.shared.lock();
        self.open(state, uid)
    }

    /// One that waits, or was woken, does not want a place any more.
    pub fn withdraw(&self, uid: &str) {
        let mut state = self.shared.lock();
        state.waiting.retain(|(waiting, _)| waiting != uid);
        state.kept.remove(uid);
        self.shared.tell(state);
    }

    /// Those whose turn it is, one after the other. There must be one reader of it.
    pub fn wakes(&self) -> impl Stream<Item = W> + Send + 'static
    where
        W: Send + 'static,
    {
        futures::stream::unfold(self.shared.clone(), |shared| async move {
            let waker = shared.next_wake().await;
            Some((waker, shared))
        })
    }

    fn open(&self, mut state: MutexGuard<'_, State<W>>, uid: &str) -> Permit<W> {
        state.waiting.retain(|(waiting, _)| waiting != uid);
        state.kept.remove(uid);
        *state.open.entry(uid.to_owned()).or_default() += 1;
        self.shared.tell(state);
        Permit { uid: uid.to_owned(), shared: self.shared.clone() }
    }
}

impl<W> Shared<W> {
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, state: MutexGuard<'_, State<W>>) {
        self.metrics.runs(state.open.len(), state.waiting.len());
        drop(state);
        self.changed.notify_one();
    }

    async fn next_wake(&self) -> W {
        loop {
            let stale_at = match self.wake_next() {
                Ok(waker) => return waker,
                Err(stale_at) => stale_at,
            };
            let stale = async {
                match stale_at {
                    Some(time) => tokio::time::sleep_until(time).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = stale => {}
            }
        }
    }

    /// Keeps a place for the next one that waits; or when to look again, if nothing changes before.
    fn wake_next(&self) -> Result<W, Option<Instant>> {
        let mut state = self.lock();
        state.release_stale_places();
        let free = self.limit.saturating_sub(state.open.len() + state.kept.len());
        let next = if free > 0 { state.waiting.pop_front() } else { None };
        let Some((uid, waker)) = next else {
            return Err(state.kept.values().min().copied());
        };
        state.kept.insert(uid, Instant::now() + PLACE_KEPT);
        Ok(waker)
    }
}

impl<W> State<W> {
    fn release_stale_places(&mut self) {
        let now = Instant::now();
        self.kept.retain(|_, until| *until > now);
    }
}
