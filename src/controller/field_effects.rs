//! The effect of each field of the API. A field that has no effect in combination with another field must not be ignored
//! silently: the API server rejects the combination, or the condition `SettingsIgnored` of the Stack lists the field. The
//! Pulumi Kubernetes Operator accepts all combinations of its fields, so the API server must accept them, too.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::conditions::{self, SETTINGS_IGNORED};
use crate::api::definitions::custom_resource_definitions;
use crate::api::pulumi::Stack;
use crate::controller::stack::{State, with_state};

/// Effect of a field.
enum Effect {
    /// Each valid value has an effect. An invalid value makes the object `Stalled` or the run fail.
    Always,
    /// The API server rejects specs with these fields, because the field would have no effect. Each spec is JSON.
    Rejected(&'static [&'static str]),
    /// The condition `SettingsIgnored` lists the field for specs with these fields. Each spec is JSON.
    Reported(&'static [&'static str]),
    /// The description of the field contains this text about values without effect.
    Described(&'static str),
}

use Effect::{Always, Described, Rejected, Reported};

/// Spec of a StackReceiver with an OIDC issuer, although its type does not support OIDC.
const OIDC_PROVIDER_OF_ANOTHER_TYPE: &str = concat!(
    r#"{"type": "generic", "secretRef": {"name": "hook"}, "resources": [{"name": "web"}], "#,
    r#""oidcProviders": [{"issuerURL": "https://example.com", "audience": "a", "claims": {"sub": "b"}}]}"#
);

