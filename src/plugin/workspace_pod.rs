//! Decides whether the plugin may run the Pulumi CLI in the workspace pod of a Stack.
//!
//! While a user's CLI runs in the pod, the agent detects an interactive session, and neither starts a run nor replaces
//! the source. The plugin therefore needs to prevent only the opposite case: a user's command during a run. Before a
//! command that changes the state, the user must also suspend the Stack. Otherwise, a run could apply the source to the
//! changed state before the user has checked the state.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::phase;

use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::select::full_name;

/// Effect of a command on the state of the Pulumi stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The command reads the state, and needs the configuration that a run writes to the pod.
    Preview,
    Read,
    Change,
}

/// Returns a Stack and the name of its workspace pod if the command can run in the pod now.
///
/// # Errors
///
/// Returns an error if the Stack does not exist, if its state does not permit the command, or if a request fails.
/// `what` describes the command in the error message.
pub async fn find(cluster: &Cluster, name: &str, what: &str, effect: Effect) -> Result<(Stack, String), PluginError> {
    let namespace = cluster.namespace();
    let stack: Stack = cluster.get(namespace, name).await?;
    let workspace: Option<Workspace> = cluster.get_opt(namespace, name).await?;
    let pod_name = workspace.as_ref().map_or_else(|| names::workspace_pod(name), Workspace::pod_name);
    let pod: Option<Pod> = cluster.get_opt(namespace, &pod_name).await?;
    match refusal(&stack, workspace.as_ref(), pod.as_ref(), effect) {
        None => Ok((stack, pod_name)),
        Some(cause) => Err(PluginError::NotReady(format!("failed to {what} of Stack {}: {cause}", full_name(&stack)))),
    }
}

/// Returns a message with the cause and the next step if a command must not run now.
fn refusal(stack: &Stack, workspace: Option<&Workspace>, pod: Option<&Pod>, effect: Effect) -> Option<String> {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    let command = |verb: &str| format!("kubectl pulumi {verb} -n {namespace} {name}");
    if effect == Effect::Change && stack.metadata.deletion_timestamp.is_some() {
        return Some("the Stack is being deleted".to_owned());
    }
    if effect == Effect::Change && !phase::is_suspended(stack) {
        return Some(format!("the Stack is not suspended, so a run could start; first run: {}", command("suspend")));
    }
    if let Some(open) = stack.status.as_ref().and_then(|status| status.current_update.as_ref()) {
        return Some(format!(
            "run {} is open or queued; wait for its end, or cancel it: {}",
            open.name,
            command("cancel")
        ));
    }
    let Some(pod) = pod.filter(|pod| is_running(pod)) else {
        return Some(without_pod(stack, workspace, effect));
    };
    if pod.labels().get(names::LABEL_RUN).map(String::as_str) == Some(names::RUN_OPEN) {
        return Some("a run of another Update is open in the workspace pod; wait for its end".to_owned());
    }
    None
}

/// Returns a message that explains why the pod is not running, and shows the next step.
fn without_pod(stack: &Stack, workspace: Option<&Workspace>, effect: Effect) -> String {
    let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
    let Some(workspace) = workspace else {
        return format!("the Stack has no Workspace yet; run: kubectl pulumi explain -n {namespace} {name}");
    };
    let pod = workspace.pod_name();
    if !workspace.is_asleep() {
        return format!(
            "the workspace pod {pod} is not running; for the cause, run: kubectl pulumi explain -n {namespace} {name}"
        );
    }
    // A preview needs a previous run in the pod. `kubectl pulumi reconcile` creates the pod and starts this run.
    if effect == Effect::Preview && !phase::is_suspended(stack) {
        return format!(
            "the Workspace is sleeping, so it has no pod; first run: kubectl pulumi reconcile -n {namespace} {name}"
        );
    }
    let annotation = names::ANNOTATION_REQUESTED_AT;
    // The pod can come from a pool, so its name is not known yet.
    let ready = r#"{.status.conditions[?(@.type=="Ready")].reason}"#;
    format!(
        "the Workspace is sleeping, so it has no pod; wake it, and retry the command:\n    kubectl annotate --overwrite \
         -n {namespace} workspace {name} {annotation}=\"$(date +%s)\"\n    kubectl wait -n {namespace} \
         --for=jsonpath='{ready}'=Succeeded --timeout=5m workspace/{name}"
    )
}

