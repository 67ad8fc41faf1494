//! The inputs of a run: what it answers, and what later runs are compared with. Pure.

use std::collections::BTreeMap;

use crate::api::pulumi::CurrentUpdate;

/// The inputs that a run answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub generation: i64,
    pub reconcile_request: Option<String>,
    pub requested_at: Option<String>,
    pub force_at: Option<String>,
    pub reset_at: Option<String>,
    pub revision: String,
    pub digest: String,
    /// Equal for artifacts of one revision with the same content, where the source tells.
    pub content_id: Option<String>,
    /// A digest of the files that matter, where the Stack says which do: then nothing else of the source counts.
    pub selection: Option<String>,
    /// The values in Secrets and ConfigMaps that the configuration refers to, in one word; `None` where that is not known.
    pub config_inputs: Option<String>,
    /// The words for the Secrets and ConfigMaps that the pod mounts, as far as a change of them counts.
    pub mounted_inputs: BTreeMap<String, String>,
}

/// Words that were not known when the last run was started: later ones are compared with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    pub config: Option<String>,
    pub mounted: BTreeMap<String, String>,
}

/// The inputs that a run was announced for.
pub fn inputs_of(current: &CurrentUpdate) -> Inputs {
    Inputs {
        generation: current.generation,
        reconcile_request: current.reconcile_request.clone(),
        requested_at: current.requested_at.clone(),
        force_at: current.force_at.clone(),
        reset_at: current.reset_at.clone(),
        revision: current.commit.clone().unwrap_or_default(),
        digest: current.digest.clone().unwrap_or_default(),
        content_id: current.content_id.clone(),
        selection: current.paths_digest.clone(),
        config_inputs: current.config_inputs.clone(),
        mounted_inputs: current.mounted_inputs.clone(),
    }
}
