//! Tests runs with Pulumi Cloud: permalinks, tags, metadata, secrets, environments, and recovery from interruptions.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason, update_reason};
use pulumi_controller::api::names::outputs_secret;
use pulumi_controller::api::pulumi::ResourceRef;
use serde_json::json;

use super::{cloud_with_token, failures, last_update};
use crate::harness::{
    Poll, Program, PulumiCloud, Scene, StackHandle, TOKEN_SECRET, WaitLimit, condition, has_condition, once, run,
    wait_until,
};
use crate::runs_parts::{in_pod, progress, slow, until_ended_with_reason, until_update};

#[test]
fn a_stack_in_pulumi_cloud_runs_from_push_to_destroy() {
    run("cloud", async |scene| {
        let (cloud, token) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let step = |value: &str| Program::new("cloud").step("step", json!({"value": value}));
        let first = source.push(&step("one").files()).await;
        let mut stack = scene.stack_in_cloud("main", &source, &cloud, "cloud");
        stack.spec.destroy_on_finalize = Some(true);
        let name = format!("main-{}", scene.id);
        let name = ("cloud", name.as_str());
        let main = scene.start(stack).await;
        let applied = last_update(&main.until_applied(&first).await);
        assert_eq!(applied.permalink.as_deref(), Some(cloud.permalink(name, 1).as_str()));

        let tags = cloud.tags(name).await;
        let expected = [
            ("kubernetes:namespace", scene.namespace.clone()),
            ("kubernetes:stack", "main".to_owned()),
            ("flux:revision", first.revision()),
        ];
        for (tag, value) in expected {
            assert_eq!(tags[tag], json!(value), "{tag} in {tags}");
        }
        let update = cloud.updates(name).await.remove(0);
        assert_eq!(
            (update.requested_by.as_str(), update.metadata("git.head")),
            (cloud.alice.as_str(), Some(first.sha.as_str()))
        );
        assert_eq!(update.metadata("git.headName"), Some("refs/heads/main"));
        assert!(
            update.metadata("exec.agent").is_some_and(|agent| agent.starts_with("pulumi-controller/")),
            "{update:?}"
        );

        source.push(&Program::new("cloud").step("step", json!({"value": "two", "failOn": "update"})).files()).await;
        let failed = main
            .until("to report the failed update", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
            })
            .await;
        let failed = last_update(&failed);
        assert_eq!(failed.permalink.as_deref(), Some(cloud.permalink(name, 2).as_str()), "also after a failure");

        let third = source.push(&step("three").files()).await;
        main.until_applied(&third).await;
        assert_eq!(cloud.tags(name).await["flux:revision"], json!(third.revision()));
        main.delete().await;
        main.until_gone().await;
        let updates = cloud.updates(name).await;
        assert_eq!((updates[0].kind.as_str(), updates[0].status.as_str()), ("destroy", "succeeded"), "{updates:?}");
        let operations = main.log.operations().await;
        assert_eq!(operations.first().map(String::as_str), Some("create step begin"));
        assert_eq!(operations.last().map(String::as_str), Some("delete step done"), "{operations:?}");
        let states = format!("{:?}", scene.timeline.states_of::<Update>());
        assert!(!states.contains(&token), "no status contains the access token");
    });
}

#[test]
fn the_commit_of_a_git_repository_is_the_message_in_pulumi_cloud() {
    run("cloud-git", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let commit = source.push_without_notification(&Program::new("cloud-git").output("a", json!("b")).files()).await;
        let of_cloud = scene.stack_in_cloud("main", &source, &cloud, "cloud-git");
        let mut stack = scene.stack_on_repository("main", &source);
        (stack.spec.stack, stack.spec.backend) = (of_cloud.spec.stack, of_cloud.spec.backend);
        (stack.spec.env_refs, stack.spec.access_token_secret) =
            (of_cloud.spec.env_refs, of_cloud.spec.access_token_secret);
        let main = scene.start(stack).await;
        let is_done = |stack: &_| crate::harness::is_done(stack);
        main.until("to be Ready", WaitLimit::Run, is_done).await;
        let name = format!("main-{}", scene.id);
        let update = cloud.updates(("cloud-git", &name)).await.remove(0);
        assert_eq!(update.message(), "A change made by a test");
        let metadata = ["git.head", "git.author", "git.committer.email"].map(|name| update.metadata(name));
        assert_eq!(metadata, [Some(commit.sha.as_str()), Some("Test"), Some("test@example.com")], "{update:?}");
    });
}

