//! Tests the kustomize overlays. Each test installs the controller from an overlay instead of the controller that the
//! other tests use.

use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use pulumi_controller::api::conditions::{OUTPUTS_WRITTEN, READY, outputs_reason, stack_reason};
use pulumi_controller::api::pulumi::{DependencyReference, Stack};
use serde_json::{Value, json};

use crate::harness::{
    Controller, Poll, Program, Scene, WaitLimit, api_call, client, condition, has_condition, in_scene, kubectl, once,
    run_alone, run_with_cleanup, try_kubectl, wait_until,
};

/// Renders an overlay, replaces `from` with `to` in the manifests, and applies the manifests.
async fn apply(overlay: &str, (from, to): (&str, &str)) {
    let all = render(overlay).await.replace(from, to);
    kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", "-"], &all).await;
}

async fn render(overlay: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(overlay);
    kubectl(&["kustomize", &folder.display().to_string()], "").await
}

async fn until_available(namespace: &str) {
    let deployments: Api<Deployment> = Api::namespaced(client().await, namespace);
    wait_until(format!("the controller in {namespace} to be available"), WaitLimit::Reaction, async || {
        let status = match deployments.get("pulumi-controller").await {
            Ok(deployment) => deployment.status.unwrap_or_default(),
            Err(error) => return Poll::NotYet(error.to_string()),
        };
        if status.available_replicas == Some(1) { Poll::Found(()) } else { Poll::NotYet(format!("{status:?}")) }
    })
    .await;
}

/// Runs a test while the installed controller's Deployment has no replicas. Then restores the controller and its RBAC
/// rules, even if the test fails.
async fn run_without_controller(test: impl AsyncFnOnce()) {
    let controller = Controller::new(&client().await);
    controller.scale(0).await;
    run_with_cleanup(test, async || {
        apply("config/rbac", ("", "")).await;
        controller.scale(1).await;
    })
    .await;
}

/// Runs a test that changes the installed controller's arguments, and then restores the arguments, even if the test
/// fails.
async fn with_other_arguments(test: impl AsyncFnOnce(&Controller, &[String])) {
    let controller = Controller::new(&client().await);
    let arguments = controller.arguments().await;
    let started_again = async || controller.start_with(&arguments, 1).await;
    run_with_cleanup(async || test(&controller, arguments.as_slice()).await, started_again).await;
}

fn program(value: &str) -> Program {
    Program::new("overlay").step("step", json!({"value": value}))
}

#[test]
fn a_single_namespace_controller_has_no_rights_in_other_namespaces() {
    run_alone(async || {
        run_without_controller(async || {
            in_scene("single-namespace", async |scene| {
                in_scene("neighbor", async |neighbor| {
                    apply("kustomize/overlays/single-namespace", ("pulumi-team", &scene.namespace)).await;
                    let own = format!("{}-system", scene.namespace);
                    until_available(&own).await;
                    let foreign = neighbor.source("app").await;
                    foreign.push(&program("two").files()).await;
                    let other = neighbor.start(neighbor.stack("other", &foreign)).await;
                    check_run_and_deletion(scene).await;
                    let message = other.get().await.status.map(|status| status.conditions).unwrap_or_default();
                    assert_eq!(message, [], "no controller has the permission to write its status");
                    other.delete().await;
                    other.until_gone().await;
                    kubectl(&["delete", "namespace", &own, "--wait=false"], "").await;
                    let policy = format!("allow-{}", scene.namespace);
                    kubectl(&["delete", "networkpolicy", &policy, "--namespace", "flux-system"], "").await;
                })
                .await;
            })
            .await;
        })
        .await;
    });
}

/// Checks that the overlay's controller runs and deletes a Stack with a Flux source.
async fn check_run_and_deletion(scene: &Scene) {
    let source = scene.source("app").await;
    let commit = source.push(&program("one").files()).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.until_applied(&commit).await;
    let second = source.push(&program("two").files()).await;
    main.until_applied(&second).await;
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
    main.delete().await;
    main.until_gone().await;
}

