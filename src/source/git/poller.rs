//! The async task that follows a repository: polls the server and fetches the commits that followers need.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc;
use futures::{FutureExt, SinkExt};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::artifact::{self, Algorithm, Pinned, Store};
use crate::source::Unavailable;
use crate::source::git::cache::{Cache, Fetched, Follower, NextAction};
use crate::source::git::child;
use crate::source::git::credentials::AccessReader;
use crate::source::git::error::GitError;
use crate::source::git::pack_index;
use crate::source::git::paths::Paths;
use crate::source::git::reference::{Reference, Tip};
use crate::source::git::request::{Download, Limits, List, Pack, Packed};
use crate::source::git::slots::{self, Slot, Slots, TaskSlots};
use crate::source::git::spec::{Auth, Key, MAX_INTERVAL};
use crate::subprocess::Subprocess;

/// Backoff after the first failure. Each further failure doubles the backoff.
const MIN_BACKOFF: Duration = Duration::from_secs(10);
/// Backoff after the first fetch that the controller aborted because another namespace was waiting for a slot.
const ENDED_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum backoff, unless the poll interval is longer.
const MAX_BACKOFF: Duration = Duration::from_secs(10 * 60);
/// Time after a panic of a repository's async task until the followers start another task.
const PANIC_BACKOFF: Duration = Duration::from_secs(60);
/// Maximum total size of the patterns from all Stacks that use a repository, in bytes.
const MAX_PATTERNS: usize = 1 << 20;
/// Maximum jitter, as a fraction of an interval or backoff. The jitter prevents polls of different repositories at the
/// same time.
const JITTER: f64 = 0.1;

/// Settings for polling Git repositories.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Working directory for fetched files that are not yet packed. The directory must not contain other files.
    pub work: PathBuf,
    /// Directory with the optional files `known_hosts` and `ca.crt` for all Stacks.
    pub trust: PathBuf,
    pub limits: Limits,
    /// Limits for the artifacts that the controller builds from commits.
    pub artifact_limits: artifact::Limits,
    /// Slots for queries and fetches. All repositories share these slots.
    pub slots: Slots,
    /// Starts the child processes that parse data from servers.
    pub subprocess: Subprocess,
}

/// State that all clones of `Git` share.
pub(super) struct Shared {
    pub(super) access: AccessReader,
    pub(super) store: Store,
    pub(super) settings: Settings,
    pub(super) requeue: mpsc::Sender<Follower>,
    pub(super) tasks: TaskTracker,
    pub(super) end: CancellationToken,
    /// Hold the mutex only for short critical sections, and never across an `.await`.
    pub(super) cache: Mutex<Cache>,
}

/// A repository's poll schedule.
#[derive(Debug, Default)]
struct Schedule {
    due: Option<Instant>,
    /// Time of the last query, and the poll interval that determines `due`. `None` if a backoff determines `due`.
    queried: Option<(Instant, Duration)>,
    /// Number of consecutive failed queries.
    failed_queries: u32,
    /// Number of consecutive failed fetches.
    failed_fetches: u32,
    /// Number of consecutive fetches that the controller aborted because other namespaces were waiting for a slot.
    ended_fetches: u32,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls a repository until it has no followers. If the polling panics, removes the repository. Otherwise, the
    /// followers in all namespaces would wait for this task forever.
    pub(super) async fn follow(self: Arc<Self>, key: &Arc<Key>) {
        let polling = Box::pin(Arc::clone(&self).poll(key));
        if AssertUnwindSafe(polling).catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!(repository = %key.repository, reference = %key.reference, "polling of Git repository panicked");
        let followers = self.lock().remove(key);
        tokio::select! {
            () = self.end.cancelled() => {}
            () = tokio::time::sleep(PANIC_BACKOFF) => self.requeue(followers).await,
        }
    }

