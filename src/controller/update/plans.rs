//! Stores and reads the Secret that contains a saved plan. The Secret contains the plan file of the Pulumi CLI,
//! compressed with gzip. The CLI encrypts the secret values in the plan file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;

use crate::api::auto::{PlanReference, Update};
use crate::api::names;
use crate::artifact::Digest;
use crate::controller::update::context::Context;
use crate::controller::update::outcome::RunOutcome;
use crate::controller::update::outputs::{Stored, is_of, owned_secret, refused};
use crate::runtime::reads::ReadError;
use crate::runtime::reconcile::ReconcileError;
use crate::runtime::writes::Created;

/// Key of the plan in the Secret.
const KEY: &str = "plan.json.gz";

/// Plan of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanFile {
    /// The run has no plan, or the current step of the reconciliation does not need it.
    NotNeeded,
    Found(Vec<u8>),
    /// The plan does not exist or has changed. Contains the error message.
    Unavailable(String),
}

/// Stores the plan of a completed preview in a Secret. `may_retry` specifies whether a later attempt is possible.
pub async fn store(
    update: &Update,
    outcome: &RunOutcome,
    context: &Context,
    may_retry: bool,
) -> Result<Stored, ReconcileError> {
    if !update.spec.save_plan.unwrap_or_default() || outcome.failure.is_some() {
        return Ok(Stored::Yes);
    }
    if outcome.plan_file.is_empty() {
        return Ok(Stored::No("the agent returned no plan".to_owned()));
    }
    let name = names::plan_secret(&update.name_any());
    if context.stored_secrets.contains(update, &name) {
        return Ok(Stored::Yes);
    }
    let is_ours = |created: &Created<Secret>| match created {
        Created::New(_) => true,
        Created::Existing(found) => is_of(found, update) && file(found) == Some(&outcome.plan_file),
    };
    match context.writer.create(&secret(update, &outcome.plan_file)).await {
        Ok(created) if is_ours(&created) => {
            context.stored_secrets.insert(update, name);
            Ok(Stored::Yes)
        }
        Ok(_) => Ok(Stored::No(format!("Secret {name} exists but does not belong to this run; delete the Secret"))),
        Err(error) => refused(error, may_retry),
    }
}

/// Reads the plan of a run, and verifies its digest.
pub async fn load(update: &Update, context: &Context) -> Result<PlanFile, ReadError> {
    let Some(reference) = &update.spec.plan else { return Ok(PlanFile::NotNeeded) };
    let namespace = update.namespace().unwrap_or_default();
    let name = names::plan_secret(&reference.update_name);
    Ok(verified(reference, context.reader.get_opt::<Secret>(&namespace, &name).await?.as_ref(), &name))
}

fn verified(reference: &PlanReference, secret: Option<&Secret>, name: &str) -> PlanFile {
    let Some(secret) = secret else {
        return PlanFile::Unavailable(format!("Secret {name} with the plan not found"));
    };
    match file(secret) {
        Some(bytes) if Digest::of(bytes) == reference.file_digest => PlanFile::Found(bytes.clone()),
        Some(_) => PlanFile::Unavailable(format!("the plan in Secret {name} has changed")),
        None => PlanFile::Unavailable(format!("Secret {name} has no key {KEY}")),
    }
}

fn file(secret: &Secret) -> Option<&Vec<u8>> {
    Some(&secret.data.as_ref()?.get(KEY)?.0)
}

fn secret(update: &Update, plan: &[u8]) -> Secret {
    let data = json!({KEY: STANDARD.encode(plan)});
    owned_secret(update, &names::plan_secret(&update.name_any()), &json!({}), &data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::UpdateSpec;

    #[test]
    fn a_plan_is_used_only_if_its_digest_matches() {
        let mut update = Update::new("web-1", UpdateSpec::default());
        update.metadata.uid = Some("uid-1".to_owned());
        let stored = secret(&update, b"plan");
        assert_eq!((stored.name_any().as_str(), stored.immutable), ("web-1-plan", Some(true)));
        assert!(is_of(&stored, &update));
        let reference =
            |content: &[u8]| PlanReference { update_name: "web-1".to_owned(), file_digest: Digest::of(content) };
        assert_eq!(verified(&reference(b"plan"), Some(&stored), "web-1-plan"), PlanFile::Found(b"plan".to_vec()));
        let rows = [
            (Some(&stored), "the plan in Secret web-1-plan has changed"),
            (Some(&Secret::default()), "Secret web-1-plan has no key plan.json.gz"),
            (None, "Secret web-1-plan with the plan not found"),
        ];
        for (secret, expected) in rows {
            let found = verified(&reference(b"other"), secret, "web-1-plan");
            assert_eq!(found, PlanFile::Unavailable(expected.to_owned()));
        }
    }
}
