//! Tests all operations except `up`, and the options that limit an operation.

use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, OperationKind, Outcome, RunOptions};

use crate::harness::{Workspace, has_pulumi, outputs, variable};

const PROGRAM: &str = "
name: example
runtime: yaml
resources:
  step:
    type: testing:index:Step
    properties: {name: first}
outputs:
  name: ${step.name}
";

async fn request(workspace: &Workspace, kind: OperationKind, options: RunOptions) -> proto::RunRequest {
    let request = workspace.request(&[]).await;
    proto::RunRequest { kind: kind.into(), options: Some(options), ..request }
}

#[tokio::test]
async fn a_preview_reports_changes_without_applying_them() {
    if !has_pulumi("a_preview_reports_changes_without_applying_them") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let preview = async || {
        let request = request(&workspace, OperationKind::Preview, RunOptions::default()).await;
        workspace.run_to_end(&request).await
    };
    for _ in 0..2 {
        let result = preview().await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
        assert_eq!(result.changes.get("create"), Some(&2), "{:?}", result.changes);
        assert!(result.outputs.is_empty() && !result.interrupted);
    }
    let up = request(&workspace, OperationKind::Up, RunOptions::default()).await;
    let result = workspace.run_to_end(&up).await;
    assert_eq!(result.changes.get("create"), Some(&2), "{}", result.message);
    assert_eq!(outputs(&result)["name"], ("\"first\"", false));
    assert_eq!(preview().await.changes.get("same"), Some(&2));
    let expecting = RunOptions { expect_no_changes: true, ..RunOptions::default() };
    workspace.put(&PROGRAM.replace("first}", "first, value: other}")).await;
    let result = workspace.run_to_end(&request(&workspace, OperationKind::Preview, expecting).await).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.message.contains("no changes were expected"), "{}", result.message);
}

#[tokio::test]
async fn unexpected_drift_is_reported_until_a_refresh_adopts_it() {
    if !has_pulumi("unexpected_drift_is_reported_until_a_refresh_adopts_it") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let expecting = RunOptions { expect_no_refresh_changes: true, ..RunOptions::default() };
    let gone = |request: proto::RunRequest| {
        let mut environment = request.environment.clone();
        environment.push(variable("PROVIDER_GONE", Source::Value("first".into())));
        proto::RunRequest { environment, refresh: true, ..request }
    };
    let first = request(&workspace, OperationKind::Up, expecting.clone()).await;
    let result = workspace.run_to_end(&first).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "a new stack has not drifted: {}", result.message);
    for _ in 0..2 {
        let drifted = gone(request(&workspace, OperationKind::Up, expecting.clone()).await);
        let result = workspace.run_to_end(&drifted).await;
        assert_eq!(result.outcome(), Outcome::Failed);
        assert!(result.message.contains("no changes were expected"), "{}", result.message);
        assert!(!result.interrupted, "the run was not interrupted");
        assert!(result.changes.is_empty(), "the run has changed no resources: {:?}", result.changes);
    }
    let refresh = gone(request(&workspace, OperationKind::Refresh, RunOptions::default()).await);
    let result = workspace.run_to_end(&refresh).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert_eq!(result.changes.get("delete"), Some(&1), "{:?}", result.changes);
    let result = workspace.run_to_end(&request(&workspace, OperationKind::Up, expecting).await).await;
    assert_eq!(result.changes.get("create"), Some(&1), "{}: {:?}", result.message, result.changes);
}

