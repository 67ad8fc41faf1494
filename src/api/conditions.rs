//! Condition types and reasons, and the one way to write a condition.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::api::columns;

pub const READY: &str = "Ready";
pub const RECONCILING: &str = "Reconciling";
pub const STALLED: &str = "Stalled";
pub const PROGRESSING: &str = "Progressing";
pub const FAILED: &str = "Failed";
pub const COMPLETE: &str = "Complete";

/// Reasons of the Stack's conditions: those of the Pulumi Kubernetes Operator v2, and ours where it has none.
pub mod stack_reason {
    pub const PROCESSING_COMPLETED: &str = "ProcessingCompleted";
    pub const NOT_READY_IN_PROGRESS: &str = "NotReadyInProgress";
    pub const NOT_READY_STALLED: &str = "NotReadyStalled";
    pub const STACK_PROCESSING: &str = "StackProcessing";
    pub const RETRYING_AFTER_FAILURE: &str = "RetryingAfterFailure";
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    pub const PREVIEW_FAILED: &str = "PreviewFailed";
    /// The preview has succeeded, and nothing was applied.
    pub const PREVIEWED: &str = "Previewed";
    pub const UPDATE_CONFLICT: &str = "UpdateConflict";
    pub const SOURCE_UNAVAILABLE: &str = "SourceUnavailable";
    pub const SPEC_INVALID: &str = "SpecInvalid";
    /// It names something in another namespace, where that is not allowed. Flux's word.
    pub const ACCESS_DENIED: &str = "AccessDenied";
    pub const WORKSPACE_FAILED: &str = "WorkspaceFailed";
    /// The Pulumi CLI in the image of the workspace is too old.
    pub const PULUMI_VERSION_TOO_LOW: &str = "PulumiVersionTooLow";
    pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
    pub const PREREQUISITE_NOT_SATISFIED: &str = "PrerequisiteNotSatisfied";
    pub const RUN_OUTCOME_UNKNOWN: &str = "RunOutcomeUnknown";
    /// The state names resources that a run was creating when it was cut off.
    pub const PENDING_CREATES: &str = "PendingCreates";
    /// A user has canceled the run. It is not retried.
    pub const CANCELED: &str = "Canceled";
    /// The stack to destroy is not in the backend, and this Stack may have resources.
    pub const STACK_NOT_FOUND: &str = "StackNotFound";
}

/// Reasons of the Program's conditions.
pub mod program_reason {
    pub const SUCCEEDED: &str = "Succeeded";
    pub const SPEC_INVALID: &str = "SpecInvalid";
}

/// Reasons of the StackReceiver's conditions and events: those of Flux's Receiver, and one of ours.
pub mod receiver_reason {
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const TOKEN_NOT_FOUND: &str = "TokenNotFound";
    pub const PROGRESSING_WITH_RETRY: &str = "ProgressingWithRetry";
    /// A call has not proved that it may be made, or came too often.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
    /// The controller takes no webhooks.
    pub const NOT_SERVED: &str = "NotServed";
}

/// Reasons of the Workspace's conditions.
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
    /// No node takes the pod at the moment.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// A Secret or ConfigMap that the environment refers to does not exist.
    pub const REFERENCE_NOT_FOUND: &str = "ReferenceNotFound";
    /// The Pulumi CLI in the image is too old.
    pub const INCOMPATIBLE_CONFIGURATION: &str = "IncompatibleConfiguration";
    pub const DELETING: &str = "Deleting";
}

