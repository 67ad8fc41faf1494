//! Tests for the forecast of a Stack's run.

use serde_json::json;

use super::*;

fn limits() -> Limits {
    Limits { all: 2, each_namespace: 2, each_node: 1 }
}

fn update(name: &str, status: serde_json::Value) -> Update {
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {"namespace": "apps", "name": name, "uid": name},
        "spec": {"workspaceName": "app", "stackName": "dev", "type": "up"},
        "status": status,
    }))
    .expect("valid Update")
}

/// Returns an Update whose run started in this minute on this node.
fn started(minute: u8, node: &str) -> Arc<Update> {
    let time = format!("2026-01-01T12:{minute:02}:00Z");
    let status = json!({"startTime": time, "run": {"podUID": "pod", "agentStartID": "agent", "nodeName": node}});
    Arc::new(update(&format!("app-{minute}"), status))
}

#[test]
fn a_run_is_expected_on_the_node_of_the_last_run() {
    let queued = || Arc::new(update("app-9", json!({})));
    let rows = [
        (vec![], ""),
        (vec![queued()], ""),
        (vec![started(1, "a"), queued()], "a"),
        (vec![started(2, "b"), started(1, "a")], "b"),
    ];
    for (siblings, expected) in rows {
        assert_eq!(last_node(&siblings), expected, "{siblings:?}");
    }
}

#[tokio::test]
async fn the_forecast_names_the_full_node_unless_the_update_controller_reports_the_wait() {
    let groups = BTreeMap::from([("aws".to_owned(), 3)]);
    let queue = RunQueue::new(limits(), groups, Metrics::default());
    let open = Run { uid: "open".to_owned(), namespace: "other".to_owned(), node: "a".to_owned(), ..Run::default() };
    let _permit = queue.run_limiter.adopt(&open);
    let new = update("app-3", json!({}));
    let share = |annotations: &[(&str, &str)]| {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        RunShare::of_namespace("apps", &annotations)
    };
    let forecast = |node: &str, annotations: &[(&str, &str)]| {
        queue.forecast(&new, &[started(1, node)], &share(annotations)).map(|wait| wait.to_string())
    };
    let full = "waiting for a run slot: 1 of 1 in use on node a (--max-concurrent-runs-per-node)";
    assert_eq!(forecast("a", &[]).as_deref(), Some(full));
    assert_eq!(forecast("b", &[]), None);
    assert_eq!(forecast("a", &[("pulumi.com/concurrency-groups", "aws")]).as_deref(), Some(full));
    assert_eq!(forecast("a", &[("pulumi.com/concurrency-groups", "missing")]), None);
    assert_eq!(forecast("a", &[("pulumi.com/max-concurrent-runs", "many")]), None);
    assert_eq!(queue.wait_of(&new), None, "the forecast does not queue the run");
}
