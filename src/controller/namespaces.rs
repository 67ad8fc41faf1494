//! Reads and watches namespace annotations. The pause, the schedule and the run slot share affect the runs of all
//! Stacks in a namespace. The number of idle pods affects the pools of the namespace.

mod run_share;

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::api::names::{
    ANNOTATION_CONCURRENCY_GROUPS, ANNOTATION_IDLE_PODS, ANNOTATION_MAX_CONCURRENT_RUNS, ANNOTATION_PAUSE,
    ANNOTATION_RUN_WEIGHT, ANNOTATION_SCHEDULE,
};
use crate::api::pulumi::Stack;
use crate::api::tolerant::Tolerant;
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::requeue::Requeue;
use crate::runtime::tolerant_watcher::watcher_with;

pub use run_share::RunShare;

/// Annotations that affect runs and pools of idle pods.
const ANNOTATIONS: [&str; 6] = [
    ANNOTATION_CONCURRENCY_GROUPS,
    ANNOTATION_IDLE_PODS,
    ANNOTATION_MAX_CONCURRENT_RUNS,
    ANNOTATION_PAUSE,
    ANNOTATION_RUN_WEIGHT,
    ANNOTATION_SCHEDULE,
];

/// Metadata of a namespace, without the fields that the controller does not use.
type Metadata = PartialObjectMeta<Namespace>;

/// Controller and namespace settings that affect when a run starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSettings {
    /// Message that explains a pause. If the message is set, either the controller or the namespace is paused, and no
    /// run starts.
    pub pause: Option<String>,
    /// Value of the namespace annotation `pulumi.com/schedule`.
    pub schedule: Option<String>,
    /// Share of the run slots. The share affects only the run queue, so a changed share does not requeue any Stack.
    pub run_share: RunShare,
}

impl RunSettings {
    fn of_namespace(namespace: &str, annotations: &BTreeMap<String, String>) -> Self {
        let value = |name: &str| annotations.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let pause = value(ANNOTATION_PAUSE).filter(|value| !value.eq_ignore_ascii_case("false")).map(|value| {
            let reason = if value.eq_ignore_ascii_case("true") { String::new() } else { format!(": {value}") };
            format!(
                "namespace {namespace} is paused{reason}; to resume, remove the annotation {ANNOTATION_PAUSE} of the namespace"
            )
        });
        let run_share = RunShare::of_namespace(namespace, annotations);
        RunSettings { pause, schedule: value(ANNOTATION_SCHEDULE).map(str::to_owned), run_share }
    }
}

/// Reads the settings of namespaces. Clones are cheap.
#[derive(Clone)]
pub struct Namespaces {
    reader: Reader,
    /// Whether the flag `--pause` prevents runs from starting.
    is_paused: bool,
    cache: Option<Store<Metadata>>,
}

impl std::fmt::Debug for Namespaces {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Namespaces").finish_non_exhaustive()
    }
}

impl Namespaces {
    /// Creates a component that reads the namespace from the API server on each call. A controller that manages a
    /// single namespace uses this component, because it has no permission to watch namespaces.
    pub fn without_watch(reader: Reader, is_paused: bool) -> Self {
        Namespaces { reader, is_paused, cache: None }
    }

    /// Creates a component with a cache, and the watch that fills the cache. When the settings of a namespace change,
    /// the watch calls `requeue_runs` with the namespace name, so that waiting runs use the new settings. When a
    /// client deletes a namespace, the watch calls `requeue_workspaces` with the namespace name.
    pub fn with_watch(
        reader: Reader,
        is_paused: bool,
        requeue_runs: impl FnMut(&str) + Send + 'static,
        requeue_workspaces: impl FnMut(&str) + Send + 'static,
    ) -> (Self, NamespaceWatch) {
        let (cache, writer) = reflector::store();
        let (cache_writer, requeue_runs) = (CacheWriter::new(writer), Box::new(requeue_runs));
        let watch =
            NamespaceWatch { cache: cache_writer, requeue_runs, requeue_workspaces: Box::new(requeue_workspaces) };
        (Namespaces { reader, is_paused, cache: Some(cache) }, watch)
    }

