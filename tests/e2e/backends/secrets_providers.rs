//! Tests secrets providers: a passphrase in a file, and Vault's transit engine.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret};
use pulumi_controller::api::names::{PULUMI_CONTAINER, workspace_pod};
use pulumi_controller::api::pulumi::ResourceRef;
use serde_json::{Value, json};

use super::emulators::Emulators;
use super::state::{from_secret, literal};
use super::{assert_hidden, suspend};
use crate::harness::{Commit, File, Poll, Program, Scene, StackHandle, WaitLimit, http, run, run_program, wait_until};
use crate::runs_parts::{exec, in_pod};

/// Secret configuration value that each Stack uses.
const TOKEN: &str = "hidden-token";
const PASSPHRASE: &str = "PULUMI_CONFIG_PASSPHRASE";
/// Mount path of the Secret with the passphrase.
const DIRECTORY: &str = "/etc/pulumi";

/// Returns a program whose outputs are a secret configuration value and the value's length.
fn program(project: &str, version: &str) -> Program {
    Program::new(project)
        .config("token", "none")
        .output("token", json!("${token}"))
        .output("length", json!({"fn::unsecret": {"fn::length": "${token}"}}))
        .output("version", json!(version))
}

/// Creates a Secret with the configuration value, and returns references to the Secret.
async fn secret_configuration(scene: &Scene) -> BTreeMap<String, ResourceRef> {
    let secret = json!({"metadata": {"name": "configuration"}, "stringData": {"token": TOKEN}});
    scene.create::<Secret>(secret).await;
    [("token".to_owned(), from_secret("configuration", "token"))].into()
}

/// Waits until the Stack has applied a commit, and checks that the program has read the secret.
async fn until_decrypted(main: &StackHandle<'_>, commit: &Commit, version: &str) {
    let stack = main.until_applied_within(WaitLimit::Long, commit).await;
    let outputs = json!(stack.status.expect("a status").outputs);
    assert_eq!(outputs, json!({"token": "[secret]", "length": TOKEN.len(), "version": version}));
}

/// Returns the secrets provider in the state.
async fn provider_in_state(scene: &Scene, main: &StackHandle<'_>) -> Value {
    let state = exec(scene, &main.name, &["pulumi", "stack", "export"]).await;
    let state: Value = serde_json::from_str(&state).expect("the exported state is JSON");
    assert!(!state.to_string().contains(TOKEN), "the state contains the secret in plain text");
    state["deployment"]["secrets_providers"].clone()
}

