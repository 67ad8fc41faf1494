//! Tests for the watches, and for a reconciliation that waits until the caches are complete.

mod watches {
    use jiff::Timestamp;

    use super::super::*;
    use crate::api::auto::{RunBinding, RunProgress, UpdateSpec, UpdateStatus};
    use crate::api::conditions::{ConditionUpdate, PROGRESSING, Status};

    fn update(status: UpdateStatus) -> Update {
        let mut update = Update::new("app-1", UpdateSpec::default());
        update.status = Some(status);
        update
    }

    fn says(progressing: Status, reason: &str, change: fn(&mut UpdateStatus)) -> String {
        let mut status = UpdateStatus::default();
        let condition = ConditionUpdate { kind: PROGRESSING, status: progressing, reason, message: "detail" };
        conditions::set(&mut status.conditions, &condition, 1, Timestamp::UNIX_EPOCH);
        change(&mut status);
        update_state(&update(status))
    }

    #[test]
    fn a_changed_run_phase_requeues_the_stack_but_a_resource_name_does_not() {
        let progress = |done: i64, name: &str| {
            let name = Some(name.to_owned());
            Some(RunProgress { resources_done: done, resources_total: 2, name, ..RunProgress::default() })
        };
        let phases = [
            update_state(&update(UpdateStatus::default())),
            says(Status::False, "Queued", |_| ()),
            says(Status::False, "WorkspaceNotReady", |_| ()),
            says(Status::True, "Progressing", |status| status.run = Some(RunBinding::default())),
            says(Status::True, "Progressing", |status| {
                status.run = Some(RunBinding::default());
                status.progress = Some(RunProgress { resources_total: 2, ..RunProgress::default() });
            }),
            says(Status::True, "Progressing", |status| {
                status.run = Some(RunBinding::default());
                status.phase = Some(UpdatePhase::Canceling);
            }),
            says(Status::Unknown, "RunOutcomeUnknown", |status| status.run = Some(RunBinding::default())),
        ];
        for (number, phase) in phases.iter().enumerate() {
            assert!(!phases[..number].contains(phase), "phase {number}: {phase}");
        }
        let with = |progress| update_state(&update(UpdateStatus { progress, ..UpdateStatus::default() }));
        assert_eq!(with(progress(1, "a")), with(progress(1, "b")));
        assert_ne!(with(progress(1, "a")), with(progress(2, "a")));
        let step = |step: &str| Some(RunProgress { step: Some(step.to_owned()), ..RunProgress::default() });
        assert_ne!(with(step("selecting the stack")), with(step("opening the stack")));
        assert_eq!(with(None), with(Some(RunProgress { pid: Some(7), ..RunProgress::default() })));
    }
}

mod caches {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::super::*;
    use crate::api::auto::UpdateKind;
    use crate::api::names;
    use crate::api::pulumi::{CurrentUpdate, LastUpdate, PulumiStack, StackSpec, StackStatus};
    use crate::controller::stack::stacks;
    use crate::controller::test_parts::TestParts;
    use crate::controller::update::updates;
    use crate::runtime::fake_api::{FakeResponse, client};

    #[test]
    fn a_cached_stack_shows_whether_its_last_run_is_the_preview_of_a_plan() {
        let mut stack = Stack::new("web", StackSpec { preview: Some(true), ..StackSpec::default() });
        let last = LastUpdate { kind: Some("preview".to_owned()), ..LastUpdate::default() };
        stack.status = Some(StackStatus { last_update: Some(last.clone()), ..StackStatus::default() });
        strip_unused_fields(&mut stack, &[]);
        assert_eq!(stack.spec.preview, Some(true));
        assert_eq!(stack.status.and_then(|status| status.last_update), Some(last));
    }

    #[test]
    fn the_deletion_of_a_stack_before_its_destroy_is_reported() {
        let reported = |is_deleted: bool, last: Option<&str>, open: Option<UpdateKind>, destroys: bool| {
            let spec = StackSpec { stack: "dev".into(), destroy_on_finalize: Some(destroys), ..StackSpec::default() };
            let mut stack = Stack::new("web", spec);
            stack.metadata.finalizers = Some(vec![names::STACK_FINALIZER.to_owned()]);
            let now = Time(jiff::Timestamp::UNIX_EPOCH);
            stack.metadata.deletion_timestamp = is_deleted.then_some(now);
            let last_update = last.map(|last| LastUpdate {
                kind: Some(last.to_owned()),
                state: Some("succeeded".to_owned()),
                ..LastUpdate::default()
            });
            let pulumi_stack = Some(PulumiStack { name: "dev".to_owned(), ..PulumiStack::default() });
            let applied_stack = pulumi_stack.clone().filter(|_| last.is_some());
            let current_update = open.map(|kind| {
                Box::new(CurrentUpdate { name: "web-1".to_owned(), kind, pulumi_stack, ..CurrentUpdate::default() })
            });
            stack.status = Some(StackStatus { applied_stack, last_update, current_update, ..StackStatus::default() });
            strip_unused_fields(&mut stack, &[]);
            run_events::left_by_removed_finalizer(&stack).map(|event| event.message)
        };
        let (up, destroy) = (Some(UpdateKind::Up), Some(UpdateKind::Destroy));
        let rows = [
            (
                reported(true, Some("up"), None, true),
                "because a client removed its finalizer; its resources in stack dev in",
            ),
            (reported(true, Some("up"), destroy, true), "the destroy web-1. A destroy that has started continues."),
            (reported(true, Some("up"), up, true), "during the run web-1; its resources in stack dev in"),
            (reported(true, None, up, true), "during the run web-1; its resources in stack dev in"),
        ];
        for (message, expected) in rows {
            assert!(message.as_ref().is_some_and(|message| message.contains(expected)), "{message:?}: {expected}");
        }
        assert_eq!(reported(true, Some("destroy"), None, true), None, "the destroy has succeeded");
        assert_eq!(reported(true, Some("up"), None, false), None, "the user keeps the resources");
        assert_eq!(reported(false, Some("up"), None, true), None, "the Stack is not being deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stack_waits_until_the_update_and_stack_caches_are_synced() {
        let (client, log) = client(|_| FakeResponse::refusal(404, "NotFound"));
        let parts = TestParts::new(client);
        let (stacks, mut stacks_writer) = stacks();
        let (updates, mut updates_writer) = updates();
        let context = Arc::new(Context::of(&parts, stacks, updates));
        let mut stack = Stack::new("web", StackSpec { stack: "dev".to_owned(), ..StackSpec::default() });
        stack.metadata.namespace = Some("apps".to_owned());
        let stack = Arc::new(stack);
        for missing in ["Stack, Update", "Update"] {
            let error = reconcile(stack.clone(), context.clone()).await.expect_err("should wait for the cache");
            assert_eq!(error.to_string(), format!("waiting for cache sync of {missing}"));
            assert!(log.all().is_empty(), "unexpected requests: {:?}", log.verbs());
            for event in [Event::Init, Event::InitDone] {
                stacks_writer.apply(&event);
            }
        }
        for event in [Event::Init, Event::InitDone] {
            updates_writer.apply(&event);
        }
        assert_eq!(reconcile(stack, context).await.expect("a deleted Stack"), Outcome::Settled);
        assert_eq!(log.verbs(), ["GET /apis/pulumi.com/v1/namespaces/apps/stacks/web"]);
    }
}
