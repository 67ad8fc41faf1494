//! Tests artifacts that do not match their source status.

use kube::Api;
use kube::api::{Patch, PatchParams};
use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::pulumi::{SourceArtifact, Stack};
use pulumi_controller::artifact::Digest;
use serde_json::json;

use crate::harness::{
    FaultServer, GitRepository, Poll, Program, Scene, WaitLimit, api_call, archive, condition, has_condition, is_done,
    once, run, wait_until, waits_for_source,
};

#[test]
fn an_artifact_with_a_wrong_digest_is_rejected_and_the_old_one_kept() {
    run("wrong-digest", async |scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("wrong-digest").step("step", json!({"value": text}));
        let first = source.push(&with_text("one").files()).await;
        let first_artifact = source.artifact_of(&first).await;
        create_suspended_source(scene, "by-hand").await;
        serve(scene, "by-hand", &first_artifact).await;
        let main = scene.start(scene.stack_on("main", "by-hand")).await;
        main.until_applied(&first).await;
        let pod = main.pod_and_restarts().await;

        let second = source.push(&with_text("two").files()).await;
        let artifact = source.artifact_of(&second).await;
        let wrong = wrong_digest(&artifact.digest);
        serve(scene, "by-hand", &SourceArtifact { digest: wrong.clone(), ..artifact.clone() }).await;
        main.until("to reject an artifact that does not match the digest", WaitLimit::Reaction, |stack| {
            let has_digest = condition(stack, READY).is_some_and(|ready| ready.message.contains(&wrong));
            waits_for_source(stack) && has_digest
        })
        .await;
        let installed = main.workspace().await.status.and_then(|status| status.artifact).expect("artifact in status");
        assert_eq!(
            (installed.digest.to_string(), installed.revision),
            (first_artifact.digest, first.revision()),
            "the previous source remains installed"
        );
        assert_eq!(main.updates().await.len(), 1);
        assert_eq!(main.log.operations().await, once(&["create step"]));

        serve(scene, "by-hand", &artifact).await;
        main.until_applied(&second).await;
        assert_eq!(main.pod_and_restarts().await, pod);
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn a_repacked_archive_is_installed_without_a_run() {
    run("packed-again", async |scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("packed-again").step("step", json!({"value": text}));
        let first = source.push(&with_text("one").files()).await;
        let artifact = source.artifact_of(&first).await;
        create_suspended_source(scene, "by-hand").await;
        serve(scene, "by-hand", &artifact).await;
        let main = scene.start(scene.stack_on("main", "by-hand")).await;
        main.until_applied(&first).await;
        let pod = main.pod_and_restarts().await;
        let seen_before = scene.timeline.states_of::<Stack>().len();

        let uploaded = FaultServer::of(scene).upload("again.tar.gz", archive(&with_text("one").files())).await;
        assert_ne!(uploaded.digest, artifact.digest, "the archive has another digest");
        serve(scene, "by-hand", &SourceArtifact { revision: artifact.revision.clone(), ..uploaded.clone() }).await;
        let digest: Digest = uploaded.digest.parse().expect("a digest");
        main.until("to have recorded the new digest", WaitLimit::Reaction, |stack| {
            stack.status.as_ref().and_then(|status| status.last_update.as_ref()?.inputs.digest.as_ref())
                == Some(&digest)
        })
        .await;
        wait_until("the pod to have the new archive", WaitLimit::Reaction, async || {
            let installed = main.workspace().await.status.and_then(|status| status.artifact);
            match installed.as_ref().is_some_and(|installed| installed.digest == digest) {
                true => Poll::Found(()),
                false => Poll::NotYet(format!("{installed:?}")),
            }
        })
        .await;
        let states = scene.timeline.states_of::<Stack>();
        assert!(states.iter().skip(seen_before).all(is_done), "the Stack stays Ready");

        let second = source.push(&with_text("two").files()).await;
        let artifact = source.artifact_of(&second).await;
        serve(scene, "by-hand", &artifact).await;
        main.until_applied(&second).await;
        assert_eq!(main.pod_and_restarts().await, pod, "the pod is not replaced");
        assert_eq!(main.updates().await.len(), 2, "one run per commit");
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn a_stack_waits_for_an_artifact_that_does_not_exist() {
    run("not-found", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("not-found").output("text", json!("hello")).files()).await;
        let artifact = source.artifact_of(&commit).await;
        create_suspended_source(scene, "by-hand").await;
        let url = artifact.url.replace(".tar.gz", "-gone.tar.gz");
        assert_ne!(url, artifact.url);
        serve(scene, "by-hand", &SourceArtifact { url, ..artifact.clone() }).await;
        let main = scene.start(scene.stack_on("main", "by-hand")).await;
        main.until("to report that the artifact does not exist", WaitLimit::Reaction, |stack| {
            has_condition(stack, READY, "False", stack_reason::SOURCE_UNAVAILABLE)
                && condition(stack, READY).is_some_and(|ready| ready.message.contains("404"))
        })
        .await;
        assert!(main.updates().await.is_empty());

        serve(scene, "by-hand", &artifact).await;
        main.until_applied(&commit).await;
    });
}

#[test]
fn an_artifact_on_a_host_outside_flux_is_never_requested() {
    run("foreign-host", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("foreign-host").output("text", json!("hello")).files()).await;
        let artifact = source.artifact_of(&commit).await;
        create_suspended_source(scene, "by-hand").await;
        let url = "http://kubernetes.default.svc.cluster.local/secrets.tar.gz".to_owned();
        serve(scene, "by-hand", &SourceArtifact { url, ..artifact }).await;
        let main = scene.start(scene.stack_on("main", "by-hand")).await;
        main.until("to report the host that is not allowed", WaitLimit::Reaction, |stack| {
            condition(stack, READY).is_some_and(|ready| {
                ready.status == "False" && ready.message.contains("kubernetes.default.svc.cluster.local")
            })
        })
        .await;
        assert!(main.updates().await.is_empty());
    });
}

/// Returns a valid digest that differs from the artifact's digest.
fn wrong_digest(digest: &str) -> String {
    let (algorithm, hex) = digest.split_once(':').expect("a digest names its algorithm");
    format!("{algorithm}:{}", hex.chars().rev().collect::<String>())
}

/// Creates a suspended source, because source-controller must not change the status that the test writes.
async fn create_suspended_source(scene: &Scene, name: &str) {
    scene
        .create::<GitRepository>(json!({
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository", "metadata": {"name": name},
            "spec": {"url": "http://nowhere.invalid/app.git", "interval": "1h", "suspend": true},
        }))
        .await;
}

/// Sets the artifact in the source status.
async fn serve(scene: &Scene, name: &str, artifact: &SourceArtifact) {
    let artifact = json!({
        "url": artifact.url, "path": artifact.url.split_once("//").map_or("", |(_, rest)| rest),
        "revision": artifact.revision, "digest": artifact.digest, "size": artifact.size,
        "lastUpdateTime": "2026-01-01T00:00:00Z",
    });
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored artifact",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let status = json!({"status": {"observedGeneration": 1, "artifact": artifact, "conditions": [ready]}});
    let api: Api<GitRepository> = scene.api();
    api_call(
        format!("serving an artifact as {name}"),
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)),
    )
    .await;
}
