//! Tests that the controller rejects the Stacks of the Pulumi Kubernetes Operator that `kubectl pulumi doctor --migration`
//! lists. The plugin also runs on systems for which the controller is not built, so it contains its own rules.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::auto::ArtifactReference;
use crate::api::pulumi::{CurrentUpdate, Stack};
use crate::controller::stack::build_update;
use crate::controller::stack::build_workspace::{self, StackSpecError};
use crate::controller::stack::{expiry, next_run};
use crate::controller::workspace::{PodRestrictions, PodSettings, SpecError, render};
use crate::source;

/// Stacks that the controller rejects, each with the field of the problem.
const STACKS: &str = include_str!("../../../tests/operator/rejected-stacks.yaml");

/// Kinds of errors that a Stack in [`STACKS`] causes. If a spec of the operator can cause a new kind of error, add a Stack
/// to the list.
const LISTED: [&str; 10] = [
    "DuplicateKey",
    "Field",
    "GracePeriod",
    "NameTooLong",
    "Protected",
    "Reference",
    "SecurityProfile",
    "Template",
    "Unsupported",
    "stack duration",
];

/// Error about the spec of a Stack.
enum Rejection {
    Stack(StackSpecError),
    Workspace(SpecError),
    /// Error of a function that returns only a message.
    Message,
}

/// Returns the error about a Stack, in the order of the checks of the controller.
fn rejection(stack: &Stack) -> Option<Rejection> {
    let spec = &stack.spec;
    let checked = build_workspace::check_address(stack).and_then(|()| build_workspace::check_pulumi_cloud(stack));
    if let Err(error) = checked.and_then(|()| build_workspace::check_times(stack)) {
        return Some(Rejection::Stack(error));
    }
    let has_source = match source::without_object(spec) {
        Ok(None) => match source::repository(spec, "apps") {
            Ok(None) => source::reference(spec).map(drop),
            other => other.map(drop),
        },
        other => other.map(drop),
    };
    if has_source.is_err() || expiry::check(stack).is_err() || next_run::check_fields(stack).is_err() {
        return Some(Rejection::Message);
    }
    if let Err(error) = build_update::update(stack, &CurrentUpdate::default()) {
        return Some(Rejection::Stack(error));
    }
    let artifact: ArtifactReference = serde_json::from_value(json!({
        "revision": "main@sha1:a",
        "digest": format!("sha256:{}", "a".repeat(64)),
    }))
    .expect("valid artifact");
    let workspace = match build_workspace::workspace(stack, &artifact) {
        Ok(workspace) => workspace,
        Err(error) => return Some(Rejection::Stack(error)),
    };
    let settings = PodSettings {
        agent_image: "controller:1".to_owned(),
        agent_image_pull_policy: None,
        default_image: "pulumi/pulumi:latest-nonroot".to_owned(),
        default_access_token_secret: None,
        assigns_user: true,
        eviction_protection: true,
        restrictions: PodRestrictions::default(),
        storage: Default::default(),
    };
    let name = stack.metadata.name.as_deref().unwrap_or_default();
    render(name, "apps", &workspace, &settings).err().map(Rejection::Workspace)
}

/// Returns the kind of an error. Returns `None` for errors that no spec of the operator can cause, or that fail with the
/// operator, too.
fn kind(rejection: &Rejection) -> Option<&'static str> {
    match rejection {
        Rejection::Message => None,
        Rejection::Stack(error) => match error {
            StackSpecError::Reference { .. } => Some("Reference"),
            StackSpecError::DuplicateKey { .. } => Some("DuplicateKey"),
            StackSpecError::Field { .. } => Some("Field"),
            StackSpecError::Template(_) => Some("Template"),
            StackSpecError::Duration { .. } => Some("stack duration"),
            // The operator does not have the fields.
            StackSpecError::PathKey(_) | StackSpecError::Oidc { .. } | StackSpecError::OidcWithToken { .. } => None,
            // The Pulumi CLI rejects ESC environments with a self-managed backend.
            StackSpecError::SelfManagedBackend { .. } => None,
            // The size of an object in the API server is limited.
            StackSpecError::TooLarge(_) | StackSpecError::Metadata(_) => None,
        },
        Rejection::Workspace(error) => match error {
            SpecError::NameTooLong => Some("NameTooLong"),
            SpecError::Unsupported { .. } => Some("Unsupported"),
            SpecError::Protected { .. } => Some("Protected"),
            SpecError::GracePeriod { .. } => Some("GracePeriod"),
            SpecError::SecurityProfile { .. } => Some("SecurityProfile"),
            // The operator does not have the fields.
            SpecError::Oidc { .. }
            | SpecError::OidcWithToken
            | SpecError::OidcWithBackend { .. }
            | SpecError::IdleAfter { .. }
            | SpecError::IdleClaim { .. }
            | SpecError::NoIdleClaim => None,
            // The flags of the controller determine whether it rejects the pod.
            SpecError::PodSecurity(_) | SpecError::ServiceAccount { .. } | SpecError::SelectorLabel { .. } => None,
            // The pod does not start with the operator, or the API of the operator rejects the template.
            SpecError::Value(_)
            | SpecError::Merge(_)
            | SpecError::ServiceMerge(_)
            | SpecError::ServiceField { .. }
            | SpecError::VariableName { .. }
            | SpecError::Reference { .. }
            | SpecError::Config { .. }
            | SpecError::EnvironmentFrom { .. } => None,
            // The size of an object in the API server is limited.
            SpecError::TooLarge(_) | SpecError::TooManyObjects { .. } => None,
            // The controller checks the source before it renders the pod.
            SpecError::Directory(_) | SpecError::Source(_) => None,
        },
    }
}

#[test]
fn the_controller_rejects_each_stack_that_the_check_of_a_migration_lists() {
    let rows: Vec<Value> = serde_saphyr::from_str(STACKS).expect("a list");
    assert!(rows.len() > 50, "found only {}", rows.len());
    let mut kinds = BTreeSet::new();
    for row in rows {
        let name = row.get("name").and_then(Value::as_str).unwrap_or("web");
        let object = json!({
            "metadata": {"name": name, "namespace": "apps", "uid": "uid-1"},
            "spec": row["spec"],
        });
        let stack: Stack = serde_json::from_value(object).expect("valid Stack");
        let found = rejection(&stack).unwrap_or_else(|| panic!("the controller accepts {}", row["spec"]));
        kinds.extend(kind(&found));
    }
    assert_eq!(kinds, BTreeSet::from(LISTED));
}
