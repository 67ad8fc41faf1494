//! What users do in a world, and what must be true at the end.
//!
//! A scenario is a function that creates and changes objects as users do, and waits for results. It has no time limits of
//! its own and injects no faults. Each error names what should have been true.

use std::pin::Pin;
use std::time::Duration;

use pulumi_controller::pulumi::arguments::OperationKind;
use serde_json::{Value, json};

use super::backend::history::Started;
use super::world::{NAMESPACE, World};

type End = Result<(), String>;

/// Time after a change in which a run can start that the controller has permitted before.
const GRACE: Duration = Duration::from_secs(2);

/// What users do, in order. Returns what must be true and is not.
pub struct Scenario {
    pub name: &'static str,
    /// Whether each change of the controller runs this scenario with a fault at each of its steps.
    pub is_core: bool,
    pub run: for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = End> + 'a>>,
}

pub const SCENARIOS: [Scenario; 25] = [
    Scenario { name: "first run", is_core: false, run: |world| Box::pin(first_run(world)) },
    Scenario { name: "push", is_core: true, run: |world| Box::pin(push(world)) },
    Scenario { name: "destroy", is_core: true, run: |world| Box::pin(destroy(world)) },
    Scenario { name: "push during a run", is_core: false, run: |world| Box::pin(push_during_a_run(world)) },
    Scenario { name: "deletion during a run", is_core: false, run: |world| Box::pin(deletion_during_a_run(world)) },
    Scenario { name: "dependency chain", is_core: false, run: |world| Box::pin(dependency_chain(world)) },
    Scenario { name: "suspended", is_core: false, run: |world| Box::pin(suspended(world)) },
    Scenario { name: "preview", is_core: false, run: |world| Box::pin(preview(world)) },
    Scenario { name: "invalid spec", is_core: false, run: |world| Box::pin(invalid_spec(world)) },
    Scenario { name: "duplicate Stacks", is_core: false, run: |world| Box::pin(duplicate_stacks(world)) },
    Scenario { name: "failing run", is_core: false, run: |world| Box::pin(failing_run(world)) },
    Scenario { name: "backend outage", is_core: false, run: |world| Box::pin(backend_outage(world)) },
    Scenario { name: "lost state", is_core: false, run: |world| Box::pin(lost_state(world)) },
    Scenario { name: "approval", is_core: true, run: |world| Box::pin(approval(world)) },
    Scenario { name: "two approvers", is_core: false, run: |world| Box::pin(two_approvers(world)) },
    Scenario { name: "approval and push", is_core: false, run: |world| Box::pin(approval_and_push(world)) },
    Scenario { name: "approved destroy", is_core: false, run: |world| Box::pin(approved_destroy(world)) },
    Scenario { name: "correction of drift", is_core: false, run: |world| Box::pin(correction_of_drift(world)) },
    Scenario { name: "risky change", is_core: false, run: |world| Box::pin(risky_change(world)) },
    Scenario { name: "Updates by hand", is_core: false, run: |world| Box::pin(updates_by_hand(world)) },
    Scenario { name: "freeze", is_core: false, run: |world| Box::pin(freeze(world)) },
    Scenario { name: "sleep and wake-up", is_core: false, run: |world| Box::pin(sleep_and_wake_up(world)) },
    Scenario { name: "expiry", is_core: false, run: |world| Box::pin(expiry(world)) },
    Scenario { name: "many Stacks", is_core: false, run: |world| Box::pin(many_stacks(world)) },
    Scenario { name: "configuration", is_core: false, run: |world| Box::pin(configuration(world)) },
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
    let mut created: Vec<String> = world.backend.operations().into_iter().map(|operation| operation.resource).collect();
    // A resource whose creation was interrupted is created again.
    created.dedup();
    if created == ["a", "b", "c"] { Ok(()) } else { Err(format!("the Stacks run in the order {created:?}")) }
}

