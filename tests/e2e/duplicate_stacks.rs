//! Tests Stacks that manage the same Pulumi stack.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector, Stack};
use serde_json::json;

use crate::harness::{
    Commit, Program, Scene, Source, StackHandle, WaitLimit, condition, has_condition, is_done, once, run,
};

#[test]
fn a_duplicate_stack_stalls_until_the_first_stack_is_deleted() {
    run("duplicates", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("duplicates").step("step", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        let first = scene.start(scene.stack("first", &source)).await;
        first.until_applied(&commit).await;

        let same = first.get().await.spec.stack;
        let mut second = scene.stack("second", &source);
        second.spec.stack.clone_from(&same);
        second.spec.destroy_on_finalize = Some(true);
        let second = scene.start(second).await;
        let has_conflict = |stack: &Stack| has_condition(stack, STALLED, "True", stack_reason::UPDATE_CONFLICT);
        let stalled = second.until("to report the conflict", WaitLimit::Run, has_conflict).await;
        assert!(has_condition(&stalled, READY, "False", stack_reason::UPDATE_CONFLICT));
        let message = condition(&stalled, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default();
        for word in
            [same.as_str(), "project duplicates is already managed by Stack", &format!("{}/first", scene.namespace)]
        {
            assert!(message.contains(word), "{word} is missing in {message}");
        }
        assert!(second.updates().await.is_empty(), "no run has started");

        // A Stack that only previews the same Pulumi stack is not a duplicate.
        let mut preview = scene.stack("preview", &source);
        preview.spec.stack.clone_from(&same);
        preview.spec.preview = Some(true);
        let preview = scene.start(preview).await;
        preview.until("to be previewed", WaitLimit::Run, is_done).await;

        // Deleting a duplicate Stack destroys no resources.
        let mut third = scene.stack("third", &source);
        third.spec.stack.clone_from(&same);
        third.spec.destroy_on_finalize = Some(true);
        let third = scene.start(third).await;
        third.until("to report the conflict", WaitLimit::Run, has_conflict).await;
        third.delete().await;
        third.until_gone().await;
        assert_eq!(first.log.operations().await, once(&["create step"]));

        first.delete().await;
        first.until_gone().await;
        second.until_applied(&commit).await;
        assert_eq!(
            first.log.operations().await,
            once(&["create step"]),
            "the state of the first Stack matches the source"
        );
        second.delete().await;
        second.until_gone().await;
        assert_eq!(first.log.operations().await, once(&["create step", "delete step"]));
    });
}

#[test]
fn a_stack_with_the_same_name_in_another_namespace_is_not_blocked() {
    run("blocked", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("blocked").step("step", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        let first = scene.start(scene.stack("main", &source)).await;
        let named = first.until_applied(&commit).await.spec.stack;

        let other = Scene::new("blocked-too").await;
        source.track_in(&other).await;
        let mut stack = other.stack("main", &source);
        stack.spec.stack = named;
        stack.spec.destroy_on_finalize = Some(true);
        let second = other.start(stack).await;
        second.until_applied(&commit).await;
        second.delete().await;
        second.until_gone().await;
        assert_eq!(
            first.log.operations().await,
            once(&["create step", "delete step"]),
            "the applied resources are destroyed"
        );
        other.remove().await;
    });
}

#[test]
fn a_duplicate_is_kept_until_its_other_resources_can_be_destroyed() {
    run("elsewhere", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("elsewhere").step("step", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        let first = scene.start(scene.stack("first", &source)).await;
        let managed = first.until_applied(&commit).await.spec.stack;
        let mut stack = scene.stack("second", &source);
        let own = stack.spec.stack.clone();
        stack.spec.destroy_on_finalize = Some(true);
        let second = scene.start(stack).await;
        second.until_applied(&commit).await;

        second.change(json!({"spec": {"stack": managed}})).await;
        let has_conflict = |stack: &Stack| has_condition(stack, STALLED, "True", stack_reason::UPDATE_CONFLICT);
        second.until("to report the conflict", WaitLimit::Reaction, has_conflict).await;
        second.delete().await;
        second
            .until("to report the location of its resources", WaitLimit::Reaction, |stack| {
                has_conflict(stack)
                    && condition(stack, STALLED).is_some_and(|stalled| stalled.message.contains("restore spec.stack"))
            })
            .await;
        second.change(json!({"spec": {"stack": own}})).await;
        second.until_gone().await;
        assert_eq!(second.log.operations().await, once(&["create step", "delete step"]));
        assert_eq!(first.log.operations().await, once(&["create step"]), "the resources of the other Stack remain");
    });
}

#[test]
fn a_first_run_with_its_backend_in_a_secret_does_not_use_the_pulumi_stack_of_another_stack() {
    run("hidden", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("hidden").step("step", json!({"value": "one"})).files()).await;
        let first = scene.start(scene.stack("first", &source)).await;
        let managed = first.until_applied(&commit).await.spec.stack;
        // This program does not contain the resources of the first Stack, so an `up` would delete them.
        let others = scene.source("others").await;
        let other = others.push(&Program::new("hidden").step("another", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("second", &others);
        // The other spelling of the URL and of the name refers to the same Pulumi stack.
        let url = stack.spec.backend.take().expect("the test environment sets a backend").replacen('?', "/?", 1);
        scene.create::<Secret>(json!({"metadata": {"name": "backend"}, "stringData": {"url": url}})).await;
        let secret = Some(SecretSelector { namespace: None, name: "backend".to_owned(), key: "url".to_owned() });
        let reference = ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() };
        stack.spec.env_refs.insert("PULUMI_BACKEND_URL".to_owned(), reference);
        stack.spec.stack = format!("organization/hidden/{managed}");
        stack.spec.destroy_on_finalize = Some(true);
        let third = Stack::new("third", stack.spec.clone());
        let has_conflict = |stack: &Stack| {
            has_condition(stack, STALLED, "True", stack_reason::UPDATE_CONFLICT)
                && condition(stack, STALLED).is_some_and(|stalled| {
                    let message = &stalled.message;
                    message.starts_with("Stack first manages stack") && message.contains("To hand the resources over")
                })
        };
        let second = scene.start(stack).await;
        second.until("to report the conflict", WaitLimit::Run, has_conflict).await;
        assert_eq!(first.log.operations().await, once(&["create step"]), "the resources remain");
        second.delete().await;
        second.until_gone().await;
        assert_eq!(first.log.operations().await, once(&["create step"]), "the resources remain");

        let third = scene.start(third).await;
        third.until("to report the conflict", WaitLimit::Run, has_conflict).await;
        first.delete().await;
        first.until_gone().await;
        third.until_applied(&other).await;
        let expected = once(&["create step", "create another", "delete step"]);
        assert_eq!(first.log.operations().await, expected, "the new Stack manages the Pulumi stack");
        third.delete().await;
        third.until_gone().await;
    });
}

