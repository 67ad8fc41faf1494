//! Tests StackReceivers, which provide webhooks without Flux. The tests call the webhooks of a controller pod through
//! the API server proxy.

use std::panic::{AssertUnwindSafe, resume_unwind};

use axum::http::Request;
use futures::FutureExt;
use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::client::Body;
use pulumi_controller::api::conditions::{self, READY};
use pulumi_controller::api::names::{ANNOTATION_REQUESTED_AT, webhook_path};
use pulumi_controller::api::pulumi::{StackReceiver, StackReceiverStatus};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::harness::{
    Controller, Poll, Program, Scene, StackHandle, WaitLimit, client, in_scene, is_done, once, run, run_alone,
    wait_until,
};

const BODY: &str = r#"{"ref":"refs/heads/main"}"#;

/// Returns the headers of a GitHub push event, including the signature.
fn push(token: &str) -> Vec<(&'static str, String)> {
    signed("push", token)
}

fn signed(event: &str, token: &str) -> Vec<(&'static str, String)> {
    let hmac = Hmac::<Sha256>::new_from_slice(token.as_bytes()).expect("a key of any length").chain_update(BODY);
    let signature = format!("sha256={}", hex::encode(hmac.finalize().into_bytes()));
    vec![("X-GitHub-Event", event.to_owned()), ("X-Hub-Signature-256", signature)]
}

/// Calls the webhook of one controller pod, and returns the status code of the response.
async fn call(scene: &Scene, pod: &str, path: &str, headers: &[(&'static str, String)]) -> u16 {
    let url = format!("/api/v1/namespaces/flux-system/pods/{pod}:9292/proxy{path}");
    let mut request = Request::post(&url);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(Body::from(BODY.as_bytes().to_vec())).expect("a request");
    let response = tokio::time::timeout(WaitLimit::Call.limit(), scene.client.send(request));
    let response =
        response.await.unwrap_or_else(|_| panic!("no response from {url} within {:?}", WaitLimit::Call.limit()));
    response.unwrap_or_else(|error| panic!("calling {url}: {error}")).status().as_u16()
}

async fn pod(scene: &Scene) -> String {
    Controller::new(&scene.client).pod().await.name_any()
}

async fn create_token(scene: &Scene, token: &str) {
    scene.create::<Secret>(json!({"metadata": {"name": "hook"}, "stringData": {"token": token}})).await;
}

async fn create_receiver(scene: &Scene, spec: Value) {
    let mut all =
        json!({"type": "github", "events": ["push"], "secretRef": {"name": "hook"}, "resources": [{"name": "main"}]});
    all.as_object_mut().expect("a spec").extend(spec.as_object().expect("a spec").clone());
    scene.create::<StackReceiver>(json!({"metadata": {"name": "push"}, "spec": all})).await;
}

/// Waits until the StackReceiver status matches `predicate`.
async fn until(scene: &Scene, what: &str, predicate: impl Fn(&StackReceiverStatus) -> bool) -> StackReceiverStatus {
    wait_until(format!("the StackReceiver {what}"), WaitLimit::Reaction, async || {
        let receiver = match scene.api::<StackReceiver>().get("push").await {
            Ok(receiver) => receiver,
            Err(error) => return Poll::NotYet(error.to_string()),
        };
        let status = receiver.status.unwrap_or_default();
        let is_current = status.observed_generation == receiver.metadata.generation;
        if is_current && predicate(&status) { Poll::Found(status) } else { Poll::NotYet(format!("{status:?}")) }
    })
    .await
}

/// Waits until the StackReceiver status contains the webhook path for this token, and returns the path.
async fn path_of(scene: &Scene, token: &str) -> String {
    let expected = webhook_path(token.as_bytes(), "push", &scene.namespace);
    let status = until(scene, "to have the path of its token", |status| {
        conditions::is_true(&status.conditions, READY) && status.webhook_path.as_deref() == Some(&expected)
    });
    status.await.webhook_path.expect("the value is set")
}

/// Sends pings until the replica responds with the expected status code, because each replica observes changes to the
/// StackReceiver with its own watch. A ping starts no run.
async fn until_status(scene: &Scene, pod: &str, path: &str, token: &str, expected: u16) {
    wait_until(format!("{pod} to respond with {expected} to a ping of {path}"), WaitLimit::Reaction, async || {
        let status = call(scene, pod, path, &signed("ping", token)).await;
        if status == expected { Poll::Found(()) } else { Poll::NotYet(status.to_string()) }
    })
    .await;
}

/// Waits until the Stack has run for a newer reconcile request than `before`, and returns the newer request.
async fn until_rerun(stack: &StackHandle<'_>, before: Option<String>) -> Option<String> {
    let requested = |stack: &pulumi_controller::api::pulumi::Stack| {
        stack.status.as_ref()?.last_update.as_ref()?.inputs.requested_at.clone()
    };
    let found = stack.until("to have run for another request", WaitLimit::Run, |stack| {
        is_done(stack) && requested(stack).is_some_and(|request| before.as_ref() != Some(&request))
    });
    requested(&found.await)
}

#[test]
fn only_a_correctly_signed_push_runs_the_stack() {
    run("receiver", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("receiver").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        create_token(scene, "s3cret").await;
        create_receiver(scene, json!({})).await;
        let (path, pod) = (path_of(scene, "s3cret").await, pod(scene).await);

        until_status(scene, &pod, &path, "s3cret", 200).await;
        let unknown = webhook_path(b"s3cret", "nobody", &scene.namespace);
        for (what, path, headers) in [
            ("an unknown path", &unknown, push("s3cret")),
            ("a wrong signature", &path, push("other")),
            ("no signature", &path, Vec::new()),
        ] {
            assert_eq!(call(scene, &pod, path, &headers).await, 404, "{what}");
        }
        assert_eq!(call(scene, &pod, &path, &push("s3cret")).await, 200);
        until_rerun(&main, None).await;
        let witness = scene.start(scene.stack("witness", &source)).await;
        witness.until_applied(&commit).await;
        assert_eq!(main.updates().await.len(), 2, "only the signed call starts a run");
        assert_eq!(main.log.operations().await, once(&["create step"]), "the later runs change nothing");

        scene.patch::<StackReceiver>("push", json!({"spec": {"suspend": true}})).await;
        until_status(scene, &pod, &path, "s3cret", 404).await;
    });
}

#[test]
fn a_rotated_token_takes_effect_immediately_with_a_new_path() {
    run("receiver-token", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("receiver-token").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        create_receiver(scene, json!({})).await;
        until(scene, "to report that the token is missing", |status| {
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.status == "False" && ready.reason == "TokenNotFound")
        })
        .await;
        create_token(scene, "s3cret").await;
        request_reconcile(scene, "1").await;
        let (old, pod) = (path_of(scene, "s3cret").await, pod(scene).await);
        until_status(scene, &pod, &old, "s3cret", 200).await;
        assert_eq!(call(scene, &pod, &old, &push("s3cret")).await, 200);
        let first = until_rerun(&main, None).await;

        scene.patch::<Secret>("hook", json!({"stringData": {"token": "another"}})).await;
        assert_eq!(call(scene, &pod, &old, &push("s3cret")).await, 404, "the old token");
        assert_eq!(call(scene, &pod, &old, &push("another")).await, 200, "the new token on the old path");
        until_rerun(&main, first).await;
        request_reconcile(scene, "2").await;
        let new = path_of(scene, "another").await;
        until_status(scene, &pod, &new, "another", 200).await;
        assert_eq!(call(scene, &pod, &old, &push("another")).await, 404, "the path of the old token");
    });
}

