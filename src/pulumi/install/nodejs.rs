//! Installation inputs for the package managers of Node.js and Bun.

use std::path::Path;

use serde_json::Value;

use super::package_manager::{
    self, Carry, Files, LOCAL_DEPENDENCY, ManagerProperties, NO_LOCK, ProjectInSource, is_path, named,
};

pub(super) const FILES: [&str; 14] = [
    "package.json",
    "package.yaml",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "yarn.lock",
    "pnpm-lock.yaml",
    "pnpm-workspace.yaml",
    ".pnpmfile.cjs",
    "bun.lock",
    "bun.lockb",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    "bunfig.toml",
];

/// Lock files that each package manager uses.
const LOCKS: [(&str, &[&str]); 4] = [
    ("npm", &["package-lock.json", "npm-shrinkwrap.json"]),
    ("yarn", &["yarn.lock"]),
    ("pnpm", &["pnpm-lock.yaml"]),
    ("bun", &["bun.lock", "bun.lockb"]),
];

/// Project scripts that an installation runs. A script can generate files from the source.
const SCRIPTS: [&str; 9] = [
    "preinstall",
    "install",
    "postinstall",
    "preprepare",
    "prepare",
    "postprepare",
    "prepublish",
    "dependencies",
    "pnpm:devPreinstall",
];

/// Fields of the manifest with patches for dependencies. A patch is a file in the source.
const PATCHES: [&str; 2] = ["/patchedDependencies", "/pnpm/patchedDependencies"];

const DEPENDENCIES: [&str; 7] =
    ["dependencies", "devDependencies", "optionalDependencies", "peerDependencies", "overrides", "resolutions", "pnpm"];

pub(super) fn properties(project_in_source: ProjectInSource<'_>, files: &Files) -> ManagerProperties {
    let option = project_in_source.option("packagemanager");
    let desired = match option {
        "" if project_in_source.project.runtime == "bun" => "bun",
        "" => "auto",
        option => option,
    };
    let locked: Vec<&str> =
        LOCKS.iter().filter(|(_, names)| named(files, names).next().is_some()).map(|(manager, _)| *manager).collect();
    // With `auto`, the lock files and the package managers in the image determine which package manager the CLI
    // selects. The name contains only the package managers to which the lock files belong, because the image of a pod
    // does not change.
    let name = if desired == "auto" { format!("auto {}", locked.join(" ")) } else { desired.to_owned() };
    ManagerProperties {
        name,
        reinstall_reason: reinstall_reason(desired, &locked, files),
        trees: project_in_source.directories().iter().map(|directory| directory.join("node_modules")).collect(),
        carry_after_change: Carry::Copy,
        works_without_trees: false,
    }
}

fn reinstall_reason(desired: &str, locked: &[&str], files: &Files) -> Option<String> {
    let is_known = desired == "auto" || LOCKS.iter().any(|(manager, _)| *manager == desired);
    if !is_known {
        return Some(format!("unknown package manager {desired:?}"));
    }
    if locked.is_empty() || (desired != "auto" && !locked.contains(&desired)) {
        return Some(NO_LOCK.to_owned());
    }
    if let Some((path, _)) = named(files, &["package.yaml", ".pnpmfile.cjs", "bun.lockb"]).next() {
        return Some(format!("unsupported file {}", path.display()));
    }
    if named(files, &["pnpm-workspace.yaml"]).next().is_some() {
        return Some(LOCAL_DEPENDENCY.to_owned());
    }
    if named(files, &["package.json"]).next().is_none() {
        return Some("no package.json".to_owned());
    }
    let locks = LOCKS.iter().flat_map(|(_, names)| named(files, names));
    if locks.into_iter().any(|(_, content)| lock_contains_local_path(content)) {
        return Some(LOCAL_DEPENDENCY.to_owned());
    }
    named(files, &["package.json"]).find_map(|(path, content)| manifest_reinstall_reason(path, content))
}

fn lock_contains_local_path(content: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(content) else { return true };
    package_manager::contains_local_path(text) || text.contains("\"link\": true") || text.contains("\"link\":true")
}

fn manifest_reinstall_reason(path: &Path, content: &[u8]) -> Option<String> {
    let Ok(manifest) = serde_json::from_slice::<Value>(content) else {
        return Some(format!("failed to parse {}", path.display()));
    };
    if manifest.get("workspaces").is_some() {
        return Some(LOCAL_DEPENDENCY.to_owned());
    }
    if let Some(script) =
        SCRIPTS.iter().find(|script| manifest.pointer("/scripts").is_some_and(|all| all.get(script).is_some()))
    {
        return Some(format!("script {script:?} of {} may generate files from the source", path.display()));
    }
    if PATCHES.iter().any(|field| manifest.pointer(field).is_some()) {
        return Some(LOCAL_DEPENDENCY.to_owned());
    }
    let mut dependencies = DEPENDENCIES.iter().filter_map(|field| manifest.get(field));
    dependencies.any(contains_local_path).then(|| LOCAL_DEPENDENCY.to_owned())
}

/// Returns whether any string in a value is a local path.
fn contains_local_path(value: &Value) -> bool {
    match value {
        Value::String(text) => is_path(text),
        Value::Array(values) => values.iter().any(contains_local_path),
        Value::Object(values) => values.values().any(contains_local_path),
        _ => false,
    }
}
