use serde_json::{Value, json};

use super::*;

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn schedule(schedule: &Value) -> RunSchedule {
    serde_json::from_value(schedule.clone()).unwrap()
}

/// Returns `open`, the time at which a run may start, `never`, or the error.
fn result(schedules: &[(&str, &RunSchedule)], now: &str) -> String {
    match opening(schedules, at(now)) {
        Opening::Open => "open".to_owned(),
        Opening::Closed { until: Some(until), .. } => until.to_string(),
        Opening::Closed { until: None, .. } => "never".to_owned(),
        Opening::Invalid(message) => message,
    }
}

fn window(window: &Value) -> Value {
    json!({"windows": [window]})
}

#[test]
fn runs_start_only_within_a_window() {
    let office = window(&json!({"days": ["Mon", "Tue", "Wed", "Thu", "Fri"], "start": "08:00", "end": "17:00"}));
    let friday_night = window(&json!({"days": ["Fri"], "start": "22:00", "end": "04:00"}));
    let evening = window(&json!({"start": "22:00", "end": "24:00"}));
    let saturday = window(&json!({"days": ["Sat"], "start": "08:00", "end": "08:00"}));
    let berlin = window(&json!({"start": "08:00", "end": "17:00", "timeZone": "Europe/Berlin"}));
    let two = json!({"windows": [
        {"days": ["Thu"], "start": "08:00", "end": "12:00"}, {"start": "12:00", "end": "13:00"},
    ]});
    // Columns: the schedule, the current time, and the time at which a run may start. 2026-11-26 is a Thursday.
    let rows = [
        (&office, "2026-11-26T07:59:59Z", "2026-11-26T08:00:00Z"),
        (&office, "2026-11-26T08:00:00Z", "open"),
        (&office, "2026-11-26T16:59:59Z", "open"),
        (&office, "2026-11-26T17:00:00Z", "2026-11-27T08:00:00Z"),
        (&office, "2026-11-27T17:00:00Z", "2026-11-30T08:00:00Z"),
        (&friday_night, "2026-11-27T03:00:00Z", "2026-11-27T22:00:00Z"),
        (&friday_night, "2026-11-27T22:00:00Z", "open"),
        (&friday_night, "2026-11-28T03:59:00Z", "open"),
        (&friday_night, "2026-11-28T04:00:00Z", "2026-12-04T22:00:00Z"),
        (&evening, "2026-11-26T23:59:59Z", "open"),
        (&evening, "2026-11-27T00:00:00Z", "2026-11-27T22:00:00Z"),
        (&saturday, "2026-11-29T07:59:00Z", "open"),
        (&saturday, "2026-11-29T08:00:00Z", "2026-12-05T08:00:00Z"),
        (&berlin, "2026-11-26T06:59:00Z", "2026-11-26T07:00:00Z"),
        (&berlin, "2026-11-26T07:00:00Z", "open"),
        (&berlin, "2026-07-01T06:00:00Z", "open"),
        (&two, "2026-11-26T12:00:00Z", "open"),
        (&two, "2026-11-26T13:00:00Z", "2026-11-27T12:00:00Z"),
    ];
    for (value, now, expected) in rows {
        assert_eq!(result(&[("spec.schedule", &schedule(value))], now), expected, "{value} at {now}");
    }
    assert_eq!(result(&[("spec.schedule", &RunSchedule::default())], "2026-11-26T12:00:00Z"), "open");
    assert_eq!(result(&[], "2026-11-26T12:00:00Z"), "open");
}

#[test]
fn daylight_saving_time_does_not_move_windows() {
    let berlin = |start: &str, end: &str| {
        window(&json!({"start": start, "end": end, "timeZone": "Europe/Berlin", "days": ["Sun", "Mon"]}))
    };
    // In Berlin, the times between 02:00 and 03:00 do not exist on 2026-03-29, and occur twice on 2026-10-25.
    let rows = [
        (berlin("02:30", "05:00"), "2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z"),
        (berlin("02:30", "05:00"), "2026-03-29T01:00:00Z", "open"),
        (berlin("02:30", "05:00"), "2026-03-29T03:00:00Z", "2026-03-30T00:30:00Z"),
        (berlin("01:00", "02:30"), "2026-03-29T00:59:59Z", "open"),
        (berlin("01:00", "02:30"), "2026-03-29T01:00:00Z", "2026-03-29T23:00:00Z"),
        (berlin("02:15", "02:45"), "2026-03-29T00:00:00Z", "2026-03-30T00:15:00Z"),
        (berlin("02:30", "02:45"), "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"),
        (berlin("02:30", "02:45"), "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"),
    ];
    for (value, now, expected) in rows {
        assert_eq!(result(&[("spec.schedule", &schedule(&value))], now), expected, "{value} at {now}");
    }
    let sunday = window(&json!({"days": ["Sun"], "start": "02:15", "end": "02:45", "timeZone": "Europe/Berlin"}));
    let skipped = result(&[("spec.schedule", &schedule(&sunday))], "2026-03-23T00:00:00Z");
    assert_eq!(skipped, "2026-04-05T00:15:00Z", "the window of 2026-03-29 is skipped completely");
}

