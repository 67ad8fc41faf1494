//! Tests the messages about failed installations with programs from the failure corpus.
//! `src/pulumi/failure/corpus_tests.rs` tests the recorded output of these programs.

use pulumi_controller::api::conditions::{stack_reason, workspace_reason};

use super::{destroy, files_in, repository, stack, until_message};
use crate::harness::languages::REGISTRY;
use crate::harness::{File, Scene, is_stalled, run};

/// Names of the corpus files that are not part of a program.
const DESCRIPTIONS: [&str; 6] =
    ["absent", "command", "description.txt", "environment", "expected.txt", "recording.json"];

/// Returns the files of a program in the corpus, and the expected start of the message.
fn failure(language: &str, name: &str) -> (Vec<File>, String) {
    let corpus = repository().join("tests/failure_corpus").join(language);
    let own = files_in(&corpus.join(name));
    let text = |path: &str| own.iter().find(|file| file.path == path).map(|file| file.content.clone());
    let absent = text("absent").unwrap_or_default();
    let is_absent = |path: &str| absent.lines().any(|line| line == path) || own.iter().any(|file| file.path == path);
    let common = files_in(&corpus.join("common")).into_iter().filter(|file| !is_absent(&file.path));
    let program = own.iter().filter(|file| !DESCRIPTIONS.contains(&file.path.as_str())).cloned();
    let expected = text("expected.txt").expect("an expected message").trim().to_owned();
    (common.chain(program).collect(), expected)
}

fn runtime(language: &str) -> &str {
    if language == "typescript" { "nodejs" } else { language }
}

/// Name of a program with invalid dependencies, and replacements in the expected message. The replacements are
/// necessary because the recordings contain other registry addresses.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Pushes programs with invalid dependencies one after the other, and checks the message about each program.
async fn check(scene: &Scene, language: &str, options: &str, cases: &[Case<'_>]) {
    let source = scene.source("app").await;
    let mut started = None;
    for (name, replacements) in cases {
        let (mut files, mut expected) = failure(language, name);
        for (from, to) in *replacements {
            expected = expected.replace(from, to);
        }
        let project = files.iter_mut().find(|file| file.path == "Pulumi.yaml").expect("a project file");
        project.content = format!("name: failure\nruntime:\n  name: {}\n{options}", runtime(language));
        source.push(&files).await;
        let main = match started.take() {
            Some(main) => main,
            None => scene.start(stack(scene, &source)).await,
        };
        let (stack, message) = until_message(&main, &expected).await;
        assert!(is_stalled(&stack, stack_reason::WORKSPACE_FAILED), "{name}: {message}");
        assert!(message.contains(workspace_reason::INSTALLATION_FAILED), "{name}: {message}");
        let first = message.lines().next().unwrap_or_default();
        assert!(first.contains(&expected) && !first.contains("exit status"), "{name}: {message}");
        assert!(main.updates().await.is_empty(), "nothing runs without dependencies");
        started = Some(main);
    }
    destroy(&started.expect("at least one case")).await;
}

#[test]
fn messages_of_failed_npm_installations_state_the_cause() {
    run("npm-fails", async |scene| {
        let registry: [(&str, &str); 1] = [("https://registry.example.com", &format!("{REGISTRY}/npm"))];
        // Current language hosts search for an npm workspace, and therefore parse `package.json` before they start npm.
        let parser: [(&str, &str); 1] = [(
            "Invalid package.json: JSONParseError: Expected double-quoted property name in JSON at position 119 (line 7 column 3)",
            "failed to parse workspaces from /share/workspace/package.json: invalid character '}'",
        )];
        let cases: [Case<'_>; 4] = [
            ("package-not-found", &registry),
            ("version-not-found", &[]),
            ("postinstall-fails", &[]),
            ("invalid-package-json", &parser),
        ];
        check(scene, "typescript", "", &cases).await;
    });
}

#[test]
fn messages_of_failed_pip_installations_state_the_cause() {
    run("pip-fails", async |scene| {
        let cases: [Case<'_>; 4] = [
            ("package-not-found", &[]),
            ("version-not-found", &[]),
            ("invalid-requirements", &[]),
            ("setup-fails", &[]),
        ];
        check(scene, "python", "  options: {virtualenv: venv}\n", &cases).await;
    });
}

#[test]
fn messages_of_failed_go_installations_state_the_cause() {
    run("go-fails", async |scene| {
        let registry = format!("{REGISTRY}/go");
        let served: [(&str, &str); 2] =
            [("https://registry.example.com", &registry), ("403 Forbidden", "404 Not Found")];
        let cases: [Case<'_>; 4] = [
            ("unknown-version", &served),
            ("unknown-module", &served),
            ("checksum-mismatch", &[]),
            ("go-version-too-new", &[]),
        ];
        check(scene, "go", "", &cases).await;
    });
}
