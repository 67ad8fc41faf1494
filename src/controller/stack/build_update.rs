//! Builds the Update for a run of a Stack.

use kube::ResourceExt;

use crate::api::auto::{PlanReference, PreviewOf, Update, UpdateKind, UpdateSpec};
use crate::api::pulumi::{CurrentUpdate, Stack};
use crate::api::{bounds, conditions, names};
use crate::artifact::Digest;
use crate::controller::merge;
use crate::controller::stack::approval::is_of_destroy;
use crate::controller::stack::build_workspace::StackSpecError;
use crate::controller::stack::ownership;
use crate::controller::stack::run::artifact_of;

/// Returns the recorded run, with the digest of its Update's spec.
///
/// # Errors
///
/// Returns an error if `updateTemplate` is invalid or too large.
pub fn with_spec_digest(stack: &Stack, current: &CurrentUpdate) -> Result<CurrentUpdate, StackSpecError> {
    let update = update(stack, current)?;
    Ok(CurrentUpdate { spec_digest: Some(spec_digest(&update)), ..current.clone() })
}

/// Returns whether an Update has the spec of the recorded run. The specs can differ, because users can create an Update
/// with the name of the next run, or change the spec of an Update. A run without a digest matches every Update, because
/// earlier versions and the Pulumi Kubernetes Operator recorded no digest.
pub fn is_recorded(update: &Update, current: &CurrentUpdate) -> bool {
    let Some(recorded) = &current.spec_digest else { return true };
    let actual = spec_digest(update);
    actual == *recorded || Some(&actual) == current.first_spec_digest.as_ref()
}

/// Returns the run's record with the digest of the created Update. Returns `None` if the record is unchanged: no
/// admission webhook or policy has changed the spec, and the API server has not rejected the Update before.
pub fn with_created(current: &CurrentUpdate, created: &Update) -> Option<CurrentUpdate> {
    let is_unchanged = is_recorded(created, current) && current.rejected.is_none();
    (!is_unchanged).then(|| CurrentUpdate {
        spec_digest: Some(spec_digest(created)),
        rejected: None,
        ..current.clone()
    })
}

/// Returns the digest of an Update's spec, without the time at which the run became due. The digest excludes this time
/// because the API server rounds it, and because it determines only the position in the queue.
fn spec_digest(update: &Update) -> Digest {
    let spec = UpdateSpec { pending_since: None, ..update.spec.clone() };
    Digest::of(&serde_json::to_vec(&spec).unwrap_or_default())
}

