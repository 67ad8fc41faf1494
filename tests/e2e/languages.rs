//! Tests programs in TypeScript, Python and Go with real language hosts, and with packages from a registry in the cluster. The suite
//! `languages` of `tests/run` runs them.

use pulumi_controller::api::conditions::{READY, stack_reason};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::harness::{File, Scene, Source, StackHandle, WaitLimit, condition, is_stalled, run};

/// Image with the language runtimes.
const IMAGE: &str = "localhost/pulumi-controller-test/languages:test";
/// Registry of npm, Python and Go packages.
const REGISTRY: &str = "http://packages.test-services";

/// First line of each installation in the log of the pod.
const INSTALLATION: &str = "install: Installing dependencies...\n";

/// A program in one language, and its changes.
struct Language {
    name: &'static str,
    /// The project and its lock file.
    project: Vec<File>,
    /// The program's file. The program exports the configuration value `greeting` and the output `version`.
    program: fn(version: &str) -> File,
    /// A program whose error is in line 3.
    broken: File,
    /// Beginning of the message for the broken program.
    error: &'static str,
}

fn file(path: &str, content: &str) -> File {
    File { path: path.to_owned(), content: content.to_owned() }
}

fn typescript() -> Language {
    Language {
        name: "typescript",
        project: vec![
            file("Pulumi.yaml", "name: languages\nruntime: nodejs\n"),
            file("package.json", include_str!("../cluster/languages/packages/npm/package.json")),
            file("package-lock.json", include_str!("../cluster/languages/packages/npm/package-lock.json")),
            file("tsconfig.json", include_str!("../cluster/languages/packages/npm/tsconfig.json")),
        ],
        program: |version| {
            let text = "import * as pulumi from \"@pulumi/pulumi\";\nconst config = new pulumi.Config();\nexport const \
                        greeting = config.require(\"greeting\");\nexport const password = \
                        config.requireSecret(\"password\");\n";
            file("index.ts", &format!("{text}export const version: string = \"{version}\";\n"))
        },
        broken: file(
            "index.ts",
            "import * as pulumi from \"@pulumi/pulumi\";\n\nconst port: number = \"80\";\nexport const url = pulumi.interpolate`${port}`;\n",
        ),
        error: "index.ts line 3: error TS2322: Type 'string' is not assignable to type 'number'.",
    }
}

fn python() -> Language {
    Language {
        name: "python",
        project: vec![
            file("Pulumi.yaml", "name: languages\nruntime:\n  name: python\n  options: {virtualenv: venv}\n"),
            file("requirements.txt", "pulumi==3.259.0\n"),
        ],
        program: |version| {
            let text = "import pulumi\nconfig = pulumi.Config()\npulumi.export(\"greeting\", \
                        config.require(\"greeting\"))\npulumi.export(\"password\", config.require_secret(\"password\"))\n";
            file("__main__.py", &format!("{text}pulumi.export(\"version\", \"{version}\")\n"))
        },
        broken: file("__main__.py", "import pulumi\n\npulumi.export(\"port\", {}[\"http\"])\n"),
        error: "__main__.py line 3: KeyError: 'http'",
    }
}

fn go() -> Language {
    Language {
        name: "go",
        project: vec![
            file("Pulumi.yaml", "name: languages\nruntime: go\n"),
            file("go.mod", include_str!("../cluster/languages/packages/go/go.mod")),
            file("go.sum", include_str!("../cluster/languages/packages/go/go.sum")),
        ],
        program: |version| {
            let text = "package main\n\nimport (\n\t\"github.com/pulumi/pulumi/sdk/v3/go/pulumi\"\n\t\
                        \"github.com/pulumi/pulumi/sdk/v3/go/pulumi/config\"\n)\n\nfunc main() {\n\tpulumi.Run(func(ctx \
                        *pulumi.Context) error {\n\t\tconf := config.New(ctx, \"\")\n\t\tctx.Export(\"greeting\", \
                        pulumi.String(conf.Require(\"greeting\")))\n\t\tctx.Export(\"password\", \
                        conf.RequireSecret(\"password\"))\n";
            file(
                "main.go",
                &format!(
                    "{text}\t\tctx.Export(\"version\", pulumi.String(\"{version}\"))\n\t\treturn nil\n\t}})\n}}\n"
                ),
            )
        },
        broken: file("main.go", "package main\n\nfunc main() { undefined() }\n"),
        error: "main.go line 3: undefined: undefined",
    }
}

