//! The inputs of a run. Later runs compare their inputs with them.

use std::collections::BTreeMap;

use crate::api::pulumi::CurrentUpdate;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub generation: i64,
    pub reconcile_request: Option<String>,
    pub requested_at: Option<String>,
    pub force_at: Option<String>,
    pub reset_at: Option<String>,
    pub revision: String,
    pub digest: String,
    /// Equal for artifacts of one revision with the same content, if the source reports it.
    pub content_id: Option<String>,
    /// Digest of the files that the Stack selects with `spec.paths`. If set, changes of other files in the source do not trigger a run.
    pub selection: Option<String>,
    /// Keyed hash of the values in Secrets and ConfigMaps that the configuration refers to. `None` if unknown.
    pub config_inputs: Option<String>,
    /// Keyed hash of each Secret and ConfigMap that the pod mounts. A changed object that does not trigger a run keeps the hash of the last
    /// run.
    pub mounted_inputs: BTreeMap<String, String>,
}

/// Hashes that were unknown when the last run started. Later hashes are compared with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    pub config: Option<String>,
    pub mounted: BTreeMap<String, String>,
}

/// Returns the inputs of an announced run.
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
