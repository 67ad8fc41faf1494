//! Caches the state of each repository that has followers. A follower is a Stack or a Workspace that uses the
//! repository. This module performs no I/O and does not read the clock.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::api::auto::SourceMetadata;
use crate::artifact::{Digest, Revision};
use crate::source::git::metadata;
use crate::source::git::paths::Paths;
use crate::source::git::reference::{Reference, Tip};
use crate::source::git::spec::{Key, Origin, RepositorySpec};
use crate::source::{Origin as SourceOrigin, Resolved, Unavailable};

/// The namespace and the name of a Stack or a Workspace.
pub type Follower = (String, String);

/// The artifact that the last run of a Stack used. The digest comes from the Stack's status, so the cache does not need
/// to fetch the commit to determine the digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownArtifact {
    /// The artifact's revision, or the commit hash.
    pub revision: String,
    pub digest: Digest,
    pub selection: Option<String>,
    /// The Git metadata from the last run, which can belong to an earlier commit.
    pub metadata: Option<SourceMetadata>,
}

/// The data about a Stack that the cache needs to look up the repository's current commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// A user's last reconcile request for the Stack.
    pub request: Option<String>,
    /// Whether no run of the Stack has handled the request yet.
    pub is_new: bool,
    pub known: Option<KnownArtifact>,
}

/// The state of all repositories that have followers.
#[derive(Debug, Default)]
pub struct Cache {
    repositories: HashMap<Key, Repository>,
    /// The repository of each follower.
    followers: HashMap<Follower, Key>,
}

/// The state of one repository.
#[derive(Debug, Default)]
struct Repository {
    followers: HashMap<Follower, Following>,
    /// Total number of requests for an immediate query.
    requests: u64,
    /// Number of requests for an immediate query that the last response covers.
    completed_requests: u64,
    tip: Option<Result<Tip, Unavailable>>,
    content: Option<Fetched>,
    /// The commit of the last failed fetch, and the reason for the failure.
    failed: Option<(String, Unavailable)>,
    /// Whether a follower waits for the content of the tip.
    needs_content: bool,
    notify: Arc<Notify>,
    /// Token that the cache cancels when it removes the last follower.
    abandoned: CancellationToken,
}

/// A fetched commit.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub commit: String,
    pub digest: Digest,
    pub warnings: Vec<String>,
    /// The commit's author, committer and message.
    pub metadata: SourceMetadata,
    /// Maps each path list to the digest of the matching files, or to the reason why the digest is missing.
    pub selections: BTreeMap<Paths, Result<String, String>>,
}

/// The parameters of one follower.
#[derive(Debug)]
struct Following {
    interval: Duration,
    paths: Option<Paths>,
    request: Option<String>,
    /// Minimum value of `completed_requests`. If `completed_requests` is lower, the cached response is outdated for
    /// this follower.
    required_requests: u64,
}

/// The next action for a repository.
#[derive(Clone, Debug)]
pub enum NextAction {
    /// Stop following the repository, because the repository has no followers.
    Stop,
    /// Query the server. The response covers this number of requests.
    Query(u64),
    /// Fetch the tip and compute digests for the path lists. The second field contains the distinct path lists of all
    /// followers.
    Fetch(Tip, Vec<Paths>),
    /// Wait for the next poll or for a notification.
    Wait(Arc<Notify>),
}

impl Cache {
    /// Adds or updates a follower. Returns `true` if the repository is new. The caller must then start an async task
    /// that follows the repository.
    pub fn add_follower(&mut self, follower: &Follower, spec: &RepositorySpec, lookup: &Lookup) -> bool {
        if self.followers.get(follower).is_some_and(|key| *key != spec.key) {
            self.forget(follower);
        }
        self.followers.entry(follower.clone()).or_insert_with(|| spec.key.clone());
        let is_new = !self.repositories.contains_key(&spec.key);
        let repository = self.repositories.entry(spec.key.clone()).or_insert_with(|| Repository::new(&spec.key));
        repository.add_follower(follower, spec, lookup);
        is_new
    }

