//! Tests for the precedence of Stacks with the same Pulumi stack, and for the requeue after a deletion.

use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};

use super::*;
use crate::api::auto::RunProject;
use crate::api::pulumi::{LastUpdate, PulumiStack, StackStatus};
use crate::runtime::fake_api::{self, FakeResponse};
use crate::runtime::requeue;

fn stack(name: &str, created: i64, spec: Value) -> Stack {
    let created = Timestamp::from_second(created).unwrap().to_string();
    let mut whole = json!({"stack": "dev", "backend": "gs://state"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "metadata": {"namespace": "apps", "name": name, "creationTimestamp": created}, "spec": whole,
    }))
    .unwrap()
}

fn workspace(project: &str) -> Workspace {
    let mut workspace = Workspace::new("any", Default::default());
    workspace.status =
        Some(crate::api::auto::WorkspaceStatus { project_name: Some(project.to_owned()), ..Default::default() });
    workspace
}

/// Returns a reader for an API server. Each Workspace in this API server has this project. A Workspace whose name
/// starts with `bare` does not exist.
fn reader(project: &'static str) -> (Reader, fake_api::Log) {
    let (client, log) = fake_api::client(move |request| match request.path.rsplit('/').next() {
        Some(name) if !name.starts_with("bare") => FakeResponse::Json(
            200,
            json!({
                "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace", "metadata": {"name": name}, "spec": {},
                "status": {"projectName": project},
            }),
        ),
        _ => FakeResponse::refusal(404, "NotFound"),
    });
    (Reader::new(client, std::time::Duration::from_secs(5)), log)
}

#[tokio::test]
async fn removing_the_older_duplicate_requeues_the_newer_duplicate() {
    let (requeue, mut requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, log) = reader("web");
    let rows = [
        ("first", 10, json!({})),
        ("second", 20, json!({})),
        ("another-name", 5, json!({"stack": "prod"})),
        ("another-backend", 5, json!({"backend": "gs://other"})),
        ("preview", 5, json!({"preview": true})),
        ("bare", 5, json!({})),
        ("another-project", 5, json!({"stack": "organization/api/dev"})),
    ];
    for (name, created, spec) in rows.clone() {
        duplicates.record(&stack(name, created, spec));
    }
    let preceding = async |name: &str, project: &str| {
        let (name, created, spec) = rows.iter().find(|row| row.0 == name).cloned().unwrap();
        let preceding =
            duplicates.preceding(&stack(name, created, spec), Some(&workspace(project)), &reader).await.unwrap();
        preceding.map(|duplicate| duplicate.to_string())
    };
    assert_eq!(preceding("first", "web").await, None);
    assert_eq!(preceding("second", "web").await.as_deref(), Some("apps/first"));
    for name in ["another-name", "another-backend", "preview"] {
        assert_eq!(preceding(name, "web").await, None, "{name}");
    }
    assert_eq!(
        preceding("second", "api").await.as_deref(),
        Some("apps/another-project"),
        "the spec contains the name of the project"
    );
    let requests = log.verbs().len();
    assert_eq!(preceding("second", "web").await.as_deref(), Some("apps/first"));
    assert_eq!(log.verbs().len(), requests, "each Stack is read once: {:?}", log.verbs());
    assert!(requeued.next().now_or_never().is_none(), "no Stack is requeued without a change");
    duplicates.record(&stack("first", 10, json!({})));
    assert!(requeued.next().now_or_never().is_none(), "no Stack is requeued without a change");
    duplicates.forget(&("apps".to_owned(), "first".to_owned()));
    assert_eq!(requeued.next().await.map(|stack| stack.name), Some("second".to_owned()));
    assert_eq!(preceding("second", "web").await, None, "the second Stack takes precedence");
}

#[tokio::test]
async fn a_duplicate_is_requeued_when_the_earlier_stack_no_longer_conflicts() {
    let (requeue, mut requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _) = reader("web");
    let second = stack("second", 20, json!({}));
    duplicates.record(&stack("first", 10, json!({})));
    duplicates.record(&second);
    assert!(duplicates.preceding(&second, None, &reader).await.unwrap().is_none(), "the project is unknown");
    assert!(duplicates.preceding(&second, Some(&workspace("web")), &reader).await.unwrap().is_some());
    duplicates.record(&stack("first", 10, json!({"preview": true})));
    assert_eq!(requeued.next().await.map(|stack| stack.name), Some("second".to_owned()));
    assert!(duplicates.preceding(&second, Some(&workspace("web")), &reader).await.unwrap().is_none());
}

