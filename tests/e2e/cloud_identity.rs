//! Runs Stacks with the settings in `docs/guides/cloud-identity.md` for clusters without a webhook, and checks the
//! CLI's environment and the token in the pod. The tests need no cloud provider account.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::documents::objects_of;
use crate::harness::{Scene, WaitLimit, run};
use crate::runs_parts::{in_pod, progress, running_update, slow, until_update};

const GUIDE: &str = include_str!("../../docs/guides/cloud-identity.md");
/// ServiceAccount in the guide.
const SERVICE_ACCOUNT: &str = "web";

/// Returns the objects in the guide.
fn objects() -> Vec<Value> {
    let blocks = objects_of(GUIDE).join("\n---\n");
    serde_saphyr::from_multiple(&blocks).expect("the guide contains valid YAML")
}

/// Returns the guide's Stack whose pod mounts ServiceAccount tokens only for this audience.
fn documented_stack(audience: &str) -> Stack {
    let mounts_token = |object: &Value| object["kind"] == "Stack" && audiences(object) == [audience];
    let stacks: Vec<Value> = objects().into_iter().filter(mounts_token).collect();
    let [stack] = stacks.as_slice() else { panic!("the guide contains {} Stacks for {audience}", stacks.len()) };
    serde_json::from_value(stack.clone()).expect("a valid Stack")
}

/// Returns the audiences of the ServiceAccount tokens that a Stack's pod mounts.
fn audiences(stack: &Value) -> Vec<&str> {
    let volumes = stack["spec"]["workspaceTemplate"]["spec"]["podTemplate"]["spec"]["volumes"].as_array();
    let sources = volumes.into_iter().flatten().filter_map(|volume| volume["projected"]["sources"].as_array());
    sources.flatten().filter_map(|source| source["serviceAccountToken"]["audience"].as_str()).collect()
}

/// Runs a program with the guide's settings, and checks the token in the file `path`. Returns the CLI's environment
/// variables.
async fn environment_of_run(scene: &Scene, audience: &str, path: &str) -> Vec<String> {
    let documented = documented_stack(audience);
    scene.create::<ServiceAccount>(json!({"metadata": {"name": SERVICE_ACCOUNT}})).await;
    let source = scene.source("app").await;
    let commit = source.push(&slow("cloud-identity", 15).files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.service_account_name = documented.spec.service_account_name;
    let template = &mut stack.spec.workspace_template.as_mut().expect("the harness sets a template")["spec"];
    let settings = &documented.spec.workspace_template.expect("a template")["spec"];
    template["env"] = settings["env"].clone();
    template["podTemplate"] = settings["podTemplate"].clone();
    let main = scene.start(stack).await;
    let update = running_update(scene, &main).await.name_any();
    // The first process of a run selects the Pulumi stack, and ends before the update starts.
    let has_started = |update: &Update| progress(update).resources_total > 0;
    let update = until_update(scene, &update, "to create a resource", WaitLimit::Run, has_started).await;
    let pid = progress(&update).pid.expect("process ID");
    let environment = in_pod(scene, "main", &format!("tr '\\0' '\\n' </proc/{pid}/environ")).await;
    let token = in_pod(scene, "main", &format!("cat {path}")).await;
    let claims = token.split('.').nth(1).and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok()).expect("a JWT");
    let claims: Value = serde_json::from_slice(&claims).expect("the claims are valid JSON");
    let subject = format!("system:serviceaccount:{}:{SERVICE_ACCOUNT}", scene.namespace);
    assert_eq!((&claims["aud"], &claims["sub"]), (&json!([audience]), &json!(subject)), "{claims}");
    main.until_applied(&commit).await;
    environment.lines().map(ToOwned::to_owned).collect()
}

fn assert_contains(environment: &[String], variables: &[&str]) {
    for variable in variables {
        assert!(environment.iter().any(|line| line == variable), "{variable} is not in {environment:?}");
    }
}

#[test]
fn a_run_has_the_token_and_the_variables_for_a_role_of_aws() {
    run("identity-aws", async |scene| {
        let path = "/var/run/secrets/aws/token";
        let environment = environment_of_run(scene, "sts.amazonaws.com", path).await;
        let file = format!("AWS_WEB_IDENTITY_TOKEN_FILE={path}");
        assert_contains(&environment, &[&file, "AWS_ROLE_ARN=arn:aws:iam::111122223333:role/web"]);
    });
}

#[test]
fn a_run_has_the_token_and_the_variables_for_a_managed_identity_of_azure() {
    run("identity-azure", async |scene| {
        let path = "/var/run/secrets/azure/tokens/azure-identity-token";
        let environment = environment_of_run(scene, "api://AzureADTokenExchange", path).await;
        let files = ["AZURE_FEDERATED_TOKEN_FILE", "ARM_OIDC_TOKEN_FILE_PATH"].map(|name| format!("{name}={path}"));
        assert_contains(&environment, &[&files[0], &files[1], "ARM_USE_OIDC=true"]);
    });
}

#[test]
fn a_run_has_the_token_and_the_configuration_for_an_identity_pool_of_google() {
    run("identity-google", async |scene| {
        let configuration = objects().into_iter().find(|object| object["kind"] == "ConfigMap").expect("a ConfigMap");
        scene.create::<ConfigMap>(configuration).await;
        let pool = "projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER";
        let audience = format!("https://iam.googleapis.com/{pool}");
        let path = "/var/run/secrets/google/token";
        let environment = environment_of_run(scene, &audience, path).await;
        assert_contains(&environment, &["GOOGLE_APPLICATION_CREDENTIALS=/etc/google/credentials.json"]);
        let credentials: Value =
            serde_json::from_str(&in_pod(scene, "main", "cat /etc/google/credentials.json").await).expect("valid JSON");
        assert_eq!(credentials["credential_source"]["file"], path);
    });
}
