//! Tests admission policies that reject or change the controller's writes.

use k8s_openapi::api::core::v1::Service;
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::conditions::{READY, find, stack_reason};
use pulumi_controller::api::names::{ANNOTATION_REQUESTED_AT, LABEL_RUN, workspace_object};
use serde_json::{Value, json};

use crate::harness::{
    Poll, Program, Scene, WaitLimit, condition, is_stalled, kubectl, run, run_with_cleanup, try_kubectl, wait_until,
};

const REJECTION: &str = "changes are frozen today";

/// An admission policy for objects of one kind in a scene's namespace, and the policy's binding. Both objects have the
/// namespace's name.
struct Policy {
    kind: &'static str,
    version: &'static str,
    /// API group and plural name of the matched objects.
    resource: (&'static str, &'static str),
    /// Fields to merge into the policy's spec.
    spec: Value,
    binding: Value,
}

impl Policy {
    fn rejecting(resource: (&'static str, &'static str)) -> Policy {
        Policy::requiring(resource, "false")
    }

    /// Returns a policy that rejects all objects that do not satisfy the CEL expression.
    fn requiring(resource: (&'static str, &'static str), expression: &str) -> Policy {
        let spec = json!({"validations": [{"expression": expression, "message": REJECTION}]});
        let binding = json!({"validationActions": ["Deny"]});
        Policy { kind: "ValidatingAdmissionPolicy", version: "v1", resource, spec, binding }
    }

    fn rewriting(resource: (&'static str, &'static str), expression: &str) -> Policy {
        let mutation = json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
        let spec = json!({"reinvocationPolicy": "Never", "mutations": [mutation]});
        Policy { kind: "MutatingAdmissionPolicy", version: "v1beta1", resource, spec, binding: json!({}) }
    }

    async fn apply(&self, scene: &Scene) {
        let (group, plural) = self.resource;
        let metadata = json!({"name": scene.namespace});
        let api_version = format!("admissionregistration.k8s.io/{}", self.version);
        let rule = json!({"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [plural]});
        let here = json!({"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}});
        let mut spec = self.spec.clone();
        spec["failurePolicy"] = json!("Fail");
        spec["matchConstraints"] = json!({"namespaceSelector": here, "resourceRules": [rule]});
        let mut binding = self.binding.clone();
        binding["policyName"] = json!(scene.namespace);
        let policy = json!({"apiVersion": api_version, "kind": self.kind, "metadata": metadata, "spec": spec});
        let bound = format!("{}Binding", self.kind);
        let binding = json!({"apiVersion": api_version, "kind": bound, "metadata": metadata, "spec": binding});
        kubectl(&["apply", "--filename", "-"], &format!("{policy}\n---\n{binding}")).await;
    }

    async fn delete(&self, scene: &Scene) {
        for kind in [format!("{}Binding", self.kind), self.kind.to_owned()] {
            kubectl(&["delete", "--ignore-not-found", &kind, &scene.namespace], "").await;
        }
    }

    /// Waits until a policy change takes effect, because the API server applies the change with a delay.
    async fn until_enforced(&self, scene: &Scene, probe: &Value, is_enforced: impl Fn(Result<String, String>) -> bool) {
        let create =
            ["create", "--dry-run=server", "--output=json", "--namespace", &scene.namespace, "--filename", "-"];
        wait_until(format!("the {} to be applied", self.kind), WaitLimit::Reaction, async || {
            let response = try_kubectl(&create, &probe.to_string()).await;
            let message = format!("{response:?}");
            if is_enforced(response) { Poll::Found(()) } else { Poll::NotYet(message) }
        })
        .await;
    }
}

/// Checks that a Stack reports the policy that rejects writes for this Stack, and that the Stack runs after the test
/// deletes the policy.
async fn check_rejection(scene: &Scene, resource: (&'static str, &'static str), probe: Value) {
    let policy = Policy::rejecting(resource);
    let is_rejected = |response: Result<String, String>| response.is_err_and(|problem| problem.contains(REJECTION));
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("frozen").output("text", json!("hello")).files()).await;
    run_with_cleanup(
        async || {
            policy.apply(scene).await;
            policy.until_enforced(scene, &probe, is_rejected).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until("to report the policy", WaitLimit::Run, |stack| {
                is_stalled(stack, stack_reason::WORKSPACE_FAILED)
                    && condition(stack, READY).is_some_and(|ready| ready.message.contains(REJECTION))
            })
            .await;
            policy.delete(scene).await;
            policy.until_enforced(scene, &probe, |response| !is_rejected(response)).await;
            // Requests a reconciliation, because the next retry would start only after some minutes.
            main.annotate(ANNOTATION_REQUESTED_AT, "thawed").await;
            let annotations = json!({"metadata": {"annotations": {ANNOTATION_REQUESTED_AT: "thawed"}}});
            scene.patch::<Workspace>("main", annotations).await;
            main.until_applied(&commit).await;
        },
        async || policy.delete(scene).await,
    )
    .await;
}

#[test]
fn an_update_rejected_by_a_policy_is_reported_and_created_later() {
    run("frozen-updates", async |scene| {
        let spec = json!({"workspaceName": "other", "stackName": "dev", "type": "preview"});
        let meta = json!({"name": "probe"});
        let update =
            json!({"apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update", "metadata": meta, "spec": spec});
        check_rejection(scene, ("auto.pulumi.com", "updates"), update).await;
    });
}

#[test]
fn a_stateful_set_rejected_by_a_policy_is_reported_and_created_later() {
    run("frozen-pods", async |scene| {
        let labels = json!({"app": "probe"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}});
        let spec = json!({"serviceName": "probe", "selector": {"matchLabels": labels}, "template": template});
        let probe =
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "probe"}, "spec": spec});
        check_rejection(scene, ("apps", "statefulsets"), probe).await;
    });
}