/// Origin of a schedule in a namespace's annotation.
const NAMESPACE: &str = "annotation pulumi.com/schedule of namespace apps";

fn weekdays() -> RunSchedule {
    schedule(&window(&json!({"days": ["Mon", "Tue", "Wed", "Thu", "Fri"], "start": "08:00", "end": "17:00"})))
}

fn holidays() -> RunSchedule {
    schedule(&json!({"freezes": [
        {"from": "2026-12-23T00:00:00Z", "to": "2027-01-02T00:00:00Z", "reason": "holidays"},
        {"from": "2027-01-04T00:00:00Z", "to": "2027-01-05T00:00:00Z"},
    ]}))
}

#[test]
fn no_run_starts_during_a_freeze() {
    let holidays = holidays();
    let rows = [
        ("2026-12-22T23:59:59Z", "open"),
        ("2026-12-23T00:00:00Z", "2027-01-02T00:00:00Z"),
        ("2027-01-02T00:00:00Z", "open"),
        ("2027-01-04T12:00:00Z", "2027-01-05T00:00:00Z"),
        ("2027-01-05T00:00:00Z", "open"),
    ];
    for (now, expected) in rows {
        assert_eq!(result(&[("spec.schedule", &holidays)], now), expected, "{now}");
    }
}

#[test]
fn all_schedules_must_permit_a_run() {
    let (weekdays, holidays) = (weekdays(), holidays());
    let evening = schedule(&window(&json!({"start": "20:00", "end": "21:00"})));
    let years = schedule(&json!({"freezes": [{"from": "2026-01-01T00:00:00Z", "to": "2029-01-01T00:00:00Z"}]}));
    // Columns: the schedules, the current time, the time at which a run may start, and the message.
    let rows = [
        (
            vec![("spec.schedule", &weekdays)],
            "2026-11-30T17:00:00Z",
            "2026-12-01T08:00:00Z",
            "outside the windows of spec.schedule until 2026-12-01T08:00:00Z",
        ),
        (
            vec![(NAMESPACE, &holidays)],
            "2026-12-24T12:00:00Z",
            "2027-01-02T00:00:00Z",
            "freeze until 2027-01-02T00:00:00Z: holidays (annotation pulumi.com/schedule of namespace apps)",
        ),
        (
            vec![("spec.schedule", &weekdays), ("spec.schedule", &holidays)],
            "2026-12-24T12:00:00Z",
            "2027-01-05T08:00:00Z",
            "freeze until 2027-01-02T00:00:00Z: holidays (spec.schedule); runs start again at 2027-01-05T08:00:00Z",
        ),
        (
            vec![("spec.schedule", &weekdays), ("spec.schedule", &evening)],
            "2026-11-26T12:00:00Z",
            "2026-12-31T20:00:00Z",
            "outside the windows of spec.schedule until 2026-11-26T20:00:00Z; no run can start before 2026-12-31T20:00:00Z",
        ),
        (
            vec![("spec.schedule", &years)],
            "2026-11-26T12:00:00Z",
            "2029-01-01T00:00:00Z",
            "freeze until 2029-01-01T00:00:00Z (spec.schedule)",
        ),
    ];
    for (schedules, now, expected, message) in rows {
        assert_eq!(result(&schedules, now), expected, "{message}");
        let Opening::Closed { why, .. } = opening(&schedules, at(now)) else { panic!("open: {message}") };
        assert_eq!(why, message);
    }
}

