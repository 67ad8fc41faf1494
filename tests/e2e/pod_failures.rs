//! Tests pods that cannot start. The Stack reports the message from Kubernetes, and recovers after the cause is
//! removed.

use k8s_openapi::api::core::v1::{ResourceQuota, Secret, ServiceAccount};
use pulumi_controller::api::conditions::{READY, RECONCILING, stack_reason};
use pulumi_controller::api::names::PULUMI_CONTAINER;
use serde_json::{Value, json};

use crate::harness::{
    Poll, Program, Scene, StackHandle, WaitLimit, condition, has_condition, is_stalled, run, wait_until,
};

/// A change to the workspace template that prevents the pod from starting, and the expected words in the Stack's
/// message.
struct Case<'a> {
    name: &'a str,
    /// Fields to merge into the workspace template's spec.
    template: Value,
    words: &'a [&'a str],
    /// Whether the Stack remains stalled until its spec changes.
    needs_edit: bool,
}

impl Case<'_> {
    async fn run(&self, scene: &Scene, fix: impl AsyncFnOnce(&StackHandle<'_>)) {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new(self.name).output("text", json!("hello")).files()).await;
        let mut stack = scene.stack("main", &source);
        let spec = &mut stack.spec.workspace_template.get_or_insert_default()["spec"];
        for (field, value) in self.template.as_object().expect("an object") {
            spec[field] = value.clone();
        }
        let main = scene.start(stack).await;
        main.until(&format!("to report {:?}", self.words), WaitLimit::Run, |stack| {
            let is_expected = match self.needs_edit {
                true => is_stalled(stack, stack_reason::WORKSPACE_FAILED),
                false => has_condition(stack, RECONCILING, "True", stack_reason::STACK_PROCESSING),
            };
            is_expected
                && condition(stack, READY)
                    .is_some_and(|ready| self.words.iter().all(|word| ready.message.contains(word)))
        })
        .await;
        fix(&main).await;
        main.until_applied_within(WaitLimit::Long, &commit).await;
    }
}

/// Removes a field from the workspace template.
async fn without(main: &StackHandle<'_>, field: &str) {
    main.change(json!({"spec": {"workspaceTemplate": {"spec": {field: null}}}})).await;
}

/// Creates a ResourceQuota, and waits until the API server enforces the quota.
async fn quota(scene: &Scene, hard: Value) {
    scene.create::<ResourceQuota>(json!({"metadata": {"name": "tight"}, "spec": {"hard": hard}})).await;
    wait_until("the quota to be in force", WaitLimit::Reaction, async || {
        match scene.api::<ResourceQuota>().get("tight").await {
            Ok(quota) if quota.status.as_ref().is_some_and(|status| status.hard.is_some()) => Poll::Found(()),
            other => Poll::NotYet(format!("{other:?}")),
        }
    })
    .await;
}

async fn lift_quota(scene: &Scene) {
    scene.delete::<ResourceQuota>("tight").await;
}

#[test]
fn an_image_pull_failure_is_reported_until_it_is_fixed() {
    run("no-image", async |scene| {
        let template = json!({"image": "localhost/there-is-no-such-image:test"});
        let words = ["container pulumi: ", "Image", "there-is-no-such-image"];
        let image = scene.pulumi_image();
        let case = Case { needs_edit: true, name: "no-image", template, words: &words };
        case.run(scene, async |main| {
            main.change(json!({"spec": {"workspaceTemplate": {"spec": {"image": image}}}})).await;
        })
        .await;
    });
}

#[test]
fn a_pod_over_quota_is_reported_until_the_quota_is_lifted() {
    run("pod-quota", async |scene| {
        quota(scene, json!({"pods": "0"})).await;
        let case = Case {
            needs_edit: true,
            name: "pod-quota",
            template: json!({}),
            words: &["failed to create the pod", "exceeded quota: tight"],
        };
        case.run(scene, async |_| lift_quota(scene).await).await;
    });
}

