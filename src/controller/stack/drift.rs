//! Drift checks. A drift check previews a refresh and, optionally, the program. The controller starts a check at an
//! interval or at scheduled times, while no other run is due.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::api::auto::{PlannedResource, PreviewOf, Update, UpdateKind, UpdatePlan};
use crate::api::conditions::{self, ConditionUpdate, DRIFTED, FAILED, Status, drift_reason, update_reason};
use crate::api::pulumi::{
    CurrentUpdate, DriftIgnoreRule, DriftMode, DriftPolicy, DriftSchedule, LastUpdate, Stack, StackDrift, StackStatus,
};
use crate::api::{bounds, duration, names};
use crate::controller::stack::annotations;
use crate::controller::stack::backoff;
use crate::controller::stack::drift::cron::Cron;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::pattern;
use crate::controller::stack::run::{DueRun, PlanUse, RunCandidate};
use crate::controller::stack::run_spec;
use crate::controller::stack::schedule::{self, Due};
use crate::pulumi::operations;
use crate::runtime::events::{Event, EventKind};

mod cron;

/// Value of the annotation `pulumi.com/cancel` with which the controller cancels an outdated drift check.
pub const SUPERSEDED: &str = "another run is due";
/// Message about a run that corrects drift.
const CORRECTION: &str = "Drift detected by the last drift check";
/// Minimum time between a run or a drift check and the next drift check.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// Maximum number of rules for ignored drift.
const MAX_RULES: usize = bounds::PATTERNS as usize;
/// Maximum number of differing properties in the record of a resource.
const MAX_PROPERTIES: usize = bounds::PLANNED_PROPERTIES as usize;
/// Maximum number of drifted resources in a Stack's status.
const MAX_RESOURCES: usize = 50;
/// Maximum number of drifted resources in a message.
const MAX_LISTED: usize = 3;

/// Decision about the next drift check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// A drift check is due. Contains the reason.
    Now(String),
    After(SignedDuration),
    /// Drift checks are not enabled.
    Never,
}

/// Returns whether the recorded run is a drift check.
pub fn is_check(current: &CurrentUpdate) -> bool {
    is_check_of(current.preview_of, current.save_plan)
}

/// Returns whether a run of a Stack with these options is a drift check. Any other preview with `preview_of` saves a
/// plan.
pub fn is_check_of(preview_of: Option<PreviewOf>, save_plan: Option<bool>) -> bool {
    preview_of.is_some() && !save_plan.unwrap_or_default()
}

/// Returns the run of a drift check.
pub fn due_run(stack: &Stack, message: String) -> DueRun {
    let refresh = expects_no_changes(stack);
    DueRun { operation: UpdateKind::Refresh, message, refresh, plan: PlanUse::None }
}

/// Returns whether a drift check also reports the changes that a run would make.
fn expects_no_changes(stack: &Stack) -> bool {
    stack.spec.drift.as_ref().and_then(|policy| policy.expect_no_changes).unwrap_or_default()
}

/// Returns the decision about the next drift check of a Stack whose last run succeeded. `kind` is the kind of the
/// Stack's runs. An invalid policy starts no checks.
pub fn check(stack: &Stack, kind: UpdateKind, now: Timestamp) -> Check {
    let Some(policy) = valid_policy(stack).filter(|_| kind == UpdateKind::Up) else { return Check::Never };
    let status = stack.status.as_ref();
    let run = status.and_then(|status| status.last_update.as_ref()?.last_resync_time.as_ref());
    let checked = status.and_then(|status| status.drift.as_ref()?.last_checked.as_ref());
    let last = run.into_iter().chain(checked).map(|time| time.0).max();
    let next = [
        policy.interval.as_deref().and_then(|interval| check_at_interval(interval, last, now)),
        policy.schedule.as_ref().and_then(|schedule| check_at_time(schedule, last, now)),
    ];
    match next.into_iter().flatten().min_by_key(|(wait, _)| *wait) {
        Some((wait, _)) if wait.is_positive() => Check::After(wait),
        Some((_, message)) => Check::Now(message),
        None => Check::Never,
    }
}

/// Returns the time until the next drift check at the interval, and the check's message. `last` is the time of the last
/// run or check. Returns `None` if the interval is zero or invalid.
fn check_at_interval(interval: &str, last: Option<Timestamp>, now: Timestamp) -> Option<(SignedDuration, String)> {
    let interval = backoff::interval(Some(interval))?.max(MIN_INTERVAL);
    let since = last.map(|last| now.duration_since(last));
    let wait = interval.saturating_sub(since.unwrap_or(interval));
    Some((wait, format!("Drift check after {}", duration::display(interval))))
}

