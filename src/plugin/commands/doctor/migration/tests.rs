//! Tests of the findings about the Stacks of the Pulumi Kubernetes Operator.

use serde_json::{Value, json};

use super::*;
use crate::plugin::fixtures::stack;
use crate::plugin::reference_tests::assert_example;

/// Returns the spec, the status, and the fields of the findings. A `?` marks a finding that requires no action.
#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<(Value, Value, Vec<&'static str>)> {
    let succeeded = || json!({"lastUpdate": {"state": "succeeded"}});
    let template = |spec: Value| json!({"workspaceTemplate": {"spec": spec}});
    let pod = |spec: Value| template(json!({"podTemplate": {"spec": spec}}));
    let literal = |value: &str| json!({"type": "Literal", "literal": {"value": value}});
    vec![
        (json!({"projectRepo": "https://git.example/app", "branch": "main", "refresh": true}), succeeded(), vec![]),
        (json!({}), json!({"currentUpdate": {"name": "web-1"}}), vec!["status.currentUpdate"]),
        (json!({"programRef": {"name": "app"}, "repoDir": "infra"}), json!({}), vec!["spec.repoDir, spec.programRef"]),
        (json!({"backend": "mem://"}), json!({}), vec!["spec.backend"]),
        (json!({"backend": "S3://state"}), json!({}), vec!["spec.backend"]),
        (json!({"backend": "HTTPS://api.pulumi.com"}), json!({}), vec![]),
        (
            json!({"envRefs": {"PULUMI_BACKEND_URL": literal("ftp://user:hunter2@host")}}),
            json!({}),
            vec!["spec.envRefs[PULUMI_BACKEND_URL]"],
        ),
        (json!({"expectNoRefreshChanges": true}), json!({}), vec![]),
        (json!({"expectNoRefreshChanges": true, "refresh": true}), json!({}), vec!["spec.expectNoRefreshChanges"]),
        (json!({"useLocalStackOnly": true}), json!({}), vec!["spec.useLocalStackOnly"]),
        (json!({"useLocalStackOnly": true}), succeeded(), vec![]),
        (
            json!({"projectRepo": "https://user:hunter2@git.example/app", "branch": "main"}),
            json!({}),
            vec!["spec.projectRepo"],
        ),
        (json!({"projectRepo": "https://git.example/a:b@c", "branch": "main"}), json!({}), vec![]),
        (
            json!({"projectRepo": "git@git.example:app", "branch": "main", "gitAuthSecret": "git"}),
            json!({}),
            vec!["?spec.projectRepo"],
        ),
        (
            template(json!({"git": {"url": "ssh://git@git.example/app", "auth": {"sshPrivateKey": {}}}})),
            json!({}),
            vec!["?spec.workspaceTemplate.spec.git.url"],
        ),
        (
            json!({"envRefs": {"PULUMI_OPTION_TARGET": literal("urn"), "PULUMI_OPTION_POLICY_PACK": literal("a")}}),
            json!({}),
            vec!["spec.envRefs[PULUMI_OPTION_TARGET]"],
        ),
        (
            template(json!({"env": [{"name": "PULUMI_OPTION_PARALLEL", "value": "2"}, {"name": "A"}]})),
            json!({}),
            vec!["?spec.workspaceTemplate.spec.env[PULUMI_OPTION_PARALLEL]"],
        ),
        (
            template(json!({"env": [{"name": "PULUMI_OPTION_EXCLUDE", "value": "urn"}, {"name": "A"}]})),
            json!({}),
            vec!["spec.workspaceTemplate.spec.env[PULUMI_OPTION_EXCLUDE]"],
        ),
        (
            json!({"envRefs": {
                "PULUMI_DIY_BACKEND_LEGACY_LAYOUT": literal("1"),
                "PULUMI_DIY_BACKEND_NO_LEGACY_WARNING": literal("1"),
            }}),
            json!({}),
            vec!["spec.envRefs[PULUMI_DIY_BACKEND_LEGACY_LAYOUT]"],
        ),
        (
            template(json!({"env": [{"name": "PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR", "value": "1"}]})),
            json!({}),
            vec!["spec.workspaceTemplate.spec.env[PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR]"],
        ),
        (
            pod(json!({"shareProcessNamespace": true, "containers": [{"name": "pulumi", "command": ["a"]}]})),
            json!({}),
            vec![
                "spec.workspaceTemplate.spec.podTemplate.spec.containers[pulumi].command",
                "spec.workspaceTemplate.spec.podTemplate.spec.shareProcessNamespace",
            ],
        ),
        (
            pod(json!({"initContainers": [{"name": "tools", "command": ["/share/tini", "--", "true"]}]})),
            json!({}),
            vec!["spec.workspaceTemplate"],
        ),
    ]
}

#[test]
fn each_difference_that_affects_a_stack_is_a_finding() {
    for (spec, status, expected) in rows() {
        let found = findings(&stack("web", &spec, &status));
        let fields: Vec<String> = found
            .iter()
            .map(|finding| format!("{}{}", if finding.requires_action { "" } else { "?" }, finding.field))
            .collect();
        assert_eq!(fields, expected, "{spec}");
        assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
    }
}

