//! CustomResourceDefinitions of this version of the controller.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSON, JSONSchemaProps,
};
use kube::{CustomResourceExt, Resource};
use serde_json::json;

use crate::api::auto::{Update, Workspace};
use crate::api::pulumi::{Program, Stack, StackReceiver};

/// Returns all CustomResourceDefinitions as they are installed in a cluster.
pub fn custom_resource_definitions() -> Vec<CustomResourceDefinition> {
    let all = [Stack::crd(), Program::crd(), StackReceiver::crd(), Workspace::crd(), Update::crd()];
    all.into_iter().map(finish).collect()
}

/// Returns the group and the storage version of each kind.
pub fn api_versions() -> BTreeSet<(String, String)> {
    fn of<K: Resource<DynamicType = ()>>() -> (String, String) {
        (K::group(&()).into_owned(), K::version(&()).into_owned())
    }
    [of::<Stack>(), of::<Program>(), of::<StackReceiver>(), of::<Workspace>(), of::<Update>()].into()
}

/// Adds the parts that the derive macro does not generate. The default status of new objects is
/// `observedGeneration: -1`. Without this default, tools that wait for readiness report a new object as ready before its
/// first reconciliation.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    // Prevents Flux from replacing `${...}` in descriptions with variables.
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert("kustomize.toolkit.fluxcd.io/substitute".to_owned(), "disabled".to_owned());
    serve_older_version(&mut crd);
    for version in &mut crd.spec.versions {
        if let Some(status) = status_schema(version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut())) {
            status.default = Some(JSON(json!({"observedGeneration": -1})));
            status.nullable = None;
        }
    }
    crd
}

/// Serves Stacks as `v1alpha1` in addition to `v1`. Both versions have the same schema, so Stacks need no conversion.
fn serve_older_version(crd: &mut CustomResourceDefinition) {
    if crd.spec.group != Stack::group(&()) || crd.spec.names.kind != Stack::kind(&()) {
        return;
    }
    let older = crd.spec.versions.first().map(|served| CustomResourceDefinitionVersion {
        name: "v1alpha1".to_owned(),
        storage: false,
        deprecated: Some(true),
        deprecation_warning: Some("pulumi.com/v1alpha1 Stack is deprecated; use pulumi.com/v1 Stack".to_owned()),
        ..served.clone()
    });
    crd.spec.versions.extend(older);
}

fn status_schema(root: Option<&mut JSONSchemaProps>) -> Option<&mut JSONSchemaProps> {
    root?.properties.as_mut()?.get_mut("status")
}

#[cfg(test)]
mod tests;
