use serde_json::{Value, json};

use super::*;
use crate::api::auto::{UpdateSpec, UpdateStatus};
use crate::api::pulumi::StackSpec;
use crate::artifact::{Digest, Directory};
use crate::controller::stack::build_update;
use crate::controller::stack::run::current_update;
use crate::source::{Origin, Resolved};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn stack(drift: Value, status: StackStatus) -> Stack {
    let mut stack = Stack::new("web", StackSpec::default());
    stack.metadata.generation = Some(3);
    stack.spec.drift = serde_json::from_value(drift).unwrap();
    stack.status = Some(status);
    stack
}

fn checked(count: i64, second: i64) -> StackDrift {
    StackDrift { last_checked: Some(Time(at(second))), count, ..StackDrift::default() }
}

fn artifact(content: &[u8]) -> Resolved {
    Resolved {
        revision: "main@sha1:a".to_owned(),
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: Digest::of(content),
        directory: Directory::root(),
        origin: Origin::Made(content.to_vec().into()),
    }
}

fn ran(second: i64) -> LastUpdate {
    LastUpdate { last_resync_time: Some(Time(at(second))), ..LastUpdate::default() }
}

#[test]
fn a_drift_check_is_due_after_the_interval_since_the_last_run_or_check() {
    let of = |drift: Value, last: i64, check_at: Option<i64>, now: i64| {
        let drift_status = check_at.map(|second| Box::new(checked(0, second)));
        let status = StackStatus { last_update: Some(ran(last)), drift: drift_status, ..StackStatus::default() };
        check(&stack(drift, status), UpdateKind::Up, at(now))
    };
    let after = |seconds| Check::After(SignedDuration::from_secs(seconds));
    let hourly = || json!({"interval": "1h"});
    assert_eq!(of(hourly(), 100, None, 200), after(3500));
    assert_eq!(of(hourly(), 100, None, 3700), Check::Now("Drift check after 1h0m0s".to_owned()));
    assert_eq!(of(hourly(), 100, Some(3700), 3800), after(3500), "the last check counts");
    assert_eq!(of(hourly(), 5000, Some(3700), 5100), after(3500), "the last run counts");
    assert_eq!(of(json!({"interval": "1s"}), 100, None, 130), after(30), "the minimum is a minute");
    assert_eq!(of(json!({"interval": "0s"}), 100, None, 9000), Check::Never);
    assert_eq!(of(Value::Null, 100, None, 9000), Check::Never);
    let status = StackStatus { last_update: Some(ran(0)), ..StackStatus::default() };
    let deleted = check(&stack(hourly(), status), UpdateKind::Destroy, at(9000));
    assert_eq!(deleted, Check::Never);
}

