//! Secrets and ConfigMaps that are mounted into the pod. Pure functions.

use crate::api::names::{CONFIG_MAPS_DIRECTORY, SECRETS_DIRECTORY};
use crate::controller::references::{Reference, ReferencedKind};

const MAX_NAME: usize = 253;

/// Secret or ConfigMap that the environment or the configuration refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mounted<'a> {
    Secret(&'a str),
    ConfigMap(&'a str),
}

impl Mounted<'_> {
    /// Returns the kind and name, such as `Secret/aws`.
    pub(super) fn object(self) -> String {
        match self {
            Mounted::Secret(name) => format!("Secret/{name}"),
            Mounted::ConfigMap(name) => format!("ConfigMap/{name}"),
        }
    }

    /// Returns the directory at which the object is mounted.
    pub(super) fn directory(self) -> String {
        match self {
            Mounted::Secret(name) => format!("{SECRETS_DIRECTORY}/{name}"),
            Mounted::ConfigMap(name) => format!("{CONFIG_MAPS_DIRECTORY}/{name}"),
        }
    }

    /// Returns a reference to the object; `referrer` describes the field that contains the reference.
    pub(super) fn referred_to_by(self, referrer: String) -> Reference {
        let (kind, name) = match self {
            Mounted::Secret(name) => (ReferencedKind::Secret, name),
            Mounted::ConfigMap(name) => (ReferencedKind::ConfigMap, name),
        };
        Reference { kind, name: name.to_owned(), referrer, directory: self.directory() }
    }
}

/// Validates the name of a Secret or ConfigMap.
pub(super) fn check_name(mounted: Mounted<'_>) -> Result<(), &'static str> {
    let (name, what) = match mounted {
        Mounted::Secret(name) => (name, "`name` must be the name of a Secret"),
        Mounted::ConfigMap(name) => (name, "`name` must be the name of a ConfigMap"),
    };
    let is_valid = is_file_name(name) && !name.contains(|c: char| c == '_' || c.is_ascii_uppercase());
    if is_valid { Ok(()) } else { Err(what) }
}

/// Validates a key of a Secret or ConfigMap.
pub(super) fn check_key(key: &str) -> Result<(), &'static str> {
    if is_file_name(key) { Ok(()) } else { Err("`key` must be a key of a Secret or ConfigMap") }
}

/// Returns whether Kubernetes accepts this key in a Secret or ConfigMap. The names of these objects are more restricted.
fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_NAME && name != "." && !name.starts_with("..") && name.chars().all(plain)
}
