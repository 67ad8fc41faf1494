//! Events about Updates.

use crate::api::auto::{Update, UpdateKind};
use crate::api::conditions::update_reason;
use crate::controller::update::observe::is_of_stack;
use crate::controller::update::outcome::RunOutcome;
use crate::runtime::events::{Event, EventKind};

/// Returns the event that reports the completion of a run. Returns `None` for a successful run of a Stack, because the
/// Stack reports the result.
pub fn end_event(update: &Update, outcome: &RunOutcome) -> Option<Event> {
    let is_drift_check = update.spec.preview_of.is_some() && !update.spec.save_plan.unwrap_or_default();
    match outcome.failure {
        None => {
            (!is_of_stack(update)).then(|| Event::new(update, EventKind::Normal, "UpdateSucceeded", succeeded(update)))
        }
        // A canceled drift check is not a failure: the controller cancels the check when another run is due.
        Some(update_reason::CANCELED) if is_drift_check => {
            Some(Event::new(update, EventKind::Trace, "UpdateCanceled", outcome.message.as_str()))
        }
        Some(reason) => {
            // While the lock exists, the Stack controller retries with new Updates. The Stack controller publishes a
            // single event about the lock instead of one event for each Update.
            let is_reported = reason == update_reason::UPDATE_CONFLICT && is_of_stack(update);
            let kind = if is_reported { EventKind::Trace } else { EventKind::Warning };
            Some(Event::new(update, kind, "UpdateFailed", format!("{reason}: {}", outcome.message)))
        }
    }
}

/// Adds the revision to the event metadata. As in Flux, the API group of the object is the prefix of the metadata
/// key.
pub fn with_revision(update: &Update, event: Event) -> Event {
    match update.artifact() {
        Some(artifact) => event.with("auto.pulumi.com/revision", artifact.revision.as_str()),
        None => event,
    }
}

fn succeeded(update: &Update) -> String {
    let word = match update.spec.kind {
        UpdateKind::Up => "updated",
        UpdateKind::Destroy => "destroyed",
        UpdateKind::Preview => "previewed",
        UpdateKind::Refresh => "refreshed",
        UpdateKind::Unknown => "completed run of",
    };
    format!("{word} stack {}", update.spec.stack_name)
}
