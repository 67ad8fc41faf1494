use serde_json::json;

use super::*;

fn schemas() -> BTreeMap<String, Arc<Schema>> {
    let schema = json!({ "type": "object", "properties": {
        "apiVersion": { "type": "string" }, "kind": { "type": "string" },
        "metadata": { "type": "object", "properties": {
            "name": { "type": "string" }, "uid": { "type": "string" },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } },
            "managedFields": { "type": "array", "items": { "x-kubernetes-preserve-unknown-fields": true } },
        } },
        "spec": { "type": "object", "properties": {
            "a": { "type": "string" }, "b": { "type": "string" },
            "set": { "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" } },
            "parts": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": { "type": "object", "properties": { "name": { "type": "string" }, "n": { "type": "integer" } } } },
            "atomic": { "type": "array", "items": { "type": "string" } },
        } },
    } });
    BTreeMap::from([("v1".to_owned(), Arc::new(Schema::parse(&schema, "", None).unwrap()))])
}

/// Applies configurations in turn. Returns the final object, or the conflict of the last one.
fn applied(configs: &[(&str, bool, Value)]) -> Result<Value, Status> {
    let schemas = schemas();
    let mut object = json!({});
    for (manager, force, spec) in configs {
        let reset = FieldSet::default();
        let write =
            FieldWrite { manager, api_version: "v1", subresource: "", schemas: &schemas, reset: &reset, now: "now" };
        object = write.apply(&object, &json!({ "metadata": { "name": "x" }, "spec": spec }), *force, "x")?;
        metadata_of(&mut object).insert("uid".to_owned(), "1".into());
    }
    Ok(object)
}

fn metadata_of(object: &mut Value) -> &mut Map<String, Value> {
    object["metadata"].as_object_mut().unwrap()
}

#[test]
fn an_apply_removes_the_fields_that_its_manager_no_longer_applies() {
    let table = [
        (json!({ "a": "1", "b": "1" }), json!({ "a": "1" }), json!({ "a": "1" })),
        (json!({ "set": ["x", "y"] }), json!({ "set": ["y"] }), json!({ "set": ["y"] })),
        (
            json!({ "parts": [{ "name": "x", "n": 1 }, { "name": "y" }] }),
            json!({ "parts": [{ "name": "x" }] }),
            json!({ "parts": [{ "name": "x" }] }),
        ),
        (json!({ "atomic": ["x", "y"] }), json!({ "atomic": ["y"] }), json!({ "atomic": ["y"] })),
    ];
    for (first, second, expected) in table {
        let object = applied(&[("one", false, first), ("one", false, second.clone())]).unwrap();
        assert_eq!(object["spec"], expected, "{second}");
    }
}

#[test]
fn managers_share_a_list_by_its_elements() {
    let one = json!({ "set": ["a"], "parts": [{ "name": "x", "n": 1 }] });
    let two = json!({ "set": ["b"], "parts": [{ "name": "y" }] });
    let object = applied(&[("one", false, one), ("two", false, two.clone())]).unwrap();
    assert_eq!(object["spec"], json!({ "set": ["a", "b"], "parts": [{ "name": "x", "n": 1 }, { "name": "y" }] }));
    let one = json!({ "set": ["a"], "parts": [{ "name": "x", "n": 1 }] });
    let object = applied(&[("one", false, one), ("two", false, two), ("one", false, json!({}))]).unwrap();
    assert_eq!(object["spec"], json!({ "set": ["b"], "parts": [{ "name": "y" }] }));
}

#[test]
fn another_managers_field_is_a_conflict_unless_the_apply_is_forced() {
    let first = ("one", false, json!({ "a": "1", "b": "1" }));
    let error = applied(&[first.clone(), ("two", false, json!({ "a": "2" }))]).unwrap_err();
    assert_eq!((error.code, error.causes[0].field.as_str()), (409, ".spec.a"));
    assert_eq!(error.causes[0].message, "conflict with \"one\"");
    assert!(applied(&[first.clone(), ("two", false, json!({ "a": "1" }))]).is_ok(), "the same value is no conflict");
    let object = applied(&[first, ("two", true, json!({ "a": "2" }))]).unwrap();
    assert_eq!(object["spec"], json!({ "a": "2", "b": "1" }));
    let owners: Vec<(&str, &Value)> = object["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["manager"].as_str().unwrap(), &entry["fieldsV1"]["f:spec"]))
        .collect();
    assert_eq!(owners, [("one", &json!({ "f:b": {} })), ("two", &json!({ "f:a": {} }))]);
}

#[test]
fn an_invalid_configuration_is_an_internal_error() {
    for spec in [json!({ "unknown": 1 }), json!({ "a": 1 }), json!({ "set": ["x", "x"] })] {
        assert_eq!(applied(&[("one", true, spec)]).unwrap_err().code, 500);
    }
}

#[test]
fn updates_take_the_changed_fields() {
    let schemas = schemas();
    let reset = FieldSet::default();
    let write = |manager| FieldWrite {
        manager,
        api_version: "v1",
        subresource: "",
        schemas: &schemas,
        reset: &reset,
        now: "now",
    };
    let mut first = json!({ "metadata": { "name": "x" }, "spec": { "a": "1", "b": "1" } });
    write("one").track_update(&json!({}), &mut first);
    metadata_of(&mut first).insert("uid".to_owned(), "1".into());
    let mut second = first.clone();
    second["spec"]["b"] = "2".into();
    write("two").track_update(&first, &mut second);
    let of = |at: usize| &second["metadata"]["managedFields"][at]["fieldsV1"]["f:spec"];
    assert_eq!((of(0), of(1)), (&json!({ ".": {}, "f:a": {} }), &json!({ "f:b": {} })));
    let mut reset = second.clone();
    metadata_of(&mut reset).insert("managedFields".to_owned(), json!([]));
    write("two").track_update(&second, &mut reset);
    assert!(reset["metadata"].get("managedFields").is_none(), "a client can reset the managers");
}
