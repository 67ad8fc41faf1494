//! Tests Workspaces that have no pod while they are idle.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{READY, find, workspace_reason};
use pulumi_controller::api::names::{ANNOTATION_REQUESTED_AT, workspace_object, workspace_pod};
use pulumi_controller::api::pulumi::{ConfigReference, Stack};
use serde_json::{Value, json};

use crate::by_hand::{output, run_update, until_ready, until_workspace, workspace};
use crate::harness::{
    Browser, Poll, Program, Scene, Source, StackHandle, Volume, WaitLimit, api_call, is_done, once, run, wait_until,
};
use crate::runs_parts::{in_pod, shell_in_pod};
use crate::ui::token;

/// Digest of an archive that does not exist.
const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Returns a Stack whose Workspace falls asleep after one minute.
pub fn stack_with_idle_time(scene: &Scene, source: &Source<'_>) -> Stack {
    let mut stack = scene.stack("main", source);
    stack.spec.workspace_template.get_or_insert_default()["spec"]["idle"] = json!({"after": "1m"});
    stack
}

pub fn is_asleep(workspace: &Workspace) -> bool {
    let conditions = workspace.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = find(conditions, READY);
    ready.is_some_and(|ready| ready.status == "True" && ready.reason == workspace_reason::SLEEPING)
}

/// Waits until the Workspace sleeps and has no pod.
pub async fn until_asleep(scene: &Scene, name: &str) -> Workspace {
    let asleep = until_workspace(scene, name, "to be asleep", WaitLimit::Long, is_asleep).await;
    wait_until("the pod to be removed", WaitLimit::Reaction, async || {
        match scene.api::<Pod>().get_opt(&workspace_pod(name)).await {
            Ok(None) => Poll::Found(()),
            other => Poll::NotYet(format!("{:?}", other.map(|pod| pod.map(|pod| pod.metadata)))),
        }
    })
    .await;
    asleep
}

/// Requests a run and waits until it has succeeded.
pub async fn run_on_request(main: &StackHandle<'_>, request: &str) {
    main.annotate(ANNOTATION_REQUESTED_AT, request).await;
    main.until("to have run on request", WaitLimit::Long, |stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        is_done(stack) && last.is_some_and(|last| last.inputs.requested_at.as_deref() == Some(request))
    })
    .await;
}

#[test]
fn an_idle_stack_has_no_pod_until_a_push_starts_one_run() {
    run("sleeping", async |scene| {
        let source = scene.source("app").await;
        let program = |value: &str| Program::new("sleeping").step("step", json!({"value": value})).files();
        let first = source.push(&program("one")).await;
        let main = scene.start(stack_with_idle_time(scene, &source)).await;
        main.until_applied(&first).await;
        let awake = main.workspace().await.status.expect("a status");
        let asleep = until_asleep(scene, "main").await.status.expect("a status");
        assert!(asleep.sleep.is_some() && asleep.pod_uid.is_none(), "{asleep:?}");
        assert_eq!((&asleep.artifact, &asleep.mounted_inputs), (&awake.artifact, &awake.mounted_inputs));
        assert!(is_done(&main.get().await), "the Stack stays ready");
        let stateful_set =
            api_call("reading the StatefulSet", scene.api::<StatefulSet>().get(&workspace_object("main"))).await;
        assert_eq!(stateful_set.spec.and_then(|spec| spec.replicas), Some(0));
        assert_eq!(main.updates().await.len(), 1, "the sleep starts no run");
        let mut viewer = Browser::open(&scene.client).await;
        viewer.sign_in(&token(scene, "viewer", Some("view")).await).await;
        let page = viewer.get(&format!("/stacks/{}/main", scene.namespace)).await;
        assert!(page.status == 200 && page.text.contains("sleeping since"), "{}", page.text);

        let second = source.push(&program("two")).await;
        main.until_applied(&second).await;
        assert_eq!(main.updates().await.len(), 2, "the push starts one run");
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
        let awake = main.workspace().await.status.expect("a status");
        assert!(awake.sleep.is_none() && awake.pod_uid.is_some(), "{awake:?}");
    });
}

#[test]
fn a_requested_run_wakes_a_stack_whose_source_is_unchanged() {
    run("sleeping-request", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("sleeping-request").step("step", json!({"value": "one"}));
        let commit = source.push(&program.files()).await;
        let main = scene.start(stack_with_idle_time(scene, &source)).await;
        main.until_applied(&commit).await;
        until_asleep(scene, "main").await;

        run_on_request(&main, "while asleep").await;
        assert_eq!(main.updates().await.len(), 2);
        assert_eq!(main.log.operations().await, once(&["create step"]));
        until_asleep(scene, "main").await;
        main.delete().await;
        main.until_gone().await;
        let pods = scene.list::<Pod>().await;
        assert!(pods.is_empty(), "{pods:?}");
    });
}

