//! What must be true after each change of an object, and at each request.

use kube_sim::{Before, Call, Change, GroupResource, Interceptor, Server};
use pulumi_controller::api::pulumi::Stack;
use serde_json::Value;

use super::conformance::check_observed_states;
use super::faults::{Faults, is_step, replica};

/// Checks each change.
pub fn observe(server: &Server, faults: &Faults) {
    let faults = faults.clone();
    server.observe(move |change| {
        let Some(object) = &change.new else { return };
        for violation in [observed_generation(change), conditions(change), verdict(change)].into_iter().flatten() {
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
    let verdict = |object: &Value| {
        let conditions = object.pointer("/status/conditions")?.as_array()?;
        let is = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind).map(|c| text(c, "status"));
        (is("Complete")? == "True").then(|| is("Failed").unwrap_or_default())
    };
    let (before, after) = (verdict(change.old.as_ref()?)?, verdict(change.new.as_ref()?));
    (after.as_ref() != Some(&before)).then(|| format!("the result changes from Failed={before} to {after:?}"))
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