/// Suspends a Stack, changes its program, and resumes the Stack.
async fn suspended(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket"]).await?;
    world.edit("stacks", "app", |stack| stack["spec"]["suspend"] = true.into());
    let from = world.server.now();
    rest(world).await;
    set_resources(world, "app", &["bucket", "queue"]);
    rest(world).await;
    if let Some(run) = world.backend.started().iter().find(|run| run.time > from + GRACE) {
        return Err(format!("a run starts during the suspension: {run:?}"));
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

/// Applies a program whose first operation fails.
async fn failing_run(world: &World) -> End {
    world.backend.fail_next_operation();
    world.create(&program("app", &["bucket", "queue"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket", "queue"]).await
}

/// Pushes while the state backend is unavailable.
async fn backend_outage(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket"]).await?;
    world.backend.set_down(true);
    set_resources(world, "app", &["bucket", "queue"]);
    until(world, "the outage is reported", |world| !is_ready(world, "app")).await?;
    rest(world).await;
    world.backend.set_down(false);
    until_applied(world, "app", &["bucket", "queue"]).await
}

/// Pushes after the backend has lost the state, and decides to create all resources again.
async fn lost_state(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket"]).await?;
    world.backend.lose_stack("acme/app/app");
    set_resources(world, "app", &["bucket", "queue"]);
    until(world, "the Stack asks for a decision", |world| stalled_reason(world, "app") == "StackNotFound").await?;
    // The user deletes what the lost state contained.
    world.backend.drift("acme/app/app", "bucket", None);
    world.resolve("app", "create");
    until_applied(world, "app", &["bucket", "queue"]).await
}

/// Approves each plan of a Stack.
async fn approval(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"approval": {"mode": "Always"}})));
    approving(world, "app", &["alice"], "created", |world| is_applied(world, "app", &["bucket"])).await?;
    set_resources(world, "app", &["queue"]);
    approving(world, "app", &["alice"], "changed", |world| is_applied(world, "app", &["queue"])).await?;
    only_plans(world)
}

/// Approves a plan that needs the approvals of two users.
async fn two_approvers(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"approval": {"mode": "Always", "approvers": 2}})));
    until(world, "a plan waits", |world| plan(world, "app").is_some()).await?;
    world.approve("app", &plan(world, "app").unwrap_or_default(), "alice");
    rest(world).await;
    let resources = world.backend.resources("acme/app/app");
    if !resources.is_empty() {
        return Err(format!("the first of two approvals has created {resources:?}"));
    }
    approving(world, "app", &["alice", "bob"], "created", |world| is_applied(world, "app", &["bucket"])).await
}

/// Pushes while a plan waits for its approval, and approves the outdated plan.
async fn approval_and_push(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"approval": {"mode": "Always"}})));
    until(world, "a plan waits", |world| plan(world, "app").is_some()).await?;
    let outdated = plan(world, "app").unwrap_or_default();
    set_resources(world, "app", &["queue"]);
    world.approve("app", &outdated, "alice");
    until(world, "another plan waits", |world| plan(world, "app").is_some_and(|plan| plan != outdated)).await?;
    approving(world, "app", &["alice"], "created", |world| is_applied(world, "app", &["queue"])).await
}

/// Deletes a Stack whose destroy needs an approval.
async fn approved_destroy(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"destroyOnFinalize": true, "approval": {"mode": "OnRisk", "destroy": true}})));
    until_applied(world, "app", &["bucket"]).await?;
    world.delete_stack("app");
    rest(world).await;
    let resources = world.backend.resources("acme/app/app");
    if resources != ["bucket"] {
        return Err(format!("a destroy without an approval has left {resources:?}"));
    }
    approving(world, "app", &["alice"], "destroyed", |world| world.stack("app").is_none()).await?;
    until_destroyed(world, "app").await
}

/// Removes a resource outside Pulumi, which a drift check detects and corrects.
async fn correction_of_drift(world: &World) -> End {
    world.create(&program("app", &["bucket", "queue"]));
    world.create(&stack("app", &json!({"drift": {"interval": "5m", "mode": "Correct"}})));
    until_applied(world, "app", &["bucket", "queue"]).await?;
    world.backend.drift("acme/app/app", "queue", None);
    let is_corrected = |world: &World| world.backend.actual_resources("acme/app/app") == ["bucket", "queue"];
    until(world, "the resource exists again", is_corrected).await?;
    world.edit("stacks", "app", |stack| drop(stack["spec"].as_object_mut().and_then(|spec| spec.remove("drift"))));
    until_applied(world, "app", &["bucket", "queue"]).await
}

/// Adds a resource, which needs no approval, and deletes it, which needs one.
async fn risky_change(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"approval": {"mode": "OnRisk"}})));
    until_applied(world, "app", &["bucket"]).await?;
    set_resources(world, "app", &["bucket", "queue"]);
    until_applied(world, "app", &["bucket", "queue"]).await?;
    set_resources(world, "app", &["bucket"]);
    rest(world).await;
    let resources = world.backend.resources("acme/app/app");
    if resources != ["bucket", "queue"] {
        return Err(format!("a deletion without an approval has left {resources:?}"));
    }
    approving(world, "app", &["alice"], "deleted", |world| is_applied(world, "app", &["bucket"])).await
}

/// Creates Updates by hand in the Workspace of a Stack that requires approvals.
async fn updates_by_hand(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"approval": {"mode": "Always"}})));
    approving(world, "app", &["alice"], "created", |world| is_applied(world, "app", &["bucket"])).await?;
    for kind in ["up", "destroy", "refresh"] {
        world.create(&json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "metadata": {"name": kind, "namespace": NAMESPACE},
            "spec": {"workspaceName": "app", "stackName": "acme/app/app", "type": kind},
        }));
        until(world, "the Update is refused", |world| world.is_complete(kind)).await?;
    }
    let by_hand =
        world.backend.started().into_iter().find(|run| ["up", "destroy", "refresh"].contains(&run.name.as_str()));
    by_hand.map_or(Ok(()), |run| Err(format!("an Update by hand runs without an approval: {run:?}")))
}

