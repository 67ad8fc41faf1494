//! Runs the commands in `docs/getting-started.md`, except the commands that create the cluster and install the
//! controller.

use std::path::Path;

use serde_json::Value;

use super::Example;
use crate::harness::{File, Scene, Volume, run};

pub static EXAMPLE: Example = Example::new("getting-started", "getting-started", 0).with_languages();

/// First words of the commands that the test skips. The scene provides the namespace, and the test has already copied
/// the project.
const SKIPPED: [&str; 6] =
    ["git clone ", "cd ", "kind ", "kubectl config ", "kubectl create namespace ", "kubectl delete namespace "];

/// Program directory in the repository.
const PROGRAM: &str = "examples/typescript/program";

#[test]
fn the_commands_for_the_first_stacks_print_the_documented_outputs() {
    run("getting-started", async |scene| {
        let volume = Volume::create(scene, "pulumi-state").await;
        push_program(scene).await;
        let project = EXAMPLE.prepare(scene).await;
        let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/getting-started.md"));
        let document = document.expect("the document can be read");
        let (_, steps) = document.split_once("\n## 2. ").expect("the second step");
        let (mut output, mut compared) = (String::new(), 0);
        for block in steps.split("\n```").skip(1).step_by(2) {
            let (language, content) = block.split_once('\n').expect("a block with a language");
            match language {
                "sh" => output = project.bash(&with_namespace(scene, content)).await,
                "json" => {
                    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
                    assert_eq!(parse(&output), parse(content), "the outputs of a Stack");
                    compared += 1;
                }
                // Ignores file excerpts, and output that contains names and durations.
                _ => {}
            }
        }
        assert_eq!(compared, 2, "number of blocks with outputs");
        volume.remove().await;
    });
}

/// Removes the skipped commands, and replaces the namespace with the scene's namespace.
fn with_namespace(scene: &Scene, commands: &str) -> String {
    let is_run = |line: &&str| !SKIPPED.iter().any(|command| line.starts_with(command));
    let commands: Vec<&str> = commands.lines().filter(is_run).collect();
    format!("kubectl() {{ command kubectl --namespace {} \"$@\"; }}\n{}", scene.namespace, commands.join("\n"))
}

/// Pushes the TypeScript program to a repository with the directories of this project.
async fn push_program(scene: &Scene) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(PROGRAM);
    let files = super::project::entries(&folder).filter(|path| path.is_file()).map(|path| {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        File { path: format!("{PROGRAM}/{name}"), content: std::fs::read_to_string(&path).expect("a text file") }
    });
    scene.source("project").await.push_without_notification(&files.collect::<Vec<_>>()).await;
}
