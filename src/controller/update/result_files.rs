//! Stores the outputs and the plan of a completed run in Secrets.

use jiff::Timestamp;

use crate::api::auto::Update;
use crate::controller::update::context::Context;
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::outputs::{self, Stored};
use crate::controller::update::plans;
use crate::runtime::reconcile::ReconcileError;

/// Result of an attempt to store the outputs and the plan.
#[derive(Debug)]
pub(super) enum Files {
    /// No retry is necessary. Contains the outcome of the run, which is a failure if the plan could not be stored.
    Stored(Box<RunOutcome>),
    /// The controller retries the write. Contains the message for the status.
    NotYet(String),
}

/// Stores the outputs and the plan of a completed run before the controller writes the status that references them.
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