#[tokio::test]
async fn a_duplicate_without_a_workspace_is_detected_by_its_last_run() {
    let (requeue, _requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _) = reader("web");
    let mut first = stack("bare-first", 10, json!({}));
    let second = stack("second", 20, json!({}));
    duplicates.record(&first);
    duplicates.record(&second);
    assert!(duplicates.preceding(&second, Some(&workspace("web")), &reader).await.unwrap().is_none(), "no run");
    let project = RunProject { name: "web".to_owned(), runtime: "yaml".to_owned() };
    first.status = Some(StackStatus { project_info: Some(project), ..StackStatus::default() });
    duplicates.record(&first);
    assert!(duplicates.preceding(&second, Some(&workspace("web")), &reader).await.unwrap().is_some());
}

/// Returns a Stack in `namespace` that has applied the Pulumi stack `applied`.
fn in_namespace(namespace: &str, created: i64, applied: Option<&str>) -> Stack {
    let mut stack = stack("app", created, json!({}));
    stack.metadata.namespace = Some(namespace.to_owned());
    stack.status = applied.map(|name| StackStatus {
        applied_stack: Some(PulumiStack { name: name.to_owned(), ..PulumiStack::default() }),
        last_applied_revision: Some("main@sha1:a".to_owned()),
        ..StackStatus::default()
    });
    stack
}

#[tokio::test]
async fn a_stack_in_another_namespace_takes_precedence_only_after_an_up() {
    let dev = || Some("dev");
    // Columns: the creation time and the applied Pulumi stack of the other Stack, and then of this Stack. The last two
    // columns show whether the controller forbids references to other namespaces, and whether the other Stack takes
    // precedence.
    let rows = [
        ("only the other Stack has applied the Pulumi stack", (20, dev()), (10, None), false, true),
        ("only the other Stack has applied the Pulumi stack, and is older", (10, dev()), (20, None), false, true),
        ("both have applied the Pulumi stack, and the other is older", (10, dev()), (20, dev()), false, false),
        ("both have applied the Pulumi stack, and this Stack is older", (20, dev()), (10, dev()), false, false),
        ("the other Stack is older and has applied nothing", (10, None), (20, None), false, false),
        ("the other Stack is older and has applied another Pulumi stack", (10, Some("prod")), (20, None), false, false),
        ("references are forbidden", (10, dev()), (20, None), true, false),
    ];
    for (name, other, own, no_cross_namespace_refs, expected) in rows {
        let (requeue, _requeued) = requeue::queue();
        let duplicates = DuplicateStacks::new(requeue, no_cross_namespace_refs);
        let (reader, _) = reader("web");
        let own = in_namespace("mine", own.0, own.1);
        duplicates.record(&in_namespace("theirs", other.0, other.1));
        duplicates.record(&own);
        let preceding = duplicates.preceding(&own, Some(&workspace("web")), &reader).await.unwrap();
        assert_eq!(preceding.is_some(), expected, "{name}");
    }
}

#[tokio::test]
async fn a_false_report_in_another_namespace_does_not_block_a_stack_with_resources() {
    let (requeue, _requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, false);
    let (reader, _) = reader("web");
    let preceding = async |stack: &Stack| {
        let preceding = duplicates.preceding(stack, Some(&workspace("web")), &reader).await.unwrap();
        preceding.map(|duplicate| duplicate.to_string())
    };
    let (false_report, victim) = (in_namespace("theirs", 10, Some("dev")), in_namespace("mine", 20, Some("dev")));
    duplicates.record(&false_report);
    duplicates.record(&victim);
    assert_eq!(preceding(&victim).await, None);
    let mut failed = victim.clone();
    failed.status.as_mut().unwrap().last_applied_revision = None;
    duplicates.record(&failed);
    assert_eq!(preceding(&failed).await, None, "a failed up may have created resources");
    let mut second = in_namespace("mine", 30, Some("dev"));
    second.metadata.name = Some("second".to_owned());
    duplicates.record(&victim);
    duplicates.record(&second);
    assert_eq!(preceding(&second).await.as_deref(), Some("mine/app"), "within a namespace, the older Stack precedes");
}

