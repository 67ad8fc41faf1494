//! Evaluates the expressions of Stacks in child processes with resource limits, and caches the results.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::pulumi::Stack;
use crate::controller::stack::prerequisites::expression::{ExpressionError, Request};
use crate::runtime::backoff::ObjectKey;
use crate::runtime::fair_slots::{self, Busy, FairSlots, Slot};
use crate::runtime::requeue::Requeue;
use crate::subprocess::{Failure, Limits, Subprocess};

/// Subcommand of the child process.
pub const ROLE: &str = "evaluate";
/// Resource limits of an evaluation for a namespace without a recent expensive evaluation. Two Stacks with the maximum
/// size that etcd allows require about half of the memory limit.
const LIMITS: Limits = Limits {
    memory: 96 << 20,
    address_space: 512 << 20,
    stack: 32 << 20,
    cpu: Duration::from_secs(1),
    nice: 0,
    wall: Duration::from_secs(20),
    file_size: 0,
    open_files: 16,
    threads: false,
    response: 8 << 10,
};
/// Nice value of evaluations for a namespace with a recent expensive evaluation. These evaluations have a lower
/// priority than Git processes, and therefore do not delay the polls of other namespaces.
const EXPENSIVE_NICE: u8 = 10;
/// Concurrency limits for namespaces without a recent expensive evaluation: two evaluations in total, and one
/// evaluation and eight waiting callers for each namespace.
const SLOTS: fair_slots::Limits = fair_slots::Limits { total: 2, per_key: 1, waiting_per_key: 8 };
/// Concurrency limits for namespaces with a recent expensive evaluation. Evaluations for these namespaces use a
/// separate slot, because they have a low priority and can take many seconds.
const EXPENSIVE_SLOTS: fair_slots::Limits = fair_slots::Limits { total: 1, ..SLOTS };
/// Minimum duration of an expensive evaluation. An evaluation that exceeds a limit is always expensive.
const EXPENSIVE: Duration = Duration::from_millis(500);
/// Period after an expensive evaluation during which the namespace must use the separate slot.
const EXPENSIVE_TTL: Duration = Duration::from_secs(120);
/// Ratio of a namespace's backoff to the evaluation time, for evaluations that take longer than `CHEAP`. The backoff
/// limits each namespace to a tenth of a CPU.
const BACKOFF_FACTOR: u32 = 9;
/// Maximum duration of an evaluation without a subsequent backoff.
const CHEAP: Duration = Duration::from_millis(50);
/// Backoff of a namespace after an evaluation that exceeded a limit, and maximum backoff after any other evaluation.
const NAMESPACE_BACKOFF: Duration = Duration::from_secs(10);
/// Timeout of a reconciliation that waits for an evaluation result. The reconciliation then ends, so that it does not
/// delay other Stacks. Most evaluations take a few milliseconds.
const RESULT_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum size of a request in bytes: two objects with the maximum size that the API server allows, and an expression.
const MAX_REQUEST: usize = 4 << 20;
/// Maximum number of results in each of the two cache generations.
const MAX_CACHED: usize = 4096;
/// Lifetime of a cached transient failure.
const FAILURE_TTL: Duration = Duration::from_secs(20);

type EvaluationResult = Result<bool, ExpressionError>;
type Hash = [u8; 32];

/// Evaluator of expressions. Cheap to clone. All clones share the cache.
#[derive(Clone)]
pub struct Evaluator(Arc<Shared>);

struct Shared {
    subprocess: Subprocess,
    slots: ClassSlots,
    requeue: Requeue<Stack>,
    tasks: TaskTracker,
    end: CancellationToken,
    /// Hold the lock only for short critical sections, and never across an `.await`.
    cache: Mutex<ResultCache>,
}

/// Class of a namespace. The class depends on the duration of the namespace's recent evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Cheap,
    Expensive,
}

/// Slots for each namespace class. The classes have separate slots, so expensive expressions do not delay evaluations
/// for other namespaces.
struct ClassSlots {
    cheap: FairSlots,
    expensive: FairSlots,
    /// Namespaces with a recent expensive evaluation, and the time at which each of them becomes cheap again. Hold the
    /// lock only for short critical sections, and never across an `.await`.
    expensive_until: Mutex<HashMap<String, Instant>>,
}

impl Default for ClassSlots {
    fn default() -> Self {
        let (cheap, expensive) = (FairSlots::new(SLOTS), FairSlots::new(EXPENSIVE_SLOTS));
        Self { cheap, expensive, expensive_until: Mutex::default() }
    }
}

