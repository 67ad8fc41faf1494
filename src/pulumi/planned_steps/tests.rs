use serde_json::json;

use super::*;
use crate::pulumi::events::EngineEvent;
use crate::pulumi::run_summary::RunSummary;

/// Adds the event for a completed step to the summary of a run.
fn observe(run: &mut RunSummary, operation: &str, resource_type: &str, name: &str, difference: serde_json::Value) {
    let urn = format!("urn:pulumi:dev::web::{resource_type}::{name}");
    let mut metadata = json!({"op": operation, "urn": urn, "type": resource_type});
    metadata.as_object_mut().unwrap().extend(difference.as_object().unwrap().clone());
    let line = json!({"resOutputsEvent": {"metadata": metadata, "planning": true}}).to_string();
    run.observe(&EngineEvent::parse(line.as_bytes()).unwrap());
}

fn steps(run: &RunSummary) -> Vec<String> {
    let describe = |step: &PlannedStep| {
        let name = step.urn.rsplit("::").next().unwrap();
        format!("{} {name} {}", step.operation, step.properties.join(","))
    };
    run.planned().steps().map(|step| describe(step).trim_end().to_owned()).collect()
}

#[test]
fn changes_are_listed_once_with_deletions_and_replacements_first() {
    let mut run = RunSummary::default();
    let detailed = json!({"detailedDiff": {"tags[\"a\"]": {"diffKind": "add"}, "value": {"diffKind": "update"}}});
    let replaced = json!({"keys": ["key"], "diffs": ["key"], "detailedDiff": {"key": {"diffKind": "update-replace"}}});
    let none = json!({"detailedDiff": null});
    for (operation, name, difference) in [
        ("create", "created", &none),
        ("update", "updated", &detailed),
        ("update", "updated", &detailed),
        ("update", "coarse", &json!({"diffs": ["size"], "detailedDiff": null})),
        ("update", "empty", &json!({"diffs": ["size"], "detailedDiff": {}})),
        ("same", "same", &none),
        ("read", "read", &none),
        ("refresh", "refreshed", &detailed),
        ("create-replacement", "replaced", &replaced),
        ("replace", "replaced", &replaced),
        ("delete-replaced", "replaced", &none),
        ("delete-replaced", "first", &none),
        ("replace", "first", &replaced),
        ("create-replacement", "first", &replaced),
        ("delete", "deleted", &none),
        ("import", "imported", &none),
        ("delete", "last", &none),
    ] {
        observe(&mut run, operation, "aws:s3:Bucket", name, difference.clone());
    }
    for operation in ["create", "update", "delete"] {
        observe(&mut run, operation, "pulumi:pulumi:Stack", "web-dev", none.clone());
        observe(&mut run, operation, "pulumi:providers:aws", "default_6_1_0", none.clone());
    }
    observe(&mut run, "create", "pulumi:providers:aws", "default", none.clone());
    observe(&mut run, "create", "pulumi:providers:aws", "default-mine", none.clone());
    observe(&mut run, "create", "pulumi:providers:aws", "default_mine", none.clone());
    observe(&mut run, "update", "pulumi:providers:aws", "explicit", json!({"diffs": ["region"]}));
    let expected = [
        "delete deleted",
        "delete last",
        "replace replaced key",
        "replace first key",
        "create created",
        "update updated tags[\"a\"],value",
        "update coarse size",
        "update empty size",
        "import imported",
        "update default_6_1_0",
        "create default-mine",
        "create default_mine",
        "update explicit region",
    ];
    assert_eq!(steps(&run), expected);
    assert_eq!(run.planned().count(), expected.len());
}

/// Returns the states before and after a step. Each state consists of the name of the resource and its provider.
fn states(old: Option<(&str, &str)>, new: Option<(&str, &str)>) -> serde_json::Value {
    let state = |(name, provider): (&str, &str)| {
        let provider = format!("urn:pulumi:dev::web::pulumi:providers:aws::{provider}::an-id");
        json!({"urn": format!("urn:pulumi:dev::web::aws:s3:Bucket::{name}"), "custom": true, "provider": provider})
    };
    json!({"detailedDiff": null, "old": old.map(state), "new": new.map(state)})
}

