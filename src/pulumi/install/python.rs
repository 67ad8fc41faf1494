//! Installation inputs of the package managers of Python.

use std::path::PathBuf;

use super::package_manager::{
    Files, LOCAL_DEPENDENCY, Managed, NO_LOCK, ProjectInSource, contains_local_path, inside, named,
    toml_contains_local_path,
};

pub(super) const FILES: [&str; 9] = [
    "requirements.txt",
    "pyproject.toml",
    "uv.lock",
    "uv.toml",
    "poetry.lock",
    "poetry.toml",
    ".python-version",
    "setup.py",
    "setup.cfg",
];

/// Options in `requirements.txt` that select the origin of packages, but not the packages themselves.
const ORIGIN_OPTIONS: [&str; 9] = [
    "-i",
    "--index-url",
    "--extra-index-url",
    "--no-index",
    "--require-hashes",
    "--only-binary",
    "--no-binary",
    "--prefer-binary",
    "--trusted-host",
];

/// Kind of a line in `requirements.txt`, in descending order of strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Requirements {
    /// Pins the version of a package.
    Pinned,
    /// Allows several versions of a package.
    Floating,
    /// Refers to a path or to another file, or has an unknown format.
    Elsewhere,
}

pub(super) fn managed(project_in_source: ProjectInSource<'_>, files: &Files) -> Managed {
    let has = |name: &str| named(files, &[name]).next().is_some();
    let toolchain = match project_in_source.option("toolchain") {
        "" | "auto" if has("uv.lock") => "uv",
        "" | "auto" if has("poetry.lock") => "poetry",
        "" | "auto" => "pip",
        toolchain => toolchain,
    };
    let environment = virtual_environment(project_in_source);
    let reinstall_reason = match toolchain {
        "uv" | "poetry" if !has(if toolchain == "uv" { "uv.lock" } else { "poetry.lock" }) => Some(NO_LOCK.to_owned()),
        "uv" | "poetry" => locked_reinstall_reason(files),
        "pip" => pip_reinstall_reason(files, environment.as_ref()),
        other => Some(format!("unknown toolchain {other:?}")),
    };
    let mut trees: Vec<PathBuf> = environment.into_iter().collect();
    if toolchain != "pip" {
        trees.extend(project_in_source.directories().iter().map(|directory| directory.join(".venv")));
        trees.sort();
        trees.dedup();
    }
    Managed {
        name: toolchain.to_owned(),
        reinstall_reason,
        trees,
        exact: toolchain == "uv",
        works_without_trees: false,
    }
}

/// Returns the directory in the option `virtualenv`, if the directory is inside the source.
fn virtual_environment(project_in_source: ProjectInSource<'_>) -> Option<PathBuf> {
    let option = project_in_source.option("virtualenv");
    inside(&project_in_source.directory.join(option))
        .filter(|path| !option.is_empty() && path != project_in_source.directory)
}

fn locked_reinstall_reason(files: &Files) -> Option<String> {
    let mut tables = named(files, &["uv.lock", "poetry.lock", "pyproject.toml", "uv.toml"]);
    let is_without_local_path =
        |content: &[u8]| std::str::from_utf8(content).is_ok_and(|text| !toml_contains_local_path(text));
    tables.any(|(_, content)| !is_without_local_path(content)).then(|| LOCAL_DEPENDENCY.to_owned())
}

fn pip_reinstall_reason(files: &Files, environment: Option<&PathBuf>) -> Option<String> {
    if environment.is_none() {
        return Some(
            "packages are installed outside the source, because the option `virtualenv` is not set".to_owned(),
        );
    }
    let mut strictness = None;
    for (_, content) in named(files, &["requirements.txt"]) {
        strictness = strictness.max(Some(std::str::from_utf8(content).map_or(Requirements::Elsewhere, requirements)));
    }
    match strictness {
        None => Some(NO_LOCK.to_owned()),
        Some(Requirements::Pinned) => None,
        Some(Requirements::Floating) => Some("requirements.txt does not pin each version with \"==\"".to_owned()),
        Some(Requirements::Elsewhere) => Some(LOCAL_DEPENDENCY.to_owned()),
    }
}

fn requirements(text: &str) -> Requirements {
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    joined.lines().map(requirement).max().unwrap_or(Requirements::Pinned)
}

fn requirement(line: &str) -> Requirements {
    let line = line.split(" #").next().unwrap_or_default().trim();
    if line.is_empty() || line.starts_with('#') {
        return Requirements::Pinned;
    }
    if line.starts_with('-') {
        let option = line.split([' ', '=']).next().unwrap_or_default();
        return if ORIGIN_OPTIONS.contains(&option) { Requirements::Pinned } else { Requirements::Elsewhere };
    }
    let name_ends = line.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    let (name, rest) = line.split_at(name_ends.unwrap_or(line.len()));
    if name.starts_with('.') || name.ends_with(".whl") || name.ends_with(".gz") || rest.starts_with(['/', ':']) {
        return Requirements::Elsewhere;
    }
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix('[') {
        Some(extras) => extras.split_once(']').map_or("", |(_, rest)| rest).trim_start(),
        None => rest,
    };
    if contains_local_path(rest) || rest.starts_with(['.', '/']) {
        return Requirements::Elsewhere;
    }
    let version = rest.strip_prefix("==").map(|version| version.trim_start_matches('=').trim_start());
    let version = version.map(|version| version.split([' ', ';', ',']).next().unwrap_or_default());
    match version {
        Some(version) if !version.is_empty() && !version.contains('*') => Requirements::Pinned,
        _ => Requirements::Floating,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_requirements_file_are_classified() {
        use Requirements::{Elsewhere, Floating, Pinned};
        for (line, expected) in [
            ("", Pinned),
            ("# a comment", Pinned),
            ("pulumi==3.100.0", Pinned),
            ("pulumi == 3.100.0 # why", Pinned),
            ("pulumi-aws[extra,more]==6.0.0; python_version > '3.8'", Pinned),
            ("six===1.16.0 \\\n    --hash=sha256:abc", Pinned),
            ("--index-url https://example.com/simple\nsix==1.0", Pinned),
            ("pulumi>=3.0.0,<4.0.0", Floating),
            ("pulumi", Floating),
            ("pulumi==3.*", Floating),
            ("pulumi ~= 3.1", Floating),
            ("name @ https://example.com/name-1.0.tar.gz", Floating),
            ("six==1.0\npulumi", Floating),
            ("-e .", Elsewhere),
            ("--editable ../sibling", Elsewhere),
            ("-r other.txt", Elsewhere),
            ("-c constraints.txt", Elsewhere),
            ("--find-links wheels", Elsewhere),
            (".", Elsewhere),
            ("./shared", Elsewhere),
            ("/opt/shared", Elsewhere),
            ("sdks/random", Elsewhere),
            ("shared @ file:///opt/shared", Elsewhere),
            ("shared-1.0-py3-none-any.whl", Elsewhere),
            ("six==1.0\n-e .\npulumi", Elsewhere),
        ] {
            assert_eq!(requirements(line), expected, "{line}");
        }
    }
}
