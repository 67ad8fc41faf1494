//! What a run refers to: a Secret or a ConfigMap.

use std::fmt::{self, Debug};

/// The kind of an object that is referred to.
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

/// A Secret or ConfigMap that must exist before a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub kind: ReferencedKind,
    pub name: String,
    /// What refers to it, such as `environment variable TOKEN`.
    pub referrer: String,
    /// Where it is mounted in the workspace pod.
    pub directory: String,
}

impl Reference {
    /// Kind and name, such as `Secret/aws`.
    pub fn object(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}
