//! Tests components, stack references, assets, and a provider whose plugin the CLI downloads from a server in the
//! cluster.

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{
    destroy, first_outputs, go_modules, npm, outputs_of, program_files, replaced, set_config, set_environment, stack,
};
use crate::harness::languages::REGISTRY;
use crate::harness::{File, Scene, StackHandle, once, run};

/// String that the CLI writes to the pod log when it downloads the plugin.
const DOWNLOAD: &str = "Downloading provider: testing";

async fn downloads(main: &StackHandle<'_>) -> usize {
    main.pod_log("pulumi").await.matches(DOWNLOAD).count()
}

/// Pushes a program with a component, then a change to an asset, and then a change to a resource input.
async fn check(scene: &Scene, files: &[File], path: &str) {
    let network = scene.source("network").await;
    let commit = network.push(&program_files("network")).await;
    let network = scene.start(scene.stack("network", &network)).await;
    let referenced = network.until_applied(&commit).await.spec.stack;

    let source = scene.source("app").await;
    let first = source.push(files).await;
    let mut stack = stack(scene, &source);
    set_config(&mut stack, "network", &format!("organization/network/{referenced}"));
    set_config(&mut stack, "plugins", &format!("{REGISTRY}/plugins"));
    set_environment(&mut stack, &[("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "false")]);
    let name = stack.spec.stack.clone();
    let main = scene.start(stack).await;
    let outputs = first_outputs(&main, &first).await;
    let before = downloads(&main).await;
    assert_ne!(before, 0, "the first run downloads the plugin");
    let urn = format!("urn:pulumi:{name}::features::features:index:Group");
    assert_eq!(outputs["parent"], json!(format!("{urn}::group")));
    assert_eq!(outputs["child"], json!(format!("{urn}$testing:index:Step::group-child")));
    assert_eq!(outputs["reference"], json!("blue"));
    let asset = &outputs["assets"]["file"];
    assert_eq!(asset["hash"], json!(digest("hello from a file\n")), "{outputs}");
    assert_eq!(asset["path"], json!("greeting.txt"), "{outputs}");
    assert_eq!(outputs["assets"]["archive"]["assets"]["greeting.txt"]["hash"], asset["hash"], "{outputs}");

    let changed = replaced(files, "greeting.txt", "hello", "goodbye");
    let second = source.push(&replaced(&changed, path, "one in ", "two in ")).await;
    let outputs = outputs_of(&main, &second).await;
    assert_eq!(outputs["assets"]["file"]["hash"], json!(digest("goodbye from a file\n")), "{outputs}");
    assert_eq!(main.log.operations().await, once(&["create group-child", "update group-child"]));
    assert_eq!(downloads(&main).await, before, "the second run uses the plugin in PULUMI_HOME");

    destroy(&main).await;
    assert_eq!(main.log.operations().await, once(&["create group-child", "update group-child", "delete group-child"]));
}

fn digest(content: &str) -> String {
    hex::encode(Sha256::digest(content))
}

#[test]
fn a_typescript_program_uses_components_references_assets_and_a_plugin() {
    run("features-ts", async |scene| {
        check(scene, &[npm("npm"), program_files("features-typescript")].concat(), "index.ts").await;
    });
}

#[test]
fn a_python_program_uses_components_references_assets_and_a_plugin() {
    run("features-py", async |scene| check(scene, &program_files("features-python"), "__main__.py").await);
}

#[test]
fn a_go_program_uses_components_references_assets_and_a_plugin() {
    run("features-go", async |scene| {
        check(scene, &[go_modules("go"), program_files("features-go")].concat(), "main.go").await;
    });
}