    /// Returns whether a client has deleted the namespace. If the cached namespace is being deleted, reads the
    /// namespace from the API server, because a client may have created it again. Returns `false` if the controller
    /// does not watch namespaces or cannot read them.
    ///
    /// # Errors
    ///
    /// Returns an error if the read fails for a reason other than a missing permission.
    pub async fn is_terminating(&self, namespace: &str) -> Result<bool, ReadError> {
        let cached = self.cache.as_ref().and_then(|cache| cache.get(&ObjectRef::new(namespace)));
        if cached.is_none_or(|cached| cached.metadata.deletion_timestamp.is_none()) {
            return Ok(false);
        }
        match self.reader.get_cluster_metadata_opt::<Namespace>(namespace).await {
            Ok(live) => Ok(live.is_some_and(|live| live.metadata.deletion_timestamp.is_some())),
            Err(error) if error.is_forbidden() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the controller watches namespaces. If `true`, the controller requeues the Stacks of a
    /// namespace when the annotations change.
    pub fn is_watched(&self) -> bool {
        self.cache.is_some()
    }

    /// Returns the settings that apply to runs in a namespace. If the cache does not contain the namespace, reads it
    /// from the API server. If the controller has no permission to read namespaces, returns the default settings.
    ///
    /// # Errors
    ///
    /// Returns an error if the read fails for a reason other than a missing permission.
    pub async fn run_settings(&self, namespace: &str) -> Result<RunSettings, ReadError> {
        let settings = self.settings_of(namespace).await?;
        let paused = self.is_paused.then(|| "the controller is paused (--pause), so no run starts".to_owned());
        Ok(RunSettings { pause: paused.or(settings.pause), ..settings })
    }

    async fn settings_of(&self, namespace: &str) -> Result<RunSettings, ReadError> {
        let cached = self.cache.as_ref().and_then(|cache| cache.get(&ObjectRef::new(namespace)));
        if let Some(cached) = cached {
            return Ok(RunSettings::of_namespace(namespace, cached.annotations()));
        }
        match self.reader.get_cluster_metadata_opt::<Namespace>(namespace).await {
            Ok(found) => {
                Ok(found.map(|found| RunSettings::of_namespace(namespace, found.annotations())).unwrap_or_default())
            }
            Err(error) if error.is_forbidden() => {
                tracing::warn!(%error, namespace, "failed to read the annotations of the namespace; they have no effect on its runs");
                Ok(RunSettings::default())
            }
            Err(error) => Err(error),
        }
    }
}

/// Watches namespaces and fills their cache.
pub struct NamespaceWatch {
    cache: CacheWriter,
    /// Requeues the runs in a namespace that have not started.
    requeue_runs: Box<dyn FnMut(&str) + Send>,
    /// Requeues the Workspaces in a namespace.
    requeue_workspaces: Box<dyn FnMut(&str) + Send>,
}

impl std::fmt::Debug for NamespaceWatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NamespaceWatch").finish_non_exhaustive()
    }
}

impl NamespaceWatch {
    /// Watches namespaces until `end` is canceled. When the settings of a namespace change, the watch requeues the
    /// runs in the namespace that have not started. If the pause or the schedule has changed, the watch also requeues
    /// all Stacks that `stacks_of` returns for the namespace. When a client deletes a namespace, the watch requeues
    /// the Workspaces in the namespace.
    pub async fn run(
        mut self,
        client: Client,
        stacks_of: impl Fn(&str) -> Vec<ObjectRef<Stack>> + Send,
        requeue: Requeue<Stack>,
        end: CancellationToken,
    ) {
        let cached = self.cache.writer.as_reader();
        let last = move |metadata: &ObjectMeta| {
            Some(Metadata::clone(&*cached.get(&ObjectRef::new(metadata.name.as_deref()?))?))
        };
        let api: Api<Tolerant<Metadata>> = Api::all(client);
        let events = watcher_with(api, watcher::Config::default().any_semantic(), last, |_, _| ());
        let mut events = std::pin::pin!(events.modify(keep_settings).take_until(end.cancelled()));
        loop {
            let event = match events.try_next().await {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to watch namespaces; retrying");
                    continue;
                }
            };
            for Changed { namespace, affects_runs, affects_stacks, is_deleted } in self.cache.apply(&event) {
                if is_deleted {
                    (self.requeue_workspaces)(&namespace);
                }
                if affects_runs {
                    (self.requeue_runs)(&namespace);
                }
                if affects_stacks {
                    stacks_of(&namespace).into_iter().for_each(|stack| requeue.request(stack));
                }
            }
        }
    }
}

