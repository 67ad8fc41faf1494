//! Installation inputs for the Python package managers.

use std::path::{Path, PathBuf};

use super::package_manager::{
    Carry, Files, LOCAL_DEPENDENCY, ManagerProperties, NO_LOCK, ProjectInSource, contains_local_path, inside, named,
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

/// Options in `requirements.txt` that affect where pip downloads packages, but not which packages pip selects.
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

/// Kinds of lines in `requirements.txt`, from the strictest to the least strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Requirements {
    /// Pins the version of a package.
    Pinned,
    /// Allows several versions of a package.
    Floating,
    /// Refers to a path or to another file, or has an unknown format.
    Elsewhere,
}

pub(super) fn properties(project_in_source: ProjectInSource<'_>, files: &Files) -> ManagerProperties {
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
    ManagerProperties {
        name: toolchain.to_owned(),
        reinstall_reason,
        trees,
        carry_after_change: match toolchain {
            "uv" => Carry::Copy,
            "pip" => Carry::CopyEnvironment,
            _ => Carry::Nothing,
        },
        works_without_trees: false,
    }
}

/// Returns whether a file is part of a new virtual environment, in which pip has not installed the project's packages
/// yet. `path` is relative to the virtual environment.
///
/// Copying these files saves several seconds, because `pulumi install` does not need to create the environment and
/// upgrade pip, setuptools and wheel. The copy excludes all other files, because pip does not remove packages that are
/// no longer needed.
pub fn is_in_empty_environment(path: &Path) -> bool {
    let parts: Vec<_> = path.components().map(|component| component.as_os_str().to_string_lossy()).collect();
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    match parts.as_slice() {
        ["pyvenv.cfg" | "bin" | "lib" | "lib64" | "include"] | ["lib", _] | ["lib", _, "site-packages"] => true,
        ["bin", "activate" | "activate.csh" | "activate.fish" | "Activate.ps1" | "wheel"] => true,
        ["bin", program] => is_with_version("python", program) || is_with_version("pip", program),
        ["lib", _, "site-packages", package, ..] => is_part_of_pip(package),
        _ => false,
    }
}

/// Returns whether `program` is `name` with an optional version, such as `pip`, `pip3` or `pip3.12`.
fn is_with_version(name: &str, program: &str) -> bool {
    program.strip_prefix(name).is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

fn is_part_of_pip(entry: &str) -> bool {
    let name = entry.strip_suffix(".dist-info").and_then(|entry| entry.split('-').next()).unwrap_or(entry);
    ["pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack", "distutils-precedence.pth"].contains(&name)
}

/// Returns the directory that the option `virtualenv` specifies, if the directory is inside the source.
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
    fn files_of_an_empty_environment_are_distinguished_from_packages() {
        for (path, expected) in [
            ("pyvenv.cfg", true),
            ("lib64", true),
            ("bin", true),
            ("bin/python3.12", true),
            ("bin/pip3", true),
            ("bin/pip-compile", false),
            ("bin/activate.fish", true),
            ("bin/wheel", true),
            ("bin/pulumi-language-tool", false),
            ("lib/python3.12/site-packages", true),
            ("lib/python3.12/site-packages/pip/_internal/main.py", true),
            ("lib/python3.12/site-packages/pip-24.0.dist-info/RECORD", true),
            ("lib/python3.12/site-packages/setuptools-80.9.0.dist-info", true),
            ("lib/python3.12/site-packages/distutils-precedence.pth", true),
            ("lib/python3.12/site-packages/pip_tools-7.4.1.dist-info", false),
            ("lib/python3.12/site-packages/wheelhouse", false),
            ("lib/python3.12/site-packages/pulumi/__init__.py", false),
            ("lib/python3.12/site-packages/pulumi-3.259.0.dist-info", false),
            ("lib/python3.12/site-packages/__pycache__", false),
            ("share/man", false),
            ("include/site/python3.12", false),
        ] {
            assert_eq!(is_in_empty_environment(Path::new(path)), expected, "{path}");
        }
    }

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
