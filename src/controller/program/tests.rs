//! Tests for the Program status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{Action, decide, status_after};
use crate::api::conditions::{self, READY, STALLED};
use crate::api::pulumi::{Program, ProgramStatus};

fn program(generation: i64, outputs: Value) -> Program {
    serde_json::from_value(json!({
        "metadata": {"name": "app", "namespace": "apps", "generation": generation}, "program": {"outputs": outputs},
    }))
    .expect("valid Program")
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("timestamp in range")
}

fn step(before: Option<ProgramStatus>, mut program: Program, second: i64) -> ProgramStatus {
    program.status = before;
    status_after(&program, &decide(&program), at(second))
}

fn condition(status: &ProgramStatus, kind: &str) -> Option<(String, String, String, Option<i64>)> {
    let condition = conditions::find(&status.conditions, kind)?.clone();
    Some((condition.status, condition.reason, condition.message, condition.observed_generation))
}

#[test]
fn a_program_artifact_has_the_name_that_pko_uses_and_no_url() {
    let Action::Publish { artifact, needs } = decide(&program(3, json!({"a": 1}))) else {
        panic!("expected Action::Publish")
    };
    assert_eq!((artifact.path.as_str(), artifact.revision.as_str(), needs), ("programs/apps/app/3.tar.gz", "3", None));
    let status = step(None, program(3, json!({"a": 1})), 10);
    let written = serde_json::to_value(&status).expect("valid JSON");
    assert_eq!(written["artifact"].get("url"), None);
    assert_eq!(written["artifact"]["lastUpdateTime"], json!("1970-01-01T00:00:10Z"));
    assert!(written["artifact"]["digest"].as_str().is_some_and(|digest| digest.starts_with("sha256:")));
    assert_eq!(status.observed_generation, Some(3));
    let ready = ("True".to_owned(), "Succeeded".to_owned(), "program is valid".to_owned(), Some(3));
    assert_eq!((condition(&status, READY), condition(&status, STALLED)), (Some(ready), None));
}

#[test]
fn the_status_of_an_unchanged_program_stays_the_same() {
    let first = step(None, program(3, json!({"a": 1})), 10);
    assert_eq!(step(Some(first.clone()), program(3, json!({"a": 1})), 20), first);
    let next = step(Some(first.clone()), program(4, json!({"a": 2})), 30);
    let time = |status: &ProgramStatus| status.artifact.as_ref().map(|artifact| artifact.last_update_time.clone());
    assert_eq!((time(&first), time(&next)), (Some(Time(at(10))), Some(Time(at(30)))));
    assert_ne!(first.artifact.map(|a| a.digest), next.artifact.map(|a| a.digest));
}

#[test]
fn an_invalid_program_is_stalled_and_keeps_its_last_valid_artifact() {
    let good = step(None, program(3, json!({"a": 1})), 10);
    let bad = step(Some(good.clone()), program(4, json!({"a": "${"})), 20);
    let claim = condition(&bad, READY).expect("value is set");
    assert_eq!((claim.0.as_str(), claim.1.as_str(), claim.3), ("False", "SpecInvalid", Some(4)));
    assert!(claim.2.starts_with("program.outputs.a: "), "{claim:?}");
    assert_eq!(condition(&bad, STALLED).map(|stalled| (stalled.0, stalled.2)), Some(("True".to_owned(), claim.2)));
    assert_eq!((bad.observed_generation, &bad.artifact), (Some(4), &good.artifact));
    let mended = step(Some(bad), program(5, json!({"a": "b"})), 30);
    assert_eq!((condition(&mended, STALLED), mended.artifact.map(|a| a.revision)), (None, Some("5".to_owned())));
}

#[test]
fn a_valid_program_reports_its_unresolved_references() {
    let status = step(None, program(1, json!({"a": "${b}"})), 10);
    let (ready, _, message, _) = condition(&status, READY).expect("value is set");
    assert_eq!(ready, "True");
    assert!(message.starts_with("program is valid; program.outputs.a refers to \"b\""), "{message}");
}
