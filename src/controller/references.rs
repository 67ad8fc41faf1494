//! Checks whether the Secrets and ConfigMaps that a run references exist and are not empty, and triggers the kubelet to
//! update the mounted volumes. The controller reads each object by name, without the object's data.

mod poll;

use std::collections::BTreeSet;
use std::fmt::{self, Debug};

use futures::{StreamExt, TryStreamExt};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::api::names;
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{WriteError, Writer};

pub use poll::{Poll, Reference, ReferencedKind, Waiter};

/// Maximum number of concurrent reads for the objects that a run references.
const MAX_CONCURRENT_READS: usize = 8;
/// Maximum number of missing objects that a message lists.
const MAX_LISTED: usize = 5;
/// Maximum delay until the kubelet mounts a changed Secret or ConfigMap. The kubelet syncs each pod about once a
/// minute, and its cache entries are at most one minute old.
const KUBELET_SYNC: SignedDuration = SignedDuration::from_secs(150);
/// Column that contains the number of keys, if the API server returns Secrets or ConfigMaps as a `Table`.
const KEYS_COLUMN: &str = "Data";

/// Result of checking a run's references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub missing: Vec<Reference>,
    /// Objects without keys, such as `ConfigMap/defaults`. The kubelet mounts such an object as an empty directory.
    pub empty: BTreeSet<String>,
    /// Whether an object has changed so recently that the kubelet may not have mounted the change yet.
    pub is_recent: bool,
}

impl Checked {
    /// Returns a message that lists the missing objects, or `None` if all objects exist.
    pub fn missing_message(&self, namespace: &str) -> Option<String> {
        let first = self.missing.first()?;
        let named = |reference: &Reference| format!("{} {:?} ({})", reference.kind, reference.name, reference.referrer);
        if self.missing.len() == 1 {
            return Some(format!("waiting for {}: not found in namespace {namespace}", named(first)));
        }
        let named: Vec<String> = self.missing.iter().take(MAX_LISTED).map(named).collect();
        let more = match self.missing.len().saturating_sub(MAX_LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("waiting for objects that do not exist in namespace {namespace}: {}{more}", named.join(", ")))
    }
}

/// Checks references, and requeues Updates and Workspaces that wait for missing objects. Clones are cheap.
#[derive(Clone)]
pub struct References {
    reader: Reader,
    poll: Poll,
}

impl Debug for References {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("References").finish_non_exhaustive()
    }
}

impl References {
    pub fn new(reader: Reader, poll: Poll) -> Self {
        References { reader, poll }
    }

    /// Checks all references. `mounted_since` is the creation time of the pod that mounts the referenced objects.
    ///
    /// If `waiter` is registered for missing objects that the poll has not found yet, the check reads no object, and the
    /// result contains only these objects. Otherwise, many Updates of a tenant that wait for one missing object and
    /// reference many other objects would cause a large number of reads with each requeue.
    pub async fn check(
        &self,
        namespace: &str,
        references: &[Reference],
        mounted_since: Option<Timestamp>,
        waiter: &Waiter,
    ) -> Result<Checked, ReadError> {
        let missing = self.poll.awaited(namespace, references, waiter);
        if !missing.is_empty() {
            return Ok(Checked { missing, ..Checked::default() });
        }
        let mut reads = Vec::with_capacity(references.len());
        for reference in references {
            reads.push(observe(&self.reader, namespace, reference, mounted_since));
        }
        let found: Vec<Observation> = futures::stream::iter(reads).buffered(MAX_CONCURRENT_READS).try_collect().await?;
        let mut checked = Checked::default();
        for (reference, observation) in references.iter().zip(found) {
            checked.is_recent |= observation.is_recent;
            match observation.presence {
                Presence::Missing => checked.missing.push(reference.clone()),
                Presence::Empty => drop(checked.empty.insert(reference.object())),
                Presence::HasKeys => {}
            }
        }
        Ok(checked)
    }

    /// Registers `waiter` with the poll, which requeues `waiter` as soon as one of the missing objects exists. The
    /// registration expires, so the caller must repeat this call while `waiter` waits.
    pub fn register(&self, namespace: &str, missing: &[Reference], waiter: &Waiter) {
        for reference in missing {
            self.poll.register(namespace, reference.kind, &reference.name, waiter);
        }
    }
}

