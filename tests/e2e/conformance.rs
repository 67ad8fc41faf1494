//! Applies the Flux condition rules (`pkg/runtime/conditions/check`) to a Stack's conditions.
//!
//! The rules have the same IDs as in Flux, such as `FAIL0001`. Flux has no rule `FAIL0010`. This module treats the
//! rules that only warn in Flux as errors. The module omits `WARN0002`, which requires that the Ready condition has the
//! same reason as a negative condition. A Stack's Ready condition has the reasons that the Pulumi Kubernetes Operator
//! defines.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, find, is_true};
use pulumi_controller::api::pulumi::Stack;

/// Conditions with negative polarity.
const ABNORMAL_TRUE: [&str; 2] = [RECONCILING, STALLED];

/// Stack fields that the rules check.
struct View<'a> {
    conditions: &'a [Condition],
    generation: i64,
    observed: Option<i64>,
}

impl<'a> View<'a> {
    fn of(stack: &'a Stack) -> View<'a> {
        let status = stack.status.as_ref();
        View {
            conditions: status.map(|status| status.conditions.as_slice()).unwrap_or_default(),
            generation: stack.metadata.generation.unwrap_or_default(),
            observed: status.and_then(|status| status.observed_generation),
        }
    }

    fn ready_is(&self, status: &str) -> bool {
        find(self.conditions, READY).is_some_and(|ready| ready.status == status)
    }

    /// Checks the rules that apply to every state.
    fn always(&self) -> Vec<(&'static str, &'static str)> {
        let has_status = |kind: &str, status: &str| find(self.conditions, kind).is_some_and(|c| c.status == status);
        [
            ("FAIL0002", "Ready is missing", find(self.conditions, READY).is_none()),
            (
                "FAIL0004",
                "Stalled is True but Ready is not False",
                is_true(self.conditions, STALLED) && !self.ready_is("False"),
            ),
            (
                "FAIL0005",
                "Reconciling and Stalled are both present",
                ABNORMAL_TRUE.iter().all(|kind| find(self.conditions, kind).is_some()),
            ),
            ("FAIL0006", "observedGeneration is greater than the generation", self.observed > Some(self.generation)),
            ("WARN0003", "Reconciling is False instead of absent", has_status(RECONCILING, "False")),
            ("WARN0004", "Stalled is False instead of absent", has_status(STALLED, "False")),
            (
                "WARN0005",
                "a condition has no observedGeneration",
                self.conditions.iter().any(|condition| condition.observed_generation.is_none()),
            ),
        ]
        .into_iter()
        .filter_map(|(rule, violation, is_broken)| is_broken.then_some((rule, violation)))
        .collect()
    }

    /// Checks the rules that apply during a reconciliation.
    fn in_progress(&self) -> Vec<(&'static str, &'static str)> {
        let unknown_at_rest = self.ready_is("Unknown") && !is_true(self.conditions, RECONCILING);
        if unknown_at_rest { vec![("FAIL0011", "Ready is Unknown without Reconciling")] } else { Vec::new() }
    }

    /// Checks the rules that apply after a reconciliation.
    fn at_rest(&self) -> Vec<(&'static str, &'static str)> {
        let ready = self.ready_is("True");
        let negative = ABNORMAL_TRUE.iter().any(|kind| is_true(self.conditions, kind));
        let older = |condition: &Condition| condition.observed_generation.is_some_and(|g| g < self.generation);
        let other = |condition: &Condition| condition.observed_generation.is_some_and(|g| Some(g) != self.observed);
        [
            ("FAIL0001", "a negative condition is True while Ready is True", ready && negative),
            (
                "FAIL0003",
                "Reconciling is True but Ready is not False",
                is_true(self.conditions, RECONCILING) && !self.ready_is("False"),
            ),
            (
                "WARN0001",
                "a negative condition exists while Ready is True",
                ready && ABNORMAL_TRUE.iter().any(|kind| find(self.conditions, kind).is_some()),
            ),
            ("FAIL0007", "Ready is True for an older generation", ready && self.observed < Some(self.generation)),
            (
                "FAIL0008",
                "Ready is True with a condition of an older generation",
                ready && self.conditions.iter().any(older),
            ),
            (
                "FAIL0009",
                "Ready is True with a condition of another generation",
                ready && self.conditions.iter().any(other),
            ),
        ]
        .into_iter()
        .filter_map(|(rule, violation, is_broken)| is_broken.then_some((rule, violation)))
        .collect()
    }
}

/// Returns the violations in the observed states of a Stack. Ignores states before the first reconciliation, because
/// these states do not contain the controller's conditions. A new Stack has its default condition, and a Stack of the
/// Pulumi Kubernetes Operator has conditions without an observed generation.
pub fn check_observed_states(states: &[Stack]) -> Vec<String> {
    let was_seen = |stack: &&Stack| {
        let view = View::of(stack);
        let is_ours = find(view.conditions, READY).is_none_or(|ready| ready.observed_generation.is_some());
        view.observed.is_some_and(|generation| generation >= 0) && is_ours
    };
    let broken = |stack: &Stack| {
        let view = View::of(stack);
        format_violations(stack, [view.always(), view.in_progress()].concat())
    };
    states.iter().filter(was_seen).flat_map(broken).collect()
}

/// Returns the violations in a Stack's state at the end of a test. If the condition Ready is Unknown, checks only the
/// rules that apply during a reconciliation.
pub fn check_final_state(stack: &Stack) -> Vec<String> {
    let view = View::of(stack);
    let rest = if view.ready_is("Unknown") { view.in_progress() } else { view.at_rest() };
    format_violations(stack, [view.always(), rest].concat())
}

fn format_violations(stack: &Stack, broken: Vec<(&'static str, &'static str)>) -> Vec<String> {
    let conditions = View::of(stack).conditions;
    let conditions: Vec<String> = conditions
        .iter()
        .map(|c| format!("{}={} {} of generation {:?}", c.type_, c.status, c.reason, c.observed_generation))
        .collect();
    let (name, conditions) = (stack.name_any(), conditions.join(", "));
    let format = |(rule, violation)| format!("Stack {name} {rule}: {violation} [{conditions}]");
    broken.into_iter().map(format).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a Stack with the generation 2. The format of the conditions is `TYPE=STATUS@GENERATION`, such as
    /// `Ready=True@2`.
    fn stack(observed: i64, conditions: &[&str]) -> Stack {
        let condition = |text: &&str| {
            let (kind, rest) = text.split_once('=').expect("a condition has a status");
            let (status, generation) = rest.split_once('@').expect("a condition has a generation");
            let generation = generation.parse::<i64>().ok();
            json!({"type": kind, "status": status, "observedGeneration": generation, "reason": "Test", "message": "",
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"name": "main", "generation": 2},
            "spec": {"stack": "main", "fluxSource": {"sourceRef": {"kind": "GitRepository", "name": "app"}}},
            "status": {"observedGeneration": observed, "conditions": conditions},
        }))
        .expect("a Stack")
    }

