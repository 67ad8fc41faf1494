//! Tests the health of Pulumi Kubernetes Operator objects that the controller has not migrated yet.

use std::path::Path;

use serde_json::Value;

use crate::health_check::{Health, health};

fn read(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operator").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    serde_saphyr::from_str(&text).expect("valid YAML")
}

#[test]
fn the_objects_of_the_operator_have_the_expected_health() {
    let mut objects = vec![read("stack-deleted-during-update.yaml"), read("update-running.yaml")];
    for file in ["programs.yaml", "stacks.yaml", "updates.yaml", "workspaces.yaml"] {
        objects.extend(read(file)["items"].as_array().expect("a list").iter().cloned());
    }
    let found: Vec<String> = objects
        .iter()
        .map(|object| {
            let Health { status, message } = health(object);
            let message = message.lines().next().unwrap_or_default().to_owned();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            format!("{} {name}: {status}: {message}", object["kind"].as_str().unwrap_or_default())
        })
        .collect();
    let expected = [
        "Stack from-flux: Progressing: reconciliation is in progress; stack is being processed",
        "Update from-flux-1a1fd55f571: Progressing: the run is open",
        "Program inline: Healthy: the artifact is available",
        "Stack failing: Degraded: reconciliation is stalled; up failed 3 times; not retrying until the spec or source changes",
        "Stack from-flux: Healthy: the stack has been processed and is up to date",
        "Stack from-program: Healthy: the stack has been processed and is up to date",
        "Update failing-1a1fd5424f3: Degraded: up failed: failed to run update: exit status 1",
        "Update from-flux-1a1fd5426d9: Healthy: \"Initial stack update\"",
        "Update from-program-1a1fd544436: Healthy: \"Initial stack update\"",
        "Workspace failing: Healthy: ",
        "Workspace from-flux: Healthy: ",
        "Workspace from-program: Healthy: ",
    ];
    assert_eq!(found, expected);
}
