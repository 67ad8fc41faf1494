//! Tests Stacks whose Workspaces wake up and restore their dependencies from the namespace's cache. When a Workspace
//! wakes up, the registry rejects the token, so an installation would fail.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::registries::{Settings, TOKEN};
use super::{destroy, first_outputs, go_modules, installations, npm, outputs_of, program_files, template};
use crate::harness::{File, Poll, Scene, StackHandle, Volume, WaitLimit, run, wait_until};
use crate::runs_parts::shell_in_pod;
use crate::sleeping::until_asleep;

const CLAIM: &str = "pulumi-cache";
/// Message that the agent logs after it has stored the dependencies.
const STORED: &str = "stored the dependencies in the cache";
/// Message that the agent logs after it has restored the dependencies.
const RESTORED: &str = "restored the dependencies from the cache without an installation";

/// Waits until the pod log contains this string.
async fn until_logged(main: &StackHandle<'_>, text: &str) {
    wait_until(format!("the log of the pod to contain {text:?}"), WaitLimit::Run, async || {
        let log = main.pod_log("pulumi").await;
        if log.contains(text) { Poll::Found(()) } else { Poll::NotYet(log) }
    })
    .await;
}

/// Appends a byte to each archive in the cache.
async fn damage_archives(scene: &Scene) {
    let script =
        "for archive in /var/cache/pulumi-controller/v1/archives/*; do printf x >>\"$archive\" || exit 1; done";
    let damaged = shell_in_pod(scene, "main", script).status().await.expect("kubectl starts");
    assert!(damaged.success(), "{damaged}");
}

/// Returns the program files and an additional file, which makes the commit different.
fn with_note(files: &[File], note: &str) -> Vec<File> {
    let note = File { path: "NOTE.md".to_owned(), content: format!("{note}\n") };
    files.iter().cloned().chain([note]).collect()
}

async fn check(scene: &Scene, files: &[File], settings: Settings) {
    let volume = Volume::create(scene, CLAIM).await;
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    scene.create::<PersistentVolumeClaim>(json!({"metadata": {"name": CLAIM}, "spec": claim})).await;
    settings.create_secret(scene, TOKEN).await;
    let source = scene.source("app").await;
    let commit = source.push(files).await;
    let mut stack = settings.stack(scene, &source);
    template(&mut stack)["idle"] = json!({"after": "1m", "keep": "Caches"});
    let main = scene.start(stack).await;
    let greeting = |outputs: Value| outputs["greeting"].clone();
    assert_eq!(greeting(first_outputs(&main, &commit).await), json!("hello"));
    until_logged(&main, STORED).await;
    until_asleep(scene, "main").await;

    settings.replace_token(scene, "wrong").await;
    let commit = source.push(&with_note(files, "restored")).await;
    assert_eq!(greeting(outputs_of(&main, &commit).await), json!("hello"));
    let log = main.pod_log("pulumi").await;
    assert!(log.contains(RESTORED), "{log}");
    assert_eq!(installations(&main).await, 0, "{log}");

    damage_archives(scene).await;
    until_asleep(scene, "main").await;
    settings.replace_token(scene, TOKEN).await;
    let commit = source.push(&with_note(files, "damaged")).await;
    assert_eq!(greeting(first_outputs(&main, &commit).await), json!("hello"));
    let log = main.pod_log("pulumi").await;
    assert!(log.contains("is damaged: its digest is sha256:"), "{log}");
    assert_eq!(installations(&main).await, 1, "{log}");
    until_logged(&main, STORED).await;
    destroy(&main).await;
    volume.remove().await;
}

#[test]
fn a_typescript_program_that_wakes_needs_no_registry() {
    run("cache-ts", async |scene| {
        check(scene, &[npm("npm"), program_files("typescript")].concat(), Settings::npm()).await;
    });
}

#[test]
fn a_python_program_that_wakes_needs_no_registry() {
    run("cache-py", async |scene| check(scene, &program_files("python"), Settings::pip()).await);
}

#[test]
fn a_go_program_that_wakes_needs_no_registry() {
    run("cache-go", async |scene| {
        check(scene, &[go_modules("go"), program_files("go")].concat(), Settings::go()).await;
    });
}
