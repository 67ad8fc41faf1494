//! Evaluates the expressions of Stacks in child processes with limits, and caches the results.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use kube::runtime::reflector::ObjectRef;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::pulumi::Stack;
use crate::controller::stack::prerequisites::expression::{ExpressionError, Request};
use crate::runtime::backoff::ObjectKey;
use crate::runtime::fair_slots::{self, Busy, FairSlots, Slot};
use crate::subprocess::{Failure, Limits, Subprocess};

/// Subcommand of the child process.
pub const ROLE: &str = "evaluate";
/// Resource limits of an evaluation for a namespace without a recent expensive expression. Two Stacks at etcd's size limit need about
/// half of the memory.
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
/// Priority of evaluations for a namespace with a recent expensive expression. It is lower than the priority of Git children, so that
/// these evaluations do not delay the polls of other namespaces.
const EXPENSIVE_NICE: u8 = 10;
/// Limits of concurrent evaluations for namespaces without a recent expensive expression: two in total, one per namespace, and eight
/// waiting callers per namespace.
const SLOTS: fair_slots::Limits = fair_slots::Limits { total: 2, per_key: 1, waiting_per_key: 8 };
/// Limits of concurrent evaluations for the other namespaces. Their evaluations have low priority and can take many seconds, so they use
/// a separate slot.
const EXPENSIVE_SLOTS: fair_slots::Limits = fair_slots::Limits { total: 1, ..SLOTS };
/// Duration from which an evaluation is expensive. An evaluation that exceeds a limit is always expensive.
const EXPENSIVE: Duration = Duration::from_millis(500);
/// Time for which a namespace uses the separate slot after an expensive evaluation.
const EXPENSIVE_TTL: Duration = Duration::from_secs(120);
/// Ratio of the backoff of a namespace to the duration of the preceding evaluation, if the evaluation took longer than `CHEAP`. The backoff
/// limits a namespace to a tenth of a CPU.
const BACKOFF_FACTOR: u32 = 9;
/// Maximum duration of an evaluation that is not followed by a backoff.
const CHEAP: Duration = Duration::from_millis(50);
/// Backoff of a namespace after an expression has exceeded a limit, and maximum backoff. It limits a namespace to a tenth of a CPU.
const NAMESPACE_BACKOFF: Duration = Duration::from_secs(10);
/// Time for which a reconcile waits for a result before it releases its worker. Most evaluations take a few milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum size of a request in bytes: two objects at the API server's size limit, and an expression.
const MAX_REQUEST: usize = 4 << 20;
/// Maximum number of cached results in each of the two generations.
const MAX_REMEMBERED: usize = 4096;
/// Time for which a transient failure is cached.
const FAILURE_TTL: Duration = Duration::from_secs(20);

type Answer = Result<bool, ExpressionError>;
type Hash = [u8; 32];

/// Evaluates expressions. Cheap to clone; all clones share the cache.
#[derive(Clone)]
pub struct Evaluator(Arc<Shared>);

struct Shared {
    subprocess: Subprocess,
    slots: ClassSlots,
    wake: mpsc::Sender<ObjectRef<Stack>>,
    tasks: TaskTracker,
    end: CancellationToken,
    /// The lock is held only briefly, never across an `await`.
    answers: Mutex<Answers>,
}

/// Class of a namespace by the duration of its recent evaluations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Cheap,
    Expensive,
}

/// The slots for each class of namespaces, so that expensive expressions do not delay the evaluations of other namespaces.
struct ClassSlots {
    cheap: FairSlots,
    expensive: FairSlots,
    /// Namespaces with a recent expensive evaluation, and the end of their classification. The lock is held only briefly, never across an
    /// `await`.
    expensive_until: Mutex<HashMap<String, Instant>>,
}

impl Default for ClassSlots {
    fn default() -> Self {
        let (cheap, expensive) = (FairSlots::new(SLOTS), FairSlots::new(EXPENSIVE_SLOTS));
        Self { cheap, expensive, expensive_until: Mutex::default() }
    }
}

impl ClassSlots {
    /// Waits for a slot of the class to which the namespace belongs when the slot is granted.
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

