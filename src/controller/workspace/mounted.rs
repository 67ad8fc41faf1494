//! A Secret or a ConfigMap that is mounted into the pod. Pure.

use crate::api::names::{CONFIG_MAPS_DIRECTORY, SECRETS_DIRECTORY};
use crate::controller::references::{Reference, ReferencedKind};

const MAX_NAME: usize = 253;

/// A Secret or a ConfigMap behind the environment or the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mounted<'a> {
    Secret(&'a str),
    ConfigMap(&'a str),
}

impl Mounted<'_> {
    /// Kind and name, such as `Secret/aws`.
    pub(super) fn object(self) -> String {
        match self {
            Mounted::Secret(name) => format!("Secret/{name}"),
            Mounted::ConfigMap(name) => format!("ConfigMap/{name}"),
        }
    }

    /// Where it is mounted.
    pub(super) fn directory(self) -> String {
        match self {
            Mounted::Secret(name) => format!("{SECRETS_DIRECTORY}/{name}"),
            Mounted::ConfigMap(name) => format!("{CONFIG_MAPS_DIRECTORY}/{name}"),
        }
    }

    /// As a reference of what refers to it.
    pub(super) fn referred_to_by(self, referrer: String) -> Reference {
        let (kind, name) = match self {
            Mounted::Secret(name) => (ReferencedKind::Secret, name),
            Mounted::ConfigMap(name) => (ReferencedKind::ConfigMap, name),
        };
        Reference { kind, name: name.to_owned(), referrer, directory: self.directory() }
    }
}

/// Whether the name can be that of a Secret or a ConfigMap.
pub(super) fn check_name(mounted: Mounted<'_>) -> Result<(), &'static str> {
    let (name, what) = match mounted {
        Mounted::Secret(name) => (name, "`name` is not the name of a Secret"),
        Mounted::ConfigMap(name) => (name, "`name` is not the name of a ConfigMap"),
    };
    let is_valid = is_file_name(name) && !name.contains(|c: char| c == '_' || c.is_ascii_uppercase());
    if is_valid { Ok(()) } else { Err(what) }
}

/// Whether a Secret or a ConfigMap can have the key.
pub(super) fn check_key(key: &str) -> Result<(), &'static str> {
    if is_file_name(key) { Ok(()) } else { Err("`key` is not a key of a Secret or a ConfigMap") }
}

/// What Kubernetes accepts as a key of a Secret or a ConfigMap; their names are a part of it.
fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_NAME && name != "." && !name.starts_with("..") && name.chars().all(plain)
}
