//! CustomResourceDefinitions of this controller version.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSON, JSONSchemaProps,
};
use kube::{CustomResourceExt, Resource};
use serde_json::json;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::{Approval, Program, Stack, StackReceiver};
use crate::api::template_schema;

/// Returns the CustomResourceDefinitions to install in a cluster. This function adds the template fields to the derived
/// schemas, because the derive macro is too slow for deeply nested schemas.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    let (mut stack, mut workspace, mut update) = (Stack::crd(), Workspace::crd(), Update::crd());
    if let (Some(stack), Some(workspace), Some(update)) = (spec(&mut stack), spec(&mut workspace), spec(&mut update)) {
        template_schema::describe_pods(workspace);
        template_schema::describe_templates(stack, workspace, update);
    }
    [stack, Program::crd(), StackReceiver::crd(), Approval::crd(), workspace, update].into_iter().map(finish).collect()
}

/// Returns the spec schema of the version that the derive macro generates.
fn spec(crd: &mut CustomResourceDefinition) -> Option<&mut JSONSchemaProps> {
    let schema = crd.spec.versions.first_mut()?.schema.as_mut()?;
    schema.open_api_v3_schema.as_mut()?.properties.as_mut()?.get_mut("spec")
}

/// Returns the group and the storage version of each kind.
pub fn api_versions() -> BTreeSet<(String, String)> {
    fn of<K: Resource<DynamicType = ()>>() -> (String, String) {
        (K::group(&()).into_owned(), K::version(&()).into_owned())
    }
    [of::<Stack>(), of::<Program>(), of::<StackReceiver>(), of::<Approval>(), of::<Workspace>(), of::<Update>()].into()
}

/// Adds the parts of a definition that the derive macro does not generate. The default status of new objects is
/// `observedGeneration: -1`. Without this default, tools that wait for readiness report a new object as ready before
/// its first reconciliation.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let annotations = crd.metadata.annotations.get_or_insert_default();
    // This annotation prevents Flux from replacing `${...}` in descriptions with the values of variables.
    annotations.insert("kustomize.toolkit.fluxcd.io/substitute".to_owned(), "disabled".to_owned());
    // This annotation prevents Flux from deleting the definition when a commit removes the controller from a
    // repository, or when a user deletes the Flux Kustomization. Otherwise, Kubernetes would also delete all objects of
    // the kind.
    annotations.insert("kustomize.toolkit.fluxcd.io/prune".to_owned(), "disabled".to_owned());
    serve_older_version(&mut crd);
    for version in &mut crd.spec.versions {
        if let Some(status) = status_schema(version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut())) {
            status.default = Some(JSON(json!({"observedGeneration": -1})));
            status.nullable = None;
        }
    }
    crd
}

/// Serves Stacks as `v1alpha1` in addition to `v1`. Both versions have the same fields, so Stacks need no conversion.
/// The schema of `v1alpha1` is shortened, because two complete schemas would exceed the maximum size of a
/// CustomResourceDefinition for `kubectl apply`.
fn serve_older_version(crd: &mut CustomResourceDefinition) {
    if crd.spec.group != Stack::group(&()) || crd.spec.names.kind != Stack::kind(&()) {
        return;
    }
    let Some(mut older) = crd.spec.versions.first().cloned() else { return };
    if let Some(root) = older.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
        template_schema::shorten(root);
    }
    crd.spec.versions.push(CustomResourceDefinitionVersion {
        name: "v1alpha1".to_owned(),
        storage: false,
        deprecated: Some(true),
        deprecation_warning: Some("pulumi.com/v1alpha1 Stack is deprecated; use pulumi.com/v1 Stack".to_owned()),
        ..older
    });
}

fn status_schema(root: Option<&mut JSONSchemaProps>) -> Option<&mut JSONSchemaProps> {
    root?.properties.as_mut()?.get_mut("status")
}

#[cfg(test)]
mod tests;