/// Returns whether the container with the CLI is running.
fn is_running(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut containers = statuses.filter(|container| container.name == names::PULUMI_CONTAINER);
    pod.metadata.deletion_timestamp.is_none()
        && containers.any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::fixtures::{stack, workspace};

    fn pod(labels: &Value, state: &Value) -> Pod {
        let object = json!({ "metadata": { "name": "web-workspace-0", "labels": labels },
            "status": { "containerStatuses": [{ "name": "pulumi", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "state": state }] } });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_command_runs_only_without_a_run_and_a_change_only_while_the_stack_is_suspended() {
        let running = pod(&json!({}), &json!({ "running": {} }));
        let busy = pod(&json!({ "auto.pulumi.com/run": "open" }), &json!({ "running": {} }));
        let waiting = pod(&json!({}), &json!({ "waiting": {} }));
        let active = stack("web", &json!({}), &json!({}));
        let suspended = stack("web", &json!({ "suspend": true }), &json!({}));
        let open = stack("web", &json!({ "suspend": true }), &json!({ "currentUpdate": { "name": "web-1" } }));
        let rows = [
            (&active, Some(&running), Effect::Read, None),
            (&suspended, Some(&running), Effect::Read, None),
            (&suspended, Some(&running), Effect::Change, None),
            (&active, Some(&running), Effect::Change, Some("first run: kubectl pulumi suspend -n apps web")),
            (&open, Some(&running), Effect::Read, Some("run web-1 is open or queued")),
            (&open, Some(&running), Effect::Change, Some("kubectl pulumi cancel -n apps web")),
            (&active, Some(&busy), Effect::Read, Some("a run of another Update is open")),
            (&active, Some(&waiting), Effect::Read, Some("web-workspace-0 is not running")),
        ];
        let awake = workspace(&json!({}));
        for (stack, pod, effect, expected) in rows {
            let found = refusal(stack, Some(&awake), pod, effect);
            match expected {
                None => assert_eq!(found, None),
                Some(words) => assert!(found.as_deref().is_some_and(|cause| cause.contains(words)), "{found:?}"),
            }
        }
        let mut deleted = suspended.clone();
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-02T11:00:00Z")).unwrap();
        let found = refusal(&deleted, Some(&awake), Some(&running), Effect::Change);
        assert!(found.is_some_and(|cause| cause.contains("deleted")));
    }

    #[test]
    fn the_message_about_a_missing_pod_contains_the_commands_that_create_it() {
        let active = stack("web", &json!({}), &json!({}));
        let suspended = stack("web", &json!({ "suspend": true }), &json!({}));
        let (awake, asleep) = (workspace(&json!({})), workspace(&json!({ "sleep": {} })));
        let wake = r#"{.status.conditions[?(@.type=="Ready")].reason}'=Succeeded --timeout=5m workspace/web"#;
        let rows = [
            (&active, None, Effect::Preview, "no Workspace yet; run: kubectl pulumi explain -n apps web"),
            (
                &active,
                Some(&awake),
                Effect::Preview,
                "not running; for the cause, run: kubectl pulumi explain -n apps web",
            ),
            (&active, Some(&asleep), Effect::Preview, "first run: kubectl pulumi reconcile -n apps web"),
            (&suspended, Some(&asleep), Effect::Preview, wake),
            (&active, Some(&asleep), Effect::Read, wake),
            (&suspended, Some(&asleep), Effect::Change, "kubectl annotate --overwrite -n apps workspace web"),
        ];
        for (stack, workspace, effect, expected) in rows {
            let found = refusal(stack, workspace, None, effect).unwrap_or_default();
            assert!(found.contains(expected), "{effect:?} {workspace:?}: {found}");
        }
    }
}
