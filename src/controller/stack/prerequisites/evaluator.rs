//! Has the expressions of Stacks evaluated, in child processes with limits, and remembers the answers.

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
use crate::runtime::fair_slots::{self, FairSlots, Slot};
use crate::subprocess::{Failure, Limits, Subprocess};

/// The child's role on the command line.
pub const ROLE: &str = "evaluate";
/// What one evaluation may use. Two Stacks of the largest size that etcd takes need about half of the memory.
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
    answer: 8 << 10,
};
/// How many expressions are evaluated at once. A namespace has one child process at a time, and a few callers that wait for it.
const SLOTS: fair_slots::Limits = fair_slots::Limits { total: 2, per_key: 1, waiting_per_key: 8 };
/// How much longer a namespace evaluates nothing than its last evaluation took, if that was longer than [`CHEAP`]: it uses a tenth of a CPU
/// at most.
const BACKOFF_FACTOR: u32 = 9;
/// An evaluation that takes no longer needs no backoff.
const CHEAP: Duration = Duration::from_millis(50);
/// How long a namespace evaluates nothing after one of its expressions has exceeded a limit: it uses a tenth of a CPU at most.
const NAMESPACE_BACKOFF: Duration = Duration::from_secs(10);
/// How long a reconcile waits for an answer before it goes on with other Stacks. Most answers take a few milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
/// The largest request: two objects of the largest size that the API server stores, and an expression.
const MAX_REQUEST: usize = 4 << 20;
/// How many answers are remembered, in each of two generations.
const MAX_REMEMBERED: usize = 4096;
/// How long a failure is remembered that may be gone the next time.
const FAILURE_TTL: Duration = Duration::from_secs(20);

type Answer = Result<bool, ExpressionError>;
/// The hash of a request.
type Hash = [u8; 32];

/// Evaluates expressions. Cheap to clone; all clones share what they know.
#[derive(Clone)]
pub struct Evaluator(Arc<Shared>);

struct Shared {
    subprocess: Subprocess,
    slots: FairSlots,
    wake: mpsc::Sender<ObjectRef<Stack>>,
    tasks: TaskTracker,
    end: CancellationToken,
    /// Locked for short sections only, never across an await.
    answers: Mutex<Answers>,
}

impl fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Evaluator").finish_non_exhaustive()
    }
}

/// The most memory that all children take at once.
pub fn most_memory() -> u64 {
    LIMITS.memory.saturating_mul(u64::try_from(SLOTS.total).unwrap_or(u64::MAX))
}

impl Evaluator {
    /// With a sender for the Stacks that are to look again, because their answer is there.
    pub fn new(
        subprocess: Subprocess,
        wake: mpsc::Sender<ObjectRef<Stack>>,
        tasks: TaskTracker,
        end: CancellationToken,
    ) -> Self {
        let (slots, answers) = (FairSlots::new(SLOTS), Mutex::default());
        Self(Arc::new(Shared { subprocess, slots, wake, tasks, end, answers }))
    }

    /// Whether the expression of the Stack `this` is true of it and the other one. Nothing if that takes longer than a moment: the Stack
    /// is woken when the answer is known. The same question has the same answer without another evaluation.
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
        let (tell, mut told) = oneshot::channel();
        let end = self.0.end.clone();
        self.0.tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = evaluation.run(of, request, tell) => {}
            }
        });
        match tokio::time::timeout(ANSWER_TIMEOUT, &mut told).await {
            Ok(answer) => answer.ok(),
            Err(_) => {
                // From here on the Stack is woken. What came in the meantime is not lost.
                told.close();
                told.try_recv().ok()
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
        "cannot be evaluated: the two Stacks have more than {MAX_REQUEST} bytes together. Reduce their outputs"
    ))
}

