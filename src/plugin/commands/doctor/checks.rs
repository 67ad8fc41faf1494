//! The checks of `doctor`. Each check is a pure function that derives a result from API server responses.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::ResourceExt as _;
use pulumi_controller::api::conditions::workspace_reason;
use pulumi_controller::api::definitions;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::phase::{self, Phase};
use serde::Serialize;

use crate::plugin::controller::{Controller, VERSION};
use crate::plugin::error::PluginError;
use crate::plugin::select::full_name;

/// Maximum number of Stack names in a message.
const MAX_STACKS: usize = 10;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Failed,
}

/// A check and its result.
#[derive(Debug, Serialize)]
pub struct Check {
    level: Level,
    message: String,
    /// What the user can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
}

impl Check {
    fn ok(message: String) -> Self {
        Check { level: Level::Ok, message, action: None }
    }

    fn warning(message: String, action: &str) -> Self {
        Check { level: Level::Warning, message, action: Some(action.to_owned()) }
    }

    fn failed(message: String, action: &str) -> Self {
        Check { level: Level::Failed, message, action: Some(action.to_owned()) }
    }

    /// Returns whether the check has failed.
    pub fn is_failure(&self) -> bool {
        self.level == Level::Failed
    }

    /// Returns the result as text.
    pub fn text(&self) -> String {
        let symbol = match self.level {
            Level::Ok => "✔",
            Level::Warning => "!",
            Level::Failed => "✗",
        };
        let action = self.action.as_ref().map(|action| format!("  {action}\n")).unwrap_or_default();
        format!("{symbol} {}\n{action}", self.message)
    }
}

/// A permission that the plugin uses.
#[derive(Debug, PartialEq, Eq)]
pub struct Permission {
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: &'static str,
    pub subresource: &'static str,
    /// Commands that need the permission.
    pub commands: &'static str,
}

const fn permission(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    commands: &'static str,
) -> Permission {
    Permission { verb, group, resource, subresource, commands }
}

/// Permissions that the commands need.
pub static PERMISSIONS: [Permission; 11] = [
    permission("list", "pulumi.com", "stacks", "", "all commands"),
    permission("list", "auto.pulumi.com", "updates", "", "tree, events, history"),
    permission("get", "auto.pulumi.com", "workspaces", "", "tree, explain"),
    permission("list", "", "events", "", "events"),
    permission("get", "", "pods", "log", "logs"),
    permission("patch", "pulumi.com", "stacks", "", "reconcile, cancel, suspend, resume, resolve"),
    permission("create", "pulumi.com", "approvals", "", "approve, reject"),
    permission("approve", "pulumi.com", "stacks", "", "approve, reject"),
    permission("get", "", "pods", "exec", "diff, stack"),
    permission("create", "", "pods", "exec", "diff, stack"),
    permission("get", "", "secrets", "", "outputs --show-secrets"),
];

/// Checks that the API server responds to a request for its version.
pub fn api_server(version: Result<String, PluginError>) -> Check {
    match version {
        Ok(version) => Check::ok(format!("API server {version} responds")),
        Err(error) => Check::failed(error.to_string(), "Check the kubeconfig and the connection to the cluster."),
    }
}

/// Returns the API groups and versions that the API server serves.
pub fn served(groups: &APIGroupList) -> BTreeSet<(String, String)> {
    let versions = groups
        .groups
        .iter()
        .flat_map(|group| group.versions.iter().map(|version| (group.name.clone(), version.version.clone())));
    versions.collect()
}

/// Checks that the CustomResourceDefinitions are installed.
pub fn kinds(served: Result<BTreeSet<(String, String)>, PluginError>) -> Check {
    const ACTION: &str = "Install the CustomResourceDefinitions of this version: see docs/installation.md.";
    let served = match served {
        Ok(served) => served,
        Err(error) => return Check::failed(error.to_string(), "Check the connection to the cluster."),
    };
    let missing = definitions::api_versions().into_iter().filter(|version| !served.contains(version));
    let missing: Vec<String> = missing.map(|(group, version)| format!("{group}/{version}")).collect();
    match missing.as_slice() {
        [] => Check::ok("CustomResourceDefinitions are installed".to_owned()),
        _ => Check::failed(format!("the API server does not serve {}", missing.join(", ")), ACTION),
    }
}