    async fn poll(self: Arc<Self>, key: &Arc<Key>) {
        tracing::debug!(repository = %key.repository, reference = %key.reference, "started following Git repository");
        let mut schedule = Schedule::default();
        loop {
            let (action, abandoned) = {
                let mut cache = self.lock();
                schedule.shorten(cache.interval(key));
                let is_due = schedule.due.is_some_and(|due| due <= Instant::now());
                (cache.next_action(key, is_due), cache.abandoned(key))
            };
            let step = async {
                match action {
                    NextAction::Stop => return false,
                    NextAction::Query(requests) => self.query(key, requests, &mut schedule).await,
                    NextAction::Fetch(tip, choices) => self.fetch(key, &tip, choices, &mut schedule).await,
                    NextAction::Wait(notify) => {
                        let due = async {
                            match schedule.due {
                                Some(due) => tokio::time::sleep_until(due).await,
                                None => std::future::pending().await,
                            }
                        };
                        tokio::select! {
                            () = notify.notified() => {}
                            () = due => {}
                        }
                    }
                }
                true
            };
            let is_followed = tokio::select! {
                () = self.end.cancelled() => false,
                // Dropping the future `step` kills its child process.
                () = abandoned.cancelled() => true,
                is_followed = step => is_followed,
            };
            if !is_followed {
                tracing::debug!(repository = %key.repository, reference = %key.reference, "stopped following Git repository");
                return;
            }
        }
    }

    async fn query(self: &Arc<Self>, key: &Arc<Key>, requests: u64, schedule: &mut Schedule) {
        let queried = self.query_tip(key).await;
        let interval = self.lock().interval(key).unwrap_or(MIN_BACKOFF);
        let tip = match queried {
            Ok(tip) => {
                schedule.query_succeeded(interval, key);
                Ok(tip)
            }
            Err(error) => {
                schedule.query_failed(interval, &error);
                self.discard_refused_tokens(key, &error);
                // Does not report the first transient error, unless a follower waits for the response.
                if error.is_transient() && schedule.failed_queries == 1 && self.lock().is_tip_sufficient(key, requests)
                {
                    tracing::debug!(repository = %key.repository, %error, "query failed; retrying");
                    return;
                }
                let error = unavailable(key, &error);
                tracing::warn!(%error, "failed to poll Git repository");
                Err(error)
            }
        };
        let followers = self.lock().record_tip(key, requests, tip);
        self.requeue(followers).await;
    }

    async fn fetch(self: &Arc<Self>, key: &Arc<Key>, tip: &Tip, choices: Vec<Paths>, schedule: &mut Schedule) {
        let content = self.fetch_content(key, tip, choices, schedule.ended_fetches).await;
        count_ended(&mut schedule.ended_fetches, &content);
        let fetched = match content {
            Ok(fetched) => {
                schedule.failed_fetches = 0;
                Ok(fetched)
            }
            Err(error) => {
                let interval = self.lock().interval(key).unwrap_or(MIN_BACKOFF);
                schedule.fetch_failed(interval, &error);
                self.discard_refused_tokens(key, &error);
                let error = unavailable(key, &error);
                tracing::warn!(%error, revision = tip.revision(), "failed to fetch Git commit");
                Err(error)
            }
        };
        let followers = self.lock().record_fetch(key, tip, fetched);
        self.requeue(followers).await;
    }

    fn discard_refused_tokens(&self, key: &Key, error: &GitError) {
        let may_be_app = matches!(key.auth, Auth::GitHubApp { .. } | Auth::Secret(_));
        if may_be_app && matches!(error, GitError::CredentialsRefused(_)) {
            self.access.discard_tokens();
        }
    }

    /// Queries the server for the commit to which the reference resolves.
    async fn query_tip(&self, key: &Key) -> Result<Tip, GitError> {
        if let Reference::Commit(_) = key.reference {
            return key.reference.select([]).ok_or(GitError::Empty);
        }
        let slot = self.acquire_slot(&self.settings.slots.queries, key, 0).await?;
        let work = async {
            let access = self.access.read(key).await?;
            let (repository, reference) = (key.repository.clone(), key.reference.clone());
            let limits = self.settings.limits.clone();
            child::list(&self.settings.subprocess, List { repository, access, reference, limits }).await
        };
        slot.run("querying the server", 0, || None, work).await
    }

