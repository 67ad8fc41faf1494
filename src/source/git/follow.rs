//! The task that follows a repository: it asks the server when it is time, and fetches what somebody needs.

use std::sync::Arc;
use std::time::Duration;

use futures::SinkExt;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::artifact::Algorithm;
use crate::source::git::answers::{Fetched, Need};
use crate::source::git::content::{self, Content};
use crate::source::git::error::GitError;
use crate::source::git::paths::Paths;
use crate::source::git::reference::{Reference, Tip};
use crate::source::git::remote::Remote;
use crate::source::git::wanted::Auth;
use crate::source::git::{Follower, Key, Settings, Shared};

/// How long to wait after a first failure; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// No wait after a failure is longer, unless the repository is asked less often anyway.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 60);
/// How much later than it could be a question is asked at most, so that not all are asked at once.
const JITTER: f64 = 0.1;

/// When a repository is asked next.
#[derive(Debug, Default)]
struct Turn {
    due: Option<Instant>,
    /// How often in a row it could not be asked, and how often a commit could not be fetched.
    unanswered: u32,
    unfetched: u32,
}

impl Shared {
    /// Follows a repository until nobody does any more.
    pub(super) async fn follow(self: Arc<Self>, key: &Arc<Key>) {
        tracing::debug!(repository = %key.repository, reference = %key.reference, "following");
        let mut turn = Turn::default();
        loop {
            let is_due = turn.due.is_some_and(|due| due <= Instant::now());
            let need = self.lock().need(key, is_due);
            let step = async {
                match need {
                    Need::Nothing => return false,
                    Need::Ask(covers) => self.ask(key, covers, &mut turn).await,
                    Need::Fetch(tip, choices) => self.fetch(key, &tip, choices, &mut turn).await,
                    Need::Wait(nudge) => {
                        let patience = async {
                            match turn.due {
                                Some(due) => tokio::time::sleep_until(due).await,
                                None => std::future::pending().await,
                            }
                        };
                        tokio::select! {
                            () = nudge.notified() => {}
                            () = patience => {}
                        }
                    }
                }
                true
            };
            let goes_on = tokio::select! {
                () = self.end.cancelled() => false,
                goes_on = step => goes_on,
            };
            if !goes_on {
                tracing::debug!(repository = %key.repository, reference = %key.reference, "following no more");
                return;
            }
        }
    }

    async fn ask(self: &Arc<Self>, key: &Arc<Key>, covers: u64, turn: &mut Turn) {
        let asked = self.tip(key).await;
        let interval = self.lock().interval(key).unwrap_or(FIRST_PAUSE);
        let told = match asked {
            Ok(tip) => {
                turn.answered(interval, key);
                Ok(tip)
            }
            Err(error) => {
                turn.unanswered(interval, &error);
                self.doubt_tokens(key, &error);
                // One that may be gone in a moment is told only if it is not.
                if error.is_passing() && turn.unanswered == 1 && self.lock().is_content(key, covers) {
                    tracing::debug!(repository = %key.repository, %error, "asking again soon");
                    return;
                }
                Err(said(key, &error))
            }
        };
        if let Err(message) = &told {
            tracing::warn!(message, "a repository cannot be followed");
        }
        let woken = self.lock().told(key, covers, told);
        self.wake(woken).await;
    }

    async fn fetch(self: &Arc<Self>, key: &Arc<Key>, tip: &Tip, choices: Vec<Paths>, turn: &mut Turn) {
        let fetched = match self.content(key, tip, choices).await {
            Ok(content) => {
                turn.unfetched = 0;
                Ok(Fetched {
                    commit: tip.commit.clone(),
                    digest: content.digest().clone(),
                    warnings: content.warnings,
                    selections: content.selections,
                })
            }
            Err(error) => {
                let interval = self.lock().interval(key).unwrap_or(FIRST_PAUSE);
                turn.unfetched(interval, &error);
                self.doubt_tokens(key, &error);
                let message = said(key, &error);
                tracing::warn!(message, revision = tip.revision(), "a commit cannot be fetched");
                Err(message)
            }
        };
        let woken = self.lock().fetched(key, tip, fetched);
        self.wake(woken).await;
    }

    fn doubt_tokens(&self, key: &Key, error: &GitError) {
        if matches!((&key.auth, error), (Auth::GitHubApp { .. }, GitError::CredentialsRefused(_))) {
            self.tokens.clear();
        }
    }

