use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use crate::api::auto::UpdateSpec;
use crate::api::definitions::custom_resource_definitions;
use crate::api::template_schema::NOT_SUPPORTED;

/// Test cases whose expected results come from `kubectl patch --local --type=strategic` (Kubernetes 1.35).
const KUBERNETES: &str = include_str!("kubernetes.json");

#[test]
fn templates_are_merged_as_kubectl_merges_them() {
    let cases: Vec<Value> = serde_json::from_str(KUBERNETES).expect("list of test cases");
    assert!(cases.len() > 50, "found only {} test cases", cases.len());
    for case in cases {
        let merged = merge(case["base"].clone(), &case["patch"], &POD_TEMPLATE);
        assert_eq!(merged.as_ref(), Ok(&case["merged"]), "{}", case["name"]);
    }
}

#[test]
fn merging_a_template_again_changes_nothing() {
    let cases: Vec<Value> = serde_json::from_str(KUBERNETES).expect("list of test cases");
    for case in cases {
        let again = merge(case["merged"].clone(), &case["patch"], &POD_TEMPLATE).expect("merges");
        let thrice = merge(again.clone(), &case["patch"], &POD_TEMPLATE).expect("merges");
        assert_eq!(again, thrice, "{}", case["name"]);
    }
}

#[test]
fn a_long_path_does_not_slow_down_a_merge() {
    let fields: Value = (0..20_000).map(|number| (number.to_string(), json!(1))).collect();
    let patch = Value::Object([("k".repeat(10_000_000), fields)].into_iter().collect());
    let started = Instant::now();
    assert_eq!(merge(json!({}), &patch, &POD_TEMPLATE), Ok(patch.clone()));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn the_error_for_an_unmergeable_value_contains_its_path() {
    let base = json!({"spec": {"containers": [{"name": "pulumi", "env": [{"name": "A", "value": "1"}]}]}});
    let cases = [
        (json!([]), "the template must be an object"),
        (json!({"spec": "text"}), "spec must be an object"),
        (json!({"spec": {"containers": {}}}), "spec.containers must be a list"),
        (json!({"spec": {"containers": ["pulumi"]}}), "spec.containers[0] must be an object"),
        (
            json!({"spec": {"containers": [{"name": "pulumi"}, {"image": "nameless"}]}}),
            "spec.containers[1] must have the merge key `name`",
        ),
        (
            json!({"spec": {"containers": [{"name": "pulumi", "env": [{"value": "2"}]}]}}),
            "spec.containers[0].env[0] must have the merge key `name`",
        ),
        (
            json!({"spec": {"containers": [{"name": "new", "volumeMounts": [{"name": "share"}]}]}}),
            "spec.containers[0].volumeMounts[0] must have the merge key `mountPath`",
        ),
        (json!({"spec": {"containers": [{"$patch": "delete"}]}}), "spec.containers[0] must have the merge key `name`"),
        (
            json!({"spec": {"$patch": "remove"}}),
            "invalid spec.$patch \"remove\": must be `replace`, `delete` or `merge`",
        ),
        (
            json!({"spec": {"containers": [{"name": "pulumi", "$patch": 1}]}}),
            "invalid spec.containers[0].$patch 1: must be `replace`, `delete` or `merge`",
        ),
        (
            json!({"spec": {"$retainKeys": ["volumes"], "hostname": "a"}}),
            "spec.hostname is set but not listed in $retainKeys",
        ),
        (json!({"spec": {"$retainKeys": "volumes"}}), "spec.$retainKeys must be a list"),
        (json!({"spec": {"$setElementOrder/containers": {}}}), "spec.$setElementOrder/containers must be a list"),
    ];
    for (patch, message) in cases {
        let error = merge(base.clone(), &patch, &POD_TEMPLATE).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn an_explicit_merge_directive_has_the_same_effect_as_the_default() {
    let base = json!({"spec": {"containers": [{"name": "pulumi", "image": "one"}]}});
    let patch =
        json!({"spec": {"$patch": "merge", "containers": [{"name": "pulumi", "$patch": "merge", "tty": true}]}});
    let merged = json!({"spec": {"containers": [{"name": "pulumi", "image": "one", "tty": true}]}});
    assert_eq!(merge(base, &patch, &POD_TEMPLATE), Ok(merged));
}

fn generated() -> Workspace {
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1",
        "kind": "Workspace",
        "metadata": {"name": "app", "namespace": "team", "labels": {"pulumi.com/stack-name": "dev"}},
        "spec": {
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "stacks": [{"name": "dev", "config": [{"key": "aws:region", "value": "one"}, {"key": "o", "value": {"a": 1}}]}],
            "artifact": {"digest": crate::artifact::Digest::of(b"a"), "revision": "main@sha1:1", "dir": ""},
        },
    }))
    .expect("valid Workspace")
}

