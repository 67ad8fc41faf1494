//! Tests for rendering and validating Programs.

use serde_json::{Value, json};

use super::*;

const EVERY_FIELD: &str = include_str!("every_field.json");
const EVERY_FIELD_RENDERED: &str = include_str!("every_field.yaml");

fn every_field() -> Value {
    serde_json::from_str(EVERY_FIELD).expect("JSON")
}

fn read(object: Value) -> Program {
    serde_json::from_value(object).expect("a Program")
}

/// Returns a Program named `app` with this content.
fn program(content: Value) -> Program {
    read(json!({"metadata": {"name": "app", "namespace": "apps", "generation": 3}, "program": content}))
}

#[test]
fn every_field_is_rendered_into_the_project_file() {
    let program = read(every_field());
    let rendered = render(&program).expect("rendered Program");
    if std::env::var_os("REGENERATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/source/program/every_field.yaml");
        std::fs::write(path, &rendered).expect("write the file");
        return;
    }
    assert_eq!(rendered, EVERY_FIELD_RENDERED);
    let check::Findings { problems, needs, warnings, .. } = check::check(&program);
    let messages = [problems, needs, warnings].map(|sentences| sentences.to_string());
    assert_eq!(messages, [""; 3]);
}

/// Adds to `into` each schema field that the samples do not contain.
fn missing(schema: &Value, sample: &[&Value], path: &str, into: &mut Vec<String>) {
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{name}");
        let found: Vec<&Value> = sample.iter().filter_map(|value| value.get(name)).collect();
        if found.is_empty() {
            into.push(path);
            continue;
        }
        missing(below, &found, &path, into);
    }
    if let Some(below) = schema.get("additionalProperties") {
        let found: Vec<&Value> =
            sample.iter().filter_map(|value| value.as_object()).flat_map(|map| map.values()).collect();
        missing(below, &found, &format!("{path}.*"), into);
    }
    if let Some(below) = schema.get("items") {
        let found: Vec<&Value> = sample.iter().filter_map(|value| value.as_array()).flatten().collect();
        missing(below, &found, &format!("{path}[]"), into);
    }
}

#[test]
fn the_sample_program_and_its_rendering_have_every_schema_field() {
    let crd = serde_json::to_value(Program::crd()).expect("JSON");
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert_eq!(root.get("required"), None, "a Program without content is valid");
    assert_eq!(root["properties"].get("spec"), None);
    let mut without = Vec::new();
    missing(&root["properties"]["program"], &[&every_field()["program"]], "program", &mut without);
    assert_eq!(without, Vec::<String>::new(), "add these fields to every_field.json");

    let written: Value = serde_saphyr::from_str(EVERY_FIELD_RENDERED).expect("YAML");
    let mut expected = every_field()["program"].clone();
    expected["name"] = json!("site");
    expected["runtime"] = json!("yaml");
    assert_eq!(written, expected, "the rendered file has the same content");
}

#[test]
fn a_program_of_pko_is_accepted_unchanged() {
    let program = read(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Program", "metadata": {"name": "staticwebsite"},
        "program": {
            "configuration": {"n": {"type": "List<Number>", "default": [1]}},
            "resources": {"bucket": {"type": "aws:s3:Bucket", "properties": {"website": {"indexDocument": "index.html"}},
                "options": {"dependsOn": [], "protect": true, "deleteBeforeReplace": false}}},
            "outputs": {"bucketEndpoint": "http://${bucket.websiteEndpoint}"},
        },
        "status": {"observedGeneration": 1, "artifact": {"url": "http://operator/programs/a/b/1", "path": "programs/a/b/1.tar.gz",
            "revision": "1", "digest": Digest::of(b"a"), "lastUpdateTime": "2024-01-01T00:00:00Z"}},
    }));
    let expected = "name: \"staticwebsite\"\nruntime: \"yaml\"\nconfiguration:\n  \"n\":\n    \"default\":\n      - 1\n    \"type\": \"List<Number>\"\n\
        resources:\n  \"bucket\":\n    \"options\":\n      \"deleteBeforeReplace\": false\n      \"dependsOn\": []\n      \"protect\": true\n    \
        \"properties\":\n      \"website\":\n        \"indexDocument\": \"index.html\"\n    \"type\": \"aws:s3:Bucket\"\n\
        outputs:\n  \"bucketEndpoint\": \"http://${bucket.websiteEndpoint}\"\n";
    assert_eq!(render(&program).expect("rendered Program"), expected);
    let written = serde_json::to_value(&program).expect("JSON");
    assert_eq!((&written["apiVersion"], &written["kind"]), (&json!("pulumi.com/v1"), &json!("Program")));
}

