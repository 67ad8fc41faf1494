//! What must be true after each change of an object, and at each request.

use kube_sim::{Before, Call, Change, GroupResource, Interceptor, Server};
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::rpc::proto::Outcome;
use serde_json::Value;

use super::backend::Backend;
use super::backend::history::Verdict;
use super::conformance::check_observed_states;
use super::faults::{Faults, is_step, replica};
use super::scenarios::condition;
use super::world::RUN_LIMIT;

/// Checks each change.
pub fn observe(server: &Server, backend: &Backend, faults: &Faults) {
    let (faults, backend) = (faults.clone(), backend.clone());
    server.observe(move |change| {
        if backend.running() > RUN_LIMIT {
            faults.violation(&format!("{} runs at the same time", backend.running()));
        }
        let Some(object) = &change.new else { return };
        let violations = [observed_generation(change), conditions(change), verdict(change), truth(change, &backend)];
        for violation in violations.into_iter().flatten() {
            faults.violation(&format!("{} by {}: {violation}", change.key, change.actor));
        }
        trace(change, object, &faults);
    });
}

/// Writes a line for each change of a Stack and of an Update that a reader of the trace wants to see.
fn trace(change: &Change, object: &Value, faults: &Faults) {
    let kind = change.key.resource.resource.as_str();
    if !["stacks", "updates", "pods"].contains(&kind) {
        return;
    }
    let summary = |object: &Value| match kind {
        "pods" => object.pointer("/status/phase").map(ToString::to_string).unwrap_or_default(),
        _ => {
            let conditions = object.pointer("/status/conditions").and_then(Value::as_array).cloned();
            let texts = conditions
                .unwrap_or_default()
                .into_iter()
                .filter(|condition| condition["status"] == "True" || condition["type"] == "Ready");
            let texts = texts.map(|condition| {
                format!(
                    "{}={}/{}: {}",
                    text(&condition, "type"),
                    text(&condition, "status"),
                    text(&condition, "reason"),
                    text(&condition, "message")
                )
            });
            texts.collect::<Vec<_>>().join("; ")
        }
    };
    let now = summary(object);
    if change.old.as_ref().is_none_or(|old| summary(old) != now) {
        faults.trace(&format!("    {kind}/{} {now}", change.key.name()));
    }
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn observed_generation(change: &Change) -> Option<String> {
    let number = |path: &str| change.new.as_ref()?.pointer(path)?.as_i64();
    let (observed, generation) = (number("/status/observedGeneration")?, number("/metadata/generation")?);
    (observed > generation).then(|| format!("observedGeneration {observed} is ahead of generation {generation}"))
}

/// Checks the rules of kstatus, as Flux does.
fn conditions(change: &Change) -> Option<String> {
    if change.key.resource.resource != "stacks" || !replica(&change.actor).starts_with("controller") {
        return None;
    }
    let stack: Stack = serde_json::from_value(Value::clone(change.new.as_ref()?)).ok()?;
    let violations = check_observed_states(std::slice::from_ref(&stack));
    (!violations.is_empty()).then(|| violations.join("; "))
}

/// Checks that the result of an Update never changes.
fn verdict(change: &Change) -> Option<String> {
    if change.key.resource.resource != "updates" {
        return None;
    }
    let (before, after) = (has_failed(change.old.as_ref()?)?, has_failed(change.new.as_ref()?));
    (after != Some(before)).then(|| format!("the result changes from Failed={before} to {after:?}"))
}

/// Returns whether a completed Update has failed.
fn has_failed(update: &Value) -> Option<bool> {
    let conditions = update.pointer("/status/conditions")?.as_array()?;
    let is = |kind: &str| conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True");
    is("Complete").then(|| is("Failed"))
}

/// Checks that a completed Update has the result of its run. The result of a run whose pod is gone can be lost.
fn truth(change: &Change, backend: &Backend) -> Option<String> {
    if change.key.resource.resource != "updates" || has_failed(change.old.as_ref()?).is_some() {
        return None;
    }
    let update = change.new.as_ref()?;
    let has_failed = has_failed(update)?;
    let verdict = backend.verdict(update.pointer("/metadata/uid")?.as_str()?);
    let has_succeeded = verdict == Some(Verdict::Ended(Outcome::Succeeded));
    let is_lost = condition(update, "Failed").is_some_and(|failed| {
        ["Aborted", "RunOutcomeUnknown"].contains(&failed["reason"].as_str().unwrap_or_default())
    });
    (has_failed == has_succeeded && !is_lost).then(|| format!("Failed={has_failed}, but the run is {verdict:?}"))
}

/// Checks that only the leader writes.
pub struct OnlyTheLeaderWrites {
    server: Server,
    faults: Faults,
}

impl OnlyTheLeaderWrites {
    pub fn new(server: &Server, faults: &Faults) -> OnlyTheLeaderWrites {
        OnlyTheLeaderWrites { server: server.clone(), faults: faults.clone() }
    }
}

impl Interceptor for OnlyTheLeaderWrites {
    fn before(&mut self, call: &Call) -> Before {
        if is_step(call) && !self.faults.is_crashed(&call.actor) && call.actor.starts_with("controller") {
            let leases = self.server.list(&GroupResource::new("coordination.k8s.io", "leases"), None);
            let holders: Vec<_> =
                leases.iter().filter_map(|lease| lease.pointer("/spec/holderIdentity")?.as_str()).collect();
            if !holders.iter().any(|holder| holder.starts_with(replica(&call.actor))) {
                let step = format!("{} {} {}", call.verb, call.resource.resource, call.name);
                self.faults.violation(&format!("{} sends {step} while {holders:?} leads", call.actor));
            }
        }
        Before::Pass
    }
}