#[test]
fn a_workspace_template_merges_lists_by_workspace_keys() {
    let template = json!({
        "metadata": {"labels": {"team": "blue"}, "annotations": {"note": "x"}},
        "spec": {
            "image": "pulumi/pulumi:1",
            "env": [{"name": "B", "value": "3"}, {"name": "A", "$patch": "delete"}],
            "stacks": [{"name": "dev", "config": [{"key": "o", "value": {"b": 2}}]}],
            "resources": {"limits": {"memory": "1Gi"}},
        },
    });
    let merged = workspace_template(&generated(), &template).expect("merges");
    let spec = serde_json::to_value(&merged.spec).expect("valid JSON");
    assert_eq!(
        spec,
        json!({
            "image": "pulumi/pulumi:1",
            "env": [{"name": "B", "value": "3"}],
            "stacks": [{"name": "dev", "config": [{"key": "aws:region", "value": "one"}, {"key": "o", "value": {"b": 2}}]}],
            "resources": {"limits": {"memory": "1Gi"}},
            "artifact": {"digest": crate::artifact::Digest::of(b"a"), "revision": "main@sha1:1", "dir": ""},
        })
    );
    let labels = merged.metadata.labels.expect("labels are set");
    assert_eq!(labels.len(), 2);
    assert_eq!(merged.metadata.name.as_deref(), Some("app"));
}

#[test]
fn a_pod_template_keeps_its_nulls_and_patch_directives() {
    let pod_template =
        json!({"spec": {"securityContext": {"runAsUser": null}, "containers": [{"name": "a", "$patch": "delete"}]}});
    let template = json!({"spec": {"podTemplate": pod_template}});
    let merged = workspace_template(&generated(), &template).expect("merges");
    assert_eq!(merged.spec.pod_template, Some(pod_template));
}

#[test]
fn the_schemas_of_templates_list_exactly_the_supported_fields() {
    let stack = custom_resource_definitions().into_iter().find(|crd| crd.spec.names.kind == "Stack").expect("CRD");
    let schema = serde_json::to_value(&stack.spec.versions[0].schema).expect("valid JSON schema");
    for template in [UPDATE_TEMPLATE, WORKSPACE_TEMPLATE] {
        let schema = &schema["openAPIV3Schema"]["properties"]["spec"]["properties"][template.name];
        let fields = schema["properties"]["spec"]["properties"].as_object().expect("properties");
        let is_supported = |field: &Value| {
            let description = field["description"].as_str().expect("a description");
            !description.starts_with(NOT_SUPPORTED)
        };
        let supported = fields.iter().filter(|(name, field)| !name.starts_with('$') && is_supported(field));
        let supported: Vec<&str> = supported.map(|(name, _)| name.as_str()).collect();
        assert_eq!(supported, template.spec_fields, "{}", template.name);
    }
}