    /// Asks the server which commit is meant.
    async fn tip(self: &Arc<Self>, key: &Arc<Key>) -> Result<Tip, GitError> {
        if let Reference::Commit(_) = key.reference {
            return key.reference.select(&[]).ok_or(GitError::Empty);
        }
        let _permit = self.questions.acquire().await.map_err(stopped)?;
        let access = self.access(key).await?;
        let (runtime, key, limit) = (Handle::current(), Arc::clone(key), self.settings.limits.list_time);
        let asked = tokio::task::spawn_blocking(move || {
            let mut remote = Remote::open(runtime, &key.repository, &access, "asking the server", limit)?;
            match key.reference.select(&remote.list(&key.reference.prefixes())?) {
                Some(tip) => Ok(tip),
                None => Err(key.reference.missing(&remote.list(&[])?)),
            }
        });
        asked.await.map_err(stopped)?
    }

    /// Fetches a commit and packs it into the store.
    async fn content(self: &Arc<Self>, key: &Arc<Key>, tip: &Tip, choices: Vec<Paths>) -> Result<Content, GitError> {
        let _permit = self.fetches.acquire().await.map_err(stopped)?;
        let access = self.access(key).await?;
        let (runtime, shared, key, commit) = (Handle::current(), Arc::clone(self), Arc::clone(key), tip.commit.clone());
        let fetched = tokio::task::spawn_blocking(move || {
            let Settings { work, limits, artifact_limits, .. } = &shared.settings;
            let failed = |cause| GitError::Disk { directory: work.display().to_string(), cause };
            let directory = tempfile::TempDir::new_in(work).map_err(failed)?;
            let mut remote = Remote::open(runtime, &key.repository, &access, "fetching", limits.fetch_time)?;
            let bundle = remote.fetch(&commit, key.full_history, directory.path(), limits)?;
            drop(remote);
            let incoming = shared.store.begin(Algorithm::Sha256)?;
            content::make(&bundle, &commit, incoming, artifact_limits.clone(), &choices)
        });
        fetched.await.map_err(stopped)?
    }

    async fn wake(&self, followers: Vec<Follower>) {
        let mut wake = self.wake.clone();
        for follower in followers {
            // Nobody listens any more only when the controller ends.
            if wake.send(follower).await.is_err() {
                return;
            }
        }
    }
}

/// What went wrong with which repository.
fn said(key: &Key, error: &GitError) -> String {
    format!("cannot follow {} of {}: {error}", key.reference, key.repository)
}

fn stopped(error: impl std::error::Error) -> GitError {
    GitError::Protocol(format!("working on the answer ended early: {error}"))
}

impl Turn {
    /// The server has answered. A commit that could not be fetched is tried again with the next answer.
    fn answered(&mut self, interval: Duration, key: &Key) {
        self.unanswered = 0;
        self.due = match key.reference {
            Reference::Commit(_) => None,
            _ => Some(Instant::now() + later(interval)),
        };
    }

    fn unanswered(&mut self, interval: Duration, error: &GitError) {
        self.due = Some(Instant::now() + pause(self.unanswered, interval, error));
        self.unanswered = self.unanswered.saturating_add(1);
    }

    fn unfetched(&mut self, interval: Duration, error: &GitError) {
        self.due = Some(Instant::now() + pause(self.unfetched, interval, error));
        self.unfetched = self.unfetched.saturating_add(1);
    }
}

/// How long to wait after so many failures and this one.
fn pause(failures: u32, interval: Duration, error: &GitError) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_PAUSE.max(interval));
    error.patience().unwrap_or_else(|| later(pause))
}

fn later(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + JITTER * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::git::url::RepositoryUrl;

    fn seconds(turn: &Turn) -> f64 {
        turn.due.unwrap().duration_since(Instant::now()).as_secs_f64()
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_server_that_fails_is_asked_less_and_less_often() {
        let mut turn = Turn::default();
        for least in [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0] {
            turn.unanswered(MINUTE, &GitError::Empty);
            assert!((least - 1.0..=least * 1.1).contains(&seconds(&turn)), "{turn:?}");
        }
        turn.unanswered(MINUTE, &GitError::Busy { status: 429, after: Duration::from_secs(77) });
        assert!((76.0..=77.0).contains(&seconds(&turn)), "{turn:?}");
    }

    #[test]
    fn a_commit_that_cannot_be_fetched_is_fetched_less_and_less_often_though_the_server_answers() {
        let key = Key {
            repository: RepositoryUrl::parse("https://example.com/app").unwrap(),
            reference: Reference::Name("main".to_owned()),
            full_history: false,
            auth: Auth::Nothing,
            namespace: String::new(),
        };
        let mut turn = Turn::default();
        for least in [10.0, 20.0, 40.0, 80.0] {
            turn.answered(MINUTE, &key);
            assert!((59.0..=66.0).contains(&seconds(&turn)), "{turn:?}");
            turn.unfetched(MINUTE, &GitError::Empty);
            assert!((least - 1.0..=least * 1.1).contains(&seconds(&turn)), "{turn:?}");
        }
    }
}
