//! Polls for missing Secrets and ConfigMaps, and requeues the Updates and Workspaces that wait for them. All waiters
//! for the same object share one poll. The polls alternate between namespaces and have a limited rate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::auto::{Update, Workspace};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::requeue::Requeue;

/// Minimum interval between two polls for an object. The actual interval is an eighth of the time since the first
/// waiter was registered, but at least the minimum and at most the maximum.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval between two polls for an object.
const MAX_INTERVAL: Duration = Duration::from_secs(3);
/// Lifetime of a registration. The controllers register each waiter again every 30 seconds.
const REGISTRATION_TTL: Duration = Duration::from_secs(90);
/// Maximum number of objects per batch.
const BATCH: usize = 10;
/// Delay between two batches.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Kind of a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferencedKind {
    Secret,
    ConfigMap,
}

impl fmt::Display for ReferencedKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// Secret or ConfigMap that must exist before a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ReferencedKind,
    pub name: String,
    /// Description of the field or variable that contains the reference, such as `environment variable TOKEN`.
    pub referrer: String,
    /// Mount path of the object in the workspace pod.
    pub directory: String,
}

impl Reference {
    /// Returns the kind and the name, such as `Secret/aws`.
    pub fn object(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

/// Update or Workspace that waits for missing objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Waiter {
    Update(ObjectRef<Update>),
    Workspace(ObjectRef<Workspace>),
}

/// Missing object that the controller polls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Object {
    namespace: String,
    kind: ReferencedKind,
    name: String,
}

/// Waiters for an object, and the time of the next poll.
struct Entry {
    waiters: HashMap<Waiter, Instant>,
    since: Instant,
    due: Instant,
}

/// Missing objects in the order of their polls. A batch visits only the objects that it polls, and the expired objects
/// that it removes. A tenant can register tens of thousands of objects, so a scan of all objects would keep a CPU busy.
#[derive(Default)]
struct Objects {
    entries: HashMap<Arc<Object>, Entry>,
    queues: HashMap<String, Queue>,
    /// Next turn of each namespace. A namespace polls at most one object in each turn.
    turns: BTreeMap<Turn, String>,
    last_turn: u64,
}

/// Objects of one namespace.
#[derive(Default)]
struct Queue {
    /// Objects in the order of their next polls.
    due: BTreeSet<(Instant, Arc<Object>)>,
    turn: Option<Turn>,
}

/// Earliest time of a turn, and a number that orders the turns with the same time.
type Turn = (Instant, u64);

impl Objects {
    fn register(&mut self, object: Object, waiter: Waiter, now: Instant) {
        let until = now + REGISTRATION_TTL;
        if let Some(entry) = self.entries.get_mut(&object) {
            entry.waiters.insert(waiter, until);
            return;
        }
        let (object, due) = (Arc::new(object), now + MIN_INTERVAL);
        let entry = Entry { waiters: HashMap::from([(waiter, until)]), since: now, due };
        self.entries.insert(object.clone(), entry);
        let queue = self.queues.entry(object.namespace.clone()).or_default();
        queue.due.insert((due, object.clone()));
        if queue.turn.is_none_or(|(turn, _)| due < turn) {
            self.set_turn(&object.namespace, due);
        }
    }

    /// Returns at most [`BATCH`] objects that are due. The batch first contains one object from each namespace, then
    /// a second object from each namespace, and so on. The next batch continues with the next namespace.
    fn take_due(&mut self, now: Instant) -> Vec<Arc<Object>> {
        let mut taken = Vec::new();
        while taken.len() < BATCH
            && let Some(namespace) = self.pop_turn(now)
        {
            taken.extend(self.take_due_of(&namespace, now));
        }
        taken
    }

    fn pop_turn(&mut self, now: Instant) -> Option<String> {
        self.turns.first_key_value().filter(|((at, _), _)| *at <= now)?;
        self.turns.pop_first().map(|(_, namespace)| namespace)
    }