#[test]
fn without_flux_stacks_poll_repositories_and_accept_webhooks() {
    run_alone(async || {
        run_without_controller(async || {
            in_scene("no-flux", async |scene| {
                apply("kustomize/overlays/no-flux", ("", "")).await;
                until_available("pulumi-controller").await;
                let source = scene.source("app").await;
                let commit = source.push_without_notification(&program("one").files()).await;
                let main = scene.start(scene.stack_on_repository("main", &source)).await;
                main.until_applied(&commit).await;
                let service =
                    "/api/v1/namespaces/pulumi-controller/services/pulumi-webhook-receiver:80/proxy/hook/none";
                let request = axum::http::Request::post(service).body(kube::client::Body::empty()).expect("a request");
                let response = api_call("calling a webhook", scene.client.send(request)).await;
                assert_eq!(response.status().as_u16(), 404, "the receiver does not know this webhook");
                main.delete().await;
                main.until_gone().await;
                let namespaces: Api<Namespace> = Api::all(scene.client.clone());
                let parameters = DeleteParams::default();
                let deleted = namespaces.delete("pulumi-controller", &parameters);
                drop(api_call("deleting the overlay's namespace", deleted).await);
            })
            .await;
        })
        .await;
    });
}

#[test]
fn tenants_get_only_restricted_pods_with_allowed_accounts() {
    run_alone(async || {
        with_other_arguments(async |controller, _| {
            let tenants = async || in_scene("tenant", async |scene| run_as_tenant(controller, scene).await).await;
            run_with_cleanup(tenants, async || {
                let policy = "validatingadmissionpolicies,validatingadmissionpolicybindings";
                kubectl(&["delete", policy, "pulumi-controller", "--ignore-not-found"], "").await;
                apply("config/rbac", ("", "")).await;
            })
            .await;
        })
        .await;
    });
}

