//! Tests policy pack sources. The tests in `languages` run policy packs in TypeScript and Python, because only the
//! image for these tests contains language runtimes.

use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{PolicyPack, SourceReference, Stack};
use serde_json::json;

use crate::harness::{File, Program, WaitLimit, condition, has_condition, run};

/// Returns the policy pack whose source is the GitRepository `policies`.
fn pack() -> PolicyPack {
    let source_ref =
        SourceReference { kind: "GitRepository".to_owned(), name: "policies".to_owned(), ..SourceReference::default() };
    PolicyPack { name: "house".to_owned(), source_ref, ..PolicyPack::default() }
}

fn message(stack: &Stack) -> String {
    condition(stack, READY).map(|ready| ready.message.clone()).unwrap_or_default()
}

fn file(path: &str, content: &str) -> File {
    File { path: path.to_owned(), content: content.to_owned() }
}

#[test]
fn a_stack_waits_for_its_policy_pack_and_reports_why_it_is_not_available() {
    run("policy-source", async |scene| {
        let source = scene.source("app").await;
        let first = source.push(&Program::new("policies").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.policy_packs = vec![pack()];
        let main = scene.start(stack).await;
        main.until("to wait for the source of the policy pack", WaitLimit::Reaction, |stack| {
            message(stack).contains("policy pack house: GitRepository") && message(stack).contains("does not exist")
        })
        .await;

        let policies = scene.source("policies").await;
        policies.push(&[file("README.md", "no policy pack")]).await;
        main.until("to report that the source contains no policy pack", WaitLimit::Run, |stack| {
            message(stack).contains("policy pack house: no PulumiPolicy.yaml found")
        })
        .await;
        assert!(main.log.operations().await.is_empty(), "no run has started");

        main.change(json!({"spec": {"policyPacks": null}})).await;
        main.until_applied(&first).await;
        assert_eq!(main.workspace().await.spec.policy_packs, []);
    });
}

#[test]
fn an_invalid_policy_pack_is_reported_with_its_field() {
    run("policy-invalid", async |scene| {
        let source = scene.source("app").await;
        source.push(&Program::new("policies").files()).await;
        let mut stack = scene.stack("main", &source);
        let mut elsewhere = pack();
        elsewhere.source_ref.namespace = Some("flux-system".to_owned());
        stack.spec.policy_packs = vec![elsewhere];
        let main = scene.start(stack).await;
        main.until("to report the reference to another namespace", WaitLimit::Reaction, |stack| {
            has_condition(stack, STALLED, "True", stack_reason::ACCESS_DENIED)
                && message(stack).contains("spec.policyPacks[house].sourceRef")
        })
        .await;
    });
}