/// Starts a Stack that destroys its resources when it is deleted, and returns it after its first run.
async fn applied_with_destroy<'a>(scene: &'a Scene, source: &Source<'_>) -> (StackHandle<'a>, Commit) {
    let program = Program::new("renamed").step("step", json!({"value": "one"}));
    let commit = source.push(&program.files()).await;
    let mut stack = scene.stack("before", source);
    stack.spec.destroy_on_finalize = Some(true);
    let before = scene.start(stack).await;
    before.until_applied(&commit).await;
    (before, commit)
}

/// Creates a Stack with the spec of `before` and another name, deletes `before`, and waits until both Stacks report the
/// conflict.
async fn rename<'a>(scene: &'a Scene, before: &StackHandle<'a>) -> StackHandle<'a> {
    let after = scene.start(Stack::new("after", before.get().await.spec)).await;
    before.delete().await;
    let has_message = |stack: &Stack, part: &str| {
        has_condition(stack, STALLED, "True", stack_reason::UPDATE_CONFLICT)
            && condition(stack, STALLED).is_some_and(|stalled| stalled.message.contains(part))
    };
    before
        .until("to wait for a decision", WaitLimit::Run, |stack| {
            has_message(stack, "/after also claims this Pulumi stack")
                && has_message(stack, "\"destroyOnFinalize\":false")
        })
        .await;
    after
        .until("to report the conflict", WaitLimit::Run, |stack| has_message(stack, "To hand the resources over"))
        .await;
    assert_eq!(before.log.operations().await, once(&["create step"]), "the resources remain");
    after
}

#[test]
fn a_renamed_stack_takes_over_the_resources() {
    run("renamed", async |scene| {
        let source = scene.source("app").await;
        let (before, commit) = applied_with_destroy(scene, &source).await;
        let after = rename(scene, &before).await;
        before.change(json!({"spec": {"destroyOnFinalize": false}})).await;
        before.until_gone().await;
        after.until_applied(&commit).await;
        assert_eq!(before.log.operations().await, once(&["create step"]), "the new Stack continues with the resources");
        after.delete().await;
        after.until_gone().await;
        assert_eq!(before.log.operations().await, once(&["create step", "delete step"]));
    });
}

#[test]
fn the_resources_of_a_renamed_stack_are_destroyed_when_the_new_stack_is_deleted() {
    run("not-renamed", async |scene| {
        let source = scene.source("app").await;
        let (before, _) = applied_with_destroy(scene, &source).await;
        let after = rename(scene, &before).await;
        after.delete().await;
        after.until_gone().await;
        before.until_gone().await;
        assert_eq!(before.log.operations().await, once(&["create step", "delete step"]));
    });
}
