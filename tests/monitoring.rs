//! Checks the alerts and the dashboards in `config/monitoring`, which must use only documented metrics and labels, and
//! must refer only to existing pages. `tests/run monitoring` evaluates the alerts with promtool.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a missing prerequisite fails the test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Labels that Prometheus adds to all metrics.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];
/// Label on histogram buckets.
const BUCKET_LABEL: &str = "le";
/// Words of PromQL that are neither metrics nor labels. Other words before `(` are functions.
const KEYWORDS: [&str; 10] = ["and", "or", "unless", "bool", "offset", "avg", "count", "max", "min", "sum"];
/// Words of PromQL that precede a list of labels.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// URL prefix of the runbooks.
const PAGES: &str = "https://github.com/pulumi-controller/pulumi-controller/blob/main/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// Maps each series name to the labels that `docs/metrics.md` lists for its metric. A histogram has several series.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/metrics.md");
    let mut metrics = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (name, kind) = (cells[1].trim_matches('`'), cells[2]);
        let labels: BTreeSet<String> = cells[3].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if kind == "histogram" {
            let bucket = labels.iter().cloned().chain([BUCKET_LABEL.to_owned()]).collect();
            metrics.insert(format!("{name}_bucket"), bucket);
            metrics.insert(format!("{name}_sum"), labels.clone());
            metrics.insert(format!("{name}_count"), labels);
        } else {
            metrics.insert(name.to_owned(), labels);
        }
    }
    metrics
}

/// Names in a PromQL expression.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
}

/// Returns the text without string contents, durations in brackets and Grafana variables in brackets.
fn without_strings(expression: &str) -> String {
    let unquoted: String = expression.split('"').step_by(2).collect::<Vec<_>>().join("\"");
    let mut parts = unquoted.split('[');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(']').map_or("", |(_, rest)| rest))
}

/// Returns the names in an expression. The function supports only the PromQL syntax that the alerts and the dashboards
/// use.
fn names(expression: &str) -> Names {
    let text = without_strings(expression);
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    let mut names = Names::default();
    let (mut in_selector, mut in_grouping, mut previous) = (false, false, String::new());
    let mut rest = text.as_str();
    while let Some(first) = rest.chars().next() {
        if !is_part(first) {
            match first {
                '{' => in_selector = true,
                '}' => in_selector = false,
                '(' => in_grouping = GROUPINGS.contains(&previous.as_str()),
                ')' => in_grouping = false,
                _ => {}
            }
            // Keeps the previous word after a space, because a parenthesis can follow the space.
            if first != ' ' {
                previous.clear();
            }
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, after) = rest.split_at(rest.find(|character| !is_part(character)).unwrap_or(rest.len()));
        let is_number = first.is_ascii_digit();
        let is_function = after.trim_start().starts_with('(');
        if in_selector || in_grouping {
            names.labels.insert(word.to_owned());
        } else if !is_number && !is_function && !KEYWORDS.contains(&word) {
            names.metrics.insert(word.to_owned());
        }
        previous = word.to_owned();
        rest = after;
    }
    names
}

#[test]
fn the_names_in_an_expression_are_found() {
    let found = names(
        "histogram_quantile(0.9, sum by (le, type) (rate(a_bucket{job=~\"$job\", b!=\"x{y}\"}[5m])))\n  / time() - \
         (c > 0) * 1000 and on (instance) d",
    );
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<String>>();
    assert_eq!(found.metrics, set(&["a_bucket", "c", "d"]));
    assert_eq!(found.labels, set(&["b", "instance", "job", "le", "type"]));
    assert_eq!(names("max by (namespace, name) (x{a=\"b\"}) == 1").metrics, set(&["x"]));
}

/// Returns the rules that define an alert.
fn alerts() -> Vec<Value> {
    let object: Value = serde_saphyr::from_str(&read("config/monitoring/rules/prometheusrule.yaml")).unwrap();
    let groups = object["spec"]["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

/// Returns the dashboards with their file names.
fn dashboards() -> Vec<(String, Value)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root().join("config/monitoring/dashboards"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 2, "{paths:?}");
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let read = |path: &Path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    paths.iter().map(|path| (name(path.as_path()), read(path.as_path()))).collect()
}

/// Returns all PromQL expressions, each with a description of its location.
fn expressions() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned();
    let mut found: Vec<_> = alerts().iter().map(|alert| (text(&alert["alert"]), text(&alert["expr"]))).collect();
    for (file, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                found.push((format!("{file}: {}", panel["title"]), text(&target["expr"])));
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["query"]["query"].as_str() {
                // The first parameter of `label_values` is a selector, and the second parameter is a label.
                let query = query.strip_prefix("label_values(").and_then(|query| query.strip_suffix(')')).unwrap();
                let (selector, label) = query.rsplit_once(", ").unwrap();
                found.push((format!("{file}: {}", variable["name"]), format!("max by ({label}) ({selector})")));
            }
        }
    }
    found
}

