//! Tests provider plugins on the `PATH`. `features.rs` contains the tests of downloaded plugins.

use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use super::{destroy, first_outputs, go_modules, npm, program_files, set_environment, stack, template};
use crate::harness::{File, Scene, once, run};

/// Directory on the `PATH`. An init container copies the plugin to this directory.
const PLUGINS: &str = "/opt/plugins";
const PATH: &str = "/opt/plugins:/usr/local/bin:/usr/local/go/bin:/usr/bin:/bin";

/// Adds an init container that copies the test provider from the other tests' image to a volume.
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
    assert_eq!(main.log.operations().await, once(&["create step", "delete step"]));
}

#[test]
fn a_typescript_program_uses_a_plugin_on_the_path() {
    run("path-ts", async |scene| check_path(scene, &[npm("npm"), program_files("plugin-typescript")].concat()).await);
}

#[test]
fn a_python_program_uses_a_plugin_on_the_path() {
    run("path-py", async |scene| check_path(scene, &program_files("plugin-python")).await);
}

#[test]
fn a_go_program_uses_a_plugin_on_the_path() {
    run("path-go", async |scene| check_path(scene, &[go_modules("go"), program_files("plugin-go")].concat()).await);
}