    /// Returns the next object of a namespace if it is due, and sets the next turn of the namespace. Removes expired
    /// objects that come before the returned object.
    fn take_due_of(&mut self, namespace: &str, now: Instant) -> Option<Arc<Object>> {
        let queue = self.queues.get_mut(namespace)?;
        let mut taken = None;
        while taken.is_none()
            && let Some(object) = queue.pop_due(now)
        {
            let Some(entry) = self.entries.get_mut(&object) else { continue };
            entry.waiters.retain(|_, until| *until > now);
            if entry.waiters.is_empty() {
                self.entries.remove(&object);
                continue;
            }
            entry.due = now + ((now - entry.since) / 8).clamp(MIN_INTERVAL, MAX_INTERVAL);
            queue.due.insert((entry.due, object.clone()));
            taken = Some(object);
        }
        match queue.due.first().map(|(due, _)| *due) {
            // With the time of an overdue object, the namespace would have all turns until no object is overdue.
            Some(due) => self.set_turn(namespace, due.max(now)),
            None => drop(self.queues.remove(namespace)),
        }
        taken
    }

    /// Sets the next turn of a namespace, after all other turns with the same time.
    fn set_turn(&mut self, namespace: &str, at: Instant) {
        let Some(queue) = self.queues.get_mut(namespace) else { return };
        self.last_turn += 1;
        if let Some(replaced) = queue.turn.replace((at, self.last_turn)) {
            self.turns.remove(&replaced);
        }
        self.turns.insert((at, self.last_turn), namespace.to_owned());
    }

    /// Removes an object, and returns its waiters. The next turn of the namespace can then be too early, and polls no
    /// object.
    fn remove(&mut self, object: &Object) -> Vec<Waiter> {
        let Some((object, entry)) = self.entries.remove_entry(object) else { return Vec::new() };
        if let Some(queue) = self.queues.get_mut(&object.namespace) {
            queue.due.remove(&(entry.due, object));
        }
        entry.waiters.into_keys().collect()
    }
}

impl Queue {
    fn pop_due(&mut self, now: Instant) -> Option<Arc<Object>> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first().map(|(_, object)| object)
    }
}

/// Missing objects that have waiters. Clones are cheap and share the same state.
#[derive(Clone, Default)]
pub struct Poll(Arc<Shared>);

#[derive(Default)]
struct Shared {
    // Hold the lock only for short critical sections, and never across an `.await`.
    objects: Mutex<Objects>,
    added: Notify,
}

impl fmt::Debug for Poll {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Poll").finish_non_exhaustive()
    }
}

impl Poll {
    /// Registers `waiter`. The poll requeues `waiter` as soon as the object exists. The registration expires after
    /// [`REGISTRATION_TTL`].
    pub(super) fn register(&self, namespace: &str, kind: ReferencedKind, name: &str, waiter: &Waiter) {
        let object = Object { namespace: namespace.to_owned(), kind, name: name.to_owned() };
        self.lock().register(object, waiter.clone(), Instant::now());
        self.0.added.notify_one();
    }

    /// Returns the references to the missing objects for which `waiter` is registered. These objects do not exist
    /// according to the last poll.
    pub(super) fn awaited(&self, namespace: &str, references: &[Reference], waiter: &Waiter) -> Vec<Reference> {
        let (objects, now) = (self.lock(), Instant::now());
        let is_awaited = |reference: &&Reference| {
            let object = Object { namespace: namespace.to_owned(), kind: reference.kind, name: reference.name.clone() };
            objects.entries.get(&object).and_then(|entry| entry.waiters.get(waiter)).is_some_and(|until| *until > now)
        };
        references.iter().filter(is_awaited).cloned().collect()
    }

