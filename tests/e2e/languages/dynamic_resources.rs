//! Tests dynamic provider resources, whose create, update and delete functions are part of the program. Pulumi supports
//! dynamic providers in TypeScript and Python.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use super::{destroy, first_outputs, npm, outputs_of, program_files, replaced, stack};
use crate::harness::{File, Scene, api_call, run};

/// Returns the string in the ConfigMap that the program manages, or `None` if the ConfigMap does not exist.
async fn text(scene: &Scene) -> Option<String> {
    let object = api_call("reading the ConfigMap", scene.api::<ConfigMap>().get_opt("managed")).await?;
    object.data.and_then(|mut data| data.remove("text"))
}

async fn check(scene: &Scene, files: &[File], path: &str) {
    scene.service_account_for_config_maps("deployer").await;
    let source = scene.source("app").await;
    let first = source.push(files).await;
    let mut stack = stack(scene, &source);
    stack.spec.service_account_name = Some("deployer".to_owned());
    let main = scene.start(stack).await;
    assert_eq!(first_outputs(&main, &first).await, json!({"id": "managed", "text": "one"}));
    assert_eq!(text(scene).await.as_deref(), Some("one"));

    let second = source.push(&replaced(files, path, "\"one\"", "\"two\"")).await;
    assert_eq!(outputs_of(&main, &second).await, json!({"id": "managed", "text": "two"}));
    assert_eq!(text(scene).await.as_deref(), Some("two"));

    destroy(&main).await;
    assert_eq!(text(scene).await, None, "the provider has deleted the object");
}

#[test]
fn typescript_dynamic_resources_manage_objects_in_the_cluster() {
    run("dynamic-ts", async |scene| {
        check(scene, &[npm("npm"), program_files("dynamic-typescript")].concat(), "index.ts").await;
    });
}

#[test]
fn python_dynamic_resources_manage_objects_in_the_cluster() {
    run("dynamic-py", async |scene| check(scene, &program_files("dynamic-python"), "__main__.py").await);
}
