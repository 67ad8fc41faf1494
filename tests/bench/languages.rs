//! Measures programs in TypeScript, Python and Go. The measured time starts with a new artifact in the source status,
//! and ends when the Update completes. The baseline makes the same change in the same pod with only the package manager
//! and the CLI.

use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::languages::{IMAGE, registry_variables};
use crate::harness::{File, Scene, in_scene};
use crate::moments::{Moment, Moments, now};
use crate::path::{PULUMI_UP, Pod, STEPS, moments_of, steps, total};
use crate::table::{Row, median};

const ROUNDS: usize = 5;
/// Overhead budget for a commit that changes only code, in seconds.
const CODE_BUDGET: f64 = 0.5;
/// Overhead budget for a commit that changes the lock file, in seconds.
const LOCK_BUDGET: f64 = 1.0;

const PACKAGE: &str = include_str!("../cluster/languages/packages/npm/package.json");
const PACKAGE_LOCK: &str = include_str!("../cluster/languages/packages/npm/package-lock.json");
const REQUIREMENTS: &str = include_str!("../cluster/languages/packages/pypi/requirements.txt");
const GO_MOD: &str = include_str!("../cluster/languages/packages/go/go.mod");
const GO_SUM: &str = include_str!("../cluster/languages/packages/go/go.sum");

/// A language, and the commands that a user would run without the controller.
struct Language {
    name: &'static str,
    /// Returns the project files. The program exports `text`. If `more` is true, the project has an additional direct
    /// dependency.
    project: fn(text: &str, more: bool) -> Vec<File>,
    /// Command that installs the dependencies.
    install: &'static str,
    /// Files that the installation command completes, such as lock files. The measured projects contain the completed
    /// files, like a real repository.
    completed: &'static [&'static str],
}

const LANGUAGES: [Language; 3] = [
    Language { name: "TypeScript", project: typescript, install: "npm install --loglevel=error", completed: &[] },
    Language {
        name: "Python",
        project: python,
        // pip does not remove packages that are no longer listed, so the command creates a new virtual environment.
        install: "rm -rf venv && python3 -m venv venv && venv/bin/python -m pip install --quiet --requirement requirements.txt",
        completed: &[],
    },
    Language { name: "Go", project: go, install: "go mod tidy", completed: &["go.mod", "go.sum"] },
];

fn file(path: &str, content: impl Into<String>) -> File {
    File { path: path.to_owned(), content: content.into() }
}

pub fn typescript(text: &str, more: bool) -> Vec<File> {
    let (mut package, mut lock): (Value, Value) =
        (serde_json::from_str(PACKAGE).expect("valid JSON"), serde_json::from_str(PACKAGE_LOCK).expect("valid JSON"));
    if more {
        let version = lock["packages"]["node_modules/semver"]["version"].clone();
        package["dependencies"]["semver"] = version.clone();
        lock["packages"][""]["dependencies"]["semver"] = version;
    }
    vec![
        file("Pulumi.yaml", "name: bench\nruntime: nodejs\n"),
        file("package.json", format!("{package:#}\n")),
        file("package-lock.json", format!("{lock:#}\n")),
        file("tsconfig.json", include_str!("../cluster/languages/packages/npm/tsconfig.json")),
        file("index.ts", format!("import \"@pulumi/pulumi\";\nexport const text: string = \"{text}\";\n")),
    ]
}

fn python(text: &str, more: bool) -> Vec<File> {
    let pinned = |name: &str| {
        let line = REQUIREMENTS.lines().find(|line| line.starts_with(&format!("{name}==")));
        line.and_then(|line| line.split_whitespace().next()).expect("a pinned package").to_owned()
    };
    let packages = if more { vec![pinned("pulumi"), pinned("semver")] } else { vec![pinned("pulumi")] };
    vec![
        file("Pulumi.yaml", "name: bench\nruntime:\n  name: python\n  options: {virtualenv: venv}\n"),
        file("requirements.txt", format!("{}\n", packages.join("\n"))),
        file("__main__.py", format!("import pulumi\npulumi.export(\"text\", \"{text}\")\n")),
    ]
}

fn go(text: &str, more: bool) -> Vec<File> {
    let (import, module) = match more {
        true => (
            "\t_ \"github.com/google/uuid\"\n",
            GO_MOD.replace("github.com/google/uuid v1.6.0 // indirect", "github.com/google/uuid v1.6.0"),
        ),
        false => ("", GO_MOD.to_owned()),
    };
    vec![
        file("Pulumi.yaml", "name: bench\nruntime: go\n"),
        file("go.mod", module),
        file("go.sum", GO_SUM),
        file(
            "main.go",
            format!(
                "package main\n\nimport (\n{import}\t\"github.com/pulumi/pulumi/sdk/v3/go/pulumi\"\n)\n\nfunc main() {{\n\t\
                 pulumi.Run(func(ctx *pulumi.Context) error {{\n\t\tctx.Export(\"text\", pulumi.String(\"{text}\"))\n\t\treturn \
                 nil\n\t}})\n}}\n"
            ),
        ),
    ]
}