/// Returns the time until the first scheduled drift check after `last`, and the check's message. `last` is the time of
/// the last run or check. Returns `None` if the schedule is invalid.
fn check_at_time(
    schedule: &DriftSchedule,
    last: Option<Timestamp>,
    now: Timestamp,
) -> Option<(SignedDuration, String)> {
    let cron = Cron::parse(schedule).ok()?;
    let Some(last) = last else { return Some((SignedDuration::ZERO, "First drift check".to_owned())) };
    let earliest = last.checked_add(MIN_INTERVAL).ok()?;
    let at = cron.next(last)?;
    let wait = at.max(earliest).duration_since(now);
    Some((wait, format!("Drift check scheduled for {at}")))
}

/// Returns `spec.drift` if it is valid. An invalid `spec.drift` prevents drift checks and corrections, but no other
/// runs. The condition `Drifted` contains the error.
fn valid_policy(stack: &Stack) -> Option<&DriftPolicy> {
    stack.spec.drift.as_deref().filter(|policy| check_policy(policy).is_ok())
}

/// Checks the rules for ignored drift, the interval and the schedule of a policy. Returns the error message.
fn check_policy(policy: &DriftPolicy) -> Result<(), String> {
    check_rules(&policy.ignore)?;
    if let Some(interval) = policy.interval.as_ref().filter(|interval| duration::seconds(interval).is_none()) {
        return Err(format!("invalid spec.drift.interval: {interval:?} is not a duration such as 1h30m or 45s"));
    }
    if policy.schedule.is_none() && backoff::interval(policy.interval.as_deref()).is_none() {
        return Err(DriftPolicy::WITHOUT_TIME.to_owned());
    }
    policy.schedule.as_ref().map_or(Ok(()), cron::check)
}

/// Checks the rules for ignored drift. The API server validates these rules only in the version v1.
fn check_rules(rules: &[DriftIgnoreRule]) -> Result<(), String> {
    if rules.len() > MAX_RULES {
        return Err(format!("invalid spec.drift.ignore: {} rules; at most {MAX_RULES} are permitted", rules.len()));
    }
    for (index, rule) in rules.iter().enumerate() {
        for (field, pattern) in [("type", &rule.kind), ("urn", &rule.urn), ("property", &rule.property)] {
            let Some(pattern) = pattern else { continue };
            pattern::check(&format!("spec.drift.ignore[{index}].{field}"), pattern)?;
        }
    }
    Ok(())
}

/// Returns whether the runs of a Stack correct drift.
fn corrects(stack: &Stack) -> bool {
    valid_policy(stack).is_some_and(|policy| policy.mode == DriftMode::Correct)
}

/// Returns whether the recorded run corrects drift although a user has disabled the correction. A change to
/// `spec.drift` does not revoke other runs.
pub fn is_disabled_correction(stack: &Stack, current: &CurrentUpdate) -> bool {
    current.message == CORRECTION && !corrects(stack)
}

/// Returns whether a run must correct the drift that the last drift check found.
pub fn is_correction_due(stack: &Stack) -> bool {
    let drift = stack.status.as_ref().and_then(|status| status.drift.as_ref());
    corrects(stack) && drift.is_some_and(|drift| drift.count > 0 && drift.correction_requested != Some(true))
}

/// Returns a due run that corrects drift, if no other run is due and the last drift check found drift. Otherwise,
/// returns `due`.
pub fn with_correction(stack: &Stack, kind: UpdateKind, due: Due) -> Due {
    match due {
        Due::Done(_) if kind == UpdateKind::Up && is_correction_due(stack) => Due::Now(CORRECTION.to_owned()),
        due => due,
    }
}

/// Returns whether the recorded run is an outdated drift check, because the Stack's inputs or the scope of its drift
/// checks have changed.
pub fn is_superseded(observed: &Observed, current: &CurrentUpdate) -> bool {
    if !is_check(current) {
        return false;
    }
    let stack = &observed.stack;
    stack.metadata.deletion_timestamp.is_some()
        || run_spec::has_changed(stack, &current.inputs)
        || expects_no_changes(stack) != (current.preview_of == Some(PreviewOf::Up))
        || has_other_inputs(observed)
}

/// Returns whether the Stack's inputs differ from the inputs of the last run. Returns `false` if the source is not
/// available.
pub fn has_other_inputs(observed: &Observed) -> bool {
    let last = observed.stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    match &observed.source {
        Some(Ok(resolved)) => !schedule::has_same_inputs(last, &RunCandidate::new(observed, resolved)),
        Some(Err(_)) | None => false,
    }
}

