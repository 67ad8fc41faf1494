//! Tests CustomResourceDefinitions that are older than the controller. No other test runs at the same time.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{Controller, Poll, WaitLimit, api_call, client, run_alone, run_with_cleanup, wait_until};

const DEFINITION: &str = "stacks.pulumi.com";
/// Status field that the older CustomResourceDefinition does not contain.
const FIELD: &str = "pendingSince";

#[test]
fn an_outdated_crd_is_reported_and_prevents_leading() {
    run_alone(async || {
        let client = client().await;
        let controller = Controller::new(&client);
        let definitions: Api<CustomResourceDefinition> = Api::all(client);
        let original = json!(api_call("reading the definition", definitions.get(DEFINITION)).await);
        run_with_cleanup(
            async || {
                let old = controller.until_leader_other_than("").await;
                set_versions(&definitions, &older(&original)).await;
                controller.kill_pod(&old).await;
                wait_until("the new controller to report the missing field", WaitLimit::Reaction, async || {
                    let lines = controller.log_lines(FIELD).await;
                    if lines.is_empty() { Poll::NotYet("nothing is logged".to_owned()) } else { Poll::Found(()) }
                })
                .await;
                let pod = controller.pod().await;
                assert_ne!(pod.name_any(), old);
                let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
                let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
                assert!(ready.is_some_and(|ready| ready.status == "False"), "{conditions:?}");
            },
            async || {
                set_versions(&definitions, &original).await;
                controller.until_available().await;
                controller.until_leader_other_than("").await;
            },
        )
        .await;
    });
}

fn older(definition: &Value) -> Value {
    let mut definition = definition.clone();
    let versions = definition["spec"]["versions"].as_array_mut().expect("a list");
    let stored = versions.iter_mut().find(|version| version["storage"] == true).expect("a stored version");
    let status = &mut stored["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    status.as_object_mut().expect("an object").remove(FIELD).expect("the field exists");
    definition
}

async fn set_versions(definitions: &Api<CustomResourceDefinition>, definition: &Value) {
    let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
    api_call("changing the definition", definitions.patch(DEFINITION, &PatchParams::default(), &patch)).await;
}
