//! Fields of a Stack's spec that affect its runs. The other fields determine only when runs and drift checks are
//! permitted, and when the Stack expires. A change to the other fields starts no run, and replaces no plan that waits
//! for an approval.

use crate::api::pulumi::{RunInputs, Stack, StackSpec, StackStatus};
use crate::artifact::Digest;

/// Returns the digest of the fields that affect a run, for the comparison with the last run. If these fields have not
/// changed since the last run, returns the recorded digest of the last run.
pub fn digest(stack: &Stack) -> Digest {
    let is_current = |inputs: &&RunInputs| Some(inputs.generation) == stack.metadata.generation || is_of(stack, inputs);
    let recorded = last_inputs(stack).filter(is_current).and_then(|inputs| inputs.run_spec_digest.clone());
    recorded.unwrap_or_else(|| digest_to_record(stack))
}

/// Returns the digest to record for a new run. The record of a run contains the current generation, so its digest must
/// contain this generation, too. The digest of [`digest`] can contain the generation of the last run. The deletion of a
/// Stack increments the generation, but not in the record of the last run.
pub fn digest_to_record(stack: &Stack) -> Digest {
    of_generation(stack, stack.metadata.generation.unwrap_or_default())
}

/// Returns the digest of the generation and the fields that affect a run. After a downgrade, an earlier controller
/// version records a run's generation but keeps the digest of an earlier run. Such a digest does not match the recorded
/// generation.
fn of_generation(stack: &Stack, generation: i64) -> Digest {
    let spec = StackSpec { drift: None, schedule: None, ttl: None, expires_at: None, ..stack.spec.clone() };
    Digest::of(&serde_json::to_vec(&(generation, spec)).unwrap_or_default())
}

/// Returns whether the inputs contain the digest of the current fields.
fn is_of(stack: &Stack, inputs: &RunInputs) -> bool {
    inputs.run_spec_digest.as_ref().is_some_and(|recorded| *recorded == of_generation(stack, inputs.generation))
}

/// Returns whether two runs have the same spec. A run has no digest if an earlier version or the Pulumi Kubernetes
/// Operator recorded the run.
pub fn is_same(before: &RunInputs, now: &RunInputs) -> bool {
    let has_same_digest = before.run_spec_digest.is_some() && before.run_spec_digest == now.run_spec_digest;
    before.generation == now.generation || has_same_digest
}

/// Returns whether a field that affects runs has changed since the controller recorded a run with these inputs.
pub fn has_changed(stack: &Stack, inputs: &RunInputs) -> bool {
    let is_other = stack.metadata.generation.is_some_and(|generation| generation != inputs.generation);
    is_other && !is_of(stack, inputs)
}

/// Returns whether a field that affects runs, except `suspend`, has changed since the last run. Returns `false` if the
/// record of the last run does not contain the digest of its fields.
pub fn has_changed_besides_suspension(stack: &Stack) -> bool {
    let last = last_inputs(stack).and_then(|inputs| Some((inputs.generation, inputs.run_spec_digest.as_ref()?)));
    let Some((generation, recorded)) = last else { return false };
    let before = |suspend| {
        let spec = StackSpec { suspend, ..stack.spec.clone() };
        of_generation(&Stack { spec, ..stack.clone() }, generation)
    };
    [None, Some(false)].into_iter().all(|suspend| before(suspend) != *recorded)
}

/// Returns the status with the current generation in the record of the last run. Returns `None` if the record already
/// contains this generation or the Stack is being deleted. Also returns `None` if a field that affects runs has changed
/// since the last run. Users and dependent Stacks compare this generation with the generation of the spec to find out
/// whether a run has applied the spec.
pub fn with_current_generation(stack: &Stack) -> Option<StackStatus> {
    let (generation, last) = (stack.metadata.generation?, last_inputs(stack)?);
    let is_deleted = stack.metadata.deletion_timestamp.is_some();
    if is_deleted || last.generation == generation || has_changed(stack, last) {
        return None;
    }
    let mut status = stack.status.clone()?;
    let inputs = &mut status.last_update.as_mut()?.inputs;
    (inputs.generation, inputs.run_spec_digest) = (generation, Some(of_generation(stack, generation)));
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
    fn a_digest_that_an_earlier_version_has_kept_is_ignored() {
        let inputs = |generation, recorded: i64| RunInputs {
            generation,
            run_spec_digest: Some(of_generation(&stack(json!({})), recorded)),
            ..RunInputs::default()
        };
        for (before, expected) in [(inputs(1, 1), true), (inputs(1, 0), false)] {
            let mut stack = stack(json!({"ttl": "1h"}));
            let last = LastUpdate { inputs: before.clone(), ..LastUpdate::default() };
            stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
            let now = RunInputs { generation: 2, run_spec_digest: Some(digest(&stack)), ..RunInputs::default() };
            assert_eq!(is_same(&before, &now), expected, "{before:?}");
            assert_eq!(has_changed(&stack, &before), !expected, "{before:?}");
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
        let of = |generation: i64| Some(of_generation(&stack(json!({})), generation));
        let before = || of(1);
        assert_eq!(adopted(json!({"ttl": "1h"}), before(), 1), Some(2));
        assert_eq!(adopted(json!({"targets": ["urn"]}), before(), 1), None, "a run is due");
        assert_eq!(adopted(json!({"ttl": "1h"}), None, 1), None, "an earlier version has recorded the run");
        assert_eq!(adopted(json!({"ttl": "1h"}), of(2), 2), None, "the generation is already recorded");
        assert_eq!(adopted(json!({"ttl": "1h"}), of(0), 1), None, "an earlier version has recorded the last run");
        assert_eq!(with_current_generation(&stack(json!({}))), None, "the Stack has never run");
    }

    #[test]
    fn a_suspension_alone_is_no_change() {
        let changed = |before: Value, now: Value| {
            let mut stack = stack(now);
            let digest = Some(of_generation(&self::stack(before), 1));
            let inputs = RunInputs { generation: 1, run_spec_digest: digest, ..RunInputs::default() };
            let last = LastUpdate { inputs, ..LastUpdate::default() };
            stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
            has_changed_besides_suspension(&stack)
        };
        assert!(!changed(json!({}), json!({"suspend": true})));
        assert!(!changed(json!({"suspend": false}), json!({"suspend": true})));
        assert!(!changed(json!({}), json!({"suspend": true, "ttl": "1h"})), "the field does not affect runs");
        assert!(changed(json!({}), json!({"suspend": true, "config": {"a": "b"}})));
        assert!(!has_changed_besides_suspension(&stack(json!({"suspend": true}))), "the Stack has not run");
    }
}
