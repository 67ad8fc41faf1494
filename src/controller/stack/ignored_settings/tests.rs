use serde_json::json;

use super::*;
use crate::api::pulumi::LastUpdate;

fn stack(spec: Value) -> Stack {
    let mut whole = json!({"stack": "dev"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let metadata = json!({"name": "web", "namespace": "apps", "generation": 2});
    serde_json::from_value(json!({"apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": whole}))
        .unwrap()
}

fn kept(stack: &Stack, last: LastUpdate) -> StackStatus {
    let before = stack.status.clone().unwrap_or_default();
    let mut status = StackStatus { last_update: Some(last), ..before };
    keep(stack, &mut status, "2026-01-01T00:00:00Z".parse().unwrap());
    status
}

fn message(status: &StackStatus) -> Option<&str> {
    conditions::find(&status.conditions, SETTINGS_IGNORED).map(|found| found.message.as_str())
}

#[test]
fn an_event_announces_each_change_and_the_condition_ends_with_its_cause() {
    let mut stack = stack(json!({"targetDependents": true}));
    let first = kept(&stack, LastUpdate::default());
    assert_eq!(message(&first), Some("spec.targetDependents has no effect without spec.targets"));
    assert!(event(&stack, &first).is_some());
    stack.status = Some(first);
    let again = kept(&stack, LastUpdate::default());
    assert!(event(&stack, &again).is_none(), "the event was emitted before");
    stack.spec.expect_no_refresh_changes = Some(true);
    assert!(event(&stack, &kept(&stack, LastUpdate::default())).is_some(), "another setting has no effect");
    (stack.spec.expect_no_refresh_changes, stack.spec.target_dependents) = (None, None);
    assert_eq!(message(&kept(&stack, LastUpdate::default())), None);
}

#[test]
fn variables_that_only_the_agent_knows_are_listed_once() {
    let last = |names: &[&str]| LastUpdate {
        ignored_variables: names.iter().map(|name| (*name).to_owned()).collect(),
        ..LastUpdate::default()
    };
    let visible = stack(json!({"envRefs": {"PULUMI_OPTION_PARALLEL": {"type": "Secret"}}}));
    let status = kept(&visible, last(&["PULUMI_OPTION_PARALLEL", "PULUMI_OPTION_COLOR"]));
    assert_eq!(
        message(&status),
        Some(
            "environment variable PULUMI_OPTION_PARALLEL in spec.envRefs has no effect: remove it and use \
             spec.updateTemplate.spec.parallel; environment variable PULUMI_OPTION_COLOR has no effect: remove it"
        )
    );
    let many: Vec<String> = (0..25).map(|number| format!("PULUMI_OPTION_{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(message(&kept(&stack(json!({})), last(&many))).unwrap().ends_with("; and 5 more"));
}

#[test]
fn a_variable_that_would_change_a_run_makes_the_spec_invalid() {
    let target = json!([{"name": "PULUMI_OPTION_TARGET", "value": "urn"}]);
    let removed = json!([{"name": "PULUMI_OPTION_TARGET", "$patch": "delete"}]);
    let container =
        |name: &str, env: &Value| json!({"podTemplate": {"spec": {"containers": [{"name": name, "env": env}]}}});
    let template = |spec: Value| json!({"workspaceTemplate": {"spec": spec}});
    for (spec, expected) in [
        (json!({"envRefs": {"PULUMI_OPTION_TARGET": {"type": "Secret"}}}), Some("envRefs")),
        (template(json!({"env": target})), Some("workspaceTemplate")),
        (template(container("pulumi", &target)), Some("workspaceTemplate")),
        (template(container("pulumi", &removed)), None),
        (template(container("sidecar", &target)), None),
        (json!({"envRefs": {"PULUMI_OPTION_PARALLEL": {"type": "Secret"}}}), None),
    ] {
        let expected = expected.map_or(Ok(()), |field| {
            Err(format!(
                "invalid spec.{field}: runs ignore PULUMI_OPTION_TARGET and would change more resources than it permits; \
                 remove it and use spec.targets"
            ))
        });
        assert_eq!(check(&stack(spec.clone())), expected, "{spec}");
    }
    let overrides = stack(json!({"envRefs": {"PULUMI_OPTION_OVERRIDE_ENV": {"type": "Secret"}}}));
    let expected = "invalid spec.envRefs: runs ignore PULUMI_OPTION_OVERRIDE_ENV and would use other configuration values \
                    than it selects; remove it and use spec.environment";
    assert_eq!(check(&overrides), Err(expected.to_owned()));
}