/// Writes the namespace cache.
struct CacheWriter {
    writer: reflector::store::Writer<Metadata>,
    /// Changed namespaces in the current list. The cache contains the listed namespaces only after the list is
    /// complete.
    listed: Vec<Changed>,
}

impl CacheWriter {
    fn new(writer: reflector::store::Writer<Metadata>) -> Self {
        CacheWriter { writer, listed: Vec::new() }
    }

    /// Applies a watch event to the cache. Returns the namespaces whose settings have changed.
    fn apply(&mut self, event: &Event<Metadata>) -> Vec<Changed> {
        let changed = changed_namespace(&self.writer.as_reader(), event);
        self.writer.apply_watcher_event(event);
        match event {
            Event::Apply(_) | Event::Delete(_) => changed.into_iter().collect(),
            Event::Init => {
                self.listed.clear();
                Vec::new()
            }
            Event::InitApply(_) => {
                self.listed.extend(changed);
                Vec::new()
            }
            Event::InitDone => std::mem::take(&mut self.listed),
        }
    }
}

/// Keeps only the metadata that identifies the namespace, and the annotations that affect runs and pools.
fn keep_settings(namespace: &mut Metadata) {
    namespace.metadata.managed_fields = None;
    namespace.metadata.labels = None;
    namespace.metadata.owner_references = None;
    if let Some(annotations) = &mut namespace.metadata.annotations {
        annotations.retain(|name, _| ANNOTATIONS.contains(&name.as_str()));
    }
}

/// Namespace that is being deleted, or whose settings have changed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changed {
    namespace: String,
    /// Whether a setting has changed.
    affects_runs: bool,
    /// Whether the pause or the schedule has changed. The other settings do not affect Stacks.
    affects_stacks: bool,
    /// Whether the namespace is being deleted.
    is_deleted: bool,
}

