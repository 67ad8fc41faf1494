//! Tests provider plugins on the PATH, and plugins with a checksum. `features.rs` contains the tests of downloaded plugins.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    REGISTRY, destroy, first_outputs, go_modules, npm, program, set_environment, stack, template, until_message,
};
use crate::harness::{File, Scene, api_call, once, run};

/// Directory on the PATH in which an init container writes the plugin.
const PLUGINS: &str = "/opt/plugins";
const PATH: &str = "/opt/plugins:/usr/local/bin:/usr/local/go/bin:/usr/bin:/bin";

/// Copies the test provider from the image of other tests to a volume.
fn provide_plugin(scene: &Scene, stack: &mut Stack) {
    let mount = json!({"name": "plugins", "mountPath": PLUGINS});
    let copy = json!({
        "name": "plugin",
        "image": scene.pulumi_image(),
        "imagePullPolicy": "IfNotPresent",
        "command": ["cp", "/usr/local/bin/pulumi-resource-testing", PLUGINS],
        "volumeMounts": [mount],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    template(stack)["podTemplate"] = json!({"spec": {
        "volumes": [{"name": "plugins", "emptyDir": {}}],
        "initContainers": [copy],
        "containers": [{"name": "pulumi", "volumeMounts": [mount]}],
    }});
    set_environment(stack, &[("PATH", PATH)]);
}

async fn check_path(scene: &Scene, files: &[File]) {
    let source = scene.source("app").await;
    let commit = source.push(files).await;
    let mut stack = stack(scene, &source);
    provide_plugin(scene, &mut stack);
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &commit).await, json!({"count": 0}));
    destroy(&main).await;
    assert_eq!(main.log.sentences().await, once(&["create step", "delete step"]));
}

#[test]
fn a_typescript_program_uses_a_plugin_on_the_path() {
    run("path-ts", async |scene| check_path(scene, &[npm("npm"), program("plugin-typescript")].concat()).await);
}

#[test]
fn a_python_program_uses_a_plugin_on_the_path() {
    run("path-py", async |scene| check_path(scene, &program("plugin-python")).await);
}

#[test]
fn a_go_program_uses_a_plugin_on_the_path() {
    run("path-go", async |scene| check_path(scene, &[go_modules("go"), program("plugin-go")].concat()).await);
}

/// Returns the SHA-256 digest of the plugin's archive on the server in the cluster.
async fn digest_of_plugin(scene: &Scene) -> Vec<u8> {
    let services: Api<Service> = Api::namespaced(scene.client.clone(), "test-services");
    let service = api_call("reading the Service packages", services.get("packages")).await;
    let address = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
    let url = format!("http://{address}/plugins/pulumi-resource-testing-v0.1.0-linux-amd64.tar.gz");
    let client = reqwest::Client::builder().no_proxy().build().expect("an HTTP client");
    let archive = client.get(&url).send().await.and_then(reqwest::Response::error_for_status).expect(&url);
    Sha256::digest(archive.bytes().await.expect("the archive")).to_vec()
}

/// Returns a project that downloads the plugin with this checksum.
fn checked_project(runtime: &str, checksum: &[u8]) -> File {
    let package = json!({
        "source": "testing",
        "version": "0.1.0",
        "pluginDownloadURL": format!("{REGISTRY}/plugins"),
        "checksums": {"linux-amd64": STANDARD.encode(checksum)},
    });
    let step = json!({"type": "testing:index:Step", "properties": {"name": "step", "value": "one"}});
    let project = json!({
        "name": "checksum",
        "runtime": runtime,
        "packages": {"testing": package},
        "resources": {"step": step},
        "outputs": {"value": "${step.value}"},
    });
    File { path: "Pulumi.yaml".to_owned(), content: format!("{project:#}\n") }
}

#[test]
fn a_plugin_with_another_checksum_is_not_used_in_any_language() {
    run("checksum", async |scene| {
        let digest = digest_of_plugin(scene).await;
        let source = scene.source("app").await;
        source.push(&[checked_project("nodejs", &[0; 32])]).await;
        let mut stack = stack(scene, &source);
        set_environment(&mut stack, &[("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "false")]);
        let main = scene.start(stack).await;
        for (runtime, byte) in [("nodejs", 0), ("python", 1), ("go", 2), ("yaml", 3)] {
            let wrong = [byte; 32];
            source.push(&[checked_project(runtime, &wrong)]).await;
            let refusal = format!("invalid checksum, expected {}, actual {}", hex::encode(wrong), hex::encode(&digest));
            let (_, message) = until_message(&main, &refusal).await;
            assert!(message.lines().next().is_some_and(|line| line.contains(&refusal)), "{message}");
        }
        assert!(main.updates().await.is_empty(), "nothing runs");

        let commit = source.push(&[checked_project("yaml", &digest)]).await;
        assert_eq!(first_outputs(&main, &commit).await, json!({"value": "one"}));
        destroy(&main).await;
        assert_eq!(main.log.sentences().await, once(&["create step", "delete step"]));
    });
}