#[test]
fn alerts_and_dashboards_use_only_documented_metrics_and_labels() {
    let documented = documented();
    let mut errors = Vec::new();
    for (place, expression) in expressions() {
        let names = names(&expression);
        assert!(!names.metrics.is_empty(), "{place}: no metric in {expression}");
        let mut known: BTreeSet<&str> = TARGET_LABELS.into_iter().collect();
        for metric in &names.metrics {
            match documented.get(metric) {
                Some(labels) => known.extend(labels.iter().map(String::as_str)),
                None => errors.push(format!("{place}: docs/metrics.md does not contain the metric {metric}")),
            }
        }
        for label in names.labels.iter().filter(|label| !known.contains(label.as_str())) {
            errors.push(format!("{place}: no metric in {expression} has the label {label}"));
        }
    }
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

/// Returns the anchor that GitHub generates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|character| character.is_alphanumeric() || "-_ ".contains(*character));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn every_alert_has_a_severity_texts_and_an_existing_runbook() {
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{name} occurs twice");
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: severity {severity:?}");
        for text in ["summary", "description"] {
            assert!(alert["annotations"][text].as_str().is_some_and(|text| !text.is_empty()), "{name}: no {text}");
        }
        let url = alert["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let (page, section) = url.strip_prefix(PAGES).and_then(|page| page.split_once('#')).expect(name);
        let text = read(page);
        let headings =
            text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches(['#', ' ']));
        assert!(headings.map(anchor).any(|anchor| anchor == section), "{name}: {page} has no section {section}");
    }
    assert!(names.len() >= 20, "{names:?}");
}

/// In its tests, each alert must fire in at least one step, and must not fire in at least one other step.
#[test]
fn every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let mut seen: BTreeMap<String, [bool; 2]> = BTreeMap::new();
    for file in ["stacks", "runs", "controller"] {
        let path = format!("tests/monitoring/{file}.yaml");
        let tests: Value = serde_saphyr::from_str(&read(&path)).unwrap();
        for test in tests["tests"].as_array().unwrap() {
            let (alert, _) = test["name"].as_str().unwrap().split_once(": ").expect("the name starts with the alert");
            for check in test["promql_expr_test"].as_array().unwrap() {
                let selector = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
                assert!(check["expr"].as_str().unwrap().contains(&selector), "{path}: {}", test["name"]);
                let fires = !check["exp_samples"].as_array().unwrap().is_empty();
                seen.entry(alert.to_owned()).or_default()[usize::from(fires)] = true;
            }
        }
    }
    let expected: BTreeMap<String, [bool; 2]> =
        alerts().iter().map(|alert| (alert["alert"].as_str().unwrap().to_owned(), [true, true])).collect();
    assert_eq!(seen, expected, "left: [does not fire, fires] in tests/monitoring; right: config/monitoring/rules");
}

/// The page must contain a table that lists the name, the severity and the summary of each alert.
#[test]
fn the_documented_alerts_are_those_in_the_rules() {
    let page = read("docs/monitoring.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `Pulumi"));
    let documented: BTreeSet<(String, String)> = rows
        .map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
            (format!("Pulumi{}", cells.next().unwrap()), cells.next().unwrap())
        })
        .collect();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let expected: BTreeSet<(String, String)> =
        alerts().iter().map(|alert| (text(&alert["alert"]), text(&alert["labels"]["severity"]))).collect();
    assert_eq!(documented, expected, "left: docs/monitoring.md; right: config/monitoring/rules");
}

#[test]
fn dashboards_have_unique_panels_and_use_the_selected_data_source() {
    let mut uids = BTreeSet::new();
    for (file, dashboard) in dashboards() {
        assert!(uids.insert(dashboard["uid"].to_string()), "{file}: the UID occurs twice");
        assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource", "{file}");
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = &panel["title"];
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: the id of {title} occurs twice");
            let kind = panel["type"].as_str().unwrap();
            assert!(["row", "stat", "timeseries", "table"].contains(&kind), "{file}: {title}: the type {kind}");
            if kind == "row" {
                continue;
            }
            assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{file}: {title}");
            let sources = panel["targets"].as_array().unwrap().iter().chain([panel]);
            for source in sources {
                assert_eq!(source["datasource"]["uid"], "${datasource}", "{file}: {title}");
            }
        }
    }
}

/// The page must describe each dashboard panel.
#[test]
fn the_documented_panels_are_those_of_the_dashboards() {
    let page = read("docs/monitoring.md");
    for (file, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
            let row = format!("| {} | {} |", panel["title"].as_str().unwrap(), panel["description"].as_str().unwrap());
            assert!(page.lines().any(|line| line == row), "{file}: docs/monitoring.md does not contain the row {row}");
        }
    }
}
