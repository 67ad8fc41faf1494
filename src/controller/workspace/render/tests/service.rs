//! Tests for a Service whose template sets labels and annotations.

use super::*;

fn rendered(template: Value) -> Value {
    service("app", "team", Some(&template)).expect("valid")
}

#[test]
fn template_labels_do_not_replace_generated_labels_and_annotations() {
    let ours = labels("app");
    let plain = service("app", "team", None).expect("valid");
    let with = rendered(json!({"metadata": {
        "labels": {"team": "a", "auto.pulumi.com/component": "mine"},
        "annotations": {"note": "x"},
    }}));
    assert_eq!(with["metadata"]["labels"]["team"], "a");
    assert_eq!(with["metadata"]["labels"]["auto.pulumi.com/component"], ours["auto.pulumi.com/component"]);
    assert_eq!(with["metadata"]["annotations"]["note"], "x");
    assert_eq!(with["spec"], plain["spec"]);
    let rendered_hash = |service: &Value| service["metadata"]["annotations"][ANNOTATION_RENDERED].clone();
    assert_ne!(rendered_hash(&with), rendered_hash(&plain), "a removed field changes the hash");
    for nothing in [json!({}), json!({"metadata": null}), json!({"metadata": {"labels": {"$patch": "replace"}}})] {
        assert_eq!(rendered(nothing.clone()), plain, "{nothing}");
    }
}

#[test]
fn the_error_for_an_unsupported_service_template_names_the_field() {
    let rows = [
        (json!({"spec": {"type": "LoadBalancer"}}), "serviceTemplate.spec is not supported"),
        (json!({"metadata": {"lables": {}}}), "serviceTemplate.metadata.lables is not supported"),
        (json!({"metadata": {"labels": {"$patch": "remove"}}}), "serviceTemplate: invalid metadata.labels.$patch"),
        (json!({"metadata": "x"}), "serviceTemplate: metadata must be an object"),
    ];
    for (template, expected) in rows {
        let error = service("app", "team", Some(&template)).expect_err("should be rejected").to_string();
        assert!(error.starts_with(expected), "{template}: {error}");
    }
}
