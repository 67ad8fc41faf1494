//! Tests access to Pulumi Cloud without an access token in the Stack. The CLI exchanges the pod's ServiceAccount token,
//! or uses the namespace's default access token.

use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use pulumi_controller::api::conditions::{READY, stack_reason, update_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use super::last_update;
use crate::harness::{Program, PulumiCloud, Scene, Source, WaitLimit, condition, has_condition, run};
use crate::runs_parts::{exec, slow, until_ended_with_reason};

/// Returns a Stack that logs in with OIDC.
fn stack_with_oidc(scene: &Scene, source: &Source<'_>, cloud: &PulumiCloud, project: &str) -> Stack {
    let mut stack = scene.stack_in_cloud("main", source, cloud, project);
    stack.spec.access_token_secret = None;
    stack.spec.service_account_name = Some("deployer".to_owned());
    let oidc = json!({"organization": cloud.organization});
    stack.spec.pulumi_cloud_oidc = Some(serde_json::from_value(oidc).expect("valid OIDC settings"));
    stack
}

/// Configures the organization to trust the cluster's ServiceAccount tokens that have this subject. The organization's
/// access tokens are valid for `lifetime`.
async fn trust_cluster(scene: &Scene, cloud: &PulumiCloud, subject: &str, lifetime: &str) {
    let configuration = get(scene, "/.well-known/openid-configuration").await;
    let jwks = get(scene, "/openid/v1/jwks").await;
    let issuer = json!({
        "url": configuration["issuer"], "jwks": jwks, "subject": subject, "tokenTypes": ["organization"],
        "maxLifetime": lifetime,
    });
    cloud.set_issuers(json!([issuer])).await;
}

async fn get(scene: &Scene, path: &str) -> Value {
    let request = http::Request::get(path).body(Vec::new()).expect("a valid request");
    crate::harness::api_call(format!("reading {path}"), scene.client.request(request)).await
}

fn subject(scene: &Scene) -> String {
    format!("system:serviceaccount:{}:deployer", scene.namespace)
}

#[test]
fn a_stack_with_oidc_runs_without_a_stored_access_token() {
    run("cloud-oidc", async |scene| {
        let cloud = PulumiCloud::of(scene).await;
        scene.create::<ServiceAccount>(json!({"metadata": {"name": "deployer"}})).await;
        trust_cluster(scene, &cloud, &subject(scene), "24h").await;
        let source = scene.source("app").await;
        let program = |value: &str| Program::new("cloud-oidc").step("step", json!({"value": value}));
        let first = source.push(&program("one").files()).await;
        let main = scene.start(stack_with_oidc(scene, &source, &cloud, "cloud-oidc")).await;
        main.until_applied(&first).await;
        let second = source.push(&program("two").files()).await;
        let done = main.until_applied(&second).await;
        let exchanges = cloud.requests("POST", "/api/oauth/token").await;
        assert_eq!(exchanges.len(), 1, "both runs use the same access token: {exchanges:?}");

        let pod = serde_json::to_string(&main.pod().await).expect("a pod is valid JSON");
        assert!(!pod.contains("pul-"), "the pod contains no access token");
        assert_eq!(
            exec(scene, "main", &["pulumi", "whoami"]).await.trim(),
            cloud.organization,
            "commands of users are logged in"
        );
        let states =
            format!("{done:?}{:?}{:?}{}", main.updates().await, main.events().await, main.pod_log("pulumi").await);
        assert!(!states.contains("pul-") && !states.contains("eyJ"), "no status, event or log contains a token");
    });
}

/// A run can outlive its access token, because the update in Pulumi Cloud has its own lease. During the run, the CLI
/// needs the access token only to encrypt secrets and to read other stacks.
#[test]
fn a_run_outlives_its_access_token_and_the_next_run_renews_it() {
    run("cloud-oidc-long", async |scene| {
        let cloud = PulumiCloud::of(scene).await;
        scene.create::<ServiceAccount>(json!({"metadata": {"name": "deployer"}})).await;
        trust_cluster(scene, &cloud, &subject(scene), "25s").await;
        let source = scene.source("app").await;
        let first = source.push(&slow("cloud-oidc-long", 30).files()).await;
        let main = scene.start(stack_with_oidc(scene, &source, &cloud, "cloud-oidc-long")).await;
        main.until_applied(&first).await;
        let second = source.push(&Program::new("cloud-oidc-long").output("a", json!("b")).files()).await;
        let done = main.until_applied(&second).await;
        assert_eq!(last_update(&done).failures, 0);
        let exchanges = cloud.requests("POST", "/api/oauth/token").await;
        assert!(exchanges.len() >= 2, "{exchanges:?}");
    });
}

#[test]
fn a_rejected_service_account_is_reported_with_its_subject() {
    run("cloud-oidc-wrong", async |scene| {
        let cloud = PulumiCloud::of(scene).await;
        scene.create::<ServiceAccount>(json!({"metadata": {"name": "deployer"}})).await;
        trust_cluster(scene, &cloud, "system:serviceaccount:another:deployer", "24h").await;
        let source = scene.source("app").await;
        source.push(&Program::new("cloud-oidc-wrong").output("a", json!("b")).files()).await;
        let main = scene.start(stack_with_oidc(scene, &source, &cloud, "cloud-oidc-wrong")).await;
        until_ended_with_reason(&main, update_reason::INVALID_ACCESS_TOKEN).await;
        let failed = main.get().await;
        assert!(has_condition(&failed, READY, "False", stack_reason::UPDATE_FAILED), "{failed:?}");
        let message = condition(&failed, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains(&subject(scene)) && !message.contains("eyJ"), "{message}");
    });
}

#[test]
fn oidc_together_with_an_access_token_is_rejected_before_a_pod_starts() {
    run("cloud-oidc-both", async |scene| {
        let cloud = PulumiCloud::of(scene).await;
        let source = scene.source("app").await;
        source.push(&Program::new("cloud-oidc-both").output("a", json!("b")).files()).await;
        let mut stack = stack_with_oidc(scene, &source, &cloud, "cloud-oidc-both");
        stack.spec.access_token_secret = Some("token".to_owned());
        let main = scene.start(stack).await;
        let stalled = main
            .until("to reject both settings", WaitLimit::Reaction, |stack| {
                condition(stack, READY).is_some_and(|ready| ready.message.contains("accessTokenSecret"))
            })
            .await;
        let message = condition(&stalled, READY).map(|ready| ready.message.clone()).unwrap_or_default();
        assert!(message.contains("pulumiCloudOIDC"), "{message}");
        assert!(scene.list::<Pod>().await.is_empty());
    });
}

/// Value of the `--default-access-token-secret` flag in `tests/controller`.
const DEFAULT_TOKEN_SECRET: &str = "default-access-token";

#[test]
fn the_default_access_token_applies_to_a_stack_without_credentials() {
    run("cloud-default-token", async |scene| {
        let cloud = PulumiCloud::of(scene).await;
        let token = cloud.token(&cloud.bob).await;
        let secret = json!({"metadata": {"name": DEFAULT_TOKEN_SECRET}, "stringData": {"accessToken": token}});
        scene.create::<Secret>(secret).await;
        let source = scene.source("app").await;
        let pushed = source.push(&Program::new("cloud-default-token").output("a", json!("b")).files()).await;
        let mut stack = scene.stack_in_cloud("main", &source, &cloud, "cloud-default-token");
        stack.spec.access_token_secret = None;
        let main = scene.start(stack).await;
        let done = main.until_applied(&pushed).await;
        let name = format!("main-{}", scene.id);
        let updates = cloud.updates(("cloud-default-token", &name)).await;
        let requesters: Vec<_> = updates.iter().map(|update| update.requested_by.as_str()).collect();
        assert_eq!(requesters, [cloud.bob.as_str()]);
        let pod = serde_json::to_string(&main.pod().await).expect("a pod is valid JSON");
        assert!(!pod.contains(&token) && !format!("{done:?}").contains(&token), "only the Secret contains the token");
    });
}
