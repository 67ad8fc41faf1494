//! Fields and objects of a Stack that the next steps name.

use serde_json::Value;

use crate::api::names::is_object_name;
use crate::api::pulumi::{ResourceRef, Stack, StackSpec};

/// Fields of `workspaceTemplate.spec` from which the controller builds the pod.
const POD_FIELDS: [&str; 8] =
    ["env", "envFrom", "image", "podTemplate", "resources", "securityProfile", "serviceAccountName", "serviceTemplate"];
/// Fields of `workspaceTemplate.spec` that contain a source.
const SOURCES: [&str; 4] = ["flux", "git", "local", "projectInfo"];

fn in_template<'a>(spec: &'a StackSpec, names: &'static [&'static str]) -> impl Iterator<Item = String> + 'a {
    let template = spec.workspace_template.as_ref().and_then(|template| template.get("spec"));
    let is_set = move |name: &&&str| template.and_then(|spec| spec.get(**name)).is_some_and(|value| !value.is_null());
    names.iter().filter(is_set).map(|name| format!("spec.workspaceTemplate.spec.{name}"))
}

/// Returns the fields of the workspace template that set fields of the pod.
pub(super) fn of_template(spec: &StackSpec) -> Vec<String> {
    in_template(spec, &POD_FIELDS).collect()
}

/// Returns the fields that determine the source and the policy packs.
pub(super) fn of_source(spec: &StackSpec) -> Vec<String> {
    let objects = [("fluxSource", spec.flux_source.is_some()), ("programRef", spec.program_ref.is_some())];
    let objects = objects.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field);
    let fields = objects.chain(spec.git_fields()).map(|field| format!("spec.{field}"));
    let packs = spec.policy_packs.iter().filter(|pack| is_object_name(&pack.name));
    let packs = packs.map(|pack| format!("spec.policyPacks[{}]", pack.name));
    fields.chain(in_template(spec, &SOURCES)).chain(packs).collect()
}

/// Returns the names of the Secrets with the credentials of the repository.
pub(super) fn repository_secrets(spec: &StackSpec) -> Vec<&str> {
    let of_auth = spec.git_auth.iter().flat_map(|auth| auth.references());
    let of_auth = of_auth.filter_map(|(_, reference)| secret(reference));
    let of_template = spec.workspace_template.as_ref().and_then(|template| template.pointer("/spec/git/auth"));
    let of_template = of_template.and_then(Value::as_object).into_iter().flatten();
    let of_template = of_template.filter_map(|(_, value)| value.get("name")?.as_str());
    unique(of_auth.chain(spec.git_auth_secret.as_deref()).chain(of_template))
}

/// Returns the names of the Secrets with environment variables and configuration values.
pub(super) fn value_secrets(spec: &StackSpec) -> Vec<&str> {
    let references = spec.env_refs.values().chain(spec.secrets_ref.values()).filter_map(secret);
    unique(references.chain(spec.env_secrets.iter().map(String::as_str)).chain(spec.access_token_secret.as_deref()))
}

fn secret(reference: &ResourceRef) -> Option<&str> {
    reference.secret.as_ref().map(|secret| secret.name.as_str())
}

/// Omits invalid names, because users copy the commands of the steps to a shell.
fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = names.filter(|name| is_object_name(name)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns whether a user has changed `spec.stack` or `spec.backend` after the last `up`, so that the resources are in
/// another Pulumi stack than the spec defines.
pub(super) fn is_applied_elsewhere(stack: &Stack) -> bool {
    let Some(applied) = stack.status.as_ref().and_then(|status| status.applied_stack.as_ref()) else { return false };
    let ((organization, project, name), now) = (parts(&applied.name), parts(&stack.spec.stack));
    let differ = |one: Option<&str>, other: Option<&str>| one.zip(other).is_some_and(|(one, other)| one != other);
    let is_other_name = name != now.2 || differ(organization, now.0) || differ(project, now.1);
    let location = |url: &str| {
        let url = url.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or_default())
    };
    let backends = applied.backend.as_deref().zip(stack.spec.backend.as_deref().filter(|url| !url.is_empty()));
    is_other_name || backends.is_some_and(|(before, now)| location(before) != location(now))
}

/// Returns the organization, the project and the stack in the name of a Pulumi stack.
fn parts(name: &str) -> (Option<&str>, Option<&str>, &str) {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [organization, project, stack] => (Some(organization), Some(project), stack),
        [organization, stack] => (Some(organization), None, stack),
        _ => (None, None, name),
    }
}
