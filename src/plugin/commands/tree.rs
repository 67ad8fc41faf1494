//! `tree`: shows the objects of a Stack.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{self, READY};
use pulumi_controller::api::pulumi::{OutputObjectKind, PolicyViolations, Stack};
use pulumi_controller::api::{columns, names};
use pulumi_controller::view::dependencies::dependencies_of;
use pulumi_controller::view::phase::{self, Phase};
use pulumi_controller::view::runs;
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::screen::{self, Screen};
use crate::plugin::sources::Source;
use crate::plugin::updates;

/// Maximum length of an object's state in the tree, in characters.
const MAX_STATE: usize = 80;

/// Shows the objects of a Stack.
///
/// # Errors
///
/// Returns an error if the Stack does not exist, or if a request fails.
pub async fn run(cluster: &Cluster, name: &str, format: Format) -> Result<(), PluginError> {
    let namespace = cluster.namespace();
    let stack: Stack = cluster.get(namespace, name).await?;
    let mut dependencies = Vec::new();
    for (namespace, name) in dependencies_of(&stack) {
        let state = dependency_state(cluster.get_opt(&namespace, &name).await)?;
        dependencies.push(Dependency { namespace, name, state });
    }
    let workspace: Option<Workspace> = cluster.get_opt(namespace, name).await?;
    let pod = workspace.as_ref().map_or_else(|| names::workspace_pod(name), Workspace::pod_name);
    let objects = Objects {
        dependencies,
        workspace,
        pod: cluster.get_opt(namespace, &pod).await?,
        updates: updates::list(cluster, namespace, name).await?,
        stack,
    };
    screen::print(&tree(&objects), format)
}

/// The objects of a Stack.
struct Objects {
    stack: Stack,
    dependencies: Vec<Dependency>,
    workspace: Option<Workspace>,
    pod: Option<Pod>,
    updates: Vec<Update>,
}

/// Stack to which a Stack refers.
struct Dependency {
    namespace: String,
    name: String,
    state: String,
}

/// Object in a tree.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    /// Relation of the parent to the object, such as `depends on`.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    kind: String,
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Node>,
}

fn tree(objects: &Objects) -> Node {
    let stack = &objects.stack;
    let namespace = stack.namespace().unwrap_or_default();
    let node = |kind: &str, name: String, state: String| Node {
        role: None,
        kind: kind.to_owned(),
        namespace: namespace.clone(),
        name,
        state,
        children: Vec::new(),
    };
    let mut children = vec![source(stack, &namespace)];
    for pack in &stack.spec.policy_packs {
        let Source { kind, namespace, name, .. } = Source::of_reference(&pack.source_ref, &namespace);
        children.push(Node { role: Some("policy pack in"), namespace, ..node(&kind, name, String::new()) });
    }
    for Dependency { namespace, name, state } in &objects.dependencies {
        let dependency = node("Stack", name.clone(), state.clone());
        children.push(Node { role: Some("depends on"), namespace: namespace.clone(), ..dependency });
    }
    if let Some(workspace) = &objects.workspace {
        let pods = objects.pod.iter().map(|pod| node("Pod", pod.name_any(), pod_state(pod)));
        let pods = pods.collect();
        let workspace = node("Workspace", workspace.name_any(), workspace_state(workspace));
        children.push(Node { children: pods, ..workspace });
    }
    children.extend(objects.updates.iter().map(|update| node("Update", update.name_any(), update_state(update))));
    for ((kind, name), is_written) in output_objects(stack) {
        let state = if is_written { "" } else { "not written" };
        children.push(Node { role: Some("outputs in"), ..node(kind.as_str(), name, state.to_owned()) });
    }
    Node { children, ..node("Stack", stack.name_any(), stack_state(stack)) }
}

/// Returns the kinds and names of the objects that contain the Stack's outputs. The value of a map entry is true if the
/// controller has written the object.
fn output_objects(stack: &Stack) -> BTreeMap<(OutputObjectKind, String), bool> {
    let wanted = stack.spec.write_outputs_to.iter().map(|object| ((object.kind, object.name.clone()), false));
    let mut objects: BTreeMap<_, _> = wanted.collect();
    let written = stack.status.iter().flat_map(|status| &status.written_outputs);
    objects.extend(written.map(|object| ((object.kind, object.name.clone()), true)));
    objects
}