#[test]
fn a_short_stack_name_stays_in_the_organization_of_its_first_run() {
    run("cloud-default", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let program = |value: &str| Program::new("cloud-default").step("step", json!({"value": value}));
        let commit = source.push(&program("one").files()).await;
        let mut stack = scene.stack_in_cloud("main", &source, &cloud, "cloud-default");
        let name = format!("main-{}", scene.id);
        stack.spec.stack.clone_from(&name);
        // The access token comes from an environment variable instead of `accessTokenSecret`.
        stack.spec.access_token_secret = None;
        let reference: ResourceRef =
            serde_json::from_value(json!({"type": "Secret", "secret": {"name": TOKEN_SECRET, "key": "accessToken"}}))
                .expect("a reference");
        stack.spec.env_refs.insert("PULUMI_ACCESS_TOKEN".to_owned(), reference);
        let main = scene.start(stack).await;
        let applied = main.until_applied(&commit).await;
        let stack = ("cloud-default", name.as_str());
        assert_eq!(last_update(&applied).permalink, Some(cloud.permalink(stack, 1)));
        let recorded = applied.status.and_then(|status| status.applied_stack).expect("the applied stack").name;
        assert_eq!(recorded, format!("{}/{name}", cloud.organization));

        let other = PulumiCloud::default_of(scene).await;
        let second = source.push(&program("two").files()).await;
        let applied = main.until_applied(&second).await;
        assert_eq!(last_update(&applied).permalink, Some(cloud.permalink(stack, 2)));
        main.change(json!({"spec": {"destroyOnFinalize": true}})).await;
        main.delete().await;
        main.until_gone().await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step", "delete step"]));
        assert_eq!(cloud.updates(stack).await.first().map(|update| update.kind.clone()), Some("destroy".to_owned()));
        assert_eq!(other.state(stack).await, None, "the default organization contains no stack");
    });
}

/// After the stack is recreated, its update numbers start again at 1. The other update therefore has the same URL as a
/// recorded run.
#[test]
fn an_update_of_a_recreated_stack_is_not_canceled() {
    run("cloud-recreated", async |scene| {
        let (cloud, token) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let first = source.push(&slow("cloud-recreated", 1).files()).await;
        let main = scene.start(scene.stack_in_cloud("main", &source, &cloud, "cloud-recreated")).await;
        let spec = main.until_applied(&first).await.spec;
        main.change(json!({"spec": {"suspend": true}})).await;
        let name = format!("main-{}", scene.id);
        cloud.delete_stack(("cloud-recreated", &name), &token).await;

        let elsewhere = Scene::new("cloud-recreated-too").await;
        source.track_in(&elsewhere).await;
        super::create_token_secret(&elsewhere, &cloud.token(&cloud.bob).await).await;
        let commit = source.push(&slow("cloud-recreated", 45).files()).await;
        let mut same = elsewhere.stack_in_cloud("other", &source, &cloud, "cloud-recreated");
        same.spec.stack = spec.stack;
        let other = elsewhere.start(same).await;
        let link = cloud.permalink(("cloud-recreated", &name), 1);
        wait_until("the other update to start", WaitLimit::Run, async || {
            let updates = cloud.updates(("cloud-recreated", &name)).await;
            match updates.as_slice() {
                [update] if update.status == "running" => Poll::Found(()),
                updates => Poll::NotYet(format!("{updates:?}")),
            }
        })
        .await;
        main.change(json!({"spec": {"suspend": false}})).await;
        let blocked = main
            .until("to report the other update", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_CONFLICT)
            })
            .await;
        let message = condition(&blocked, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains(&format!("update 1 ({link}), started by {}", cloud.bob)), "{message}");
        other.until_applied(&commit).await;
        assert_eq!(cloud.requests("POST", ".*/cancel").await.len(), 0, "the other update is not canceled");
        elsewhere.remove().await;
    });
}