#[tokio::test]
async fn a_stack_with_resources_is_created_again_only_with_permission() {
    if !has_pulumi("a_stack_with_resources_is_created_again_only_with_permission") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let applied = async |kind: OperationKind, create_stack: bool| {
        let applied = proto::PulumiStack { name: "dev".into(), project: "example".into(), ..Default::default() };
        let request = request(&workspace, kind, RunOptions::default()).await;
        workspace.run_to_end(&proto::RunRequest { applied_stack: Some(applied), create_stack, ..request }).await
    };
    for kind in [OperationKind::Up, OperationKind::Preview, OperationKind::Refresh, OperationKind::Destroy] {
        let result = applied(kind, false).await;
        assert_eq!(result.outcome(), Outcome::StackNotFound, "{kind:?}: {}", result.message);
    }
    let result = applied(OperationKind::Up, true).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let result = applied(OperationKind::Preview, false).await;
    assert_eq!((result.outcome(), result.changes.get("same")), (Outcome::Succeeded, Some(&2)), "{}", result.message);

    let result = applied(OperationKind::Destroy, false).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let result = applied(OperationKind::Preview, false).await;
    assert_eq!(result.outcome(), Outcome::StateEmpty, "{}", result.message);
    let stop = request(&workspace, OperationKind::Up, RunOptions::default()).await;
    let stop = proto::RunRequest {
        applied_stack: Some(proto::PulumiStack { name: "dev".into(), ..Default::default() }),
        pending_creates: proto::PendingCreates::Stop.into(),
        ..stop
    };
    let result = workspace.run_to_end(&stop).await;
    assert_eq!(result.outcome(), Outcome::StateEmpty, "{}", result.message);
    let result = applied(OperationKind::Up, false).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    assert!(result.message.contains("contained no resources before the run"), "{}", result.message);
    assert!(result.state_was_empty);
    let result = applied(OperationKind::Up, false).await;
    assert_eq!((result.outcome(), result.message.as_str()), (Outcome::Succeeded, ""));
    assert!(!result.state_was_empty);
}

#[tokio::test]
async fn a_run_in_the_pulumi_stack_of_another_stack_does_not_start() {
    if !has_pulumi("a_run_in_the_pulumi_stack_of_another_stack_does_not_start") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let up = request(&workspace, OperationKind::Up, RunOptions::default()).await;
    let first = workspace.run_to_end(&up).await;
    assert_eq!(first.outcome(), Outcome::Succeeded, "{}", first.message);
    let beside = async |kind: OperationKind, backend: &str, has_applied: bool| {
        let of = |backend: &str| proto::PulumiStack {
            name: "organization/example/dev".into(),
            project: "example".into(),
            backend: backend.into(),
        };
        let other = proto::AppliedByOther { owner: "first".into(), stack: Some(of(backend)) };
        let request = proto::RunRequest {
            applied_by_others: vec![other],
            applied_stack: has_applied.then(|| of(&first.backend)),
            ..request(&workspace, kind, RunOptions::default()).await
        };
        workspace.run_to_end(&request).await
    };
    for kind in [OperationKind::Up, OperationKind::Preview, OperationKind::Refresh, OperationKind::Destroy] {
        let result = beside(kind, &first.backend, false).await;
        assert_eq!(result.outcome(), Outcome::DuplicateStack, "{kind:?}: {}", result.message);
        assert_eq!((result.backend.as_str(), result.changes.len()), (first.backend.as_str(), 0), "{kind:?}");
        assert!(result.message.contains("Stack first manages"), "{kind:?}: {}", result.message);
    }
    for (backend, has_applied) in [("s3://other", false), (first.backend.as_str(), true)] {
        let result = beside(OperationKind::Preview, backend, has_applied).await;
        assert_eq!(result.outcome(), Outcome::Succeeded, "{backend}: {}", result.message);
        assert_eq!(result.changes.get("same"), Some(&2), "the resources remain: {:?}", result.changes);
    }
}

#[tokio::test]
async fn a_stack_that_must_exist_is_not_created() {
    if !has_pulumi("a_stack_that_must_exist_is_not_created") {
        return;
    }
    let workspace = Workspace::start().await;
    workspace.put(PROGRAM).await;
    let must_exist = RunOptions { stack_must_exist: true, ..RunOptions::default() };
    for kind in [OperationKind::Up, OperationKind::Preview, OperationKind::Refresh] {
        let result = workspace.run_to_end(&request(&workspace, kind, must_exist.clone()).await).await;
        assert_eq!(result.outcome(), Outcome::Failed, "{kind:?}");
        assert!(result.message.contains("stack dev not found in the backend"), "{kind:?}: {}", result.message);
    }
    let with = |provider: &str| RunOptions { secrets_provider: provider.to_owned(), ..RunOptions::default() };
    let unknown = request(&workspace, OperationKind::Up, with("nonsense://key")).await;
    let result = workspace.run_to_end(&unknown).await;
    assert_eq!(result.outcome(), Outcome::Failed);
    assert!(result.message.contains("nonsense"), "{}", result.message);
    let result = workspace.run_to_end(&request(&workspace, OperationKind::Up, with("passphrase")).await).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let result = workspace.run_to_end(&request(&workspace, OperationKind::Up, must_exist).await).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
}
