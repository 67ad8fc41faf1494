//! Plan in the status of a Stack.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;

use crate::api::auto::{PlannedResource, PreviewOf, Update, UpdateKind};
use crate::api::conditions::update_reason;
use crate::api::pulumi::{CurrentUpdate, LastUpdate, Stack, StackPlan};
use crate::artifact::Digest;

/// Maximum number of changed resources in a Stack's status. The status of the Update can contain more resources.
const MAX_RESOURCES: usize = 50;

/// Returns whether the recorded run is a destroy or a preview of a destroy.
pub fn is_of_destroy(current: &CurrentUpdate) -> bool {
    current.kind == UpdateKind::Destroy || current.preview_of == Some(PreviewOf::Destroy)
}

/// Returns the Stack's plan after a completed run: the plan that the run saved, or the plan that the run could not
/// execute yet. Returns `None` if the run has executed the plan, because the plan no longer matches the Pulumi state.
/// This also applies to a failed run.
pub fn after_run(
    stack: &Stack,
    current: &CurrentUpdate,
    update: &Update,
    last: &LastUpdate,
    now: Timestamp,
) -> Option<StackPlan> {
    if current.save_plan.unwrap_or_default() {
        return saved(stack, current, update, now).filter(|_| last.reason.is_none());
    }
    let reason = last.reason.as_deref().filter(|_| current.plan.is_some())?;
    let plan = stack.status.as_ref()?.plan.as_deref()?.clone();
    let has_not_started = matches!(
        reason,
        update_reason::UPDATE_CONFLICT | update_reason::RUN_REFUSED | update_reason::BACKEND_UNAVAILABLE
    );
    has_not_started.then_some(plan)
}

/// Returns the plan that a preview has saved.
fn saved(stack: &Stack, current: &CurrentUpdate, update: &Update, now: Timestamp) -> Option<StackPlan> {
    let status = update.status.as_ref()?;
    let plan = status.plan.as_ref()?;
    let file_digest = plan.file_digest.clone()?;
    let without_properties =
        |resource: &PlannedResource| PlannedResource { properties: Vec::new(), ..resource.clone() };
    Some(StackPlan {
        digest: digest(stack, current, update, &file_digest),
        update_name: update.name_any(),
        file_digest,
        operation: current.preview_of.unwrap_or_default(),
        refresh: current.refresh,
        revision: current.commit.clone(),
        changes: status.changes.clone(),
        resources: plan.resources.iter().take(MAX_RESOURCES).map(without_properties).collect(),
        resource_count: plan.resource_count,
        created: Some(Time(now)),
    })
}