/// Returns a Stack whose pod has the language runtimes and installs packages from the registry in the cluster.
fn stack(scene: &Scene, source: &Source<'_>) -> Stack {
    let mut stack = scene.stack("main", source);
    let variables = [
        ("NPM_CONFIG_REGISTRY", format!("{REGISTRY}/npm/")),
        ("PIP_INDEX_URL", format!("{REGISTRY}/pypi/simple/")),
        ("PIP_TRUSTED_HOST", "packages.test-services".to_owned()),
        ("GOPROXY", format!("{REGISTRY}/go")),
        ("GOSUMDB", "off".to_owned()),
    ];
    let env: Vec<Value> = variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let template = stack.spec.workspace_template.as_mut().expect("the harness sets a template");
    template["spec"]["image"] = json!(IMAGE);
    template["spec"]["env"] = json!(env);
    stack.spec.config = [("greeting".to_owned(), json!("hello"))].into();
    stack.spec.secrets = [("password".to_owned(), "hunter22".to_owned())].into();
    stack.spec.destroy_on_finalize = Some(true);
    stack
}

/// Returns the number of installations in the pod.
async fn installations(main: &StackHandle<'_>) -> usize {
    main.pod_log("pulumi").await.matches(INSTALLATION).count()
}

async fn check(scene: &Scene, language: &Language) {
    let source = scene.source(language.name).await;
    let with = |program: File| [language.project.clone(), vec![program]].concat();
    let first = source.push(&with((language.program)("one"))).await;
    let main = scene.start(stack(scene, &source)).await;
    let status = main.until_applied_within(WaitLimit::Long, &first).await.status.unwrap_or_default();
    assert_eq!(json!(status.outputs), json!({"greeting": "hello", "password": "[secret]", "version": "one"}));
    assert_eq!(installations(&main).await, 1);

    let second = source.push(&with((language.program)("two"))).await;
    let status = main.until_applied(&second).await.status.unwrap_or_default();
    assert_eq!(json!(status.outputs)["version"], json!("two"));
    assert_eq!(installations(&main).await, 1, "a commit without changed dependencies installs nothing");

    source.push(&with(language.broken.clone())).await;
    let failed = main
        .until("to report the error of the program", WaitLimit::Run, |stack| {
            condition(stack, READY).is_some_and(|ready| ready.message.contains(language.error))
        })
        .await;
    let message = condition(&failed, READY).map(|ready| ready.message.clone()).unwrap_or_default();
    let headline = message.lines().next().unwrap_or_default();
    assert!(headline.contains(language.error), "{message}");
    assert!(!is_stalled(&failed, stack_reason::WORKSPACE_FAILED), "{message}");

    let third = source.push(&with((language.program)("three"))).await;
    main.until_applied(&third).await;
    let log = main.pod_log("pulumi").await;
    assert!(!log.contains("hunter22"), "the log contains the secret: {log}");
    main.delete().await;
    main.until_gone().await;
}

#[test]
fn a_typescript_program_runs_from_push_to_destroy() {
    run("typescript", async |scene| check(scene, &typescript()).await);
}

#[test]
fn a_python_program_runs_from_push_to_destroy() {
    run("python", async |scene| check(scene, &python()).await);
}

#[test]
fn a_go_program_runs_from_push_to_destroy() {
    run("go", async |scene| check(scene, &go()).await);
}
