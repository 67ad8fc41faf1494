//! Pools of idle pods. A Workspace that wakes takes a pod from a pool instead of starting one.
//!
//! A pool contains the idle pods of a namespace that have the same template. `template` derives the template from the
//! StatefulSets of the Workspaces that are asleep, `waiting` contains these Workspaces and the free pods, `plan`
//! decides which pods to create and to delete, and `maintenance` performs the plan. `taken` contains the state of the
//! pod that a Workspace has taken.

mod maintenance;
mod plan;
mod taken;
mod template;
mod waiting;

pub use maintenance::{Maintenance, MaintenanceParts};
pub use taken::{Pooled, pooled, take_patch};
pub use template::PoolTemplate;
pub use waiting::Pool;
