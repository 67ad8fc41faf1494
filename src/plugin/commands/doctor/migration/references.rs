//! Findings about references to values, and about environment variables.

use kube::ResourceExt as _;
use pulumi_controller::api::cli_options;
use pulumi_controller::api::pulumi::{ResourceRef, Stack, StackSpec};
use serde_json::Value;

use super::finding::{Finding, in_template};

/// Variables with which an older Pulumi CLI accepts a backend whose layout has no projects.
const LEGACY_LAYOUT: [&str; 3] = [
    "PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR",
    "PULUMI_DIY_BACKEND_LEGACY_LAYOUT",
    "PULUMI_SELF_MANAGED_STATE_LEGACY_LAYOUT",
];

pub fn findings(stack: &Stack) -> Vec<Finding> {
    let spec = &stack.spec;
    let namespace = stack.namespace().unwrap_or_default();
    let variables = spec.env_refs.iter().map(|(name, reference)| (format!("spec.envRefs[{name}]"), reference, true));
    let secrets = spec.secrets_ref.iter().map(|(key, reference)| (format!("spec.secretsRef[{key}]"), reference, true));
    let git = spec.git_auth.iter().flat_map(|auth| auth.references());
    let git = git.map(|(field, reference)| (format!("spec.gitAuth.{field}"), reference, false));
    let of_reference = |(field, reference, supports_config_maps): (String, &ResourceRef, bool)| {
        let (change, action) = problem(reference, supports_config_maps, &namespace)?;
        Some(Finding::required(field, change, action))
    };
    let mut all: Vec<Finding> = variables.chain(secrets).chain(git).filter_map(of_reference).collect();
    all.extend(spec.env_refs.keys().filter_map(|name| invalid_name(name)));
    all.extend(names(spec).into_iter().filter_map(|(field, name)| variable(field, name)));
    all
}

/// Returns why the controller rejects a reference, and the action for the user.
fn problem(
    reference: &ResourceRef,
    supports_config_maps: bool,
    namespace: &str,
) -> Option<(&'static str, &'static str)> {
    let other = reference.secret.as_ref().and_then(|secret| secret.namespace.as_deref());
    let is_elsewhere = other.is_some_and(|other| !other.is_empty() && other != namespace);
    match reference.kind.as_str() {
        "Literal" if reference.literal.is_some() => None,
        "Secret" if is_elsewhere => Some((
            "the controller rejects a Secret in another namespace",
            "copy the Secret to the namespace of the Stack, and remove secret.namespace",
        )),
        "Secret" if reference.secret.is_some() => None,
        "ConfigMap" if supports_config_maps && reference.config_map.is_some() => None,
        "Env" | "FS" => Some((
            "the controller rejects the types Env and FS",
            "store the value in a Secret, and use the type Secret",
        )),
        "Literal" | "Secret" => {
            Some(("the controller rejects a reference without its value", "set the field of the type"))
        }
        "ConfigMap" if supports_config_maps => {
            Some(("the controller rejects a reference without its value", "set the field configMap"))
        }
        _ => Some(("the controller rejects this type", "use the type Secret or Literal")),
    }
}

fn invalid_name(name: &str) -> Option<Finding> {
    let is_invalid = name.is_empty() || name.contains(['=', '\0']);
    let change = "the controller rejects this name of an environment variable";
    is_invalid.then(|| Finding::required(format!("spec.envRefs[{name}]"), change, "correct the name"))
}

/// Returns the names of the environment variables that the spec sets individually, each with its field.
fn names(spec: &StackSpec) -> Vec<(&'static str, &str)> {
    let list = |pointer: &str| in_template(spec, pointer).and_then(Value::as_array).into_iter().flatten();
    let of_spec = spec.env_refs.keys().map(|name| ("spec.envRefs", name.as_str()));
    let of_workspace = list("/spec/env").filter_map(|variable| variable.get("name")?.as_str());
    let of_workspace = of_workspace.map(|name| ("spec.workspaceTemplate.spec.env", name));
    let containers = list("/spec/podTemplate/spec/containers");
    let variables = containers.filter_map(|container| container.get("env")?.as_array()).flatten();
    let of_pod = variables.filter_map(|variable| variable.get("name")?.as_str());
    let of_pod = of_pod.map(|name| ("spec.workspaceTemplate.spec.podTemplate", name));
    of_spec.chain(of_workspace).chain(of_pod).collect()
}

fn variable(field: &str, name: &str) -> Option<Finding> {
    let field = format!("{field}[{name}]");
    if LEGACY_LAYOUT.contains(&name) {
        let change = "Pulumi CLI 3.275 and later reject a backend with the layout without projects";
        let action = "upgrade the layout with `pulumi state upgrade` of Pulumi CLI 3.274.1 or earlier";
        return Some(Finding::required(field, change, action));
    }
    let action = cli_options::is_removed(name).then(|| cli_options::instead_of(name))?;
    Some(match cli_options::effect_of_removal(name) {
        Some(effect) => {
            let change = format!("no run starts, because runs ignore the variable and {effect}");
            Finding::required(field, change, action)
        }
        None => Finding::optional(field, "runs ignore the variable", action),
    })
}