/// Returns the Update of the recorded run `current`. The controller creates the Update with both finalizers. The Update
/// therefore exists until the run is complete and the Stack's status contains the result.
///
/// # Errors
///
/// Returns an error if `updateTemplate` is invalid or too large.
pub fn update(stack: &Stack, current: &CurrentUpdate) -> Result<Update, StackSpecError> {
    let is_destroy = is_of_destroy(current);
    // The command `pulumi refresh` has no option to refresh the Pulumi state first.
    let previews_refresh = current.preview_of == Some(PreviewOf::Refresh);
    let refreshes_state = |_: &bool| !is_destroy && !previews_refresh;
    let refresh = current.refresh.or(stack.spec.refresh).filter(refreshes_state);
    let refreshes = refresh.unwrap_or_default();
    let expects_no_drift =
        refreshes && current.refresh.is_none() && stack.spec.expect_no_refresh_changes.unwrap_or_default();
    let message = message(current);
    let spec = UpdateSpec {
        workspace_name: stack.name_any(),
        stack_name: stack.spec.stack.clone(),
        kind: current.kind,
        artifact: artifact_of(current),
        source: current.source.clone().map(Box::new),
        message: Some(message.clone()),
        refresh,
        expect_no_refresh_changes: expects_no_drift.then_some(true),
        target: if is_destroy { Vec::new() } else { stack.spec.targets.clone() },
        target_dependents: stack.spec.target_dependents.filter(|_| !is_destroy),
        run_program: stack.spec.run_program.filter(|_| is_destroy || refreshes || previews_refresh),
        remove: stack.spec.remove_stack.filter(|_| current.kind == UpdateKind::Destroy),
        preview_of: current.preview_of,
        save_plan: current.save_plan,
        plan: current.plan.as_ref().map(|plan| {
            Box::new(PlanReference { update_name: plan.update_name.clone(), file_digest: plan.file_digest.clone() })
        }),
        policy_packs_digest: current.policy_packs_digest.clone(),
        applied_stack: stack.status.as_ref().and_then(|status| status.applied_stack.clone()),
        create_stack: current.create_stack,
        applied_by_others: current.applied_by_others.clone(),
        priority: stack.spec.priority,
        background: current.background,
        concurrency_group: stack.spec.concurrency_group.clone(),
        pending_since: stack.status.as_ref().and_then(|status| status.pending_since.clone()),
        timeout: stack.spec.timeout.clone(),
        idle_timeout: stack.spec.idle_timeout.clone(),
        lock_recovery: stack.spec.lock_recovery,
        // A preview creates no resources, so it needs no check for pending creates.
        pending_creates: current.pending_creates.filter(|_| current.kind != UpdateKind::Preview),
        ..UpdateSpec::default()
    };
    let generated = Update::new(&current.name, spec);
    merge::check_size("updateTemplate", stack.spec.update_template.as_ref(), bounds::SMALL_TEMPLATE_BYTES)?;
    let mut update = match &stack.spec.update_template {
        Some(template) => {
            merge::update_template(&generated, template).map_err(|error| StackSpecError::Template(error.to_string()))?
        }
        None => generated,
    };
    remove_unsupported(&mut update.spec, current);
    if update.spec.message.as_ref() != Some(&message)
        && let Some(source) = &mut update.spec.source
    {
        // Otherwise, the CLI would replace the template's message with the commit message.
        source.message = None;
    }
    update.metadata.namespace = stack.namespace();
    // A directive in the template can remove the labels, so the controller adds the labels after the merge.
    update.metadata.labels.get_or_insert_default().extend(ownership::labels(stack));
    update.metadata.owner_references = ownership::references(stack);
    update.metadata.finalizers = Some(vec![names::UPDATE_FINALIZER.to_owned(), names::STACK_FINALIZER.to_owned()]);
    Ok(update)
}

/// Removes the options of `updateTemplate` that the run does not support.
fn remove_unsupported(spec: &mut UpdateSpec, current: &CurrentUpdate) {
    if is_of_destroy(current) {
        // A destroy with targets would leave resources that no Stack manages.
        (spec.target, spec.target_dependents) = (Vec::new(), None);
    }
    if current.save_plan.unwrap_or_default() {
        // The plan belongs to the Update. If the Update expired while the plan waits for an approval, the controller
        // would repeat the preview.
        spec.ttl_after_completed = None;
    }
}

