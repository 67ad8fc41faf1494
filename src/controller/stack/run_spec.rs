//! Fields of the spec of a Stack that affect its runs. A change to the other fields does not start a run, and does not
//! replace a plan that waits for an approval: these fields only determine when runs and drift checks are permitted, and
//! when the Stack expires.

use crate::api::pulumi::{RunInputs, Stack, StackSpec, StackStatus};
use crate::artifact::Digest;

/// Returns the digest of the fields that affect a run. If the spec has not changed since the last run, returns its recorded
/// digest.
pub fn digest(stack: &Stack) -> Digest {
    let is_current = |inputs: &&RunInputs| Some(inputs.generation) == stack.metadata.generation;
    let recorded = last_inputs(stack).filter(is_current).and_then(|inputs| inputs.run_spec_digest.clone());
    recorded.unwrap_or_else(|| {
        let spec = StackSpec { drift: None, schedule: None, ttl: None, expires_at: None, ..stack.spec.clone() };
        Digest::of(&serde_json::to_vec(&spec).unwrap_or_default())
    })
}

/// Returns whether two runs have the same spec. Runs of earlier versions and of the Pulumi Kubernetes Operator have no
/// digest.
pub fn is_same(before: &RunInputs, now: &RunInputs) -> bool {
    let has_same_digest = before.run_spec_digest.is_some() && before.run_spec_digest == now.run_spec_digest;
    before.generation == now.generation || has_same_digest
}

/// Returns whether a field that affects runs has changed since a run was recorded with these inputs.
pub fn has_changed(stack: &Stack, inputs: &RunInputs) -> bool {
    let is_other = stack.metadata.generation.is_some_and(|generation| generation != inputs.generation);
    is_other && inputs.run_spec_digest.as_ref().is_none_or(|recorded| *recorded != digest(stack))
}

/// Returns the status in which the last run has the current generation, if only fields that do not affect runs have changed
/// since this run. Other Stacks and users compare both generations to find out whether the spec has been applied.
pub fn with_current_generation(stack: &Stack) -> Option<StackStatus> {
    let (generation, last) = (stack.metadata.generation?, last_inputs(stack)?);
    let is_deleted = stack.metadata.deletion_timestamp.is_some();
    if is_deleted || last.generation == generation || has_changed(stack, last) {
        return None;
    }
    let mut status = stack.status.clone()?;
    status.last_update.as_mut()?.inputs.generation = generation;
    Some(status)
}

fn last_inputs(stack: &Stack) -> Option<&RunInputs> {
    Some(&stack.status.as_ref()?.last_update.as_ref()?.inputs)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::pulumi::LastUpdate;

    fn stack(spec: Value) -> Stack {
        let mut whole = json!({"stack": "dev"});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let mut stack = Stack::new("web", serde_json::from_value(whole).unwrap());
        stack.metadata.generation = Some(2);
        stack
    }

    #[test]
    fn only_fields_that_affect_runs_are_part_of_the_digest() {
        let rows = [
            (json!({}), false),
            (json!({"drift": {"interval": "1h", "mode": "Correct"}}), false),
            (json!({"schedule": {"freezes": [{"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}]}}), false),
            (json!({"ttl": "1h"}), false),
            (json!({"expiresAt": "2026-01-01T00:00:00Z"}), false),
            (json!({"targets": ["urn"]}), true),
            (json!({"refresh": true}), true),
            (json!({"suspend": true}), true),
            (json!({"stack": "prod"}), true),
        ];
        for (spec, changes) in rows {
            assert_eq!(digest(&stack(spec.clone())) != digest(&stack(json!({}))), changes, "{spec}");
        }
    }

    #[test]
    fn the_generation_of_the_last_run_follows_a_change_that_does_not_affect_runs() {
        let adopted = |spec: Value, run_spec_digest: Option<Digest>, generation: i64| {
            let mut stack = stack(spec);
            let inputs = RunInputs { generation, run_spec_digest, ..RunInputs::default() };
            let last = LastUpdate { inputs, ..LastUpdate::default() };
            stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
            let status = with_current_generation(&stack);
            status.and_then(|status| status.last_update).map(|last| last.inputs.generation)
        };
        let before = || Some(digest(&stack(json!({}))));
        assert_eq!(adopted(json!({"ttl": "1h"}), before(), 1), Some(2));
        assert_eq!(adopted(json!({"targets": ["urn"]}), before(), 1), None, "a run is due");
        assert_eq!(adopted(json!({"ttl": "1h"}), None, 1), None, "an earlier version has recorded the run");
        assert_eq!(adopted(json!({"ttl": "1h"}), before(), 2), None, "the generation is already recorded");
        assert_eq!(with_current_generation(&stack(json!({}))), None, "the Stack has never run");
    }
}
