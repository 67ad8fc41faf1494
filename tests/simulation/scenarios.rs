//! What users do in a world, and what must be true at the end.
//!
//! A scenario is a function that creates and changes objects as users do, and waits for results. It has no time limits of
//! its own and injects no faults. Each error names what should have been true.

use std::pin::Pin;

use serde_json::{Value, json};

use super::world::{NAMESPACE, World};

type End = Result<(), String>;

/// What users do, in order. Returns what must be true and is not.
pub struct Scenario {
    pub name: &'static str,
    /// Whether each change of the controller runs this scenario with a fault at each of its steps.
    pub is_core: bool,
    pub run: for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = End> + 'a>>,
}

pub const SCENARIOS: [Scenario; 10] = [
    Scenario { name: "first run", is_core: true, run: |world| Box::pin(first_run(world)) },
    Scenario { name: "push", is_core: true, run: |world| Box::pin(push(world)) },
    Scenario { name: "destroy", is_core: true, run: |world| Box::pin(destroy(world)) },
    Scenario { name: "push during a run", is_core: false, run: |world| Box::pin(push_during_a_run(world)) },
    Scenario { name: "deletion during a run", is_core: false, run: |world| Box::pin(deletion_during_a_run(world)) },
    Scenario { name: "dependency chain", is_core: false, run: |world| Box::pin(dependency_chain(world)) },
    Scenario { name: "suspended", is_core: false, run: |world| Box::pin(suspended(world)) },
    Scenario { name: "preview", is_core: false, run: |world| Box::pin(preview(world)) },
    Scenario { name: "invalid spec", is_core: false, run: |world| Box::pin(invalid_spec(world)) },
    Scenario { name: "duplicate Stacks", is_core: false, run: |world| Box::pin(duplicate_stacks(world)) },
];

/// Creates a Stack.
async fn first_run(world: &World) -> End {
    world.create(&program("app", &["bucket", "queue"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket", "queue"]).await
}

/// Changes the program of a Stack.
async fn push(world: &World) -> End {
    world.create(&program("app", &["bucket", "queue"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket", "queue"]).await?;
    set_resources(world, "app", &["queue", "topic"]);
    until_applied(world, "app", &["queue", "topic"]).await
}

/// Deletes a Stack that destroys its resources.
async fn destroy(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"destroyOnFinalize": true})));
    until_applied(world, "app", &["bucket"]).await?;
    world.delete_stack("app");
    until_destroyed(world, "app").await
}

/// Changes the program while a run applies the previous one.
async fn push_during_a_run(world: &World) -> End {
    world.create(&program("app", &["bucket", "queue", "topic"]));
    world.create(&stack("app", &json!({})));
    until(world, "a run starts", |world| world.backend.is_running("acme/app/app")).await?;
    set_resources(world, "app", &["queue"]);
    until_applied(world, "app", &["queue"]).await
}

/// Deletes a Stack while a run creates its resources.
async fn deletion_during_a_run(world: &World) -> End {
    world.create(&program("app", &["bucket", "queue", "topic"]));
    world.create(&stack("app", &json!({"destroyOnFinalize": true})));
    until(world, "a run starts", |world| world.backend.is_running("acme/app/app")).await?;
    world.delete_stack("app");
    until_destroyed(world, "app").await
}

/// Creates three Stacks, each of which requires the one before.
async fn dependency_chain(world: &World) -> End {
    for (name, base) in [("c", Some("b")), ("b", Some("a")), ("a", None)] {
        world.create(&program(name, &[name]));
        let prerequisites: Vec<Value> = base.into_iter().map(|base| json!({"name": base})).collect();
        world.create(&stack(name, &json!({"prerequisites": prerequisites})));
    }
    for name in ["a", "b", "c"] {
        until_applied(world, name, &[name]).await?;
    }
    let created: Vec<String> = world.backend.operations().into_iter().map(|operation| operation.resource).collect();
    if created == ["a", "b", "c"] { Ok(()) } else { Err(format!("the Stacks run in the order {created:?}")) }
}

/// Suspends a Stack, changes its program, and resumes the Stack.
async fn suspended(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket"]).await?;
    world.edit("stacks", "app", |stack| stack["spec"]["suspend"] = true.into());
    rest(world).await;
    set_resources(world, "app", &["bucket", "queue"]);
    rest(world).await;
    let resources = world.backend.resources("acme/app/app");
    if resources != ["bucket"] {
        return Err(format!("a suspended Stack has created {resources:?}"));
    }
    world.edit("stacks", "app", |stack| stack["spec"]["suspend"] = false.into());
    until_applied(world, "app", &["bucket", "queue"]).await
}

/// Creates a Stack that only previews.
async fn preview(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"preview": true})));
    until(world, "the Stack is Ready", |world| is_ready(world, "app")).await?;
    let operations = world.backend.operations();
    if operations.is_empty() { Ok(()) } else { Err(format!("a preview has changed {operations:?}")) }
}

