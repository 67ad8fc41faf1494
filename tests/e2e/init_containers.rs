//! Tests init containers that users add to the workspace pod.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, RECONCILING, STALLED, stack_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::{
    File, Poll, Program, Scene, WaitLimit, condition, has_condition, is_stalled, once, run, wait_until,
};

/// Returns a program whose output is the content of a file. An init container generates this file from a source file.
fn files(project: &str, word: &str) -> Vec<File> {
    let program = Program::new(project).step("step", json!({"value": word}));
    let mut files = program.output("made", json!({"fn::readFile": "./made.txt"})).files();
    files.push(File { path: "word.txt".to_owned(), content: word.to_owned() });
    files
}

const UPPERCASE_SCRIPT: &str = "tr a-z A-Z </share/workspace/word.txt >/share/workspace/made.txt";
/// Sidecar script that runs until SIGTERM.
const SIDECAR_SCRIPT: &str = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done";

/// Returns an init container that runs a script.
fn container(scene: &Scene, name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": scene.pulumi_image(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "share", "mountPath": "/share"}],
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    })
}

fn template(init_containers: &[Value]) -> Value {
    json!({"spec": {"podTemplate": {"spec": {"initContainers": init_containers, "terminationGracePeriodSeconds": 30}}}})
}

fn set_template(stack: &mut Stack, init_containers: &[Value]) {
    let expected = template(init_containers);
    stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"] =
        expected["spec"]["podTemplate"].clone();
}

fn init_containers(pod: &Pod) -> Vec<String> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    containers.map(|container| container.name.clone()).collect()
}

fn has_pod_problem(stack: &Stack, words: &[&str]) -> bool {
    is_stalled(stack, stack_reason::WORKSPACE_FAILED)
        && condition(stack, READY).is_some_and(|ready| words.iter().all(|word| ready.message.contains(word)))
}

#[test]
fn init_containers_can_read_the_source_and_a_new_source_gets_a_new_pod() {
    run("init", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&files("init", "one")).await;
        let mut stack = scene.stack("main", &source);
        let make = container(scene, "make", UPPERCASE_SCRIPT);
        set_template(&mut stack, &[make]);
        let main = scene.start(stack).await;
        let stack = main.until_applied(&first).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"made": "ONE"}));
        let pod = main.pod().await;
        assert_eq!(init_containers(&pod), ["bootstrap", "fetch", "make"]);

        let second = source.push(&files("init", "two")).await;
        let stack = main.until_applied(&second).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"made": "TWO"}));
        assert_ne!(main.pod().await.uid(), pod.uid(), "another source needs a new pod");
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn a_sidecar_needs_no_source_and_new_sources_keep_the_pod() {
    run("side-car", async |scene| {
        let source = scene.source("app").await;
        let program = |text: &str| Program::new("side-car").output("result", json!(text)).files();
        let first = source.push(&program("one")).await;
        let mut stack = scene.stack("main", &source);
        let mut proxy = container(scene, "proxy", SIDECAR_SCRIPT);
        proxy["restartPolicy"] = json!("Always");
        set_template(&mut stack, &[proxy]);
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        let pod = main.pod().await;
        assert_eq!(init_containers(&pod), ["bootstrap", "proxy"]);

        let second = source.push(&program("two")).await;
        main.until_applied(&second).await;
        assert_eq!(main.pod().await.uid(), pod.uid(), "the new source was installed in the same pod");
    });
}

#[test]
fn a_failing_init_container_is_reported_until_it_is_fixed() {
    run("init-fails", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&files("init-fails", "one")).await;
        let mut stack = scene.stack("main", &source);
        let fail = container(scene, "make", "echo there is no database >/dev/termination-log; exit 3");
        let make = container(scene, "make", UPPERCASE_SCRIPT);
        set_template(&mut stack, &[fail]);
        let main = scene.start(stack).await;
        main.until("to report the init container", WaitLimit::Run, |stack| {
            has_pod_problem(stack, &["init container make", "exit code 3", "there is no database"])
        })
        .await;

        main.change(json!({"spec": {"workspaceTemplate": template(&[make])}})).await;
        let stack = main.until_applied(&commit).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"made": "ONE"}));
    });
}

