//! The only place that makes an Update's status. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::api::auto::{RunBinding, Update, UpdateStatus};
use crate::api::conditions::{self, COMPLETE, Claim, FAILED, PROGRESSING, Status, update_reason};
use crate::api::names;
use crate::controller::update::verdict::Verdict;

/// The longest message that the status keeps.
const LONGEST_MESSAGE: usize = 8 * 1024;

/// Three conditions at once.
type Claims<'a> = [(&'a str, Status, &'a str, &'a str); 3];

fn with(update: &Update, claims: Claims<'_>, now: Timestamp) -> UpdateStatus {
    let mut status = update.status.clone().unwrap_or_default();
    let generation = update.metadata.generation.unwrap_or_default();
    for (kind, value, reason, message) in claims {
        let claim = Claim { kind, status: value, reason, message };
        conditions::set(&mut status.conditions, &claim, generation, now);
    }
    status.observed_generation = Some(generation);
    status
}

/// The run cannot start yet.
pub fn waiting(update: &Update, reason: &str, message: &str, now: Timestamp) -> UpdateStatus {
    let open = update_reason::PROGRESSING;
    let claims = [
        (PROGRESSING, Status::False, reason, message),
        (FAILED, Status::False, open, ""),
        (COMPLETE, Status::False, open, ""),
    ];
    with(update, claims, now)
}

/// The run may start: this is written before it does.
pub fn announced(update: &Update, binding: &RunBinding, now: Timestamp) -> UpdateStatus {
    let mut status = running(update, "the run is starting", now);
    status.run = Some(binding.clone());
    status.start_time = Some(Time(now));
    status
}

/// The run goes on.
pub fn running(update: &Update, message: &str, now: Timestamp) -> UpdateStatus {
    let open = update_reason::PROGRESSING;
    let claims = [
        (PROGRESSING, Status::True, open, message),
        (FAILED, Status::False, open, ""),
        (COMPLETE, Status::False, open, ""),
    ];
    with(update, claims, now)
}

/// The run has ended.
pub fn recorded(update: &Update, verdict: &Verdict, now: Timestamp) -> UpdateStatus {
    let message = conditions::shorten(&verdict.message, LONGEST_MESSAGE);
    let claims = match verdict.failure {
        None => [
            (PROGRESSING, Status::False, update_reason::COMPLETE, ""),
            (FAILED, Status::False, update_reason::UPDATE_SUCCEEDED, ""),
            (COMPLETE, Status::True, update_reason::UPDATED, ""),
        ],
        Some(reason) => [
            (PROGRESSING, Status::False, "Failed", ""),
            (FAILED, Status::True, reason, message.as_str()),
            (COMPLETE, Status::True, update_reason::UPDATED, ""),
        ],
    };
    let mut status = with(update, claims, now);
    status.start_time = verdict.started.map(Time).or(status.start_time);
    status.end_time = Some(Time(verdict.ended.unwrap_or(now)));
    status.message = Some(message).filter(|m| !m.is_empty());
    status.permalink = verdict.permalink.clone();
    status.changes = verdict.changes.clone();
    status.outputs = (!verdict.outputs.is_empty()).then(|| names::outputs_secret(&update.name_any()));
    status
}
