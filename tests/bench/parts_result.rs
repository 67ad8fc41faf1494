//! Converts the criterion results from `parts.rs` to table rows.

use std::path::PathBuf;

use serde_json::Value;

use crate::table::Row;

pub fn measure() -> Vec<Row> {
    vec![
        row("digest of 64 MiB", "digest", "sha256sum"),
        row("unpacking 1,200 files", "unpack", "tar -xzf"),
        lookups("lookups of a push, 10,000 Stacks"),
    ]
}

/// Returns the table row for the lookups. The budget permits additional cache misses in larger tables, but not a scan
/// of all objects, which would take a hundred times as long.
fn lookups(name: &str) -> Row {
    let (few, many) = (median("lookups", "few"), median("lookups", "many"));
    let ratio = many / few;
    Row::of(name, "10 × the time with 100 Stacks".to_owned(), format!("{ratio:.1} ×"), Some(ratio <= 10.0))
        .with_note(format!("{:.0} µs, {:.0} µs", many / 1e3, few / 1e3))
}

/// Returns a table row whose budget is the tool's measured time.
fn row(name: &str, group: &str, tool: &str) -> Row {
    let (ours, theirs) = (median(group, "ours"), median(group, "tool"));
    let ratio = ours / theirs;
    let measured = format!("{ratio:.2} × `{tool}`");
    Row::of(name, format!("1 × `{tool}`"), measured, Some(ratio <= 1.0)).with_note(format!(
        "{:.1} ms, `{tool}` {:.1} ms",
        ours / 1e6,
        theirs / 1e6
    ))
}

/// Returns a median in nanoseconds.
fn median(group: &str, side: &str) -> f64 {
    let home = std::env::var("CRITERION_HOME").expect("CRITERION_HOME is set to the directory of the results");
    let file = PathBuf::from(home).join(group).join(side).join("new/estimates.json");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let estimates: Value = serde_json::from_str(&text).expect("criterion writes JSON");
    estimates["median"]["point_estimate"].as_f64().expect("criterion's median")
}