/// The test `the_controller_rejects_each_stack_that_the_check_of_a_migration_lists` uses the same Stacks.
#[test]
fn each_stack_of_the_operator_that_the_controller_rejects_is_a_finding() {
    let rows: Vec<Value> =
        serde_saphyr::from_str(include_str!("../../../../../tests/operator/rejected-stacks.yaml")).unwrap();
    assert!(rows.len() > 50, "found only {}", rows.len());
    for row in rows {
        let mut stack = stack(row["name"].as_str().unwrap_or("web"), &row["spec"], &json!({}));
        row["spec"]["stack"].as_str().unwrap().clone_into(&mut stack.spec.stack);
        let found: Vec<String> =
            findings(&stack).into_iter().filter(|found| found.requires_action).map(|found| found.field).collect();
        assert_eq!(found, [row["field"].as_str().unwrap()], "{}", row["spec"]);
    }
}

#[test]
fn the_command_reads_the_stacks_of_the_operator() {
    let list: Value = serde_saphyr::from_str(include_str!("../../../../../tests/operator/stacks.yaml")).unwrap();
    let stacks: Vec<Stack> = serde_json::from_value(list["items"].clone()).unwrap();
    assert!(stacks.len() > 1, "found only {}", stacks.len());
    let report = Report::of(&stacks, None);
    assert_eq!(report.affected(), 0, "{}", report.text());
}

#[test]
fn only_the_later_stack_of_the_same_pulumi_stack_is_a_duplicate() {
    let of = |name: &str, pulumi_stack: &str, project: Option<&str>, spec: Value| {
        let info = project.map(|name| json!({"name": name, "runtime": "yaml"}));
        let mut stack = stack(name, &spec, &json!({ "projectInfo": info }));
        pulumi_stack.clone_into(&mut stack.spec.stack);
        stack
    };
    let stacks = [
        of("first", "dev", Some("app"), json!({})),
        of("second", "acme/app/dev", None, json!({})),
        of("preview", "dev", Some("app"), json!({"preview": true})),
        of("other", "dev", Some("web"), json!({})),
        of("unknown", "dev", None, json!({})),
        of("elsewhere", "dev", Some("app"), json!({"backend": "s3://state"})),
        of("another organization", "other/app/dev", None, json!({"backend": "https://api.pulumi.com"})),
        of(
            "another default organization",
            "dev",
            Some("app"),
            json!({
                "backend": "https://api.pulumi.com",
                "envRefs": {"PULUMI_DEFAULT_ORGANIZATION": {"type": "Literal", "literal": {"value": "acme"}}},
            }),
        ),
        of("same organization", "acme/app/dev", None, json!({"backend": "https://api.pulumi.com"})),
    ];
    let found: Vec<usize> = duplicates(&stacks).into_keys().collect();
    assert_eq!(found, [1, 8]);
}

#[test]
fn stacks_with_the_same_source_have_the_same_project_before_their_first_run() {
    let program = |name: &str| json!({"backend": "s3://state?region=eu", "programRef": {"name": name}});
    let repository = |url: &str, dir: &str| json!({"projectRepo": url, "repoDir": dir, "branch": "main"});
    let variable = json!({
        "envRefs": {"PULUMI_BACKEND_URL": {"type": "Literal", "literal": {"value": "s3://state/?profile=a"}}},
        "programRef": {"name": "web"},
    });
    let rows = [
        (program("web"), program("web"), true),
        (program("web"), variable, true),
        (program("web"), program("api"), false),
        (program("web"), json!({"backend": "s3://state?endpoint=minio", "programRef": {"name": "web"}}), false),
        (repository("https://git.example/app", "./web/"), repository("https://git.example/app.git", "web"), true),
        (repository("https://git.example/app", "web"), repository("https://git.example/app", "api"), false),
        (json!({}), json!({}), false),
    ];
    for (one, other, expected) in rows {
        let stacks = [stack("first", &one, &json!({})), stack("second", &other, &json!({}))];
        assert_eq!(duplicates(&stacks).contains_key(&1), expected, "{one} {other}");
    }
    let run = json!({"projectInfo": {"name": "web", "runtime": "yaml"}});
    let stacks = [stack("first", &program("web"), &run), stack("second", &program("web"), &json!({}))];
    assert!(duplicates(&stacks).contains_key(&1), "the operator has run only one of the Stacks");
}

#[test]
fn the_report_counts_the_stacks_that_require_an_action() {
    let stacks = [
        stack(
            "database",
            &json!({"projectRepo": "git@git.example:database", "branch": "main", "gitAuthSecret": "git"}),
            &json!({}),
        ),
        stack("network", &json!({}), &json!({})),
        stack(
            "web",
            &json!({"expectNoRefreshChanges": true, "refresh": true, "envRefs": {"PULUMI_OPTION_TARGET": {"type": "Literal", "literal": {"value": "urn"}}}}),
            &json!({}),
        ),
    ];
    let report = Report::of(&stacks, Some("apps"));
    assert_example("kubectl pulumi doctor --migration", &report.text());
    assert_eq!(report.affected(), 1);
    let none = Report::of(&[], None);
    assert_eq!(none.text(), "✔ no Stack in the cluster requires a change before the migration\n");
    assert_eq!((none.affected(), serde_json::to_value(&none).unwrap()), (0, json!([])));
}