#[tokio::test]
async fn an_applied_stack_takes_precedence_over_an_older_unapplied_one() {
    let (requeue, _requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _) = reader("web");
    let older = stack("older", 10, json!({}));
    let mut younger = in_namespace("apps", 20, Some("dev"));
    younger.metadata.name = Some("younger".to_owned());
    duplicates.record(&older);
    duplicates.record(&younger);
    let preceding = async |stack: &Stack| {
        let preceding = duplicates.preceding(stack, Some(&workspace("web")), &reader).await.unwrap();
        preceding.map(|duplicate| duplicate.name)
    };
    assert_eq!(preceding(&older).await.as_deref(), Some("younger"));
    assert_eq!(preceding(&younger).await, None);
    younger.status.as_mut().unwrap().last_applied_revision = None;
    duplicates.record(&younger);
    assert_eq!(preceding(&older).await.as_deref(), Some("younger"), "a failed up may have created resources");
    assert_eq!(preceding(&younger).await, None);
}

#[tokio::test]
async fn a_duplicate_with_a_backend_in_a_secret_is_detected() {
    const URL: &str = "s3://state?endpoint=s3.example.com";
    let (requeue, _requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _) = reader("web");
    let applied = |mut stack: Stack, backend: &str| {
        let (name, project) = (stack.spec.stack.clone(), Some("web".to_owned()));
        stack.status = Some(StackStatus {
            applied_stack: Some(PulumiStack { name, project, backend: Some(backend.to_owned()) }),
            last_applied_revision: Some("1".to_owned()),
            ..StackStatus::default()
        });
        stack
    };
    let hidden = |name: &str, created: i64| stack(name, created, json!({"backend": null, "envSecrets": [name]}));
    let first = applied(stack("first", 10, json!({"backend": URL})), URL);
    let second = applied(hidden("second", 20), URL);
    for stack in [&first, &second, &applied(hidden("elsewhere", 5), "s3://other?endpoint=s3.example.com")] {
        duplicates.record(stack);
    }
    let preceding = async |stack: &Stack| {
        let duplicate = duplicates.preceding(stack, Some(&workspace("web")), &reader).await.unwrap();
        duplicate.map(|duplicate| duplicate.to_string())
    };
    assert_eq!(preceding(&first).await, None);
    assert_eq!(preceding(&second).await.as_deref(), Some("apps/first"));
}

#[tokio::test]
async fn a_deleted_duplicate_does_not_wait_for_another_stack() {
    let (requeue, mut requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _log) = reader("web");
    duplicates.record(&stack("first", 10, json!({})));
    for number in 0..3 {
        let second = stack(&format!("second-{number}"), 20, json!({}));
        duplicates.record(&second);
        let preceding = duplicates.preceding(&second, Some(&workspace("web")), &reader).await.unwrap();
        assert_eq!(preceding.map(|duplicate| duplicate.name).as_deref(), Some("first"));
        duplicates.forget(&key(&second));
    }
    let waiting = lock(&duplicates.waiting);
    assert!(waiting.by_preceding.is_empty() && waiting.preceding_of.is_empty(), "{:?}", waiting.by_preceding);
    drop(waiting);
    let first = key(&stack("first", 10, json!({})));
    assert_eq!(duplicates.missing(|key| *key == first), []);
    assert_eq!(duplicates.missing(|_| false), std::slice::from_ref(&first));
    duplicates.forget(&first);
    assert!(requeued.next().now_or_never().is_none(), "no Stack waits");
}