#[test]
fn a_service_rewritten_by_a_policy_is_reported_after_a_few_applies() {
    run("rewritten", async |scene| {
        let expression =
            "Object{metadata: Object.metadata{annotations: {\"auto.pulumi.com/rendered-hash\": \"other\"}}}";
        let policy = Policy::rewriting(("", "services"), expression);
        let spec = json!({"clusterIP": "None", "ports": [{"port": 1}]});
        let probe = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe"}, "spec": spec});
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("rewritten").output("text", json!("hello")).files()).await;
        run_with_cleanup(
            async || {
                policy.apply(scene).await;
                let is_rewritten = |response: Result<String, String>| response.is_ok_and(|text| text.contains("other"));
                policy.until_enforced(scene, &probe, is_rewritten).await;
                let main = scene.start(scene.stack("main", &source)).await;
                main.until_applied(&commit).await;
                let message = wait_until("the Workspace to report the field", WaitLimit::Run, async || {
                    let conditions = main.workspace().await.status.unwrap_or_default().conditions;
                    let message = find(&conditions, READY).map(|ready| ready.message.clone()).unwrap_or_default();
                    if message.contains("rendered-hash") { Poll::Found(message) } else { Poll::NotYet(message) }
                })
                .await;
                let service = workspace_object("main");
                assert!(message.contains(&format!("Service {service}")), "{message}");
                let version = async || scene.api::<Service>().get(&service).await.map(|found| found.metadata);
                let before = version().await.expect("the Service").resource_version;
                let commit = source.push(&Program::new("rewritten").output("text", json!("again")).files()).await;
                main.until_applied(&commit).await;
                assert_eq!(
                    version().await.expect("the Service").resource_version,
                    before,
                    "the controller no longer writes the Service"
                );
            },
            async || policy.delete(scene).await,
        )
        .await;
    });
}

#[test]
fn pod_metadata_rejected_by_a_policy_is_reported_and_the_run_starts_later() {
    run("frozen-marks", async |scene| {
        let source = scene.source("app").await;
        let program = |text: &str| Program::new("frozen").output("text", json!(text)).files();
        let commit = source.push(&program("hello")).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let policy =
            Policy::requiring(("", "pods"), &format!("!('{LABEL_RUN}' in object.metadata.?labels.orValue({{}}))"));
        let probe = labeled_pod(LABEL_RUN);
        let is_rejected = |response: Result<String, String>| response.is_err_and(|problem| problem.contains(REJECTION));
        run_with_cleanup(
            async || {
                policy.apply(scene).await;
                policy.until_enforced(scene, &probe, is_rejected).await;
                let commit = source.push(&program("again")).await;
                main.until("to report the policy", WaitLimit::Run, |stack| {
                    condition(stack, READY).is_some_and(|ready| {
                        ready.message.contains(REJECTION)
                            && ready.message.contains("exclude the pod from the webhook or policy")
                    })
                })
                .await;
                policy.delete(scene).await;
                policy.until_enforced(scene, &probe, |response| !is_rejected(response)).await;
                main.until_applied(&commit).await;
            },
            async || policy.delete(scene).await,
        )
        .await;
    });
}

/// Returns a Pod with this label that meets the Pod Security Standard `restricted`.
fn labeled_pod(label: &str) -> Value {
    let security = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = json!({"name": "a", "image": "a", "securityContext": security});
    let metadata = json!({"name": "probe", "labels": {label: "true"}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
}
