//! Tests changes to a Stack's settings that take effect without a new pod.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{READY, SETTINGS_IGNORED, STALLED, stack_reason};
use pulumi_controller::api::names::{ANNOTATION_REQUESTED_AT, workspace_pod};
use pulumi_controller::api::pulumi::{ResourceRef, SecretSelector, StackSpec};
use serde_json::{Value, json};

use crate::by_hand::init_container;
use crate::harness::{Poll, Program, STATE_SECRET, Scene, StackHandle, WaitLimit, condition, once, run, wait_until};

#[test]
fn changed_and_removed_config_takes_effect_without_a_new_pod() {
    run("config-change", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("config-change")
            .config("greeting", "default greeting")
            .config("tone", "neutral")
            .output("result", json!("${greeting} (${tone})"));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.config = [("greeting".to_owned(), json!("hello")), ("tone".to_owned(), json!("friendly"))].into();
        let main = scene.start(stack).await;
        let greeting = async || {
            let status = main.until_applied(&commit).await.status.expect("a status");
            status.outputs.get("result").cloned().unwrap_or_default()
        };
        assert_eq!(greeting().await, json!("hello (friendly)"));
        let pod = main.pod_and_restarts().await;

        main.change(json!({"spec": {"config": {"greeting": "good morning"}}})).await;
        assert_eq!(greeting().await, json!("good morning (friendly)"));

        main.change(json!({"spec": {"config": {"greeting": null}}})).await;
        assert_eq!(
            greeting().await,
            json!("default greeting (friendly)"),
            "a removed key is no longer in the configuration of the Pulumi stack"
        );

        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.updates().await.len(), 3);
    });
}

#[test]
fn config_comes_from_config_maps_and_secrets_and_can_be_nested() {
    run("config-kinds", async |scene| {
        config_inputs(scene).await;
        let source = scene.source("app").await;
        let program = Program::new("config-kinds")
            .config("greeting", "none")
            .typed_config("list", "List<String>")
            .config("token", "none")
            .config("inline", "none")
            .output("result", json!("${greeting}"))
            .output("list", json!("${list}"))
            .output("token", json!("${token}"))
            .output("inline", json!("${inline}"));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        let spec = json!({
            "config": {"plain": 1},
            "configRef": {
                "greeting": {"name": "map", "key": "greeting"},
                "list": {"name": "map", "key": "list", "json": true},
            },
            "secrets": {"inline": "hidden-inline"},
            "secretsRef": {
                "token": {"type": "Secret", "secret": {"name": "keys", "key": "token"}},
                "structure.deep": {"type": "Secret", "secret": {"name": "keys", "key": "deep"}},
            },
            "pathKeys": ["structure.deep"],
        });
        stack.spec = with_fields(&stack.spec, &spec);
        let main = scene.start(stack).await;
        let outputs = async || main.until_applied(&commit).await.status.expect("a status").outputs;
        let found = outputs().await;
        assert_eq!((&found["result"], &found["list"]), (&json!("hello"), &json!(["a", "b"])));
        assert_eq!((&found["token"], &found["inline"]), (&json!("[secret]"), &json!("[secret]")));
        let pod = main.pod_and_restarts().await;
        let log = main.pod_log("pulumi").await;
        let reported = serde_json::to_string(&main.get().await.status).expect("valid JSON");
        for hidden in ["hidden-token", "hidden-deep", "hidden-inline"] {
            assert!(!log.contains(hidden) && !reported.contains(hidden), "{hidden} is visible");
        }

        // Neither a change to another key in the same Secret nor the removal of a field requires a new pod.
        main.change(json!({"spec": {
            "secrets": null,
            "secretsRef": {"token": {"secret": {"key": "deep"}}},
            "configRef": {"greeting": null},
        }}))
        .await;
        let found = outputs().await;
        assert_eq!((&found["result"], &found["inline"]), (&json!("none"), &json!("none")));
        assert_eq!(&found["token"], &json!("[secret]"));
        assert_eq!(main.pod_and_restarts().await, pod);

        main.change(json!({"spec": {"config": {"token": "twice"}}})).await;
        main.until("to report the duplicate key", WaitLimit::Reaction, |stack| {
            condition(stack, STALLED).is_some_and(|stalled| {
                stalled.message.contains("config key token is set in both spec.config and spec.secretsRef")
            })
        })
        .await;
    });
}