/// Returns the namespace from the event if the namespace is being deleted or its settings have changed.
fn changed_namespace(cache: &Store<Metadata>, event: &Event<Metadata>) -> Option<Changed> {
    let (Event::Apply(metadata) | Event::InitApply(metadata)) = event else { return None };
    let namespace = metadata.name_any();
    let settings = |metadata: &Metadata| RunSettings::of_namespace(&namespace, metadata.annotations());
    let cached = cache.get(&ObjectRef::new(&namespace));
    let before = cached.as_ref().map(|before| settings(before)).unwrap_or_default();
    let was_terminating = cached.is_some_and(|before| before.metadata.deletion_timestamp.is_some());
    let now = settings(metadata);
    let affects_stacks = (&before.pause, &before.schedule) != (&now.pause, &now.schedule);
    let (affects_runs, is_deleted) =
        (before != now, metadata.metadata.deletion_timestamp.is_some() && !was_terminating);
    (affects_runs || is_deleted).then_some(Changed { namespace, affects_runs, affects_stacks, is_deleted })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn namespace(annotations: serde_json::Value) -> Metadata {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "apps", "labels": {"team": "web"}, "annotations": annotations},
        }))
        .unwrap()
    }

    #[test]
    fn empty_values_and_false_have_no_effect() {
        let rows = [
            (json!({}), None, None),
            (json!({"pulumi.com/pause": ""}), None, None),
            (json!({"pulumi.com/pause": "False"}), None, None),
            (json!({"pulumi.com/pause": "true"}), Some("namespace apps is paused; to resume, remove"), None),
            (json!({"pulumi.com/pause": " audit "}), Some("namespace apps is paused: audit; to resume, remove"), None),
            (json!({"pulumi.com/schedule": "windows: []"}), None, Some("windows: []")),
        ];
        for (annotations, pause, schedule) in rows {
            let found = RunSettings::of_namespace("apps", namespace(annotations.clone()).annotations());
            assert_eq!(found.pause.is_some(), pause.is_some(), "{annotations}");
            assert!(found.pause.unwrap_or_default().starts_with(pause.unwrap_or_default()), "{annotations}");
            assert_eq!(found.schedule.as_deref(), schedule, "{annotations}");
        }
    }

    #[test]
    fn only_changes_of_the_settings_requeue_stacks_and_runs() {
        let (cache, writer) = reflector::store();
        let mut writer = CacheWriter::new(writer);
        let mut apply = |annotations: serde_json::Value| {
            let mut namespace = namespace(annotations);
            keep_settings(&mut namespace);
            writer.apply(&Event::Apply(namespace))
        };
        let changed = |affects_stacks| {
            vec![Changed { namespace: "apps".to_owned(), affects_runs: true, affects_stacks, is_deleted: false }]
        };
        assert!(apply(json!({"other": "1"})).is_empty());
        assert_eq!(apply(json!({"other": "1", "pulumi.com/pause": "true"})), changed(true));
        assert!(apply(json!({"other": "2", "pulumi.com/pause": "true"})).is_empty());
        assert_eq!(apply(json!({"other": "2"})), changed(true));
        assert_eq!(apply(json!({"other": "2", "pulumi.com/run-weight": "2"})), changed(false), "no Stack");
        assert!(apply(json!({"other": "3", "pulumi.com/run-weight": "2"})).is_empty());
        assert_eq!(apply(json!({"other": "3", "pulumi.com/concurrency-groups": "aws"})), changed(false));
        assert_eq!(apply(json!({"other": "2"})), changed(false));
        let stored = cache.get(&ObjectRef::new("apps")).unwrap();
        assert_eq!((stored.labels().len(), stored.annotations().len()), (0, 0));
    }

    #[test]
    fn the_deletion_of_a_namespace_requeues_its_workspaces_once() {
        let (cache, writer) = reflector::store();
        let mut writer = CacheWriter::new(writer);
        let mut deleted = namespace(json!({}));
        assert!(writer.apply(&Event::Apply(deleted.clone())).is_empty());
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let expected = Changed { namespace: "apps".to_owned(), is_deleted: true, ..Changed::default() };
        assert_eq!(writer.apply(&Event::Apply(deleted.clone())), [expected]);
        assert!(cache.get(&ObjectRef::new("apps")).unwrap().metadata.deletion_timestamp.is_some());
        assert!(writer.apply(&Event::Apply(deleted)).is_empty());
    }

    #[test]
    fn a_list_requeues_stacks_only_after_the_cache_is_complete() {
        let (cache, writer) = reflector::store();
        let mut writer = CacheWriter::new(writer);
        let is_paused = || cache.get(&ObjectRef::new("apps")).is_some_and(|cached| !cached.annotations().is_empty());
        let (affects_runs, affects_stacks) = (true, true);
        let changed = vec![Changed { namespace: "apps".to_owned(), affects_runs, affects_stacks, is_deleted: false }];
        for (annotations, pauses) in [(json!({"pulumi.com/pause": "true"}), true), (json!({}), false)] {
            assert!(writer.apply(&Event::Init).is_empty());
            assert!(writer.apply(&Event::InitApply(namespace(annotations.clone()))).is_empty());
            // The watch restarts the list if it fails to read a page.
            assert!(writer.apply(&Event::Init).is_empty());
            assert!(writer.apply(&Event::InitApply(namespace(annotations))).is_empty());
            assert_ne!(is_paused(), pauses);
            assert_eq!(writer.apply(&Event::InitDone), changed);
            assert_eq!(is_paused(), pauses);
        }
    }
}