    /// Records an expensive evaluation.
    fn note_expensive(&self, namespace: &str) {
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

/// Returns the maximum memory of all child processes together, in bytes.
pub fn most_memory() -> u64 {
    LIMITS.memory.saturating_mul(u64::try_from(SLOTS.total + EXPENSIVE_SLOTS.total).unwrap_or(u64::MAX))
}

impl Evaluator {
    /// Creates an evaluator. `wake` is the sender that wakes Stacks when their result is known.
    pub fn new(
        subprocess: Subprocess,
        wake: mpsc::Sender<ObjectRef<Stack>>,
        tasks: TaskTracker,
        end: CancellationToken,
    ) -> Self {
        let (slots, answers) = (ClassSlots::default(), Mutex::default());
        Self(Arc::new(Shared { subprocess, slots, wake, tasks, end, answers }))
    }

    /// Evaluates the expression with `self` = `this` and `dep` = `other`. Returns `None` if that takes longer than `ANSWER_TIMEOUT`. The
    /// Stack is then woken when the result is known. Equal requests are answered from the cache.
    pub async fn ask(&self, expression: &str, this: &Stack, other: &Stack) -> Option<Answer> {
        let request = match serde_json::to_vec(&Request { expression, this, dep: other }) {
            Ok(request) if request.len() <= MAX_REQUEST => request,
            Ok(_) => return Some(Err(too_large())),
            Err(error) => return Some(Err(ExpressionError::Failed(error.to_string()))),
        };
        let hash: Hash = Sha256::digest(&request).into();
        let evaluation = {
            let mut answers = self.0.lock();
            if let Some(answer) = answers.get(&hash, Instant::now()) {
                return Some(answer);
            }
            if !answers.evaluating.insert(hash) {
                return None;
            }
            Evaluation { shared: Arc::clone(&self.0), hash }
        };
        let of = key(this);
        let (sender, mut receiver) = oneshot::channel();
        let end = self.0.end.clone();
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = evaluation.run(of, request, sender) => {}
            }
        });
        match tokio::time::timeout(ANSWER_TIMEOUT, &mut receiver).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                // Because the channel is closed, the task wakes the Stack instead. A result that was sent just before is still received.
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
        "failed to evaluate: the two Stacks exceed {MAX_REQUEST} bytes in total; reduce their outputs"
    ))
}

/// A running evaluation. Dropping it allows another evaluation of the same request.
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
    async fn run(self, of: ObjectKey, request: Vec<u8>, sender: oneshot::Sender<Answer>) {
        let mut began = Instant::now();
        let (answer, mut slot) = match self.shared.slots.acquire(&of.0).await {
            Ok((slot, class)) => {
                began = Instant::now();
                (self.shared.evaluate(request, class).await, Some(slot))
            }
            Err(busy) => (
                Err(Failed::Now(format!(
                    "{} other expressions of this namespace are already waiting for evaluation",
                    busy.waiting
                ))),
                None,
            ),
        };
        let took = began.elapsed();
        let backoff = backoff_after(&answer, took);
        if slot.is_some() && is_expensive(&answer, took) {
            self.shared.slots.note_expensive(&of.0);
        }
        let (answer, until) = match answer {
            Ok(answer) => (answer, None),
            Err(Failed::Always(error)) => (Err(error), None),
            Err(Failed::Now(why)) => (Err(ExpressionError::Failed(why)), Some(Instant::now() + FAILURE_TTL)),
        };
        self.shared.lock().set(self.hash, Known { answer: answer.clone(), until });
        drop(self.deliver(&of, answer, sender));
        if let Some(backoff) = backoff {
            slot.iter_mut().for_each(Slot::release_common);
            tokio::time::sleep(backoff).await;
        }
    }

    /// Sends the result to the caller, or wakes the Stack if the caller no longer waits.
    fn deliver(self, of: &ObjectKey, answer: Answer, sender: oneshot::Sender<Answer>) -> Self {
        if sender.send(answer).is_err() {
            let stack = ObjectRef::new(&of.1).within(&of.0);
            if self.shared.wake.clone().try_send(stack).is_err() {
                tracing::debug!(namespace = of.0, stack = of.1, "dropped a wake-up: queue is full");
            }
        }
        self
    }
}

/// Reason why an evaluation failed.
enum Failed {
    /// The same request would fail again.
    Always(ExpressionError),
    /// A retry may succeed.
    Now(String),
}

/// Returns the backoff of the namespace after an evaluation with this result and duration.
fn backoff_after(answer: &Result<Answer, Failed>, took: Duration) -> Option<Duration> {
    if exceeds_limit(answer) {
        return Some(NAMESPACE_BACKOFF);
    }
    (took > CHEAP).then(|| NAMESPACE_BACKOFF.min(took * BACKOFF_FACTOR))
}

/// Whether the evaluation makes its namespace expensive.
fn is_expensive(answer: &Result<Answer, Failed>, took: Duration) -> bool {
    exceeds_limit(answer) || took >= EXPENSIVE
}

fn exceeds_limit(answer: &Result<Answer, Failed>) -> bool {
    matches!(answer, Err(Failed::Always(ExpressionError::LimitExceeded(_))))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn evaluate(&self, request: Vec<u8>, class: Class) -> Result<Answer, Failed> {
        let limits = match class {
            Class::Cheap => LIMITS,
            Class::Expensive => Limits { nice: EXPENSIVE_NICE, ..LIMITS },
        };
        match self.subprocess.run(ROLE, &request, &limits).await {
            Ok(answer) => serde_json::from_slice(&answer).map_err(|error| Failed::Now(error.to_string())),
            Err(failure) if failure.is_of_input() => Err(Failed::Always(limit_exceeded(&failure))),
            Err(failure) => Err(Failed::Now(failure.to_string())),
        }
    }
}

fn limit_exceeded(failure: &Failure) -> ExpressionError {
    ExpressionError::LimitExceeded(format!(
        "failed to evaluate: {failure}; simplify the expression or reduce the data that it reads"
    ))
}

