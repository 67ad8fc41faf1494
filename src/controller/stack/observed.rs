//! Observed state of a Stack: the Stack itself, its source, its Workspace and its Updates.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;

use crate::api::auto::{Update, UpdateKind, Workspace};
use crate::api::pulumi::Stack;
use crate::controller::namespaces::RunSettings;
use crate::controller::stack::approval::ObservedPlan;
use crate::controller::stack::duplicate_stacks::DuplicateStack;
use crate::controller::stack::policy_packs::ResolvedPack;
use crate::controller::stack::prerequisites::Dependency;
use crate::runtime::run_limiter::SlotWait;
use crate::source::{Resolved, Unavailable};

/// State that a reconciliation step reads before it decides on an action.
#[derive(Clone, Debug)]
pub struct Observed {
    pub stack: Stack,
    /// Resolved source. `None` if this step does not require the source.
    pub source: Option<Result<Resolved, Unavailable>>,
    /// Whether the store or the pod contains the bytes of the resolved artifact.
    pub in_store: bool,
    /// Policy packs, or the reason why a policy pack is not available. Empty if this step does not require the source.
    pub policy_packs: Result<Vec<ResolvedPack>, Unavailable>,
    pub workspace: Option<Workspace>,
    /// Whether an admission webhook or policy changed the Workspace during the last apply, and the Workspace has not
    /// changed since then.
    pub is_workspace_mutated: bool,
    /// Update to which `status.currentUpdate` refers.
    pub update: Option<Update>,
    /// Reason why the run of `update` waits for a slot. `None` if the run is not queued.
    pub slot_wait: Option<SlotWait>,
    /// Secret with the outputs of `update`, if the Update is complete.
    pub outputs: Option<Secret>,
    /// Stacks to which `dependsOn` and `prerequisites` refer.
    pub dependencies: Vec<Dependency>,
    /// Dependency cycle that contains this Stack.
    pub cycle: Option<Vec<String>>,
    /// Message about a dependency in another namespace. `None` if the controller allows such dependencies.
    pub denied_dependency: Option<String>,
    /// Watched Secrets and ConfigMaps that the pod mounts and that have changed since the last run. Such a change
    /// triggers a run.
    pub watched: BTreeSet<String>,
    /// Maximum interval jitter, in percent.
    pub interval_jitter: u8,
    /// Stack that manages the same Pulumi stack and takes precedence over this Stack.
    pub duplicate: Option<DuplicateStack>,
    /// Stack that manages the Pulumi stack of the last run, if the agent did not start this run for this reason.
    pub owner: Option<DuplicateStack>,
    /// State of this Stack's plan, or `None` if the Stack has no plan.
    pub plan: Option<ObservedPlan>,
    /// Pauses and the schedule that are defined outside the Stack.
    pub run_settings: RunSettings,
    /// Whether too many Stacks were deleted around the deletion of this Stack.
    pub is_destroy_limit_exceeded: bool,
    /// All cached Updates of this Stack.
    pub updates: Vec<Arc<Update>>,
    /// State for the deletion, or `None` if the Stack is not being deleted.
    pub deletion: Option<Deletion>,
}

impl Observed {
    /// Returns the policy packs that the Workspace requires for a run of this operation. A destroy evaluates no
    /// policies, so it does not wait for policy packs.
    pub fn policy_packs_of(&self, operation: UpdateKind) -> &[ResolvedPack] {
        match (operation, &self.policy_packs) {
            (UpdateKind::Destroy, _) | (_, Err(_)) => &[],
            (_, Ok(packs)) => packs,
        }
    }
}

#[cfg(test)]
impl Observed {
    /// Returns an observed state that contains only the Stack.
    pub fn of(stack: Stack) -> Self {
        Observed {
            stack,
            source: None,
            in_store: false,
            policy_packs: Ok(Vec::new()),
            workspace: None,
            is_workspace_mutated: false,
            update: None,
            slot_wait: None,
            outputs: None,
            dependencies: Vec::new(),
            cycle: None,
            denied_dependency: None,
            watched: BTreeSet::new(),
            interval_jitter: 0,
            duplicate: None,
            owner: None,
            plan: None,
            run_settings: RunSettings::default(),
            is_destroy_limit_exceeded: false,
            updates: Vec::new(),
            deletion: None,
        }
    }
}

/// State that the controller reads only during the deletion of a Stack.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    /// Artifact in the spec of the Workspace, if its bytes are available.
    pub requested: Option<Resolved>,
    /// Generated project for a destroy without the source, or `None` if the project name is unknown.
    pub without_source: Option<Resolved>,
    /// Whether the store contains the generated project. The controller stores the project only after a failed fetch of
    /// the source.
    pub is_stored: bool,
    /// Stacks that depend on this Stack.
    pub dependents: Vec<Arc<Stack>>,
    /// Other Stack that claims the Pulumi stack.
    pub claim: OtherClaim,
}

/// Other Stack in the namespace that claims the Pulumi stack in which a deleted Stack has resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OtherClaim {
    #[default]
    None,
    /// The cache can lack a Stack that a user created before the deletion.
    Unknown,
    /// Name of the Stack.
    By(String),
}
