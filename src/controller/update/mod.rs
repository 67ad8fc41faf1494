//! Update controller. An Update represents a single run. The controller first records the binding of the run, which
//! identifies the pod, in the Update's `status.run`. The run is then *bound*. The controller never starts or attaches
//! to a run that is not bound. The controller records the result of each run once.
//!
//! The module `controller` contains the watches and the reconcile loop, which uses the following modules:
//!
//! - `observe` reads the state.
//! - `decide` selects the next action.
//! - `act` performs the action.
//! - `status` builds the status.

mod act;
mod attach_target;
mod attachments;
mod context;
mod controller;
mod deadline;
mod decide;
mod events;
mod history;
mod interruptions;
mod observe;
mod order;
pub mod outcome;
mod outputs;
mod planned_changes;
mod plans;
mod pod_mark;
mod pod_termination;
mod policy_violations;
mod progress;
mod queue;
mod readiness;
mod request;
mod resource_steps;
mod result_files;
mod run_queue;
mod run_slot;
mod stack_tags;
pub mod status;
mod stored_secrets;
mod trace;
mod trace_context;
mod trace_spans;

pub use attachments::Attachments;
pub use context::Context;
pub use controller::{Feeds, controller, reconcile, requeue_after_run, requeue_of_workspace};
pub use history::HistoryWriter;
pub use interruptions::Interruptions;
pub use outputs::is_of as is_outputs_of;
pub use pod_mark::{is_of as is_marked_for, update_name as marked_update_name};
#[cfg(test)]
pub(crate) use queue::run_in;
pub use queue::{UpdateGroup, Updates, updates};
pub use request::{RunTimeouts, interrupted_run, required_protocol_version, waits_for_references};
pub use run_queue::RunQueue;
pub use run_slot::withdraw_deleted;
pub use stored_secrets::StoredSecrets;
pub use trace::RunTraces;
pub use trace_context::TraceContext;
