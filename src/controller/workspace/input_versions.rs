//! Reads the versions of the Secrets and ConfigMaps that a Workspace references. While a Workspace is sleeping, no
//! agent reads the mounted objects. The controller therefore records the versions when the Workspace goes to sleep,
//! and compares them with the current versions. If an object has changed, the controller wakes up the Workspace. The
//! agent then determines whether the content has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::config::{self, Mounted};
use super::context::Context;
use super::environment;
use crate::api::auto::Workspace;
use crate::runtime::reads::ReadError;

/// Maximum delay until the kubelet mounts a changed object. During this delay, the agent may not have reported the
/// change.
const MOUNT_TIME: SignedDuration = SignedDuration::from_mins(3);

/// Versions of the objects that a Workspace references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Inputs {
    NotRead,
    /// The controller has no permission to read an object. Contains the error message.
    Unreadable(String),
    /// Versions by object, such as `Secret/aws`.
    Read(BTreeMap<String, InputVersion>),
}

/// Version of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InputVersion {
    /// Resource version, or an empty string if the object does not exist.
    pub version: String,
    /// Time at which the object last changed, according to the API server.
    pub changed: Option<Timestamp>,
    /// Whether a change to the object can trigger a run.
    pub starts_run: bool,
}

impl Inputs {
    /// Returns the first object that has changed since the recorded version, if this change can trigger a run.
    /// Ignores deleted objects, because a run waits until a deleted object exists again.
    pub(super) fn changed_since(&self, recorded: &BTreeMap<String, String>) -> Option<&str> {
        let Inputs::Read(versions) = self else { return None };
        let is_other = |object: &str, now: &InputVersion| {
            !now.version.is_empty() && recorded.get(object).is_some_and(|before| *before != now.version)
        };
        let changed = versions.iter().find(|(object, now)| now.starts_run && is_other(object, now));
        changed.map(|(object, _)| object.as_str())
    }

    /// Returns the remaining delay until the kubelet has mounted the last change, or `None` if this change is already
    /// mounted. Users can set the times in `managedFields`, so the delay ignores changes in the distant future.
    pub(super) fn until_mounted(&self, now: Timestamp) -> Option<SignedDuration> {
        let Inputs::Read(versions) = self else { return None };
        let changed = versions.values().filter(|version| version.starts_run).filter_map(|version| version.changed);
        let ages = changed.map(|changed| now.duration_since(changed)).filter(|age| age.abs() < MOUNT_TIME);
        Some(MOUNT_TIME - ages.min()?)
    }

    /// Returns the number of objects that the controller has read.
    pub(super) fn count(&self) -> usize {
        match self {
            Inputs::Read(versions) => versions.len(),
            Inputs::NotRead | Inputs::Unreadable(_) => 0,
        }
    }

    /// Returns the versions to record in the status.
    pub(super) fn versions(&self) -> BTreeMap<String, String> {
        match self {
            Inputs::Read(versions) => {
                versions.iter().map(|(object, found)| (object.clone(), found.version.clone())).collect()
            }
            Inputs::NotRead | Inputs::Unreadable(_) => BTreeMap::new(),
        }
    }
}

/// Reads the metadata of all Secrets and ConfigMaps that a Workspace references.
pub(super) async fn read(workspace: &Workspace, context: &Context) -> Result<Inputs, ReadError> {
    let namespace = workspace.namespace().unwrap_or_default();
    let of_config: BTreeSet<String> = config::mounted(&workspace.spec).into_iter().map(Mounted::object).collect();
    let mut versions = BTreeMap::new();
    for object in environment::directories(&workspace.spec).into_keys() {
        let found = match object.split_once('/') {
            Some(("Secret", name)) => metadata::<Secret>(&namespace, name, context).await,
            Some(("ConfigMap", name)) => metadata::<ConfigMap>(&namespace, name, context).await,
            _ => continue,
        };
        let metadata = match found {
            Ok(metadata) => metadata,
            Err(error) if error.is_forbidden() => return Ok(Inputs::Unreadable(error.to_string())),
            Err(error) => return Err(error),
        };
        let found = version(metadata.as_ref(), of_config.contains(&object), context.watched.as_ref());
        versions.insert(object, found);
    }
    Ok(Inputs::Read(versions))
}

async fn metadata<K>(namespace: &str, name: &str, context: &Context) -> Result<Option<ObjectMeta>, ReadError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    Ok(context.reader.get_metadata_opt::<K>(namespace, name).await?.map(|object| object.metadata))
}

