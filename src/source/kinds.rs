//! Which kinds the API server serves, and in which version. All of them are asked for at once and kept; when a kind is not
//! among them they are asked for again, but not sooner than a while after the last time, however many ask.

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

/// How long one question may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(15);
/// The shortest time between two questions. Shorter than the pause of who waits for a kind, so that each look finds news.
const ASK_INTERVAL: Duration = Duration::from_secs(10);
/// What is needed of a kind.
const VERBS: [&str; 3] = ["get", "list", "watch"];
/// How many kinds of a group a message names.
const NAMED_KINDS: usize = 8;
/// How many kinds may be known to be missing. That more of them are is said by the Stacks that name them, and not in the log.
const MISSING_KINDS: usize = 256;

/// A kind whatever its version.
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
        write!(f, "{} of the group {}", self.kind, self.group)
    }
}

/// A kind as it is served.
#[derive(Clone, Debug)]
struct Served {
    resource: ApiResource,
    namespaced: bool,
    verbs: Vec<String>,
}

#[derive(Debug, Default)]
struct Table {
    served: HashMap<GroupKind, Served>,
    asked: Option<Instant>,
    /// Something was found to be different.
    doubted: bool,
    /// Why the last question has no answer.
    failure: Option<String>,
    /// The kinds of which the log says that they are missing.
    missing: HashSet<GroupKind>,
}

/// What the log says of a kind once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeFilter {
    Missing,
    Served,
}

/// The kinds that are served. Cheap to clone; all clones share what is known.
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

    /// How a kind is read, in the version that the API server prefers.
    pub async fn find(&self, wanted: &GroupKind) -> Result<ApiResource, Unavailable> {
        // Held while the server is asked: who comes meanwhile waits for the same answer.
        let mut table = self.table.lock().await;
        let rested = table.asked.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL);
        if rested && (table.doubted || !table.served.contains_key(wanted)) {
            self.ask(&mut table).await;
        }
        match table.news(wanted) {
            Some(ChangeFilter::Missing) => {
                tracing::info!(kind = %wanted, "not served: the Stacks that name it wait, and no others do");
            }
            Some(ChangeFilter::Served) => tracing::info!(kind = %wanted, "served now"),
            None => {}
        }
        table.find(wanted)
    }

    /// Asks again when somebody wants to know next: a kind that is known is not served any more as it was.
    pub async fn doubt(&self) {
        self.table.lock().await.doubted = true;
    }

    async fn ask(&self, table: &mut Table) {
        table.asked = Some(Instant::now());
        let failure = match tokio::time::timeout(ASK_TIMEOUT, self.client.list_api_groups_aggregated()).await {
            Err(_) => format!("no answer within {} s", ASK_TIMEOUT.as_secs()),
            Ok(Err(Error::Api(status))) => format!("{} ({})", status.message, status.code),
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(list)) if list.items.is_empty() => {
                "it does not know aggregated discovery, which Kubernetes has since 1.30".to_owned()
            }
            Ok(Ok(list)) => {
                let missing = std::mem::take(&mut table.missing);
                *table = Table { served: served(list), asked: table.asked, missing, ..Table::default() };
                return;
            }
        };
        tracing::debug!(failure, "the API server was asked for its kinds in vain");
        table.failure = Some(failure);
    }
}

impl Table {
    /// What has become of a kind since it was looked for last. Without an answer of the API server nothing has.
    fn news(&mut self, wanted: &GroupKind) -> Option<ChangeFilter> {
        if self.served.contains_key(wanted) {
            return self.missing.remove(wanted).then_some(ChangeFilter::Served);
        }
        let is_known = self.failure.is_none() && self.missing.len() < MISSING_KINDS;
        (is_known && self.missing.insert(wanted.clone())).then_some(ChangeFilter::Missing)
    }

    fn find(&self, wanted: &GroupKind) -> Result<ApiResource, Unavailable> {
        let Some(served) = self.served.get(wanted) else { return Err(self.missing(wanted)) };
        if !served.namespaced {
            return Err(Unavailable::Invalid(format!("{wanted} is not namespaced: it cannot be a Stack's source")));
        }
        match VERBS.iter().find(|verb| !served.verbs.iter().any(|v| v == *verb)) {
            Some(verb) => Err(Unavailable::Invalid(format!(
                "{wanted} does not know the verb {verb}: it cannot be a Stack's source"
            ))),
            None => Ok(served.resource.clone()),
        }
    }

    fn missing(&self, wanted: &GroupKind) -> Unavailable {
        if let Some(failure) = &self.failure {
            let message = format!("cannot ask the API server whether it serves {wanted}: {failure}");
            return Unavailable::NotYet(message);
        }
        let mut kinds: Vec<&str> =
            self.served.keys().filter(|k| k.group == wanted.group).map(|k| k.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.truncate(NAMED_KINDS);
        let instead = match kinds.as_slice() {
            [] => "it serves nothing of this group".to_owned(),
            kinds => format!("of this group it serves {}", kinds.join(", ")),
        };
        Unavailable::Stalled(format!(
            "the API server does not serve {wanted}; {instead}. When its CustomResourceDefinition is installed, the Stack goes on"
        ))
    }
}

/// Every kind, in the first version that has it: versions come in the order of the server's preference.
fn served(list: APIGroupDiscoveryList) -> HashMap<GroupKind, Served> {
    let mut kinds = HashMap::new();
    for group in list.items {
        let group_name = group.metadata.and_then(|m| m.name).unwrap_or_default();
        for version in group.versions {
            let version_name = version.version.unwrap_or_default();
            for found in version.resources {
                if let Some((kind, served)) = one(&group_name, &version_name, found) {
                    kinds.entry(kind).or_insert(served);
                }
            }
        }
    }
    kinds
}

fn one(group: &str, version: &str, found: APIResourceDiscovery) -> Option<(GroupKind, Served)> {
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