impl ClassSlots {
    /// Waits for a slot in the namespace's class. If the class changes during the wait, waits for a slot in the new
    /// class.
    async fn acquire(&self, namespace: &str) -> Result<(Slot, Class), Busy> {
        loop {
            let class = self.class(namespace);
            let slots = match class {
                Class::Cheap => &self.cheap,
                Class::Expensive => &self.expensive,
            };
            let slot = slots.acquire(namespace).await?;
            if self.class(namespace) == class {
                return Ok((slot, class));
            }
        }
    }

    fn class(&self, namespace: &str) -> Class {
        let until = self.lock().get(namespace).copied();
        if until.is_some_and(|until| Instant::now() < until) { Class::Expensive } else { Class::Cheap }
    }

    /// Records an expensive evaluation of a namespace.
    fn mark_expensive(&self, namespace: &str) {
        let (mut expensive_until, now) = (self.lock(), Instant::now());
        expensive_until.retain(|_, until| now < *until);
        expensive_until.insert(namespace.to_owned(), now + EXPENSIVE_TTL);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.expensive_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluator").finish_non_exhaustive()
    }
}

/// Returns the maximum total memory of all child processes, in bytes.
pub fn max_memory() -> u64 {
    LIMITS.memory.saturating_mul(u64::try_from(SLOTS.total + EXPENSIVE_SLOTS.total).unwrap_or(u64::MAX))
}

impl Evaluator {
    /// Creates an evaluator. If a caller no longer waits for a result, the evaluator sends the Stack to `requeue`.
    pub fn new(subprocess: Subprocess, requeue: Requeue<Stack>, tasks: TaskTracker, end: CancellationToken) -> Self {
        let (slots, cache) = (ClassSlots::default(), Mutex::default());
        Self(Arc::new(Shared { subprocess, slots, requeue, tasks, end, cache }))
    }

    /// Evaluates the expression with `this` as `self` and `dep` as `dep`. Returns `None` if the result is not available
    /// within `RESULT_TIMEOUT`. The evaluator then requeues the Stack when the result is available, and the next call
    /// returns the result from the cache.
    pub async fn evaluate(&self, expression: &str, this: &Stack, dep: &Stack) -> Option<EvaluationResult> {
        self.evaluate_variables(this, expression, [("self", this), ("dep", dep)].into()).await
    }

    /// Evaluates an expression of a Stack with these variables. Returns `None` in the same cases as
    /// [`Evaluator::evaluate`].
    pub async fn evaluate_variables(
        &self,
        stack: &Stack,
        expression: &str,
        variables: BTreeMap<&str, impl Serialize>,
    ) -> Option<EvaluationResult> {
        let request = match serde_json::to_vec(&Request { expression, variables }) {
            Ok(request) if request.len() <= MAX_REQUEST => request,
            Ok(_) => return Some(Err(too_large())),
            Err(error) => return Some(Err(ExpressionError::Failed(error.to_string()))),
        };
        let hash: Hash = Sha256::digest(&request).into();
        let evaluation = {
            let mut cache = self.0.lock();
            if let Some(result) = cache.get(&hash, Instant::now()) {
                return Some(result);
            }
            if !cache.evaluating.insert(hash) {
                return None;
            }
            Evaluation { shared: Arc::clone(&self.0), hash }
        };
        let stack_key = key(stack);
        let (sender, mut receiver) = oneshot::channel();
        let end = self.0.end.clone();
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = evaluation.run(stack_key, request, sender) => {}
            }
        });
        match tokio::time::timeout(RESULT_TIMEOUT, &mut receiver).await {
            Ok(result) => result.ok(),
            Err(_) => {
                // After `close`, the task can no longer send the result, and requeues the Stack instead. `try_recv`
                // still receives a result that the task sent before `close`.
                receiver.close();
                receiver.try_recv().ok()
            }
        }
    }
}

fn key(stack: &Stack) -> ObjectKey {
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    (name(&stack.metadata.namespace), name(&stack.metadata.name))
}

fn too_large() -> ExpressionError {
    ExpressionError::LimitExceeded(format!(
        "failed to evaluate: the variables exceed {MAX_REQUEST} bytes in total; reduce the outputs of the Stacks"
    ))
}

/// Evaluation in progress. Prevents a second concurrent evaluation of the same request.
struct Evaluation {
    shared: Arc<Shared>,
    hash: Hash,
}

impl Drop for Evaluation {
    fn drop(&mut self) {
        self.shared.lock().evaluating.remove(&self.hash);
    }
}