pub async fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, language) in LANGUAGES.iter().enumerate() {
        println!("language {} of {}: {}", number + 1, LANGUAGES.len(), language.name);
        let scene_name = format!("bench-{}", language.name.to_lowercase());
        in_scene(&scene_name, async |scene| rows.extend(measure_language(scene, language).await)).await;
    }
    rows
}

async fn measure_language(scene: &Scene, language: &Language) -> Vec<Row> {
    let source = scene.source("app").await;
    let first = source.artifact_of(&source.push(&(language.project)("start", false)).await).await;
    let external = scene.flux_object("ExternalArtifact", "externalartifacts", "served");
    external.create(json!({})).await;
    external.publish(&first).await;
    let stack = scene.start(with_registry(scene.stack_on_kind("main", None, &external))).await;
    stack.until_revision(&first.revision).await;
    let pod = Pod::of(scene, &stack.name);
    bare_change(&pod, language, "start", true, &format!("{}; {STACK_INIT}", language.install)).await;
    let with_more = completed(&pod, language).await;
    bare_change(&pod, language, "start", false, language.install).await;
    let without = completed(&pod, language).await;
    let (workspaces, updates) = (Moments::<Workspace>::watch(scene.api()), Moments::<Update>::watch(scene.api()));
    let mut rows = Vec::new();
    for (change, budget) in [("code", CODE_BUDGET), ("lock file", LOCK_BUDGET)] {
        let (mut runs, mut bare): (Vec<Vec<Moment>>, Vec<f64>) = (Vec::new(), Vec::new());
        for round in 1..=ROUNDS {
            let (text, more) = (format!("{change} {round}"), change != "code" && round % 2 == 1);
            let completed = if more { &with_more } else { &without };
            let mut files = (language.project)(&text, more);
            files.retain(|file| !language.completed.contains(&file.path.as_str()));
            files.extend_from_slice(completed);
            let artifact = source.artifact_of(&source.push(&files).await).await;
            let began = now();
            external.publish(&artifact).await;
            stack.until_revision(&artifact.revision).await;
            let run = moments_of(began, &artifact.revision, &workspaces, &updates, &pod).await;
            let install = if change == "code" { "true" } else { language.install };
            bare.push(bare_change(&pod, language, &format!("bare {text}"), more, install).await);
            println!(
                "{change}, round {round} of {ROUNDS}: Update finished after {:.2} s, bare {:.2} s",
                run[STEPS.len()] - began,
                bare[bare.len() - 1]
            );
            runs.push(run);
        }
        rows.push(row(language, change, &runs, median(bare), budget));
    }
    rows
}

/// Reads the files that the last installation in the pod has completed.
async fn completed(pod: &Pod, language: &Language) -> Vec<File> {
    let mut files = Vec::new();
    for path in language.completed {
        let content = pod.run(&format!("cat /tmp/bare/{path}")).await;
        files.push(file(path, String::from_utf8(content).expect("text")));
    }
    files
}

const STACK_INIT: &str = "pulumi --non-interactive stack init bare";

/// Writes the project to its own directory in the pod. Returns the total duration of the installation and the CLI in
/// seconds.
async fn bare_change(pod: &Pod, language: &Language, text: &str, more: bool, install: &str) -> f64 {
    let mut prepare = "mkdir -p /tmp/bare && cd /tmp/bare".to_owned();
    for File { path, content } in (language.project)(text, more) {
        let content = content.replace("name: bench", &format!("name: bare-{}", pod.namespace));
        prepare.push_str(&format!("\ncat >{path} <<'END_OF_FILE'\n{content}END_OF_FILE"));
    }
    // The agent also sets these cache directories for runs.
    prepare.push_str("\nexport GOCACHE=/share/cache/go-build GOMODCACHE=/share/cache/go-modules");
    pod.duration(&prepare, &format!("{{ {install}; }} && {PULUMI_UP}")).await
}

fn row(language: &Language, change: &str, runs: &[Vec<Moment>], bare: f64, budget: f64) -> Row {
    let to_end = total(runs, STEPS.len());
    let row_name = format!("{}: artifact in status → Update finished, changed {change}", language.name);
    Row::of(
        &row_name,
        format!("bare ({bare:.2} s) + {budget} s"),
        format!("{to_end:.2} s"),
        Some(to_end < bare + budget),
    )
    .with_steps(steps(runs, STEPS.len()))
    .with_note(format!("overhead of the controller: {:.2} s; medians of {ROUNDS}", to_end - bare))
}

/// Returns the Stack with the image that contains the language runtimes, and with the test cluster's registry.
pub fn with_registry(mut stack: Stack) -> Stack {
    if let Some(template) = &mut stack.spec.workspace_template {
        template["spec"]["image"] = json!(IMAGE);
        template["spec"]["env"] = registry_variables();
    }
    stack
}
