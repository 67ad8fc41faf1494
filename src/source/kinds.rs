//! Discovers the API server's kinds and their versions. One discovery request returns all kinds. This module caches the
//! response. If a kind is missing from the cache, this module repeats the request. All callers together cause at most
//! one request per `DISCOVERY_INTERVAL`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::api::ApiResource;
use kube::core::discovery::v2::{APIGroupDiscoveryList, APIResourceDiscovery};
use kube::{Client, Error};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::source::Unavailable;

/// Timeout for a discovery request.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(15);
/// Minimum interval between two discovery requests. The interval is shorter than the requeue interval for Stacks that
/// wait for a kind, so each requeue repeats the discovery.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// Verbs that a kind must support to be a source.
const VERBS: [&str; 3] = ["get", "list", "watch"];
/// Maximum number of kinds that a message lists.
const MAX_LISTED_KINDS: usize = 8;
/// Maximum number of missing kinds that this module logs. Further missing kinds appear only in the status of the Stacks
/// that refer to these kinds.
const MAX_LOGGED_KINDS: usize = 256;

/// A group and kind, without a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupKind {
    pub group: String,
    pub kind: String,
}

impl GroupKind {
    pub fn new(group: &str, kind: &str) -> Self {
        GroupKind { group: group.to_owned(), kind: kind.to_owned() }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.group)
    }
}

/// A kind that the API server serves.
#[derive(Clone, Debug)]
struct Served {
    resource: ApiResource,
    namespaced: bool,
    verbs: Vec<String>,
}

#[derive(Debug, Default)]
struct Table {
    served: HashMap<GroupKind, Served>,
    /// Time of the last discovery request.
    discovered: Option<Instant>,
    /// Whether the next lookup must repeat the discovery request.
    is_stale: bool,
    /// The error of the last discovery request.
    failure: Option<String>,
    /// Missing kinds that this module has already logged.
    missing: HashSet<GroupKind>,
}

/// A change in the served kinds. The module logs each change once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindChange {
    Missing,
    Served,
}

/// The kinds that the API server serves. Clones are cheap and share the cache.
#[derive(Clone)]
pub struct Kinds {
    client: Client,
    table: Arc<Mutex<Table>>,
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kinds").finish_non_exhaustive()
    }
}

impl Kinds {
    pub fn new(client: Client) -> Self {
        Kinds { client, table: Arc::default() }
    }

    /// Returns the API resource for a kind in the API server's preferred version.
    pub async fn find(&self, kind: &GroupKind) -> Result<ApiResource, Unavailable> {
        // Holds the lock during the request, so that concurrent callers wait for the same response.
        let mut table = self.table.lock().await;
        let may_discover = table.discovered.is_none_or(|discovered| discovered.elapsed() >= DISCOVERY_INTERVAL);
        if may_discover && (table.is_stale || !table.served.contains_key(kind)) {
            self.discover(&mut table).await;
        }
        match table.change(kind) {
            Some(KindChange::Missing) => {
                tracing::info!(kind = %kind, "API server does not serve the kind; Stacks with a source of this kind wait");
            }
            Some(KindChange::Served) => tracing::info!(kind = %kind, "API server serves the kind again"),
            None => {}
        }
        table.find(kind)
    }

    /// Invalidates the cached kinds, so that the next lookup repeats the discovery request. Call this function when the
    /// API server no longer serves a cached kind.
    pub async fn invalidate(&self) {
        self.table.lock().await.is_stale = true;
    }

    async fn discover(&self, table: &mut Table) {
        table.discovered = Some(Instant::now());
        let failure = match tokio::time::timeout(DISCOVERY_TIMEOUT, self.client.list_api_groups_aggregated()).await {
            Err(_) => format!("timed out after {} s", DISCOVERY_TIMEOUT.as_secs()),
            Ok(Err(Error::Api(status))) => format!("{} ({})", status.message, status.code),
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(list)) if list.items.is_empty() => {
                "aggregated discovery is not supported: Kubernetes 1.30 or later is required".to_owned()
            }
            Ok(Ok(list)) => {
                let missing = std::mem::take(&mut table.missing);
                *table = Table { served: served(list), discovered: table.discovered, missing, ..Table::default() };
                return;
            }
        };
        tracing::debug!(failure, "failed to discover the API resources of the cluster");
        table.failure = Some(failure);
    }
}

impl Table {
    /// Returns how the availability of a kind has changed since the last lookup, or `None` if it has not changed. Does
    /// not report a missing kind after a failed discovery request.
    fn change(&mut self, kind: &GroupKind) -> Option<KindChange> {
        if self.served.contains_key(kind) {
            return self.missing.remove(kind).then_some(KindChange::Served);
        }
        let is_known = self.failure.is_none() && self.missing.len() < MAX_LOGGED_KINDS;
        (is_known && self.missing.insert(kind.clone())).then_some(KindChange::Missing)
    }

    fn find(&self, kind: &GroupKind) -> Result<ApiResource, Unavailable> {
        let Some(served) = self.served.get(kind) else { return Err(self.missing(kind)) };
        if !served.namespaced {
            return Err(Unavailable::Invalid(format!("{kind} cannot be the source of a Stack: it is not namespaced")));
        }
        match VERBS.iter().find(|verb| !served.verbs.iter().any(|v| v == *verb)) {
            Some(verb) => Err(Unavailable::Invalid(format!(
                "{kind} cannot be the source of a Stack: it does not support the verb {verb}"
            ))),
            None => Ok(served.resource.clone()),
        }
    }

    fn missing(&self, kind: &GroupKind) -> Unavailable {
        if let Some(failure) = &self.failure {
            let message = format!("failed to discover {kind}: {failure}");
            return Unavailable::NotYet(message);
        }
        let mut kinds: Vec<&str> =
            self.served.keys().filter(|k| k.group == kind.group).map(|k| k.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.truncate(MAX_LISTED_KINDS);
        let instead = match kinds.as_slice() {
            [] => "no kinds of this group are served".to_owned(),
            kinds => format!("served kinds of this group: {}", kinds.join(", ")),
        };
        Unavailable::Stalled(format!(
            "API server does not serve {kind}: install its CustomResourceDefinition ({instead})"
        ))
    }
}

/// Returns every kind in its preferred version. The API server lists the versions in order of preference.
fn served(list: APIGroupDiscoveryList) -> HashMap<GroupKind, Served> {
    let mut kinds = HashMap::new();
    for group in list.items {
        let group_name = group.metadata.and_then(|m| m.name).unwrap_or_default();
        for version in group.versions {
            let version_name = version.version.unwrap_or_default();
            for found in version.resources {
                if let Some((kind, served)) = served_kind(&group_name, &version_name, found) {
                    kinds.entry(kind).or_insert(served);
                }
            }
        }
    }
    kinds
}

fn served_kind(group: &str, version: &str, found: APIResourceDiscovery) -> Option<(GroupKind, Served)> {
    let kind = found.response_kind?.kind?;
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.clone(),
        plural: found.resource?,
    };
    let namespaced = found.scope.as_deref() == Some("Namespaced");
    Some((GroupKind { group: group.to_owned(), kind }, Served { resource, namespaced, verbs: found.verbs }))
}

#[cfg(test)]
mod tests;
