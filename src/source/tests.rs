//! Selection of the source of a Stack.

use super::*;
use serde_json::json;

use crate::api::pulumi::{FluxSource, ProgramReference, SourceReference};
use crate::artifact::InPod;

fn flux(api_version: Option<&str>, kind: &str, name: &str) -> Option<FluxSource> {
    let api_version = api_version.map(str::to_owned);
    let source_ref = SourceReference { api_version, kind: kind.to_owned(), name: name.to_owned(), namespace: None };
    Some(FluxSource { source_ref, dir: None })
}

fn program(name: &str) -> Option<ProgramReference> {
    Some(ProgramReference { name: name.to_owned() })
}

#[test]
fn a_stack_has_one_source_and_is_triggered_only_by_it() {
    let bucket = GroupKind::new(flux::GROUP, "Bucket");
    let rows = [
        (flux(None, "Bucket", "app"), None, Some((&bucket, "app"))),
        (None, program("app"), Some((&program::kind(), "app"))),
        (flux(Some("pulumi.com/v1"), "Program", "app"), None, Some((&program::kind(), "app"))),
        (flux(None, "Bucket", "app"), program("app"), None),
        (None, None, None),
    ];
    for (flux_source, program_ref, expected) in rows {
        let spec = StackSpec { flux_source, program_ref, ..StackSpec::default() };
        match (reference(&spec), expected) {
            (Ok(found), Some((kind, name))) => {
                assert_eq!((&found.kind, found.name.as_str()), (kind, name));
                let object = (kind.clone(), ("apps".to_owned(), name.to_owned()));
                assert_eq!(named_objects(&spec, "apps"), [object], "{spec:?}");
            }
            (Err(Unavailable::Invalid(message)), None) => {
                assert!(message.contains("spec.fluxSource") && message.contains("spec.programRef"), "{message}");
            }
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn without_a_source_object_the_template_or_init_containers_provide_it() {
    let spec = |template: serde_json::Value| StackSpec { workspace_template: Some(template), ..StackSpec::default() };
    let found = |spec: &StackSpec| without_object(spec).expect("valid").expect("a source");
    let in_pod = |spec: &StackSpec| InPod::of(&found(spec).digest);
    assert_eq!(in_pod(&StackSpec::default()), Some(InPod::InitContainers));
    for empty in [json!({}), json!({"spec": null}), json!({"spec": {"image": "a", "local": null}})] {
        assert_eq!(in_pod(&spec(empty)), Some(InPod::InitContainers));
    }
    let local = spec(json!({"spec": {"local": {"dir": "/app"}}}));
    assert_eq!((in_pod(&local), found(&local).revision.as_str()), (Some(InPod::Image), ""));
    let object = StackSpec { program_ref: program("app"), ..spec(json!({"spec": {"image": "a"}})) };
    assert_eq!(without_object(&object), Ok(None));

    let refused = |spec: &StackSpec| without_object(spec).expect_err("refused").to_string();
    let both = StackSpec { flux_source: flux(None, "Bucket", "app"), ..local };
    assert_eq!(
        refused(&both),
        "spec.fluxSource and spec.workspaceTemplate.spec.local are mutually exclusive: remove one of them"
    );
    let two = spec(json!({"spec": {"local": {"dir": "/app"}, "projectInfo": {"name": "a", "runtime": "yaml"}}}));
    assert!(refused(&two).starts_with("spec.workspaceTemplate.spec: local and projectInfo are mutually exclusive"));
    assert!(refused(&spec(json!({"spec": {"local": 1}}))).contains("spec.workspaceTemplate.spec: invalid source: "));
}
