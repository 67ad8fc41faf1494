//! Reference from an Update to its entry in the run history.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Run of an Update in the run history.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct RunHistory {
    /// URL of the directory with the run's files. Absent if the controller could not store the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub url: Option<String>,
    /// Reason why the history does not contain the complete run. Absent if the history contains the complete run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::MESSAGE))]
    pub message: Option<String>,
}
