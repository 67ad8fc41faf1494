//! How a run ended, in the words of an Update's status. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, PodStatus};
use serde::Deserialize;

use crate::api::conditions::update_reason;
use crate::rpc::proto;

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// `None` when it succeeded, else the reason of the failure.
    pub failure: Option<&'static str>,
    pub message: String,
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    pub outputs: Vec<proto::Output>,
    pub changes: BTreeMap<String, i64>,
    pub permalink: Option<String>,
}

/// What the agent writes as the container's termination message.
#[derive(Deserialize)]
struct TerminationMessage {
    id: String,
    outcome: String,
    #[serde(default)]
    message: String,
}

impl Verdict {
    /// A failure that the controller itself has to tell.
    pub fn failed(reason: &'static str, message: &str) -> Self {
        Verdict {
            failure: Some(reason),
            message: message.to_owned(),
            started: None,
            ended: None,
            outputs: Vec::new(),
            changes: BTreeMap::new(),
            permalink: None,
        }
    }

    /// What the agent said. Nothing of it is trusted: an outcome that is not known is a failure.
    pub fn of(result: &proto::Result) -> Self {
        Verdict {
            failure: failure(result.outcome()),
            message: result.message.clone(),
            started: Timestamp::from_millisecond(result.started).ok(),
            ended: Timestamp::from_millisecond(result.ended).ok(),
            outputs: result.outputs.clone(),
            changes: result.changes.iter().map(|(word, count)| (word.clone(), i64::from(*count))).collect(),
            permalink: Some(result.permalink.clone()).filter(|link| !link.is_empty()),
        }
    }

    /// What the container's end says: the agent's last words if it wrote them for this run, else how the container ended.
    pub fn of_container(terminated: &ContainerStateTerminated, id: &str) -> Self {
        let last_words = terminated.message.as_deref().and_then(|m| serde_json::from_str::<TerminationMessage>(m).ok());
        if let Some(words) = last_words.filter(|words| words.id == id) {
            let outcome = proto::Outcome::from_str_name(&words.outcome).unwrap_or(proto::Outcome::Unspecified);
            return Verdict { failure: failure(outcome), ..Verdict::failed(update_reason::ABORTED, &words.message) };
        }
        let why = terminated.reason.as_deref().unwrap_or("unknown reason");
        Verdict::cut_off(&format!("{why}, exit code {}", terminated.exit_code))
    }

    /// What the pod's end says where nothing is known of its container.
    pub fn of_pod(status: &PodStatus) -> Self {
        let reason = status.reason.as_deref().or(status.phase.as_deref()).unwrap_or("unknown reason");
        match status.message.as_deref().map(str::trim).filter(|message| !message.is_empty()) {
            Some(message) => Verdict::cut_off(&format!("{reason}: {message}")),
            None => Verdict::cut_off(reason),
        }
    }

    fn cut_off(why: &str) -> Self {
        let message =
            format!("the pod ended before the run did ({why}); read the stack's state before you run it again");
        Verdict::failed(update_reason::ABORTED, &message)
    }
}

fn failure(outcome: proto::Outcome) -> Option<&'static str> {
    match outcome {
        proto::Outcome::Succeeded => None,
        proto::Outcome::Failed | proto::Outcome::Unspecified => Some(update_reason::UPDATE_FAILED),
        proto::Outcome::Canceled => Some(update_reason::CANCELED),
        proto::Outcome::Conflict => Some(update_reason::UPDATE_CONFLICT),
        proto::Outcome::Interrupted => Some(update_reason::ABORTED),
        proto::Outcome::InvalidAccessToken => Some(update_reason::INVALID_ACCESS_TOKEN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminated(message: Option<&str>) -> ContainerStateTerminated {
        ContainerStateTerminated {
            exit_code: 137,
            reason: Some("OOMKilled".to_owned()),
            message: message.map(str::to_owned),
            ..ContainerStateTerminated::default()
        }
    }

    #[test]
    fn the_agents_last_words_count_for_the_run_they_name_only() {
        let words = r#"{"id":"u1","outcome":"OUTCOME_SUCCEEDED","message":""}"#;
        assert_eq!(Verdict::of_container(&terminated(Some(words)), "u1").failure, None);
        let other = Verdict::of_container(&terminated(Some(words)), "u2");
        assert_eq!(other.failure, Some(update_reason::ABORTED));
        assert!(other.message.contains("OOMKilled"), "{}", other.message);
        let garbage = Verdict::of_container(&terminated(Some("not json")), "u1");
        assert_eq!(garbage.failure, Some(update_reason::ABORTED));
        let unknown = r#"{"id":"u1","outcome":"WHATEVER"}"#;
        assert_eq!(Verdict::of_container(&terminated(Some(unknown)), "u1").failure, Some(update_reason::UPDATE_FAILED));
    }

    #[test]
    fn an_outcome_that_is_not_known_is_a_failure() {
        let result = proto::Result { outcome: 99, ..proto::Result::default() };
        assert_eq!(Verdict::of(&result).failure, Some(update_reason::UPDATE_FAILED));
    }
}
