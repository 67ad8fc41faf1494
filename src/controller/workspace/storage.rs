//! Storage that a Workspace keeps while it has no pod: a dependency cache or the share volume. All functions are
//! pure.

use serde_json::{Value, json};

use super::environment::has_name;
use super::init_containers::BOOTSTRAP_CONTAINER;
use super::pod;
use super::spec_error::SpecError;
use crate::api::auto::{IdleKeep, WorkspaceSpec};
use crate::api::names::{self, CACHE_DIRECTORY, CACHE_SIZE_VARIABLE, SHARE_VOLUME};
use crate::config::StorageConfig;

/// Name of the volume that contains the dependency cache.
pub(super) const CACHE_VOLUME: &str = "dependency-cache";
/// Group that owns the files on a persistent volume. Pods with the profile `restricted` run with this group.
const FILE_SYSTEM_GROUP: u32 = 1000;
/// `bootstrap` argument that specifies which Workspace owns a persistent share volume.
const OWNER_ARGUMENT: &str = "--owner";
/// `bootstrap` argument that discards the source from the previous pod.
const DISCARD_ARGUMENT: &str = "--discard-source";

/// Workspace storage that outlives the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage<'a> {
    Nothing,
    /// PersistentVolumeClaim for a dependency cache, and the maximum size of the cache in bytes.
    Cache {
        claim: &'a str,
        size: u64,
    },
    /// PersistentVolumeClaim for the share volume.
    Volume {
        claim: &'a str,
    },
}

impl<'a> Storage<'a> {
    /// Returns the storage that the spec selects, or the controller's default storage.
    pub(super) fn of(spec: &'a WorkspaceSpec, defaults: &'a StorageConfig) -> Result<Self, SpecError> {
        let idle = spec.idle.as_ref();
        let claim = idle.and_then(|idle| idle.claim.as_deref()).filter(|claim| !claim.is_empty());
        if let Some(claim) = claim.filter(|claim| !names::is_object_name(claim)) {
            return Err(SpecError::IdleClaim { claim: claim.to_owned() });
        }
        match (idle.and_then(|idle| idle.keep).unwrap_or(defaults.keep), claim) {
            (IdleKeep::Nothing, _) => Ok(Storage::Nothing),
            (IdleKeep::Caches, claim) => {
                Ok(Storage::Cache { claim: claim.unwrap_or(&defaults.cache_claim), size: defaults.cache_size })
            }
            (IdleKeep::Volume, Some(claim)) => Ok(Storage::Volume { claim }),
            (IdleKeep::Volume, None) => Err(SpecError::NoIdleClaim),
        }
    }

    /// Adds the PersistentVolumeClaim to the generated pod template of the Workspace `name`. If `assigns_user` is `false`,
    /// the cluster sets the group of the volume.
    pub(super) fn mount(&self, template: &mut Value, name: &str, assigns_user: bool) {
        match *self {
            Storage::Nothing => return,
            Storage::Cache { claim, size } => mount_cache(template, claim, size),
            Storage::Volume { claim } => mount_share(template, claim, name),
        }
        if assigns_user {
            set_file_system_group(template);
        }
    }
}

/// Makes `bootstrap` discard the source that the previous pod has left on a persistent share volume. Otherwise, the
/// user-defined init containers would find the files that they created in the previous pod.
pub(super) fn discard_source(template: &mut Value) {
    let Some(command) = bootstrap_command(template) else { return };
    if command.iter().any(|argument| argument == OWNER_ARGUMENT) {
        command.push(Value::from(DISCARD_ARGUMENT));
    }
}

fn mount_cache(template: &mut Value, claim: &str, size: u64) {
    let volume = json!({"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": claim}});
    if let Some(volumes) = template.pointer_mut("/spec/volumes").and_then(Value::as_array_mut) {
        volumes.push(volume);
    }
    let Some(container) = pod::pulumi_container(template) else { return };
    if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
        mounts.push(json!({"name": CACHE_VOLUME, "mountPath": CACHE_DIRECTORY}));
    }
    if let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) {
        variables.retain(|variable| !has_name(variable, CACHE_SIZE_VARIABLE));
        variables.push(json!({"name": CACHE_SIZE_VARIABLE, "value": size.to_string()}));
    }
}