    /// Returns the current result for a follower. The caller must first add the follower with [`Cache::add_follower`].
    pub fn resolve(
        &mut self,
        follower: &Follower,
        spec: &RepositorySpec,
        lookup: &Lookup,
    ) -> Result<Resolved, Unavailable> {
        let unknown = || Unavailable::Resolving(format!("querying {}", spec.key.repository));
        let repository = self.repositories.get_mut(&spec.key).ok_or_else(unknown)?;
        repository.resolve(follower, spec, lookup.known.as_ref())
    }

    /// Returns whether this process fetched the content with this digest from the repository.
    pub fn is_fetched(&self, key: &Key, digest: &Digest) -> bool {
        let content = self.repositories.get(key).and_then(|repository| repository.content.as_ref());
        content.is_some_and(|content| content.digest == *digest)
    }

    /// Removes a follower.
    pub fn forget(&mut self, follower: &Follower) {
        let Some(key) = self.followers.remove(follower) else { return };
        if let Some(repository) = self.repositories.get_mut(&key) {
            repository.followers.remove(follower);
            if repository.followers.is_empty() {
                repository.abandoned.cancel();
            }
            repository.notify.notify_one();
        }
    }

    /// Returns a token that the cache cancels when it removes the repository's last follower. The cancellation aborts
    /// the action in progress.
    pub fn abandoned(&self, key: &Key) -> CancellationToken {
        self.repositories.get(key).map(|repository| repository.abandoned.clone()).unwrap_or_default()
    }

    /// Requests another fetch of the tip, unless the cache already contains a later commit.
    pub fn fetch_again(&mut self, origin: &Origin) {
        let Some(repository) = self.repositories.get_mut(&*origin.key) else { return };
        // The content of an earlier commit remains in the cache after a failed fetch.
        let is_tip = matches!(&repository.tip, Some(Ok(tip)) if tip.commit == origin.commit);
        if is_tip || repository.content.as_ref().is_none_or(|content| content.commit == origin.commit) {
            repository.content = None;
            repository.needs_content = true;
            repository.notify.notify_one();
        }
    }

    /// Returns the next action for a repository. Removes the repository if it has no followers.
    pub fn next_action(&mut self, key: &Key, is_due: bool) -> NextAction {
        let Some(repository) = self.repositories.get(key) else { return NextAction::Stop };
        if repository.followers.is_empty() {
            self.repositories.remove(key);
            return NextAction::Stop;
        }
        match &repository.tip {
            _ if is_due || repository.requests > repository.completed_requests => {
                NextAction::Query(repository.requests)
            }
            Some(Ok(tip)) if repository.needs_content => {
                let mut choices: Vec<Paths> = repository.followers.values().filter_map(|f| f.paths.clone()).collect();
                choices.sort();
                choices.dedup();
                NextAction::Fetch(tip.clone(), choices)
            }
            _ => NextAction::Wait(Arc::clone(&repository.notify)),
        }
    }

    /// Removes a repository whose async task has ended unexpectedly, and returns its followers. The next call of
    /// [`Cache::add_follower`] adds the repository again.
    pub fn remove(&mut self, key: &Key) -> Vec<Follower> {
        let removed = self.repositories.remove(key);
        removed.map(|repository| repository.followers.into_keys().collect()).unwrap_or_default()
    }

    /// Returns whether no follower waits for the current query. This is the case if the cached tip is valid, and if the
    /// last response already covers the `requests` requests that triggered the query.
    pub fn is_tip_sufficient(&self, key: &Key, requests: u64) -> bool {
        let repository = self.repositories.get(key).filter(|repository| matches!(repository.tip, Some(Ok(_))));
        repository.is_some_and(|repository| repository.completed_requests >= requests)
    }

