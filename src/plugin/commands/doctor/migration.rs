//! `doctor --migration`: lists the Stacks of the Pulumi Kubernetes Operator that a user must change before the controller
//! takes them over. `docs/guides/migrate-from-pko.md` describes all differences. The findings use only the Stacks, so the
//! command needs neither the controller nor permissions for Secrets.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use pulumi_controller::api::cli_options;
use pulumi_controller::api::names::PULUMI_CONTAINER;
use pulumi_controller::api::pulumi::{Stack, StackSpec};
use serde::Serialize;
use serde_json::Value;

use crate::plugin::screen::{Screen, table};
use crate::plugin::select::full_name;

/// URL schemes of the backends that the controller supports.
const BACKENDS: [&str; 7] = ["https", "http", "s3", "gs", "azblob", "postgres", "file"];
/// Variables with which an older Pulumi CLI accepts a backend whose layout has no projects.
const LEGACY_LAYOUT: [&str; 3] = [
    "PULUMI_DIY_BACKEND_IGNORE_DEPRECATION_ERROR",
    "PULUMI_DIY_BACKEND_LEGACY_LAYOUT",
    "PULUMI_SELF_MANAGED_STATE_LEGACY_LAYOUT",
];
/// Variable with the organization of Pulumi stacks whose name contains none.
const DEFAULT_ORGANIZATION: &str = "PULUMI_DEFAULT_ORGANIZATION";
/// Fields of the `pulumi` container that a template cannot change.
const CONTAINER_FIELDS: [&str; 5] =
    ["args", "command", "terminationMessagePath", "terminationMessagePolicy", "workingDir"];
/// Files and variables of the operator's workspace pods that the controller's pods do not contain.
const MISSING_IN_POD: [&str; 4] = ["/share/agent", "/share/tini", "POD_SA_NAME", "AGENT_MEMLIMIT"];

/// Difference between the operator and the controller that affects a Stack.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    field: String,
    /// Whether the Stack would fail, or a run would change other resources than with the operator.
    requires_action: bool,
    change: String,
    action: String,
}

impl Finding {
    fn required(field: impl Into<String>, change: impl Into<String>, action: impl Into<String>) -> Self {
        Finding { field: field.into(), requires_action: true, change: change.into(), action: action.into() }
    }
}

/// Returns the findings about a Stack.
pub fn findings(stack: &Stack) -> Vec<Finding> {
    let spec = &stack.spec;
    let single = [open_run(stack), sources(spec), backend(spec), expected_refresh(spec), existing_stack(stack)];
    let mut all: Vec<Finding> = single.into_iter().flatten().collect();
    all.extend(repositories(spec));
    all.extend(variables(spec));
    all.extend(pod_template(spec));
    all
}

fn open_run(stack: &Stack) -> Option<Finding> {
    let open = &stack.status.as_ref()?.current_update.as_ref()?.name;
    let change = format!("stopping the operator interrupts the open run {open}");
    Some(Finding::required("status.currentUpdate", change, "wait until the run has ended"))
}

fn sources(spec: &StackSpec) -> Option<Finding> {
    let template = |field: &str| in_template(spec, &format!("/spec/{field}")).is_some();
    let all = [
        ("spec.projectRepo", spec.project_repo.is_some() || spec.repo_dir.is_some()),
        ("spec.fluxSource", spec.flux_source.is_some()),
        ("spec.programRef", spec.program_ref.is_some()),
        ("spec.workspaceTemplate.spec.git", template("git")),
        ("spec.workspaceTemplate.spec.flux", template("flux")),
        ("spec.workspaceTemplate.spec.local", template("local")),
    ];
    let set: Vec<&str> = all.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect();
    let change = "the controller rejects a Stack with several sources";
    (set.len() > 1).then(|| Finding::required(set.join(", "), change, "keep only the source that the operator uses"))
}

