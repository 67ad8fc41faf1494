use std::collections::BTreeSet;
use std::time::Duration;

use prometheus_client::metrics::histogram::exponential_buckets_range;

use super::*;
use crate::telemetry::reconciles::ReconcileResult;
use crate::telemetry::slots::{SlotReport, SlotUse, SlotUses};
use crate::telemetry::stacks::{Violations, Wait};

fn state() -> StackState {
    let (ready, reason) = ("False".to_owned(), "SpecInvalid".to_owned());
    let since = jiff::Timestamp::from_second(1_700_000_000).unwrap();
    StackState {
        ready,
        reason,
        is_failing: true,
        is_reconciling: false,
        wait: Some(Wait { reason: "AwaitingApproval", since }),
        drifted: Some(3),
        drift_check_failed: Some(false),
        outputs_written: Some(false),
        violations: Some(Violations { mandatory: 2, advisory: 1 }),
    }
}

/// Returns metrics with a value for each name, because the encoder omits metrics without values.
fn filled() -> Metrics {
    let metrics = Metrics::default();
    metrics.reconciles().set_max_concurrent("stack", 4);
    metrics.reconciles().set_queue_depth("stack", 2);
    metrics.reconciles().started("stack", &("apps".to_owned(), "web".to_owned()));
    let object = ("Stack", "apps", "web");
    metrics.reconciles().ended("stack", object, ReconcileResult::Error, Duration::from_millis(20));
    metrics.reconciles().panicked("stack");
    metrics.reconciles().stalled("stack");
    metrics.leads("pulumi-controller-leader-election", true);
    metrics.api_request(Some(200), "GET", "10.0.0.1:443");
    metrics.artifact_fetch(FetchResult::Cached);
    metrics.runs().count(3, 1);
    metrics.runs().started("up", Duration::from_secs(20));
    metrics.runs().ended("up", "Succeeded", Duration::from_secs(20));
    metrics.runs().recorded("up", true, Duration::from_secs(50));
    let namespaces = SlotUses::from([("apps".to_owned(), SlotUse { open: 3, queued: 1 })]);
    let groups = SlotUses::from([("aws-prod".to_owned(), SlotUse { open: 1, queued: 1 })]);
    let uses = SlotReport { namespaces, groups, oldest: None };
    metrics.runs().slots().observe(10, move || uses.clone());
    metrics.set_program_count(2);
    metrics.set_stack_count(5);
    metrics.record_stack("apps", "web", state());
    metrics.webhook(WebhookResult::Refused);
    metrics.event_dropped();
    metrics.notification_dropped();
    metrics.history_run(HistoryResult::Stored);
    metrics.spans_exported(2);
    metrics.spans_dropped(1);
    metrics.api_write("apply", "Secret");
    metrics.authority(jiff::Timestamp::from_second(1_800_000_000).ok(), true);
    metrics
}

/// Returns the names of the metrics in Prometheus, where the name of a counter ends with `_total`.
fn names(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| format!("{name}{}", if kind == "counter" { "_total" } else { "" })).collect()
}

