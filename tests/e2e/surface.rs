//! Tests the public interface: every field of the Pulumi Kubernetes Operator in both Stack versions, the `kubectl get`
//! columns, and the metrics.

use k8s_openapi::api::core::v1::Event;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, ValidationDirective};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{Program as ProgramObject, Stack};
use serde_json::{Value, json};

use crate::harness::{
    Controller, Poll, Program, Scene, StackHandle, WaitLimit, api_call, condition, from_json, has_condition, kubectl,
    run, wait_until,
};
use crate::manifest_files::{covers, read};

const OLDER: &str = "v1alpha1";

/// Returns the API for a kind and version in the group `pulumi.com`.
fn objects(scene: &Scene, kind: &str, version: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("pulumi.com", version, kind));
    Api::namespaced_with(scene.client.clone(), &scene.namespace, &kind)
}

/// Applies an object as a dry run with strict field validation.
async fn check(scene: &Scene, object: &Value) -> kube::Result<DynamicObject> {
    let version = object["apiVersion"].as_str().and_then(|version| version.split('/').nth(1)).unwrap_or_default();
    let api = objects(scene, object["kind"].as_str().unwrap_or_default(), version);
    let mut parameters = PatchParams::apply("a-user");
    parameters.dry_run = true;
    parameters.field_validation = Some(ValidationDirective::Strict);
    api.patch(object["metadata"]["name"].as_str().unwrap_or_default(), &parameters, &Patch::Apply(object)).await
}

fn in_older_version(object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = json!(format!("pulumi.com/{OLDER}"));
    object
}

#[test]
fn strict_validation_accepts_every_field_of_pko() {
    run("fields", async |scene| {
        let stacks = ["stack", "rejected"].map(read).concat();
        let older = stacks.iter().map(|(file, object)| (format!("{file} as {OLDER}"), in_older_version(object)));
        for (file, object) in stacks.iter().cloned().chain(older).chain(read("program")) {
            let found = check(scene, &object).await.unwrap_or_else(|error| panic!("{file} is rejected: {error}"));
            for part in ["spec", "program"] {
                let written = object.get(part).unwrap_or(&Value::Null);
                assert!(covers(&found.data[part], written), "{file} loses fields: {}", found.data);
            }
        }
        let mut wrong = stacks[0].1.clone();
        wrong["spec"]["noSuchField"] = json!(true);
        let error = check(scene, &wrong).await.expect_err("the validation is strict").to_string();
        assert!(error.contains("noSuchField"), "{error}");
        let mut long = stacks[0].1.clone();
        long["metadata"]["name"] = json!("x".repeat(43));
        let error = check(scene, &long).await.expect_err("the schema rejects a long name").to_string();
        assert!(error.contains("no more than 42 characters"), "{error}");
        let mut many = stacks[0].1.clone();
        many["spec"]["dependsOn"] = (0..101).map(|number| json!({"name": format!("s{number}")})).collect();
        let error = check(scene, &many).await.expect_err("the schema rejects too many dependencies").to_string();
        assert!(error.contains("spec.dependsOn") && error.contains("at most 100 items"), "{error}");
        for (fields, message) in [
            (json!({"drift": {"interval": "0s"}}), "must be at least 1m"),
            (json!({"removeStack": true, "destroyOnFinalize": null}), "removeStack requires destroyOnFinalize"),
            (json!({"initOnCreate": true, "useLocalStackOnly": true}), "contradict each other"),
        ] {
            let mut ineffective = stacks[0].1.clone();
            ineffective["spec"].as_object_mut().expect("a spec").extend(fields.as_object().expect("fields").clone());
            let error = check(scene, &ineffective).await.expect_err("the schema rejects the fields").to_string();
            assert!(error.contains(message), "{fields}: {error}");
        }
        let mut null = stacks[0].1.clone();
        null["spec"]["config"] = json!({"a": null, "b": 1});
        let found = check(scene, &null).await.expect("null is accepted");
        assert_eq!(found.data["spec"]["config"], json!({"a": null, "b": 1}), "the controller can report null");
    });
}

