//! Approval of changes. With approval settings, each run of a Stack starts as a preview that saves its plan. The
//! controller executes the plan only after users have approved it.
//!
//! `plan` records the plan of a preview, `gate` decides whether the controller may execute the plan, `risk` evaluates
//! the rules of the mode `OnRisk`, and `observe` reads the Approvals.

mod gate;
mod index;
mod message;
mod observe;
mod observed_plan;
mod plan;
mod policy;
mod risk;

pub use gate::{Gate, gate, is_automatic, withdrawn};
pub use index::{Approvals, approvals};
pub use message::approval_required;
pub use observe::observe;
pub use observed_plan::ObservedPlan;
pub use plan::{after_run, is_of_destroy};
pub use policy::{check, policy, unapproved_run};