/// Requests a StackReceiver reconciliation, and waits until the controller has handled the request.
async fn request_reconcile(scene: &Scene, request: &str) {
    let patch = json!({"metadata": {"annotations": {ANNOTATION_REQUESTED_AT: request}}});
    scene.patch::<StackReceiver>("push", patch).await;
    until(scene, "to have handled the request", |status| status.last_handled_reconcile_at.as_deref() == Some(request))
        .await;
}

#[test]
fn a_non_leading_replica_accepts_a_push() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        controller.scale(2).await;
        let outcome = AssertUnwindSafe(in_scene("receiver-follower", async |scene| {
            let source = scene.source("app").await;
            let program = Program::new("receiver-follower").step("step", json!({"value": "one"}));
            let commit = source.push(&program.files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied(&commit).await;
            create_token(scene, "s3cret").await;
            create_receiver(scene, json!({})).await;
            let path = path_of(scene, "s3cret").await;
            let leader = controller.until_leader_other_than("").await;
            let pods: Vec<String> = controller.pods().await.iter().map(ResourceExt::name_any).collect();
            let follower = pods.iter().find(|pod| **pod != leader).expect("a follower");
            until_status(scene, follower, &path, "s3cret", 200).await;
            assert_eq!(call(scene, follower, &path, &push("s3cret")).await, 200);
            until_rerun(&main, None).await;
            assert_eq!(main.updates().await.len(), 2);
        }))
        .catch_unwind()
        .await;
        controller.scale(1).await;
        if let Err(failure) = outcome {
            resume_unwind(failure);
        }
    });
}
