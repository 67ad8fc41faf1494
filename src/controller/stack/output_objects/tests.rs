//! Tests for the content of objects with outputs.

use serde_json::json;

use super::*;
use crate::api::pulumi::StackSpec;

fn object(value: Value) -> OutputObject {
    serde_json::from_value(value).unwrap()
}

fn stack(objects: &[Value]) -> Stack {
    let write_outputs_to = objects.iter().cloned().map(object).collect();
    let mut stack = Stack::new("web", StackSpec { write_outputs_to, ..StackSpec::default() });
    stack.metadata.generation = Some(2);
    stack
}

/// Returns an Update's Secret with a secret output `password`.
fn outputs() -> Secret {
    let values =
        [("url", "\"http://a\""), ("ports", "[80,443]"), ("my_name", "\"x\\ny\""), ("password", "\"hunter2\"")];
    let data = values.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())));
    let annotations = [(names::ANNOTATION_SECRETS.to_owned(), "[\"password\"]".to_owned())];
    let metadata = ObjectMeta { annotations: Some(annotations.into()), ..ObjectMeta::default() };
    Secret { data: Some(data.into()), metadata, ..Secret::default() }
}

#[test]
fn the_content_of_an_object_depends_on_its_kind_keys_names_and_format() {
    let rows = [
        (
            json!({"kind": "Secret", "name": "a"}),
            Ok(json!({"url": "http://a", "ports": "[80,443]", "my_name": "x\ny", "password": "hunter2"})),
        ),
        (
            json!({"kind": "ConfigMap", "name": "a"}),
            Ok(json!({"url": "http://a", "ports": "[80,443]", "my_name": "x\ny"})),
        ),
        (json!({"kind": "Secret", "name": "a", "keys": ["url"], "raw": false}), Ok(json!({"url": "\"http://a\""}))),
        (
            json!({"kind": "Secret", "name": "a", "keys": ["my name", "url"], "rename": {"my name": "NAME"}}),
            Ok(json!({"NAME": "x\ny", "url": "http://a"})),
        ),
        (
            json!({"kind": "Secret", "name": "a", "keys": ["an other"]}),
            Err("the output an other in keys does not exist"),
        ),
        (
            json!({"kind": "Secret", "name": "a", "rename": {"ulr": "URL"}}),
            Err("the output ulr in rename does not exist"),
        ),
        (
            json!({"kind": "ConfigMap", "name": "a", "rename": {"password": "PASSWORD"}}),
            Err("the output password is secret: write it to a Secret, or remove it from rename"),
        ),
        (
            json!({"kind": "ConfigMap", "name": "a", "keys": ["password"]}),
            Err("the output password is secret: write it to a Secret, or remove it from keys"),
        ),
        (
            json!({"kind": "Secret", "name": "a", "rename": {"url": "ports"}}),
            Err("two outputs have the key ports: rename one of them"),
        ),
    ];
    for (spec, expected) in rows {
        let found = content(&object(spec.clone()), Some(&outputs())).map(|content| json!(content));
        assert_eq!(found, expected.map_err(str::to_owned), "{spec}");
    }
    assert_eq!(content(&object(json!({"kind": "Secret", "name": "a"})), None), Ok(BTreeMap::new()));
}

#[test]
fn an_object_with_an_unknown_secret_value_is_not_written() {
    let mut outputs = outputs();
    outputs.data.as_mut().unwrap().remove("password");
    let rows = [
        (json!({"kind": "ConfigMap", "name": "a"}), Ok(3)),
        (json!({"kind": "Secret", "name": "a", "keys": ["url"]}), Ok(1)),
        (json!({"kind": "Secret", "name": "a"}), Err("the value of the output password is unknown")),
        (
            json!({"kind": "Secret", "name": "a", "keys": ["password"]}),
            Err("the value of the output password is unknown"),
        ),
    ];
    for (spec, expected) in rows {
        let found = content(&object(spec.clone()), Some(&outputs)).map(|content| content.len());
        assert_eq!(found, expected.map_err(str::to_owned), "{spec}");
    }
}

