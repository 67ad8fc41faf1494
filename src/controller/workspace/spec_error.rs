//! Errors in the spec of a Workspace.

use super::pod_security::Violation;
use crate::controller::merge::{MergeError, TooLarge};
use crate::source::inline::InlineSourceError;

/// Maximum length of a Workspace's name. Pods and ControllerRevisions have labels derived from it, which a longer name would
/// make invalid.
pub(super) const MAX_NAME: usize = 42;

/// Reason why no pod can be created from a Workspace's spec. Only a change of the spec helps.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("the Workspace's name has more than {MAX_NAME} characters")]
    NameTooLong,

    #[error("podTemplate: {0}")]
    Merge(#[from] MergeError),

    #[error(transparent)]
    TooLarge(#[from] TooLarge),

    #[error("podTemplate.{field} is not supported")]
    Unsupported { field: String },

    #[error("{0}; this controller runs with --restrict-workspace-pods")]
    PodSecurity(#[from] Violation),

    #[error("serviceAccountName {account:?} is not allowed; allowed: {allowed} (--allowed-service-accounts)")]
    ServiceAccount { account: String, allowed: String },

    #[error(
        "podTemplate.metadata.labels: {label} is refused: network policies select pods by it; use a label of your own"
    )]
    SelectorLabel { label: String },

    #[error("podTemplate must not change {field}: the controller needs it as it is")]
    Protected { field: String },

    #[error("serviceTemplate: {0}")]
    ServiceMerge(MergeError),

    #[error("serviceTemplate.{field} is not supported: it takes metadata.labels and metadata.annotations")]
    ServiceField { field: String },

    #[error("securityProfile {profile:?} is neither restricted nor baseline")]
    SecurityProfile { profile: String },

    #[error("environment variable {name:?}: the name is empty or contains `=`")]
    VariableName { name: String },

    #[error("environment variable {variable}: valueFrom: {what}")]
    Reference { variable: String, what: &'static str },

    #[error("config key {key}: {what}")]
    Config { key: String, what: &'static str },

    #[error("envFrom: {what}")]
    EnvironmentFrom { what: &'static str },

    #[error("artifact.dir: {0}")]
    Directory(#[from] crate::artifact::DirectoryError),

    #[error("artifact.digest: {0}")]
    Digest(#[from] crate::artifact::DigestError),

    #[error(transparent)]
    Source(#[from] InlineSourceError),
}