#[test]
fn a_drift_check_is_due_at_the_first_scheduled_time_since_the_last_run_or_check() {
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    let daily = || json!({"schedule": {"cron": "30 2 * * *"}});
    let berlin = || json!({"schedule": {"cron": "30 2 * * *", "timeZone": "Europe/Berlin"}});
    let lord_howe = || json!({"schedule": {"cron": "0 3 * * *", "timeZone": "Australia/Lord_Howe"}});
    let both = |interval: &str| json!({"interval": interval, "schedule": {"cron": "30 2 * * *"}});
    // Columns: the settings, the time of the last run, the current time, and either the seconds until the check or the
    // check's message.
    let rows = [
        (daily(), "2026-11-26T02:00:00Z", "2026-11-26T02:20:00Z", Err(600)),
        (daily(), "2026-11-26T02:00:00Z", "2026-11-26T02:30:00Z", Ok("Drift check scheduled for 2026-11-26T02:30:00Z")),
        (daily(), "2026-11-24T02:00:00Z", "2026-11-26T12:00:00Z", Ok("Drift check scheduled for 2026-11-24T02:30:00Z")),
        (daily(), "2026-11-26T02:30:00Z", "2026-11-26T02:30:00Z", Err(86400)),
        // The minimum time between a run and a check is one minute.
        (daily(), "2026-11-26T02:29:50Z", "2026-11-26T02:30:00Z", Err(50)),
        (berlin(), "2026-11-26T00:00:00Z", "2026-11-26T01:29:00Z", Err(60)),
        // Because of daylight saving time, 02:30 does not exist on 2026-03-29 and occurs twice on 2026-10-25.
        (berlin(), "2026-03-29T00:30:00Z", "2026-03-29T01:29:00Z", Err(60)),
        (berlin(), "2026-10-25T00:00:00Z", "2026-10-25T00:29:00Z", Err(60)),
        (berlin(), "2026-10-25T00:31:00Z", "2026-10-25T01:29:00Z", Err(86460)),
        (berlin(), "2026-10-25T01:29:00Z", "2026-10-25T01:29:00Z", Err(86460)),
        (lord_howe(), "2027-04-03T13:00:00Z", "2027-04-03T16:29:00Z", Err(60)),
        // With an interval and a schedule, the earlier check is due first.
        (both("1h"), "2026-11-26T02:00:00Z", "2026-11-26T02:20:00Z", Err(600)),
        (both("10m"), "2026-11-26T02:00:00Z", "2026-11-26T02:20:00Z", Ok("Drift check after 10m0s")),
        (both("0s"), "2026-11-26T02:00:00Z", "2026-11-26T02:20:00Z", Err(600)),
    ];
    for (settings, last, now, expected) in rows {
        let run = LastUpdate { last_resync_time: Some(Time(time(last))), ..LastUpdate::default() };
        let status = StackStatus { last_update: Some(run), ..StackStatus::default() };
        let expected = match expected {
            Ok(message) => Check::Now(message.to_owned()),
            Err(seconds) => Check::After(SignedDuration::from_secs(seconds)),
        };
        assert_eq!(check(&stack(settings.clone(), status), UpdateKind::Up, time(now)), expected, "{settings} at {now}");
    }
    let never = stack(json!({"schedule": {"cron": "61 2 * * *"}}), StackStatus::default());
    assert_eq!(check(&never, UpdateKind::Up, at(0)), Check::Never, "an invalid time");
    let first = check(&stack(daily(), StackStatus::default()), UpdateKind::Up, at(0));
    assert_eq!(first, Check::Now("First drift check".to_owned()));
}

#[test]
fn invalid_times_are_errors_with_the_path_of_the_field() {
    let cron = |cron: &str| json!({"schedule": {"cron": cron}});
    // Columns: the drift check settings, and the error.
    let rows = [
        (Value::Null, None),
        (json!({"interval": "1h"}), None),
        (cron("30 2 * * *"), None),
        (cron("*/15 8-17 * JAN,FEB MON-FRI"), None),
        (cron("0 0 29 2 *"), None),
        (json!({}), Some(DriftPolicy::WITHOUT_TIME)),
        (json!({"interval": "0s"}), Some(DriftPolicy::WITHOUT_TIME)),
        (json!({"interval": "10"}), Some("invalid spec.drift.interval: \"10\" is not a duration such as 1h30m or 45s")),
        (
            cron("61 2 * * *"),
            Some("invalid spec.drift.schedule.cron: \"61 2 * * *\": value must be in range 0..=59; found 61"),
        ),
        (
            cron("@daily"),
            Some(
                "invalid spec.drift.schedule.cron: \"@daily\": 1 field(s); specify minute, hour, day of the month, month \
                 and day of the week",
            ),
        ),
        (cron("a 2 * * *"), Some("invalid spec.drift.schedule.cron: \"a 2 * * *\": malformed expression")),
        (
            cron("0 0 30 2 *"),
            Some("invalid spec.drift.schedule.cron: \"0 0 30 2 *\" matches no date; change the day or the month"),
        ),
        (
            json!({"schedule": {"cron": "30 2 * * *", "timeZone": "Europe/Berln"}}),
            Some(
                "invalid spec.drift.schedule.timeZone: unknown time zone \"Europe/Berln\"; use a name of the IANA \
                 database, such as Europe/Berlin",
            ),
        ),
    ];
    for (settings, expected) in rows {
        let stack = stack(settings.clone(), StackStatus::default());
        let error = stack.spec.drift.as_deref().and_then(|policy| check_policy(policy).err());
        assert_eq!(error.as_deref(), expected, "{settings}");
    }
}

