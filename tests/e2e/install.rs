//! Tests installing the CustomResourceDefinitions.

use std::path::Path;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::RoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::harness::{Poll, Scene, WaitLimit, api_call, kubectl, run, wait_until};

/// Client-side apply stores the whole object in an annotation. The API server limits the size of annotations.
#[test]
fn the_crds_can_be_applied_with_plain_kubectl_apply() {
    run("install", async |_| {
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/crd");
        let out = kubectl(&["apply", "--dry-run=server", "--kustomize", &definitions.display().to_string()], "").await;
        for definition in ["stacks.pulumi.com", "workspaces.auto.pulumi.com", "updates.auto.pulumi.com"] {
            assert!(out.contains(definition), "{definition} is applied: {out}");
        }
    });
}

/// Like Helm, client-side apply upgrades a CustomResourceDefinition with a strategic merge patch.
#[test]
fn a_client_side_apply_upgrades_a_crd_without_losing_fields() {
    run("upgrade-crd", async |scene| {
        let name = "upgradedstacks.example.com";
        let mut definition = renamed_stack_definition(name);
        let apply = async |definition: &Value| {
            kubectl(&["apply", "--server-side=false", "--filename", "-"], &definition.to_string()).await;
            let definitions: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
            let applied = api_call(format!("reading {name}"), definitions.get(name)).await;
            serde_json::to_value(&applied.spec.versions).expect("valid JSON")
        };
        let new = apply(&definition).await;
        let field = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/workspaceTemplate";
        definition.pointer_mut(field).expect("the field")["description"] = json!("Changed.");
        let upgraded = apply(&definition).await;
        kubectl(&["delete", "customresourcedefinition", name], "").await;
        let mut expected = json!({"spec": {"versions": new}});
        expected.pointer_mut(field).expect("the field")["description"] = json!("Changed.");
        assert!(upgraded == expected["spec"]["versions"], "the upgrade changes other fields: {upgraded}");
    });
}

/// Returns the CustomResourceDefinition for Stacks under a different name, because the test must not change the
/// installed definition.
fn renamed_stack_definition(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/crd/pulumi.com_stacks.yaml");
    let text = std::fs::read_to_string(&path).expect("readable definition");
    let mut definition: Value = serde_saphyr::from_str(&text).expect("valid YAML");
    let (plural, group) = name.split_once('.').expect("a name with a group");
    definition["metadata"] = json!({"name": name});
    definition["spec"]["group"] = json!(group);
    definition["spec"]["names"] = json!({"kind": "UpgradedStack", "plural": plural});
    definition["spec"]["conversion"] = json!({"strategy": "None"});
    definition
}

/// The built-in roles `view` and `edit` include the kinds of this project.
#[test]
fn the_view_and_edit_roles_include_the_project_kinds() {
    run("roles", async |scene| {
        for role in ["view", "edit"] {
            let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": role});
            let of = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
            let binding = json!({"metadata": {"name": role}, "roleRef": of, "subjects": [user]});
            scene.create::<RoleBinding>(binding).await;
        }
        let kinds = [("pulumi.com", "stacks"), ("pulumi.com", "programs")];
        let kinds = kinds.into_iter().chain([("auto.pulumi.com", "workspaces"), ("auto.pulumi.com", "updates")]);
        for (group, resource) in kinds {
            let rows =
                [("view", "list", true), ("view", "create", false), ("edit", "create", true), ("edit", "delete", true)];
            for (user, verb, expected) in rows {
                // The API server aggregates these roles asynchronously.
                wait_until(format!("{user} may {verb} {resource}: {expected}"), WaitLimit::Reaction, async || {
                    let allowed = is_allowed(scene, user, verb, group, resource).await;
                    if allowed == expected { Poll::Found(()) } else { Poll::NotYet(format!("{allowed}")) }
                })
                .await;
            }
        }
    });
}

async fn is_allowed(scene: &Scene, user: &str, verb: &str, group: &str, resource: &str) -> bool {
    let attributes = ResourceAttributes {
        namespace: Some(scene.namespace.clone()),
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user.to_owned()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let reviews: Api<SubjectAccessReview> = Api::all(scene.client.clone());
    let action = format!("checking whether {user} may {verb} {resource}");
    let response = api_call(action, reviews.create(&PostParams::default(), &review)).await;
    response.status.is_some_and(|status| status.allowed)
}
