//! The observed state of a Stack: the Stack itself, its source, its Workspace and its Updates.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::controller::stack::duplicate_stacks::DuplicateStack;
use crate::controller::stack::prerequisites::Dependency;
use crate::source::{Resolved, Unavailable};

/// The observed state at the start of a reconcile step.
#[derive(Clone, Debug)]
pub struct Observed {
    pub stack: Stack,
    /// The resolved source; `None` if this step needs no source.
    pub source: Option<Result<Resolved, Unavailable>>,
    /// Whether the store or the pod has the bytes of the resolved artifact.
    pub in_store: bool,
    pub workspace: Option<Workspace>,
    /// Whether admission changed the Workspace at the last apply, and the Workspace has not changed since.
    pub is_workspace_mutated: bool,
    /// The Update named in `status.currentUpdate`.
    pub update: Option<Update>,
    /// The outputs Secret of that Update, if the Update is complete.
    pub outputs: Option<Secret>,
    /// The Stacks named in `dependsOn` and `prerequisites`.
    pub dependencies: Vec<Dependency>,
    /// The dependency cycle that contains this Stack.
    pub cycle: Option<Vec<String>>,
    /// Message about a dependency in another namespace that the controller does not allow Stacks to refer to.
    pub denied_dependency: Option<String>,
    /// Secrets and ConfigMaps that have changed in the pod since the last run and whose change triggers a run.
    pub watched: BTreeSet<String>,
    /// Maximum jitter of intervals, in percent.
    pub interval_jitter: u8,
    /// The Stack that manages the same Pulumi stack and takes precedence over this one.
    pub duplicate: Option<DuplicateStack>,
    /// All cached Updates of this Stack.
    pub updates: Vec<Arc<Update>>,
    /// Set only while the Stack is being deleted.
    pub deletion: Option<Deletion>,
}

#[cfg(test)]
impl Observed {
    /// Returns an observed state that contains only the Stack.
    pub fn of(stack: Stack) -> Self {
        Observed {
            stack,
            source: None,
            in_store: false,
            workspace: None,
            is_workspace_mutated: false,
            update: None,
            outputs: None,
            dependencies: Vec::new(),
            cycle: None,
            denied_dependency: None,
            watched: BTreeSet::new(),
            interval_jitter: 0,
            duplicate: None,
            updates: Vec::new(),
            deletion: None,
        }
    }
}

/// State that is observed only while the Stack is being deleted.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    /// The artifact in the Workspace's spec, if its bytes are available.
    pub requested: Option<Resolved>,
    /// The generated project that destroys the stack without its source, if the name of the project is known.
    pub without_source: Option<Resolved>,
    /// Whether the store has the bytes of the generated project. The bytes are stored only after a fetch of the source has failed.
    pub is_stored: bool,
    /// The Stacks that depend on this one.
    pub dependents: Vec<Arc<Stack>>,
}
