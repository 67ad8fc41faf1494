//! Pools of idle pods. A Workspace that wakes up takes a pod from a pool instead of waiting for a new pod.
//!
//! A pool contains the idle pods in a namespace that have the same template. The modules have the following tasks:
//!
//! - `template` derives the template from the StatefulSet of a sleeping Workspace.
//! - `waiting` tracks the sleeping Workspaces and the free pods.
//! - `plan` selects the pods to create and to delete.
//! - `maintenance` executes the plan.
//! - `taken` determines the state of the pod that a Workspace has taken.

mod maintenance;
mod plan;
mod taken;
mod template;
mod waiting;

pub use maintenance::{Maintenance, MaintenanceParts};
pub use taken::{Pooled, pooled, take_patch};
pub use template::PoolTemplate;
pub use waiting::Pool;
