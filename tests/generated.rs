//! Checks that generated files match their sources. `REGENERATE=1 cargo test --test generated` rewrites the files.

#[path = "generated/argo_cd.rs"]
mod argo_cd;
#[path = "generated/chart_values.rs"]
mod chart_values;
#[path = "protocol/compatibility.rs"]
mod compatibility;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{ArgAction, CommandFactory};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use protox::prost_reflect::DescriptorPool;
use pulumi_controller::api::cli_options;
use pulumi_controller::api::definitions::custom_resource_definitions;
use pulumi_controller::cli::CommandLine;
use pulumi_controller::controller::stack::settings_without_effect;
use serde::Deserialize;
use serde_json::Value;

/// Header of a generated YAML file.
const GENERATED: &str = "# Generated from the types in src/api: change those, then run `make generate`.\n";

/// Maximum total size of an object's annotations in bytes. `kubectl apply` stores the applied object in an annotation.
const ANNOTATION_LIMIT: usize = 256 * 1024 - OVERLAY_METADATA;
/// Size of the metadata that overlays add to a definition, in bytes.
const OVERLAY_METADATA: usize = 500;

/// Compares a file with its expected content. If `REGENERATE` is set, writes the expected content to the file.
fn expect_file(path: &Path, expected: &str) -> Result<()> {
    if std::env::var_os("REGENERATE").is_some() {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        return std::fs::write(path, expected).with_context(|| format!("cannot write {}", path.display()));
    }
    let found = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(found == expected, "{} is out of date: run `make generate`", path.display());
    Ok(())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Agents and controllers of other versions use the released protocol. With `REGENERATE=1`, this test adds new elements
/// to the descriptor set file. If a released element was removed or changed, the test fails and does not change the
/// file.
#[test]
fn the_released_descriptor_set_matches_the_proto() -> Result<()> {
    let protos = root().join("src/rpc/protos");
    let path = protos.join("agent.v1.binpb");
    let mut compiler = protox::Compiler::new([&protos])?;
    let today = compiler.include_source_info(false).open_file("agent.proto")?.encode_file_descriptor_set();
    let released = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
    if std::env::var_os("REGENERATE").is_none() {
        anyhow::ensure!(released? == today, "{} is out of date: run `make generate`", path.display());
        return Ok(());
    }
    if let Ok(released) = released {
        let pools = [DescriptorPool::decode(released.as_slice())?, DescriptorPool::decode(today.as_slice())?];
        let broken = compatibility::incompatible_changes(&pools[0], &pools[1]);
        anyhow::ensure!(
            broken.is_empty(),
            "the protocol has incompatible changes; keep the released elements and add new elements instead:\n{}",
            broken.join("\n")
        );
    }
    std::fs::write(&path, today).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the file name that controller-gen would use, such as `pulumi.com_stacks.yaml`.
fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

#[test]
fn the_crd_files_match_the_types_exactly() -> Result<()> {
    let folder = root().join("config/crd");
    let mut names = Vec::new();
    for crd in custom_resource_definitions() {
        let name = file_name(&crd);
        let yaml = serde_saphyr::to_string(&crd).with_context(|| format!("cannot write {name} as YAML"))?;
        expect_file(&folder.join(&name), &format!("{GENERATED}{yaml}"))?;
        names.push(name);
    }
    names.sort();
    expect_file(&folder.join("kustomization.yaml"), &kustomization_of(&names))?;
    assert_eq!(resource_files(&folder)?, names, "config/crd contains exactly one file per CustomResourceDefinition");
    Ok(())
}

fn kustomization_of(names: &[String]) -> String {
    let resources: String = names.iter().map(|name| format!("  - {name}\n")).collect();
    format!("{GENERATED}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}")
}

fn resource_files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "kustomization.yaml" {
            files.push(name);
        }
    }
    files.sort();
    Ok(files)
}

/// Start and end markers of the flag table in the documentation.
const FLAGS: [&str; 2] = ["<!-- flags: generated from src/cli.rs by `make generate` -->\n", "<!-- /flags -->\n"];

#[test]
fn the_documented_flags_match_the_manager_flags() -> Result<()> {
    expect_between(&root().join("docs/flags.md"), FLAGS, &table_of_flags()?)
}

