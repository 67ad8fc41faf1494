//! Phase times before a run, and the push that started the run. The controller stores the times in an annotation on the
//! Workspace and the Update. A status is not sufficient, because its timestamps have a resolution of one second, and
//! most phases take less than one second.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::names;

/// Maximum size of the annotation in bytes. A longer value is ignored.
const MAX_SIZE: usize = 1024;

/// Phase times before a run, in milliseconds since the Unix epoch. An unknown time is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseTimes {
    /// Digest of the artifact to which the times apply.
    pub digest: String,
    /// UID of the Stack that requested the run. Absent in a Workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
    /// Time at which the controller detected the artifact, if the run belongs to the trace of the push. Unlike
    /// `detected`, this field is also present in the later runs of the push.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pushed: Option<i64>,
    /// Time at which the controller detected the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detected: Option<i64>,
    /// Time at which the controller stored the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched: Option<i64>,
    /// Time at which the agent installed the artifact in the pod. Absent if the controller requested the run earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<i64>,
    /// Time at which the controller requested the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<i64>,
}

impl PhaseTimes {
    /// Parses the times from their annotation in `annotations`. Returns `None` if the annotation is absent or invalid.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let text = annotations.get(names::ANNOTATION_PHASE_TIMES).filter(|text| text.len() <= MAX_SIZE)?;
        serde_json::from_str(text).ok()
    }

    /// Sets the annotation.
    pub fn write_to(&self, annotations: &mut BTreeMap<String, String>) {
        if let Ok(text) = serde_json::to_string(self) {
            annotations.insert(names::ANNOTATION_PHASE_TIMES.to_owned(), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_contains_only_known_times() {
        let times = PhaseTimes { digest: "sha256:a".to_owned(), detected: Some(1), ..PhaseTimes::default() };
        let mut annotations = BTreeMap::new();
        times.write_to(&mut annotations);
        assert_eq!(annotations[names::ANNOTATION_PHASE_TIMES], r#"{"digest":"sha256:a","detected":1}"#);
        assert_eq!(PhaseTimes::of(&annotations), Some(times));
    }

    #[test]
    fn an_invalid_or_long_annotation_is_ignored() {
        for text in ["", "{}", "[1]", &format!("{{\"digest\":\"{}\"}}", "x".repeat(MAX_SIZE))] {
            let annotations = [(names::ANNOTATION_PHASE_TIMES.to_owned(), text.to_owned())].into();
            assert_eq!(PhaseTimes::of(&annotations), None, "{text}");
        }
    }
}
