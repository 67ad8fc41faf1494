//! Checks the inputs and outputs of `pulumi_controller::pulumi` with the Pulumi CLI. If `pulumi` or
//! `pulumi-language-yaml` is not on the `PATH`, each test skips itself or, if the environment variable `CI` is set,
//! fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pulumi_controller::api::pulumi::Program;
use pulumi_controller::pulumi::arguments::{self, Operation, OperationKind, Options};
use pulumi_controller::pulumi::events::{EngineEvent, LineSplitter};
use pulumi_controller::pulumi::failure::exit::Exit;
use pulumi_controller::pulumi::failure::{self, FailureKind};
use pulumi_controller::pulumi::project::Project;
use pulumi_controller::pulumi::run_summary::RunSummary;
use pulumi_controller::pulumi::settings::{self, Desired, Entry};
use pulumi_controller::pulumi::{cli, outputs};
use pulumi_controller::source::program;
use serde_json::{Value, json};

#[path = "required_programs/mod.rs"]
mod required_programs;

/// A project in its own directory with a local backend.
struct Workspace {
    directory: tempfile::TempDir,
}

impl Workspace {
    /// Creates a project. Returns `None` if the CLI is missing.
    fn new(program: &str) -> Option<Workspace> {
        if !required_programs::has_programs("a test with the Pulumi CLI", &["pulumi", "pulumi-language-yaml"]) {
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        for part in ["project", "state", "home"] {
            std::fs::create_dir(directory.path().join(part)).expect("a directory");
        }
        let workspace = Workspace { directory };
        std::fs::write(workspace.project().join("Pulumi.yaml"), program).expect("the program is written");
        Some(workspace)
    }

    fn path(&self, part: &str) -> PathBuf {
        self.directory.path().join(part)
    }

    fn project(&self) -> PathBuf {
        self.path("project")
    }

    fn pulumi(&self, arguments: Vec<OsString>) -> Output {
        Command::new("timeout")
            .args(["120", "pulumi"])
            .args(arguments)
            .current_dir(self.project())
            .env("PULUMI_BACKEND_URL", format!("file://{}", self.path("state").display()))
            .env("PULUMI_CONFIG_PASSPHRASE", "")
            .env("PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION", "true")
            .env("PULUMI_HOME", self.path("home"))
            .envs(cli::engine_environment(&self.path("home"), "pulumi"))
            .output()
            .expect("the CLI is started")
    }

    fn run(&self, kind: OperationKind) -> (Output, RunSummary) {
        let event_log = self.path("events");
        let operation = Operation {
            kind,
            stack: "dev",
            event_log: &event_log,
            refresh: true,
            message: Some("--a \"test\""),
            plan: None,
            save_plan: None,
            options: Options::default(),
        };
        let output = self.pulumi(arguments::arguments(&operation));
        let mut run = RunSummary::default();
        for line in LineSplitter::default().push(&std::fs::read(event_log).unwrap_or_default()) {
            run.observe(&EngineEvent::parse(&line.expect("event within the size limit")).expect("valid engine event"));
        }
        (output, run)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn exit(output: &Output) -> Exit {
    Exit { code: output.status.code(), signal: None }
}

fn write_settings(directory: &Path, config: &Value) {
    let project = Project::read(directory).expect("valid project file");
    let entry = |(key, value): (&String, &Value)| Entry {
        key: key.clone(),
        value: value.clone(),
        is_path: false,
        is_secret: false,
    };
    let config: Vec<_> = config.as_object().expect("an object").iter().map(entry).collect();
    let path = directory.join(project.settings_path("dev"));
    let original = "config:\n  kept: yes\n  octal: 010\n  region: west\n";
    let current = std::fs::read_to_string(&path).ok();
    let expected = Desired { config: &config, ..Desired::default() };
    let rebuilt =
        settings::rebuild(Some(original), current.as_deref(), &project.name, &expected, project.settings_format())
            .expect("the settings are rebuilt");
    std::fs::write(path, rebuilt.text).expect("the settings are written");
}

#[test]
fn a_program_reads_each_config_value_with_its_type() {
    // Each row contains a key, the configured value, and the value that the program receives. The YAML runtime converts
    // a string that contains a number to a number.
    let table = [
        ("text", json!("plain"), json!("plain")),
        ("empty", json!(""), json!("")),
        ("lines", json!("a\nb: c\n"), json!("a\nb: c\n")),
        ("special", json!("\u{7f}é\u{2028}😀\t\"\\"), json!("\u{7f}é\u{2028}😀\t\"\\")),
        ("zeros", json!("007"), json!("007")),
        ("five", json!("5"), json!(5)),
        ("integer", json!(-5), json!(-5)),
        ("large", json!(9_007_199_254_740_991_u64), json!(9_007_199_254_740_991_u64)),
        ("float", json!(1.5), json!(1.5)),
        ("truth", json!(true), json!(true)),
        ("list", json!([1, "2", "007", true, "true", []]), json!([1, "2", "007", true, "true", []])),
        ("object", json!({"a": {"b": "5", "c": 5, "null": "null"}}), json!({"a": {"b": "5", "c": 5, "null": "null"}})),
        ("region", json!("east"), json!("east")),
    ];
    let mut program = "name: echo\nruntime: yaml\noutputs:\n  kept: ${kept}\n  octal: ${octal}\n".to_owned();
    let mut config = serde_json::Map::new();
    for (key, given, _) in &table {
        program.push_str(&format!("  {key}: ${{{key}}}\n"));
        config.insert((*key).to_owned(), given.clone());
    }
    let Some(workspace) = Workspace::new(&program) else { return };
    assert!(workspace.pulumi(arguments::stack_init("dev", None)).status.success());
    write_settings(&workspace.project(), &Value::Object(config.clone()));

    let (output, run) = workspace.run(OperationKind::Up);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let seen: serde_json::Map<_, _> = run
        .outputs()
        .expect("outputs exist")
        .iter()
        .map(|output| (output.name.clone(), output.value.clone()))
        .collect();
    for (key, _, expected) in &table {
        assert_eq!(seen.get(*key), Some(expected), "{key}");
    }
    // The program also receives the values from the source's settings file.
    assert_eq!(seen.get("kept"), Some(&json!("yes")));
    assert_eq!(seen.get("octal"), Some(&json!(8)));

    let before = std::fs::read_to_string(workspace.project().join("Pulumi.dev.yaml")).expect("settings file");
    assert!(before.contains("encryptionsalt"), "the settings file contains no encryption salt: {before}");
    write_settings(&workspace.project(), &Value::Object(config));
    let after = std::fs::read_to_string(workspace.project().join("Pulumi.dev.yaml")).expect("settings file");
    assert!(after.contains("encryptionsalt"), "the encryption salt is lost: {after}");
}

#[test]
fn a_run_reports_its_outputs_and_the_cause_of_its_failure() {
    let program = "name: web\nruntime: yaml\nresources:\n  a: {type: 'pulumi:index:Stash', properties: {input: x}}\n\
                   outputs: {port: 8080, token: {fn::secret: hidden}, file: {fn::stringAsset: hello}}\n";
    let Some(workspace) = Workspace::new(program) else { return };
    let (output, run) = workspace.run(OperationKind::Up);
    let missing = failure::classify(exit(&output), &text(&output.stdout), &text(&output.stderr), &run);
    assert_eq!((missing.kind, missing.message.as_str()), (FailureKind::StackMissing, "no stack named 'dev' found"));

    assert!(workspace.pulumi(arguments::stack_init("dev", None)).status.success());
    assert!(failure::stack_exists(&text(&workspace.pulumi(arguments::stack_init("dev", None)).stderr)));
    let (output, run) = workspace.run(OperationKind::Up);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(run.resource_changes().get("create"), Some(&2), "{:?}", run.resource_changes());
    let redacted = run.outputs().expect("outputs exist");
    assert!(outputs::need_values(redacted) && !format!("{redacted:?}").contains("hidden"));
    let revealed = workspace.pulumi(arguments::stack_output("dev"));
    let revealed = outputs::parse(&revealed.stdout).expect("valid JSON");
    let found = outputs::combine(redacted, &revealed).expect("all outputs exist");
    let found: Vec<_> = found.iter().map(|output| (output.name.as_str(), &output.value, output.secret)).collect();
    assert_eq!(found[0].1["text"], json!("hello"));
    assert_eq!(found[1..], [("port", &json!(8080), false), ("token", &json!("hidden"), true)]);

    let broken = program.replace("input: x", "input: '${missing}'");
    std::fs::write(workspace.project().join("Pulumi.yaml"), broken).expect("the program is written");
    let (output, run) = workspace.run(OperationKind::Up);
    let failed = failure::classify(exit(&output), &text(&output.stdout), &text(&output.stderr), &run);
    assert_eq!(failed.kind, FailureKind::Failed);
    assert!(failed.message.contains("\"missing\" not found"), "{}", failed.message);

    std::fs::write(workspace.project().join("Pulumi.yaml"), program).expect("the program is written");
    let (output, run) = workspace.run(OperationKind::Destroy);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(run.resource_changes().get("delete"), Some(&2), "{:?}", run.resource_changes());
}

#[test]
fn a_lock_is_reported_as_a_conflict_with_its_holder() {
    let Some(workspace) = Workspace::new("name: web\nruntime: yaml\n") else { return };
    assert!(workspace.pulumi(arguments::stack_init("dev", None)).status.success());
    let locks = workspace.path("state/.pulumi/locks/organization/web/dev");
    std::fs::create_dir_all(&locks).expect("a directory");
    let lock =
        json!({"pid": 42, "username": "pulumi", "hostname": "web-workspace-0", "timestamp": "2026-01-02T03:04:05Z"});
    std::fs::write(locks.join("00000000-0000-0000-0000-000000000000.json"), lock.to_string()).expect("write the lock");
    let (output, run) = workspace.run(OperationKind::Up);
    let failure = failure::classify(exit(&output), &text(&output.stdout), &text(&output.stderr), &run);
    let FailureKind::Conflict { holders } = failure.kind else { panic!("{failure:?}") };
    assert_eq!((holders[0].host.as_str(), holders[0].pid), ("web-workspace-0", 42));
    assert!(
        failure.message.contains("pulumi@web-workspace-0 (pid 42) since 2026-01-02T03:04:05Z"),
        "{}",
        failure.message
    );
}

/// Returns a program that uses the CLI's built-in resources, and every resource option that needs no provider.
fn every_option() -> Value {
    let options = json!({
        "additionalSecretOutputs": ["output"], "aliases": [{"name": "older", "noParent": true}], "parent": "${group}",
        "customTimeouts": {"create": "5m", "update": "6m", "delete": "7m", "read": "8m"}, "deleteBeforeReplace": true,
        "deletedWith": "${group}", "dependsOn": ["${group}"], "hideDiffs": ["input"], "ignoreChanges": ["input"],
        "protect": "${flag}", "replaceOnChanges": ["input"], "replaceWith": ["${group}"], "replacementTrigger": "${flag}",
        "retainOnDelete": false,
    });
    json!({
        "description": "every option", "pulumi": {"requiredVersion": ">=3.0.0"},
        "config": {"flag": {"type": "boolean", "default": false}, "aws:region": {"value": "eu-central-1"}},
        "configuration": {"token": {"type": "String", "secret": true, "name": "apiToken", "default": "hidden"},
            "settings": {"type": "Object", "default": {"host": "localhost"}}},
        "variables": {"text": "$${not} ${settings.host} ${aws:region}"},
        "resources": {
            "group": {"type": "pulumi:index:Stash", "properties": {"input": "${text}"}},
            "one": {"type": "pulumi:index:Stash", "name": "the-one", "properties": {"input": "${token}"}, "options": options},
        },
        "outputs": {"one": "${one.output}"},
    })
}

/// Returns programs. The flag for a program is true if the CLI can run the program.
fn programs() -> Vec<(Value, bool)> {
    let stash = |more: Value| {
        let mut stash = json!({"type": "pulumi:index:Stash", "properties": {"input": "x"}});
        stash.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"resources": {"a": stash, "b": {"type": "pulumi:index:Stash", "properties": {"input": "y"}}}})
    };
    let option = |name: &str, value: Value| stash(json!({"options": {name: value}}));
    vec![
        (every_option(), true),
        (json!({"configuration": {"n": {"type": "Numbr"}}, "outputs": {"a": "${given}"}}), true),
        (json!({"configuration": {"n": {"type": "Number", "default": "x"}}}), true),
        (json!({"configuration": {"n": {"type": "int"}}, "variables": {"n": 1}}), true),
        (stash(json!({"get": {"id": "x"}})), false),
        (stash(json!({"defaultProvider": false})), false),
        (option("dependsOn", json!("${b}")), false),
        (option("providers", json!({"own": "${b}"})), false),
        (option("parent", json!("${given}")), false),
        (option("protect", json!("yes")), false),
        (option("version", json!("${b.id}")), false),
        (json!({"variables": {"a": "${b}", "b": "${a}"}}), false),
        (json!({"config": {"x": 1.5}}), false),
        (json!({"config": {"x": {"type": "integer", "default": "y"}}}), false),
        (json!({"outputs": {"a": "${b"}}), false),
    ]
}

#[test]
fn a_program_object_is_rejected_if_and_only_if_the_cli_rejects_it() {
    let Some(workspace) = Workspace::new("name: app\nruntime: yaml\n") else { return };
    assert!(workspace.pulumi(arguments::stack_init("dev", None)).status.success());
    for (content, runs) in programs() {
        let object = json!({"metadata": {"name": "app"}, "program": content});
        let program: Program = serde_json::from_value(object).expect("a Program");
        let rendered = program::render(&program).expect("rendered Program");
        std::fs::write(workspace.project().join("Pulumi.yaml"), rendered).expect("the program is written");
        write_settings(&workspace.project(), &json!({"n": 3, "given": "a value"}));
        let (output, _) = workspace.run(OperationKind::Up);
        let message = format!("{content}\n{}{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.success(), runs, "{message}");
        assert_eq!(program::make(&program).is_ok(), runs, "{message}{:?}", program::make(&program));
    }
}
