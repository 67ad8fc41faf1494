//! Tests backend credentials: rotation in a running pod, and session tokens.

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::conditions::READY;
use pulumi_controller::api::names::workspace_pod;
use serde_json::json;

use super::assert_hidden;
use super::backend::{Backend, Credentials};
use super::state::{SECRET, from_secret};
use crate::harness::{Program, Scene, WaitLimit, condition, once, run};

async fn rotate(scene: &Scene, backend: Backend) {
    let (state, first_credentials) = backend.prepare_with_revocable_credentials(scene).await;
    let source = scene.source("app").await;
    let program = |value: &str| Program::new("rotation").step("step", json!({"value": value})).files();
    let first = source.push(&program("one")).await;
    let main = scene.start(state.stack("main", &source)).await;
    main.until_applied(&first).await;
    let pod = main.pod_and_restarts().await;

    let second_credentials = backend.rotate(scene, &first_credentials).await;
    let second = source.push(&program("two")).await;
    let rejection = backend.rejection();
    main.until("to report the revoked credentials", WaitLimit::Run, |stack| {
        condition(stack, READY).is_some_and(|ready| ready.status == "False" && ready.message.contains(rejection))
    })
    .await;

    state.replace_credentials(&workspace_pod("main"), &second_credentials).await;
    main.until_applied_within(WaitLimit::Long, &second).await;
    assert_eq!(main.pod_and_restarts().await, pod, "the next run uses the new credentials in the same pod");
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    let secrets = [&first_credentials, &second_credentials].map(|credentials| backend.secret_part(credentials));
    assert_hidden(scene, &main, &secrets).await;
    state.destroy(&main).await;
}

#[test]
fn rotated_access_keys_of_s3_take_effect_in_the_same_pod() {
    run("s3-rotation", async |scene| rotate(scene, Backend::S3).await);
}

#[test]
fn a_rotated_access_signature_of_azure_takes_effect_in_the_same_pod() {
    run("azure-rotation", async |scene| rotate(scene, Backend::Azure).await);
}

#[test]
fn a_rotated_service_account_key_takes_effect_in_the_same_pod() {
    run("google-rotation", async |scene| rotate(scene, Backend::Google).await);
}

/// The test cluster's S3 server does not support sessions, and rejects each session token. The rejection proves that
/// the token reaches the server.
#[test]
fn a_session_token_of_aws_reaches_the_server() {
    run("session-token", async |scene| {
        let state = Backend::S3.prepare(scene).await;
        let variable = "AWS_SESSION_TOKEN";
        let token = format!("token-of-{}", scene.id);
        let credentials: Credentials = [(variable.to_owned(), token.clone())].into();
        scene.patch::<Secret>(SECRET, json!({"stringData": credentials})).await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("session-token").step("step", json!({})).files()).await;
        let mut stack = state.stack("main", &source);
        stack.spec.env_refs.insert(variable.to_owned(), from_secret(SECRET, variable));
        let main = scene.start(stack).await;
        main.until("to report the rejected session token", WaitLimit::Run, |stack| {
            condition(stack, READY)
                .is_some_and(|ready| ready.status == "False" && ready.message.contains("InvalidToken"))
        })
        .await;
        main.change(json!({"spec": {"envRefs": {variable: null}}})).await;
        main.until_applied_within(WaitLimit::Long, &commit).await;
        assert_hidden(scene, &main, &[token]).await;
        state.destroy(&main).await;
    });
}