/// A new controller version must not change the bytes of an artifact, because such a change triggers a run of every
/// Stack that uses a Program.
#[test]
fn the_artifact_bytes_depend_only_on_the_program_content() {
    let made = make(&program(json!({"outputs": {"b": 1, "a": {"y": 2, "x": 1}}}))).expect("valid Program");
    let text = r#"{"a": {"x": 1, "y": 2}, "b": 1}"#;
    let outputs: Value = serde_json::from_str(text).expect("JSON");
    let mut again = program(json!({"outputs": outputs}));
    again.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
    again.metadata.namespace = Some("elsewhere".to_owned());
    again.metadata.generation = Some(4);
    let again = make(&again).expect("valid Program");
    assert_eq!((&made.bytes, &made.digest), (&again.bytes, &again.digest));
    assert_eq!((made.revision.as_str(), again.revision.as_str()), ("3", "4"));
    assert_eq!(made.digest, Digest::of(&made.bytes));
    assert_eq!(made.digest.to_string(), "sha256:ee2a1c7521ca9a756387c3e3fc18528abb6c1759af9a61aa1dd3a878bd6abc5d");
    let other = make(&program(json!({"outputs": {"b": 2}}))).expect("valid Program");
    assert_ne!(made.digest, other.digest);
}

/// Returns a program with one bucket. Adds the fields in `more` to the bucket.
fn bucket(more: Value) -> Value {
    let mut resource = json!({"type": "aws:s3:Bucket"});
    for (key, value) in more.as_object().expect("JSON object") {
        resource[key] = value.clone();
    }
    json!({"config": {"key": "x"}, "variables": {"list": []}, "resources": {"bucket": resource, "other": {"type": "a:b"}}})
}

/// Asserts that each program has a problem whose message starts with the given string.
fn assert_problems(rows: &[(Value, &str)]) {
    for (content, expected) in rows {
        let Err(error) = make(&program(content.clone())) else { panic!("expected {content} to be rejected") };
        assert!(error.starts_with(expected), "{content}: {error}");
        assert!(!error.contains("; "), "each problem is reported once: {error}");
    }
}

#[test]
fn problems_of_resources_are_reported_with_their_field_path() {
    assert_problems(&[
        (
            bucket(json!({"properties": {"a": 1}, "get": {"id": "x"}})),
            "program.resources.bucket must not have both properties",
        ),
        (
            bucket(json!({"type": "bucket"})),
            "program.resources.bucket.type must be a type token such as aws:s3:Bucket, not \"bucket\"",
        ),
        (
            bucket(json!({"type": "a:b:c:d"})),
            "program.resources.bucket.type must be a type token such as aws:s3:Bucket, not \"a:b:c:d\"",
        ),
        (
            bucket(json!({"defaultProvider": false})),
            "program.resources.bucket.defaultProvider is only allowed for a provider",
        ),
        (bucket(json!({"name": "${key}"})), "program.resources.bucket.name must be a string without references"),
        (
            bucket(json!({"properties": {"a": ["${key"]}})),
            "program.resources.bucket.properties.a[0]: invalid reference \"${key\": missing closing brace",
        ),
        (
            bucket(json!({"properties": {"a b": "${}"}})),
            "program.resources.bucket.properties[\"a b\"]: invalid reference \"${}\": empty name",
        ),
        (bucket(json!({"get": {"id": "${"}})), "program.resources.bucket.get.id: "),
        (bucket(json!({"get": {"id": "x", "state": {"a": "${"}}})), "program.resources.bucket.get.state.a: "),
    ]);
}

