//! Tests drift of real objects, and the correction of drift with an approval.

use pulumi_controller::api::conditions::{DRIFTED, READY, drift_reason, stack_reason};
use serde_json::json;

use super::{change, deploy_web, read};
use crate::harness::{WaitLimit, condition, has_condition, run, run_program};

#[test]
fn drift_is_found_by_property_and_corrected_after_an_approval() {
    run("provider-drift", async |scene| {
        let web = deploy_web(scene).await;
        assert_eq!(read(scene, "deployment/web", "{.status.availableReplicas}").await, "1");
        change(scene, "deployment/web", json!({"spec": {"replicas": 2}})).await;
        change(scene, "configmap/web", json!({"data": {"index.html": "changed by hand"}})).await;
        web.change(json!({"spec": {"drift": {"interval": "1m"}}})).await;
        let drifted = web
            .until("to report drift", WaitLimit::Long, |stack| {
                has_condition(stack, DRIFTED, "True", drift_reason::DRIFT_DETECTED)
            })
            .await;
        let drift = drifted.status.clone().and_then(|status| status.drift).expect("a result");
        let mut properties: Vec<(String, Vec<String>)> = drift
            .resources
            .iter()
            .map(|resource| {
                (resource.urn.rsplit("::").next().unwrap_or_default().to_owned(), resource.properties.clone())
            })
            .collect();
        properties.sort();
        let message = condition(&drifted, DRIFTED).expect("Drifted condition").message.clone();
        assert_eq!(properties.len(), 2, "{message}");
        assert_eq!(properties[0].0, "page");
        assert!(properties[0].1.iter().any(|path| path.contains("index.html")), "{message}");
        assert_eq!(properties[1].0, "server");
        assert!(properties[1].1.iter().any(|path| path == "spec.replicas"), "{message}");
        assert_eq!(read(scene, "deployment/web", "{.spec.replicas}").await, "2", "a check changes nothing");

        web.change(json!({"spec": {"approval": {"mode": "Always"}, "drift": {"mode": "Correct"}}})).await;
        web.until("to wait for an approval", WaitLimit::Long, |stack| {
            has_condition(stack, READY, "False", stack_reason::AWAITING_APPROVAL)
        })
        .await;
        assert_eq!(read(scene, "deployment/web", "{.spec.replicas}").await, "2", "a plan changes nothing");
        let events = web.until_event("ApprovalRequired").await;
        let event = events.iter().rfind(|event| event.reason.as_deref() == Some("ApprovalRequired"));
        let message = event.and_then(|event| event.message.clone()).expect("a message");
        let (_, command) = message.split_once("To approve, run:\n").expect("a command");
        run_program("sh", &["-c", command], "").await;
        web.until("to have corrected the drift", WaitLimit::Long, |stack| {
            has_condition(stack, DRIFTED, "False", drift_reason::CORRECTED)
        })
        .await;
        assert_eq!(read(scene, "deployment/web", "{.spec.replicas}").await, "1");
        assert_eq!(read(scene, "configmap/web", "{.data.index\\.html}").await, "Hello from Kubernetes");
        web.change(json!({"spec": {"approval": null, "drift": null}})).await;
    });
}