/// A cached result, and the time at which it expires; `None` if it does not expire.
#[derive(Clone)]
struct Known {
    answer: Answer,
    until: Option<Instant>,
}

/// Cache of results in two generations. A result that is used moves to the recent generation. Unused results are dropped together with the
/// older generation.
#[derive(Default)]
struct Answers {
    recent: HashMap<Hash, Known>,
    older: HashMap<Hash, Known>,
    evaluating: HashSet<Hash>,
}

impl Answers {
    fn get(&mut self, hash: &Hash, now: Instant) -> Option<Answer> {
        if let Some(known) = self.older.remove(hash) {
            self.set(*hash, known);
        }
        let known = self.recent.get(hash)?;
        known.until.is_none_or(|until| now < until).then(|| known.answer.clone())
    }

    fn set(&mut self, hash: Hash, known: Known) {
        if self.recent.len() >= MAX_REMEMBERED {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(hash, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: usize) -> Hash {
        Sha256::digest(number.to_be_bytes()).into()
    }

    #[test]
    fn the_answer_cache_is_bounded_and_keeps_recently_used_entries() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let known = |answer| Known { answer: Ok(answer), until: None };
        answers.set(hash(0), known(true));
        for number in 1..=10 * MAX_REMEMBERED {
            answers.set(hash(number), known(false));
            if number % (MAX_REMEMBERED / 2) == 0 {
                assert_eq!(answers.get(&hash(0), now), Some(Ok(true)), "after {number}");
            }
        }
        assert!(answers.recent.len() + answers.older.len() <= 2 * MAX_REMEMBERED);
        assert_eq!(answers.get(&hash(1), now), None, "an unused result is dropped");
    }

    #[test]
    fn evaluation_uses_at_most_a_tenth_of_the_time_per_namespace() {
        let exceeded = || Err(Failed::Always(ExpressionError::LimitExceeded("too large".to_owned())));
        let answered = || Ok(Ok(true));
        let after = |answer, millis| backoff_after(&answer, Duration::from_millis(millis));
        assert_eq!(after(exceeded(), 1), Some(NAMESPACE_BACKOFF));
        assert_eq!(after(answered(), 10), None);
        assert_eq!(after(answered(), 900), Some(Duration::from_millis(8100)));
        assert_eq!(after(answered(), 5000), Some(NAMESPACE_BACKOFF));
    }

    #[test]
    fn a_cached_transient_failure_expires() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let failed = || Err(ExpressionError::Failed("timed out".to_owned()));
        answers.set(hash(0), Known { answer: failed(), until: Some(now + FAILURE_TTL) });
        assert_eq!(answers.get(&hash(0), now), Some(failed()), "the woken Stack receives the failure");
        assert_eq!(answers.get(&hash(0), now + FAILURE_TTL), None);
    }

    #[tokio::test(start_paused = true)]
    async fn expensive_namespaces_use_a_separate_slot_for_a_while() {
        let slots = ClassSlots::default();
        let at_once = Duration::from_millis(1);
        let acquire = async |namespace: &'static str| tokio::time::timeout(at_once, slots.acquire(namespace)).await;
        for namespace in ["one", "two", "three"] {
            let (slot, class) = acquire(namespace).await.unwrap().unwrap();
            assert_eq!(class, Class::Cheap, "the first evaluation of each namespace");
            slots.note_expensive(namespace);
            drop(slot);
        }
        let (expensive, class) = acquire("one").await.unwrap().unwrap();
        assert_eq!(class, Class::Expensive);
        assert!(acquire("two").await.is_err(), "there is one slot for expensive namespaces");
        let (_slot, class) = acquire("other").await.unwrap().unwrap();
        assert_eq!(class, Class::Cheap, "other namespaces do not wait for expensive ones");
        drop(expensive);
        tokio::time::advance(EXPENSIVE_TTL).await;
        assert_eq!(acquire("one").await.unwrap().unwrap().1, Class::Cheap);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_evaluations_change_their_class_with_the_namespace() {
        let slots = ClassSlots::default();
        let (first, _) = slots.acquire("apps").await.unwrap();
        let waiting = slots.acquire("apps");
        let finish = async {
            tokio::task::yield_now().await;
            slots.note_expensive("apps");
            drop(first);
        };
        let (waited, ()) = tokio::join!(waiting, finish);
        assert_eq!(waited.unwrap().1, Class::Expensive);
    }

    #[test]
    fn an_evaluation_is_expensive_if_it_exceeds_a_limit_or_takes_long() {
        let exceeded = || Err(Failed::Always(ExpressionError::LimitExceeded("too large".to_owned())));
        let rows = [(exceeded(), 1, true), (Ok(Ok(true)), 499, false), (Ok(Ok(true)), 500, true)];
        for (answer, millis, expected) in rows {
            assert_eq!(is_expensive(&answer, Duration::from_millis(millis)), expected, "{millis} ms");
        }
    }
}