/// An evaluation at work. Dropped, it may begin again.
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
    async fn run(self, of: ObjectKey, request: Vec<u8>, tell: oneshot::Sender<Answer>) {
        let mut began = Instant::now();
        let (answer, mut slot) = match self.shared.slots.acquire(&of.0).await {
            Ok(slot) => {
                began = Instant::now();
                (self.shared.evaluate(request).await, Some(slot))
            }
            Err(busy) => (
                Err(Failed::Now(format!(
                    "{} other expressions of this namespace already wait to be evaluated",
                    busy.waiting
                ))),
                None,
            ),
        };
        let backoff = backoff_after(&answer, began.elapsed());
        let (answer, until) = match answer {
            Ok(answer) => (answer, None),
            Err(Failed::Always(error)) => (Err(error), None),
            Err(Failed::Now(why)) => (Err(ExpressionError::Failed(why)), Some(Instant::now() + FAILURE_TTL)),
        };
        self.shared.lock().set(self.hash, Known { answer: answer.clone(), until });
        drop(self.tell(&of, answer, tell));
        if let Some(backoff) = backoff {
            slot.iter_mut().for_each(Slot::release_total);
            tokio::time::sleep(backoff).await;
        }
    }

    /// Tells the caller, or wakes the Stack when it waits no longer.
    fn tell(self, of: &ObjectKey, answer: Answer, tell: oneshot::Sender<Answer>) -> Self {
        if tell.send(answer).is_err() {
            let stack = ObjectRef::new(&of.1).within(&of.0);
            if self.shared.wake.clone().try_send(stack).is_err() {
                tracing::debug!(namespace = of.0, stack = of.1, "it could not be woken; it looks again by itself");
            }
        }
        self
    }
}

/// Why a child gave no answer.
enum Failed {
    /// It would give none the next time.
    Always(ExpressionError),
    /// The next one may.
    Now(String),
}

/// How long the namespace evaluates nothing after an evaluation that took so long.
fn backoff_after(answer: &Result<Answer, Failed>, took: Duration) -> Option<Duration> {
    if matches!(answer, Err(Failed::Always(ExpressionError::LimitExceeded(_)))) {
        return Some(NAMESPACE_BACKOFF);
    }
    (took > CHEAP).then(|| NAMESPACE_BACKOFF.min(took * BACKOFF_FACTOR))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn evaluate(&self, request: Vec<u8>) -> Result<Answer, Failed> {
        match self.subprocess.run(ROLE, &request, &LIMITS).await {
            Ok(answer) => serde_json::from_slice(&answer).map_err(|error| Failed::Now(error.to_string())),
            Err(failure) if failure.is_of_input() => Err(Failed::Always(limit_exceeded(&failure))),
            Err(failure) => Err(Failed::Now(failure.to_string())),
        }
    }
}

fn limit_exceeded(failure: &Failure) -> ExpressionError {
    ExpressionError::LimitExceeded(format!(
        "cannot be evaluated: {failure}. Simplify the expression, or have it look at less data"
    ))
}

/// An answer, and how long it is good if it is not good for ever.
#[derive(Clone)]
struct Known {
    answer: Answer,
    until: Option<Instant>,
}

/// What was answered. What is asked for stays, what is not is forgotten in the end.
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
    fn answers_are_bounded_and_those_asked_for_stay() {
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
        assert_eq!(answers.get(&hash(1), now), None, "what nobody asks for is forgotten");
    }

    #[test]
    fn a_namespace_evaluates_for_a_tenth_of_the_time_at_most() {
        let exceeded = || Err(Failed::Always(ExpressionError::LimitExceeded("too large".to_owned())));
        let answered = || Ok(Ok(true));
        let after = |answer, millis| backoff_after(&answer, Duration::from_millis(millis));
        assert_eq!(after(exceeded(), 1), Some(NAMESPACE_BACKOFF));
        assert_eq!(after(answered(), 10), None);
        assert_eq!(after(answered(), 900), Some(Duration::from_millis(8100)));
        assert_eq!(after(answered(), 5000), Some(NAMESPACE_BACKOFF));
    }

    #[test]
    fn a_failure_that_may_pass_is_forgotten_after_a_while() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let failed = || Err(ExpressionError::Failed("it was not done in time".to_owned()));
        answers.set(hash(0), Known { answer: failed(), until: Some(now + FAILURE_TTL) });
        assert_eq!(answers.get(&hash(0), now), Some(failed()), "whoever is woken by it hears of it");
        assert_eq!(answers.get(&hash(0), now + FAILURE_TTL), None);
    }
}
