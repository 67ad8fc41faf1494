//! Tests the installation of the CustomResourceDefinitions.

use std::path::Path;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::harness::{Poll, Scene, WaitLimit, api_call, kubectl, run, wait_until};

/// Client-side apply stores the whole object in an annotation, whose size the API server limits.
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

/// The built-in roles `view` and `edit` include the kinds of the project.
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