impl Evaluation {
    async fn run(self, stack_key: ObjectKey, request: Vec<u8>, sender: oneshot::Sender<EvaluationResult>) {
        let mut start = Instant::now();
        let (outcome, mut slot) = match self.shared.slots.acquire(&stack_key.0).await {
            Ok((slot, class)) => {
                start = Instant::now();
                (self.shared.run_child(request, class).await, Some(slot))
            }
            Err(busy) => (
                Err(EvaluationError::Transient(format!(
                    "{} other expressions of this namespace are already waiting for evaluation; retrying",
                    busy.waiting
                ))),
                None,
            ),
        };
        let duration = start.elapsed();
        let backoff = backoff_after(&outcome, duration);
        if slot.is_some() && is_expensive(&outcome, duration) {
            self.shared.slots.mark_expensive(&stack_key.0);
        }
        let (result, expires_at) = match outcome {
            Ok(result) => (result, None),
            Err(EvaluationError::Permanent(error)) => (Err(error), None),
            Err(EvaluationError::Transient(why)) => {
                (Err(ExpressionError::Failed(why)), Some(Instant::now() + FAILURE_TTL))
            }
        };
        self.shared.lock().set(self.hash, CachedResult { result: result.clone(), expires_at });
        drop(self.deliver(&stack_key, result, sender));
        if let Some(backoff) = backoff {
            slot.iter_mut().for_each(Slot::release_common);
            tokio::time::sleep(backoff).await;
        }
    }

    /// Sends the result to the caller. If the caller no longer waits, requeues the Stack.
    fn deliver(
        self,
        stack_key: &ObjectKey,
        result: EvaluationResult,
        sender: oneshot::Sender<EvaluationResult>,
    ) -> Self {
        if sender.send(result).is_err() {
            self.shared.requeue.request(ObjectRef::new(&stack_key.1).within(&stack_key.0));
        }
        self
    }
}

/// Reason why an evaluation failed.
enum EvaluationError {
    /// Another evaluation of the same request would also fail.
    Permanent(ExpressionError),
    /// Another evaluation of the same request may succeed.
    Transient(String),
}

/// Returns a namespace's backoff after an evaluation with this result and duration.
fn backoff_after(outcome: &Result<EvaluationResult, EvaluationError>, duration: Duration) -> Option<Duration> {
    if exceeds_limit(outcome) {
        return Some(NAMESPACE_BACKOFF);
    }
    (duration > CHEAP).then(|| NAMESPACE_BACKOFF.min(duration * BACKOFF_FACTOR))
}

/// Returns whether the evaluation makes its namespace expensive.
fn is_expensive(outcome: &Result<EvaluationResult, EvaluationError>, duration: Duration) -> bool {
    exceeds_limit(outcome) || duration >= EXPENSIVE
}

fn exceeds_limit(outcome: &Result<EvaluationResult, EvaluationError>) -> bool {
    matches!(outcome, Err(EvaluationError::Permanent(ExpressionError::LimitExceeded(_))))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ResultCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run_child(&self, request: Vec<u8>, class: Class) -> Result<EvaluationResult, EvaluationError> {
        let limits = match class {
            Class::Cheap => LIMITS,
            Class::Expensive => Limits { nice: EXPENSIVE_NICE, ..LIMITS },
        };
        match self.subprocess.run(ROLE, &request, &limits).await {
            Ok(response) => {
                serde_json::from_slice(&response).map_err(|error| EvaluationError::Transient(error.to_string()))
            }
            Err(failure) if failure.is_caused_by_input() => Err(EvaluationError::Permanent(limit_exceeded(&failure))),
            Err(failure) => Err(EvaluationError::Transient(failure.to_string())),
        }
    }
}

fn limit_exceeded(failure: &Failure) -> ExpressionError {
    ExpressionError::LimitExceeded(format!(
        "failed to evaluate: {failure}; simplify the expression or reduce the data that it reads"
    ))
}

/// Cached result and its expiry time. A result without an expiry time does not expire.
#[derive(Clone)]
struct CachedResult {
    result: EvaluationResult,
    expires_at: Option<Instant>,
}

/// Result cache with two generations. Each use of a result moves the result to the recent generation. The cache evicts
/// the older generation as a whole.
#[derive(Default)]
struct ResultCache {
    recent: HashMap<Hash, CachedResult>,
    older: HashMap<Hash, CachedResult>,
    evaluating: HashSet<Hash>,
}