#[tokio::test]
async fn stacks_with_and_without_an_organization_are_duplicates_after_their_first_runs() {
    let (requeue, _requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _) = reader("web");
    let of = |name: &str, created: i64, spec: serde_json::Value, applied: &str| {
        let mut stack = stack(name, created, spec);
        let applied = PulumiStack {
            name: applied.to_owned(),
            project: Some("web".to_owned()),
            backend: Some("https://pulumi.example.com".to_owned()),
        };
        let project = RunProject { name: "web".to_owned(), runtime: "yaml".to_owned() };
        stack.status = Some(StackStatus {
            applied_stack: Some(applied),
            project_info: Some(project),
            last_applied_revision: Some("main@sha1:a".to_owned()),
            ..StackStatus::default()
        });
        stack
    };
    let backend = "https://Pulumi.example.com:443/";
    let first = of("first", 10, json!({"stack": "acme/web/dev", "backend": backend}), "acme/web/dev");
    let second = of("second", 20, json!({"stack": "dev", "backend": "https://pulumi.example.com"}), "acme/dev");
    let other = of("other", 30, json!({"stack": "dev", "backend": "https://pulumi.example.com"}), "other/dev");
    for stack in [&first, &second, &other] {
        duplicates.record(stack);
    }
    let preceding = async |stack: &Stack| {
        let preceding = duplicates.preceding(stack, Some(&workspace("web")), &reader).await.unwrap();
        preceding.map(|duplicate| duplicate.to_string())
    };
    assert_eq!(preceding(&first).await, None);
    assert_eq!(preceding(&second).await.as_deref(), Some("apps/first"));
    assert_eq!(preceding(&other).await, None, "another organization");
}

/// Returns a Stack that has applied a Pulumi stack with this name in this backend.
fn applied(mut stack: Stack, name: &str, backend: &str) -> Stack {
    let (name, project, backend) = (name.to_owned(), Some("web".to_owned()), Some(backend.to_owned()));
    stack.status = Some(StackStatus {
        applied_stack: Some(PulumiStack { name, project, backend }),
        last_applied_revision: Some("1".to_owned()),
        ..StackStatus::default()
    });
    stack
}

fn in_deletion(mut stack: Stack) -> Stack {
    let time = Timestamp::from_second(100).unwrap();
    stack.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
    stack
}

#[tokio::test]
async fn stacks_with_other_spellings_of_the_same_backend_are_duplicates() {
    const ONE: &str = "s3://state?endpoint=http://minio.apps:9000&s3ForcePathStyle=true";
    const OTHER: &str = "s3://state/?disableSSL=true&endpoint=minio.apps:9000&region=x";
    let hidden = || json!({"backend": null, "stack": "organization/web/dev", "envSecrets": ["aws"]});
    let rows = [
        ("only the specs", json!({"backend": ONE}), None, json!({"backend": OTHER, "stack": "organization/dev"}), None),
        ("one URL in a Secret", json!({"backend": ONE}), None, hidden(), Some(OTHER)),
        ("both URLs in Secrets", json!({"backend": null, "envSecrets": ["s3"]}), Some(ONE), hidden(), Some(OTHER)),
        (
            "a bucket of AWS",
            json!({"backend": "s3://state"}),
            Some("s3://state"),
            json!({"backend": "s3://state?region=eu-central-1", "stack": "organization/web/dev"}),
            Some("s3://state?region=eu-central-1"),
        ),
        (
            "an endpoint in the environment",
            json!({"backend": "s3://state", "envSecrets": ["s3"]}),
            Some("s3://state?endpoint=http://minio.apps:9000"),
            json!({"backend": ONE}),
            None,
        ),
    ];
    for (case, first, first_backend, second, second_backend) in rows {
        let (requeue, _requeued) = requeue::queue();
        let duplicates = DuplicateStacks::new(requeue, true);
        let (reader, _) = reader("web");
        let with = |stack: Stack, backend: Option<&str>| match backend {
            Some(backend) => {
                let name = stack.spec.stack.clone();
                applied(stack, &name, backend)
            }
            None => stack,
        };
        // The older Stack takes precedence if both Stacks have run, or if no Stack has run.
        let older = with(stack("older", 10, first), first_backend);
        let younger = with(stack("younger", 20, second), second_backend);
        duplicates.record(&older);
        duplicates.record(&younger);
        let one = duplicates.preceding(&older, Some(&workspace("web")), &reader).await.unwrap();
        let other = duplicates.preceding(&younger, Some(&workspace("web")), &reader).await.unwrap();
        assert!(one.is_some() != other.is_some(), "{case}: {one:?}, {other:?}");
        for stack in [&older, &younger] {
            let deleted = in_deletion(applied(stack.clone(), "dev", first_backend.or(second_backend).unwrap_or(ONE)));
            duplicates.record(&deleted);
            assert!(duplicates.claimant(&deleted).is_some(), "{case}: the deletion of {} is held", stack.name_any());
            duplicates.record(stack);
        }
    }
}