/// Checks that the controller is running, and that the controller and the plugin have the same version.
pub fn controllers(found: Result<Vec<Controller>, PluginError>) -> Vec<Check> {
    let controllers = match found {
        Ok(controllers) => controllers,
        Err(error) => {
            let action = "Ask an administrator whether the controller is running.";
            return vec![Check::warning(error.to_string(), action)];
        }
    };
    if controllers.is_empty() {
        let action = "Install the controller: see docs/installation.md.";
        return vec![Check::failed("no Deployment of the controller was found".to_owned(), action)];
    }
    controllers.iter().map(controller).collect()
}

fn controller(found: &Controller) -> Check {
    let Controller { namespace, name, image, available, replicas } = found;
    if *available == 0 {
        let message = format!("controller {namespace}/{name} is not running: 0 of {replicas} replicas are available");
        let action = format!(
            "Check its pods: kubectl describe pods -n {namespace} -l app.kubernetes.io/component=pulumi-controller"
        );
        return Check::failed(message, &action);
    }
    match found.version() {
        Some(version) if version != VERSION => Check::warning(
            format!("controller {namespace}/{name} has version {version}, and this plugin has version {VERSION}"),
            "Install the version of the plugin that matches the controller. Other versions can have different fields.",
        ),
        _ => Check::ok(format!("controller {namespace}/{name} is running: {image}")),
    }
}

/// Checks the user's permissions in a namespace.
pub fn permissions(missing: Result<Vec<&Permission>, PluginError>, namespace: &str) -> Check {
    let missing = match missing {
        Ok(missing) => missing,
        Err(error) => return Check::warning(error.to_string(), "Retry the command."),
    };
    if missing.is_empty() {
        return Check::ok(format!("you have the permissions for all commands in namespace {namespace}"));
    }
    let describe = |permission: &&Permission| {
        let Permission { verb, resource, subresource, commands, .. } = permission;
        let slash = if subresource.is_empty() { "" } else { "/" };
        format!("{verb} {resource}{slash}{subresource} ({commands})")
    };
    let missing: Vec<String> = missing.iter().map(describe).collect();
    let message = format!("you lack permissions in namespace {namespace}: {}", missing.join("; "));
    Check::warning(message, "If you need these commands, ask an administrator for the permissions.")
}

/// Checks whether Stacks require an action. `namespace` is the namespace of the Stacks, or `None` for all namespaces.
pub fn stacks(found: Result<Vec<Stack>, PluginError>, namespace: Option<&str>) -> Vec<Check> {
    let stacks = match found {
        Ok(stacks) => stacks,
        Err(error) => return vec![Check::failed(error.to_string(), "Check your permissions and the installation.")],
    };
    if stacks.is_empty() {
        return vec![without_stacks(namespace)];
    }
    let of = |phase: Phase| stacks.iter().filter(move |stack| Phase::of(stack) == phase).collect::<Vec<_>>();
    let (stalled, retrying, pending) = (of(Phase::Stalled), of(Phase::Retrying), of(Phase::Pending));
    let unschedulable: Vec<&Stack> = stacks.iter().filter(|stack| has_unschedulable_pod(stack)).collect();
    let mut checks = Vec::new();
    if let Some(first) = stalled.first() {
        checks.push(Check::failed(format!("Stalled Stacks: {}", list(&stalled)), &explain(first)));
    }
    if let Some(first) = retrying.first() {
        checks.push(Check::warning(format!("Stacks whose last run has failed: {}", list(&retrying)), &explain(first)));
    }
    if let Some(first) = pending.first() {
        let message = format!("Stacks that no controller has reconciled: {}", list(&pending));
        checks.push(Check::warning(message, &explain(first)));
    }
    if let Some(first) = unschedulable.first() {
        let message = format!("Stacks whose workspace pod cannot be scheduled: {}", list(&unschedulable));
        checks.push(Check::warning(message, &explain(first)));
    }
    if checks.is_empty() {
        let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
        checks.push(Check::ok(format!("no Stack{place} requires an action")));
    }
    checks
}

/// Returns whether the Stack waits for an unschedulable pod. In this case, the condition message of the Stack contains
/// the condition reason of the Workspace.
fn has_unschedulable_pod(stack: &Stack) -> bool {
    Phase::of(stack) != Phase::Stalled
        && phase::cause(stack).is_some_and(|cause| cause.contains(workspace_reason::UNSCHEDULABLE))
}