/// Returns the version of an object. A change to an object that the configuration references always triggers a run. A
/// change to any other object triggers a run only if the object matches `watched`.
fn version(metadata: Option<&ObjectMeta>, is_of_config: bool, watched: Option<&Selector>) -> InputVersion {
    let Some(metadata) = metadata else {
        return InputVersion { starts_run: is_of_config, ..InputVersion::default() };
    };
    let labels = metadata.labels.clone().unwrap_or_default();
    let managed = metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    InputVersion {
        version: metadata.resource_version.clone().unwrap_or_default(),
        changed: managed.chain(metadata.creation_timestamp.as_ref()).map(|time| time.0).max(),
        starts_run: is_of_config || watched.is_some_and(|selector| selector.matches(&labels)),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Expression;
    use serde_json::json;

    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().expect("valid time")
    }

    #[test]
    fn only_changes_that_can_trigger_a_run_wake_up_a_workspace() {
        let recorded = BTreeMap::from([("Secret/aws".to_owned(), "7".to_owned())]);
        let rows = [
            ("unchanged", "Secret/aws", "7", true, false),
            ("changed", "Secret/aws", "8", true, true),
            ("changed, but triggers no run", "Secret/aws", "8", false, false),
            ("deleted", "Secret/aws", "", true, false),
            ("not recorded", "Secret/other", "8", true, false),
        ];
        for (name, object, version, starts_run, expected) in rows {
            let found = InputVersion { version: version.to_owned(), changed: None, starts_run };
            let inputs = Inputs::Read([(object.to_owned(), found)].into());
            assert_eq!(inputs.changed_since(&recorded).is_some(), expected, "{name}");
        }
        let created = BTreeMap::from([("Secret/aws".to_owned(), String::new())]);
        let found = InputVersion { version: "8".to_owned(), changed: None, starts_run: true };
        let inputs = Inputs::Read([("Secret/aws".to_owned(), found)].into());
        assert_eq!(inputs.changed_since(&created), Some("Secret/aws"), "the object did not exist");
        assert_eq!(inputs.versions()["Secret/aws"], "8");
        assert_eq!(Inputs::NotRead.changed_since(&recorded), None);
    }

    #[test]
    fn a_recent_change_delays_the_sleep_until_the_kubelet_has_mounted_it() {
        let now = at("2026-01-01T12:00:00Z");
        let inputs = |changed: &[(&str, bool)]| {
            let version = |(time, starts_run): &(&str, bool)| {
                let found = InputVersion { version: "1".to_owned(), changed: Some(at(time)), starts_run: *starts_run };
                (format!("Secret/{time}"), found)
            };
            Inputs::Read(changed.iter().map(version).collect())
        };
        let left = |changed: &[(&str, bool)]| inputs(changed).until_mounted(now).map(|left| left.as_secs());
        assert_eq!(left(&[]), None);
        assert_eq!(left(&[("2026-01-01T11:59:00Z", true)]), Some(120));
        assert_eq!(left(&[("2026-01-01T11:59:00Z", false)]), None, "the change triggers no run");
        assert_eq!(left(&[("2026-01-01T11:57:00Z", true), ("2026-01-01T10:00:00Z", true)]), None);
        assert_eq!(left(&[("2099-01-01T00:00:00Z", true)]), None, "a user has set the time");
        assert_eq!(left(&[("2099-01-01T00:00:00Z", true), ("2026-01-01T11:59:00Z", true)]), Some(120));
    }

    #[test]
    fn the_last_change_of_any_field_manager_is_used() {
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "resourceVersion": "9", "labels": {"watch": "yes"}, "creationTimestamp": "2026-01-01T10:00:00Z",
            "managedFields": [{"manager": "a", "time": "2026-01-01T11:00:00Z"}, {"manager": "b"}],
        }))
        .expect("valid metadata");
        let watched: Selector = Expression::Equal("watch".to_owned(), "yes".to_owned()).into();
        let found = version(Some(&metadata), false, Some(&watched));
        let expected =
            InputVersion { version: "9".to_owned(), changed: Some(at("2026-01-01T11:00:00Z")), starts_run: true };
        assert_eq!(found, expected);
        assert!(!version(Some(&metadata), false, None).starts_run);
        assert!(version(None, true, None).starts_run && version(None, true, None).version.is_empty());
    }
}