/// Returns the source of a Stack.
fn source(stack: &Stack, own: &str) -> Node {
    let spec = &stack.spec;
    let revision = stack.status.as_ref().and_then(|status| status.last_attempted_revision.as_deref());
    let state = revision.and_then(columns::revision).unwrap_or_default();
    let node = |kind: &str, namespace: &str, name: String| Node {
        role: Some("source"),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name,
        state: state.clone(),
        children: Vec::new(),
    };
    match (Source::of(stack), &spec.program_ref, &spec.project_repo) {
        (Some(source), ..) => node(&source.kind, &source.namespace, source.name.clone()),
        (None, Some(program), _) => node("Program", own, program.name.clone()),
        (None, None, Some(url)) => node("Repository", own, url.clone()),
        (None, None, None) => node("Source", own, "none".to_owned()),
    }
}

/// Returns the state of a dependency. The dependency can be missing, and the user can lack permission to read it.
fn dependency_state(found: Result<Option<Stack>, PluginError>) -> Result<String, PluginError> {
    match found {
        Ok(Some(stack)) => Ok(stack_state(&stack)),
        Ok(None) => Ok("not found".to_owned()),
        Err(PluginError::Refused { code: 403, .. }) => Ok("no permission to read it".to_owned()),
        Err(error) => Err(error),
    }
}

fn stack_state(stack: &Stack) -> String {
    let phase = Phase::of(stack);
    let status = stack.status.as_ref();
    let revision = status.and_then(|status| status.last_applied_revision.as_deref()).and_then(columns::revision);
    let revision = revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
    format!("{phase}{revision}{}", violations(status.and_then(|status| status.policy_violations.as_ref())))
}

/// Returns the policy violation counts as a suffix for a state.
fn violations(found: Option<&PolicyViolations>) -> String {
    phase::violations(found).map(|numbers| format!(", policy violations: {numbers}")).unwrap_or_default()
}

fn workspace_state(workspace: &Workspace) -> String {
    let status = workspace.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    let version = status.and_then(|status| status.pulumi_version.as_deref());
    let version = version.map(|version| format!(", Pulumi {version}")).unwrap_or_default();
    match ready {
        Some(ready) if ready.status == "True" && workspace.is_asleep() => format!("Sleeping{version}"),
        Some(ready) if ready.status == "True" => format!("Ready{version}"),
        Some(ready) => format!("{}: {}", ready.reason, columns::text(&ready.message, MAX_STATE)),
        None => "Pending".to_owned(),
    }
}

fn pod_state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.clone()).unwrap_or_else(|| "Unknown".to_owned());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let restarts: i32 = containers.into_iter().flatten().map(|container| container.restart_count).sum();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = node.map(|node| format!(" on node {node}")).unwrap_or_default();
    let restarts = if restarts > 0 { format!(", {restarts} restarts") } else { String::new() };
    format!("{phase}{node}{restarts}")
}

fn update_state(update: &Update) -> String {
    let status = update.status.as_ref();
    let phase = runs::phase(update);
    let summary = status.and_then(|status| status.progress.as_ref()).map(|progress| progress.summary.as_str());
    let summary = summary.filter(|summary| !summary.is_empty());
    let summary = summary.map(|summary| format!(": {}", columns::text(summary, MAX_STATE))).unwrap_or_default();
    let violations = violations(status.and_then(|status| status.policy_violations.as_ref()));
    format!("{} {phase}{summary}{violations}", update.spec.kind.as_str())
}

impl Node {
    fn write(&self, parent: &str, first: &str, next: &str, out: &mut String) {
        let role = self.role.map(|role| format!("{role} ")).unwrap_or_default();
        // The tree shows an object's namespace only if it differs from the parent's namespace.
        let name = match self.namespace == parent {
            true => format!("{}/{}", self.kind, self.name),
            false => format!("{}/{}/{}", self.kind, self.namespace, self.name),
        };
        let state = if self.state.is_empty() { String::new() } else { format!(" ({})", self.state) };
        out.push_str(&format!("{first}{role}{name}{state}\n"));
        for (index, child) in self.children.iter().enumerate() {
            let is_last = index + 1 == self.children.len();
            let (branch, below) = if is_last { ("└── ", "    ") } else { ("├── ", "│   ") };
            child.write(&self.namespace, &format!("{next}{branch}"), &format!("{next}{below}"), out);
        }
    }
}