fn backend(spec: &StackSpec) -> Option<Finding> {
    let variable = spec.env_refs.get("PULUMI_BACKEND_URL").and_then(|variable| variable.literal.as_ref());
    let urls = [
        ("spec.backend", spec.backend.as_deref()),
        ("spec.envRefs[PULUMI_BACKEND_URL]", variable.map(|literal| literal.value.as_str())),
    ];
    urls.into_iter().find_map(|(field, url)| {
        let url = url.map(str::trim).filter(|url| !url.is_empty())?;
        // The message omits the rest of the URL, because it can contain credentials.
        let scheme = url.split_once("://").map_or(url, |(scheme, _)| scheme);
        let is_supported = url.contains("://") && BACKENDS.contains(&scheme.to_ascii_lowercase().as_str());
        let change = format!("the controller does not support backends with the scheme {scheme:?}");
        (!is_supported).then(|| Finding::required(field, change, "move the state to another backend"))
    })
}

fn expected_refresh(spec: &StackSpec) -> Option<Finding> {
    let is_enforced = spec.expect_no_refresh_changes.unwrap_or_default() && spec.refresh.unwrap_or_default();
    let change = "a run fails if its refresh finds drift; the operator ignores the field";
    let action = "remove the field, or correct the drift first";
    is_enforced.then(|| Finding::required("spec.expectNoRefreshChanges", change, action))
}

/// Returns a finding for a Stack whose Pulumi stack may not exist. A successful run of the operator has created it.
fn existing_stack(stack: &Stack) -> Option<Finding> {
    let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
    let has_succeeded = last.is_some_and(|last| last.state.as_deref() == Some("succeeded"));
    let is_enforced = stack.spec.use_local_stack_only.unwrap_or_default() && !has_succeeded;
    let change = "a run does not create a missing Pulumi stack; the operator ignores the field";
    let action = "create the Pulumi stack, or remove the field";
    is_enforced.then(|| Finding::required("spec.useLocalStackOnly", change, action))
}

fn repositories(spec: &StackSpec) -> Vec<Finding> {
    let template = in_template(spec, "/spec/git/url").and_then(Value::as_str);
    let urls = [("spec.projectRepo", spec.project_repo.as_deref()), ("spec.workspaceTemplate.spec.git.url", template)];
    let urls = urls.into_iter().filter_map(|(field, url)| Some((field, url?.trim())));
    urls.flat_map(|(field, url)| {
        let change = "the controller rejects a repository URL with a password";
        let action = "store the password in a Secret, and set spec.gitAuthSecret";
        let password = has_password(url).then(|| Finding::required(field, change, action));
        let change = "the controller does not read the operator's known_hosts file";
        let action = "copy it to the ConfigMap pulumi-controller-git";
        let hosts = || Finding { requires_action: false, ..Finding::required(field, change, action) };
        password.or_else(|| uses_ssh(url).then(hosts))
    })
    .collect()
}

fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    let user = authority.and_then(|authority| authority.rsplit_once('@')).map(|(user, _)| user);
    user.is_some_and(|user| user.contains(':'))
}

fn uses_ssh(url: &str) -> bool {
    url.starts_with("ssh://") || (!url.contains("://") && url.contains('@'))
}

fn variables(spec: &StackSpec) -> Vec<Finding> {
    let named = |list: &str| in_template(spec, list).and_then(Value::as_array).into_iter().flatten();
    let name = |variable: &Value| variable.get("name").and_then(Value::as_str).map(str::to_owned);
    let of_spec = spec.env_refs.keys().map(|name| ("spec.envRefs", name.clone()));
    let of_workspace = named("/spec/env").filter_map(name).map(|name| ("spec.workspaceTemplate.spec.env", name));
    let containers = named("/spec/podTemplate/spec/containers");
    let variables = containers.filter_map(|container| container.get("env")?.as_array()).flatten();
    let of_pod = variables.filter_map(name).map(|name| ("spec.workspaceTemplate.spec.podTemplate", name));
    of_spec.chain(of_workspace).chain(of_pod).filter_map(|(field, name)| variable(field, &name)).collect()
}

fn variable(field: &str, name: &str) -> Option<Finding> {
    let (change, action) = if LEGACY_LAYOUT.contains(&name) {
        let change = "Pulumi CLI 3.275 and later reject a backend with the layout without projects";
        let action = "upgrade the layout with `pulumi state upgrade` of Pulumi CLI 3.274.1 or earlier";
        (change.to_owned(), action.to_owned())
    } else if cli_options::is_removed(name) {
        let change = match cli_options::effect_of_removal(name) {
            Some(effect) => format!("no run starts, because runs ignore the variable and {effect}"),
            None => "runs ignore the variable".to_owned(),
        };
        (change, cli_options::instead_of(name))
    } else {
        return None;
    };
    Some(Finding::required(format!("{field}[{name}]"), change, action))
}