#[test]
fn problems_of_resource_options_are_reported_with_their_field_path() {
    let option = |name: &str, value: Value| bucket(json!({"options": {name: value}}));
    assert_problems(&[
        (
            option("parent", json!("${key}")),
            "program.resources.bucket.options.parent must refer to a resource, but \"key\" is a config value",
        ),
        (
            option("parent", json!("${missing}")),
            "program.resources.bucket.options.parent refers to \"missing\", which is not a resource",
        ),
        (
            option("parent", json!("other")),
            "program.resources.bucket.options.parent must be a reference to a resource such as ${name}, not \"other\"",
        ),
        (
            option("provider", json!(true)),
            "program.resources.bucket.options.provider must be a reference to a resource such as ${name}, not a boolean",
        ),
        (
            option("deletedWith", json!("${missing}")),
            "program.resources.bucket.options.deletedWith refers to \"missing\"",
        ),
        (
            option("dependsOn", json!(["${other}", "${missing}"])),
            "program.resources.bucket.options.dependsOn[1] refers to \"missing\"",
        ),
        (
            option("dependsOn", json!("${other}")),
            "program.resources.bucket.options.dependsOn must be a list of references to resources, not a string",
        ),
        (
            option("providers", json!({"aws": "${other}"})),
            "program.resources.bucket.options.providers must be a list of references to resources, not an object",
        ),
        (
            option("replaceWith", json!(["${missing}"])),
            "program.resources.bucket.options.replaceWith[0] refers to \"missing\"",
        ),
        (
            option("protect", json!("yes")),
            "program.resources.bucket.options.protect must be a boolean or an expression, not a string",
        ),
        (
            option("version", json!("${key}")),
            "program.resources.bucket.options.version must be a string without references",
        ),
        (
            option("ignoreChanges", json!(["a", "${key}"])),
            "program.resources.bucket.options.ignoreChanges[1] must be a string without references",
        ),
        (
            option("customTimeouts", json!({"create": "${key"})),
            "program.resources.bucket.options.customTimeouts.create: invalid reference",
        ),
    ]);
}

#[test]
fn problems_of_other_sections_are_reported_with_their_field_path() {
    let config = |entry: Value| json!({"config": {"key": entry}});
    assert_problems(&[
        (
            json!({"variables": {"a": "${b}", "b": ["${c.d}"], "c": {"fn::join": ["", ["${a}"]]}}}),
            "program.variables.a depends on itself: a → b → c → a",
        ),
        (
            json!({"resources": {"a": {"type": "a:b", "options": {"parent": "${a}"}}}}),
            "program.resources.a depends on itself: a → a",
        ),
        (
            json!({"resources": {"a": {"type": "a:b"}}, "variables": {"a": 1}}),
            "program.variables.a has the same name as a resource",
        ),
        (json!({"variables": {"pulumi": 1}}), "program.variables.pulumi: pulumi is a reserved name in Pulumi YAML"),
        (json!({"outputs": {"a": "${["}}), "program.outputs.a: invalid reference"),
        (json!({"packages": {"a": {"version": "1"}}}), "program.packages.a must be a string such as source@version"),
        (
            config(json!(1.5)),
            "program.config.key must be a string, an integer, a boolean, a list, or an object with type and default, not a number",
        ),
        (config(json!({"type": "String"})), "program.config.key.type must be one of string, integer"),
        (
            config(json!({"type": "integer", "default": "x"})),
            "program.config.key.default must be of type integer, not a string",
        ),
        (config(json!({"type": "array", "default": [1]})), "program.config.key is an array without items"),
        (
            config(json!({"type": "array", "items": {"type": "string"}, "default": [1]})),
            "program.config.key.default must be of type array, not a list",
        ),
        (config(json!({"defualt": 1})), "program.config.key.defualt is an unknown field"),
        (config(json!({"default": 1, "value": 1})), "program.config.key must not have both default and value"),
        (config(json!({"secret": "yes"})), "program.config.key.secret must be a boolean"),
        (
            json!({"config": {"aws:region": {"type": "string"}}}),
            "program.config[\"aws:region\"] is in the namespace of another project",
        ),
    ]);
}