#[test]
fn changes_that_the_engine_reports_as_other_operations_are_listed() {
    let mut run = RunSummary::default();
    let with = |mut states: serde_json::Value, side: &str, field: &str| {
        states[side][field] = json!(true);
        states
    };
    let unchanged = |name| states(Some((name, "default_6_1_0")), Some((name, "default_6_1_0")));
    let gone = |name| states(Some((name, "default")), None);
    for (operation, name, states) in [
        ("same", "same", unchanged("same")),
        ("refresh", "refreshed", unchanged("refreshed")),
        ("same", "upgraded", states(Some(("upgraded", "default_6_1_0")), Some(("upgraded", "default_6_2_0")))),
        ("same", "moved", states(Some(("moved", "default")), Some(("moved", "tokyo")))),
        ("update", "updated", states(Some(("updated", "default")), Some(("updated", "tokyo")))),
        ("same", "new", states(Some(("old", "default")), Some(("new", "default")))),
        ("update", "changed", states(Some(("before", "default")), Some(("changed", "default")))),
        ("replace", "other", states(Some(("previous", "default")), Some(("other", "default")))),
        ("read", "relinquished", with(unchanged("relinquished"), "new", "external")),
        ("read", "first-read", states(None, Some(("first-read", "default")))),
        ("read", "read", with(unchanged("read"), "old", "external")),
        ("refresh", "gone", gone("gone")),
        ("refresh", "gone", gone("gone")),
        ("refresh", "read-gone", with(gone("read-gone"), "old", "external")),
        ("refresh", "replaced-gone", with(gone("replaced-gone"), "old", "delete")),
        ("delete", "deleted", states(Some(("deleted", "default")), None)),
    ] {
        observe(&mut run, operation, "aws:s3:Bucket", name, states);
    }
    let urn = |name: &str| format!("urn:pulumi:dev::web::aws:s3:Bucket::{name}");
    let expected = [
        "relinquish relinquished".to_owned(),
        "missing gone".to_owned(),
        "delete deleted".to_owned(),
        "replace other".to_owned(),
        "reassign moved provider".to_owned(),
        "update updated".to_owned(),
        format!("rename old {}", urn("new")),
        "update changed".to_owned(),
        format!("rename before {}", urn("changed")),
        format!("rename previous {}", urn("other")),
    ];
    assert_eq!(steps(&run), expected);
    assert_eq!(run.planned().count(), expected.len());
    let changes = run.resource_changes();
    let count = |operation: &str| changes.get(operation).copied();
    let counts = [RENAME, REASSIGN, RELINQUISH, MISSING].map(count);
    assert_eq!(counts, [Some(3), Some(1), Some(1), Some(1)], "{changes:?}");

    let mut refresh = RunSummary::new(PlannedSteps::of_refresh());
    observe(&mut refresh, "same", "aws:s3:Bucket", "new", states(Some(("old", "default")), Some(("new", "default"))));
    assert_eq!(steps(&refresh), [""; 0], "a refresh finds only differences of the actual resources");
}

#[test]
fn unknown_operations_are_listed() {
    let mut run = RunSummary::default();
    observe(&mut run, "teleport", "aws:s3:Bucket", "a", json!({}));
    observe(&mut run, &"x".repeat(100), "aws:s3:Bucket", "b", json!({}));
    observe(&mut run, "extend-parameterize", "", "", json!({}));
    assert_eq!(steps(&run), ["teleport a".to_owned(), format!("{} b", "x".repeat(MAX_OPERATION))]);
}