fn pod_template(spec: &StackSpec) -> Vec<Finding> {
    const POD: &str = "spec.workspaceTemplate.spec.podTemplate";
    let mut all = Vec::new();
    let containers = in_template(spec, "/spec/podTemplate/spec/containers").and_then(Value::as_array);
    let pulumi = containers.into_iter().flatten().find(|container| container["name"] == PULUMI_CONTAINER);
    for field in CONTAINER_FIELDS.into_iter().filter(|field| pulumi.is_some_and(|found| found.get(field).is_some())) {
        let path = format!("{POD}.spec.containers[{PULUMI_CONTAINER}].{field}");
        all.push(Finding::required(path, "the controller rejects this field", "remove the field"));
    }
    for field in ["hostPID", "shareProcessNamespace"] {
        if in_template(spec, &format!("/spec/podTemplate/spec/{field}")) == Some(&Value::Bool(true)) {
            let path = format!("{POD}.spec.{field}");
            all.push(Finding::required(path, "the controller rejects this field", "remove the field"));
        }
    }
    let text = spec.workspace_template.as_ref().map(Value::to_string).unwrap_or_default();
    for missing in MISSING_IN_POD.into_iter().filter(|item| text.contains(item)) {
        let change = format!("the workspace pod does not contain {missing}");
        all.push(Finding::required("spec.workspaceTemplate", change, "remove the reference"));
    }
    all
}

fn in_template<'a>(spec: &'a StackSpec, pointer: &str) -> Option<&'a Value> {
    spec.workspace_template.as_ref()?.pointer(pointer).filter(|value| !value.is_null())
}

/// Returns the findings about Stacks that manage the same Pulumi stack, by index of the Stack. Compares the Stacks of
/// each namespace, as the controller does by default.
fn duplicates(stacks: &[Stack]) -> BTreeMap<usize, Finding> {
    let mut earlier: BTreeMap<[String; 4], Vec<(Option<&str>, &Stack)>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for (index, stack) in stacks.iter().enumerate().filter(|(_, stack)| !stack.spec.preview.unwrap_or_default()) {
        let parts: Vec<&str> = stack.spec.stack.split('/').collect();
        let known = stack.status.as_ref().and_then(|status| status.project_info.as_ref()).map(|info| &info.name);
        let project = if let [_, project, _] = parts[..] { Some(project.to_owned()) } else { known.cloned() };
        let (Some(project), Some(name)) = (project, parts.last()) else { continue };
        let namespace = stack.namespace().unwrap_or_default();
        let key = [namespace, stack.spec.backend.clone().unwrap_or_default(), project, (*name).to_owned()];
        let organization = parts.split_last().and_then(|(_, rest)| rest.first()).copied();
        let organization = organization.or_else(|| default_organization(&stack.spec));
        let same = earlier.entry(key).or_default();
        let is_same = |other: &Option<&str>| organization.is_none() || other.is_none() || *other == organization;
        let other = same.iter().find(|(other, _)| is_same(other)).map(|(_, stack)| *stack);
        same.push((organization, stack));
        if let Some(other) = other {
            let change =
                format!("Stack {} manages the same Pulumi stack, and only one of the Stacks runs", full_name(other));
            found.insert(
                index,
                Finding::required("spec.stack", change, "delete one of the Stacks, or set spec.preview"),
            );
        }
    }
    found
}

/// Returns the organization for a Pulumi stack whose name contains none. Returns `None` if it is unknown.
fn default_organization(spec: &StackSpec) -> Option<&str> {
    let literal = spec.env_refs.get(DEFAULT_ORGANIZATION)?.literal.as_ref()?;
    Some(literal.value.as_str()).filter(|name| !name.is_empty())
}

/// Findings about all Stacks.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Report {
    rows: Vec<Row>,
    #[serde(skip)]
    with_namespaces: bool,
    #[serde(skip)]
    place: String,
}

#[derive(Serialize)]
struct Row {
    namespace: String,
    name: String,
    #[serde(flatten)]
    finding: Finding,
}

