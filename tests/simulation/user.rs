//! A user who follows the instructions in the message of a Stalled Stack after a run was interrupted.

use std::time::Duration;

use kube_sim::{GroupResource, Key, Server};
use pulumi_controller::api::names::ANNOTATION_RESOLVE;
use serde_json::{Value, json};

use super::backend::Backend;
use super::faults::Faults;

/// Interval at which the user looks at the Stacks.
const INTERVAL: Duration = Duration::from_secs(20);

/// Decides about each interrupted run. Deletes the resources of pending creates if they exist, and then clears the pending
/// creates.
pub async fn resolve_interrupted_runs(server: Server, backend: Backend, faults: Faults) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        for stack in server.list(&GroupResource::new("pulumi.com", "stacks"), None) {
            let text = |path: &str| stack.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
            let Some(value) = instruction(&stack) else { continue };
            let handled = text("/status/handledResolve");
            let annotation = stack.pointer("/metadata/annotations").and_then(|all| all.get(ANNOTATION_RESOLVE));
            if handled == value || annotation.and_then(Value::as_str) == Some(value.as_str()) {
                continue;
            }
            let (namespace, name, pulumi_stack) =
                (text("/metadata/namespace"), text("/metadata/name"), text("/spec/stack"));
            for resource in backend.pending_creates(&pulumi_stack) {
                backend.drift(&pulumi_stack, &resource, None);
            }
            faults.trace(&format!("user resolves {value}"));
            let key = Key::new(GroupResource::new("pulumi.com", "stacks"), Some(&namespace), &name);
            // The Stack can be gone meanwhile.
            let _ = server.edit(&key, |stack| stack["metadata"]["annotations"][ANNOTATION_RESOLVE] = json!(value));
        }
    }
}

/// Returns the value of the annotation that decides about an interrupted run. The message contains the possible values.
fn instruction(stack: &Value) -> Option<String> {
    let conditions = stack.pointer("/status/conditions")?.as_array()?;
    let stalled =
        conditions.iter().find(|condition| condition["type"] == "Stalled" && condition["status"] == "True")?;
    let decision = match stalled["reason"].as_str()? {
        "PendingCreates" => "=clear",
        "RunOutcomeUnknown" => "=retry",
        _ => return None,
    };
    let mut words = stalled["message"].as_str()?.split_whitespace();
    words.find(|word| word.ends_with(decision)).map(str::to_owned)
}
