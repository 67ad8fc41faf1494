//! Tests Stacks that only run previews, that expect no changes from a refresh, or that do not create their Pulumi
//! stack.

use pulumi_controller::api::auto::{Update, UpdateKind};
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{LiteralRef, ResourceRef, Stack};
use serde_json::json;

use crate::harness::{Program, WaitLimit, condition, has_condition, is_done, once, run};

fn with_text(text: &str) -> Program {
    Program::new("preview").step("step", json!({"value": text}))
}

#[test]
fn a_preview_reports_changes_without_applying_them() {
    run("preview", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.preview = Some(true);
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        let previewed = |revision: String| {
            move |stack: &Stack| {
                let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
                is_done(stack) && last.and_then(|last| last.last_attempted_commit.as_ref()) == Some(&revision)
            }
        };
        let stack = main.until("to be previewed", WaitLimit::Run, previewed(first.revision())).await;
        let status = stack.status.clone().expect("a status");
        let last = status.last_update.clone().expect("a run");
        assert_eq!((last.kind.as_deref(), last.changes.get("create")), (Some("preview"), Some(&2)));
        let ready = condition(&stack, READY).expect("Ready condition").message.clone();
        assert_eq!(ready, format!("preview: 2 to create ({})", first.revision()));
        assert!(has_condition(&stack, READY, "True", stack_reason::PREVIEWED));
        assert_eq!(last.last_successful_commit, None, "no revision was applied");
        assert_eq!((status.last_applied_revision, status.outputs.len()), (None, 0), "nothing was applied");
        assert!(main.log.operations().await.is_empty());

        main.change(json!({"spec": {"preview": false}})).await;
        main.until_applied(&first).await;
        main.change(json!({"spec": {"preview": true}})).await;
        let second = source.push(&with_text("two").files()).await;
        let stack = main.until("to be previewed", WaitLimit::Run, previewed(second.revision())).await;
        let ready = condition(&stack, READY).expect("Ready condition").message.clone();
        assert_eq!(ready, format!("preview: 1 to update ({})", second.revision()));
        let last = stack.status.as_ref().and_then(|status| status.last_update.clone()).unwrap_or_default();
        assert_eq!(last.last_successful_commit, Some(first.revision()), "the applied revision is unchanged");
        let applied = stack.status.and_then(|status| status.last_applied_revision);
        assert_eq!(applied, Some(first.revision()), "the applied revision is unchanged");

        let broken = source.push(&with_text("${nothing.here}").files()).await;
        main.until("to report that its preview failed", WaitLimit::Run, |stack| {
            has_condition(stack, READY, "False", stack_reason::PREVIEW_FAILED)
                && stack.status.as_ref().and_then(|status| status.last_attempted_revision.clone())
                    == Some(broken.revision())
        })
        .await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "the preview destroys no resource");
        main.until_event("ResourcesOrphaned").await;
    });
}

#[test]
fn a_run_with_unexpected_drift_fails_until_drift_is_allowed() {
    run("drift", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.refresh = Some(true);
        stack.spec.expect_no_refresh_changes = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&first).await;

        let literal = Some(LiteralRef { value: "step".to_owned() });
        let gone = ResourceRef { kind: "Literal".to_owned(), literal, ..ResourceRef::default() };
        main.change(json!({"spec": {"envRefs": {"PROVIDER_GONE": gone}}})).await;
        let reported = |stack: &Stack| {
            has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
                && condition(stack, READY).is_some_and(|ready| ready.message.contains("no changes were expected"))
        };
        main.until("to report the drift", WaitLimit::Run, reported).await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "no resource is changed");

        main.change(json!({"spec": {"expectNoRefreshChanges": null, "envRefs": {"PROVIDER_GONE": null}}})).await;
        main.until_applied(&first).await;
    });
}

#[test]
fn use_local_stack_only_never_creates_the_stack() {
    run("must-exist", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&with_text("one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.use_local_stack_only = Some(true);
        let main = scene.start(stack).await;
        main.until("to report that the stack does not exist", WaitLimit::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.message.contains("this run must not create it"))
        })
        .await;
        assert!(main.log.operations().await.is_empty());
        main.change(json!({"spec": {"useLocalStackOnly": null, "secretsProvider": "passphrase"}})).await;
        main.until_applied(&commit).await;
        // The Pulumi stack now exists, so the run succeeds even with `initOnCreate: false`.
        main.change(json!({"spec": {"initOnCreate": false}})).await;
        let stack = main.until_applied(&commit).await;
        assert!(condition(&stack, STALLED).is_none());
        assert_eq!(main.log.operations().await, once(&["create step"]));
        let kinds: Vec<UpdateKind> = main.updates().await.iter().map(|update: &Update| update.spec.kind).collect();
        assert!(kinds.iter().all(|kind| *kind == UpdateKind::Up), "{kinds:?}");
    });
}