#[test]
fn an_invalid_schedule_is_an_error_with_the_path_of_the_field() {
    let valid = json!({"start": "08:00", "end": "17:00"});
    let many = vec![valid.clone(); 21];
    // The schedule and the error.
    let rows = [
        (
            json!({"windows": [valid, {"start": "08:00", "end": "17:00", "timeZone": "Europe/Berln"}]}),
            "invalid spec.schedule.windows[1].timeZone: unknown time zone \"Europe/Berln\"; use a name of the IANA \
             database, such as Europe/Berlin",
        ),
        (
            window(&json!({"start": "8:00", "end": "17:00"})),
            "invalid spec.schedule.windows[0].start: \"8:00\" is not a time in the format HH:MM, from 00:00 to 23:59",
        ),
        (
            window(&json!({"start": "24:00", "end": "17:00"})),
            "invalid spec.schedule.windows[0].start: \"24:00\" is not a time in the format HH:MM, from 00:00 to 23:59",
        ),
        (
            window(&json!({"start": "08:00", "end": "17:60"})),
            "invalid spec.schedule.windows[0].end: \"17:60\" is not a time in the format HH:MM, from 00:00 to 24:00",
        ),
        (
            window(&json!({"start": "08:00", "end": "+7:00"})),
            "invalid spec.schedule.windows[0].end: \"+7:00\" is not a time in the format HH:MM, from 00:00 to 24:00",
        ),
        (
            json!({"freezes": [{"from": "2026-12-23T00:00:00Z", "to": "2026-12-22T00:00:00Z"}]}),
            "invalid spec.schedule.freezes[0].to: the freeze ends before it starts; set a time later than the time in from",
        ),
        (json!({"windows": many}), "invalid spec.schedule.windows: 21 entries; at most 20 are permitted"),
    ];
    for (value, expected) in rows {
        assert_eq!(result(&[("spec.schedule", &schedule(&value))], "2026-11-26T12:00:00Z"), expected);
        assert_eq!(check("spec.schedule", &schedule(&value)), Err(expected.to_owned()));
    }
    let of_namespace = schedule(&window(&json!({"start": "8", "end": "17:00"})));
    assert_eq!(
        result(&[(NAMESPACE, &of_namespace)], "2026-11-26T12:00:00Z"),
        "invalid windows[0].start in the annotation pulumi.com/schedule of namespace apps: \"8\" is not a time in the \
         format HH:MM, from 00:00 to 23:59"
    );
}

#[test]
fn the_annotation_of_a_namespace_is_yaml_or_json_without_unknown_fields() {
    let expected = schedule(&json!({
        "windows": [{"days": ["Mon"], "start": "08:00", "end": "17:00", "timeZone": "Europe/Berlin"}],
        "freezes": [{"from": "2026-12-23T00:00:00Z", "to": "2027-01-02T00:00:00+01:00", "reason": "holidays"}],
    }));
    let yaml = "
windows:
  - days: [Mon]
    start: 08:00
    end: \"17:00\"
    timeZone: Europe/Berlin
freezes:
  - from: 2026-12-23T00:00:00Z
    to: 2027-01-02T00:00:00+01:00
    reason: holidays
";
    assert_eq!(parse(yaml), Ok(expected.clone()));
    let json = serde_json::to_string_pretty(&expected).unwrap();
    assert_eq!(parse(&json), Ok(expected), "{json}");
    assert_eq!(parse("windows: []"), Ok(RunSchedule::default()));

    let long = format!("freezes: [] # {}", "x".repeat(MAX_ANNOTATION));
    // Columns: the annotation, and part of the error message.
    let rows = [
        ("freeze: []", "unknown field `freeze`"),
        ("windows: [{start: '08:00', end: '17:00', timezone: UTC}]", "unknown field `timezone`"),
        ("freezes: [{from: '2026-12-23T00:00:00Z', to: '2026-12-24T00:00:00Z', why: x}]", "unknown field `why`"),
        ("windows: [{start: '08:00'}]", "missing field `end`"),
        ("windows: [{days: [Monday], start: '08:00', end: '17:00'}]", "unknown variant `Monday`"),
        ("freezes: [{from: tomorrow, to: '2026-12-24T00:00:00Z'}]", "invalid schedule"),
        ("windows: [", "invalid schedule"),
        (long.as_str(), "at most 16384 are permitted"),
    ];
    for (annotation, part) in rows {
        let error = parse(annotation).expect_err(part);
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn time_zones_do_not_require_a_database_of_the_system() {
    let zone = time_zone(Some("Europe/Berlin")).unwrap();
    assert_eq!(zone.to_datetime(at("2026-07-01T00:00:00Z")).to_string(), "2026-07-01T02:00:00");
    assert_eq!(time_zone(None), Ok(TimeZone::UTC));
    assert_eq!(time_zone(Some("UTC")), Ok(TimeZone::UTC));
}
