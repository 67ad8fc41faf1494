//! The state that a pass of a Stack starts from: the Stack itself, its source, its Workspace and its Updates.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::Stack;
use crate::controller::stack::duplicate_stacks::DuplicateStack;
use crate::controller::stack::prerequisites::Needed;
use crate::source::{Resolved, Unavailable};

/// The state at the start of a pass.
#[derive(Clone, Debug)]
pub struct Observed {
    pub stack: Stack,
    /// What the source has; `None` when the pass needs no source.
    pub source: Option<Result<Resolved, Unavailable>>,
    /// Whether the wanted artifact's bytes are in the store, if it has any.
    pub in_store: bool,
    pub workspace: Option<Workspace>,
    /// Whether admission changed the Workspace when it was last applied, and it has not changed since.
    pub is_workspace_mutated: bool,
    /// The Update named in `status.currentUpdate`.
    pub update: Option<Update>,
    /// Its outputs, once it is complete.
    pub outputs: Option<Secret>,
    /// The Stacks that have to be done before a run.
    pub needed: Vec<Needed>,
    /// The way over these back to this Stack itself.
    pub cycle: Option<Vec<String>>,
    /// What it needs of other namespaces, where that is not allowed.
    pub elsewhere: Option<String>,
    /// Of the Secrets and ConfigMaps that have changed in the pod since the last run, those whose change is a reason to run.
    pub watched: BTreeSet<String>,
    /// By how many percent an interval may be longer or shorter.
    pub interval_jitter: u8,
    /// The Stack that manages the same Pulumi stack and is before this one.
    pub duplicate: Option<DuplicateStack>,
    /// Every Update of this Stack that the controller knows of.
    pub updates: Vec<Arc<Update>>,
    /// Observed only while the Stack is being deleted.
    pub deletion: Option<Deletion>,
}

#[cfg(test)]
impl Observed {
    /// A Stack of which nothing else is known.
    pub fn of(stack: Stack) -> Self {
        Observed {
            stack,
            source: None,
            in_store: false,
            workspace: None,
            is_workspace_mutated: false,
            update: None,
            outputs: None,
            needed: Vec::new(),
            cycle: None,
            elsewhere: None,
            watched: BTreeSet::new(),
            interval_jitter: 0,
            duplicate: None,
            updates: Vec::new(),
            deletion: None,
        }
    }
}

/// What was looked at because the Stack is being deleted.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    /// The artifact that the Workspace asks for, if the store has its bytes.
    pub asked: Option<Resolved>,
    /// The project that is made to destroy the stack when its source is gone, if the project's name is known.
    pub without_source: Option<Resolved>,
    /// Whether the store has its bytes: then the source could not be had.
    pub is_stored: bool,
    /// The Stacks that need this one.
    pub dependents: Vec<Arc<Stack>>,
}