impl Screen for Node {
    fn text(&self) -> String {
        let mut out = String::new();
        self.write("", "", "", &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::{REVISION, condition, stack, update, workspace};
    use crate::plugin::reference_tests::assert_example;

    fn objects() -> Objects {
        let ready = || json!([condition("Ready", "True", "ProcessingCompleted", "up to date")]);
        let spec = json!({
            "fluxSource": { "sourceRef": { "kind": "GitRepository", "name": "web" } },
            "dependsOn": [{ "name": "network" }, { "name": "dns", "namespace": "shared" }],
            "prerequisites": [{ "name": "network" }],
            "policyPacks": [{ "name": "house", "sourceRef": { "kind": "OCIRepository", "name": "policies" } }],
            "writeOutputsTo": [{ "kind": "Secret", "name": "web-outputs" }, { "kind": "ConfigMap", "name": "web" }],
        });
        let status = json!({
            "conditions": ready(),
            "lastAttemptedRevision": REVISION,
            "lastAppliedRevision": REVISION,
            "writtenOutputs": [{ "kind": "Secret", "name": "web-outputs" }],
            "policyViolations": { "advisory": 2 },
        });
        let network = stack("network", &json!({}), &json!({ "conditions": ready() }));
        let dependency = |namespace: &str, name: &str, found| {
            let state = dependency_state(found).unwrap();
            Dependency { namespace: namespace.to_owned(), name: name.to_owned(), state }
        };
        let pod = json!({
            "metadata": { "name": "web-workspace-0", "namespace": "apps" },
            "spec": { "nodeName": "node-1", "containers": [] },
            "status": { "phase": "Running" },
        });
        Objects {
            stack: stack("web", &spec, &status),
            dependencies: vec![dependency("apps", "network", Ok(Some(network))), dependency("shared", "dns", Ok(None))],
            workspace: Some(workspace(&json!({ "pulumiVersion": "3.259.0",
                "conditions": [condition("Ready", "True", "Succeeded", "ready")] }))),
            pod: Some(serde_json::from_value(pod).unwrap()),
            updates: vec![
                update(
                    "web-000023c4d5e",
                    "up",
                    &json!({ "phase": "Succeeded", "progress": { "summary": "4 create, 12 same" },
                        "policyViolations": { "advisory": 2 } }),
                ),
                update(
                    "web-000012b1a9f",
                    "up",
                    &json!({ "phase": "Failed", "policyViolations": { "mandatory": 1, "advisory": 2 } }),
                ),
            ],
        }
    }

    #[test]
    fn the_tree_shows_source_policies_dependencies_workspace_updates_and_outputs() {
        assert_example("kubectl pulumi tree web", &tree(&objects()).text());
    }

    #[test]
    fn a_workspace_that_is_asleep_has_its_own_state() {
        let conditions = json!([condition("Ready", "True", "Sleeping", "idle")]);
        let asleep = json!({ "sleep": {}, "pulumiVersion": "3.259.0", "conditions": conditions });
        assert_eq!(workspace_state(&workspace(&asleep)), "Sleeping, Pulumi 3.259.0");
        let waking = json!({ "conditions": [condition("Ready", "False", "Waking", "a run is due")] });
        assert_eq!(workspace_state(&workspace(&waking)), "Waking: a run is due");
    }

    #[test]
    fn a_dependency_that_the_user_may_not_read_does_not_fail_the_command() {
        let refused =
            |code| PluginError::Refused { request: String::new(), code, reason: String::new(), message: String::new() };
        assert_eq!(dependency_state(Err(refused(403))).unwrap(), "no permission to read it");
        assert!(dependency_state(Err(refused(500))).is_err());
    }
}