#[test]
fn a_refresh_lists_only_resources_whose_actual_state_differs() {
    let mut run = RunSummary::new(PlannedSteps::of_refresh());
    observe(&mut run, "update", "aws:s3:Bucket", "drifted", json!({"detailedDiff": {"value": {}}}));
    observe(&mut run, "delete", "aws:s3:Bucket", "gone", json!({"detailedDiff": null}));
    observe(&mut run, "same", "aws:s3:Bucket", "same", json!({"detailedDiff": {}}));
    // Version 3.105 of the CLI reports no properties, and some providers do not report them to any version.
    let without_properties = |state: serde_json::Value| json!({"detailedDiff": null, "old": state, "new": state});
    let managed = without_properties(json!({"custom": true, "inputs": {"size": 1}}));
    observe(&mut run, "update", "aws:s3:Bucket", "unknown", managed.clone());
    observe(&mut run, "update", "aws:s3:Bucket", "read", without_properties(json!({"custom": true, "external": true})));
    // If a refresh runs the program, the engine reports providers and components as updated without comparing them.
    observe(&mut run, "update", "pulumi:providers:aws", "explicit", managed);
    observe(&mut run, "update", "pulumi:providers:aws", "rotated", json!({"detailedDiff": {"token": {}}}));
    observe(&mut run, "update", "my:index:Component", "component", without_properties(json!({})));
    observe(&mut run, "update", "my:index:Component", "stateless", without_properties(json!(null)));
    assert_eq!(steps(&run), ["delete gone", "update drifted value", "update unknown"]);
}

#[test]
fn the_list_is_bounded_and_keeps_the_first_and_most_important_steps() {
    let mut run = RunSummary::default();
    for number in 0..100_000 {
        observe(&mut run, "update", "aws:s3:Bucket", &format!("updated-{number}"), json!({}));
    }
    assert_eq!((run.planned().steps().count(), run.planned().count()), (MAX_STEPS, 100_000));
    for number in 0..150 {
        observe(&mut run, "delete", "aws:s3:Bucket", &format!("deleted-{number}"), json!({}));
    }
    let found = steps(&run);
    assert_eq!(
        (found.len(), found[149].as_str(), found[150].as_str()),
        (200, "delete deleted-149", "update updated-0")
    );
    let long = |number: usize| format!("{}-{number}", "x".repeat(3_000));
    for number in 0..200 {
        let paths: serde_json::Map<String, serde_json::Value> =
            (0..100).map(|path| (format!("{path:03}{}", "ä".repeat(500)), json!({}))).collect();
        observe(&mut run, "replace", "aws:s3:Bucket", &long(number), json!({"detailedDiff": paths}));
    }
    let list: Vec<&PlannedStep> = run.planned().steps().collect();
    assert!(list.iter().map(|step| size(step)).sum::<usize>() <= MAX_SIZE);
    let replaced = list.iter().find(|step| step.operation == "replace").unwrap();
    assert!(replaced.urn.len() > 3000 && replaced.properties.len() == 20);
    assert!(replaced.properties.iter().all(|path| path.len() <= 256));
    assert_eq!(run.planned().count(), 100_350);
    observe(&mut run, "delete", "aws:s3:Bucket", &"x".repeat(MAX_URN), json!({}));
    assert_eq!(run.planned().count(), 100_351);
    assert!(
        run.planned().steps().all(|step| !step.urn.ends_with(&"x".repeat(MAX_URN - 100))),
        "a truncated URN matches no pattern"
    );
}

#[test]
fn a_destroy_collects_the_urns_of_all_deletions() {
    let mut run = RunSummary::new(PlannedSteps::of_destroy());
    for number in (0..1000).rev() {
        observe(&mut run, "delete", "aws:s3:Bucket", &format!("{number:04}"), json!({}));
    }
    observe(&mut run, "delete", "pulumi:pulumi:Stack", "web-dev", json!({}));
    let urns: Vec<_> = run.planned().deletions().unwrap().iter().collect();
    assert_eq!((urns.len(), urns[0].as_str()), (1001, "urn:pulumi:dev::web::aws:s3:Bucket::0000"));
    assert!(RunSummary::default().planned().deletions().is_none());
    let mut deletions = Deletions::default();
    for number in 0..40 {
        deletions.add(&format!("{}{number}", "x".repeat(1024 * 1024)));
    }
    let planned = PlannedSteps { deletions: Some(deletions), ..PlannedSteps::default() };
    assert!(planned.deletions().is_none(), "a truncated list would not be complete");
}

#[test]
fn a_full_set_grows_no_further() {
    let mut set = HashedSet::default();
    assert!((0..MAX_HASHES).all(|number| set.insert(number)) && set.is_full());
    assert!(!set.insert(0_usize) && set.contains(0_usize));
    assert!(set.insert(MAX_HASHES) && set.insert(MAX_HASHES) && !set.contains(MAX_HASHES));
}
