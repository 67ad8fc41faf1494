//! Condition types and reasons, and functions to read and write conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::api::columns;

pub const READY: &str = "Ready";
pub const RECONCILING: &str = "Reconciling";
pub const STALLED: &str = "Stalled";
/// Condition that reports whether the last drift check of a Stack found drift. Only a Stack with `spec.drift` has this
/// condition.
pub const DRIFTED: &str = "Drifted";
/// Condition that reports whether a Stack has expired or expires within an hour. Only a Stack with `spec.ttl` or
/// `spec.expiresAt` has this condition.
pub const EXPIRING: &str = "Expiring";
/// Condition that reports whether the controller has written the outputs of the last successful update. Only a Stack
/// with `spec.writeOutputsTo` has this condition.
pub const OUTPUTS_WRITTEN: &str = "OutputsWritten";
/// Condition that reports Pulumi stacks with resources that no Stack manages. Only a Stack with `status.orphanedStacks`
/// has this condition.
pub const ORPHANED: &str = "ResourcesOrphaned";
/// Condition that lists the settings of a Stack that have no effect. Only a Stack with such settings has this condition.
pub const SETTINGS_IGNORED: &str = "SettingsIgnored";
pub const PROGRESSING: &str = "Progressing";
pub const FAILED: &str = "Failed";
pub const COMPLETE: &str = "Complete";

/// Reason for the conditions of all kinds except Updates: the reconciliations of the object fail repeatedly. Flux uses the
/// same reason.
pub const PROGRESSING_WITH_RETRY: &str = "ProgressingWithRetry";

/// Reasons for the conditions of a Stack. The reasons include all reasons of the Pulumi Kubernetes Operator v2, except
/// `NotReadyStalled`: the condition `Ready` of a stalled Stack has the same reason as the condition `Stalled`.
pub mod stack_reason {
    pub const PROCESSING_COMPLETED: &str = "ProcessingCompleted";
    pub const NOT_READY_IN_PROGRESS: &str = "NotReadyInProgress";
    pub const STACK_PROCESSING: &str = "StackProcessing";
    pub const RETRYING_AFTER_FAILURE: &str = "RetryingAfterFailure";
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    pub const PREVIEW_FAILED: &str = "PreviewFailed";
    /// The preview succeeded. A preview changes no resources.
    pub const PREVIEWED: &str = "Previewed";
    pub const UPDATE_CONFLICT: &str = "UpdateConflict";
    pub const SOURCE_UNAVAILABLE: &str = "SourceUnavailable";
    pub const SPEC_INVALID: &str = "SpecInvalid";
    /// The Stack references an object in another namespace, but cross-namespace references are disabled. Flux uses the
    /// same reason.
    pub const ACCESS_DENIED: &str = "AccessDenied";
    pub const WORKSPACE_FAILED: &str = "WorkspaceFailed";
    /// The Pulumi CLI in the workspace image is older than the minimum version.
    pub const PULUMI_VERSION_TOO_LOW: &str = "PulumiVersionTooLow";
    pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
    pub const PREREQUISITE_NOT_SATISFIED: &str = "PrerequisiteNotSatisfied";
    pub const RUN_OUTCOME_UNKNOWN: &str = "RunOutcomeUnknown";
    /// The Pulumi state contains resources that an interrupted run was creating.
    pub const PENDING_CREATES: &str = "PendingCreates";
    /// The plan of the next run requires an approval.
    pub const AWAITING_APPROVAL: &str = "AwaitingApproval";
    /// A user rejected the plan of the next run.
    pub const PLAN_REJECTED: &str = "PlanRejected";
    /// The Stack is suspended, and either no run has completed or the Stack is being deleted.
    pub const SUSPENDED: &str = "Suspended";
    /// A run is due, but the controller or the namespace is paused.
    pub const PAUSED: &str = "Paused";
    /// A run is due, but no window is open, or a freeze prevents the run.
    pub const OUTSIDE_SCHEDULE: &str = "OutsideSchedule";
    /// A run is due, but this Stack's outputs may have caused the changes to Secrets and ConfigMaps that started the
    /// last runs.
    pub const INPUTS_CHANGE_OFTEN: &str = "InputsChangeOften";
    /// Users deleted too many Stacks in a short time, so the destroy of this Stack requires a confirmation.
    pub const DESTROY_UNCONFIRMED: &str = "DestroyUnconfirmed";
    /// A user canceled the run. The controller does not retry the run.
    pub const CANCELED: &str = "Canceled";
    /// The backend does not contain the Pulumi stack to destroy, although this Stack may have created resources in it.
    pub const STACK_NOT_FOUND: &str = "StackNotFound";
    /// The state backend has a layout that the Pulumi CLI no longer supports.
    pub const BACKEND_UPGRADE_REQUIRED: &str = "BackendUpgradeRequired";
}

