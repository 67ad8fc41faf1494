//! Tests the deletion of a namespace that contains both a Stack and the objects of its program.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use pulumi_controller::api::conditions::{STALLED, stack_reason};
use serde_json::json;

use super::{deploy_web, read};
use crate::harness::{Poll, Scene, WaitLimit, api_call, condition, run, wait_until};

#[test]
fn the_deletion_of_a_namespace_deletes_the_objects_and_explains_the_remaining_stack() {
    run("provider-namespaces", async |_| {
        let scene = Scene::new("provider-namespace").await;
        let web = deploy_web(&scene).await;
        let namespaces: Api<Namespace> = Api::all(scene.client.clone());
        let action = format!("deleting the namespace {}", scene.namespace);
        api_call(action, namespaces.delete(&scene.namespace, &DeleteParams::default())).await;
        let stack = web
            .until("to report that its namespace is terminating", WaitLimit::Run, |stack| {
                condition(stack, STALLED).is_some_and(|stalled| stalled.reason == stack_reason::NAMESPACE_TERMINATING)
            })
            .await;
        let message = condition(&stack, STALLED).expect("Stalled condition").message.clone();
        wait_until("the objects of the program to be deleted", WaitLimit::Run, async || {
            let objects = ["deployment/web", "service/web", "configmap/web", "serviceaccount/web", "role/web"];
            let mut left = Vec::new();
            for object in objects {
                left.push(read(&scene, object, "{.metadata.name}").await);
            }
            if left.concat().is_empty() { Poll::Found(()) } else { Poll::NotYet(left.join(", ")) }
        })
        .await;
        println!("{message}");
        web.change(json!({"spec": {"destroyOnFinalize": false}})).await;
        wait_until("the namespace to be deleted", WaitLimit::Run, async || {
            match namespaces.get_opt(&scene.namespace).await {
                Ok(None) => Poll::Found(()),
                Ok(Some(namespace)) => Poll::NotYet(format!("{:?}", namespace.status)),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
    });
}