/// Returns the digest of a plan. Returns the digest of everything that determines the plan's changes. The digest also
/// covers the UID of the Stack, so an Approval does not apply to another Stack with the same name, and the name of the
/// preview, so an Approval does not apply to a later plan with the same changes.
fn digest(stack: &Stack, current: &CurrentUpdate, update: &Update, file: &Digest) -> Digest {
    let status = update.status.as_ref();
    let content = json!({
        "stack": stack.uid(),
        // The plan file of a destroy is the list of the deletions, which can be the same in the next plan.
        "preview": update.name_any(),
        "pulumiStack": update.spec.stack_name,
        "operation": current.preview_of.unwrap_or_default(),
        "artifact": current.inputs.digest,
        "directory": current.dir,
        "settings": status.and_then(|status| status.run.as_ref()).map(|run| &run.settings_digest),
        "configInputs": status.and_then(|status| status.config_inputs.as_ref()).or(current.inputs.config_inputs.as_ref()),
        "mountedInputs": current.inputs.mounted_inputs,
        "file": file,
    });
    Digest::of(content.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{RunBinding, UpdatePlan, UpdateSpec, UpdateStatus};
    use crate::api::pulumi::{ApprovedPlan, RunInputs, StackSpec, StackStatus};

    fn stack() -> Stack {
        let mut stack = Stack::new("web", StackSpec::default());
        stack.metadata.uid = Some("uid-1".to_owned());
        stack
    }

    fn preview() -> CurrentUpdate {
        let inputs = RunInputs { digest: Some(Digest::of(b"a")), ..RunInputs::default() };
        let (save_plan, preview_of) = (Some(true), Some(PreviewOf::Up));
        CurrentUpdate { kind: UpdateKind::Preview, inputs, save_plan, preview_of, ..CurrentUpdate::default() }
    }

    fn update(file: &[u8]) -> Update {
        let mut update = Update::new("web-1", UpdateSpec { stack_name: "dev".to_owned(), ..UpdateSpec::default() });
        let resource = PlannedResource {
            urn: "urn:pulumi:dev::web::a:b:C::d".to_owned(),
            operation: "delete".to_owned(),
            properties: vec!["p".to_owned()],
        };
        let plan =
            UpdatePlan { file_digest: Some(Digest::of(file)), resources: vec![resource; 60], resource_count: 60 };
        let run = RunBinding { settings_digest: "sha256:1".to_owned(), ..RunBinding::default() };
        update.status = Some(UpdateStatus { plan: Some(plan), run: Some(run), ..UpdateStatus::default() });
        update
    }

    fn recorded(stack: &Stack, current: &CurrentUpdate, update: &Update, reason: Option<&str>) -> Option<StackPlan> {
        let last = LastUpdate { reason: reason.map(str::to_owned), ..LastUpdate::default() };
        after_run(stack, current, update, &last, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_preview_records_its_plan_only_after_a_success() {
        let plan = recorded(&stack(), &preview(), &update(b"p"), None).unwrap();
        assert_eq!((plan.update_name.as_str(), plan.resource_count, plan.resources.len()), ("web-1", 60, 50));
        assert!(plan.resources[0].properties.is_empty());
        assert_eq!(recorded(&stack(), &preview(), &update(b"p"), Some("UpdateFailed")), None);
    }

    #[test]
    fn a_failed_run_keeps_its_plan_only_if_it_has_not_started() {
        let mut stack = stack();
        let plan = recorded(&stack, &preview(), &update(b"p"), None).unwrap();
        let (digest, update_name, file_digest) = (plan.digest.clone(), "web-1".to_owned(), plan.file_digest.clone());
        stack.status = Some(StackStatus { plan: Some(Box::new(plan)), ..StackStatus::default() });
        let approved = ApprovedPlan { digest, update_name, file_digest, approved_by: Vec::new() };
        let up = CurrentUpdate { plan: Some(approved), ..CurrentUpdate::default() };
        let keeps = |reason: Option<&str>| recorded(&stack, &up, &update(b"p"), reason).is_some();
        for reason in ["UpdateConflict", "RunRefused", "BackendUnavailable"] {
            assert!(keeps(Some(reason)), "{reason}");
        }
        for reason in ["UpdateFailed", "PlanViolated", "Aborted", "Canceled"] {
            assert!(!keeps(Some(reason)), "{reason}");
        }
        assert!(!keeps(None), "a successful run has executed the plan");
    }

    #[test]
    fn the_digest_covers_the_stack_the_artifact_the_settings_the_inputs_and_the_file() {
        let digest = |stack: &Stack, current: &CurrentUpdate, update: &Update| {
            recorded(stack, current, update, None).unwrap().digest
        };
        let first = digest(&stack(), &preview(), &update(b"p"));
        assert_eq!(digest(&stack(), &preview(), &update(b"p")), first, "the digest is deterministic");
        let mut another_stack = stack();
        another_stack.metadata.uid = Some("uid-2".to_owned());
        let with_inputs = |inputs| CurrentUpdate { inputs, ..preview() };
        let artifact = with_inputs(RunInputs { digest: Some(Digest::of(b"b")), ..RunInputs::default() });
        let mounted =
            RunInputs { mounted_inputs: [("Secret/a".to_owned(), "1".to_owned())].into(), ..preview().inputs };
        let directory = CurrentUpdate { dir: Some("apps".to_owned()), ..preview() };
        let destroy = CurrentUpdate { preview_of: Some(PreviewOf::Destroy), ..preview() };
        let changed_status = |change: fn(&mut UpdateStatus)| {
            let mut update = update(b"p");
            update.status.iter_mut().for_each(change);
            update
        };
        let settings = changed_status(|status| {
            status.run = Some(RunBinding { settings_digest: "sha256:2".to_owned(), ..RunBinding::default() });
        });
        let config = changed_status(|status| status.config_inputs = Some("2".to_owned()));
        let mut later = update(b"p");
        later.metadata.name = Some("web-2".to_owned());
        let others = [
            ("a later preview", digest(&stack(), &preview(), &later)),
            ("stack", digest(&another_stack, &preview(), &update(b"p"))),
            ("artifact", digest(&stack(), &artifact, &update(b"p"))),
            ("directory", digest(&stack(), &directory, &update(b"p"))),
            ("operation", digest(&stack(), &destroy, &update(b"p"))),
            ("mounted inputs", digest(&stack(), &with_inputs(mounted), &update(b"p"))),
            ("settings", digest(&stack(), &preview(), &settings)),
            ("config inputs", digest(&stack(), &preview(), &config)),
            ("file", digest(&stack(), &preview(), &update(b"q"))),
        ];
        for (name, other) in others {
            assert_ne!(other, first, "{name}");
        }
    }
}
