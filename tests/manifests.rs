//! Tests the manifests in `tests/manifests`, which contain all fields of the Pulumi Kubernetes Operator. The
//! deserialization must not lose a field. The end-to-end tests apply the same manifests to an API server.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a missing prerequisite fails the test"
)]

mod manifest_files;

use pulumi_controller::api::pulumi::{Program, Stack};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use manifest_files::{covers, read};

/// Spec fields of a Stack of the Pulumi Kubernetes Operator.
const STACK: [&str; 39] = [
    "accessTokenSecret",
    "backend",
    "branch",
    "commit",
    "config",
    "configRef",
    "continueResyncOnCommitMatch",
    "destroyOnFinalize",
    "environment",
    "envRefs",
    "envSecrets",
    "envs",
    "expectNoRefreshChanges",
    "fluxSource",
    "gitAuth",
    "gitAuthSecret",
    "initOnCreate",
    "prerequisites",
    "preview",
    "programRef",
    "projectRepo",
    "pulumiLogLevel",
    "refresh",
    "repoDir",
    "resyncFrequencySeconds",
    "retryMaxBackoffDurationSeconds",
    "retryOnUpdateConflict",
    "runProgram",
    "secrets",
    "secretsProvider",
    "secretsRef",
    "serviceAccountName",
    "shallow",
    "stack",
    "targetDependents",
    "targets",
    "updateTemplate",
    "useLocalStackOnly",
    "workspaceReclaimPolicy",
];

/// Paths of the Program fields in the manifests.
const PROGRAM: [&str; 21] = [
    "/configuration/text/type",
    "/configuration/text/default",
    "/resources/number/type",
    "/resources/number/properties",
    "/resources/child/options/additionalSecretOutputs",
    "/resources/child/options/aliases",
    "/resources/child/options/customTimeouts/create",
    "/resources/child/options/customTimeouts/delete",
    "/resources/child/options/customTimeouts/update",
    "/resources/child/options/deleteBeforeReplace",
    "/resources/child/options/dependsOn",
    "/resources/child/options/ignoreChanges",
    "/resources/child/options/parent",
    "/resources/child/options/protect",
    "/resources/child/options/provider",
    "/resources/child/options/version",
    "/resources/imported/options/import",
    "/resources/found/get/id",
    "/resources/found/get/state",
    "/variables/greeting",
    "/packages/testing",
];

/// Returns an object after deserialization and serialization.
fn reread<K: DeserializeOwned + Serialize>(file: &str, object: &Value) -> Value {
    let read: K = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_json::to_value(read).expect("an object is JSON")
}

#[test]
fn every_stack_field_has_a_manifest_and_is_read_without_loss() {
    let manifests = read("stack");
    for field in STACK {
        assert!(manifests.iter().any(|(_, object)| object["spec"].get(field).is_some()), "no manifest has {field}");
    }
    for (file, object) in manifests.iter().chain(&read("rejected")) {
        let found = reread::<Stack>(file, object);
        assert!(covers(&found, object), "{file} loses fields: {found}");
    }
    let template =
        read("stack").into_iter().find(|(file, _)| file == "workspace-template.yaml").expect("manifest exists").1;
    assert!(covers(
        &reread::<Stack>("a template", &template)["spec"]["workspaceTemplate"],
        &template["spec"]["workspaceTemplate"]
    ));
}

#[test]
fn every_program_field_has_a_manifest_and_is_read_without_loss() {
    let manifests = read("program");
    for path in PROGRAM {
        let has = |(_, object): &(String, Value)| object["program"].pointer(path).is_some();
        assert!(manifests.iter().any(has), "no manifest has {path}");
    }
    for (file, object) in &manifests {
        let found = reread::<Program>(file, object);
        assert!(covers(&found, object), "{file} loses fields: {found}");
    }
}

/// Checks that the other tests fail if deserialization loses a field.
#[test]
fn an_unknown_field_is_reported_as_lost() {
    let object = json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "a"}, "spec": {"stack": "dev", "noSuchField": 1},
    });
    assert!(!covers(&reread::<Stack>("made up", &object), &object));
}