    /// Returns the distinct namespaces of a repository's followers.
    pub fn namespaces(&self, key: &Key) -> Vec<String> {
        let followers = self.repositories.get(key).map(|repository| repository.followers.keys());
        let mut namespaces: Vec<String> =
            followers.into_iter().flatten().map(|(namespace, _)| namespace.clone()).collect();
        namespaces.sort();
        namespaces.dedup();
        namespaces
    }

    /// Returns a repository's poll interval, which is the shortest interval that a follower specifies.
    pub fn interval(&self, key: &Key) -> Option<Duration> {
        self.repositories.get(key)?.followers.values().map(|following| following.interval).min()
    }

    /// Records a response that covers `requests` requests. Returns the followers to reconcile. Returns no followers if
    /// the tip is new, because the caller reconciles the followers after it has fetched the tip.
    pub fn record_tip(&mut self, key: &Key, requests: u64, tip: Result<Tip, Unavailable>) -> Vec<Follower> {
        let Some(repository) = self.repositories.get_mut(key) else { return Vec::new() };
        let before = repository.completed_requests;
        repository.completed_requests = repository.completed_requests.max(requests);
        let is_same = repository.tip.as_ref() == Some(&tip);
        let has_changed = matches!((&repository.tip, &tip), (Some(Ok(_)), Ok(_))) && !is_same;
        let is_retry = repository.failed.take().is_some() && tip.is_ok();
        repository.tip = Some(tip);
        if has_changed || is_retry {
            repository.needs_content = true;
            return Vec::new();
        }
        let waits = |following: &Following| !is_same || following.required_requests > before;
        repository.followers.iter().filter(|(_, following)| waits(following)).map(|(name, _)| name.clone()).collect()
    }

    /// Records the result of a fetch. Returns the followers to reconcile.
    pub fn record_fetch(&mut self, key: &Key, tip: &Tip, fetched: Result<Fetched, Unavailable>) -> Vec<Follower> {
        let Some(repository) = self.repositories.get_mut(key) else { return Vec::new() };
        repository.needs_content = false;
        match fetched {
            Ok(content) => {
                repository.failed = None;
                repository.content = Some(content);
            }
            Err(why) => repository.failed = Some((tip.commit.clone(), why)),
        }
        repository.followers.keys().cloned().collect()
    }
}

impl Repository {
    fn new(key: &Key) -> Self {
        match &key.reference {
            // A commit hash requires no query, because the hash always resolves to the same commit.
            Reference::Commit(_) => Repository {
                tip: key.reference.select([]).map(Ok),
                completed_requests: u64::MAX,
                ..Repository::default()
            },
            _ => Repository { requests: 1, ..Repository::default() },
        }
    }

    fn add_follower(&mut self, follower: &Follower, spec: &RepositorySpec, lookup: &Lookup) {
        if self.abandoned.is_cancelled() {
            self.abandoned = CancellationToken::new();
        }
        let previous = self.followers.get(follower);
        let is_new_request = match previous {
            Some(following) => following.request != lookup.request,
            None => lookup.is_new,
        };
        let is_outdated = previous.is_none() && !is_new_request && self.may_be_outdated(spec.interval);
        match (is_new_request, self.completed_requests) {
            // For a commit hash, a new reconcile request only retries a failed fetch. A query is not necessary.
            (true, u64::MAX) => self.needs_content |= self.failed.take().is_some(),
            (true, _) => self.requests += 1,
            // A query in progress is recent enough.
            (false, completed) if is_outdated && completed >= self.requests => self.requests += 1,
            (false, _) => {}
        }
        let required_requests = match previous {
            Some(following) if !is_new_request => following.required_requests,
            None if !is_new_request && !is_outdated => self.requests.min(1),
            _ => self.requests,
        };
        if is_new_request || previous.is_none_or(|following| following.interval != spec.interval) {
            self.notify.notify_one();
        }
        let following = Following {
            interval: spec.interval,
            paths: spec.paths.clone(),
            request: lookup.request.clone(),
            required_requests,
        };
        self.followers.insert(follower.clone(), following);
    }