#[test]
fn requirements_for_the_stack_config_are_needs_and_not_problems() {
    let rows = [
        (
            json!({"outputs": {"a": "${b}", "c": "${b}"}}),
            "program.outputs.a refers to \"b\", which the program does not declare",
        ),
        (
            json!({"configuration": {"n": {"type": "Numbr"}}}),
            "program.configuration.n.type must be String, Number, Integer, Boolean, Object or a list such as List<String>, not \"Numbr\"",
        ),
        (
            json!({"configuration": {"n": {"type": "Number", "default": "x"}}}),
            "program.configuration.n.default must be of type Number, not a string",
        ),
        (
            json!({"configuration": {"n": {"type": "List<String>", "default": [1]}}}),
            "program.configuration.n.default must be of type List<String>, not a list",
        ),
        (
            json!({"configuration": {"n": {"type": "int"}}, "variables": {"n": 1}}),
            "program.variables.n has the same name as a config key, and Pulumi rejects this",
        ),
        (
            json!({"config": {"n": "x"}, "resources": {"n": {"type": "a:b"}}}),
            "program.resources.n has the same name as a config key, so no run can succeed",
        ),
    ];
    for (content, expected) in rows {
        let made = make(&program(content.clone())).unwrap_or_else(|error| panic!("{content}: {error}"));
        let needs = made.needs.to_string();
        assert!(needs.starts_with(expected), "{content}: {needs}");
        assert!(!needs.contains("; "), "each need is reported once: {needs}");
    }
}

#[test]
fn valid_programs_have_no_problems_or_needs() {
    let rows = [
        json!({}),
        json!({"config": {"a": "x", "b": true, "c": [1.5], "d": 3.0, "app:e": {"type": "integer", "default": "5"}}}),
        json!({"config": {"a": {"type": "boolean", "default": "true"}, "aws:region": "x"}, "outputs": {"a": "${app:a}", "r": "${aws:region}"}}),
        json!({"config": {"a": "x"}, "configuration": {"a": {"type": "Numbr"}}}),
        json!({"configuration": {"a": {"type": "list< Integer >", "default": [1, 2]}, "b": {"type": "number", "default": 3}}}),
        json!({"configuration": {"a": {"type": "Object", "default": {"fn::toJSON": 1}}, "b": {"type": "int", "default": "${pulumi.stack}"}}}),
        json!({"resources": {"a": {"type": "a:b", "properties": {}, "get": {"id": "x"}}}}),
        json!({"resources": {"a": {"type": "a:b", "options": {"protect": true, "dependsOn": "${l}"}}}, "variables": {"l": ["x"]}}),
        json!({"resources": {"a": {"type": "a:b", "properties": "${v}"}}, "variables": {"v": {"k": "$${x} ${pulumi.cwd}"}}}),
        json!({"resources": {"a": {"type": "kubernetes:helm.sh/v3:Release"}, "b": {"type": "a:b", "options": {"parent": "${a}"}}}}),
    ];
    for content in rows {
        let made = make(&program(content.clone())).unwrap_or_else(|error| panic!("{content}: {error}"));
        assert!(made.needs.is_empty(), "{content}: {}", made.needs);
    }
}

