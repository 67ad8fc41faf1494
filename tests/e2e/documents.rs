//! Checks that the API server accepts the examples in the documentation.

use std::path::{Path, PathBuf};

use crate::harness::{run, try_kubectl};

const FENCE: &str = "```";
const DRY_RUN: [&str; 5] = ["apply", "--dry-run=server", "--validate=strict", "--filename", "-"];

/// Applies each object in the documentation as a server-side dry run.
#[test]
fn every_object_in_the_docs_passes_a_server_side_dry_run() {
    run("documents", async |_| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let mut broken = Vec::new();
        let mut objects = 0;
        for file in markdown(&root) {
            let text =
                std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("reading {}: {error}", file.display()));
            let blocks = objects_of(&text);
            if blocks.is_empty() {
                continue;
            }
            objects += blocks.len();
            if let Err(problem) = try_kubectl(&DRY_RUN, &blocks.join("\n---\n")).await {
                broken.push(format!("{}: {problem}", file.display()));
            }
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        assert!(objects > 40, "found only {objects} code blocks with objects");
    });
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("listing {}: {error}", folder.display()));
    let paths = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = paths
        .flat_map(|path| if path.is_dir() { markdown(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    files.sort();
    files
}

/// Returns the YAML blocks that contain objects, without kustomize files, files of the API server, Prometheus rules and
/// chart values. Replaces the examples' namespace with `default`, which exists in the test cluster.
pub fn objects_of(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match &mut block {
            Some(found) if line.trim_end() == FENCE => {
                blocks.push(std::mem::take(found));
                block = None;
            }
            Some(found) => found.push_str(&format!("{line}\n")),
            None if line.trim_end() == format!("{FENCE}yaml") => block = Some(String::new()),
            None => {}
        }
    }
    let is_object = |block: &str| block.lines().any(|line| line.starts_with("apiVersion:"));
    let is_file =
        |block: &str| ["kustomize.config.k8s.io", "apiserver.config.k8s.io"].iter().any(|api| block.contains(api));
    blocks.retain(|block| is_object(block) && !is_file(block));
    blocks.into_iter().map(|block| block.replace("namespace: apps\n", "namespace: default\n")).collect()
}