#[test]
fn a_stack_that_expires_must_specify_what_happens_to_its_resources() {
    run("expiry-choice", async |scene| {
        let stack = serde_json::to_value(scene.stack_on_program("main", "app")).expect("an object");
        let expiries = [json!({"ttl": "72h"}), json!({"expiresAt": "2099-01-01T00:00:00Z"}), json!({})];
        for (expiry, needs_choice) in expiries.into_iter().zip([true, true, false]) {
            for (choice, is_choice) in
                [(json!({"destroyOnFinalize": null}), false), (json!({"destroyOnFinalize": false}), true)]
            {
                let mut stack = stack.clone();
                let spec = stack["spec"].as_object_mut().expect("a spec");
                spec.extend(
                    [&expiry, &choice]
                        .iter()
                        .filter_map(|fields| fields.as_object())
                        .flatten()
                        .map(|(k, v)| (k.clone(), v.clone())),
                );
                for object in [stack.clone(), in_older_version(&stack)] {
                    let created = check(scene, &object).await;
                    assert_eq!(created.is_ok(), is_choice || !needs_choice, "{object}: {created:?}");
                    let problem = created.err().map(|error| error.to_string()).unwrap_or_default();
                    assert!(problem.is_empty() || problem.contains("require spec.destroyOnFinalize"), "{problem}");
                }
            }
        }
    });
}

/// Returns a template with unusual content: null values, objects without required fields, strategic merge patch
/// directives, and a field from a newer Kubernetes version.
fn template_with_directives() -> Value {
    let container = json!({
        "name": "pulumi",
        "$setElementOrder/env": [{"name": "A"}, {"name": "B"}],
        "env": [{"name": "A", "$patch": "delete"}, {"name": "B", "value": null}],
        "volumeMounts": [{"$patch": "replace"}],
        "resources": {"limits": {"cpu": 2, "memory": "1Gi", "ephemeral-storage": null}},
        "securityContext": {"runAsUser": null, "$retainKeys": ["runAsUser"], "fieldOfNewerVersion": {"a": [1]}},
    });
    let pod = json!({
        "$deleteFromPrimitiveList/finalizers": ["a"],
        "containers": [container],
        "initContainers": null,
        "volumes": [{"name": "data", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}],
        "ephemeralContainers": [{"name": "debug"}],
    });
    json!({
        "metadata": {"labels": {"team": "blue", "area": null}, "annotations": null},
        "spec": {
            "image": null,
            "env": [{"name": "A", "$patch": "delete"}, {"$patch": "replace"}],
            "resources": {"requests": {"cpu": "100m", "memory": 1024}},
            "stacks": [{"name": "dev", "config": [{"key": "a", "value": {"b": null}}]}],
            "podTemplate": {"metadata": {"labels": {"$patch": "replace", "team": "blue"}}, "spec": pod},
        },
    })
}

#[test]
fn templates_keep_directives_and_reject_misspelled_fields() {
    run("templates", async |scene| {
        let mut stack = serde_json::to_value(scene.stack_on_program("main", "app")).expect("an object");
        stack["spec"]["workspaceTemplate"] = template_with_directives();
        stack["spec"]["updateTemplate"] = json!({"spec": {"target": null, "lockRecovery": null}});
        for object in [stack.clone(), in_older_version(&stack)] {
            let created = check(scene, &object).await.unwrap_or_else(|error| panic!("rejected: {error}"));
            for template in ["workspaceTemplate", "updateTemplate"] {
                assert_eq!(created.data["spec"][template], stack["spec"][template], "{}", object["apiVersion"]);
            }
        }
        let misspelled = [
            ("workspaceTemplate", json!({"spec": {"imagge": "a"}}), "imagge"),
            ("workspaceTemplate", json!({"metadata": {"lables": {}}}), "lables"),
            ("workspaceTemplate", json!({"spec": {"stacks": [{"name": "dev", "confg": []}]}}), "confg"),
            ("workspaceTemplate", json!({"spec": {"stacks": [{"name": "dev", "$patch": "replace"}]}}), "$patch"),
            ("workspaceTemplate", json!({"spec": {"serviceTemplate": {"spec": {}}}}), "serviceTemplate.spec"),
            ("updateTemplate", json!({"spec": {"ttl": "1h"}}), "ttl"),
            ("workspaceTemplate", json!({"spec": {"podTemplate": {"spec": {"hostNetwork": "yes"}}}}), "hostNetwork"),
        ];
        for (template, content, field) in misspelled {
            let mut wrong = stack.clone();
            wrong["spec"][template] = content;
            let error = check(scene, &wrong).await.expect_err(field).to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
    });
}

#[test]
fn a_stack_of_the_older_api_version_runs_and_converts_losslessly() {
    run("older-version", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("result", json!("hello")).object("app")).await;
        let stack = serde_json::to_value(scene.stack_on_program("main", "app")).expect("an object");
        let older = objects(scene, "Stack", OLDER);
        let mut written = in_older_version(&stack);
        written["spec"]["config"] = json!({"a": {"b": [1, "two", false]}});
        written["spec"]["refresh"] = json!(false);
        let created = older.create(&PostParams::default(), &from_json(written.clone())).await;
        assert!(created.is_ok(), "{created:?}");
        let main = StackHandle::of(scene, "main", &scene.stack_on_program("main", "app").spec.stack);
        main.until_revision("1").await;

        // Reads the Stack in both API versions, and compares the objects if their resource versions are equal.
        wait_until("both versions to be equal", WaitLimit::Reaction, async || {
            let newer = objects(scene, "Stack", "v1").get("main").await.expect("object exists");
            let older = older.get("main").await.expect("object exists");
            if newer.resource_version() != older.resource_version() {
                return Poll::NotYet("versions differ".to_owned());
            }
            assert_eq!(older.data, newer.data);
            assert!(covers(&older.data["spec"], &written["spec"]), "{}", older.data);
            assert_eq!(older.data["status"]["outputs"], json!({"result": "hello"}));
            Poll::Found(())
        })
        .await;
        main.delete().await;
        main.until_gone().await;
    });
}

