//! References of a run to Secrets and ConfigMaps.

use std::fmt::{self, Debug};

/// Kind of a referenced object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferencedKind {
    Secret,
    ConfigMap,
}

impl fmt::Display for ReferencedKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(self, formatter)
    }
}

/// Secret or ConfigMap that must exist before a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ReferencedKind,
    pub name: String,
    /// Field or variable that contains the reference, such as `environment variable TOKEN`.
    pub referrer: String,
    /// Directory at which the object is mounted in the workspace pod.
    pub directory: String,
}

impl Reference {
    /// Returns the kind and name, such as `Secret/aws`.
    pub fn object(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}