#[test]
fn config_values_in_strings_are_recorded_with_their_keys() {
    let content = json!({
        "config": {"version": {"type": "string", "default": "1.30"}, "app:build": 1_048_576, "plain": "1.30", "region": "eu"},
        "configuration": {"account": {"type": "String", "name": "accountID"}, "ids": {"type": "Object"}},
        "variables": {"local": "1.30", "list": ["${local}-x", "${plain}", {"${account}:": 1}, "${ids.account}/${undeclared}"]},
        "outputs": {"a": "k8s-${version}", "b": "${region}${app:build}", "c": "$${plain}"},
    });
    let made = make(&program(content)).expect("valid Program");
    let keys: Vec<&str> = made.interpolated.keys().map(String::as_str).collect();
    assert_eq!(keys, ["accountID", "build", "ids", "region", "undeclared", "version"]);
    assert_eq!(made.interpolated["version"], "program.outputs.a");
    let warnings = made.warnings.to_string();
    let expected = "program.config[\"app:build\"]: Pulumi YAML inserts the value \"1048576\" as 1.048576e+06 into the string \
                    program.outputs.b: ";
    assert!(warnings.starts_with(expected), "{warnings}");
    assert!(
        warnings.contains("; program.config.version: Pulumi YAML inserts the value \"1.30\" as 1.3 "),
        "{warnings}"
    );
    assert_eq!(warnings.matches("inserts").count(), 2, "{warnings}");
}

#[test]
fn excess_problems_are_summarized_by_count() {
    let outputs: serde_json::Map<String, Value> = (0..25).map(|n| (format!("o{n:02}"), json!("${"))).collect();
    let error = make(&program(json!({"outputs": outputs}))).expect_err("should be invalid");
    assert!(
        error.contains("program.outputs.o09") && !error.contains("o10") && error.ends_with("; and 15 more"),
        "{error}"
    );
}

/// The message does not depend on the number of findings and on the length of names and values, because the controller
/// keeps the findings in memory.
#[test]
fn messages_about_a_large_program_are_short() {
    let long = "n".repeat(100_000);
    let rows = [
        (json!({"variables": {&long: vec!["${"; 20_000]}}), "; and 19990 more"),
        (
            json!({"variables": {&long: (0..20_000).map(|n| format!("${{v{n}}}")).collect::<Vec<_>>()}}),
            "; and 19990 more",
        ),
        (json!({"outputs": {"a": format!("${{{long}}}")}}), "set it in the config of the stack"),
        (json!({"resources": {&long: {"type": &long, "options": {"parent": &long}}}}), "..\""),
        (json!({"resources": {&long: {"type": "a:b", "options": {"parent": format!("${{{long}}}")}}}}), "itself: n"),
        (json!({"config": {&long: {"type": &long, &long: 1}}}), "..."),
        (json!({"configuration": {&long: {"type": &long}}}), "or set the key in the config of the stack"),
    ];
    for (content, expected) in rows {
        let message = make(&program(content)).map_or_else(|error| error, |made| made.needs.to_string());
        assert!(message.contains(expected), "{message}");
        assert!(message.len() < 5_000, "{} bytes", message.len());
    }
}

#[test]
fn the_controller_generates_the_source_of_a_program() {
    let object = |content: Value| -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Program",
            "metadata": {"name": "app", "namespace": "apps", "generation": 7}, "program": content,
        }))
        .expect("JSON object")
    };
    let resolved = artifact(&object(json!({"outputs": {"a": 1}})), Directory::root()).expect("valid Program");
    let Origin::Program { bytes, .. } = &resolved.origin else { panic!("{resolved:?}") };
    assert_eq!((resolved.revision.as_str(), &resolved.digest), ("7", &Digest::of(bytes)));
    let message = |content| artifact(&object(content), Directory::root()).expect_err("should be invalid");
    match message(json!({"outputs": {"a": "${"}})) {
        Unavailable::Invalid(message) => {
            assert!(message.starts_with("invalid Program apps/app: program.outputs.a: "), "{message}")
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(message(json!({"outputs": 1})), Unavailable::Stalled(message) if message.contains("failed to parse Program apps/app: "))
    );
}

#[test]
fn a_program_whose_project_file_is_too_large_is_rejected() {
    let nested = (0..100).fold(json!(vec![1; 50_000]), |list, _| Value::Array(vec![list]));
    let error = make(&program(json!({"variables": {"a": nested}}))).expect_err("too large");
    assert_eq!(error, "the project file exceeds the maximum size of 4194304 bytes");
}
