//! Update controller: an Update is one run, which is announced in the status before it starts, attached to, and recorded
//! once.

mod act;
mod attachments;
mod context;
mod dead_runs;
mod decide;
mod groups;
mod observe;
mod outcome;
mod outputs;
mod pod_termination;
mod progress;
mod queue;
mod reconcile;
mod request;
mod run;
mod status;
mod timeouts;
mod watches;

#[cfg(test)]
mod record_tests;

pub use attachments::Attachments;
pub use context::Context;
pub use dead_runs::dead_run;
pub use groups::{UpdateGroup, Updates, updates};
pub use outputs::is_of as is_outputs_of;
#[cfg(test)]
pub(crate) use queue::run_in;
pub use reconcile::reconcile;
pub use request::{required_protocol_version, waits_for_references};
pub use timeouts::RunTimeouts;
pub use watches::{Feeds, controller};
