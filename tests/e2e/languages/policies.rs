//! Tests policy packs in TypeScript and Python that are part of the source. Pulumi does not support policy packs in Go.

use serde_json::json;

use super::{destroy, npm, outputs_of, program_files, replaced, set_environment, stack, until_message};
use crate::harness::{File, Scene, run};

/// Pushes a resource that the mandatory policy forbids, and then a resource that it allows.
async fn check(scene: &Scene, files: &[File], path: &str) {
    let source = scene.source("app").await;
    source.push(files).await;
    let mut stack = stack(scene, &source);
    set_environment(&mut stack, &[("PULUMI_OPTION_POLICY_PACK", "policy")]);
    let main = scene.start(stack).await;
    let (_, message) = until_message(&main, "allowed-values").await;
    assert!(message.contains("the value is forbidden"), "{message}");

    let second = source.push(&replaced(files, path, "\"forbidden\"", "\"allowed\"")).await;
    assert_eq!(outputs_of(&main, &second).await, json!({"value": "allowed"}));
    destroy(&main).await;
}

#[test]
fn a_typescript_policy_pack_prevents_a_forbidden_resource() {
    run("policy-ts", async |scene| {
        check(scene, &[npm("npm-extended"), program_files("policy-typescript")].concat(), "index.ts").await;
    });
}

#[test]
fn a_python_policy_pack_prevents_a_forbidden_resource() {
    run("policy-py", async |scene| check(scene, &program_files("policy-python"), "__main__.py").await);
}