    /// Polls for missing objects until `end` is canceled.
    pub async fn run(
        self,
        reader: Reader,
        updates: Requeue<Update>,
        workspaces: Requeue<Workspace>,
        end: CancellationToken,
    ) {
        let polling = async {
            loop {
                self.until_due().await;
                let due = self.lock().take_due(Instant::now());
                let found =
                    join_all(due.into_iter().map(async |object| (exists(&reader, &object).await, object))).await;
                for object in found.into_iter().filter(|(exists, _)| *exists).map(|(_, object)| object) {
                    let waiters = self.lock().remove(&object);
                    waiters.into_iter().for_each(|waiter| requeue(waiter, &updates, &workspaces));
                }
                tokio::time::sleep(BATCH_INTERVAL).await;
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = polling => {}
        }
    }

    async fn until_due(&self) {
        loop {
            let next = self.lock().turns.first_key_value().map(|((turn, _), _)| *turn);
            let added = self.0.added.notified();
            match next {
                Some(due) if due <= Instant::now() => return,
                Some(due) => drop(tokio::time::timeout_at(due, added).await),
                None => added.await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.0.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn requeue(waiter: Waiter, updates: &Requeue<Update>, workspaces: &Requeue<Workspace>) {
    match waiter {
        Waiter::Update(update) => updates.request(update),
        Waiter::Workspace(workspace) => workspaces.request(workspace),
    }
}

/// Returns whether the object exists. Also returns `true` if the controller has no permission to read the object, because
/// the next check of the references then ignores the object.
async fn exists(reader: &Reader, object: &Object) -> bool {
    let Object { namespace, kind, name } = object;
    let found: Result<bool, ReadError> = match kind {
        ReferencedKind::Secret => reader.get_metadata_opt::<Secret>(namespace, name).await.map(|found| found.is_some()),
        ReferencedKind::ConfigMap => {
            reader.get_metadata_opt::<ConfigMap>(namespace, name).await.map(|found| found.is_some())
        }
    };
    found.unwrap_or_else(|error| {
        tracing::debug!(%error, "failed to check whether a missing object exists");
        error.is_forbidden()
    })
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use serde_json::json;

    use super::*;
    use crate::controller::references::References;
    use crate::runtime::fake_api::{FakeResponse, client};
    use crate::runtime::requeue::queue;

    fn update(name: &str) -> Waiter {
        Waiter::Update(ObjectRef::new(name).within("apps"))
    }

    #[tokio::test(start_paused = true)]
    async fn waiters_for_an_object_are_requeued_when_it_exists() {
        let exists = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = exists.clone();
        let (client, log) = client(move |_| match seen.load(std::sync::atomic::Ordering::Relaxed) {
            false => FakeResponse::refusal(404, "NotFound"),
            true => FakeResponse::Json(
                200,
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "aws"}}),
            ),
        });
        let (updates, requeued) = queue();
        let (workspaces, requeued_workspaces) = queue();
        let (poll, end) = (Poll::default(), CancellationToken::new());
        let reader = Reader::new(client, Duration::from_secs(5));
        let polling = tokio::spawn(poll.clone().run(reader, updates, workspaces, end.clone()));
        poll.register("apps", ReferencedKind::Secret, "aws", &update("a"));
        poll.register("apps", ReferencedKind::Secret, "aws", &update("b"));
        poll.register("apps", ReferencedKind::Secret, "aws", &Waiter::Workspace(ObjectRef::new("w").within("apps")));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let requests = log.all().len();
        assert!((18..=40).contains(&requests), "one object, every one to three seconds: {requests}");
        exists.store(true, std::sync::atomic::Ordering::Relaxed);
        let names = requeued.take(2).map(|update| update.name).collect::<BTreeSet<_>>();
        let names = tokio::time::timeout(Duration::from_secs(5), names).await.expect("ends within the timeout");
        assert_eq!(names, ["a".to_owned(), "b".to_owned()].into());
        assert_eq!(requeued_workspaces.take(1).map(|workspace| workspace.name).collect::<Vec<_>>().await, ["w"]);
        let requests = log.all().len();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(log.all().len(), requests, "no request without a waiting object");
        end.cancel();
        polling.await.expect("ends within the timeout");
    }

    fn secret(name: &str) -> Object {
        Object { namespace: "apps".to_owned(), kind: ReferencedKind::Secret, name: name.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_references_of_a_waiter_are_read_again_when_the_poll_has_found_all_missing_objects() {
        let row = json!({"cells": [1], "object": {"metadata": {"name": "there"}}});
        let table = json!({"kind": "Table", "columnDefinitions": [{"name": "Data"}], "rows": [row]});
        let (client, log) = client(move |request| match request.path.ends_with("/there") {
            true => FakeResponse::Json(200, table.clone()),
            false => FakeResponse::refusal(404, "NotFound"),
        });
        let poll = Poll::default();
        let references = References::new(Reader::new(client, Duration::from_secs(5)), poll.clone());
        let all = ["there", "one", "two"].map(|name| {
            let (name, referrer, directory) = (name.to_owned(), "envFrom".to_owned(), format!("/mounts/{name}"));
            Reference { kind: ReferencedKind::Secret, name, referrer, directory }
        });
        // Returns the missing objects and the number of requests.
        let check = async |waiter: &Waiter| {
            let before = log.all().len();
            let checked = references.check("apps", &all, None, waiter).await.expect("result is set");
            references.register("apps", &checked.missing, waiter);
            let missing: Vec<String> = checked.missing.into_iter().map(|reference| reference.name).collect();
            (missing.join(" "), log.all().len() - before)
        };
        let result = |missing: &str, requests: usize| (missing.to_owned(), requests);
        assert_eq!(check(&update("a")).await, result("one two", 3));
        assert_eq!(check(&update("a")).await, result("one two", 0), "both objects are still missing");
        assert_eq!(check(&update("b")).await, result("one two", 3), "each waiter reads all objects once");
        assert_eq!(poll.lock().remove(&secret("one")).len(), 2);
        assert_eq!(check(&update("a")).await, result("two", 0), "the poll has found one of the objects");
        assert_eq!(poll.lock().remove(&secret("two")).len(), 2);
        assert_eq!(check(&update("a")).await, result("one two", 3), "a user has deleted the objects again");
        tokio::time::advance(REGISTRATION_TTL).await;
        assert_eq!(check(&update("a")).await, result("one two", 3), "the registration has expired");
    }

    #[tokio::test]
    async fn an_object_that_the_controller_may_not_read_has_no_waiters() {
        for (code, reason, expected) in [(403, "Forbidden", true), (404, "NotFound", false), (500, "Internal", false)] {
            let (client, _) = client(move |_| FakeResponse::refusal(code, reason));
            let reader = Reader::new(client, Duration::from_secs(5));
            assert_eq!(exists(&reader, &secret("aws")).await, expected, "{reason}");
        }
    }

    fn is_empty(poll: &Poll) -> bool {
        let objects = poll.lock();
        objects.entries.is_empty() && objects.queues.is_empty() && objects.turns.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn the_registration_of_a_waiter_expires_unless_it_is_renewed() {
        let poll = Poll::default();
        poll.register("apps", ReferencedKind::Secret, "aws", &update("a"));
        tokio::time::advance(Duration::from_secs(60)).await;
        poll.register("apps", ReferencedKind::Secret, "aws", &update("b"));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(poll.lock().take_due(Instant::now()).len(), 1);
        assert_eq!(poll.lock().entries.values().map(|entry| entry.waiters.len()).sum::<usize>(), 1);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(poll.lock().take_due(Instant::now()).is_empty());
        assert!(is_empty(&poll));
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_many_waiters_does_not_delay_others() {
        let poll = Poll::default();
        for number in 0..1000 {
            poll.register("crowd", ReferencedKind::Secret, &format!("s{number}"), &update("a"));
        }
        tokio::time::advance(Duration::from_millis(10)).await;
        poll.register("apps", ReferencedKind::Secret, "aws", &update("a"));
        tokio::time::advance(MIN_INTERVAL).await;
        let taken = poll.lock().take_due(Instant::now());
        assert_eq!(taken.len(), BATCH);
        assert!(taken.iter().any(|object| object.namespace == "apps"), "{taken:?}");
        let next = poll.lock().take_due(Instant::now());
        assert!(next.iter().all(|object| !taken.contains(object)), "no object is polled twice before the others");
    }

    #[tokio::test(start_paused = true)]
    async fn the_namespaces_have_equal_shares_of_the_polls() {
        let rows: [(&str, &[usize], u32, &[usize]); 5] = [
            ("one namespace", &[50], 1, &[10]),
            ("two namespaces", &[50, 50], 1, &[5, 5]),
            ("a namespace with few objects", &[2, 50], 1, &[2, 8]),
            ("the next batch continues with the next namespace", &[50, 50, 50], 3, &[10, 10, 10]),
            ("more namespaces than objects in a batch", &[5; 20], 2, &[1; 20]),
        ];
        for (name, registered, batches, expected) in rows {
            let poll = Poll::default();
            for (namespace, objects) in registered.iter().enumerate() {
                for object in 0..*objects {
                    poll.register(&namespace.to_string(), ReferencedKind::Secret, &format!("s{object}"), &update("a"));
                }
            }
            tokio::time::advance(MIN_INTERVAL).await;
            let mut polled = vec![0_usize; registered.len()];
            for _ in 0..batches {
                for object in poll.lock().take_due(Instant::now()) {
                    polled[object.namespace.parse::<usize>().expect("a number")] += 1;
                }
                tokio::time::advance(BATCH_INTERVAL).await;
            }
            assert_eq!(polled, expected, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_overdue_objects_of_many_namespaces_do_not_delay_others() {
        let poll = Poll::default();
        for number in 0..2000 {
            let namespace = format!("crowd-{}", number % (2 * BATCH));
            poll.register(&namespace, ReferencedKind::Secret, &format!("s{number}"), &update("a"));
        }
        tokio::time::advance(MIN_INTERVAL).await;
        for _ in 0..15 {
            assert_eq!(poll.lock().take_due(Instant::now()).len(), BATCH);
            tokio::time::advance(BATCH_INTERVAL).await;
        }
        poll.register("apps", ReferencedKind::Secret, "aws", &update("a"));
        tokio::time::advance(MIN_INTERVAL).await;
        let mut taken = Vec::new();
        for _ in 0..3 {
            taken.extend(poll.lock().take_due(Instant::now()));
            tokio::time::advance(BATCH_INTERVAL).await;
        }
        assert!(taken.iter().any(|object| object.namespace == "apps"), "{taken:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_is_polled_when_it_is_due() {
        let poll = Poll::default();
        let names_after = async |delay: Duration| {
            tokio::time::advance(delay).await;
            let due = poll.lock().take_due(Instant::now());
            due.into_iter().map(|object| object.name.clone()).collect::<Vec<_>>().join(" ")
        };
        let second = Duration::from_secs(1);
        poll.register("apps", ReferencedKind::Secret, "old", &update("a"));
        assert_eq!(names_after(60 * second).await, "old");
        poll.register("apps", ReferencedKind::Secret, "new", &update("a"));
        assert_eq!(names_after(second).await, "new", "a new object is due before the other object");
        assert_eq!(poll.lock().remove(&secret("new")), [update("a")]);
        assert_eq!(names_after(second).await, "", "only the removed object was due");
        assert_eq!(names_after(second).await, "old");
        assert_eq!(poll.lock().remove(&secret("old")), [update("a")]);
        assert!(poll.lock().remove(&secret("old")).is_empty(), "already removed");
        assert_eq!(names_after(MAX_INTERVAL).await, "");
        assert!(is_empty(&poll), "a namespace without objects has no turns");
    }
}