/// All fields. The fields below a field that ends with `.*` have the same effect: the objects of another API, and values
/// that the controller passes to another program.
const FIELDS: &[(&str, Effect)] = &[
    ("Stack.stack", Always),
    ("Stack.fluxSource.*", Always),
    ("Stack.projectRepo", Always),
    // The other fields of a repository make the spec invalid without `projectRepo`.
    ("Stack.branch", Always),
    ("Stack.commit", Always),
    ("Stack.gitRef.semver", Always),
    ("Stack.repoDir", Always),
    ("Stack.paths[]", Always),
    ("Stack.shallow", Reported(&[r#"{"shallow": true}"#])),
    (
        "Stack.gitAuth.*",
        Reported(&[
            r#"{"gitAuth": {}}"#,
            r#"{"gitAuth": {"accessToken": {"type": "Secret", "literal": {"value": "a"}}}}"#,
        ]),
    ),
    ("Stack.gitAuthSecret", Reported(&[r#"{"gitAuthSecret": "a", "gitAuth": {"accessToken": {"type": "Secret"}}}"#])),
    ("Stack.programRef.name", Always),
    ("Stack.backend", Reported(&[r#"{"backend": "file://~", "envRefs": {"PULUMI_BACKEND_URL": {"type": "Secret"}}}"#])),
    ("Stack.pulumiCloudOIDC.*", Always),
    (
        "Stack.accessTokenSecret",
        Reported(&[r#"{"accessTokenSecret": "a", "envRefs": {"PULUMI_ACCESS_TOKEN": {"type": "Secret"}}}"#]),
    ),
    ("Stack.envs[]", Always),
    ("Stack.envSecrets[]", Always),
    (
        "Stack.envRefs{}.*",
        Reported(&[
            r#"{"envRefs": {"A": {"type": "Secret", "literal": {"value": "a"}}}}"#,
            r#"{"envRefs": {"PULUMI_OPTION_PARALLEL": {"type": "Secret"}}}"#,
            r#"{"envRefs": {"POD_NAME": {"type": "Secret"}}}"#,
        ]),
    ),
    ("Stack.config{}", Reported(&[r#"{"config": {"a": null}}"#])),
    ("Stack.configRef{}.*", Always),
    ("Stack.secrets{}", Always),
    (
        "Stack.secretsRef{}.*",
        Reported(&[r#"{"secretsRef": {"a": {"type": "Literal", "configMap": {"name": "a", "key": "a"}}}}"#]),
    ),
    ("Stack.pathKeys[]", Always),
    ("Stack.environment[]", Always),
    ("Stack.serviceAccountName", Always),
    (
        "Stack.destroyOnFinalize",
        Reported(&[
            r#"{"destroyOnFinalize": true, "preview": true}"#,
            r#"{"destroyOnFinalize": false, "removeStack": true}"#,
            r#"{"destroyOnFinalize": true, "removeStack": true, "preview": true}"#,
        ]),
    ),
    ("Stack.removeStack", Rejected(&[r#"{"removeStack": true}"#])),
    ("Stack.refresh", Reported(&[r#"{"refresh": true, "updateTemplate": {"spec": {"refresh": false}}}"#])),
    (
        "Stack.expectNoRefreshChanges",
        Reported(&[
            r#"{"expectNoRefreshChanges": true}"#,
            r#"{"expectNoRefreshChanges": true, "refresh": true, "updateTemplate": {"spec": {"refresh": false}}}"#,
        ]),
    ),
    ("Stack.preview", Always),
    ("Stack.useLocalStackOnly", Always),
    (
        "Stack.initOnCreate",
        Rejected(&[
            r#"{"initOnCreate": true, "useLocalStackOnly": true}"#,
            r#"{"initOnCreate": false, "useLocalStackOnly": false}"#,
        ]),
    ),
    ("Stack.secretsProvider", Always),
    ("Stack.targets[]", Reported(&[r#"{"targets": ["urn"], "updateTemplate": {"spec": {"target": ["other"]}}}"#])),
    ("Stack.targetDependents", Reported(&[r#"{"targetDependents": true}"#])),
    ("Stack.runProgram", Reported(&[r#"{"runProgram": true}"#])),
    ("Stack.suspend", Always),
    ("Stack.interval", Described("If the field is absent or `0s`")),
    ("Stack.continueResyncOnCommitMatch", Reported(&[r#"{"continueResyncOnCommitMatch": true, "interval": "1h"}"#])),
    (
        "Stack.resyncFrequencySeconds",
        Reported(&[
            r#"{"resyncFrequencySeconds": 10, "continueResyncOnCommitMatch": true}"#,
            r#"{"resyncFrequencySeconds": 3600}"#,
        ]),
    ),
    ("Stack.retryInterval", Described("If the field is absent or `0s`")),
    (
        "Stack.retryMaxBackoffDurationSeconds",
        Reported(&[
            r#"{"retryMaxBackoffDurationSeconds": 5}"#,
            r#"{"retryMaxBackoffDurationSeconds": 60, "retryInterval": "1m"}"#,
        ]),
    ),
    ("Stack.retryOnUpdateConflict", Always),
    ("Stack.prerequisites[].*", Always),
    ("Stack.dependsOn[].*", Always),
    ("Stack.workspaceReclaimPolicy", Always),
    ("Stack.priority", Reported(&[r#"{"priority": 1, "updateTemplate": {"spec": {"priority": 2}}}"#])),
    ("Stack.concurrencyGroup.*", Always),
    ("Stack.timeout", Reported(&[r#"{"timeout": "1h", "updateTemplate": {"spec": {"timeout": "2h"}}}"#])),
    ("Stack.idleTimeout", Reported(&[r#"{"idleTimeout": "1h", "updateTemplate": {"spec": {"idleTimeout": "2h"}}}"#])),
    ("Stack.lockRecovery", Always),
    (
        "Stack.pulumiLogLevel",
        Reported(&[r#"{"pulumiLogLevel": 1, "workspaceTemplate": {"spec": {"pulumiLogLevel": 2}}}"#]),
    ),
    ("Stack.drift.interval", Rejected(&[r#"{"drift": {"interval": "0s"}}"#, r#"{"drift": {"interval": "30s"}}"#])),
    ("Stack.drift.schedule.*", Reported(&[r#"{"preview": true, "drift": {"schedule": {"cron": "30 2 * * *"}}}"#])),
    ("Stack.drift.expectNoChanges", Always),
    ("Stack.drift.mode", Always),
    ("Stack.drift.ignore[].*", Always),
    ("Stack.schedule.windows[].*", Reported(&[r#"{"preview": true, "schedule": {"windows": []}}"#])),
    ("Stack.schedule.freezes[].*", Reported(&[r#"{"preview": true, "schedule": {"freezes": []}}"#])),
    ("Stack.ttl", Described("`0s` has no effect")),
    ("Stack.expiresAt", Always),
    ("Stack.approval.*", Reported(&[r#"{"preview": true, "approval": {"mode": "Always"}}"#])),
    ("Stack.policyPacks[].*", Always),
    (
        "Stack.writeOutputsTo[].*",
        Reported(&[r#"{"preview": true, "writeOutputsTo": [{"kind": "Secret", "name": "a"}]}"#]),
    ),
    (
        "Stack.updateTemplate",
        Reported(&[
            r#"{"updateTemplate": {"kind": "Update"}}"#,
            r#"{"updateTemplate": {"apiVersion": "v1"}}"#,
            r#"{"updateTemplate": {"status": {}}}"#,
            r#"{"updateTemplate": {"metadata": {"labels": {"pulumi.com/stack-name": "other"}}}}"#,
            r#"{"updateTemplate": {"spec": {"remove": true}}}"#,
            r#"{"updateTemplate": {"spec": {"targetDependents": true}}}"#,
        ]),
    ),
    (
        "Stack.workspaceTemplate",
        Reported(&[
            r#"{"workspaceTemplate": {"kind": "Workspace"}}"#,
            r#"{"workspaceTemplate": {"metadata": {"labels": {"auto.pulumi.com/workspace-name": null}}}}"#,
            r#"{"workspaceTemplate": {"spec": {"stacks": [{"name": "other"}]}}}"#,
            r#"{"workspaceTemplate": {"spec": {"env": [{"name": "PULUMI_OPTION_COLOR"}]}}}"#,
            r#"{"workspaceTemplate": {"spec": {"podTemplate": {"spec": {"containers": [
                {"name": "pulumi", "env": [{"name": "PULUMI_OPTION_COLOR"}]}]}}}}}"#,
        ]),
    ),
    ("Workspace.serviceAccountName", Always),
    ("Workspace.securityProfile", Always),
    ("Workspace.image", Always),
    ("Workspace.imagePullPolicy", Always),
    ("Workspace.artifact.*", Always),
    ("Workspace.flux.*", Always),
    ("Workspace.git.*", Always),
    ("Workspace.local.dir", Always),
    ("Workspace.projectInfo.*", Always),
    ("Workspace.env[].*", Always),
    ("Workspace.envFrom[].*", Always),
    ("Workspace.pulumiCloudOIDC.*", Always),
    ("Workspace.pulumiLogLevel", Always),
    ("Workspace.podTemplate.*", Always),
    ("Workspace.resources.*", Always),
    ("Workspace.evictionProtection", Always),
    ("Workspace.serviceTemplate.*", Always),
    ("Workspace.policyPacks[].*", Always),
    ("Workspace.stacks[].*", Always),
    ("Workspace.idle.after", Described("With `0s`, the Workspace keeps its pod")),
    ("Workspace.idle.keep", Always),
    ("Workspace.idle.claim", Rejected(&[r#"{"idle": {"keep": "Nothing", "claim": "a"}}"#])),
    ("Update.workspaceName", Always),
    ("Update.stackName", Always),
    ("Update.type", Always),
    ("Update.artifact.*", Always),
    ("Update.source.*", Always),
    ("Update.ttlAfterCompleted", Always),
    ("Update.message", Always),
    ("Update.refresh", Described("an `up`, `preview` or `destroy`")),
    ("Update.expectNoRefreshChanges", Described("an `up` fails")),
    ("Update.target[]", Always),
    ("Update.targetDependents", Described("depend on `target`")),
    ("Update.replace[]", Described("an `up` or `preview`")),
    ("Update.parallel", Always),
    ("Update.expectNoChanges", Described("an `up`, `preview` or `refresh`")),
    ("Update.continueOnError", Described("an `up` or `destroy`")),
    ("Update.remove", Described("a `destroy`")),
    ("Update.runProgram", Described("a `destroy`")),
    // The run fails if it does not support the field.
    ("Update.previewOf", Always),
    ("Update.savePlan", Always),
    ("Update.plan.*", Always),
    ("Update.policyPacksDigest", Always),
    ("Update.appliedStack.*", Described("Default: no restriction")),
    ("Update.createStack", Always),
    ("Update.appliedByOthers[].*", Always),
    ("Update.priority", Always),
    ("Update.background", Always),
    ("Update.concurrencyGroup.*", Always),
    ("Update.pendingSince", Always),
    ("Update.timeout", Described("With `0s`, only this flag limits the run")),
    ("Update.idleTimeout", Described("If the field is absent or `0s`")),
    ("Update.lockRecovery", Always),
    ("Update.pendingCreates", Always),
    ("Program.*", Always),
    ("StackReceiver.type", Always),
    (
        "StackReceiver.events[]",
        Rejected(&[r#"{"type": "generic", "events": ["push"], "resources": [{"name": "web"}]}"#]),
    ),
    ("StackReceiver.interval", Described("Minimum: `10s`")),
    (
        "StackReceiver.secretRef.name",
        Rejected(&[concat!(
            r#"{"type": "generic-oidc", "secretRef": {"name": "hook"}, "resources": [{"name": "web"}], "#,
            r#""oidcProviders": [{"issuerURL": "https://example.com", "audience": "a", "claims": {"sub": "b"}}]}"#
        )]),
    ),
    ("StackReceiver.oidcProviders[].issuerURL", Rejected(&[OIDC_PROVIDER_OF_ANOTHER_TYPE])),
    ("StackReceiver.oidcProviders[].audience", Rejected(&[OIDC_PROVIDER_OF_ANOTHER_TYPE])),
    ("StackReceiver.oidcProviders[].claims{}", Rejected(&[OIDC_PROVIDER_OF_ANOTHER_TYPE])),
    ("StackReceiver.resources[].kind", Always),
    (
        "StackReceiver.resources[].name",
        Rejected(&[r#"{"type": "github", "resources": [{"name": "web", "matchLabels": {"a": "b"}}]}"#]),
    ),
    ("StackReceiver.resources[].matchLabels{}", Always),
    ("StackReceiver.suspend", Always),
    ("Approval.*", Always),
];

/// Returns the kind and the schema of each definition, in its storage version.
fn schemas() -> Vec<(String, Value)> {
    let definitions = custom_resource_definitions().into_iter().map(|crd| {
        let version = crd.spec.versions.into_iter().find(|version| version.storage).expect("a storage version");
        let mut schema = serde_json::to_value(version.schema).expect("valid JSON schema");
        (crd.spec.names.kind, schema["openAPIV3Schema"].take())
    });
    definitions.collect()
}

/// Returns the schema of the part of an object that users write.
fn desired(schema: &Value) -> &Value {
    let properties = &schema["properties"];
    properties.get("spec").unwrap_or_else(|| &properties["program"])
}

/// Adds the paths of all fields without nested fields to `found`. The templates of a Stack count as one field.
fn fields(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    if matches!(path, "Stack.updateTemplate" | "Stack.workspaceTemplate") {
        found.insert(path.to_owned());
    } else if let Some(properties) = schema["properties"].as_object().filter(|properties| !properties.is_empty()) {
        properties.iter().for_each(|(name, property)| fields(&format!("{path}.{name}"), property, found));
    } else if schema["additionalProperties"].is_object() {
        fields(&format!("{path}{{}}"), &schema["additionalProperties"], found);
    } else if schema["items"].is_object() {
        fields(&format!("{path}[]"), &schema["items"], found);
    } else {
        found.insert(path.to_owned());
    }
}

fn is_covered(field: &str, row: &str) -> bool {
    match row.strip_suffix(".*") {
        Some(object) => {
            field.strip_prefix(object).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '{', '[']))
        }
        None => field == row,
    }
}

/// Returns the schema of a field.
fn schema_of<'a>(schema: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(schema, |schema, name| {
        let property = &schema["properties"][name.trim_end_matches("[]").trim_end_matches("{}")];
        if name.ends_with("[]") && property["items"]["properties"].is_object() { &property["items"] } else { property }
    })
}

/// Returns the messages of the rules that this value violates.
fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = rule["rule"].as_str().expect("a rule");
        if text.contains("oldSelf") {
            continue;
        }
        let program = cel::Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut context = cel::Context::default();
        let _ = context.add_function("dyn", |value: cel::Value| value);
        context.add_variable("self", value.clone()).expect("a JSON value");
        let result = program.execute(&context).unwrap_or_else(|error| panic!("{text}: {error}"));
        if result != cel::Value::Bool(true) {
            found.push(rule["message"].as_str().expect("a message").to_owned());
        }
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let schema = schema["properties"].get(name).unwrap_or_else(|| &schema["additionalProperties"]);
        found.extend(violations(schema, inner));
    }
    for item in value.as_array().into_iter().flatten() {
        found.extend(violations(&schema["items"], item));
    }
    found
}

fn parsed(spec: &str) -> Value {
    serde_json::from_str(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// Returns the message of the condition `SettingsIgnored` for a Stack with these fields.
fn reported(spec: &Value) -> Option<String> {
    let mut whole = json!({"stack": "dev"});
    whole.as_object_mut()?.extend(spec.as_object()?.clone());
    let metadata = json!({"name": "web", "namespace": "apps"});
    let object = json!({"apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": metadata, "spec": whole});
    let stack: Stack = serde_json::from_value(object).expect("a Stack");
    let status = with_state(&stack, &State::Done, "2026-01-01T00:00:00Z".parse().expect("a time"));
    Some(conditions::find(&status.conditions, SETTINGS_IGNORED)?.message.clone())
}

#[test]
fn the_table_contains_each_field_of_the_api() {
    let mut found = BTreeSet::new();
    for (kind, schema) in schemas() {
        fields(&kind, desired(&schema), &mut found);
    }
    let lacking: Vec<_> = found.iter().filter(|field| !FIELDS.iter().any(|(row, _)| is_covered(field, row))).collect();
    assert!(lacking.is_empty(), "add the effect of these fields: {lacking:#?}");
    let outdated: Vec<_> =
        FIELDS.iter().map(|(row, _)| row).filter(|row| !found.iter().any(|field| is_covered(field, row))).collect();
    assert!(outdated.is_empty(), "no such fields: {outdated:#?}");
}

#[test]
fn no_field_is_ignored_silently() {
    let schemas = schemas();
    for (row, effect) in FIELDS {
        let (kind, field) = row.split_once('.').expect("a kind and a field");
        let (_, schema) = schemas.iter().find(|(of, _)| of == kind).expect("a kind");
        let name = field.split(['.', '[', '{']).next().expect("a field");
        match effect {
            Always => {}
            Rejected(specs) => {
                for spec in *specs {
                    let found = violations(schema, &json!({"metadata": {"name": "web"}, "spec": parsed(spec)}));
                    assert!(!found.is_empty(), "{row}: the API server accepts {spec}");
                }
            }
            Reported(specs) => {
                for spec in *specs {
                    let found = violations(schema, &json!({"metadata": {"name": "web"}, "spec": parsed(spec)}));
                    assert_eq!(found, [""; 0], "{row}: {spec}");
                    let message = reported(&parsed(spec)).unwrap_or_else(|| panic!("{row}: not reported: {spec}"));
                    assert!(message.contains(&format!("spec.{name}")), "{row}: {message}");
                }
            }
            Described(text) => {
                let description = schema_of(desired(schema), field.trim_end_matches(".*"))["description"].to_string();
                assert!(description.replace("\\n", " ").contains(text), "{row}: {description}");
            }
        }
    }
}

#[test]
fn settings_with_an_effect_are_neither_rejected_nor_reported() {
    let schemas = schemas();
    let (_, stack) = schemas.iter().find(|(kind, _)| kind == "Stack").expect("Stack");
    for spec in [
        json!({}),
        json!({"refresh": true, "expectNoRefreshChanges": true, "targets": ["urn"], "targetDependents": true}),
        json!({"updateTemplate": {"spec": {"refresh": true}}, "expectNoRefreshChanges": true}),
        json!({"updateTemplate": {"spec": {"target": ["urn"]}}, "targetDependents": true}),
        json!({"destroyOnFinalize": true, "removeStack": true, "runProgram": true}),
        json!({"removeStack": false, "expectNoRefreshChanges": false, "targetDependents": false}),
        json!({"targets": ["urn"], "updateTemplate": {"spec": {"targetDependents": true}}}),
        // An Update checks for drift even without a refresh.
        json!({"updateTemplate": {"spec": {"expectNoRefreshChanges": true}}}),
        // With such a variable, the Stack is stalled.
        json!({"envRefs": {"PULUMI_OPTION_TARGET": {"type": "Literal", "literal": {"value": "urn"}}}}),
        json!({"initOnCreate": false, "useLocalStackOnly": true}),
        json!({"initOnCreate": null, "useLocalStackOnly": null, "removeStack": null}),
        json!({"projectRepo": "https://example.com/a", "branch": "main", "shallow": true, "resyncFrequencySeconds": 60}),
        json!({"continueResyncOnCommitMatch": true, "resyncFrequencySeconds": 60}),
        json!({"continueResyncOnCommitMatch": false, "resyncFrequencySeconds": 0, "interval": "1h"}),
        json!({"drift": {"interval": "1m"}, "approval": {"mode": "Always"}}),
        json!({"updateTemplate": {"metadata": {"labels": {"team": "a"}}, "kind": null}}),
        json!({"workspaceTemplate": {"spec": {"stacks": [{"name": "dev", "create": false}]}}}),
        json!({"envRefs": {"PULUMI_OPTION_POLICY_PACK": {"type": "Literal", "literal": {"value": "policy"}}}}),
    ] {
        assert_eq!(violations(stack, &json!({"metadata": {"name": "web"}, "spec": spec})), [""; 0], "{spec}");
        assert_eq!(reported(&spec), None, "{spec}");
    }
}
