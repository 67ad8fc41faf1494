//! Tests the run settings of a Stack: options, TTL and log level.

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::conditions::STALLED;
use serde_json::json;

use crate::harness::{Poll, Program, WaitLimit, api_call, condition, once, run, wait_until};

#[test]
fn the_update_template_sets_run_options_and_ttl() {
    run("update-template", async |scene| {
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("template").step("step", json!({"value": "one"})).files()).await;
        let mut stack = scene.stack("main", &source);
        stack.spec.update_template = Some(json!({"spec": {"type": "destroy"}}));
        let main = scene.start(stack).await;
        main.until("to report the invalid field of the template", WaitLimit::Run, |stack| {
            condition(stack, STALLED)
                .is_some_and(|stalled| stalled.message == "spec.updateTemplate.spec.type is not supported")
        })
        .await;
        assert!(main.updates().await.is_empty(), "no Update is created");

        let template = json!({
            "metadata": {"labels": {"team": "a"}},
            "spec": {"type": null, "parallel": 1, "message": "by the template", "ttlAfterCompleted": "5s"},
        });
        main.change(json!({"spec": {"updateTemplate": template, "pulumiLogLevel": 3}})).await;
        main.until_applied(&commit).await;
        let seen = scene.timeline.states_of::<Update>();
        let update = seen.last().expect("a run");
        assert_eq!(update.labels().get("team").map(String::as_str), Some("a"));
        assert_eq!((update.spec.parallel, update.spec.message.as_deref()), (Some(1), Some("by the template")));
        let log = main.pod_log("pulumi").await;
        assert!(log.contains(r#""v":3"#), "the log contains no line of the requested level:\n{log}");
        wait_until("the Update to be deleted", WaitLimit::Reaction, async || match main.updates().await.len() {
            0 => Poll::Found(()),
            count => Poll::NotYet(format!("{count} Updates")),
        })
        .await;
        wait_until("one event", WaitLimit::Reaction, async || {
            let events = api_call("listing events", scene.api::<Event>().list(&Default::default())).await.items;
            match events.iter().filter(|event| event.reason.as_deref() == Some("UpdateExpired")).count() {
                1 => Poll::Found(()),
                count => Poll::NotYet(format!("{count} events")),
            }
        })
        .await;
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}