#[test]
fn invalid_objects_are_reported_with_their_field() {
    let secret = |rest: Value| {
        let mut secret = json!({"kind": "Secret", "name": "a"});
        secret.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        secret
    };
    let rows = [
        (vec![secret(json!({})), json!({"kind": "ConfigMap", "name": "a"})], None),
        (vec![secret(json!({"name": "Not a name"}))], Some("invalid spec.writeOutputsTo[0].name: \"Not a name\"")),
        (vec![secret(json!({})), secret(json!({}))], Some("invalid spec.writeOutputsTo[1]: Secret a is already")),
        (vec![secret(json!({"rename": {"url": "a b"}}))], Some("invalid spec.writeOutputsTo[0].rename: \"a b\"")),
        (vec![secret(json!({"rename": {"url": ".."}}))], Some("invalid spec.writeOutputsTo[0].rename: \"..\"")),
        (
            vec![secret(json!({"keys": ["ports"], "rename": {"url": "URL"}}))],
            Some("invalid spec.writeOutputsTo[0].rename: the output \"url\" is not in keys"),
        ),
    ];
    for (objects, expected) in rows {
        let error = check(&stack(&objects)).err();
        let is_expected = match (&error, expected) {
            (None, None) => true,
            (Some(error), Some(start)) => error.starts_with(start),
            _ => false,
        };
        assert!(is_expected, "{objects:?}: {error:?}");
    }
}

#[test]
fn the_labels_of_the_controller_take_precedence() {
    let labels = json!({"team": "blue", "pulumi.com/stack-name": "other", "reconcile.fluxcd.io/watch": "Disabled"});
    let target = object(json!({"kind": "Secret", "name": "a", "labels": labels}));
    let labels = secret(&stack(&[]), &target, BTreeMap::new()).metadata.labels.unwrap();
    let value = |key: &str| labels.get(key).map(String::as_str);
    assert_eq!(value("team"), Some("blue"));
    assert_eq!(value("pulumi.com/stack-name"), Some("web"));
    assert_eq!(value("auto.pulumi.com/component"), Some("outputs"));
    assert_eq!(value("reconcile.fluxcd.io/watch"), Some("Disabled"));
    let plain = object(json!({"kind": "ConfigMap", "name": "a"}));
    let labels = config_map(&stack(&[]), &plain, BTreeMap::new()).metadata.labels.unwrap();
    assert_eq!(labels.get("reconcile.fluxcd.io/watch").map(String::as_str), Some("Enabled"));
}

#[test]
fn a_failure_is_reported_once_and_the_condition_disappears_with_the_objects() {
    let now = Timestamp::from_second(1).unwrap();
    let target = json!({"kind": "Secret", "name": "a"});
    let mut stack = stack(std::slice::from_ref(&target));
    let failed = record(&stack, StackStatus::default(), Vec::new(), &["Secret a: no".to_owned()], now);
    let message = "failed to write the outputs: Secret a: no; the next run writes them again";
    assert_eq!(event(&stack, &failed).map(|event| event.message), Some(message.to_owned()));
    stack.status = Some(failed.clone());
    assert!(event(&stack, &failed).is_none(), "the same failure");

    let written = record(&stack, failed, vec![reference(&object(target))], &[], now);
    let condition = conditions::find(&written.conditions, OUTPUTS_WRITTEN).unwrap();
    assert_eq!((condition.status.as_str(), condition.message.as_str()), ("True", "wrote the outputs to Secret a"));
    assert!(event(&stack, &written).is_none());

    stack.spec.write_outputs_to.clear();
    let removed = record(&stack, written, Vec::new(), &[], now);
    assert_eq!((removed.conditions, removed.written_outputs), (Vec::new(), Vec::new()));
}