async fn run_as_tenant(controller: &Controller, scene: &Scene) {
    kubectl(&["delete", "clusterrolebinding", "pulumi-controller-workspaces"], "").await;
    apply("kustomize/overlays/multi-tenant", ("", "")).await;
    controller.until_available().await;
    for account in ["pulumi", "admin"] {
        scene.create::<ServiceAccount>(json!({"metadata": {"name": account}})).await;
    }
    let binding = "--clusterrole=pulumi-controller-workspaces";
    let account = "--serviceaccount=flux-system:pulumi-controller";
    let namespace = ["--namespace", &scene.namespace];
    kubectl(&[&["create", "rolebinding", "pulumi-controller", binding, account][..], &namespace].concat(), "").await;

    let source = scene.source("app").await;
    let commit = source.push(&program("one").output("url", json!("http://one")).files()).await;
    let mut stack = scene.stack("main", &source);
    let objects = json!([{"kind": "Secret", "name": "outputs"}, {"kind": "ConfigMap", "name": "outputs"}]);
    stack.spec.write_outputs_to = serde_json::from_value(objects).expect("objects");
    let main = scene.start(stack).await;
    let applied = main.until_applied(&commit).await;
    let has_written = has_condition(&applied, OUTPUTS_WRITTEN, "True", outputs_reason::OUTPUTS_WRITTEN);
    assert!(has_written, "the policy permits objects with outputs: {applied:?}");
    let pod = main.pod().await;
    assert_eq!(pod.spec.as_ref().and_then(|pod| pod.service_account_name.as_deref()), Some("pulumi"));
    assert_unmanaged_writes_rejected(scene, &pod.name_any()).await;
    let mut short_lived = scene.stack("short-lived", &source);
    (short_lived.spec.ttl, short_lived.spec.destroy_on_finalize) = (Some("10s".to_owned()), Some(true));
    scene.start(short_lived).await.until_gone().await;
    for (name, spec, words) in [
        ("account", json!({"serviceAccountName": "admin"}), "serviceAccountName \"admin\" is not allowed"),
        (
            "node",
            pod_template(json!({"spec": {"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}})),
            "HostPath Volumes: spec.volumes[node].hostPath",
        ),
        (
            "disguise",
            pod_template(json!({"metadata": {"labels": {"app": "source-controller"}}})),
            "podTemplate.metadata.labels: app is not allowed",
        ),
    ] {
        let refused = scene.start(scene.stack(name, &source)).await;
        refused.change(json!({"spec": spec})).await;
        refused
            .until(&format!("to report {words:?}"), WaitLimit::Reaction, |stack| reports_anywhere(stack, words))
            .await;
        refused.delete().await;
        refused.until_gone().await;
    }
    main.delete().await;
    main.until_gone().await;
}

fn pod_template(template: Value) -> Value {
    json!({"workspaceTemplate": {"spec": {"podTemplate": template}}})
}

fn reports_anywhere(stack: &Stack, words: &str) -> bool {
    let conditions = stack.status.iter().flat_map(|status| &status.conditions);
    conditions.map(|condition| &condition.message).any(|message| message.contains(words))
}

/// Checks that the admission policy rejects some controller writes that the RBAC rules permit: writes to unmanaged
/// objects in the tenant's namespace. Also checks that the controller cannot read Secrets in another namespace.
async fn assert_unmanaged_writes_rejected(scene: &Scene, pod: &str) {
    let as_controller = ["--as=system:serviceaccount:flux-system:pulumi-controller", "--namespace", &scene.namespace];
    kubectl(&["create", "secret", "generic", "tenants", "--namespace", &scene.namespace], "").await;
    let context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = json!({"name": "main", "image": "none", "imagePullPolicy": "Never", "securityContext": context});
    let other = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {
            "containers": [container],
            "nodeSelector": {"no": "node"},
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    });
    kubectl(&["create", "--namespace", &scene.namespace, "--filename", "-"], &other.to_string()).await;
    let unlabelled = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "disguise"}, "spec": {"ports": [{"port": 80}]},
    })
    .to_string();
    let mut without_pool = other.clone();
    without_pool["metadata"] = json!({"name": "disguise", "labels": {"auto.pulumi.com/component": "workspace"}});
    let without_pool = without_pool.to_string();
    let relabelled = r#"{"metadata": {"labels": {"auto.pulumi.com/component": null}}}"#;
    let labelled = r#"{"metadata": {"labels": {"auto.pulumi.com/component": "workspace"}}}"#;
    for (arguments, input, words) in [
        (
            &["patch", "secret", "tenants", "--patch", r#"{"stringData": {"key": "value"}}"#][..],
            "",
            "may write only Secrets",
        ),
        (&["patch", "secret", "tenants", "--patch", labelled], "", "may write only Secrets"),
        (&["delete", "secret", "tenants"], "", "may write only Secrets"),
        (&["create", "configmap", "other"], "", "may write only objects with the label"),
        (&["delete", "pod", "other"], "", "may write only Pods"),
        (&["patch", "pod", pod, "--patch", relabelled], "", "may write only Pods"),
        (&["create", "--filename", "-"], &without_pool, "create only those with the label auto.pulumi.com/pool"),
        (&["create", "--filename", "-"], &unlabelled, "may write only objects with the label"),
        (&["delete", "stack", "main"], "", "may delete only Stacks with spec.ttl or spec.expiresAt"),
    ] {
        let response = try_kubectl(&[&as_controller[..], arguments].concat(), input).await;
        let error = response.expect_err("the policy rejects the object");
        assert!(error.contains("ValidatingAdmissionPolicy") && error.contains(words), "{arguments:?}: {error}");
    }
    let elsewhere = ["auth", "can-i", "get", "secrets", "--namespace=default", as_controller[0]];
    let response = try_kubectl(&elsewhere, "").await;
    assert!(response.is_err(), "no permission for Secrets without a RoleBinding: {response:?}");
}

#[test]
fn cross_namespace_sources_and_dependencies_work_when_allowed() {
    run_alone(async || {
        with_other_arguments(async |controller, arguments| {
            in_scene("borrower", async |scene| {
                in_scene("lender", async |lender| {
                    let open = [arguments, &["--no-cross-namespace-refs=false".to_owned()]].concat();
                    controller.start_with(&open, 1).await;
                    check_cross_namespace_references(scene, lender).await;
                })
                .await;
            })
            .await;
        })
        .await;
    });
}

async fn check_cross_namespace_references(scene: &Scene, lender: &Scene) {
    let source = lender.source("app").await;
    let commit = source.push(&program("one").files()).await;
    let mut lent_stack = lender.stack("base", &source);
    lent_stack.spec.suspend = Some(true);
    let base = lender.start(lent_stack).await;
    let namespace = Some(lender.namespace.clone());
    let mut stack = scene.stack("main", &source);
    stack.spec.flux_source.as_mut().expect("source reference").source_ref.namespace = namespace.clone();
    stack.spec.depends_on = vec![DependencyReference { name: "base".to_owned(), namespace, ready_expr: None }];
    let main = scene.start(stack).await;
    let waits = format!("waiting for {}/base: not ready", lender.namespace);
    main.until(&format!("to report that it {waits}"), WaitLimit::Reaction, |stack| {
        has_condition(stack, READY, "False", stack_reason::PREREQUISITE_NOT_SATISFIED)
            && condition(stack, READY).is_some_and(|ready| ready.message.starts_with(&waits))
    })
    .await;
    assert!(main.updates().await.is_empty());

    base.change(json!({"spec": {"suspend": false}})).await;
    main.until_applied(&commit).await;
    base.until_applied(&commit).await;
    let second = source.push(&program("two").files()).await;
    main.until_applied(&second).await;
    assert_eq!(main.log.operations().await, once(&["create step", "update step"]));
}

#[test]
fn each_shard_reconciles_its_own_stacks_and_elects_its_own_leader() {
    run_alone(async || {
        with_other_arguments(async |controller, _| {
            let shards = async || in_scene("shards", async |scene| run_in_shards(controller, scene).await).await;
            run_with_cleanup(shards, async || {
                let shard = ["delete", "deployment", "pulumi-controller-shard1", "--namespace", "flux-system"];
                kubectl(&[&shard[..], &["--ignore-not-found"]].concat(), "").await;
                apply("config/rbac", ("", "")).await;
            })
            .await;
        })
        .await;
    });
}

async fn run_in_shards(controller: &Controller, scene: &Scene) {
    apply("kustomize/overlays/sharded", ("", "")).await;
    let shard = async |replicas: &str| {
        let name = "deployment/pulumi-controller-shard1";
        kubectl(&["scale", name, "--namespace", "flux-system", "--replicas", replicas], "").await;
    };
    shard("0").await;
    controller.until_available().await;
    let source = scene.source("app").await;
    let commit = source.push(&program("one").files()).await;
    let mut labelled = scene.stack("labelled", &source);
    labelled.labels_mut().insert("sharding.fluxcd.io/key".to_owned(), "shard1".to_owned());
    let labelled = scene.start(labelled).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.until_applied(&commit).await;
    let message = labelled.get().await.status.map(|status| status.conditions).unwrap_or_default();
    assert_eq!(message, [], "its shard has no controller");
    shard("1").await;
    labelled.until_applied(&commit).await;
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), "flux-system");
    // Each value consists of the first eight characters of a selector's SHA-256 digest. The command for the first
    // selector is `printf %s '!sharding.fluxcd.io/key' | sha256sum | cut -c 1-8`. The second value belongs to the
    // selector of shard1.
    for end in ["42da7484", "73fdc1be"] {
        let name = format!("pulumi-controller-leader-election-{end}");
        let lease = api_call(format!("reading the Lease {name}"), leases.get(&name)).await;
        let holder = lease.spec.and_then(|lease| lease.holder_identity);
        assert!(holder.is_some_and(|holder| !holder.is_empty()), "{name} has a holder");
    }
    for stack in [&main, &labelled] {
        stack.delete().await;
        stack.until_gone().await;
    }
}