    /// Fetches a commit and packs it into the store. `ended` is the value of [`Schedule::ended_fetches`].
    async fn fetch_content(&self, key: &Key, tip: &Tip, choices: Vec<Paths>, ended: u32) -> Result<Fetched, GitError> {
        let slot = self.acquire_slot(&self.settings.slots.fetches, key, ended).await?;
        let within = &self.settings.work;
        let directory = TempDir::new_in(within).map_err(|cause| GitError::disk(within, &cause))?;
        let pack = directory.path().join(pack_index::PACK);
        let received = || Some(std::fs::metadata(&pack).map_or(0, |metadata| metadata.len()));
        let work = async {
            let download = Download {
                repository: key.repository.clone(),
                access: self.access.read(key).await?,
                commit: tip.commit.clone(),
                full_history: key.full_history,
                directory: directory.path().to_owned(),
                limits: self.settings.limits.clone(),
            };
            child::download(&self.settings.subprocess, download).await
        };
        slot.run("fetching the commit", ended, received, work).await?;
        slot.run("packing the commit", ended, || None, self.pack(&directory, tip, choices)).await
    }

    /// Packs the commit in `directory` into the store.
    async fn pack(&self, directory: &TempDir, tip: &Tip, choices: Vec<Paths>) -> Result<Fetched, GitError> {
        let (choices, refused) = within_limit(choices);
        let mut incoming = self.store.begin(Algorithm::Sha256)?;
        let request = Pack {
            commit: tip.commit.clone(),
            directory: directory.path().to_owned(),
            archive: incoming.path().to_owned(),
            limits: self.settings.limits.clone(),
            archive_limits: self.settings.artifact_limits.clone(),
            choices: choices.clone(),
        };
        let Packed { warnings, selections, metadata } = child::pack(&self.settings.subprocess, request).await?;
        let largest = self.settings.artifact_limits.download_bytes;
        let store = move || -> Result<Pinned, GitError> {
            incoming.hash_file(largest)?;
            Ok(incoming.commit_as_is()?)
        };
        let stopped = |error| GitError::disk(&self.settings.work, &std::io::Error::other(error));
        let stored = tokio::task::spawn_blocking(store).await.map_err(stopped)??;
        let too_many = || {
            Err(format!("patterns of all Stacks that follow the repository exceed the limit of {MAX_PATTERNS} bytes"))
        };
        let selections =
            choices.into_iter().zip(selections).chain(refused.into_iter().map(|paths| (paths, too_many())));
        Ok(Fetched {
            commit: tip.commit.clone(),
            digest: stored.digest().clone(),
            warnings,
            metadata,
            selections: selections.collect(),
        })
    }

    /// Waits for a slot in any namespace that contains a follower of the repository.
    async fn acquire_slot(&self, slots: &TaskSlots, key: &Key, ended: u32) -> Result<Slot, GitError> {
        let namespaces = self.lock().namespaces(key);
        slots::of_any(slots, &namespaces, ended).await
    }

    async fn requeue(&self, followers: Vec<Follower>) {
        let mut requeue = self.requeue.clone();
        for follower in followers {
            // Sending fails only while the controller shuts down, after the receiver was dropped.
            if requeue.send(follower).await.is_err() {
                return;
            }
        }
    }
}

/// Splits the path lists. The lists in the first result are within the limit for the total pattern size. The second
/// result contains the remaining lists. Shorter lists take precedence.
fn within_limit(mut choices: Vec<Paths>) -> (Vec<Paths>, Vec<Paths>) {
    choices.sort_by_key(Paths::size);
    let mut left = MAX_PATTERNS;
    choices.into_iter().partition(|paths| {
        let fits = paths.size() <= left;
        left = if fits { left - paths.size() } else { 0 };
        fits
    })
}

/// Converts an error, and adds the repository and the reference to the message.
fn unavailable(key: &Key, error: &GitError) -> Unavailable {
    let message = format!("failed to fetch {} of {}: {error}", key.reference, key.repository);
    if error.is_stalled() { Unavailable::Stalled(message) } else { Unavailable::NotYet(message) }
}

