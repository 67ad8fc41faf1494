//! What users do in a world, and what must be true at the end.

use std::time::Duration;

use serde_json::{Value, json};

use super::world::{NAMESPACE, World};

/// Virtual time after which each Stack must be Ready, or Stalled with an instruction.
const LIMIT: Duration = Duration::from_secs(600);

pub fn program(resources: &[&str]) -> Value {
    let resources: serde_json::Map<String, Value> = resources
        .iter()
        .map(|name| ((*name).to_owned(), json!({"type": "test:Resource", "properties": {"value": name}})))
        .collect();
    json!({
        "apiVersion": "pulumi.com/v1", "kind": "Program",
        "metadata": {"name": "app", "namespace": NAMESPACE}, "program": {"resources": resources},
    })
}

pub fn stack(spec: &Value) -> Value {
    let mut stack = json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "app", "namespace": NAMESPACE},
        "spec": {"stack": "acme/app/dev", "programRef": {"name": "app"}, "backend": "s3://state"},
    });
    for (name, value) in spec.as_object().into_iter().flatten() {
        stack["spec"][name] = value.clone();
    }
    stack
}

/// Creates a Stack, and waits until it has created its resources.
pub async fn first_run(world: &World) {
    world.create(&program(&["bucket", "queue"]));
    world.create(&stack(&json!({})));
    until_ready(world, &["bucket", "queue"]).await;
}

/// Deletes a Stack that destroys its resources.
pub async fn destroy(world: &World) {
    world.create(&program(&["bucket"]));
    world.create(&stack(&json!({"destroyOnFinalize": true})));
    until_ready(world, &["bucket"]).await;
    world.delete_stack("app");
    let is_gone = world.until(LIMIT, |world| world.stack("app").is_none()).await;
    assert!(is_gone, "the Stack is deleted: {:#}", status(world));
}

/// Waits until the Stack has applied the program, which then has these resources.
async fn until_ready(world: &World, resources: &[&str]) {
    let is_ready = |world: &World| {
        let stack = world.stack("app");
        let generations = |path: &str| stack.as_ref().and_then(|stack| stack.pointer(path)?.as_i64());
        let conditions = stack.as_ref().and_then(|stack| stack.pointer("/status/conditions")?.as_array().cloned());
        let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
        generations("/status/observedGeneration") == generations("/metadata/generation")
            && ready.is_some_and(|ready| ready["status"] == "True")
    };
    assert!(world.until(LIMIT, is_ready).await, "the Stack is Ready: {:#}", status(world));
    assert_eq!(world.backend.resources("acme/app/dev"), resources);
}

fn status(world: &World) -> Value {
    world.stack("app").map_or(Value::Null, |stack| stack["status"].clone())
}