#[test]
fn an_invalid_policy_is_reported_and_starts_no_checks() {
    let invalid = || json!({"interval": "1h", "mode": "Correct", "ignore": [{"type": "*********"}]});
    let found = StackStatus { drift: Some(Box::new(checked(1, 0))), ..StackStatus::default() };
    let mut broken = stack(invalid(), found);
    assert_eq!(check(&broken, UpdateKind::Up, at(0)), Check::Never);
    assert!(!is_correction_due(&broken), "an invalid rule could hide a resource that must not be corrected");
    let mut status = broken.status.clone().unwrap();
    keep(&broken, &mut status, at(0));
    let drifted = conditions::find(&status.conditions, DRIFTED).expect("a condition");
    assert_eq!((drifted.status.as_str(), drifted.reason.as_str()), ("Unknown", "SpecInvalid"));
    assert!(drifted.message.starts_with("no drift checks start: invalid spec.drift.ignore[0].type"), "{drifted:?}");
    let event = invalid_event(&broken, &status);
    assert_eq!(event.map(|event| event.reason), Some("StackConfigInvalid".to_owned()));
    broken.status = Some(status.clone());
    assert!(invalid_event(&broken, &status).is_none(), "the same message is reported once");
    broken.spec.drift = serde_json::from_value(json!({"interval": "1h"})).unwrap();
    keep(&broken, &mut status, at(0));
    assert_eq!(conditions::find(&status.conditions, DRIFTED), None, "the next check sets the condition");
}

#[test]
fn drift_is_corrected_once_and_only_if_no_other_run_is_due() {
    let due_with = |mode: &str, drift: Option<StackDrift>, due: Due| {
        let status = StackStatus { drift: drift.map(Box::new), ..StackStatus::default() };
        with_correction(&stack(json!({"interval": "1h", "mode": mode}), status), UpdateKind::Up, due)
    };
    let done = || Due::Done(None);
    assert!(matches!(due_with("Correct", Some(checked(1, 0)), done()), Due::Now(_)));
    assert_eq!(due_with("Detect", Some(checked(1, 0)), done()), done());
    assert_eq!(due_with("Correct", Some(checked(0, 0)), done()), done());
    assert_eq!(due_with("Correct", None, done()), done());
    let requested = StackDrift { correction_requested: Some(true), ..checked(1, 0) };
    assert_eq!(due_with("Correct", Some(requested), done()), done());
    let waits = || Due::After(SignedDuration::from_secs(9));
    assert_eq!(
        due_with("Correct", Some(checked(1, 0)), waits()),
        waits(),
        "a failed correction is retried with backoff"
    );
}

fn resource(kind: &str, operation: &str, properties: &[&str]) -> PlannedResource {
    PlannedResource {
        urn: format!("urn:pulumi:dev::web::{kind}::main"),
        operation: operation.to_owned(),
        properties: properties.iter().map(|property| (*property).to_owned()).collect(),
    }
}

#[test]
fn ignore_rules_remove_matching_differences() {
    let remaining_with = |rules: Value, resource: &PlannedResource| {
        let rules: Vec<DriftIgnoreRule> = serde_json::from_value(rules).unwrap();
        remaining(&rules, resource).map(|resource| resource.properties)
    };
    let group = resource("aws:autoscaling/group:Group", "update", &["desiredCapacity", "tags.owner"]);
    let properties = |list: &[&str]| Some(list.iter().map(|property| (*property).to_owned()).collect::<Vec<_>>());
    for (rules, expected) in [
        (json!([]), properties(&["desiredCapacity", "tags.owner"])),
        (json!([{"property": "desiredCapacity"}]), properties(&["tags.owner"])),
        (json!([{"property": "desiredCapacity"}, {"property": "tags.*"}]), None),
        (json!([{"type": "aws:autoscaling/*"}]), None),
        (json!([{"type": "aws:s3/*"}]), properties(&["desiredCapacity", "tags.owner"])),
        (json!([{"urn": "urn:pulumi:*::main"}]), None),
        (json!([{"urn": "urn:pulumi:*::other", "property": "*"}]), properties(&["desiredCapacity", "tags.owner"])),
    ] {
        assert_eq!(remaining_with(rules.clone(), &group), expected, "{rules}");
    }
    let deleted = resource("aws:s3/bucket:Bucket", "delete", &[]);
    assert!(
        remaining_with(json!([{"property": "*"}]), &deleted).is_some(),
        "a deletion is not a difference of a property"
    );
    assert!(remaining_with(json!([{"type": "aws:s3/*"}]), &deleted).is_none());
    let many = |count: usize| resource("aws:s3/bucket:Bucket", "update", &vec!["tags.owner"; count]);
    let tags = || json!([{"property": "tags.*"}]);
    assert_eq!(remaining_with(tags(), &many(19)), None);
    assert_eq!(remaining_with(tags(), &many(20)), properties(&[]), "the list can be truncated");
    assert_eq!(remaining_with(json!([{"property": "*"}]), &many(20)), None);
    let unknown = resource("aws:s3/bucket:Bucket", "update", &[]);
    assert!(remaining_with(json!([{"property": "*"}]), &unknown).is_some(), "the differing properties are unknown");
}