impl Report {
    /// Returns the findings about the Stacks of a namespace, or of all namespaces if `namespace` is `None`.
    pub fn of(stacks: &[Stack], namespace: Option<&str>) -> Self {
        let mut duplicates = duplicates(stacks);
        let rows = stacks.iter().enumerate().flat_map(|(index, stack)| {
            let row =
                |finding| Row { namespace: stack.namespace().unwrap_or_default(), name: stack.name_any(), finding };
            findings(stack).into_iter().chain(duplicates.remove(&index)).map(row).collect::<Vec<_>>()
        });
        let place = namespace.map_or_else(|| "the cluster".to_owned(), |namespace| format!("namespace {namespace}"));
        Report { rows: rows.collect(), with_namespaces: namespace.is_none(), place }
    }

    /// Returns the number of Stacks that require an action.
    pub fn affected(&self) -> usize {
        let rows = self.rows.iter().filter(|row| row.finding.requires_action);
        rows.map(|row| (&row.namespace, &row.name)).collect::<std::collections::BTreeSet<_>>().len()
    }
}

impl Screen for Report {
    fn text(&self) -> String {
        if self.rows.is_empty() {
            return format!("✔ no Stack in {} requires a change before the migration\n", self.place);
        }
        let mut header = vec!["NAME", "FIELD", "REQUIRED", "CHANGE", "ACTION"];
        if self.with_namespaces {
            header.insert(0, "NAMESPACE");
        }
        let cells = |row: &Row| {
            let Finding { field, requires_action, change, action } = &row.finding;
            let required = if *requires_action { "yes" } else { "no" };
            let mut cells = vec![row.name.clone(), field.clone(), required.to_owned(), change.clone(), action.clone()];
            if self.with_namespaces {
                cells.insert(0, row.namespace.clone());
            }
            cells
        };
        table(&header, &self.rows.iter().map(cells).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            (
                json!({"programRef": {"name": "app"}, "repoDir": "infra"}),
                json!({}),
                vec!["spec.projectRepo, spec.programRef"],
            ),
            (json!({"backend": "mem://"}), json!({}), vec!["spec.backend"]),
            (json!({"backend": "S3://state"}), json!({}), vec![]),
            (
                json!({"envRefs": {"PULUMI_BACKEND_URL": literal("ftp://user:hunter2@host")}}),
                json!({}),
                vec!["spec.envRefs[PULUMI_BACKEND_URL]"],
            ),
            (json!({"expectNoRefreshChanges": true}), json!({}), vec![]),
            (json!({"expectNoRefreshChanges": true, "refresh": true}), json!({}), vec!["spec.expectNoRefreshChanges"]),
            (json!({"useLocalStackOnly": true}), json!({}), vec!["spec.useLocalStackOnly"]),
            (json!({"useLocalStackOnly": true}), succeeded(), vec![]),
            (json!({"projectRepo": "https://user:hunter2@git.example/app"}), json!({}), vec!["spec.projectRepo"]),
            (json!({"projectRepo": "https://git.example/a:b@c"}), json!({}), vec![]),
            (json!({"projectRepo": "git@git.example:app"}), json!({}), vec!["?spec.projectRepo"]),
            (
                template(json!({"git": {"url": "ssh://git@git.example/app"}})),
                json!({}),
                vec!["?spec.workspaceTemplate.spec.git.url"],
            ),
            (
                json!({"envRefs": {"PULUMI_OPTION_TARGET": literal("urn"), "PULUMI_OPTION_POLICY_PACK": literal("a")}}),
                json!({}),
                vec!["spec.envRefs[PULUMI_OPTION_TARGET]"],
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

    #[test]
    fn the_command_reads_the_stacks_of_the_operator() {
        let list: Value = serde_saphyr::from_str(include_str!("../../../../tests/operator/stacks.yaml")).unwrap();
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
    fn the_report_counts_the_stacks_that_require_an_action() {
        let stacks = [
            stack("database", &json!({"projectRepo": "git@git.example:database", "branch": "main"}), &json!({})),
            stack("network", &json!({}), &json!({})),
            stack(
                "web",
                &json!({"expectNoRefreshChanges": true, "refresh": true, "envRefs": {"PULUMI_OPTION_TARGET": {"type": "Literal"}}}),
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
}