/// Pushes during a freeze of two minutes.
async fn freeze(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({})));
    until_applied(world, "app", &["bucket"]).await?;
    let (from, to) = (world.server.now(), world.server.now() + Duration::from_secs(120));
    world.edit("stacks", "app", |stack| {
        let freeze = json!({"from": from.to_string(), "to": to.to_string(), "reason": "release"});
        stack["spec"]["schedule"] = json!({"freezes": [freeze]});
    });
    rest(world).await;
    set_resources(world, "app", &["queue"]);
    until_applied(world, "app", &["queue"]).await?;
    let early = world.backend.started().into_iter().find(|run| from + GRACE < run.time && run.time < to);
    early.map_or(Ok(()), |run| Err(format!("a run starts during the freeze: {run:?}")))
}

/// Lets the pod of a Workspace sleep, and pushes.
async fn sleep_and_wake_up(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"workspaceTemplate": {"spec": {"idle": {"after": "5m"}}}})));
    until_applied(world, "app", &["bucket"]).await?;
    until(world, "the pod is removed", |world| world.pods().is_empty()).await?;
    set_resources(world, "app", &["queue"]);
    until_applied(world, "app", &["queue"]).await?;
    until(world, "the pod is removed again", |world| world.pods().is_empty()).await
}

/// Lets a Stack expire, which destroys its resources.
async fn expiry(world: &World) -> End {
    world.create(&program("app", &["bucket"]));
    world.create(&stack("app", &json!({"destroyOnFinalize": true, "ttl": "5m"})));
    until_applied(world, "app", &["bucket"]).await?;
    until_destroyed(world, "app").await
}

/// Creates more Stacks than can run at the same time.
async fn many_stacks(world: &World) -> End {
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        world.create(&program(name, &[name]));
        world.create(&stack(name, &json!({})));
    }
    for name in names {
        until_applied(world, name, &[name]).await?;
    }
    for name in names {
        set_resources(world, name, &["changed"]);
    }
    for name in names {
        until_applied(world, name, &["changed"]).await?;
    }
    Ok(())
}

/// Changes a Secret from which a run reads its environment.
async fn configuration(world: &World) -> End {
    let secret = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "settings", "namespace": NAMESPACE, "labels": {"reconcile.fluxcd.io/watch": "Enabled"}},
            "stringData": {"REGION": value},
        })
    };
    world.create(&secret("west"));
    world.create(&program("app", &["bucket"]));
    let reference = json!({"REGION": {"type": "Secret", "secret": {"name": "settings", "key": "REGION"}}});
    world.create(&stack("app", &json!({"envRefs": reference})));
    until_applied(world, "app", &["bucket"]).await?;
    world.edit_secret("settings", "REGION", "east");
    let runs = world.backend.started().len();
    until(world, "the changed value starts a run", |world| world.backend.started().len() > runs).await?;
    until_applied(world, "app", &["bucket"]).await
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

/// Approves each plan that waits until the condition is met. A failed run of an approved plan needs another approval.
async fn approving(world: &World, name: &str, users: &[&str], what: &str, is_met: impl Fn(&World) -> bool) -> End {
    let approve = |world: &World| {
        plan(world, name).iter().for_each(|plan| users.iter().for_each(|user| world.approve(name, plan, user)));
        is_met(world)
    };
    until(world, what, approve).await
}

/// Checks that each run that has changed anything has executed a plan.
fn only_plans(world: &World) -> End {
    let is_change = |run: &&Started| matches!(run.kind, OperationKind::Up | OperationKind::Destroy);
    let started = world.backend.started();
    let without = started.iter().filter(is_change).find(|run| !run.has_plan);
    without.map_or(Ok(()), |run| Err(format!("a run without an approved plan: {run:?}")))
}

/// Returns whether the Stack has applied its program, which has these resources.
fn is_applied(world: &World, name: &str, resources: &[&str]) -> bool {
    is_ready(world, name) && world.backend.resources(&format!("acme/app/{name}")) == resources
}

/// Returns the Update and the digest of the plan that waits for an approval.
fn plan(world: &World, name: &str) -> Option<(String, String)> {
    let stack = world.stack(name)?;
    let is_waiting = condition(&stack, "Ready").is_some_and(|ready| ready["reason"] == "AwaitingApproval");
    let text = |path: &str| stack.pointer(path)?.as_str().map(str::to_owned);
    is_waiting.then(|| Some((text("/status/plan/updateName")?, text("/status/plan/digest")?))).flatten()
}

fn stalled_reason(world: &World, name: &str) -> String {
    let stack = world.stack(name);
    let reason = stack.as_ref().and_then(|stack| condition(stack, "Stalled")?["reason"].as_str().map(str::to_owned));
    reason.unwrap_or_default()
}

pub fn condition<'a>(stack: &'a Value, kind: &str) -> Option<&'a Value> {
    stack.pointer("/status/conditions")?.as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Lets some time pass in which nothing should happen.
async fn rest(_: &World) {
    tokio::time::sleep(Duration::from_secs(20)).await;
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
    stack["status"]["observedGeneration"] == stack["metadata"]["generation"]
        && condition(&stack, kind).is_some_and(|condition| condition["status"] == "True")
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