#[test]
fn secrets_and_environments_of_pulumi_cloud_stay_secret() {
    run("cloud-secrets", async |scene| {
        let (cloud, token) = cloud_with_token(scene).await;
        cloud.create_environment("apps", "web", &token, ENVIRONMENT).await;
        let source = scene.source("app").await;
        let program = Program::new("cloud-secrets")
            .typed_config("fromEnvironment", "String")
            .typed_config("fromSecret", "String")
            .output("both", json!("${fromEnvironment}/${fromSecret}"));
        let commit = source.push(&program.files()).await;
        scene.create::<Secret>(json!({"metadata": {"name": "app"}, "stringData": {"word": "hunter2-of-secret"}})).await;
        let mut stack = scene.stack_in_cloud("main", &source, &cloud, "cloud-secrets");
        stack.spec.environment = vec!["apps/web".to_owned()];
        stack.spec.secrets_provider = Some("default".to_owned());
        let reference = json!({"type": "Secret", "secret": {"name": "app", "key": "word"}});
        stack.spec.secrets_ref.insert("fromSecret".to_owned(), serde_json::from_value(reference).expect("a reference"));
        let main = scene.start(stack).await;
        let done = main.until_applied(&commit).await;
        let update = last_update(&done).name.expect("a run has a name");
        let outputs =
            crate::harness::api_call("reading the outputs", scene.api::<Secret>().get(&outputs_secret(&update))).await;
        let both = outputs.data.and_then(|mut data| data.remove("both")).expect("the output");
        assert_eq!(String::from_utf8_lossy(&both.0), "\"hunter2-of-esc/hunter2-of-secret\"");
        let log = main.pod_log("pulumi").await;
        let states = format!("{done:?}{:?}{:?}{log}", main.updates().await, main.events().await);
        assert!(!states.contains("hunter2"), "no status, event or log contains a secret");

        // An existing stack keeps its secrets provider.
        main.change(json!({"spec": {"secretsProvider": "passphrase"}})).await;
        main.until_applied(&commit).await;
        assert_eq!(cloud.updates(("cloud-secrets", &format!("main-{}", scene.id))).await.len(), 2);
    });
}

const ENVIRONMENT: &str =
    "values:\n  word:\n    fn::secret: hunter2-of-esc\n  pulumiConfig:\n    fromEnvironment: ${word}\n";

#[test]
fn a_conflict_in_pulumi_cloud_names_the_other_update_and_its_user() {
    run("cloud-conflict", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let commit = source.push(&slow("cloud-conflict", 45).files()).await;
        let other = scene.start(scene.stack_in_cloud("other", &source, &cloud, "cloud-conflict")).await;
        other.log.wait_for("create", "slow", "begin").await;
        // This Stack is not a duplicate, because the controller compares only Stacks in the same namespace.
        let elsewhere = Scene::new("cloud-conflict-too").await;
        source.track_in(&elsewhere).await;
        let token = cloud.token(&cloud.bob).await;
        super::create_token_secret(&elsewhere, &token).await;
        let mut same = elsewhere.stack_in_cloud("main", &source, &cloud, "cloud-conflict");
        same.spec.stack = other.get().await.spec.stack;
        let main = elsewhere.start(same).await;
        let blocked = main
            .until("to report the other update", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_CONFLICT)
            })
            .await;
        let message = condition(&blocked, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        let name = format!("other-{}", scene.id);
        let link = cloud.permalink(("cloud-conflict", &name), 1);
        assert!(message.contains(&format!("update 1 ({link}), started by {} at 2", cloud.alice)), "{message}");

        other.until_applied(&commit).await;
        let done = main.until_applied_within(WaitLimit::Long, &commit).await;
        assert_eq!(failures(&done), 0, "a conflict is not a failure");
        assert_eq!(cloud.requests("POST", ".*/cancel").await.len(), 0, "the other update is not canceled");
        assert_eq!(other.log.operations().await, once(&["create slow"]));
        let events = main.events().await;
        let conflicts = events.iter().filter(|event| event.reason.as_deref() == Some("StackUpdateConflictDetected"));
        assert_eq!(conflicts.map(|event| event.count.unwrap_or(1)).sum::<i32>(), 1, "{events:?}");
        elsewhere.remove().await;
    });
}

/// Creates a Stack that uses Pulumi Cloud, applies its first commit, and pushes a commit with a slow update.
async fn slow_update<'a>(
    scene: &'a Scene,
    cloud: &PulumiCloud,
    project: &str,
    source: &crate::harness::Source<'_>,
) -> (StackHandle<'a>, crate::harness::Commit) {
    let program = |value: &str, seconds: u32| {
        Program::new(project).step("slow", json!({"value": value, "seconds": seconds, "steps": seconds.max(1)}))
    };
    let first = source.push(&program("one", 0).files()).await;
    let main = scene.start(scene.stack_in_cloud("main", source, cloud, project)).await;
    main.until_applied(&first).await;
    let second = source.push(&program("two", 15).files()).await;
    main.log.wait_for("update", "slow", "begin").await;
    (main, second)
}