#[tokio::test]
async fn a_destroy_affects_the_resources_of_a_stack_that_may_claim_them() {
    const URL: &str = "s3://state?endpoint=s3.example.com";
    let of = |name: &str, spec: Value| stack(name, 20, spec);
    let renamed = || of("bare-renamed", json!({"backend": URL}));
    let elsewhere = |mut stack: Stack| {
        stack.metadata.namespace = Some("elsewhere".to_owned());
        stack
    };
    let rows = [
        ("the same spec", renamed(), true),
        (
            "another spelling",
            of(
                "other",
                json!({"backend": "s3://state/?x=y&endpoint=s3.example.com:443", "stack": "organization/web/dev"}),
            ),
            true,
        ),
        (
            "a backend in a Secret, before the first run",
            of("other", json!({"backend": null, "envSecrets": ["aws"]})),
            true,
        ),
        (
            "a backend in a Secret, after the first run",
            applied(of("other", json!({"backend": null, "envSecrets": ["aws"]})), "dev", URL),
            true,
        ),
        (
            "another backend in a Secret",
            applied(of("other", json!({"backend": null, "envSecrets": ["aws"]})), "dev", "s3://other"),
            false,
        ),
        (
            "a Stack that has applied the Pulumi stack, before its next run",
            applied(of("other", json!({"stack": "prod", "backend": URL})), "dev", URL),
            true,
        ),
        ("another name", of("other", json!({"stack": "prod", "backend": URL})), false),
        ("another project", of("other", json!({"stack": "organization/api/dev", "backend": URL})), false),
        ("another backend", of("other", json!({"backend": "s3://state/team?endpoint=s3.example.com"})), false),
        ("only a preview", of("other", json!({"backend": URL, "preview": true})), false),
        ("a deleted Stack without precedence", in_deletion(renamed()), false),
        (
            "a deleted Stack with precedence",
            in_deletion(applied(stack("first", 1, json!({"backend": URL})), "dev", URL)),
            true,
        ),
        ("another namespace", elsewhere(renamed()), false),
    ];
    for (case, other, expected) in rows {
        let (requeue, _requeued) = requeue::queue();
        let duplicates = DuplicateStacks::new(requeue, true);
        let deleted = in_deletion(applied(stack("app", 10, json!({"backend": URL})), "dev", URL));
        duplicates.record(&deleted);
        assert_eq!(duplicates.claimant(&deleted), None, "no other Stack");
        duplicates.record(&other);
        let claimant = duplicates.claimant(&deleted);
        assert_eq!(claimant, expected.then(|| other.name_any()), "{case}");
    }
}