/// Compares the text between two markers in a document with the expected content. Like [`expect_file`], writes the
/// expected content if `REGENERATE` is set.
fn expect_between(path: &Path, [start, end]: [&str; 2], expected: &str) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let missing = |marker: &str| format!("{} does not contain the line {marker}", path.display());
    let (before, rest) = text.split_once(start).with_context(|| missing(start))?;
    let (_, after) = rest.split_once(end).with_context(|| missing(end))?;
    expect_file(path, &[before, start, expected, end, after].concat())
}

/// Start and end markers of the table of settings without effect in the documentation.
const SETTINGS: [&str; 2] = [
    "<!-- settings: generated from src/controller/stack/ignored_settings.rs and the schema by `make generate` -->\n",
    "<!-- /settings -->\n",
];

#[test]
fn the_documented_settings_without_effect_match_the_code() -> Result<()> {
    expect_between(&root().join("docs/spec/v1/stack.md"), SETTINGS, &table_of_settings()?)
}

/// Returns the table of the combinations of settings that the API server rejects or that have no effect. A rule that the
/// API server evaluates for the complete Stack has the path `spec`.
fn table_of_settings() -> Result<String> {
    let crd = custom_resource_definitions().into_iter().find(|crd| crd.spec.names.kind == "Stack");
    let version = crd.and_then(|crd| crd.spec.versions.into_iter().find(|version| version.storage));
    let schema = serde_json::to_value(version.context("Stack has no storage version")?.schema)?;
    let mut rejected = Vec::new();
    collect_rules("", schema.get("openAPIV3Schema").context("Stack has no schema")?, &mut rejected);
    let mut table = "\n| setting | combination | result |\n|---|---|---|\n".to_owned();
    let mut add = |settings: &[String], combination: &str, result: &str| {
        let settings = settings.iter().map(|setting| format!("`{setting}`")).collect::<Vec<_>>().join(", ");
        table.push_str(&format!("| {settings} | {combination} | {result} |\n"));
    };
    for (settings, message) in rejected {
        add(&settings, &format!("`{message}`"), "the API server rejects the Stack");
    }
    let variables: Vec<String> = cli_options::refused().collect();
    add(&variables, "in `envRefs` or `workspaceTemplate`", "the Stack is `Stalled` with the reason `SpecInvalid`");
    let mut ignored = settings_without_effect();
    ignored.sort_unstable();
    for (setting, combination) in ignored {
        add(&[setting.to_owned()], combination, "condition `SettingsIgnored`");
    }
    table.push('\n');
    Ok(table)
}

/// Adds the message of each rule that combines several fields of the spec, and these fields.
fn collect_rules(path: &str, schema: &Value, found: &mut Vec<(Vec<String>, String)>) {
    let list = |field: &str| schema.get(field).and_then(Value::as_array).into_iter().flatten();
    for rule in list("x-kubernetes-validations") {
        let text = |field: &str| rule.get(field).and_then(Value::as_str);
        let (Some(text), Some(message)) = (text("rule"), text("message")) else { continue };
        let is_part = |c: char| c.is_alphanumeric() || c == '.';
        let fields = text.split("self.").skip(1).map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
        let fields: BTreeSet<String> = fields
            .map(|field| format!("{path}{field}"))
            .filter_map(|field| field.strip_prefix("spec.").map(str::to_owned))
            .collect();
        let is_parent = |field: &String| fields.iter().any(|other| other.starts_with(&format!("{field}.")));
        let fields: Vec<String> = fields.iter().filter(|field| !is_parent(field)).cloned().collect();
        if fields.len() > 1 {
            found.push((fields, message.to_owned()));
        }
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        collect_rules(&format!("{path}{name}."), property, found);
    }
}

