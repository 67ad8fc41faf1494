//! Plugin errors and their exit codes. `docs/kubectl-plugin.md` documents the exit codes.

use std::time::Duration;

use thiserror::Error;

/// Command error with a message for the user.
#[derive(Debug, Error)]
pub enum PluginError {
    /// The arguments contradict each other, or an argument is missing.
    #[error("{0}")]
    Usage(String),
    /// The kubeconfig is missing or invalid.
    #[error("failed to connect to the cluster: {0}; check the kubeconfig and the flags --kubeconfig and --context")]
    Connect(String),
    #[error("failed to {request}: {kind} {namespace}/{name} does not exist; check the name and the flag --namespace")]
    NotFound { request: String, kind: String, namespace: String, name: String },
    /// An output of a Stack or the Update of a run does not exist.
    #[error("{0}")]
    Missing(String),
    /// The API server rejected the request.
    #[error("failed to {request}: {message} ({reason}, {code}); {}", advice(*code))]
    Refused { request: String, code: u16, reason: String, message: String },
    #[error("failed to {request}: {cause}")]
    Request { request: String, cause: String },
    #[error("failed to {request}: no response within {} s; check the connection to the cluster", limit.as_secs())]
    NoResponse { request: String, limit: Duration },
    /// `diff` has found changes.
    #[error("{0}")]
    Changes(String),
    /// The command did not complete within `--timeout`.
    #[error("{0}")]
    TimedOut(String),
    /// A run failed, or a Stack is stalled or requires a decision.
    #[error("{0}")]
    NotReady(String),
    /// A run waits, for example for an approval.
    #[error("{0}")]
    Waiting(String),
    /// `doctor` has found a problem.
    #[error("{0}")]
    Unhealthy(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

impl PluginError {
    /// Returns the exit code of the plugin process.
    pub fn exit_code(&self) -> u8 {
        match self {
            PluginError::Connect(_)
            | PluginError::Refused { .. }
            | PluginError::Request { .. }
            | PluginError::Failed(_) => 1,
            PluginError::Usage(_) | PluginError::Changes(_) => 2,
            PluginError::NotFound { .. } | PluginError::Missing(_) => 3,
            PluginError::TimedOut(_) | PluginError::NoResponse { .. } => 4,
            PluginError::NotReady(_) | PluginError::Waiting(_) => 5,
            PluginError::Unhealthy(_) => 6,
        }
    }
}

/// Returns advice for the user about a request that the API server has rejected with this status code.
fn advice(code: u16) -> &'static str {
    match code {
        401 => "log in to the cluster again, or select another user with --context",
        403 => "ask an administrator for the permission, or select another namespace with --namespace",
        404 => "check that the controller and its CustomResourceDefinitions are installed: kubectl pulumi doctor",
        409 => "another client has changed the object; retry the command",
        429 | 500..=599 => "the API server is overloaded or not available; retry the command later",
        _ => "correct the object that the message names, and retry the command",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_request_the_object_the_cause_and_the_action() {
        let refused = PluginError::Refused {
            request: "list objects of kind Stack in namespace apps".to_owned(),
            code: 403,
            reason: "Forbidden".to_owned(),
            message: "stacks.pulumi.com is forbidden".to_owned(),
        };
        assert_eq!(
            refused.to_string(),
            "failed to list objects of kind Stack in namespace apps: stacks.pulumi.com is forbidden (Forbidden, 403); \
             ask an administrator for the permission, or select another namespace with --namespace"
        );
        assert_eq!(refused.exit_code(), 1);
    }

    #[test]
    fn every_class_of_errors_has_its_own_exit_code() {
        let text = String::new;
        let not_found = PluginError::NotFound { request: text(), kind: text(), namespace: text(), name: text() };
        let codes = [
            PluginError::Failed(text()),
            PluginError::Usage(text()),
            not_found,
            PluginError::TimedOut(text()),
            PluginError::NotReady(text()),
            PluginError::Unhealthy(text()),
        ];
        assert_eq!(codes.map(|error| error.exit_code()), [1, 2, 3, 4, 5, 6]);
    }
}