#[test]
fn a_stateful_set_over_quota_is_reported_until_the_quota_is_lifted() {
    run("set-quota", async |scene| {
        quota(scene, json!({"count/statefulsets.apps": "0"})).await;
        let case = Case {
            needs_edit: true,
            name: "set-quota",
            template: json!({}),
            words: &["main-workspace", "exceeded quota: tight"],
        };
        case.run(scene, async |_| lift_quota(scene).await).await;
    });
}

#[test]
fn a_workspace_over_quota_is_reported_until_the_quota_is_lifted() {
    run("own-quota", async |scene| {
        quota(scene, json!({"count/workspaces.auto.pulumi.com": "0"})).await;
        let case =
            Case { needs_edit: true, name: "own-quota", template: json!({}), words: &["Workspace", "quota: tight"] };
        case.run(scene, async |_| lift_quota(scene).await).await;
    });
}

#[test]
fn a_pod_rejected_by_pod_security_is_reported_until_it_is_fixed() {
    run("privileged", async |scene| {
        let context = json!({"privileged": true, "allowPrivilegeEscalation": true});
        let container = json!({"name": PULUMI_CONTAINER, "securityContext": context});
        let template = json!({"podTemplate": {"spec": {"containers": [container]}}});
        let case =
            Case { needs_edit: true, name: "privileged", template, words: &["violates PodSecurity", "privileged"] };
        case.run(scene, async |main| without(main, "podTemplate").await).await;
    });
}

#[test]
fn an_invalid_quantity_is_reported_until_it_is_fixed() {
    run("quantity", async |scene| {
        let template = json!({"resources": {"limits": {"memory": "1GB"}}});
        let words = ["spec.containers[pulumi].resources.limits.memory", "\"1GB\" is not a quantity"];
        let case = Case { needs_edit: true, name: "quantity", template, words: &words };
        case.run(scene, async |main| without(main, "resources").await).await;
    });
}

#[test]
fn an_unschedulable_pod_is_reported_until_it_can_be_scheduled() {
    run("no-node", async |scene| {
        let template = json!({"podTemplate": {"spec": {"nodeSelector": {"there-is": "no-such-node"}}}});
        let case = Case { needs_edit: false, name: "no-node", template, words: &["cannot be scheduled", "node"] };
        case.run(scene, async |main| without(main, "podTemplate").await).await;
    });
}

#[test]
fn excessive_resource_requests_are_reported() {
    run("too-large", async |scene| {
        let template = json!({"resources": {"requests": {"memory": "900Gi"}}});
        let words = ["Insufficient memory", "container pulumi requests memory 900Gi"];
        let case = Case { needs_edit: false, name: "too-large", template, words: &words };
        case.run(scene, async |main| without(main, "resources").await).await;
    });
}

#[test]
fn a_missing_service_account_is_reported_until_it_is_created() {
    run("no-account", async |scene| {
        let template = json!({"serviceAccountName": "deployer"});
        let words = ["failed to create the pod", "serviceaccount \"deployer\" not found"];
        let case = Case { needs_edit: true, name: "no-account", template, words: &words };
        case.run(scene, async |_| {
            scene.create::<ServiceAccount>(json!({"metadata": {"name": "deployer"}})).await;
        })
        .await;
    });
}

#[test]
fn a_missing_volume_secret_is_reported_until_it_is_created() {
    run("no-secret", async |scene| {
        let volume = json!({"name": "extra", "secret": {"secretName": "later"}});
        let mount = json!({"name": "extra", "mountPath": "/extra"});
        let container = json!({"name": PULUMI_CONTAINER, "volumeMounts": [mount]});
        let template = json!({"podTemplate": {"spec": {"volumes": [volume], "containers": [container]}}});
        let case = Case {
            needs_edit: true,
            name: "no-secret",
            template,
            words: &["FailedMount", "secret \"later\" not found"],
        };
        case.run(scene, async |_| {
            scene.create::<Secret>(json!({"metadata": {"name": "later"}, "stringData": {"key": "value"}})).await;
        })
        .await;
    });
}