/// Reasons for the Stack condition `Drifted` and for events about drift.
pub mod drift_reason {
    pub const DRIFT_DETECTED: &str = "DriftDetected";
    pub const NO_DRIFT: &str = "NoDrift";
    /// A run with a refresh has succeeded after the drift check.
    pub const CORRECTED: &str = "Corrected";
    /// The last drift check failed.
    pub const CHECK_FAILED: &str = "CheckFailed";
    /// `spec.drift` is invalid, so no drift checks start.
    pub const SPEC_INVALID: &str = "SpecInvalid";
}

/// Reasons for the Stack condition `Expiring`.
pub mod expiry_reason {
    pub const EXPIRES_SOON: &str = "ExpiresSoon";
    /// The controller deletes the Stack, and destroys its resources if `spec.destroyOnFinalize` is `true`.
    pub const EXPIRED: &str = "Expired";
}

/// Reasons for the Stack condition `ResourcesOrphaned`.
pub mod orphaned_reason {
    pub const ACKNOWLEDGMENT_REQUIRED: &str = "AcknowledgmentRequired";
}

/// Reasons for the Stack condition `OutputsWritten` and for events about failed writes.
pub mod outputs_reason {
    pub const OUTPUTS_WRITTEN: &str = "OutputsWritten";
    pub const OUTPUTS_NOT_WRITTEN: &str = "OutputsNotWritten";
}

/// Reasons for the Stack condition `SettingsIgnored` and for events about settings without effect.
pub mod settings_reason {
    pub const SETTINGS_IGNORED: &str = "SettingsIgnored";
}

/// Reasons for the conditions of a Program.
pub mod program_reason {
    pub const SUCCEEDED: &str = "Succeeded";
    pub const SPEC_INVALID: &str = "SpecInvalid";
}

/// Reasons for the conditions and events of a StackReceiver. The reasons include the reasons of the Flux Receiver.
pub mod receiver_reason {
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const TOKEN_NOT_FOUND: &str = "TokenNotFound";
    pub use super::PROGRESSING_WITH_RETRY;
    /// A request failed authentication or exceeded a rate limit, or too many other requests were waiting.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
    /// The controller does not run the webhook server.
    pub const NOT_SERVED: &str = "NotServed";
}

/// Reasons for the conditions of a Workspace.
pub mod workspace_reason {
    pub const SUCCEEDED: &str = "Succeeded";
    pub const SPEC_INVALID: &str = "SpecInvalid";
    pub const WAITING_FOR_REPLICAS: &str = "WaitingForReplicas";
    pub const ROLLING_UPDATE: &str = "RollingUpdate";
    pub const CONNECTION_FAILED: &str = "ConnectionFailed";
    pub const ARTIFACT_UNAVAILABLE: &str = "ArtifactUnavailable";
    pub const ARTIFACT_REFUSED: &str = "ArtifactRefused";
    pub const INITIALIZING: &str = "Initializing";
    pub const INSTALLING: &str = "Installing";
    pub const INSTALLATION_FAILED: &str = "InstallationFailed";
    pub const POD_FAILED: &str = "PodFailed";
    /// The scheduler currently cannot assign the pod to a node.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// The environment references a Secret or ConfigMap that does not exist.
    pub const REFERENCE_NOT_FOUND: &str = "ReferenceNotFound";
    /// The Pulumi CLI in the image is older than the minimum version.
    pub const INCOMPATIBLE_CONFIGURATION: &str = "IncompatibleConfiguration";
    pub const DELETING: &str = "Deleting";
    /// The Workspace is idle and has no pod. The status of `Ready` is `True`.
    pub const SLEEPING: &str = "Sleeping";
    /// The Workspace wakes up: the controller creates its pod.
    pub const WAKING: &str = "Waking";
}

