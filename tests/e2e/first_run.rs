//! Tests the first run of a Stack.

use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use pulumi_controller::api::conditions::{COMPLETE, FAILED, PROGRESSING, READY, is_true, stack_reason};
use pulumi_controller::api::names::PULUMI_CONTAINER;
use pulumi_controller::api::pulumi::FluxSource;
use serde_json::json;

use crate::harness::{Controller, Poll, Program, WaitLimit, api_call, condition, has_condition, once, run, wait_until};

#[test]
fn a_first_run_produces_outputs() {
    run("first-run", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("first-run")
            .step("step", json!({"value": "one"}))
            .output("text", json!("hello"))
            .output("number", json!(42))
            .output("fraction", json!(0.5))
            .output("flag", json!(true))
            .output("object", json!({"list": [1, "two", false], "inner": {"text": "deep"}}))
            .output("value", json!("${step.value}"))
            .output("password", json!({"fn::secret": "correct horse battery staple"}));
        let commit = source.push(&program.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;

        let status = main.until_applied(&commit).await.status.expect("a Stack that is Ready has a status");
        let outputs = json!({
            "text": "hello", "number": 42, "fraction": 0.5, "flag": true,
            "object": {"list": [1, "two", false], "inner": {"text": "deep"}},
            "value": "one", "password": "[secret]",
        });
        assert_eq!(json!(status.outputs), outputs);
        assert_eq!(status.last_attempted_revision, Some(commit.revision()));
        let last = status.last_update.expect("a run has ended");
        assert_eq!((last.kind.as_deref(), last.state.as_deref()), (Some("up"), Some("succeeded")));
        assert_eq!(last.last_successful_commit, Some(commit.revision()));

        let updates = main.updates().await;
        assert_eq!(updates.len(), 1, "{updates:#?}");
        let update = updates[0].status.clone().unwrap_or_default();
        assert!(is_true(&update.conditions, COMPLETE), "{update:#?}");
        assert!(!is_true(&update.conditions, PROGRESSING) && !is_true(&update.conditions, FAILED), "{update:#?}");
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}

#[test]
fn a_secret_output_is_in_a_secret_but_not_in_the_log_or_status() {
    const PASSWORD: &str = "correct-horse-battery-staple";
    run("secret-output", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("secret-output").output("password", json!({"fn::secret": PASSWORD}));
        let commit = source.push(&program.files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        let stack = main.until_applied(&commit).await;

        let updates = main.updates().await;
        let name = updates[0].status.as_ref().and_then(|status| status.outputs.clone()).expect("outputs in the status");
        let outputs = api_call("reading the outputs", scene.api::<Secret>().get(&name)).await;
        let data = outputs.data.unwrap_or_default();
        let password = data.get("password").map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        assert_eq!(password, Some(format!("{PASSWORD:?}")), "an output is JSON in the Secret {name}");

        let log = main.pod_log(PULUMI_CONTAINER).await;
        let update = updates[0].metadata.name.clone().unwrap_or_default();
        assert!(log.contains(&update), "the log of the pod contains the CLI output with {update}: {log}");
        assert!(!log.contains(PASSWORD), "the log of the pod contains the secret: {log}");
        let objects = format!("{:?} {updates:?} {:?}", stack.status, main.workspace().await);
        assert!(!objects.contains(PASSWORD), "{objects}");
        let controller = Controller::new(&scene.client).log_lines(PASSWORD).await;
        assert!(controller.is_empty(), "{controller:?}");
    });
}

#[test]
fn config_values_keep_their_json_type_in_the_program() {
    run("config", async |scene| {
        let config = json!({
            "text": "hello", "digits": "0123", "number": 42, "fraction": 0.5, "flag": true,
            "object": {"inner": [1, "2", true], "text": "no"}, "list": [1, "two", false],
        });
        let kinds = [
            ("text", "String"),
            ("digits", "String"),
            ("number", "Number"),
            ("fraction", "Number"),
            ("flag", "Boolean"),
            ("object", "Object"),
            ("list", "Object"),
        ];
        let program = kinds.iter().fold(Program::new("config"), |program, (key, kind)| {
            program.typed_config(key, kind).output(key, json!(format!("${{{key}}}")))
        });
        let source = scene.source("app").await;
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.config = serde_json::from_value(config.clone()).expect("an object");
        let main = scene.start(stack).await;

        let stack = main.until_applied(&commit).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), config);
    });
}

#[test]
fn a_project_in_a_directory_of_the_source_runs() {
    run("directory", async |scene| {
        let source = scene.source("app").await;
        let root = Program::new("directory").output("which", json!("the root"));
        let below = Program::new("directory").output("which", json!("the directory"));
        let commit = source.push(&[root.file("Pulumi.yaml"), below.file("deploy/production/Pulumi.yaml")]).await;
        let mut stack = scene.stack("main", &source);
        let below = Some("deploy/production".to_owned());
        stack.spec.flux_source = stack.spec.flux_source.map(|source| FluxSource { dir: below, ..source });
        let main = scene.start(stack).await;
        let stack = main.until_applied(&commit).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"which": "the directory"}));
    });
}

#[test]
fn a_run_has_the_permissions_of_its_stacks_service_account() {
    run("account", async |scene| {
        scene.service_account_for_config_maps("deployer").await;
        let source = scene.source("app").await;
        let config_map = json!({"namespace": scene.namespace, "name": "made-by-pulumi", "data": {"greeting": "hello"}});
        let program = Program::new("account").step("step", json!({"configMap": config_map}));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.service_account_name = Some("deployer".to_owned());
        stack.spec.destroy_on_finalize = Some(true);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        let object =
            api_call("reading the object that the run created", scene.api::<ConfigMap>().get("made-by-pulumi")).await;
        assert_eq!(json!(object.data), json!({"greeting": "hello"}));

        main.delete().await;
        main.until_gone().await;
        wait_until("the object that the run created to be deleted", WaitLimit::Call, async || {
            match scene.api::<ConfigMap>().get_opt("made-by-pulumi").await {
                Ok(None) => Poll::Found(()),
                other => Poll::NotYet(format!("{other:?}")),
            }
        })
        .await;
    });
}

#[test]
fn a_missing_permission_is_reported_until_it_is_granted() {
    run("no-right", async |scene| {
        scene.create::<ServiceAccount>(json!({"metadata": {"name": "deployer"}})).await;
        let source = scene.source("app").await;
        let config_map = json!({"namespace": scene.namespace, "name": "made-by-pulumi", "data": {"greeting": "hello"}});
        let program = Program::new("no-right").step("step", json!({"configMap": config_map}));
        let commit = source.push(&program.files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.service_account_name = Some("deployer".to_owned());
        let main = scene.start(stack).await;
        let stack = main
            .until("to report that its update failed", WaitLimit::Run, |stack| {
                has_condition(stack, READY, "False", stack_reason::UPDATE_FAILED)
            })
            .await;
        let message = condition(&stack, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        let namespace = &scene.namespace;
        for words in [
            format!("User \"system:serviceaccount:{namespace}:deployer\" cannot create resource \"configmaps\""),
            format!("allow ServiceAccount {namespace}/deployer to create configmaps in namespace {namespace}"),
            "a Role and a RoleBinding".to_owned(),
        ] {
            assert!(message.contains(&words), "{words} is not in: {message}");
        }

        scene.allow_config_maps("deployer").await;
        main.until_applied(&commit).await;
        api_call("reading the object that the run created", scene.api::<ConfigMap>().get("made-by-pulumi")).await;
    });
}