/// Makes a Stack invalid, and corrects it.
async fn invalid_spec(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket"]).await?;
    world.edit("stacks", "app", |stack| stack["spec"]["programRef"]["name"] = "missing".into());
    until(world, "the Stack is not Ready", |world| !is_ready(world, "app")).await?;
    rest(world).await;
    world.edit("stacks", "app", |stack| stack["spec"]["programRef"]["name"] = "app".into());
    until_applied(world, "app", &["bucket"]).await
}

/// Creates a second Stack for a Pulumi stack, and deletes the first one.
async fn duplicate_stacks(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"stack": "acme/app/shared"})));
    until(world, "the Stack is Ready", |world| is_ready(world, "app")).await?;
    world.create(&stack("copy", &json!({"stack": "acme/app/shared", "programRef": {"name": "app"}})));
    until(world, "the second Stack is Stalled", |world| is_stalled(world, "copy")).await?;
    world.delete_stack("app");
    until(world, "the first Stack is deleted", |world| world.stack("app").is_none()).await?;
    until(world, "the second Stack is Ready", |world| is_ready(world, "copy")).await?;
    let resources = world.backend.resources("acme/app/shared");
    if resources == ["bucket"] { Ok(()) } else { Err(format!("the resources are {resources:?}")) }
}

/// Returns a Program with these resources.
pub fn program(name: &str, resources: &[&str]) -> Value {
    json!({
        "apiVersion": "pulumi.com/v1", "kind": "Program",
        "metadata": {"name": name, "namespace": NAMESPACE}, "program": {"resources": definitions(resources)},
    })
}

fn definitions(resources: &[&str]) -> Value {
    let definition =
        |name: &&str| ((*name).to_owned(), json!({"type": "test:Resource", "properties": {"value": name}}));
    Value::Object(resources.iter().map(definition).collect())
}

fn set_resources(world: &World, program: &str, resources: &[&str]) {
    world.edit("programs", program, |object| object["program"]["resources"] = definitions(resources));
}

/// Returns a Stack for the Program with the same name and the Pulumi stack `acme/app/NAME`, with additional fields.
pub fn stack(name: &str, spec: &Value) -> Value {
    let mut stack = json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"stack": format!("acme/app/{name}"), "programRef": {"name": name}, "backend": "s3://state"},
    });
    for (name, value) in spec.as_object().into_iter().flatten() {
        stack["spec"][name] = value.clone();
    }
    stack
}

async fn until(world: &World, what: &str, condition: impl Fn(&World) -> bool) -> End {
    if world.until(condition).await { Ok(()) } else { Err(format!("not true in time: {what}: {:#}", stacks(world))) }
}

/// Waits until the Stack has applied its program, which has these resources.
async fn until_applied(world: &World, name: &str, resources: &[&str]) -> End {
    let what = format!("Stack {name} is Ready with {resources:?}");
    let is_applied =
        |world: &World| is_ready(world, name) && world.backend.resources(&format!("acme/app/{name}")) == resources;
    until(world, &what, is_applied).await
}

/// Waits until the Stack and its resources are gone.
async fn until_destroyed(world: &World, name: &str) -> End {
    until(world, &format!("Stack {name} is deleted"), |world| world.stack(name).is_none()).await?;
    let left = world.backend.resources(&format!("acme/app/{name}"));
    if left.is_empty() { Ok(()) } else { Err(format!("Stack {name} is deleted, but its resources remain: {left:?}")) }
}

/// Lets some time pass in which nothing should happen.
async fn rest(_: &World) {
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
}

fn is_ready(world: &World, name: &str) -> bool {
    has_condition(world, name, "Ready")
}

fn is_stalled(world: &World, name: &str) -> bool {
    has_condition(world, name, "Stalled")
}

/// Returns whether a Stack has this condition for its current generation.
fn has_condition(world: &World, name: &str, kind: &str) -> bool {
    let Some(stack) = world.stack(name) else { return false };
    let conditions = stack["status"]["conditions"].as_array().cloned().unwrap_or_default();
    stack["status"]["observedGeneration"] == stack["metadata"]["generation"]
        && conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Returns the conditions of all Stacks.
fn stacks(world: &World) -> Value {
    let group = kube_sim::GroupResource::new("pulumi.com", "stacks");
    let stacks = world.server.list(&group, Some(NAMESPACE));
    stacks
        .iter()
        .map(|stack| json!({"name": stack["metadata"]["name"], "conditions": stack["status"]["conditions"]}))
        .collect()
}