#[test]
fn a_missing_resource_that_the_program_creates_again_counts_once() {
    let (missing, create) = (resource("a:b:C", "missing", &[]), resource("a:b:C", "create", &[]));
    let other = resource("a:b:D", "missing", &[]);
    let plan = UpdatePlan { resources: vec![missing, other, create], resource_count: 5, file_digest: None };
    let drift = found(None, &plan);
    let operations: Vec<&str> = drift.resources.iter().map(|resource| resource.operation.as_str()).collect();
    assert_eq!((drift.count, drift.ignored, operations), (4, 0, vec!["missing", "create"]));
}

fn update(plan: Option<UpdatePlan>, failure: Option<(&str, &str)>) -> Update {
    let mut update = Update::new("web-7", UpdateSpec::default());
    let mut status = UpdateStatus { plan, ..UpdateStatus::default() };
    if let Some((reason, message)) = failure {
        let condition = ConditionUpdate { kind: FAILED, status: Status::True, reason, message };
        conditions::set(&mut status.conditions, &condition, 1, at(1));
    }
    update.status = Some(status);
    update
}

fn drifted(status: &StackStatus) -> (String, String, String) {
    let condition = conditions::find(&status.conditions, DRIFTED).unwrap();
    (condition.status.clone(), condition.reason.clone(), condition.message.clone())
}

#[test]
fn a_provider_with_new_settings_is_not_drift() {
    let provider = |operation| resource("pulumi:providers:aws", operation, &["token"]);
    let plan = |resources: Vec<PlannedResource>| {
        let resource_count = i64::try_from(resources.len()).unwrap();
        found(None, &UpdatePlan { resources, resource_count, file_digest: None })
    };
    let drift = plan(vec![provider("update"), resource("x:y:Z", "update", &["tags"])]);
    assert_eq!((drift.count, drift.ignored, drift.resources.len()), (1, 0, 1));
    assert_eq!(plan(vec![provider("update")]), StackDrift::default());
    assert_eq!(plan(vec![provider("delete")]).count, 1);
}

#[test]
fn the_result_of_a_check_is_in_the_status_and_the_condition() {
    let stack = stack(json!({"interval": "1h", "ignore": [{"type": "a:b:C"}]}), StackStatus::default());
    let plan = UpdatePlan {
        resources: vec![resource("x:y:Z", "update", &["tags"]), resource("a:b:C", "update", &["size"])],
        resource_count: 4,
        file_digest: None,
    };
    let mut status = StackStatus::default();
    record(&stack, &mut status, &update(Some(plan), None), at(50));
    let drift = status.drift.clone().unwrap();
    assert_eq!((drift.count, drift.ignored, drift.resources.len()), (3, 1, 1));
    assert_eq!((drift.update_name.as_str(), drift.last_checked), ("web-7", Some(Time(at(50)))));
    let message = "3 resource(s) differ from the state: update urn:pulumi:dev::web::x:y:Z::main (tags) and 2 more";
    assert_eq!(drifted(&status), ("True".to_owned(), "DriftDetected".to_owned(), message.to_owned()));

    record(&stack, &mut status, &update(None, Some(("UpdateFailed", "no credentials"))), at(60));
    let failed = status.drift.clone().unwrap();
    assert_eq!((failed.count, failed.message.as_deref()), (3, Some("no credentials")), "the earlier result is kept");
    assert_eq!(drifted(&status).0, "Unknown");

    record(&stack, &mut status, &update(None, Some(("Canceled", "the run exceeded its timeout"))), at(70));
    let timed_out = status.drift.clone().unwrap();
    assert_eq!(timed_out.message.as_deref(), Some("the run exceeded its timeout"), "no user canceled the check");

    record(&stack, &mut status, &update(None, None), at(80));
    assert_eq!(drifted(&status).1, "NoDrift");
    keep(&stack, &mut status, at(0));
    assert_eq!(conditions::find(&status.conditions, DRIFTED).and_then(|c| c.observed_generation), Some(3));
    keep(&super::tests::stack(Value::Null, StackStatus::default()), &mut status, at(0));
    assert_eq!((status.drift, conditions::find(&status.conditions, DRIFTED)), (None, None));
}