/// Updates the number of consecutive fetches that the controller aborted because other namespaces were waiting for a
/// slot.
fn count_ended(count: &mut u32, done: &Result<Fetched, GitError>) {
    match done {
        Ok(_) => *count = 0,
        Err(GitError::Ended { .. }) => *count = count.saturating_add(1),
        Err(_) => {}
    }
}

impl Schedule {
    /// Schedules the next poll after a successful query. If the last fetch failed, the cache requests another fetch
    /// after the same query.
    fn query_succeeded(&mut self, interval: Duration, key: &Key) {
        self.failed_queries = 0;
        self.queried = match key.reference {
            Reference::Commit(_) => None,
            _ => Some((Instant::now(), interval)),
        };
        self.due = self.queried.map(|(queried, interval)| after(queried, with_jitter(interval)));
    }

    /// Schedules the next poll earlier if the poll interval is now shorter than at the last query. A backoff after an
    /// error remains unchanged.
    fn shorten(&mut self, interval: Option<Duration>) {
        let (Some((queried, previous)), Some(interval)) = (self.queried, interval) else { return };
        if interval < previous {
            let due = after(queried, with_jitter(interval));
            self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
            self.queried = Some((queried, interval));
        }
    }

    fn query_failed(&mut self, interval: Duration, error: &GitError) {
        self.back_off(backoff(self.failed_queries, interval, error));
        self.failed_queries = self.failed_queries.saturating_add(1);
    }

    fn fetch_failed(&mut self, interval: Duration, error: &GitError) {
        self.back_off(backoff(self.failed_fetches, interval, error));
        self.failed_fetches = self.failed_fetches.saturating_add(1);
    }

    fn back_off(&mut self, backoff: Duration) {
        self.queried = None;
        self.due = Some(after(Instant::now(), backoff));
    }
}

/// Returns the retry delay that the server specifies, or the backoff if the server specifies none. `failures` is the
/// number of earlier failures.
fn backoff(failures: u32, interval: Duration, error: &GitError) -> Duration {
    let first = if matches!(error, GitError::Ended { .. }) { ENDED_BACKOFF } else { MIN_BACKOFF };
    let backoff = first.saturating_mul(2_u32.saturating_pow(failures)).min(MAX_BACKOFF.max(interval));
    error.retry_after().unwrap_or_else(|| with_jitter(backoff))
}

/// Increases a duration of at most [`MAX_INTERVAL`] by a jitter.
fn with_jitter(duration: Duration) -> Duration {
    duration.min(MAX_INTERVAL).mul_f64(1.0 + JITTER * fastrand::f64())
}

