//! Secrets with the outputs and the plan of an ended run.

use jiff::Timestamp;

use crate::api::auto::Update;
use crate::controller::update::context::Context;
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::outputs::{self, Stored};
use crate::controller::update::plans;
use crate::runtime::reconcile::ReconcileError;

/// Result of the attempt to store the outputs and the plan.
#[derive(Debug)]
pub(super) enum Files {
    /// The attempt has ended. Contains the outcome of the run, which can be a failure if the plan is not stored.
    Stored(Box<RunOutcome>),
    /// The write is retried. Contains the message for the status.
    NotYet(String),
}

/// Stores the outputs and the plan of an ended run before the status that refers to them is written.
pub(super) async fn store(
    update: &Update,
    outcome: RunOutcome,
    context: &Context,
    now: Timestamp,
) -> Result<Files, ReconcileError> {
    let outcome = match outputs::store(update, &outcome, context, now).await? {
        Stored::Yes => outcome,
        Stored::No(why) => outcome.without_outputs(&why),
        Stored::NotYet(why) => {
            return Ok(Files::NotYet(format!("run ended; failed to store its outputs, retrying: {why}")));
        }
    };
    let outcome = match plans::store(update, &outcome, context, now).await? {
        Stored::Yes => outcome,
        Stored::No(why) => outcome.without_plan(&why),
        Stored::NotYet(why) => {
            return Ok(Files::NotYet(format!("run ended; failed to store its plan, retrying: {why}")));
        }
    };
    Ok(Files::Stored(Box::new(outcome)))
}