#[test]
fn a_check_that_a_user_cancels_is_repeated_after_the_interval() {
    let stack = stack(json!({"interval": "1h"}), StackStatus::default());
    let earlier = || Some(Box::new(StackDrift { update_name: "web-6".to_owned(), ..checked(2, 50) }));
    // Columns: the cause, the value of the annotation, whether the Update is deleted, and whether a user canceled the
    // check.
    let rows = [
        ("annotation", Some("now"), false, true),
        ("deletion", None, true, true),
        ("another run is due", Some(SUPERSEDED), false, false),
        ("another run is due, and a deletion", Some(SUPERSEDED), true, false),
    ];
    for (name, value, is_deleted, by_user) in rows {
        for before in [None, earlier()] {
            let mut update = update(None, Some(("Canceled", "the run was canceled")));
            let annotation = |value: &str| [(names::ANNOTATION_CANCEL.to_owned(), value.to_owned())].into();
            update.metadata.annotations = value.map(annotation);
            update.metadata.deletion_timestamp = is_deleted.then(|| Time(at(8000)));
            let last_update = Some(ran(50));
            let mut status = StackStatus { last_update, drift: before.clone(), ..StackStatus::default() };
            record(&stack, &mut status, &update, at(9000));
            assert!(status.conditions.is_empty(), "{name}");
            let mut expected = before;
            if by_user {
                let first = || Box::new(StackDrift { update_name: "web-7".to_owned(), ..StackDrift::default() });
                expected.get_or_insert_with(first).last_checked = Some(Time(at(9000)));
            }
            assert_eq!(status.drift, expected, "{name}");
            let next = check(&Stack { status: Some(status), ..stack.clone() }, UpdateKind::Up, at(9000));
            assert_eq!(next == Check::After(SignedDuration::from_hours(1)), by_user, "{name}: {next:?}");
        }
    }
}

#[test]
fn only_a_successful_update_with_a_refresh_corrects_drift() {
    let stack = stack(json!({"interval": "1h"}), StackStatus::default());
    let after = |kind, refresh, reason: Option<&str>| {
        let mut status = StackStatus { drift: Some(Box::new(checked(2, 1))), ..StackStatus::default() };
        let current = CurrentUpdate { kind, refresh, ..CurrentUpdate::default() };
        let last = LastUpdate { reason: reason.map(str::to_owned), ..LastUpdate::default() };
        record_correction(&stack, &mut status, &current, &last, at(9));
        let drift = status.drift.unwrap();
        (drift.count, drift.correction_requested)
    };
    assert_eq!(after(UpdateKind::Up, Some(true), None), (0, Some(true)));
    assert_eq!(after(UpdateKind::Up, None, None), (2, None), "the run did not refresh the state");
    assert_eq!(after(UpdateKind::Up, Some(true), Some("UpdateFailed")), (2, None));
    assert_eq!(after(UpdateKind::Preview, Some(true), None), (2, None), "the plan is not executed yet");
}