/// Runs the steps in `docs/guides/backends.md`.
#[test]
fn a_passphrase_in_a_file_can_be_rotated_without_a_new_pod() {
    run("passphrase", async |scene| {
        let (old, new) = (format!("old-{}", scene.id), format!("new-{}", scene.id));
        scene.create::<Secret>(json!({"metadata": {"name": "passphrase"}, "stringData": {"passphrase": old}})).await;
        let source = scene.source("app").await;
        let first = source.push(&program("passphrase", "one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.secrets_ref = secret_configuration(scene).await;
        stack.spec.env_refs.remove(PASSPHRASE);
        let file = literal(&format!("{DIRECTORY}/passphrase"));
        stack.spec.env_refs.insert(format!("{PASSPHRASE}_FILE"), file);
        let mounts = json!([{"name": "passphrase", "mountPath": DIRECTORY, "readOnly": true}]);
        let volumes = json!([{"name": "passphrase", "secret": {"secretName": "passphrase"}}]);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"] =
            json!({"spec": {"containers": [{"name": "pulumi", "volumeMounts": mounts}], "volumes": volumes}});
        let main = scene.start(stack).await;
        until_decrypted(&main, &first, "one").await;
        let pod = main.pod_and_restarts().await;

        change_passphrase(scene, &main, &new).await;
        let second = source.push(&program("passphrase", "two").files()).await;
        main.change(json!({"spec": {"suspend": false}})).await;
        until_decrypted(&main, &second, "two").await;
        assert_eq!(main.pod_and_restarts().await, pod);
        let script =
            format!("if {PASSPHRASE}={old} pulumi stack export --show-secrets 2>&1 >/dev/null; then exit 1; fi");
        let rejected = in_pod(scene, "main", &script).await;
        assert!(rejected.contains("incorrect passphrase"), "{rejected}");

        // The new pod contains no settings file, so the CLI must read the secrets provider from the state.
        scene.delete::<Pod>(&workspace_pod("main")).await;
        let third = source.push(&program("passphrase", "three").files()).await;
        until_decrypted(&main, &third, "three").await;
        assert_hidden(scene, &main, &[TOKEN.to_owned(), old, new]).await;
    });
}

/// Changes the passphrase of a suspended Stack, and replaces the passphrase in the Secret.
async fn change_passphrase(scene: &Scene, main: &StackHandle<'_>, new: &str) {
    suspend(main).await;
    let pod = workspace_pod(&main.name);
    let exec = ["exec", "--stdin", "--namespace", &scene.namespace, &pod, "--container", PULUMI_CONTAINER, "--"];
    let command = ["pulumi", "stack", "change-secrets-provider", "passphrase"];
    run_program("kubectl", &[&exec[..], &command].concat(), &format!("{new}\n")).await;
    scene.patch::<Secret>("passphrase", json!({"stringData": {"passphrase": new}})).await;
    // Changes the pod, because the kubelet syncs a changed pod immediately. The kubelet syncs other pods only about
    // every minute.
    let changed = json!({"metadata": {"annotations": {"pulumi-controller.test/changed": "1"}}});
    scene.patch::<Pod>(&pod, changed).await;
    wait_until("the pod to have the new passphrase", WaitLimit::Long, async || {
        match in_pod(scene, &main.name, &format!("cat {DIRECTORY}/passphrase")).await {
            found if found == new => Poll::Found(()),
            _ => Poll::NotYet("the previous passphrase".to_owned()),
        }
    })
    .await;
}

/// Tests a Stack whose secrets provider manages the key outside the state. `variables` contains the credentials for the
/// provider.
async fn check_provider(scene: &Scene, provider: &str, variables: BTreeMap<String, ResourceRef>, hidden: &[String]) {
    let source = scene.source("app").await;
    let first = source.push(&program("provider", "one").files()).await;
    let mut stack = scene.stack("main", &source);
    stack.spec.secrets_ref = secret_configuration(scene).await;
    stack.spec.secrets_provider = Some(provider.to_owned());
    stack.spec.env_refs.remove(PASSPHRASE);
    stack.spec.env_refs.extend(variables);
    let main = scene.start(stack).await;
    until_decrypted(&main, &first, "one").await;
    let in_state = provider_in_state(scene, &main).await;
    assert_eq!((&in_state["type"], &in_state["state"]["url"]), (&json!("cloud"), &json!(provider)));

    // The new pod must decrypt the data key in the state with the provider's key.
    scene.delete::<Pod>(&workspace_pod("main")).await;
    let second = source.push(&program("provider", "two").files()).await;
    until_decrypted(&main, &second, "two").await;
    assert_hidden(scene, &main, &[&[TOKEN.to_owned()][..], hidden].concat()).await;
}

/// Creates a key in Vault. Returns the URL of the secrets provider, and the variables with the credentials.
async fn key_in_vault(scene: &Scene) -> (String, BTreeMap<String, ResourceRef>) {
    let Emulators { vault_url, vault_url_in_cluster, vault_root_token: token, .. } = Emulators::get();
    let key = &scene.namespace;
    let request = http::client().post(format!("{vault_url}/v1/transit/keys/{key}"));
    http::send("creating a key in Vault", request.header("X-Vault-Token", token)).await;
    scene.create::<Secret>(json!({"metadata": {"name": "vault"}, "stringData": {"token": token}})).await;
    let variables = [("VAULT_ADDR", literal(vault_url_in_cluster)), ("VAULT_TOKEN", from_secret("vault", "token"))];
    (format!("hashivault://{key}"), variables.map(|(name, value)| (name.to_owned(), value)).into())
}

#[test]
fn secrets_are_encrypted_and_decrypted_with_a_key_in_vault() {
    run("vault", async |scene| {
        let (provider, variables) = key_in_vault(scene).await;
        let token = &Emulators::get().vault_root_token;
        check_provider(scene, &provider, variables, std::slice::from_ref(token)).await;
    });
}

/// Also tests a new Pulumi stack whose secrets provider is only in the settings file of the source.
#[test]
fn a_changed_secrets_provider_replaces_the_passphrase_of_a_stack() {
    run("vault-change", async |scene| {
        let (provider, variables) = key_in_vault(scene).await;
        let source = scene.source("app").await;
        let first = source.push(&program("provider", "one").files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.secrets_ref = secret_configuration(scene).await;
        stack.spec.env_refs.extend(variables.clone());
        let main = scene.start(stack).await;
        until_decrypted(&main, &first, "one").await;
        assert_eq!(provider_in_state(scene, &main).await["type"], "passphrase");

        let second = source.push(&program("provider", "two").files()).await;
        main.change(json!({"spec": {"secretsProvider": provider}})).await;
        until_decrypted(&main, &second, "two").await;
        assert_eq!(provider_in_state(scene, &main).await["state"]["url"], json!(provider));
        main.change(json!({"spec": {"envRefs": {PASSPHRASE: null}}})).await;
        scene.delete::<Pod>(&workspace_pod("main")).await;
        let third = source.push(&program("provider", "three").files()).await;
        until_decrypted(&main, &third, "three").await;

        let settings = in_pod(scene, "main", &format!("cat /share/workspace/Pulumi.main-{}.yaml", scene.id)).await;
        assert!(settings.contains("encryptedkey"), "{settings}");
        let other = scene.source("other").await;
        let content = settings.replace("provider:token", "other:token");
        let settings = File { path: format!("Pulumi.other-{}.yaml", scene.id), content };
        let files: Vec<File> = program("other", "one").files().into_iter().chain([settings]).collect();
        let commit = other.push(&files).await;
        let mut stack = scene.stack("other", &other);
        stack.spec.env_refs.extend(variables);
        let other = scene.start(stack).await;
        until_decrypted(&other, &commit, "one").await;
        assert_eq!(provider_in_state(scene, &other).await["state"]["url"], json!(provider));
    });
}

#[test]
fn secrets_are_encrypted_and_decrypted_with_a_key_in_aws_kms() {
    run("kms", async |scene| {
        let Emulators { kms_url, kms_url_in_cluster, .. } = Emulators::get();
        let request = http::client()
            .post(format!("{kms_url}/"))
            .header("Content-Type", "application/x-amz-json-1.1")
            .header("X-Amz-Target", "TrentService.CreateKey")
            .body("{}");
        let response = http::send("creating a key in AWS KMS", request).await.text().await.expect("a text");
        let created: Value = serde_json::from_str(&response).expect("JSON");
        let key = created["KeyMetadata"]["KeyId"].as_str().expect("the ID of the key");
        let variables = [("AWS_ENDPOINT_URL_KMS".to_owned(), literal(kms_url_in_cluster))].into();
        check_provider(scene, &format!("awskms://{key}?region=us-east-1"), variables, &[]).await;
    });
}