#[test]
fn an_empty_template_changes_nothing() {
    let whole = json!({"apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "status": {"address": "here"}});
    for template in [json!({}), json!({"metadata": null, "spec": null}), json!({"spec": {"podTemplate": null}}), whole]
    {
        let merged = workspace_template(&generated(), &template).expect("merges");
        assert_eq!(merged.spec, generated().spec, "{template}");
    }
}

#[test]
fn the_error_for_an_invalid_workspace_template_contains_the_field() {
    let spec = ["artifact", "typo", "$patch", "$retainKeys", "$setElementOrder/artifact"];
    for field in spec {
        let mut template = json!({"spec": {}});
        template["spec"][field] = json!({});
        let error = workspace_template(&generated(), &template).expect_err(field);
        assert_eq!(error.to_string(), format!("workspaceTemplate.spec.{field} is not supported"));
    }
    let others = [
        (json!([]), "workspaceTemplate must be an object"),
        (json!({"spec": 1}), "workspaceTemplate.spec must be an object"),
        (json!({"data": {}}), "workspaceTemplate.data is not supported"),
        (json!({"metadata": {"name": "x"}}), "workspaceTemplate.metadata.name is not supported"),
        (
            json!({"spec": {"env": [{"value": "x"}]}}),
            "workspaceTemplate cannot be merged: spec.env[0] must have the merge key `name`",
        ),
    ];
    for (template, message) in others {
        let error = workspace_template(&generated(), &template).expect_err(message);
        assert_eq!(error.to_string(), message);
    }
    let error =
        workspace_template(&generated(), &json!({"spec": {"image": 7}})).expect_err("should reject a number as image");
    assert!(error.to_string().starts_with("workspaceTemplate is invalid: "), "{error}");
}

/// The time per item must not depend on the length of the list, because a list can contain tens of thousands of items.
#[test]
fn large_lists_are_merged_in_linear_time() {
    let items = |count: usize, from: usize| -> Value {
        let items = (from..from + count).map(|number| json!({"name": format!("n{number}")}));
        json!({"spec": {"containers": [{"name": "pulumi", "env": items.collect::<Vec<_>>()}], "tolerations": [],
            "$setElementOrder/volumes": [], "volumes": []}})
    };
    let (base, patch) = (items(20_000, 0), items(20_000, 10_000));
    let started = std::time::Instant::now();
    let merged = merge(base, &patch, &POD_TEMPLATE).expect("merges");
    assert_eq!(merged["spec"]["containers"][0]["env"].as_array().map(Vec::len), Some(30_000));
    let finalizers = |from: u32| json!({"metadata": {"finalizers": (from..from + 20_000).collect::<Vec<_>>()}});
    let merged = merge(finalizers(0), &finalizers(10_000), &POD_TEMPLATE).expect("merges");
    assert_eq!(merged["metadata"]["finalizers"].as_array().map(Vec::len), Some(30_000));
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn an_update_template_sets_options_but_not_the_identity_of_a_run() {
    let spec = UpdateSpec { message: Some("generated".to_owned()), refresh: Some(true), ..UpdateSpec::default() };
    let generated = Update::new("app-1", spec);
    let template = json!({
        "metadata": {"labels": {"team": "a"}},
        "spec": {"parallel": 3, "continueOnError": true, "ttlAfterCompleted": "1h", "refresh": null},
    });
    let merged = update_template(&generated, &template).expect("valid");
    assert_eq!(merged.metadata.labels, Some([("team".to_owned(), "a".to_owned())].into()));
    let spec = merged.spec;
    assert_eq!((spec.parallel, spec.continue_on_error, spec.refresh), (Some(3), Some(true), None));
    assert_eq!((spec.ttl_after_completed.as_deref(), spec.message.as_deref()), (Some("1h"), Some("generated")));
    let rows = [
        (json!({"spec": {"type": "preview"}}), "updateTemplate.spec.type is not supported"),
        (json!({"spec": {"artifact": {}}}), "updateTemplate.spec.artifact is not supported"),
        (json!({"data": {}}), "updateTemplate.data is not supported"),
        (json!({"metadata": {"name": "x"}}), "updateTemplate.metadata.name is not supported"),
        (json!({"spec": []}), "updateTemplate.spec must be an object"),
    ];
    for (template, expected) in rows {
        assert_eq!(update_template(&generated, &template).expect_err("should be rejected").to_string(), expected);
    }
    let wrong = update_template(&generated, &json!({"spec": {"parallel": "many"}})).expect_err("rejected").to_string();
    assert!(wrong.starts_with("updateTemplate is invalid: "), "{wrong}");
}

#[test]
fn a_template_above_the_size_limit_is_rejected() {
    let template = json!({"spec": "ä"});
    assert_eq!(template.to_string().len(), 13);
    assert_eq!(check_size("podTemplate", Some(&template), 13), Ok(()));
    assert_eq!(check_size("podTemplate", None, 0), Ok(()));
    let error = check_size("podTemplate", Some(&template), 12).expect_err("too large").to_string();
    assert_eq!(error, "podTemplate must be at most 12 bytes as JSON, but has 13 bytes");
}