/// Observed state of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observation {
    presence: Presence,
    is_recent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Missing,
    Empty,
    /// The object contains at least one key, or the controller has no permission to read the object. Without
    /// permission, only the agent can detect an empty object. The agent then rejects the run.
    HasKeys,
}

async fn observe(
    reader: &Reader,
    namespace: &str,
    reference: &Reference,
    mounted_since: Option<Timestamp>,
) -> Result<Observation, ReadError> {
    match reference.kind {
        ReferencedKind::Secret => observe_kind::<Secret>(reader, namespace, &reference.name, mounted_since).await,
        ReferencedKind::ConfigMap => observe_kind::<ConfigMap>(reader, namespace, &reference.name, mounted_since).await,
    }
}

async fn observe_kind<K>(
    reader: &Reader,
    namespace: &str,
    name: &str,
    mounted_since: Option<Timestamp>,
) -> Result<Observation, ReadError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Debug,
{
    match reader.get_row_opt::<K>(namespace, name).await {
        Ok(None) => Ok(Observation { presence: Presence::Missing, is_recent: false }),
        Ok(Some(found)) => {
            let is_empty = found.cells.get(KEYS_COLUMN).and_then(Value::as_u64) == Some(0);
            let presence = if is_empty { Presence::Empty } else { Presence::HasKeys };
            Ok(Observation { presence, is_recent: is_recent(&found.metadata, mounted_since, Timestamp::now()) })
        }
        // The check is optional, because the agent also rejects a run if a mounted directory is empty.
        Err(error) if error.is_forbidden() => {
            tracing::warn!(
                %error,
                "failed to check a referenced object; grant `get` on Secrets and ConfigMaps; without this permission, the \
                 agent rejects a run if the mounted directory of the object is empty"
            );
            Ok(Observation { presence: Presence::HasKeys, is_recent: false })
        }
        Err(error) => Err(error),
    }
}

/// Returns whether an object changed so recently that a pod that was created at `mounted_since` may not contain the
/// change yet. Users can set the times in `managedFields`, so a time in the distant future is not recent.
fn is_recent(metadata: &ObjectMeta, mounted_since: Option<Timestamp>, now: Timestamp) -> bool {
    let changes = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    let changed = changes.chain(metadata.creation_timestamp.as_ref()).map(|time| time.0).max();
    let is_old = |changed: Timestamp| now.duration_since(changed).abs() > KUBELET_SYNC;
    changed.is_none_or(|changed| mounted_since.is_none_or(|since| changed >= since) && !is_old(changed))
}