/// Reasons of the Update's conditions.
pub mod update_reason {
    pub const PROGRESSING: &str = "Progressing";
    pub const COMPLETE: &str = "Complete";
    pub const UPDATED: &str = "Updated";
    pub const QUEUED: &str = "Queued";
    pub const WORKSPACE_NOT_FOUND: &str = "WorkspaceNotFound";
    pub const WORKSPACE_NOT_READY: &str = "WorkspaceNotReady";
    /// A Secret or ConfigMap that the run refers to does not exist.
    pub const REFERENCE_NOT_FOUND: &str = "ReferenceNotFound";
    pub const TRANSIENT_FAILURE: &str = "TransientFailure";
    pub const UPDATE_SUCCEEDED: &str = "UpdateSucceeded";
    pub const UPDATE_FAILED: &str = "UpdateFailed";
    pub const UPDATE_CONFLICT: &str = "UpdateConflict";
    pub const INVALID_ACCESS_TOKEN: &str = "InvalidAccessToken";
    pub const CANCELED: &str = "Canceled";
    /// It was cut off, or ended with its pod: nobody's failure.
    pub const ABORTED: &str = "Aborted";
    /// The state names resources that a run was creating when it was cut off. Nothing has run.
    pub const PENDING_CREATES: &str = "PendingCreates";
    /// The stack to destroy is not in the backend. Nothing was destroyed.
    pub const STACK_NOT_FOUND: &str = "StackNotFound";
    /// The run waits until a person's command in the pod has ended.
    pub const PERSON_IN_POD: &str = "InteractiveSession";
    /// The spec is not valid. Nothing has run.
    pub const SPEC_INVALID: &str = "SpecInvalid";
    /// The workspace is not in the state that the run needs: a Secret lacks a key, for example. Nothing has run.
    pub const RUN_REFUSED: &str = "RunRefused";
    /// Nobody knows whether the run still goes on. It stays open until there is a proof, or a person's answer.
    pub const RUN_OUTCOME_UNKNOWN: &str = "RunOutcomeUnknown";
}

/// The longest message that the API accepts in a condition.
const MAX_MESSAGE: usize = 32768;

/// What a condition shall say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    pub kind: &'a str,
    pub status: Status,
    pub reason: &'a str,
    pub message: &'a str,
}

/// The three values of a condition's status.
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

/// Sets one condition. The transition time moves only when the status changes, as Kubernetes has it.
pub fn set(conditions: &mut Vec<Condition>, claim: &Claim<'_>, generation: i64, now: Timestamp) {
    let message = shorten(claim.message, MAX_MESSAGE);
    let status = claim.status.as_str();
    let transition = |old: Option<&Condition>| match old {
        Some(old) if old.status == status => old.last_transition_time.clone(),
        _ => Time(now),
    };
    let position = conditions.iter().position(|c| c.type_ == claim.kind);
    let condition = Condition {
        type_: claim.kind.to_owned(),
        status: status.to_owned(),
        reason: claim.reason.to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time: transition(position.and_then(|p| conditions.get(p))),
    };
    match position.and_then(|p| conditions.get_mut(p)) {
        Some(slot) => *slot = condition,
        None => conditions.push(condition),
    }
}

/// Removes a condition, if it is there.
pub fn remove(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|c| c.type_ != kind);
}

/// Finds a condition by its type.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Whether a condition is there and says `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == "True")
}

/// What a column of `kubectl get` prints of the condition `Ready`; none without it.
pub fn summary(conditions: &[Condition]) -> Option<String> {
    Some(columns::text(&find(conditions, READY)?.message, columns::MAX_STATUS)).filter(|summary| !summary.is_empty())
}

/// A message of at most so many bytes; what is cut off is marked by `...`.
pub fn shorten(message: &str, longest: usize) -> String {
    if message.len() <= longest {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(longest.saturating_sub(3));
    format!("{}...", message.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn ready(status: Status, message: &str) -> Claim<'_> {
        Claim { kind: READY, status, reason: "Reason", message }
    }

    #[test]
    fn transition_time_moves_only_with_the_status() {
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
    fn the_summary_is_the_first_line_of_ready() {
        let mut conditions = Vec::new();
        assert_eq!(summary(&conditions), None);
        set(&mut conditions, &ready(Status::False, "first\nsecond"), 1, at(10));
        assert_eq!(summary(&conditions).as_deref(), Some("first"));
    }

    #[test]
    fn a_message_too_long_for_the_api_is_cut_between_characters() {
        let mut conditions = Vec::new();
        set(&mut conditions, &ready(Status::False, &"ä".repeat(20_000)), 1, at(10));
        assert!(conditions[0].message.len() <= MAX_MESSAGE);
        assert!(conditions[0].message.ends_with("..."));
    }
}