#[test]
fn a_check_that_expects_no_changes_previews_the_program_with_a_refresh() {
    let plain = json!({"interval": "1h"});
    let strict = json!({"interval": "1h", "expectNoChanges": true});
    for (policy, preview_of, refresh) in [(plain, PreviewOf::Refresh, None), (strict, PreviewOf::Up, Some(true))] {
        let stack = stack(policy, StackStatus::default());
        let run = due_run(&stack, "Drift check".to_owned());
        let current = current_update(&Observed::of(stack.clone()), &artifact(b"a"), &run);
        assert_eq!((current.kind, current.preview_of), (UpdateKind::Preview, Some(preview_of)));
        assert!(is_check(&current));
        let update = build_update::update(&stack, &current).expect("valid");
        assert_eq!((update.spec.preview_of, update.spec.refresh), (Some(preview_of), refresh));
    }
    assert!(!is_check_of(Some(PreviewOf::Up), Some(true)), "a plan");
    assert!(!is_check_of(None, None), "another run");
}

#[test]
fn a_correction_is_revoked_if_a_user_disables_it() {
    let correction = CurrentUpdate { message: CORRECTION.to_owned(), ..CurrentUpdate::default() };
    let other = CurrentUpdate { message: "New stack generation: 2".to_owned(), ..CurrentUpdate::default() };
    for (policy, expected) in
        [(json!({"interval": "1h", "mode": "Correct"}), false), (json!({"interval": "1h"}), true), (Value::Null, true)]
    {
        let stack = stack(policy.clone(), StackStatus::default());
        assert_eq!(is_disabled_correction(&stack, &correction), expected, "{policy}");
        assert!(!is_disabled_correction(&stack, &other), "{policy}");
    }
}

#[test]
fn a_changed_spec_source_or_request_ends_a_drift_check() {
    let check = CurrentUpdate {
        inputs: crate::api::pulumi::RunInputs { generation: 3, ..Default::default() },
        preview_of: Some(PreviewOf::Refresh),
        ..CurrentUpdate::default()
    };
    let observed = |content: &[u8]| {
        let inputs =
            RunCandidate::new(&Observed::of(stack(Value::Null, StackStatus::default())), &artifact(b"a")).inputs;
        let last_attempted_commit = Some("main@sha1:a".to_owned());
        let last = LastUpdate { inputs, last_attempted_commit, ..LastUpdate::default() };
        let status = StackStatus { last_update: Some(last), ..StackStatus::default() };
        Observed { source: Some(Ok(artifact(content))), ..Observed::of(stack(json!({"interval": "1h"}), status)) }
    };
    assert!(!is_superseded(&observed(b"a"), &check), "the check continues");
    assert!(is_superseded(&observed(b"b"), &check), "a newer artifact");
    let mut requested = observed(b"a");
    let request = (crate::api::names::ANNOTATION_REQUESTED_AT.to_owned(), "2".to_owned());
    requested.stack.metadata.annotations = Some([request].into());
    assert!(is_superseded(&requested, &check), "a requested run");
    // A reset of the failure count after a successful run starts no run.
    let mut reset = requested;
    let last = reset.stack.status.as_mut().and_then(|status| status.last_update.as_mut()).unwrap();
    last.inputs.requested_at = Some("2".to_owned());
    let reset_at = (crate::api::names::ANNOTATION_RESET_AT.to_owned(), "2".to_owned());
    reset.stack.metadata.annotations.get_or_insert_default().extend([reset_at]);
    assert!(!is_superseded(&reset, &check), "a reset of the failure count");
    let mut changed = observed(b"a");
    changed.stack.metadata.generation = Some(4);
    assert!(is_superseded(&changed, &check), "a changed spec");
    let mut strict = observed(b"a");
    strict.stack.spec.drift = serde_json::from_value(json!({"interval": "1h", "expectNoChanges": true})).unwrap();
    assert!(is_superseded(&strict, &check), "the check would not preview the program");
    let of_program = CurrentUpdate { preview_of: Some(PreviewOf::Up), ..check.clone() };
    assert!(!is_superseded(&strict, &of_program) && is_superseded(&observed(b"a"), &of_program));
    let mut deleted = observed(b"a");
    deleted.stack.metadata.deletion_timestamp = Some(Time(at(9)));
    assert!(is_superseded(&deleted, &check), "a deletion");
    let up = CurrentUpdate { preview_of: None, ..check };
    assert!(!is_superseded(&observed(b"b"), &up), "another run waits for its end");
}