fn mount_share(template: &mut Value, claim: &str, name: &str) {
    let volumes = template.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
    if let Some(share) = volumes.into_iter().flatten().find(|volume| has_name(volume, SHARE_VOLUME)) {
        *share = json!({"name": SHARE_VOLUME, "persistentVolumeClaim": {"claimName": claim}});
    }
    if let Some(command) = bootstrap_command(template) {
        command.extend([OWNER_ARGUMENT, name].map(Value::from));
    }
}

fn bootstrap_command(template: &mut Value) -> Option<&mut Vec<Value>> {
    let containers = template.pointer_mut("/spec/initContainers")?.as_array_mut()?;
    let bootstrap = containers.iter_mut().find(|container| has_name(container, BOOTSTRAP_CONTAINER))?;
    bootstrap.get_mut("command")?.as_array_mut()
}

/// Makes a persistent volume writable for all containers. The root directory of a new volume usually belongs to root,
/// but `bootstrap` does not run as root.
fn set_file_system_group(template: &mut Value) {
    let context = template.pointer_mut("/spec/securityContext").and_then(Value::as_object_mut);
    let Some(context) = context else { return };
    context.insert("fsGroup".to_owned(), Value::from(FILE_SYSTEM_GROUP));
    context.insert("fsGroupChangePolicy".to_owned(), Value::from("OnRootMismatch"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(idle: Value) -> WorkspaceSpec {
        serde_json::from_value(json!({"idle": idle})).expect("valid spec")
    }

    fn defaults(keep: IdleKeep) -> StorageConfig {
        StorageConfig { keep, cache_claim: "pulumi-cache".to_owned(), cache_size: 1000 }
    }

    #[test]
    fn the_storage_of_the_spec_replaces_the_default() {
        let cache = |claim| Ok(Storage::Cache { claim, size: 1000 });
        let rows = [
            (json!(null), IdleKeep::Nothing, Ok(Storage::Nothing)),
            (json!({"after": "30m"}), IdleKeep::Caches, cache("pulumi-cache")),
            (json!({"claim": "mine"}), IdleKeep::Caches, cache("mine")),
            (json!({"claim": "mine"}), IdleKeep::Nothing, Ok(Storage::Nothing)),
            (json!({"keep": "Nothing"}), IdleKeep::Caches, Ok(Storage::Nothing)),
            (json!({"keep": "Caches"}), IdleKeep::Nothing, cache("pulumi-cache")),
            (json!({"keep": "Caches", "claim": ""}), IdleKeep::Nothing, cache("pulumi-cache")),
            (json!({"keep": "Volume", "claim": "mine"}), IdleKeep::Caches, Ok(Storage::Volume { claim: "mine" })),
            (
                json!({"keep": "Volume"}),
                IdleKeep::Nothing,
                Err(
                    "idle.keep Volume requires idle.claim: set it to a PersistentVolumeClaim that only this Workspace uses",
                ),
            ),
            (
                json!({"keep": "Caches", "claim": "A/b"}),
                IdleKeep::Nothing,
                Err("invalid idle.claim \"A/b\": must be the name of a PersistentVolumeClaim"),
            ),
        ];
        for (idle, keep, expected) in rows {
            let (spec, defaults) = (spec(idle.clone()), defaults(keep));
            let found = Storage::of(&spec, &defaults).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{idle}");
        }
    }

    #[test]
    fn only_the_bootstrap_of_a_persistent_share_volume_discards_the_source() {
        let template =
            |command: Value| json!({"spec": {"initContainers": [{"name": "bootstrap", "command": command}]}});
        for (command, expected) in [
            (json!(["a", "--owner", "app"]), json!(["a", "--owner", "app", "--discard-source"])),
            (json!(["a"]), json!(["a"])),
        ] {
            let mut template = template(command);
            discard_source(&mut template);
            assert_eq!(template["spec"]["initContainers"][0]["command"], expected);
        }
    }
}