#[test]
fn a_push_fixes_a_source_that_makes_its_init_container_fail() {
    run("init-source", async |scene| {
        let source = scene.source("app").await;
        let mut incomplete = files("init-source", "one");
        incomplete.retain(|file| file.path != "word.txt");
        source.push(&incomplete).await;
        let mut stack = scene.stack("main", &source);
        let script = format!("[ -f /share/workspace/word.txt ] || exit 4; {UPPERCASE_SCRIPT}");
        let make = container(scene, "make", &script);
        set_template(&mut stack, &[make]);
        let main = scene.start(stack).await;
        main.until("to report the init container", WaitLimit::Run, |stack| {
            has_pod_problem(stack, &["init container make", "exit code 4"])
        })
        .await;

        let fixed = source.push(&files("init-source", "two")).await;
        let stack = main.until_applied(&fixed).await;
        assert_eq!(json!(stack.status.expect("a status").outputs), json!({"made": "TWO"}));
    });
}

#[test]
fn an_event_lists_ineffective_env_and_mounts_of_the_fetch_container() {
    run("fetch-env", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&files("fetch-env", "one")).await;
        let mut stack = scene.stack("main", &source);
        let fetch = json!({
            "name": "fetch", "env": [{"name": "SSH_KNOWN_HOSTS", "value": "/hosts/known_hosts"}],
            "volumeMounts": [{"name": "hosts", "mountPath": "/hosts"}],
        });
        set_template(&mut stack, &[fetch, container(scene, "make", UPPERCASE_SCRIPT)]);
        let spec = &mut stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"]["spec"];
        spec["volumes"] = json!([{"name": "hosts", "emptyDir": {}}]);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        assert_eq!(init_containers(&main.pod().await), ["bootstrap", "fetch", "make"]);
        wait_until("the event about fetch", WaitLimit::Reaction, async || {
            let events = scene.list::<Event>().await;
            let messages = events.iter().filter(|event| event.reason.as_deref() == Some("PodTemplateNoEffect"));
            let messages: Vec<_> = messages.filter_map(|event| event.message.clone()).collect();
            match messages.as_slice() {
                [one] if one.contains("env[SSH_KNOWN_HOSTS], volumeMounts[/hosts]") => Poll::Found(()),
                other => Poll::NotYet(format!("{other:?}")),
            }
        })
        .await;
    });
}

/// Script that wraps the CLI. The script reports an old version, and rejects a flag that every run uses. The script
/// forwards all other calls to the image's CLI.
const OLD_CLI: &str = r#"mkdir -p /share/old && cat >/share/old/pulumi <<'END' && chmod +x /share/old/pulumi
#!/bin/sh
for word; do
    case $word in
        version) echo v3.104.2; exit 0 ;;
        --suppress-progress) echo "error: unknown flag: --suppress-progress" >&2; exit 255 ;;
    esac
done
PATH=/usr/local/bin:/usr/bin:/bin exec pulumi "$@"
END"#;

#[test]
fn an_outdated_cli_stalls_the_stack_until_the_image_has_a_newer_cli() {
    run("old-cli", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("old-cli").output("result", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        set_template(&mut stack, &[container(scene, "install", OLD_CLI)]);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["env"] =
            json!([{"name": "PATH", "value": "/share/old:/usr/local/bin:/usr/bin:/bin"}]);
        let main = scene.start(stack).await;
        let stalled = main
            .until("to report that the CLI is too old", WaitLimit::Long, |stack| {
                has_condition(stack, STALLED, "True", stack_reason::PULUMI_VERSION_TOO_LOW)
            })
            .await;
        let message = condition(&stalled, STALLED).map(|stalled| stalled.message.clone()).unwrap_or_default();
        assert!(message.starts_with("IncompatibleConfiguration: ") && message.contains("v3.104.2"), "{message}");
        assert!(
            has_condition(&stalled, READY, "False", stack_reason::PULUMI_VERSION_TOO_LOW)
                && condition(&stalled, RECONCILING).is_none()
        );
        main.change(json!({"spec": {"workspaceTemplate": {"spec": {"env": null}}}})).await;
        main.until_applied(&commit).await;
    });
}