#[test]
fn the_error_for_a_rejected_spec_states_the_reason() {
    run("rejected", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("result", json!("hello")).object("program")).await;
        for (file, object) in read("rejected") {
            let expected = object["metadata"]["annotations"]["pulumi-controller.test/expected-message"]
                .as_str()
                .unwrap_or_default();
            assert!(!expected.is_empty(), "{file} has no annotation with the expected message");
            let stack: Stack = scene.create(object.clone()).await;
            let handle = StackHandle::of(scene, &stack.name_any(), "dev");
            let rejected = handle
                .until("to report why it is rejected", WaitLimit::Reaction, |stack| {
                    let reasons = [stack_reason::SPEC_INVALID, stack_reason::ACCESS_DENIED];
                    reasons.iter().any(|reason| has_condition(stack, STALLED, "True", reason))
                })
                .await;
            let reasons = [READY, STALLED].map(|kind| condition(&rejected, kind).map(|found| found.reason.as_str()));
            assert_eq!(reasons[0], reasons[1], "{file}");
            let message = condition(&rejected, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default();
            assert!(message.contains(expected), "{file}: {message}");
        }
        assert!(
            scene.list::<Update>().await.is_empty() && scene.list::<Workspace>().await.is_empty(),
            "no Workspace is created"
        );
    });
}

#[test]
fn kubectl_get_shows_the_columns_of_pko() {
    run("columns", async |scene| {
        for version in ["v1", OLDER] {
            let path = format!("/apis/pulumi.com/{version}/namespaces/{}/stacks", scene.namespace);
            let request =
                axum::http::Request::get(path).header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
            let request = request.body(Vec::new()).expect("a request");
            let table = api_call("listing Stacks as a table", scene.client.request::<Value>(request)).await;
            let columns = table["columnDefinitions"].as_array().expect("a table has columns").iter();
            let shown = columns.clone().filter(|column| column["priority"] == json!(0));
            let names: Vec<_> = shown.map(|column| column["name"].as_str().unwrap_or_default()).collect();
            assert_eq!(names, ["Name", "Ready", "Revision", "Status", "Age"], "{version}");
            let all: Vec<_> = columns.map(|column| column["name"].as_str().unwrap_or_default()).collect();
            for name in ["Stack", "Last Update", "Age", "Last Commit", "Ready", "Reconciling", "Stalled", "Permalink"] {
                assert!(all.contains(&name), "{version}: `--output wide` prints the operator's column {name}: {all:?}");
            }
        }
    });
}

