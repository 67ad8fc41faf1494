//! Tests for the forecast of a Stack's run.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::api::auto::{RunBinding, UpdateSpec, UpdateStatus};

fn limits() -> Limits {
    Limits { all: 2, each_namespace: 2, each_node: 1 }
}

fn update(name: &str) -> Update {
    let mut update = Update::new(name, UpdateSpec { workspace_name: "app".to_owned(), ..UpdateSpec::default() });
    (update.metadata.namespace, update.metadata.uid) = (Some("apps".to_owned()), Some(name.to_owned()));
    update
}

/// Returns an Update whose run started in this minute on this node.
fn started(minute: i64, node: &str) -> Arc<Update> {
    let run = RunBinding { node_name: node.to_owned(), ..RunBinding::default() };
    let start_time = Timestamp::from_second(60 * minute).ok().map(Time);
    let status = Some(UpdateStatus { run: Some(run), start_time, ..UpdateStatus::default() });
    Arc::new(Update { status, ..update(&format!("app-{minute}")) })
}

#[test]
fn a_run_is_expected_on_the_node_of_the_last_run() {
    let queued = || Arc::new(update("app-9"));
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
    let new = update("app-3");
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