/// Returns the time after a delay. If the clock cannot represent this time, returns `start`.
fn after(start: Instant, delay: Duration) -> Instant {
    start.checked_add(delay).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::git::url::RepositoryUrl;

    fn seconds(schedule: &Schedule) -> f64 {
        schedule.due.unwrap().duration_since(Instant::now()).as_secs_f64()
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn short_patterns_are_accepted_despite_long_patterns_of_another_stack() {
        let paths = |count: usize, length: usize| Paths::parse(&vec!["a".repeat(length); count]).unwrap().unwrap();
        let long: Vec<Paths> = (0..20).map(|more| paths(100, 1000 + more)).collect();
        let short = paths(3, 10);
        let (accepted, refused) = within_limit([long.clone(), vec![short.clone()]].concat());
        assert_eq!(accepted.first(), Some(&short));
        assert!(accepted.iter().map(Paths::size).sum::<usize>() <= MAX_PATTERNS);
        assert_eq!((accepted.len(), refused.len()), (11, 10));
    }

    #[test]
    fn queries_to_a_failing_server_are_backed_off() {
        let mut schedule = Schedule::default();
        for least in [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0] {
            schedule.query_failed(MINUTE, &GitError::Empty);
            assert!((least - 1.0..=least * 1.1).contains(&seconds(&schedule)), "{schedule:?}");
        }
        schedule.query_failed(MINUTE, &GitError::Busy { status: 429, after: Duration::from_secs(77) });
        assert!((76.0..=77.0).contains(&seconds(&schedule)), "{schedule:?}");
    }

    fn key() -> Key {
        Key {
            repository: RepositoryUrl::parse("https://example.com/app").unwrap(),
            reference: Reference::Name("main".to_owned()),
            full_history: false,
            auth: Auth::Nothing,
            namespace: String::new(),
        }
    }

    #[test]
    fn a_schedule_accepts_any_interval() {
        let max = MAX_INTERVAL.as_secs_f64();
        for interval in [MAX_INTERVAL, Duration::from_secs(i64::MAX.unsigned_abs()), Duration::MAX] {
            let mut schedule = Schedule::default();
            schedule.query_succeeded(interval, &key());
            assert!((max - 1.0..=max * 1.1).contains(&seconds(&schedule)), "{schedule:?}");
            schedule.failed_queries = u32::MAX;
            schedule.query_failed(interval, &GitError::Empty);
            assert!((max - 1.0..=max * 1.1).contains(&seconds(&schedule)), "{schedule:?}");
        }
        let mut schedule = Schedule::default();
        schedule.query_failed(MINUTE, &GitError::Busy { status: 429, after: Duration::MAX });
        assert!(schedule.due.is_some());
    }

    #[test]
    fn a_shorter_interval_moves_the_next_poll() {
        let hour = 60 * MINUTE;
        let mut schedule = Schedule::default();
        schedule.shorten(Some(MINUTE));
        assert_eq!(schedule.due, None, "the first query is not scheduled");
        schedule.query_succeeded(hour, &key());
        for (interval, least) in [
            (Some(hour), 3600.0),
            (None, 3600.0),
            (Some(10 * hour), 3600.0),
            (Some(10 * MINUTE), 600.0),
            (Some(hour), 600.0),
            (Some(MINUTE), 60.0),
        ] {
            schedule.shorten(interval);
            assert!((least - 1.0..=least * 1.1).contains(&seconds(&schedule)), "{interval:?}: {schedule:?}");
        }
    }

    #[test]
    fn a_shorter_interval_counts_from_the_last_query() {
        let mut schedule = Schedule::default();
        schedule.query_succeeded(60 * MINUTE, &key());
        let Some((queried, _)) = &mut schedule.queried else { panic!("a successful query") };
        let Some(earlier) = queried.checked_sub(30 * MINUTE) else { return };
        *queried = earlier;
        schedule.shorten(Some(MINUTE));
        assert!(schedule.due.is_some_and(|due| due <= Instant::now()), "{schedule:?}");
    }

    #[test]
    fn a_shorter_interval_does_not_shorten_a_backoff() {
        let mut schedule = Schedule::default();
        schedule.query_succeeded(60 * MINUTE, &key());
        schedule.query_failed(60 * MINUTE, &GitError::Busy { status: 429, after: 5 * MINUTE });
        let due = schedule.due;
        schedule.shorten(Some(MINUTE));
        assert_eq!(schedule.due, due);
        schedule.query_succeeded(60 * MINUTE, &key());
        schedule.fetch_failed(60 * MINUTE, &GitError::Busy { status: 429, after: 5 * MINUTE });
        let due = schedule.due;
        schedule.shorten(Some(MINUTE));
        assert_eq!(schedule.due, due);
    }

    #[test]
    fn the_schedule_of_a_commit_has_no_polls() {
        let commit = Key { reference: Reference::commit_or_name(&"a".repeat(40)), ..key() };
        let mut schedule = Schedule::default();
        schedule.query_succeeded(60 * MINUTE, &commit);
        schedule.shorten(Some(MINUTE));
        assert_eq!(schedule.due, None);
    }

    #[test]
    fn failed_fetches_are_backed_off_even_if_queries_succeed() {
        let key = key();
        let mut schedule = Schedule::default();
        for least in [10.0, 20.0, 40.0, 80.0] {
            schedule.query_succeeded(MINUTE, &key);
            assert!((59.0..=66.0).contains(&seconds(&schedule)), "{schedule:?}");
            schedule.fetch_failed(MINUTE, &GitError::Empty);
            assert!((least - 1.0..=least * 1.1).contains(&seconds(&schedule)), "{schedule:?}");
        }
    }
}