/// Records a drift check's result in the status and in the condition `Drifted`.
pub fn record(stack: &Stack, status: &mut StackStatus, update: &Update, now: Timestamp) {
    let result = update.status.clone().unwrap_or_default();
    let failed = conditions::find(&result.conditions, FAILED).filter(|failed| failed.status == "True");
    let is_canceled = failed.is_some_and(|failed| failed.reason == update_reason::CANCELED);
    // After the run that is due, the controller repeats the check. If no run starts, the check is still due.
    if is_canceled && is_canceled_by_controller(update) {
        return;
    }
    let update_name = update.metadata.name.clone().unwrap_or_default();
    let before = status.drift.take().map(|drift| *drift);
    // The controller does not retry a run that a user has canceled. The next check is due after the interval.
    if is_canceled && annotations::is_canceled_by_user(stack, update) {
        let before = before.unwrap_or_else(|| StackDrift { update_name, ..StackDrift::default() });
        status.drift = Some(Box::new(StackDrift { last_checked: Some(Time(now)), ..before }));
        return;
    }
    let before = before.unwrap_or_default();
    let limit = usize::try_from(bounds::MESSAGE).unwrap_or(usize::MAX);
    let drift = match failed {
        Some(failed) => StackDrift { message: Some(conditions::shorten(&failed.message, limit)), ..before },
        None => found(stack.spec.drift.as_deref(), &result.plan.unwrap_or_default()),
    };
    let drift = StackDrift { last_checked: Some(Time(now)), update_name, ..drift };
    let expected = if expects_no_changes(stack) { "the state and the program" } else { "the state" };
    let (value, reason, message) = match &drift.message {
        Some(message) => (Status::Unknown, drift_reason::CHECK_FAILED, format!("the drift check failed: {message}")),
        None if drift.count > 0 => (Status::True, drift_reason::DRIFT_DETECTED, summary(&drift, expected)),
        None if drift.ignored > 0 => {
            let message =
                format!("spec.drift.ignore excludes all {} resource(s) that differ from {expected}", drift.ignored);
            (Status::False, drift_reason::NO_DRIFT, message)
        }
        None => (Status::False, drift_reason::NO_DRIFT, format!("the resources match {expected}")),
    };
    set_condition(&mut status.conditions, stack, value, reason, &message, now);
    status.drift = Some(Box::new(drift));
}

/// Returns whether the controller canceled the drift check.
fn is_canceled_by_controller(update: &Update) -> bool {
    let annotations = update.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(names::ANNOTATION_CANCEL)).is_some_and(|value| value == SUPERSEDED)
}

/// Records that a run with a refresh has corrected the drift.
pub fn record_correction(
    stack: &Stack,
    status: &mut StackStatus,
    current: &CurrentUpdate,
    last: &LastUpdate,
    now: Timestamp,
) {
    let refreshes = current.refresh.or(stack.spec.refresh).unwrap_or_default();
    let Some(drift) = status.drift.as_deref_mut() else { return };
    if current.kind != UpdateKind::Up || last.reason.is_some() || !refreshes {
        return;
    }
    *drift = StackDrift { count: 0, resources: Vec::new(), correction_requested: Some(true), ..drift.clone() };
    let message = "a run with a refresh has succeeded since the last drift check";
    set_condition(&mut status.conditions, stack, Status::False, drift_reason::CORRECTED, message, now);
}

/// Removes the condition `Drifted` and the result in the status if drift checks are disabled. Sets the condition to
/// `Unknown` if `spec.drift` is invalid. Otherwise, sets the `observedGeneration` of the condition to the current
/// generation.
pub fn keep(stack: &Stack, status: &mut StackStatus, now: Timestamp) {
    let is_invalid = |status: &StackStatus| {
        conditions::find(&status.conditions, DRIFTED).is_some_and(|found| found.reason == drift_reason::SPEC_INVALID)
    };
    match stack.spec.drift.as_deref().map(check_policy) {
        None => {
            status.drift = None;
            conditions::remove(&mut status.conditions, DRIFTED);
        }
        Some(Err(why)) => {
            let message = format!("no drift checks start: {why}");
            let reason = drift_reason::SPEC_INVALID;
            set_condition(&mut status.conditions, stack, Status::Unknown, reason, &message, now);
        }
        // The next check sets the condition again.
        Some(Ok(())) if is_invalid(status) => conditions::remove(&mut status.conditions, DRIFTED),
        Some(Ok(())) => {}
    }
    for condition in status.conditions.iter_mut().filter(|condition| condition.type_ == DRIFTED) {
        condition.observed_generation = stack.metadata.generation;
    }
}