fn table_of_flags() -> Result<String> {
    let command = CommandLine::command();
    let manager = command.find_subcommand("manager").context("the command line has no subcommand manager")?;
    let mut table = "| flag | default | |\n|---|---|---|\n".to_owned();
    for flag in manager.get_arguments() {
        let shows = matches!(flag.get_action(), ArgAction::Set | ArgAction::Append);
        let Some(name) = flag.get_long().filter(|_| shows) else { continue };
        let defaults: Vec<_> = flag.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = match (defaults.concat(), flag.get_env()) {
            (_, Some(variable)) => format!("environment variable `{}`", variable.to_string_lossy()),
            (none, None) if none.is_empty() => String::new(),
            (default, None) => format!("`{default}`"),
        };
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        table.push_str(&format!("| `--{name}` | {default} | {help} |\n"));
    }
    Ok(table)
}

/// Start and end markers of the table in README.md that lists the tested features of each language.
const LANGUAGES: [&str; 2] = [
    "<!-- languages: generated from tests/e2e/languages/coverage.yaml by `make generate` -->\n",
    "<!-- /languages -->\n",
];

/// Table cell for a feature that a language does not support.
const UNSUPPORTED: &str = "unsupported";

/// A feature, and the end-to-end test that covers the feature in each language.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Feature {
    feature: String,
    typescript: String,
    python: String,
    go: String,
}

impl Feature {
    fn tests(&self) -> [&str; 3] {
        [&self.typescript, &self.python, &self.go]
    }
}

#[test]
fn the_table_of_languages_lists_exactly_the_tested_features() -> Result<()> {
    let folder = root().join("tests/e2e/languages");
    let coverage = folder.join("coverage.yaml");
    let text = std::fs::read_to_string(&coverage).with_context(|| format!("cannot read {}", coverage.display()))?;
    let features: Vec<Feature> = serde_saphyr::from_str(&text)?;
    let listed: BTreeSet<&str> = features.iter().flat_map(Feature::tests).filter(|test| *test != UNSUPPORTED).collect();
    let existing = test_functions(&folder)?;
    let absent: Vec<_> = listed.iter().filter(|test| !existing.contains_key(**test)).collect();
    anyhow::ensure!(absent.is_empty(), "{}: these tests do not exist: {absent:?}", coverage.display());
    let unlisted: Vec<_> = existing.iter().filter(|(test, _)| !listed.contains(test.as_str())).collect();
    anyhow::ensure!(unlisted.is_empty(), "{} does not list these tests: {unlisted:?}", coverage.display());
    expect_between(&root().join("README.md"), LANGUAGES, &table_of_languages(&features))
}

fn table_of_languages(features: &[Feature]) -> String {
    let cell = |test: &str| if test == UNSUPPORTED { "—" } else { "tested" };
    let row = |feature: &Feature| format!("| {} | {} |\n", feature.feature, feature.tests().map(cell).join(" | "));
    let rows: String = features.iter().map(row).collect();
    format!("| feature | TypeScript | Python | Go |\n|---|---|---|---|\n{rows}")
}

/// Maps the name of each test function in a directory, and in the module with the same name, to its file.
fn test_functions(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![folder.to_owned(), folder.with_extension("rs")];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                pending.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.exists() {
            let text = std::fs::read_to_string(&path)?;
            let functions =
                text.split("#[test]").skip(1).filter_map(|after| after.split_once("fn ")?.1.split_once('('));
            for (name, _) in functions {
                found.insert(name.to_owned(), path.clone());
            }
        }
    }
    Ok(found)
}

/// The end-to-end tests run the examples with the test cluster's registry, which contains only the packages in the
/// registry's lock files. The test compares only the lines that identify packages in the lock files.
#[test]
fn the_registry_of_the_test_cluster_has_all_packages_of_the_examples() -> Result<()> {
    let files = [
        ("typescript/program/package-lock.json", "npm/package-lock.json", "\"integrity\""),
        ("python/program/requirements.txt", "pypi/requirements.txt", "=="),
        ("go/program/go.sum", "go/go.sum", " h1:"),
    ];
    for (example, registry, relevant) in files {
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let lines = text.lines().filter(|line| line.contains(relevant));
            // Python treats `-` and `_` in names as equal, and ignores case. Only the registry's lock file contains
            // hashes.
            let packages = lines.map(|line| line.split(" --hash").next().unwrap_or_default().replace('-', "_"));
            anyhow::Ok(packages.map(|package| package.to_lowercase()).collect::<BTreeSet<String>>())
        };
        let packages = read(root().join("examples").join(example))?;
        let available = read(root().join("tests/cluster/languages/packages").join(registry))?;
        let absent: Vec<_> = packages.difference(&available).collect();
        anyhow::ensure!(
            !packages.is_empty() && absent.is_empty(),
            "examples/{example}: {absent:?} are not in {registry}"
        );
    }
    Ok(())
}