    /// Returns whether the cached response can be older than the poll interval of a new follower, because all other
    /// followers have longer intervals. Without another query, the first run of a Stack could use an old commit.
    fn may_be_outdated(&self, interval: Duration) -> bool {
        let shortest = self.followers.values().map(|following| following.interval).min();
        self.completed_requests != u64::MAX && shortest.is_some_and(|shortest| shortest > interval)
    }

    fn resolve(
        &mut self,
        follower: &Follower,
        spec: &RepositorySpec,
        known: Option<&KnownArtifact>,
    ) -> Result<Resolved, Unavailable> {
        let key = &spec.key;
        let querying = || Unavailable::Resolving(format!("querying {} for {}", key.repository, key.reference));
        let required_requests = self.followers.get(follower).map_or(u64::MAX, |following| following.required_requests);
        if self.completed_requests < required_requests {
            return Err(querying());
        }
        let tip = match &self.tip {
            None => return Err(querying()),
            Some(Err(why)) => return Err(why.clone()),
            Some(Ok(tip)) => tip,
        };
        let selection_in = |content: &Fetched| match &spec.paths {
            Some(paths) => content.selections.get(paths).cloned().map(|selection| selection.map(Some)),
            None => Some(Ok(None)),
        };
        let fetched = self.content.as_ref().filter(|content| content.commit == tip.commit);
        if let Some((content, selection)) = fetched.and_then(|content| Some((content, selection_in(content)?))) {
            let selection = selection.map_err(|why| Unavailable::Invalid(format!("invalid spec.paths: {why}")))?;
            let artifact = (content.digest.clone(), content.metadata.clone());
            return Ok(resolved(spec, tip, artifact, selection, content.warnings.clone()));
        }
        // A fetch error takes precedence over the digest from the last run, because a fetch starts only if a follower
        // needs the content.
        if let Some((_, why)) = self.failed.as_ref().filter(|(commit, _)| *commit == tip.commit) {
            return Err(why.clone());
        }
        if let Some(known) =
            known.filter(|known| is_of(known, tip) && known.selection.is_some() == spec.paths.is_some())
        {
            let artifact = (known.digest.clone(), known_metadata(known, tip));
            return Ok(resolved(spec, tip, artifact, known.selection.clone(), Vec::new()));
        }
        self.needs_content = true;
        self.notify.notify_one();
        Err(Unavailable::Resolving(format!("fetching revision {} of {}", tip.revision(), key.repository)))
    }
}

/// Returns whether the last run of the Stack used the commit of `tip`.
fn is_of(known: &KnownArtifact, tip: &Tip) -> bool {
    let revision = Revision::parse(&known.revision);
    known.revision == tip.commit || revision.checksum() == Some(tip.commit.as_str())
}

/// Returns the metadata from the last run if the metadata belongs to the commit of `tip`.
fn known_metadata(known: &KnownArtifact, tip: &Tip) -> SourceMetadata {
    let is_of_tip = |metadata: &&SourceMetadata| metadata.head.as_ref() == Some(&tip.commit);
    known.metadata.as_ref().filter(is_of_tip).cloned().unwrap_or_default()
}

fn resolved(
    spec: &RepositorySpec,
    tip: &Tip,
    (digest, commit): (Digest, SourceMetadata),
    selection: Option<String>,
    warnings: Vec<String>,
) -> Resolved {
    let key = Arc::new(spec.key.clone());
    let origin = Origin { key, commit: tip.commit.clone(), selection, warnings };
    Resolved {
        origin: SourceOrigin::Git(Box::new(origin)),
        revision: tip.revision(),
        origin_revision: None,
        metadata: Some(metadata::of_tip(spec, tip, commit)),
        content_id: Some(tip.commit.clone()),
        digest,
        directory: spec.directory.clone(),
    }
}

#[cfg(test)]
mod tests;