fn without_stacks(namespace: Option<&str>) -> Check {
    match namespace {
        None => Check::ok("the cluster has no Stacks".to_owned()),
        Some(namespace) => Check {
            action: Some("For all namespaces: kubectl pulumi doctor --all-namespaces".to_owned()),
            ..Check::ok(format!("namespace {namespace} has no Stacks"))
        },
    }
}

fn explain(stack: &Stack) -> String {
    let namespace = stack.namespace().unwrap_or_default();
    format!("For the cause and the next step: kubectl pulumi explain -n {namespace} {}", stack.name_any())
}

/// Returns the names of the first Stacks, and the number of the remaining Stacks.
fn list(stacks: &[&Stack]) -> String {
    let names: Vec<String> = stacks.iter().take(MAX_STACKS).map(|stack| full_name(stack)).collect();
    match stacks.len().saturating_sub(MAX_STACKS) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::{condition, stack};

    fn running(image: &str, available: i32) -> Controller {
        let (namespace, name) = ("flux-system".to_owned(), "pulumi-controller".to_owned());
        Controller { namespace, name, image: image.to_owned(), available, replicas: 1 }
    }

    fn error() -> PluginError {
        PluginError::Failed("no connection".to_owned())
    }

    #[test]
    fn the_controller_must_run_and_should_have_the_version_of_the_plugin() {
        let level = |found| controllers(Ok(found)).first().map(|check| check.level);
        assert_eq!(level(Vec::new()), Some(Level::Failed));
        assert_eq!(level(vec![running("a:v0.0.1", 0)]), Some(Level::Failed));
        assert_eq!(level(vec![running("a:v0.0.1", 1)]), Some(Level::Warning));
        assert_eq!(level(vec![running(&format!("a:v{VERSION}"), 1)]), Some(Level::Ok));
        assert_eq!(level(vec![running("a:latest", 1)]), Some(Level::Ok), "the version is unknown");
        assert_eq!(controllers(Err(error()))[0].level, Level::Warning);
    }

    #[test]
    fn missing_kinds_are_a_failure_and_missing_permissions_a_warning() {
        assert_eq!(kinds(Ok(definitions::api_versions())).level, Level::Ok);
        let check = kinds(Ok(BTreeSet::new()));
        assert!(check.is_failure() && check.message.contains("pulumi.com/v1"), "{}", check.message);
        assert!(kinds(Err(error())).is_failure());
        assert_eq!(permissions(Ok(Vec::new()), "apps").level, Level::Ok);
        let missing = PERMISSIONS.iter().filter(|found| found.subresource == "log").collect();
        let missing = permissions(Ok(missing), "apps");
        assert_eq!(
            (missing.level, missing.message.as_str()),
            (Level::Warning, "you lack permissions in namespace apps: get pods/log (logs)")
        );
    }

    #[test]
    fn a_pod_that_cannot_be_scheduled_is_a_warning() {
        let cause = "cannot be scheduled; pod web-workspace-0 failed to start (Unschedulable)";
        let status = json!({ "conditions": [
            condition("Ready", "False", "WorkspaceNotReady", cause),
            condition("Reconciling", "True", "StackProcessing", cause),
        ] });
        let checks = super::stacks(Ok(vec![stack("web", &json!({}), &status)]), Some("apps"));
        let found: Vec<_> = checks.iter().map(|check| (check.level, check.message.as_str())).collect();
        assert_eq!(found, [(Level::Warning, "Stacks whose workspace pod cannot be scheduled: apps/web")]);
    }

    #[test]
    fn a_long_list_of_stacks_is_shortened() {
        let stacks: Vec<Stack> = (0..12).map(|n| stack(&format!("web-{n}"), &json!({}), &json!({}))).collect();
        let text = list(&stacks.iter().collect::<Vec<_>>());
        assert!(text.starts_with("apps/web-0, apps/web-1") && text.ends_with(" and 2 more"), "{text}");
        let none = |namespace| super::stacks(Ok(Vec::new()), namespace)[0].text();
        let expected = "✔ namespace apps has no Stacks\n  For all namespaces: kubectl pulumi doctor --all-namespaces\n";
        assert_eq!(none(Some("apps")), expected);
        assert_eq!(none(None), "✔ the cluster has no Stacks\n");
    }
}