/// Returns the message for the backend's update history: the reason for the run, and the origin revision of its
/// artifact.
fn message(current: &CurrentUpdate) -> String {
    let max_length = usize::try_from(bounds::MESSAGE).unwrap_or(usize::MAX);
    match &current.origin_revision {
        Some(origin) => conditions::shorten(&format!("{} (origin revision: {origin})", current.message), max_length),
        None => conditions::shorten(&current.message, max_length),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::auto::SourceMetadata;
    use crate::api::pulumi::{PulumiStack, StackSpec, StackStatus};

    fn stack(spec: serde_json::Value) -> Stack {
        let mut whole = json!({"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let spec: StackSpec = serde_json::from_value(whole).unwrap();
        let mut stack = Stack::new("app", spec);
        stack.metadata.namespace = Some("apps".to_owned());
        stack.metadata.uid = Some("uid-1".to_owned());
        stack
    }

    fn current(kind: UpdateKind) -> CurrentUpdate {
        CurrentUpdate { name: "app-1".to_owned(), kind, ..CurrentUpdate::default() }
    }

    #[test]
    fn each_run_type_gets_only_the_options_that_it_supports() {
        let stack = stack(json!({
            "refresh": true, "expectNoRefreshChanges": true, "targets": ["urn"], "targetDependents": true, "runProgram": true,
            "removeStack": true,
        }));
        let options = |kind| {
            let spec = update(&stack, &current(kind)).unwrap().spec;
            let UpdateSpec {
                refresh, expect_no_refresh_changes, target, target_dependents, run_program, remove, ..
            } = spec;
            json!([refresh, expect_no_refresh_changes, target, target_dependents, run_program, remove])
        };
        assert_eq!(options(UpdateKind::Up), json!([true, true, ["urn"], true, true, null]));
        assert_eq!(options(UpdateKind::Preview), json!([true, true, ["urn"], true, true, null]));
        let destroy = json!([null, null, [], null, true, true]);
        assert_eq!(options(UpdateKind::Destroy), destroy);
        let template =
            json!({"spec": {"target": ["urn"], "targetDependents": true, "remove": true, "runProgram": true}});
        let stack = self::stack(json!({ "updateTemplate": template }));
        let UpdateSpec { target, target_dependents, remove, .. } =
            update(&stack, &current(UpdateKind::Destroy)).unwrap().spec;
        assert_eq!((target, target_dependents, remove), (Vec::new(), None, Some(true)), "a destroy has no targets");
        assert_eq!(update(&stack, &current(UpdateKind::Up)).unwrap().spec.target, ["urn"]);
    }

    #[test]
    fn each_run_that_refreshes_the_state_runs_the_program_if_requested() {
        let run_program = |spec, current: CurrentUpdate| update(&stack(spec), &current).unwrap().spec.run_program;
        let up = || current(UpdateKind::Up);
        let check = |of| CurrentUpdate { preview_of: Some(of), ..current(UpdateKind::Preview) };
        let once = CurrentUpdate { refresh: Some(true), ..up() };
        for (current, without, with) in [
            (up(), None, Some(true)),
            (once, Some(true), Some(true)),
            (current(UpdateKind::Preview), None, Some(true)),
            (current(UpdateKind::Destroy), Some(true), Some(true)),
            (check(PreviewOf::Refresh), Some(true), Some(true)),
            (check(PreviewOf::Destroy), Some(true), Some(true)),
            (CurrentUpdate { refresh: Some(true), ..check(PreviewOf::Up) }, Some(true), Some(true)),
        ] {
            assert_eq!(run_program(json!({"runProgram": true}), current.clone()), without, "{current:?}");
            assert_eq!(run_program(json!({"runProgram": true, "refresh": true}), current.clone()), with, "{current:?}");
            assert_eq!(run_program(json!({"refresh": true}), current), None);
        }
    }

    #[test]
    fn no_template_removes_the_labels_of_the_stack() {
        let without = stack(json!({}));
        let expected = update(&without, &current(UpdateKind::Up)).unwrap().metadata.labels;
        assert_eq!(expected, Some(ownership::labels(&without)));
        for labels in [json!({"$patch": "delete"}), json!({"$patch": "replace"}), json!({"pulumi.com/stack-name": "b"})]
        {
            let stack = stack(json!({"updateTemplate": {"metadata": {"labels": labels}}}));
            assert_eq!(update(&stack, &current(UpdateKind::Up)).unwrap().metadata.labels, expected, "{labels}");
        }
    }

    #[test]
    fn a_run_contains_the_applied_stack_and_the_permission_to_create_it() {
        let mut stack = stack(json!({}));
        let applied = PulumiStack { name: "acme/dev".to_owned(), ..PulumiStack::default() };
        stack.status = Some(StackStatus { applied_stack: Some(applied.clone()), ..StackStatus::default() });
        for (kind, create_stack) in [(UpdateKind::Up, None), (UpdateKind::Up, Some(true)), (UpdateKind::Destroy, None)]
        {
            let spec = update(&stack, &CurrentUpdate { create_stack, ..current(kind) }).unwrap().spec;
            assert_eq!((spec.applied_stack, spec.create_stack), (Some(applied.clone()), create_stack), "{kind:?}");
        }
    }

    #[test]
    fn an_update_template_overrides_remove_stack() {
        let removes =
            |spec: serde_json::Value| update(&stack(spec), &current(UpdateKind::Destroy)).unwrap().spec.remove;
        let template = |remove: bool| json!({"spec": {"remove": remove}});
        assert_eq!(removes(json!({})), None);
        assert_eq!(removes(json!({"removeStack": true})), Some(true));
        assert_eq!(removes(json!({"updateTemplate": template(true)})), Some(true));
        assert_eq!(removes(json!({"removeStack": true, "updateTemplate": template(false)})), Some(false));
    }

    #[test]
    fn the_message_contains_the_origin_revision_of_the_artifact() {
        let message = |origin: Option<&str>| {
            let current = CurrentUpdate {
                message: "Initial stack update".to_owned(),
                origin_revision: origin.map(str::to_owned),
                ..current(UpdateKind::Up)
            };
            update(&stack(json!({})), &current).unwrap().spec.message.unwrap()
        };
        assert_eq!(message(None), "Initial stack update");
        assert_eq!(message(Some("main@sha1:a")), "Initial stack update (origin revision: main@sha1:a)");
        let long = message(Some(&"x".repeat(10_000)));
        assert!(long.len() == bounds::MESSAGE as usize && long.ends_with("..."), "{}", long.len());
    }

    #[test]
    fn an_update_with_a_plan_does_not_expire() {
        let stack = stack(json!({"updateTemplate": {"spec": {"ttlAfterCompleted": "0s"}}}));
        let expires = |save_plan: Option<bool>| {
            let current = CurrentUpdate { save_plan, ..current(UpdateKind::Preview) };
            update(&stack, &current).unwrap().spec.ttl_after_completed
        };
        assert_eq!((expires(None).as_deref(), expires(Some(true))), (Some("0s"), None));
    }

    #[test]
    fn the_update_contains_the_git_metadata_of_the_source() {
        let (head, message) = (Some("1a2b".to_owned()), Some("Add a bucket".to_owned()));
        let source = SourceMetadata { head, message, ..SourceMetadata::default() };
        let current = CurrentUpdate { source: Some(source.clone()), ..current(UpdateKind::Up) };
        assert_eq!(update(&stack(json!({})), &current).unwrap().spec.source.as_deref(), Some(&source));
        let template = json!({"updateTemplate": {"spec": {"message": "Nightly run"}}});
        let expected = SourceMetadata { message: None, ..source };
        assert_eq!(
            update(&stack(template), &current).unwrap().spec.source.as_deref(),
            Some(&expected),
            "the template has a message"
        );
        let template = json!({"updateTemplate": {"spec": {"source": {}}}});
        let error = update(&stack(template), &current).unwrap_err().to_string();
        assert_eq!(error, "spec.updateTemplate.spec.source is not supported");
    }

    #[test]
    fn an_update_template_sets_options_but_not_the_identity_of_a_run() {
        let template = json!({"updateTemplate": {"metadata": {"labels": {"team": "a"}}, "spec": {"parallel": 2}}});
        let made = update(&stack(template), &current(UpdateKind::Up)).unwrap();
        assert_eq!((made.spec.parallel, made.spec.stack_name.as_str()), (Some(2), "dev"));
        assert_eq!(made.labels().get("team").map(String::as_str), Some("a"));
        assert_eq!((made.owner_references()[0].uid.as_str(), made.finalizers().len()), ("uid-1", 2));
        let wrong = json!({"updateTemplate": {"spec": {"type": "destroy"}}});
        let error = update(&stack(wrong), &current(UpdateKind::Up)).unwrap_err().to_string();
        assert_eq!(error, "spec.updateTemplate.spec.type is not supported");
    }
}
