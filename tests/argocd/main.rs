//! Tests the Argo CD health checks in `config/argocd` with each state that the controller reports, and with objects
//! from the Pulumi Kubernetes Operator.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a missing prerequisite fails the test"
)]

mod defaults;
mod health_check;
mod operator;
mod other_kinds;
mod stack;

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource;
use mlua::Value as LuaValue;

use health_check::{Health, folder, health, restricted_lua};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

/// Sets an object's deletion timestamp, and increments the generation like the API server.
fn deleted<K: Resource + Clone>(object: &K) -> K {
    let mut deleted = object.clone();
    deleted.meta_mut().deletion_timestamp = Some(Time(at(100)));
    deleted.meta_mut().generation = object.meta().generation.map(|generation| generation + 1);
    deleted
}

/// Returns the object after a change to its spec that the controller has not observed.
fn edited<K: Resource + Clone>(object: &K) -> K {
    let mut edited = object.clone();
    edited.meta_mut().generation = object.meta().generation.map(|generation| generation + 1);
    edited
}

/// Checks the health of an object that the controller has not reconciled: without a status, and with the default status
/// that the API server sets.
fn expect_not_reconciled<K: Resource + serde::Serialize>(object: &K) {
    let mut object = serde_json::to_value(object).expect("a JSON object");
    let expected = Health::new("Progressing", "waiting for the first reconciliation");
    for status in [serde_json::Value::Null, serde_json::json!({"observedGeneration": -1, "conditions": []})] {
        object["status"] = status;
        assert_eq!(health(&object), expected, "{object}");
    }
}

/// Checks the health of an object whose latest generation the controller has not observed.
fn expect_unobserved<K: Resource + Clone + serde::Serialize>(object: &K) {
    let edited = edited(object);
    let generation = edited.meta().generation.expect("a generation");
    let message = format!("waiting for the reconciliation of generation {generation}");
    assert_eq!(health(&edited), Health::new("Progressing", &message));
}

#[test]
fn every_health_check_is_tested() {
    let names = |folder: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
        let folders = entries.filter(|entry| entry.path().is_dir());
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let kinds = names(&folder()).into_iter().flat_map(|group| names(&folder().join(group)));
    let tested = ["Program", "Stack", "StackReceiver", "Update", "Workspace"].map(str::to_owned);
    assert_eq!(kinds.collect::<BTreeSet<_>>(), BTreeSet::from(tested));
}

/// Argo CD provides the other Lua libraries only to its built-in health checks.
#[test]
fn the_health_checks_run_without_other_libraries() {
    let lua = restricted_lua();
    for library in ["io", "os", "string", "math", "debug"] {
        let value: LuaValue = lua.globals().get(library).expect("a global variable");
        assert!(value.is_nil(), "{library} is available");
    }
}