impl ResultCache {
    fn get(&mut self, hash: &Hash, now: Instant) -> Option<EvaluationResult> {
        if let Some(cached) = self.older.remove(hash) {
            self.set(*hash, cached);
        }
        let cached = self.recent.get(hash)?;
        cached.expires_at.is_none_or(|expires_at| now < expires_at).then(|| cached.result.clone())
    }

    fn set(&mut self, hash: Hash, cached: CachedResult) {
        if self.recent.len() >= MAX_CACHED {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(hash, cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> Hash {
        Sha256::digest(number.to_be_bytes()).into()
    }

    #[test]
    fn the_result_cache_is_bounded_and_keeps_recently_used_entries() {
        let (mut cache, now) = (ResultCache::default(), Instant::now());
        let cached = |result| CachedResult { result: Ok(result), expires_at: None };
        cache.set(hash(0), cached(true));
        for number in 1..=10 * MAX_CACHED {
            cache.set(hash(number), cached(false));
            if number % (MAX_CACHED / 2) == 0 {
                assert_eq!(cache.get(&hash(0), now), Some(Ok(true)), "after {number}");
            }
        }
        assert!(cache.recent.len() + cache.older.len() <= 2 * MAX_CACHED);
        assert_eq!(cache.get(&hash(1), now), None, "an unused result is removed");
    }

    #[test]
    fn the_evaluations_of_a_namespace_use_at_most_a_tenth_of_the_time() {
        let exceeded = || Err(EvaluationError::Permanent(ExpressionError::LimitExceeded("too large".to_owned())));
        let evaluated = || Ok(Ok(true));
        let after = |outcome, millis| backoff_after(&outcome, Duration::from_millis(millis));
        assert_eq!(after(exceeded(), 1), Some(NAMESPACE_BACKOFF));
        assert_eq!(after(evaluated(), 10), None);
        assert_eq!(after(evaluated(), 900), Some(Duration::from_millis(8100)));
        assert_eq!(after(evaluated(), 5000), Some(NAMESPACE_BACKOFF));
    }

    #[test]
    fn a_cached_transient_evaluation_failure_expires() {
        let (mut cache, now) = (ResultCache::default(), Instant::now());
        let failed = || Err(ExpressionError::Failed("timed out".to_owned()));
        cache.set(hash(0), CachedResult { result: failed(), expires_at: Some(now + FAILURE_TTL) });
        assert_eq!(cache.get(&hash(0), now), Some(failed()), "the requeued Stack receives the failure");
        assert_eq!(cache.get(&hash(0), now + FAILURE_TTL), None);
    }

    #[tokio::test(start_paused = true)]
    async fn expensive_namespaces_temporarily_use_a_separate_slot() {
        let slots = ClassSlots::default();
        let at_once = Duration::from_millis(1);
        let acquire = async |namespace: &'static str| tokio::time::timeout(at_once, slots.acquire(namespace)).await;
        for namespace in ["one", "two", "three"] {
            let (slot, class) = acquire(namespace).await.unwrap().unwrap();
            assert_eq!(class, Class::Cheap, "the first evaluation of each namespace");
            slots.mark_expensive(namespace);
            drop(slot);
        }
        let (expensive, class) = acquire("one").await.unwrap().unwrap();
        assert_eq!(class, Class::Expensive);
        assert!(acquire("two").await.is_err(), "expensive namespaces share one slot");
        let (_slot, class) = acquire("other").await.unwrap().unwrap();
        assert_eq!(class, Class::Cheap, "other namespaces do not wait for expensive ones");
        drop(expensive);
        tokio::time::advance(EXPENSIVE_TTL).await;
        assert_eq!(acquire("one").await.unwrap().unwrap().1, Class::Cheap);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_evaluation_becomes_expensive_with_its_namespace() {
        let slots = ClassSlots::default();
        let (first, _) = slots.acquire("apps").await.unwrap();
        let waiting = slots.acquire("apps");
        let finish = async {
            tokio::task::yield_now().await;
            slots.mark_expensive("apps");
            drop(first);
        };
        let (waited, ()) = tokio::join!(waiting, finish);
        assert_eq!(waited.unwrap().1, Class::Expensive);
    }

    #[test]
    fn an_evaluation_is_expensive_if_it_is_slow_or_exceeds_a_limit() {
        let exceeded = || Err(EvaluationError::Permanent(ExpressionError::LimitExceeded("too large".to_owned())));
        let rows = [(exceeded(), 1, true), (Ok(Ok(true)), 499, false), (Ok(Ok(true)), 500, true)];
        for (outcome, millis, expected) in rows {
            assert_eq!(is_expensive(&outcome, Duration::from_millis(millis)), expected, "{millis} ms");
        }
    }
}