/// Makes the kubelet update the mounted Secrets and ConfigMaps of a pod by changing an annotation on the pod. The
/// kubelet then syncs the pod immediately, instead of about once a minute.
pub async fn request_mounts(pod: &Pod, writer: &Writer, now: Timestamp) -> Result<(), WriteError> {
    let annotations = json!({names::ANNOTATION_MOUNTS_REQUESTED: now.to_string()});
    let namespace = pod.namespace().unwrap_or_default();
    let patch = json!({"metadata": {"annotations": annotations, "uid": pod.uid()}});
    writer.merge::<Pod>(&namespace, &pod.name_any(), &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::ObjectRef;
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api::{FakeResponse, client};

    pub(super) fn reference(kind: ReferencedKind, name: &str, referrer: &str) -> Reference {
        let (name, referrer) = (name.to_owned(), referrer.to_owned());
        Reference { kind, directory: format!("/mounts/{name}"), name, referrer }
    }

    #[test]
    fn the_message_lists_the_first_missing_objects_and_their_referrers() {
        let secret = reference(ReferencedKind::Secret, "aws", "envFrom");
        let map = |number: usize| reference(ReferencedKind::ConfigMap, &format!("m{number}"), "config key size");
        let with = |missing: Vec<Reference>| Checked { missing, ..Checked::default() }.missing_message("apps");
        assert_eq!(with(Vec::new()), None);
        assert_eq!(
            with(vec![secret.clone()]).as_deref(),
            Some("waiting for Secret \"aws\" (envFrom): not found in namespace apps")
        );
        assert_eq!(
            with(vec![secret, map(1)]).as_deref(),
            Some(
                "waiting for objects that do not exist in namespace apps: Secret \"aws\" (envFrom), ConfigMap \"m1\" \
                 (config key size)"
            )
        );
        let many = with((0..1000).map(map).collect()).expect("missing objects");
        assert!(many.ends_with("ConfigMap \"m4\" (config key size) and 995 more"), "{many}");
    }

    fn table(keys: u32) -> FakeResponse {
        let row = json!({"cells": ["there", "Opaque", keys, "1s"],
            "object": {"metadata": {"name": "there", "creationTimestamp": "2026-01-01T00:00:00Z"}}});
        let columns = ["Name", "Type", "Data", "Age"].map(|name| json!({"name": name, "type": "string"}));
        let (kind, version) = ("Table", "meta.k8s.io/v1");
        FakeResponse::Json(
            200,
            json!({"apiVersion": version, "kind": kind, "columnDefinitions": columns, "rows": [row]}),
        )
    }

    #[test]
    fn a_change_after_the_creation_of_the_pod_is_recent_for_some_minutes() {
        let at = |text: &str| text.parse::<Timestamp>().expect("valid time");
        let metadata = |created: &str, changed: &str| -> ObjectMeta {
            let entry = json!({"manager": "kubectl", "operation": "Update", "time": changed});
            serde_json::from_value(json!({"creationTimestamp": created, "managedFields": [entry]})).expect("valid")
        };
        let (early, pod, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z", "2026-01-01T00:59:00Z");
        let now = at("2026-01-01T01:00:00Z");
        let rows = [
            (metadata(early, early), Some(at(pod)), false),
            (metadata(early, late), Some(at(pod)), true),
            (metadata(late, late), Some(at(pod)), true),
            (metadata(pod, pod), Some(at(pod)), false),
            (metadata(late, late), Some(now), false),
            (metadata(late, late), None, true),
            (metadata(early, early), None, false),
            (metadata(early, "2026-01-01T01:01:00Z"), Some(at(pod)), true),
            (metadata(early, "2099-01-01T00:00:00Z"), Some(at(pod)), false),
            (ObjectMeta::default(), Some(at(pod)), true),
        ];
        for (metadata, since, expected) in rows {
            assert_eq!(is_recent(&metadata, since, now), expected, "{metadata:?} {since:?}");
        }
    }

    #[tokio::test]
    async fn referenced_objects_are_read_by_name_without_their_content() {
        let (client, log) = client(|request| match request.path.as_str() {
            "/api/v1/namespaces/apps/secrets/there" => table(2),
            "/api/v1/namespaces/apps/secrets/empty" => table(0),
            "/api/v1/namespaces/apps/secrets/hidden" => FakeResponse::refusal(403, "Forbidden"),
            _ => FakeResponse::refusal(404, "NotFound"),
        });
        let reader = Reader::new(client, std::time::Duration::from_secs(5));
        let references = References::new(reader.clone(), Poll::default());
        let expected = [
            reference(ReferencedKind::Secret, "there", "envFrom"),
            reference(ReferencedKind::Secret, "empty", "envFrom"),
            reference(ReferencedKind::Secret, "hidden", "envFrom"),
            reference(ReferencedKind::Secret, "gone", "environment variable TOKEN"),
            reference(ReferencedKind::ConfigMap, "there", "config key size"),
        ];
        let waiter = Waiter::Update(ObjectRef::new("a").within("apps"));
        let checked = references.check("apps", &expected, None, &waiter).await.expect("result is set");
        assert_eq!(checked.missing, [expected[3].clone(), expected[4].clone()]);
        assert_eq!(checked.empty, ["Secret/empty".to_owned()].into());
        let requests = log.all();
        assert_eq!(requests.len(), 5, "{requests:?}");
        let is_table = |accept: &str| accept == "application/json;as=Table;g=meta.k8s.io;v=v1";
        assert!(requests.iter().all(|request| request.method == "GET" && is_table(&request.accept)), "{requests:?}");
    }
}