/// Every path in the kube-state-metrics configuration must exist in the Stack schema. kube-state-metrics does not
/// report a wrong path, and exports an empty label instead.
#[test]
fn kube_state_metrics_paths_exist_in_the_stack_schema() -> Result<()> {
    let path = root().join("config/kube-state-metrics/custom-resource-state.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: Value = serde_saphyr::from_str(&text)?;
    let stacks = custom_resource_definitions().into_iter().find(|crd| crd.spec.names.kind == "Stack");
    let version = stacks.context("no Stack CRD")?.spec.versions.into_iter().find(|version| version.name == "v1");
    let schema = serde_json::to_value(version.and_then(|version| version.schema).context("the Stack has no schema")?)?;
    let metric = &config["spec"]["resources"][0]["metrics"][0];
    let name = [&config["spec"]["resources"][0]["metricNamePrefix"], &metric["name"]];
    assert_eq!(name, ["gotk", "resource_info"], "Flux's dashboards use this metric");
    let labels = metric["labelsFromPath"].as_object().context("no labels")?;
    assert!(labels.len() > 4, "{labels:?}");
    for (label, path) in labels {
        let mut at = &schema["openAPIV3Schema"];
        for part in path.as_array().context("no path")?.iter().filter_map(Value::as_str) {
            at = match part {
                "metadata" => break,
                item if item.starts_with('[') => &at["items"],
                field => &at["properties"][field],
            };
        }
        assert!(at.is_object(), "{label}: a Stack has no field at {path}");
    }
    Ok(())
}

/// Developers write the RBAC rules manually. This test rejects rules that are too broad.
#[test]
fn every_rbac_rule_has_a_reason_and_none_grants_all_secrets() -> Result<()> {
    for name in ["cluster-role.yaml", "workspace-role.yaml", "role.yaml", "approver-role.yaml"] {
        let path = root().join("config/rbac").join(name);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[1].starts_with("  - apiGroups")) {
            assert!(pair[0].starts_with("  # "), "{name}: no comment with the reason above {}", pair[1]);
        }
        let role: Value = serde_saphyr::from_str(&text).with_context(|| format!("{name} is not valid YAML"))?;
        for rule in role["rules"].as_array().with_context(|| format!("{name} has no rules"))? {
            let has =
                |field: &str, word: &str| rule[field].as_array().is_some_and(|words| words.contains(&word.into()));
            assert!(
                !["apiGroups", "resources", "verbs"].iter().any(|field| has(field, "*")),
                "{name}: {rule} opens all"
            );
            let reads_many = has("verbs", "list") || has("verbs", "watch");
            assert!(!(has("resources", "secrets") && reads_many), "{name}: {rule} reads all Secrets");
        }
    }
    Ok(())
}

/// A controller for a single namespace has only this Role in its own namespace, which contains the Lease and the Secret
/// of the certificate authority.
#[test]
fn the_controller_may_emit_events_in_its_own_namespace() -> Result<()> {
    let role: Value = serde_saphyr::from_str(&std::fs::read_to_string(root().join("config/rbac/role.yaml"))?)?;
    let rules = role["rules"].as_array().context("no rules")?;
    let rule = rules.iter().find(|rule| rule["resources"] == serde_json::json!(["events"])).context("no rule")?;
    assert_eq!(rule["verbs"], serde_json::json!(["create", "patch"]));
    Ok(())
}

#[test]
fn the_crds_are_small_enough_for_plain_kubectl_apply() -> Result<()> {
    for crd in custom_resource_definitions() {
        let size = serde_json::to_string(&crd)?.len();
        assert!(
            size < ANNOTATION_LIMIT,
            "{} has {size} bytes, but the limit for kubectl apply is {ANNOTATION_LIMIT}",
            file_name(&crd)
        );
    }
    Ok(())
}