#[test]
fn the_documented_metrics_match_the_code() {
    let page = include_str!("../../../docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut documented: BTreeSet<String> = rows.map(|(name, _)| name.to_owned()).collect();
    let found = names(&filled().encode().unwrap());
    // This metric exists only if the number of open files is limited.
    documented.retain(|name| name != "process_max_fds" || found.contains(name));
    assert_eq!(found, documented, "left: the code; right: docs/metrics.md");
}

#[test]
fn metric_names_match_the_names_in_dashboards() {
    let text = filled().encode().unwrap();
    for line in [
        r#"gotk_reconcile_duration_seconds_count{kind="Stack",name="web",namespace="apps"} 1"#,
        r#"gotk_reconcile_duration_seconds_bucket{le="0.01",kind="Stack",name="web",namespace="apps"} 0"#,
        r#"controller_runtime_reconcile_total{controller="stack",result="error"} 1"#,
        r#"controller_runtime_reconcile_errors_total{controller="stack"} 1"#,
        r#"controller_runtime_reconcile_panics_total{controller="stack"} 1"#,
        r#"controller_runtime_terminal_reconcile_errors_total{controller="stack"} 1"#,
        r#"controller_runtime_active_workers{controller="stack"} 0"#,
        r#"controller_runtime_max_concurrent_reconciles{controller="stack"} 4"#,
        r#"workqueue_depth{name="stack",controller="stack"} 2"#,
        r#"workqueue_longest_running_processor_seconds{name="stack",controller="stack"} 0.0"#,
        r#"workqueue_unfinished_work_seconds{name="stack",controller="stack"} 0.0"#,
        r#"workqueue_work_duration_seconds_count{name="stack",controller="stack"} 1"#,
        r#"controller_runtime_reconcile_time_seconds_count{controller="stack"} 1"#,
        r#"leader_election_master_status{name="pulumi-controller-leader-election"} 1"#,
        r#"rest_client_requests_total{code="200",method="GET",host="10.0.0.1:443"} 1"#,
        r#"pulumi_controller_artifact_fetches_total{result="cached"} 1"#,
        "pulumi_controller_runs_open 3",
        "pulumi_controller_runs_waiting 1",
        "pulumi_controller_oldest_queued_run_age_seconds 0.0",
        r#"pulumi_controller_run_wait_seconds_bucket{le="30.0",type="up"} 1"#,
        r#"pulumi_controller_run_duration_seconds_bucket{le="10.0",type="up",outcome="Succeeded"} 0"#,
        r#"pulumi_controller_run_duration_seconds_count{type="up",outcome="Succeeded"} 1"#,
        r#"pulumi_controller_artifact_to_result_seconds_bucket{le="30.0",type="up",result="succeeded"} 0"#,
        r#"pulumi_controller_artifact_to_result_seconds_count{type="up",result="succeeded"} 1"#,
        "pulumi_controller_run_slots 10",
        r#"pulumi_controller_run_slots_used{namespace="apps"} 3"#,
        r#"pulumi_controller_runs_queued{namespace="apps"} 1"#,
        r#"pulumi_controller_stacks{ready="False",reason="SpecInvalid"} 1"#,
        r#"pulumi_controller_stacks_waiting{reason="AwaitingApproval"} 1"#,
        r#"stacks_waiting_since_timestamp_seconds{namespace="apps",name="web",reason="AwaitingApproval"} 1700000000"#,
        r#"stacks_drifted_resources{namespace="apps",name="web"} 3"#,
        r#"stacks_drift_check_failed{namespace="apps",name="web"} 0"#,
        r#"stacks_outputs_written{namespace="apps",name="web"} 0"#,
        r#"stacks_policy_violations{namespace="apps",name="web",level="mandatory"} 2"#,
        r#"stacks_policy_violations{namespace="apps",name="web",level="advisory"} 1"#,
        "programs_active 2",
        "stacks_active 5",
        r#"stacks_failing{namespace="apps",name="web"} 1"#,
        r#"stacks_reconciling{namespace="apps",name="web"} 0"#,
        r#"pulumi_controller_webhooks_total{result="refused"} 1"#,
        "pulumi_controller_events_dropped_total 1",
        r#"pulumi_controller_api_writes_total{verb="apply",kind="Secret"} 1"#,
        "pulumi_controller_authority_expiry_timestamp_seconds 1800000000",
        "pulumi_controller_authority_well 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
        assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "no {name} in\n{text}");
    }
}

#[test]
fn the_series_of_a_deleted_object_are_removed() {
    let metrics = Metrics::default();
    metrics.reconciles().ended("stack", ("Stack", "apps", "web"), ReconcileResult::Success, Duration::ZERO);
    metrics.record_stack("apps", "web", state());
    metrics.forget("Stack", "apps", "web");
    assert!(!metrics.encode().unwrap().contains("web"));
}

/// A Stack has optional time series only for drift checks, written outputs, violations and waits, because each series
/// requires memory.
#[test]
fn a_stack_has_only_the_series_of_the_features_that_it_uses() {
    let metrics = Metrics::default();
    metrics.record_stack("apps", "web", StackState::default());
    let text = metrics.encode().unwrap();
    let of_stack =
        text.lines().filter_map(|line| line.split_once("{namespace=\"apps\",name=\"web\"")).map(|(name, _)| name);
    assert_eq!(of_stack.collect::<Vec<_>>(), ["stacks_failing", "stacks_reconciling"]);
}

#[test]
fn histogram_buckets_range_from_ten_milliseconds_to_half_an_hour() {
    let bounds: Vec<f64> = exponential_buckets_range(0.01, 1800.0, 10).collect();
    assert_eq!(bounds.len(), 10);
    assert!((bounds[0] - 0.01).abs() < 1e-9 && (bounds[9] - 1800.0).abs() < 1e-6, "{bounds:?}");
}