#[test]
fn a_persistent_volume_survives_the_sleep_and_belongs_to_one_workspace() {
    run("sleeping-volume", async |scene| {
        let volume = Volume::create(scene, "main-share").await;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Mi"}}});
        scene.create::<PersistentVolumeClaim>(json!({"metadata": {"name": "main-share"}, "spec": spec})).await;
        let source = scene.source("app").await;
        let program = |value: &str| Program::new("sleeping-volume").step("step", json!({"value": value})).files();
        let first = source.push(&program("one")).await;
        let mut stack = stack_with_idle_time(scene, &source);
        let idle = json!({"after": "1m", "keep": "Volume", "claim": "main-share"});
        stack.spec.workspace_template.get_or_insert_default()["spec"]["idle"] = idle.clone();
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        let script = "mkdir -p /share/cache && echo kept >/share/cache/marker && cat /share/source.json";
        let before = output_in_pod(scene, script).await;
        until_asleep(scene, "main").await;

        run_on_request(&main, "while asleep").await;
        assert_eq!(output_in_pod(scene, "cat /share/cache/marker /share/owner").await, "kept\nmain");
        let tree =
            |record: &str| serde_json::from_str::<Value>(record).expect("JSON")["current_source"]["tree"].clone();
        let after = output_in_pod(scene, "cat /share/source.json").await;
        assert_eq!(tree(&after), tree(&before), "the source is not unpacked again");
        let second = source.push(&program("two")).await;
        main.until_applied(&second).await;
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));

        workspace(scene, "other", json!({"flux": {"url": "http://source/a.tar.gz", "digest": DIGEST}, "idle": idle}))
            .await;
        until_workspace(scene, "other", "to report the owner of the volume", WaitLimit::Long, |other| {
            let conditions = other.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            find(conditions, READY).is_some_and(|ready| ready.message.contains("init container bootstrap"))
        })
        .await;
        scene.delete::<Workspace>("other").await;
        main.delete().await;
        main.until_gone().await;
        volume.remove().await;
    });
}

/// Runs a shell script in the pod of the Stack `main`, and returns the output.
async fn output_in_pod(scene: &Scene, script: &str) -> String {
    let output = shell_in_pod(scene, "main", script).output().await.expect("kubectl starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn an_interactive_session_keeps_the_pod_of_an_idle_stack() {
    run("sleeping-session", async |scene| {
        let source = scene.source("app").await;
        let program = Program::new("sleeping-session").output("result", json!("hello"));
        let commit = source.push(&program.files()).await;
        let main = scene.start(stack_with_idle_time(scene, &source)).await;
        main.until_applied(&commit).await;
        let pod = main.pod_and_restarts().await;
        // The command runs until the test closes stdin, because the command reads the value from stdin.
        let wait = "for i in $(seq 900); do [ -e /tmp/end ] && break; sleep 1; done";
        let script = format!("cd /share/workspace && ({wait}) | pulumi config set note");
        let mut session = shell_in_pod(scene, "main", &script).spawn().expect("kubectl starts");
        // The other Workspace becomes idle after the Stack's Workspace. When the other Workspace sleeps, both idle
        // times have therefore expired.
        let artifact = source.artifact_of(&commit).await;
        let fields = json!({"flux": {"url": artifact.url, "digest": artifact.digest}, "idle": {"after": "1m"}});
        workspace(scene, "other", fields).await;
        until_ready(scene, "other").await;
        until_asleep(scene, "other").await;
        assert!(!is_asleep(&main.workspace().await), "the session is open");
        assert_eq!(main.pod_and_restarts().await, pod);
        in_pod(scene, "main", "touch /tmp/end").await;
        let ended = tokio::time::timeout(WaitLimit::Reaction.limit(), session.wait()).await;
        assert!(ended.is_ok_and(|status| status.is_ok_and(|status| status.success())), "the session ended normally");
        until_asleep(scene, "main").await;
    });
}

#[test]
fn a_changed_config_map_wakes_a_stack_and_starts_one_run() {
    run("sleeping-config", async |scene| {
        let labels = json!({"reconcile.fluxcd.io/watch": "Enabled"});
        let metadata = json!({"name": "words", "labels": labels});
        scene.create::<ConfigMap>(json!({"metadata": metadata, "data": {"word": "one"}})).await;
        let source = scene.source("app").await;
        let program = Program::new("sleeping-config").config("word", "none").output("word", json!("${word}"));
        let commit = source.push(&program.files()).await;
        let mut stack = stack_with_idle_time(scene, &source);
        let reference = ConfigReference { name: "words".to_owned(), key: "word".to_owned(), json: None };
        stack.spec.config_ref.insert("word".to_owned(), reference);
        let main = scene.start(stack).await;
        main.until_applied(&commit).await;
        // The Workspace falls asleep three minutes after the last change to the ConfigMap.
        until_asleep(scene, "main").await;
        assert_eq!(main.updates().await.len(), 1);

        scene.patch::<ConfigMap>("words", json!({"data": {"word": "two"}})).await;
        main.until("to have run with the new value", WaitLimit::Long, |stack| {
            let outputs = stack.status.as_ref().map(|status| &status.outputs);
            is_done(stack) && outputs.and_then(|outputs| outputs.get("word")) == Some(&json!("two"))
        })
        .await;
        assert_eq!(main.updates().await.len(), 2, "the change starts one run");
    });
}

#[test]
fn an_update_wakes_a_workspace_without_a_stack() {
    run("sleeping-alone", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("sleeping-alone").output("result", json!("one")).files()).await;
        let artifact = source.artifact_of(&commit).await;
        let fields = json!({"flux": {"url": artifact.url, "digest": artifact.digest}, "idle": {"after": "1m"}});
        workspace(scene, "main", fields).await;
        until_ready(scene, "main").await;
        until_asleep(scene, "main").await;
        let ran = run_update(scene, "one", "main", "up", json!({})).await;
        assert_eq!(output(scene, &ran, "result").await, json!("one"));
    });
}