#[test]
fn kubectl_get_rows_are_short_and_updates_are_sorted_by_time() {
    run("rows", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&Program::new("rows").output("text", json!("one")).files()).await;
        let main = scene.start(scene.stack(&"x".repeat(42), &source)).await;
        main.until_applied(&first).await;
        let second = source.push(&Program::new("rows").output("text", json!("two")).files()).await;
        main.until_applied(&second).await;
        main.change(json!({"spec": {"suspend": true}})).await;
        main.until("to be suspended", WaitLimit::Reaction, |stack| {
            stack.status.as_ref().is_some_and(|status| status.suspended == Some(true))
        })
        .await;
        let revision = second.revision();
        let short: String = revision.chars().take("main@sha1:".len() + 8).collect();
        for kind in ["stacks.pulumi.com", "workspaces.auto.pulumi.com", "updates.auto.pulumi.com"] {
            let table = kubectl(&["get", kind, "--namespace", &scene.namespace], "").await;
            let longest = table.lines().map(|row| row.chars().count()).max();
            assert!(longest.is_some_and(|longest| longest < 160), "{longest:?} characters:\n{table}");
            assert!(table.contains(&format!(" {short} ")), "{short} is missing:\n{table}");
        }
        let stacks = kubectl(&["get", "stacks.pulumi.com", "--namespace", &scene.namespace], "").await;
        let status = format!(" suspended: up to date ({short}) ");
        assert!(stacks.lines().any(|row| row.contains("True") && row.contains(&status)), "{stacks}");
        let mut updates = main.updates().await;
        updates.sort_by_key(ResourceExt::name_any);
        let revisions = updates.iter().map(|update| update.spec.artifact.as_ref().map(|artifact| &artifact.revision));
        assert_eq!(revisions.collect::<Vec<_>>(), [Some(&first.revision()), Some(&second.revision())]);
    });
}

#[test]
fn events_have_the_reasons_of_pko_and_are_not_repeated() {
    run("events", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("result", json!("hello")).object("app")).await;
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        main.until_revision("1").await;
        let failing = Program::new("app").step("step", json!({"failOn": "create"})).object("app");
        scene.patch::<ProgramObject>("app", failing).await;
        main.until("to have failed twice", WaitLimit::Run, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.is_some_and(|last| last.state.as_deref() == Some("failed") && last.failures == 2)
        })
        .await;
        wait_until("the events of the runs", WaitLimit::Reaction, async || {
            let events = scene.list::<Event>().await;
            let of = |kind: &str, reason: &str| {
                let is_match = |event: &&Event| {
                    event.involved_object.kind.as_deref() == Some(kind) && event.reason.as_deref() == Some(reason)
                };
                events.iter().filter(is_match).map(|event| event.count.unwrap_or(1)).sum::<i32>()
            };
            let runs = i32::try_from(main.updates().await.len()).expect("count of Updates");
            let seen = [of("Stack", "StackCreated"), of("Stack", "StackUpdateFailure"), of("Update", "UpdateFailed")];
            match seen == [1, runs - 1, runs - 1] && of("Workspace", "Initialized") > 0 {
                true => Poll::Found(()),
                false => Poll::NotYet(format!("{seen:?} in {runs} runs")),
            }
        })
        .await;
    });
}

#[test]
fn metrics_report_the_state_of_a_stack_until_the_stack_is_deleted() {
    run("metrics", async |scene| {
        scene.create::<ProgramObject>(Program::new("app").output("result", json!("hello")).object("app")).await;
        let main = scene.start(scene.stack_on_program("main", "app")).await;
        main.until_revision("1").await;
        let controller = Controller::new(&scene.client);
        let labels = format!("{{namespace=\"{}\",name=\"main\"}}", scene.namespace);
        let metrics = async || {
            let pod = controller.pod().await.name_any();
            controller.get_endpoint(&pod, 8080, "/metrics").await
        };
        let until = async |what: &str, lines: &[String], gone: Option<&str>| {
            wait_until(what, WaitLimit::Reaction, async || {
                let text = metrics().await;
                let has = |line: &String| text.lines().any(|found| found == line);
                let is_gone = gone.is_none_or(|gone| !text.contains(gone));
                let seen = || text.lines().filter(|line| line.starts_with("stacks_")).collect::<Vec<_>>().join("\n");
                if lines.iter().all(has) && is_gone { Poll::Found(()) } else { Poll::NotYet(seen()) }
            })
            .await;
        };
        let lines = |failing: u8, reconciling: u8| {
            [format!("stacks_failing{labels} {failing}"), format!("stacks_reconciling{labels} {reconciling}")]
        };
        until("the metrics to report a ready Stack", &lines(0, 0), None).await;
        assert!(metrics().await.lines().any(|line| line.starts_with("stacks_active ") && !line.ends_with(" 0")));
        let failing = Program::new("app").step("step", json!({"failOn": "create"})).object("app");
        scene.patch::<ProgramObject>("app", failing).await;
        until("the metrics to report a failing Stack", &lines(1, 1), None).await;
        main.delete().await;
        main.until_gone().await;
        until("its series to be removed", &[], Some(&labels)).await;
    });
}