#[test]
fn the_update_of_a_killed_run_is_canceled_in_pulumi_cloud_and_retried() {
    run("cloud-killed", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let (main, second) = slow_update(scene, &cloud, "cloud-killed", &source).await;
        let name = format!("main-{}", scene.id);
        let name = ("cloud-killed", name.as_str());
        let current = main.get().await.status.and_then(|status| status.current_update).expect("the open run").name;
        let link = cloud.permalink(name, 2);
        let update = until_update(scene, &current, "to report its permalink", WaitLimit::Run, |update| {
            update.status.as_ref().is_some_and(|status| status.permalink.is_some())
        })
        .await;
        assert_eq!(update.status.as_ref().and_then(|status| status.permalink.clone()), Some(link.clone()));
        let pid = progress(&update).pid.expect("process ID");
        in_pod(scene, "main", &format!("kill -9 {pid}")).await;

        main.until_applied_within(WaitLimit::Run, &second).await;
        let killed = until_update(scene, &current, "to have ended", WaitLimit::Call, Update::is_complete).await;
        assert_eq!(crate::runs_parts::failure(&killed), Some(update_reason::ABORTED));
        assert_eq!(killed.status.and_then(|status| status.permalink), Some(link), "also after the run was killed");
        assert_eq!(cloud.requests("POST", ".*/cancel").await.len(), 1, "only the update of the killed run is canceled");
        let versions: Vec<_> =
            cloud.updates(name).await.into_iter().map(|update| (update.version, update.status)).collect();
        assert_eq!(versions.first().map(|(_, status)| status.as_str()), Some("succeeded"), "{versions:?}");
    });
}

#[test]
fn a_run_whose_lease_expires_fails_and_the_next_run_succeeds() {
    run("cloud-lease", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let (main, second) = slow_update(scene, &cloud, "cloud-lease", &source).await;
        let name = format!("main-{}", scene.id);
        cloud.expire_lease(("cloud-lease", &name)).await;
        main.until_applied_within(WaitLimit::Long, &second).await;
        let updates = cloud.updates(("cloud-lease", &name)).await;
        assert!(updates.iter().any(|update| update.expired) && updates[0].status == "succeeded", "{updates:?}");
        let runs = main.updates().await;
        let failed =
            runs.iter().find_map(|update| crate::runs_parts::failure(update).map(|reason| (reason.to_owned(), update)));
        let (_, failed) = failed.expect("the run with the expired lease failed");
        let message = failed.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default();
        assert!(message.contains("update token"), "{message}");
    });
}

#[test]
fn a_destroy_of_a_stack_that_pulumi_cloud_lost_deletes_nothing() {
    run("cloud-lost", async |scene| {
        let (cloud, token) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("cloud-lost").step("step", json!({})).files()).await;
        let mut stack = scene.stack_in_cloud("main", &source, &cloud, "cloud-lost");
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        cloud.delete_stack(("cloud-lost", &format!("main-{}", scene.id)), &token).await;
        main.delete().await;
        let kept = main
            .until("to report that its Pulumi stack is not found", WaitLimit::Run, |stack| {
                has_condition(stack, STALLED, "True", stack_reason::STACK_NOT_FOUND)
            })
            .await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "no resource is destroyed");
        let name = last_update(&kept).name.expect("a run has a name");
        main.annotate(pulumi_controller::api::names::ANNOTATION_RESOLVE, &format!("{name}=abandon")).await;
        main.until_gone().await;
    });
}

/// A user cancels the update in Pulumi Cloud while the CLI runs. The run fails, and a retry applies the commit.
#[test]
fn a_canceled_update_in_pulumi_cloud_ends_the_run() {
    run("cloud-cancel", async |scene| {
        let (cloud, _) = cloud_with_token(scene).await;
        let source = scene.source("app").await;
        let (main, second) = slow_update(scene, &cloud, "cloud-cancel", &source).await;
        let name = main.get().await.spec.stack;
        in_pod(scene, "main", &format!("pulumi cancel --yes --stack {name}")).await;
        until_ended_with_reason(&main, update_reason::UPDATE_FAILED).await;
        main.until_applied_within(WaitLimit::Long, &second).await;
    });
}