/// Reasons for the conditions of an Update.
pub mod update_reason {
    pub const PROGRESSING: &str = "Progressing";
    pub const COMPLETE: &str = "Complete";
    pub const UPDATED: &str = "Updated";
    pub const QUEUED: &str = "Queued";
    /// The controller or the namespace is paused, so the run does not start.
    pub const PAUSED: &str = "Paused";
    /// The namespace schedule does not permit the run now, or is invalid.
    pub const OUTSIDE_SCHEDULE: &str = "OutsideSchedule";
    pub const WORKSPACE_NOT_FOUND: &str = "WorkspaceNotFound";
    pub const WORKSPACE_NOT_READY: &str = "WorkspaceNotReady";
    /// The run references a Secret or ConfigMap that does not exist.
    pub const REFERENCE_NOT_FOUND: &str = "ReferenceNotFound";
    /// The API server rejected the patch that marks the pod for the run, so the run does not start.
    pub const POD_PATCH_REJECTED: &str = "PodPatchRejected";
    /// The run does not start, because the reconciliations of the Update fail repeatedly.
    pub const TRANSIENT_FAILURE: &str = "TransientFailure";
    pub const UPDATE_SUCCEEDED: &str = "UpdateSucceeded";
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    pub const UPDATE_CONFLICT: &str = "UpdateConflict";
    pub const INVALID_ACCESS_TOKEN: &str = "InvalidAccessToken";
    /// The state backend is unavailable or has rejected requests because of a rate limit. The run did not start.
    pub const BACKEND_UNAVAILABLE: &str = "BackendUnavailable";
    /// The state backend has a layout that the Pulumi CLI no longer supports. The run did not start.
    pub const BACKEND_UPGRADE_REQUIRED: &str = "BackendUpgradeRequired";
    pub const CANCELED: &str = "Canceled";
    /// The run was interrupted, or its pod terminated. The program and its configuration did not cause the failure.
    pub const ABORTED: &str = "Aborted";
    /// The Pulumi state contains resources that an interrupted run was creating. The run did not start.
    pub const PENDING_CREATES: &str = "PendingCreates";
    /// The backend does not contain the Pulumi stack to destroy, or the Pulumi stack that contains the resources of
    /// earlier runs. The run changed no resources.
    pub const STACK_NOT_FOUND: &str = "StackNotFound";
    /// Another Stack has applied the Pulumi stack of the run. The run did not start.
    pub const DUPLICATE_STACK: &str = "DuplicateStack";
    /// The run deviated from its approved plan, or the plan is not available. The run may have made changes that are
    /// part of the plan.
    pub const PLAN_VIOLATED: &str = "PlanViolated";
    /// The run violated a mandatory policy. An `up` may have changed resources before the violation.
    pub const POLICY_VIOLATION: &str = "PolicyViolation";
    /// The run waits until a Pulumi command that a user runs in the pod has completed.
    pub const INTERACTIVE_SESSION: &str = "InteractiveSession";
    /// The spec is invalid. The run did not start.
    pub const SPEC_INVALID: &str = "SpecInvalid";
    /// The workspace does not meet a requirement of the run, for example because a Secret lacks a referenced key. The
    /// run did not start.
    pub const RUN_REFUSED: &str = "RunRefused";
    /// The controller does not know whether the run has ended. The run stays open until the controller has evidence
    /// that the run has ended, or a user resolves the run.
    pub const RUN_OUTCOME_UNKNOWN: &str = "RunOutcomeUnknown";
    /// The controller deletes the run's pod, because the agent has not enforced the run timeout. Only events
    /// have this reason.
    pub const TIMEOUT_EXCEEDED: &str = "TimeoutExceeded";
}

