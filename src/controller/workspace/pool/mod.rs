//! Pools of idle pods. A Workspace that wakes takes a pod from a pool instead of starting one.
//!
//! A pool has the pods of a namespace with the same template. `template` derives the template from the StatefulSets of the
//! Workspaces that are asleep, `waiting` contains these Workspaces and the free pods, `plan` decides which pods are created
//! and deleted, and `maintenance` performs the plan. `taken` contains the state of the pod that a Workspace has taken.

mod maintenance;
mod plan;
mod taken;
mod template;
mod waiting;

pub use maintenance::{Maintenance, MaintenanceParts};
pub use taken::{Pooled, pooled, take_patch};
pub use template::PoolTemplate;
pub use waiting::Pool;