    fn numbers(broken: &[String]) -> Vec<&str> {
        let is_rule = |word: &&str| word.starts_with("FAIL") || word.starts_with("WARN");
        broken.iter().filter_map(|violation| violation.split_whitespace().find(is_rule)).collect()
    }

    #[test]
    fn each_rule_flags_only_the_states_it_forbids() {
        for (observed, conditions, expected) in [
            (2, &["Ready=True@2"][..], &[][..]),
            (2, &["Ready=False@2", "Reconciling=True@2"], &[]),
            (2, &["Ready=False@2", "Stalled=True@2"], &[]),
            (2, &["Ready=Unknown@2", "Reconciling=True@2"], &[]),
            (2, &["Ready=True@2", "Reconciling=True@2"], &["FAIL0001:", "FAIL0003:", "WARN0001:"]),
            (2, &["Ready=False@2", "Reconciling=False@2"], &["WARN0003:"]),
            (2, &["Ready=False@2", "Stalled=False@2"], &["WARN0004:"]),
            (2, &["Ready=False@"], &["WARN0005:"]),
            (2, &[], &["FAIL0002:"]),
            (2, &["Ready=Unknown@2", "Stalled=True@2"], &["FAIL0004:", "FAIL0011:"]),
            (2, &["Ready=False@2", "Stalled=True@2", "Reconciling=False@2"], &["FAIL0005:", "WARN0003:"]),
            (3, &["Ready=False@2"], &["FAIL0006:"]),
            (1, &["Ready=True@1"], &["FAIL0007:", "FAIL0008:"]),
            (2, &["Ready=True@2", "Stalled=False@3"], &["WARN0004:", "WARN0001:", "FAIL0009:"]),
            (2, &["Ready=Unknown@2"], &["FAIL0011:"]),
        ] {
            let found = check_final_state(&stack(observed, conditions));
            assert_eq!(
                numbers(&found),
                numbers(&expected.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>()),
                "{conditions:?}: {found:?}"
            );
        }
    }

    #[test]
    fn intermediate_states_are_checked_with_the_intermediate_rules() {
        let none = Vec::<String>::new();
        assert_eq!(check_observed_states(&[stack(-1, &[])]), none, "not reconciled yet");
        assert_eq!(check_observed_states(&[stack(1, &["Ready=True@1"])]), none, "the spec has just changed");
        assert_eq!(check_observed_states(&[stack(1, &["Ready=True@"])]), none, "conditions of the operator");
        assert_eq!(numbers(&check_observed_states(&[stack(2, &["Ready=Unknown@2"])])), ["FAIL0011:"]);
    }
}