/// Returns the event about an invalid `spec.drift`. Returns `None` if the previous status contains the same message.
pub fn invalid_event(stack: &Stack, status: &StackStatus) -> Option<Event> {
    let found = conditions::find(&status.conditions, DRIFTED).filter(|f| f.reason == drift_reason::SPEC_INVALID)?;
    let before = stack.status.as_ref().and_then(|before| conditions::find(&before.conditions, DRIFTED));
    let is_new = before.is_none_or(|before| before.message != found.message);
    is_new.then(|| Event::new(stack, EventKind::Warning, "StackConfigInvalid", found.message.as_str()))
}

fn set_condition(
    into: &mut Vec<Condition>,
    stack: &Stack,
    status: Status,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let generation = stack.metadata.generation.unwrap_or_default();
    conditions::set(into, &ConditionUpdate { kind: DRIFTED, status, reason, message }, generation, now);
}

/// Returns the drift that a check found, without ignored differences.
fn found(policy: Option<&DriftPolicy>, plan: &UpdatePlan) -> StackDrift {
    let rules = policy.map(|policy| policy.ignore.as_slice()).unwrap_or_default();
    let rules = rules.get(..MAX_RULES).unwrap_or(rules);
    // A preview of an `up` lists a missing resource that the program contains also as a creation.
    let is_created_again = |missing: &PlannedResource| {
        let is_creation = |other: &PlannedResource| other.operation == "create" && other.urn == missing.urn;
        missing.operation == operations::MISSING && plan.resources.iter().any(is_creation)
    };
    let is_listed = |resource: &&PlannedResource| !is_created_again(resource) && !is_provider_update(resource);
    let listed: Vec<&PlannedResource> = plan.resources.iter().filter(is_listed).collect();
    let drifted: Vec<PlannedResource> = listed.iter().filter_map(|resource| remaining(rules, resource)).collect();
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let ignored = number(listed.len() - drifted.len());
    StackDrift {
        count: plan.resource_count.saturating_sub(number(plan.resources.len() - drifted.len())),
        ignored,
        resources: drifted.into_iter().take(MAX_RESOURCES).collect(),
        ..StackDrift::default()
    }
}

/// Returns whether the resource is a provider with other settings, such as a new short-lived token. Such a change is not
/// drift, because a provider is not a resource outside the state.
fn is_provider_update(resource: &PlannedResource) -> bool {
    resource.operation == "update" && resource.kind().starts_with("pulumi:providers:")
}

/// Returns the resource without its ignored differences, or `None` if no difference remains.
fn remaining(rules: &[DriftIgnoreRule], resource: &PlannedResource) -> Option<PlannedResource> {
    let is_match = |pattern: &Option<String>, text: &str| pattern.as_ref().is_none_or(|p| pattern::matches(p, text));
    let rules: Vec<&DriftIgnoreRule> = rules
        .iter()
        .filter(|rule| is_match(&rule.kind, resource.kind()) && is_match(&rule.urn, &resource.urn))
        .collect();
    if rules.iter().any(|rule| rule.property.is_none()) {
        return None;
    }
    let is_ignored = |property: &String| rules.iter().any(|rule| is_match(&rule.property, property));
    let properties: Vec<String> = resource.properties.iter().filter(|p| !is_ignored(p)).cloned().collect();
    let is_update = resource.operation == "update" && !resource.properties.is_empty();
    // A full list can lack further differences, which only a rule for all properties certainly matches.
    let may_be_truncated =
        resource.properties.len() >= MAX_PROPERTIES && !rules.iter().any(|rule| rule.property.as_deref() == Some("*"));
    let has_drifted = !is_update || !properties.is_empty() || may_be_truncated;
    has_drifted.then(|| PlannedResource { properties, ..resource.clone() })
}

/// Returns the message about drift. `expected` is `the state` or `the state and the program`, from which the resources
/// differ.
fn summary(drift: &StackDrift, expected: &str) -> String {
    let resource = |resource: &PlannedResource| match resource.properties.as_slice() {
        [] => format!("{} {}", resource.operation, resource.urn),
        properties => format!("{} {} ({})", resource.operation, resource.urn, properties.join(", ")),
    };
    let named = drift.resources.iter().take(MAX_LISTED).map(resource).collect::<Vec<_>>().join("; ");
    let listed = i64::try_from(drift.resources.len().min(MAX_LISTED)).unwrap_or_default();
    let more = drift.count.saturating_sub(listed);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} resource(s) differ from {expected}: {named}{more}", drift.count)
}

#[cfg(test)]
mod tests;