/// Creates a ConfigMap and a Secret that contain a Stack's configuration values.
async fn config_inputs(scene: &Scene) {
    let map = json!({"metadata": {"name": "map"}, "data": {"greeting": "hello", "list": "[\"a\", \"b\"]"}});
    scene.create::<ConfigMap>(map).await;
    let keys = json!({"metadata": {"name": "keys"}, "stringData": {"token": "hidden-token", "deep": "hidden-deep"}});
    scene.create::<Secret>(keys).await;
}

/// Merges JSON fields into the spec. The fields have the same names as in a manifest.
fn with_fields(spec: &StackSpec, fields: &Value) -> StackSpec {
    let mut whole = serde_json::to_value(spec).expect("valid JSON");
    whole.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
    serde_json::from_value(whole).expect("a spec")
}

#[test]
fn settings_without_effect_are_named_and_a_hidden_restriction_refuses_the_run() {
    run("ignored-settings", async |scene| {
        scene
            .create::<Secret>(json!({"metadata": {"name": "options"}, "stringData": {"PULUMI_OPTION_PARALLEL": "1"}}))
            .await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("ignored-settings").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.target_dependents = Some(true);
        stack.spec.env_secrets = vec!["options".to_owned()];
        let main = scene.start(stack).await;
        let stack = main.until_applied(&commit).await;
        let ignored = condition(&stack, SETTINGS_IGNORED).expect("the condition").message.clone();
        assert!(ignored.contains("spec.targetDependents has no effect without spec.targets"), "{ignored}");
        assert!(ignored.contains("PULUMI_OPTION_PARALLEL has no effect"), "{ignored}");
        main.until_event("SettingsIgnored").await;

        scene
            .create::<Secret>(json!({"metadata": {"name": "other"}, "stringData": {"PULUMI_OPTION_TARGET": "urn"}}))
            .await;
        main.change(json!({"spec": {"targetDependents": null, "envSecrets": ["other"]}})).await;
        main.until("to refuse the run", WaitLimit::Run, |stack| {
            condition(stack, READY)
                .is_some_and(|ready| ready.message.contains("runs ignore environment variable PULUMI_OPTION_TARGET"))
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create step"]), "the run has not started");
        main.change(json!({"spec": {"envSecrets": null}})).await;
        let stack = main.until_applied(&commit).await;
        assert!(condition(&stack, SETTINGS_IGNORED).is_none(), "all settings have an effect");
    });
}

#[test]
fn a_rotated_secret_reaches_the_next_run_in_the_same_pod() {
    run("rotation", async |scene| {
        // The Secret contains the provider log address. A run with the old value fails, and a run with the new value
        // succeeds.
        let wrong = json!({"metadata": {"name": "log"}, "stringData": {"url": "http://127.0.0.1:9"}});
        scene.create::<Secret>(wrong).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("rotation").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        let right = stack.spec.env_refs.remove("PROVIDER_LOG_URL").and_then(|r| r.literal).expect("a literal").value;
        let secret = Some(SecretSelector { namespace: None, name: "log".to_owned(), key: "url".to_owned() });
        let reference = ResourceRef { kind: "Secret".to_owned(), secret, ..ResourceRef::default() };
        stack.spec.env_refs.insert("PROVIDER_LOG_URL".to_owned(), reference);
        let main = scene.start(stack).await;
        main.until("to fail with the old value", WaitLimit::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.reason == stack_reason::UPDATE_FAILED)
        })
        .await;
        let pod = main.pod_and_restarts().await;

        scene.patch::<Secret>("log", json!({"stringData": {"url": right}})).await;
        // Changes the pod, because the kubelet syncs a changed pod immediately. The kubelet syncs other pods only about
        // every minute.
        scene
            .patch::<Pod>(
                &workspace_pod("main"),
                json!({"metadata": {"annotations": {"pulumi-controller.test/changed": "1"}}}),
            )
            .await;
        main.until_applied_within(WaitLimit::Long, &commit).await;

        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}

#[test]
fn rotating_a_config_input_starts_a_run_but_rotating_env_does_not() {
    run("config-rotation", async |scene| {
        config_inputs(scene).await;
        scene.create::<Secret>(json!({"metadata": {"name": "variable"}, "stringData": {"UNUSED": "one"}})).await;
        let source = scene.source("app").await;
        let program = Program::new("config-rotation")
            .config("greeting", "none")
            .config("token", "none")
            .output("result", json!("${greeting}"))
            .output("length", json!({"fn::unsecret": {"fn::length": "${token}"}}));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        let spec = json!({
            "configRef": {"greeting": {"name": "map", "key": "greeting"}},
            "secretsRef": {"token": {"type": "Secret", "secret": {"name": "keys", "key": "token"}}},
            "envSecrets": ["variable"],
        });
        stack.spec = with_fields(&stack.spec, &spec);
        let main = scene.start(stack).await;
        let first = main.until_applied(&commit).await.status.expect("a status");
        assert_eq!(
            (&first.outputs["result"], &first.outputs["length"]),
            (&json!("hello"), &json!("hidden-token".len()))
        );
        let pod = main.pod_and_restarts().await;

        scene.patch::<ConfigMap>("map", json!({"data": {"greeting": "good morning"}})).await;
        until_output(scene, &main, "result", &json!("good morning")).await;
        let updates = main.updates().await;
        assert_eq!(updates.len(), 2);
        assert_eq!(
            updates[1].spec.message.as_deref(),
            Some("A Secret or ConfigMap referenced by the configuration has changed")
        );

        // Changes keys that the configuration does not use, in the same Secret and in another Secret.
        scene.patch::<Secret>("variable", json!({"stringData": {"UNUSED": "two"}})).await;
        scene.patch::<Secret>("keys", json!({"stringData": {"deep": "rotated"}})).await;
        trigger_input_sync(scene, &main).await;
        scene.patch::<Secret>("keys", json!({"stringData": {"token": "another-hidden-token"}})).await;
        until_output(scene, &main, "length", &json!("another-hidden-token".len())).await;
        assert_eq!(main.updates().await.len(), 3);
        assert_eq!(main.pod_and_restarts().await, pod);
        let reported = serde_json::to_string(&(main.get().await.status, main.workspace().await.status)).expect("JSON");
        assert!(!reported.contains("hidden-token"), "{reported}");

        let status = main.get().await.status.expect("a status");
        assert_eq!(
            status.last_update.and_then(|last| last.inputs.config_inputs),
            main.workspace().await.status.and_then(|status| status.config_inputs),
            "no further run is due"
        );
    });
}

/// Changes the pod, so that the kubelet syncs the changed inputs. Changes the Workspace, so that the controller queries
/// the agent. Without these changes, each of the two steps can take up to two minutes.
pub async fn trigger_input_sync(scene: &Scene, main: &StackHandle<'_>) {
    let now = || jiff::Timestamp::now().to_string();
    let touched = json!({"metadata": {"annotations": {"pulumi-controller.test/changed": now()}}});
    scene.patch::<Pod>(&workspace_pod(&main.name), touched).await;
    scene.patch::<Workspace>(&main.name, json!({"metadata": {"annotations": {ANNOTATION_REQUESTED_AT: now()}}})).await;
}

async fn until_output(scene: &Scene, main: &StackHandle<'_>, name: &str, value: &Value) {
    wait_until(format!("the output {name} to be {value}"), WaitLimit::Long, async || {
        trigger_input_sync(scene, main).await;
        let status = main.get().await.status.expect("a status");
        match status.outputs.get(name) {
            Some(found) if found == value && status.current_update.is_none() => Poll::Found(()),
            found => Poll::NotYet(format!("{found:?}; {:?}", status.conditions)),
        }
    })
    .await;
}

#[test]
fn variables_from_an_init_container_reach_the_cli() {
    run("env-file", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("env-file").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        let address = stack.spec.env_refs.remove("PROVIDER_LOG_URL").and_then(|r| r.literal).expect("a literal").value;
        let share = json!([{"name": "share", "mountPath": "/share"}]);
        let leave = init_container(scene, "leave", &format!("echo PROVIDER_LOG_URL={address} >>$PULUMI_ENV"), share);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"] =
            json!({"spec": {"initContainers": [leave]}});
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        assert_eq!(
            main.log.operations().await,
            once(&["create step"]),
            "the provider uses the URL from the environment file"
        );
    });
}

#[test]
fn rotated_env_from_values_reach_the_next_run_in_the_same_pod() {
    run("environment", async |scene| {
        let wrong = json!({"metadata": {"name": "log"}, "data": {"PROVIDER_LOG_URL": "http://127.0.0.1:9"}});
        scene.create::<ConfigMap>(wrong).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("environment").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        let right = stack.spec.env_refs.remove("PROVIDER_LOG_URL").and_then(|r| r.literal).expect("a literal").value;
        // The Secret contains both the backend credentials and the passphrase.
        stack.spec.env_refs.clear();
        stack.spec.env_secrets = vec![STATE_SECRET.to_owned()];
        stack.spec.envs = vec!["log".to_owned()];
        let main = scene.start(stack).await;
        main.until("to fail with the old value", WaitLimit::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.reason == stack_reason::UPDATE_FAILED)
        })
        .await;
        let pod = main.pod_and_restarts().await;

        scene.patch::<ConfigMap>("log", json!({"data": {"PROVIDER_LOG_URL": right}})).await;
        let touched = json!({"metadata": {"annotations": {"pulumi-controller.test/changed": "1"}}});
        scene.patch::<Pod>(&workspace_pod("main"), touched).await;
        main.until_applied_within(WaitLimit::Long, &commit).await;

        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}

#[test]
fn targets_limit_a_run_to_the_targets_and_their_dependents() {
    run("targets", async |scene| {
        let source = scene.source("app").await;
        let program = |value: &str| {
            let one = json!({"value": value});
            Program::new("targets")
                .step("one", one.clone())
                .step("two", one.clone())
                .step("three", json!({"value": "${one.value}"}))
        };
        let first = source.push(&program("a").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        main.change(json!({"spec": {"targets": ["urn:pulumi:**::testing:index:Step::one"]}})).await;
        main.until_applied(&first).await;

        let second = source.push(&program("b").files()).await;
        main.until_applied(&second).await;
        assert_eq!(updated_resources(&main).await, ["one"]);
        main.change(json!({"spec": {"targetDependents": true}})).await;
        main.until_applied(&second).await;
        assert_eq!(updated_resources(&main).await, ["one", "three"], "dependent resources are updated");
        let third = source.push(&program("c").files()).await;
        main.until_applied(&third).await;
        assert_eq!(updated_resources(&main).await[2..], ["one", "three"]);
    });
}

/// Returns the resources that runs have updated, in chronological order.
async fn updated_resources(main: &StackHandle<'_>) -> Vec<String> {
    let done = |operation: String| {
        operation.strip_prefix("update ").and_then(|rest| rest.strip_suffix(" done")).map(str::to_owned)
    };
    main.log.operations().await.into_iter().filter_map(done).collect()
}