/// Prefix of the message for a run that waits for a run slot.
pub const WAITING_FOR_SLOT: &str = "waiting for a run slot: ";
/// Prefix of the message for a run that waits for its concurrency group.
pub const WAITING_FOR_GROUP: &str = "waiting for concurrency group ";
/// Text in the message about a plan that requires an approval. After this text, the message contains the reason why an
/// existing approval is invalid.
pub const APPROVAL_DOES_NOT_COUNT: &str = "an approval does not count: ";

/// Maximum length of a condition message that the API server accepts, in bytes.
const MAX_MESSAGE: usize = 32768;

/// Content of a condition to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate<'a> {
    pub kind: &'a str,
    pub status: Status,
    pub reason: &'a str,
    pub message: &'a str,
}

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    pub fn as_str(self) -> &'static str {
        match self {
            Status::True => "True",
            Status::False => "False",
            Status::Unknown => "Unknown",
        }
    }
}

/// Adds or replaces a condition. The transition time changes only if the status changes, as the Kubernetes API
/// conventions require.
pub fn set(conditions: &mut Vec<Condition>, update: &ConditionUpdate<'_>, generation: i64, now: Timestamp) {
    let message = shorten(update.message, MAX_MESSAGE);
    let status = update.status.as_str();
    let transition = |old: Option<&Condition>| match old {
        Some(old) if old.status == status => old.last_transition_time.clone(),
        _ => Time(now),
    };
    let position = conditions.iter().position(|c| c.type_ == update.kind);
    let condition = Condition {
        type_: update.kind.to_owned(),
        status: status.to_owned(),
        reason: update.reason.to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time: transition(position.and_then(|p| conditions.get(p))),
    };
    match position.and_then(|p| conditions.get_mut(p)) {
        Some(slot) => *slot = condition,
        None => conditions.push(condition),
    }
}

/// Formats a time for messages, in UTC and rounded down to seconds.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Removes the condition of type `kind`, if present.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|c| c.type_ != kind);
}

pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Returns whether the condition of type `kind` is present and has the status `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == "True")
}

/// Returns the shortened message of the condition `Ready` for `kubectl get`. Returns `None` if the condition is absent
/// or has no message.
pub fn summary(conditions: &[Condition]) -> Option<String> {
    Some(columns::text(&find(conditions, READY)?.message, columns::MAX_STATUS)).filter(|summary| !summary.is_empty())
}

/// Truncates a message to `max_length` bytes. A truncated message ends with `...`.
pub fn shorten(message: &str, max_length: usize) -> String {
    if message.len() <= max_length {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(max_length.saturating_sub(3));
    format!("{}...", message.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("timestamp in range")
    }

    fn ready(status: Status, message: &str) -> ConditionUpdate<'_> {
        ConditionUpdate { kind: READY, status, reason: "Reason", message }
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        set(&mut conditions, &ready(Status::False, "a"), 1, at(10));
        set(&mut conditions, &ready(Status::False, "b"), 2, at(20));
        assert_eq!(conditions[0].last_transition_time, Time(at(10)));
        assert_eq!(conditions[0].message, "b");
        assert_eq!(conditions[0].observed_generation, Some(2));
        set(&mut conditions, &ready(Status::True, "c"), 2, at(30));
        assert_eq!(conditions[0].last_transition_time, Time(at(30)));
        assert_eq!(conditions.len(), 1);
    }

    #[test]
    fn the_summary_is_the_first_line_of_the_ready_message() {
        let mut conditions = Vec::new();
        assert_eq!(summary(&conditions), None);
        set(&mut conditions, &ready(Status::False, "first\nsecond"), 1, at(10));
        assert_eq!(summary(&conditions).as_deref(), Some("first"));
    }

    #[test]
    fn a_message_that_is_too_long_is_truncated_at_a_character_boundary() {
        let mut conditions = Vec::new();
        set(&mut conditions, &ready(Status::False, &"ä".repeat(20_000)), 1, at(10));
        assert!(conditions[0].message.len() <= MAX_MESSAGE);
        assert!(conditions[0].message.ends_with("..."));
    }
}