#[tokio::test]
async fn a_deleted_stack_is_requeued_when_a_claim_appears_changes_or_ends() {
    const URL: &str = "s3://state?endpoint=s3.example.com";
    let (requeue, mut requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let (reader, _) = reader("api");
    let mut next = || requeued.next().now_or_never().flatten().map(|stack| stack.name);
    let deleted = in_deletion(applied(stack("app", 10, json!({"backend": URL})), "dev", URL));
    let of = |name: &str, spec: Value| stack(name, 20, spec);
    duplicates.record(&deleted);
    let renamed = of("renamed", json!({"backend": URL}));
    duplicates.record(&renamed);
    assert_eq!(next().as_deref(), Some("app"), "a claim appears");
    assert_eq!(duplicates.claimant(&deleted).as_deref(), Some("renamed"));
    duplicates.record(&renamed);
    assert_eq!(next(), None, "no change");
    duplicates.preceding(&renamed, Some(&workspace("api")), &reader).await.unwrap();
    assert_eq!(next().as_deref(), Some("app"), "the project of the other Stack is now known");
    assert_eq!(duplicates.claimant(&deleted), None, "the project is another one");
    duplicates.record(&of("second", json!({"backend": URL, "stack": "organization/web/dev"})));
    assert_eq!(next().as_deref(), Some("app"));
    assert_eq!(duplicates.claimant(&deleted).as_deref(), Some("second"));
    duplicates.forget(&("apps".to_owned(), "second".to_owned()));
    assert_eq!(next().as_deref(), Some("app"), "the claim ends");
    assert_eq!(duplicates.claimant(&deleted), None);
}

/// Returns the run of the type `kind` that a Stack is about to record.
fn run(kind: UpdateKind) -> CurrentUpdate {
    CurrentUpdate { kind, ..CurrentUpdate::default() }
}

/// Returns a Stack whose backend URL is in a Secret, so that only the agent knows it.
fn hidden(name: &str, created: i64) -> Stack {
    let secret = json!({"type": "Secret", "secret": {"name": name, "key": "url"}});
    stack(name, created, json!({"backend": null, "envRefs": {"PULUMI_BACKEND_URL": secret}}))
}

#[test]
fn a_run_contains_the_applied_pulumi_stacks_that_it_can_use() {
    const URL: &str = "s3://state?endpoint=s3.example.com";
    let file = "file:///state/team";
    let on_volume = |claim: &str| {
        let pod = json!({"containers": [{"name": "pulumi", "volumeMounts": [{"name": "state", "mountPath": "/state"}]}],
            "volumes": [{"name": "state", "persistentVolumeClaim": {"claimName": claim}}]});
        let mut stack = hidden("second", 20);
        stack.spec.workspace_template = Some(json!({"spec": {"podTemplate": {"spec": pod}}}));
        stack
    };
    let own = || hidden("second", 20);
    let other = || hidden("first", 10);
    let first_on = |claim: &str| Stack { metadata: other().metadata, ..applied(on_volume(claim), "dev", file) };
    let visible = |url: &str| stack("second", 20, json!({"backend": url}));
    let project =
        |name: &str| stack("second", 20, json!({"backend": null, "stack": format!("organization/{name}/dev")}));
    let mut elsewhere = applied(other(), "dev", URL);
    elsewhere.metadata.namespace = Some("elsewhere".to_owned());
    let unreported = |mut stack: Stack| {
        stack.status.as_mut().unwrap().applied_stack.as_mut().unwrap().backend = None;
        stack
    };
    let rows = [
        ("a backend in a Secret", own(), applied(other(), "dev", URL), true),
        ("a Stack with its own resources", applied(own(), "dev", "s3://other"), applied(other(), "dev", URL), true),
        ("an unknown backend", own(), unreported(applied(other(), "dev", URL)), true),
        ("the same visible backend", visible(URL), applied(other(), "dev", URL), true),
        ("another visible backend", visible("s3://other?endpoint=s3.example.com"), applied(other(), "dev", URL), false),
        ("the same project", project("web"), applied(other(), "dev", URL), true),
        ("another project", project("api"), applied(other(), "dev", URL), false),
        ("another name", own(), applied(other(), "prod", URL), false),
        ("nothing applied", own(), other(), false),
        ("another namespace", own(), elsewhere, false),
        ("a file in another pod", own(), applied(other(), "dev", file), false),
        ("a file on a shared volume", on_volume("state"), first_on("state"), true),
        ("a file on another volume", on_volume("state"), first_on("other"), false),
    ];
    for (case, own, other, expected) in rows {
        let (requeue, _requeued) = requeue::queue();
        let duplicates = DuplicateStacks::new(requeue, true);
        duplicates.record(&own);
        duplicates.record(&other);
        for kind in [UpdateKind::Up, UpdateKind::Preview, UpdateKind::Destroy] {
            let listed = duplicates.begin(&own, &run(kind)).expect(case);
            let owners: Vec<&str> = listed.iter().map(|other| other.owner.as_str()).collect();
            assert_eq!(owners, if expected { vec!["first"] } else { Vec::new() }, "{case}");
        }
    }
}

#[test]
fn too_many_pulumi_stacks_prevent_a_run() {
    let (requeue, _requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let own = hidden("own", 20);
    duplicates.record(&own);
    for number in 0..MAX_APPLIED_BY_OTHERS {
        duplicates.record(&applied(hidden(&format!("other-{number}"), 10), "dev", &format!("s3://state-{number}")));
    }
    assert_eq!(duplicates.begin(&own, &run(UpdateKind::Up)).map(|listed| listed.len()), Ok(MAX_APPLIED_BY_OTHERS));
    duplicates.record(&applied(hidden("another", 10), "dev", "s3://state"));
    assert_eq!(duplicates.begin(&own, &run(UpdateKind::Up)), Err(Obstacle::TooMany));
}

#[test]
fn first_runs_that_can_use_the_same_pulumi_stack_do_not_overlap() {
    const URL: &str = "s3://state?endpoint=s3.example.com";
    let (requeue, mut requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let mut next = || requeued.next().now_or_never().flatten().map(|stack| stack.name);
    let [first, second] = [hidden("first", 10), hidden("second", 20)];
    duplicates.record(&first);
    duplicates.record(&second);
    let begin = |stack: &Stack| duplicates.begin(stack, &run(UpdateKind::Up));
    let waits = Err(Obstacle::FirstRun("second".to_owned()));
    assert_eq!(begin(&second), Ok(Vec::new()));
    assert_eq!(begin(&second), Ok(Vec::new()), "a repeated attempt");
    assert_eq!(begin(&first), waits, "the second Stack is about to record its run");
    assert_eq!(duplicates.begin(&first, &run(UpdateKind::Preview)), Ok(Vec::new()), "a preview changes nothing");
    let prod = stack("prod", 5, json!({"stack": "prod", "backend": null}));
    duplicates.record(&prod);
    assert_eq!(begin(&prod), Ok(Vec::new()), "another name");
    duplicates.abandon(&second);
    assert_eq!(next().as_deref(), Some("first"), "the second Stack did not record its run");
    assert_eq!(begin(&second), Ok(Vec::new()));
    assert_eq!(begin(&first), waits);

    let with = |status: StackStatus| Stack { status: Some(status), ..second.clone() };
    let status = StackStatus { attempts: Some(1), ..StackStatus::default() };
    let current_update = Some(Box::new(run(UpdateKind::Up)));
    duplicates.record(&with(StackStatus { current_update, ..status.clone() }));
    assert_eq!(begin(&first), waits, "the run is recorded");
    duplicates.record(&second);
    assert_eq!(begin(&first), waits, "the watch delivers an earlier version");
    let applied_stack = applied(second.clone(), "dev", URL).status.unwrap().applied_stack;
    duplicates.record(&with(StackStatus { applied_stack, ..status }));
    assert_eq!(next().as_deref(), Some("first"), "the run has ended");
    let listed = begin(&first).unwrap();
    assert_eq!(listed.len(), 1, "the run has applied a Pulumi stack");
    assert_eq!((listed[0].owner.as_str(), listed[0].stack.backend.as_deref()), ("second", Some(URL)));
}

#[test]
fn a_refused_run_waits_while_the_other_stack_manages_its_pulumi_stack() {
    const URL: &str = "s3://state?endpoint=s3.example.com";
    let (requeue, mut requeued) = requeue::queue();
    let duplicates = DuplicateStacks::new(requeue, true);
    let first = applied(hidden("first", 10), "dev", URL);
    let mut second = hidden("second", 20);
    let last = |reason: &str, url: &str| LastUpdate {
        reason: Some(reason.to_owned()),
        pulumi_stack: applied(hidden("any", 1), "dev", url).status.unwrap().applied_stack,
        ..LastUpdate::default()
    };
    let mut owner = |reason: &str, url: &str| {
        second.status = Some(StackStatus { last_update: Some(last(reason, url)), ..StackStatus::default() });
        duplicates.record(&second);
        duplicates.owner(&second).map(|owner| owner.to_string())
    };
    duplicates.record(&first);
    assert_eq!(owner("DuplicateStack", URL).as_deref(), Some("apps/first"));
    assert_eq!(owner("UpdateFailed", URL), None);
    assert_eq!(owner("DuplicateStack", "s3://other"), None);
    assert_eq!(owner("DuplicateStack", URL).as_deref(), Some("apps/first"));
    duplicates.forget(&("apps".to_owned(), "first".to_owned()));
    let next = requeued.next().now_or_never().flatten().map(|stack| stack.name);
    assert_eq!(next.as_deref(), Some("second"), "the first Stack was deleted");
    assert_eq!(owner("DuplicateStack", URL), None);
}
