//! Errors in the spec of a Workspace.

use super::pod_security::Violation;
use super::pod_values::InvalidValue;
use crate::api::bounds;
use crate::api::names::MAX_TERMINATION_GRACE_SECONDS;
use crate::controller::merge::{MergeError, TooLarge};
use crate::source::inline::InlineSourceError;

/// Maximum length of a Workspace name, in characters. With a longer name, the pod and ControllerRevision labels that
/// contain the name would be too long.
pub(super) const MAX_NAME: usize = 42;

/// Error in the spec of a Workspace. Only a change to the spec resolves the error.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("invalid metadata.name: must be at most {MAX_NAME} characters long")]
    NameTooLong,

    #[error("podTemplate: {0}")]
    Merge(#[from] MergeError),

    #[error(transparent)]
    TooLarge(#[from] TooLarge),

    #[error(transparent)]
    Value(#[from] InvalidValue),

    #[error("podTemplate.{field} is not supported")]
    Unsupported { field: String },

    #[error("{0}; this controller runs with --restrict-workspace-pods")]
    PodSecurity(#[from] Violation),

    #[error("serviceAccountName {account:?} is not allowed; allowed: {allowed} (--allowed-service-accounts)")]
    ServiceAccount { account: String, allowed: String },

    #[error(
        "podTemplate.metadata.labels: {label} is not allowed, because network policies can select pods by this label: use another label"
    )]
    SelectorLabel { label: String },

    #[error("podTemplate must not change {field}: the controller manages it")]
    Protected { field: String },

    #[error(
        "podTemplate.spec.terminationGracePeriodSeconds: {seconds} is more than the maximum of {} (4 hours)",
        MAX_TERMINATION_GRACE_SECONDS
    )]
    GracePeriod { seconds: u64 },

    #[error("serviceTemplate: {0}")]
    ServiceMerge(MergeError),

    #[error("serviceTemplate.{field} is not supported: only metadata.labels and metadata.annotations are supported")]
    ServiceField { field: String },

    #[error("invalid securityProfile {profile:?}: must be restricted or baseline")]
    SecurityProfile { profile: String },

    #[error("invalid environment variable name {name:?}: must not be empty or contain `=`")]
    VariableName { name: String },

    #[error("environment variable {variable}: valueFrom: {what}")]
    Reference { variable: String, what: &'static str },

    #[error("config key {key}: {what}")]
    Config { key: String, what: &'static str },

    #[error("envFrom: {what}")]
    EnvironmentFrom { what: &'static str },

    #[error(
        "the environment and the configuration reference {count} different Secrets and ConfigMaps, and the maximum is {}: \
         store the values in fewer objects",
        bounds::REFERENCED_OBJECTS
    )]
    TooManyObjects { count: usize },

    #[error("invalid pulumiCloudOIDC.{field}: {rule}")]
    Oidc { field: &'static str, rule: &'static str },

    #[error("pulumiCloudOIDC and PULUMI_ACCESS_TOKEN in env are mutually exclusive: remove one of them")]
    OidcWithToken,

    #[error("pulumiCloudOIDC requires Pulumi Cloud, but PULUMI_BACKEND_URL in env is {url}: remove one of them")]
    OidcWithBackend { url: String },

    #[error("invalid idle.after {value:?}: must be at least 1m, or 0s to disable")]
    IdleAfter { value: String },

    #[error("invalid idle.claim {claim:?}: must be the name of a PersistentVolumeClaim")]
    IdleClaim { claim: String },

    #[error("idle.keep Volume requires idle.claim: set it to a PersistentVolumeClaim that only this Workspace uses")]
    NoIdleClaim,

    #[error("artifact.dir: {0}")]
    Directory(#[from] crate::artifact::DirectoryError),

    #[error(transparent)]
    Source(#[from] InlineSourceError),
}
