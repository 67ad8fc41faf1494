//! Keys of the entries in the dependency cache. A key is the digest of all inputs that affect the installation result.
//!
//! The installation plan covers the lock files, the package manager, the CLI version, the project options and the
//! project directory. This module adds the programs that run the installation, the architecture, the libc and the
//! settings from the environment. The agent does not execute the programs to get their versions, because this takes
//! longer than restoring a small installation.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::pulumi::arguments;

/// Programs that `pulumi install` runs, directly or through a package manager.
const PROGRAMS: [&str; 13] =
    ["bun", "corepack", "go", "node", "npm", "pip", "pip3", "pnpm", "poetry", "python", "python3", "uv", "yarn"];
/// Directories of the dynamic loader, whose file name identifies the libc.
const LIBRARY_DIRECTORIES: [&str; 2] = ["/lib", "/lib64"];
const LOADERS: [&str; 2] = ["ld-linux", "ld-musl"];
/// File with the name and the version of the Linux distribution, which determine the libc version.
const DISTRIBUTION: &str = "/etc/os-release";
/// File that contains the version of a package manager written in JavaScript.
const MANIFEST: &str = "package.json";
/// Maximum number of parent directories in which the agent searches for a program's manifest.
const MANIFEST_PARENTS: usize = 3;
/// Maximum number of bytes at the start of a file that the agent includes in the key. The beginning of an executable
/// contains its build ID.
const MAX_BYTES: u64 = 64 * 1024;
/// Name prefixes of variables that contain package manager settings, in lower case.
const SETTINGS: [&str; 8] = ["npm_config_", "node_", "yarn_", "pnpm_", "bun_", "pip_", "uv_", "poetry_"];
/// Names of further variables that affect an installation. The Go variables determine which modules are downloaded. The
/// other variables select the Python interpreter or the package manager.
const OTHER_SETTINGS: [&str; 9] = [
    "GOFLAGS",
    "GOPROXY",
    "GOPRIVATE",
    "GOSUMDB",
    "GOTOOLCHAIN",
    "GOWORK",
    "PULUMI_PREFER_YARN",
    "PULUMI_PYTHON_CMD",
    "PYENV_VERSION",
];
/// Parts of variable names. The key omits variables whose names contain these parts, because such variables do not
/// affect the installed files, or change whenever credentials are rotated. Users often store the name and the address of
/// the Kubernetes node in `NODE_NAME` and `NODE_IP`, which differ between pods.
const IGNORED: [&str; 9] = ["auth", "cache", "cert", "key", "node_ip", "node_name", "pass", "secret", "token"];

/// Returns the key of an installation whose plan has the key `plan_key`, in an environment with the key `environment`:
/// see [`of_environment`]. The key depends on the source path `source`, because virtual environments contain this path.
/// The key also depends on the cached directories `trees`, because an entry lacks the directories that the source itself
/// contained.
pub fn of_installation(plan_key: &str, trees: &[PathBuf], source: &Path, environment: &str) -> String {
    let command: Vec<_> = arguments::install().iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    digest(&json!({
        "plan": plan_key,
        "trees": trees.iter().map(|tree| tree.to_string_lossy()).collect::<Vec<_>>(),
        "source": source.to_string_lossy(),
        "command": command,
        "environment": environment,
    }))
}

/// Returns the key of a pod's environment: its platform, the programs and variables that affect an installation, and the
/// directory of the CLI plugins. The path of this directory is part of the key, because the CLI installs the
/// dependencies of a plugin that is not an executable into the directory of the plugin, and a virtual environment
/// contains its own path.
pub fn of_environment(variables: &BTreeMap<OsString, OsString>, plugins: &Path) -> String {
    let search_path = variables.get(OsStr::new("PATH")).map(OsString::as_os_str).unwrap_or_default();
    digest(&json!({
        "platform": platform(),
        "programs": programs(search_path),
        "settings": settings(variables),
        "plugins": plugins.to_string_lossy(),
    }))
}

/// Returns the key of a CLI plugin in an environment with the key `environment`.
pub(super) fn of_plugin(name: &str, environment: &str) -> String {
    digest(&json!({"plugin": name, "environment": environment}))
}

fn digest(inputs: &Value) -> String {
    hex::encode(Sha256::digest(inputs.to_string()))
}

/// Describes the architecture and the libc, because compiled files depend on both.
fn platform() -> Value {
    let names = |directory: &&str| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let mut loaders: Vec<String> = LIBRARY_DIRECTORIES.iter().flat_map(names).collect();
    loaders.retain(|name| LOADERS.iter().any(|loader| name.starts_with(loader)));
    loaders.sort();
    loaders.dedup();
    json!({
        "architecture": std::env::consts::ARCH,
        "loaders": loaders,
        "distribution": beginning(Path::new(DISTRIBUTION)),
    })
}

/// Returns the descriptions of the programs that the installation can run. The map keys are the program names.
fn programs(search_path: &OsStr) -> BTreeMap<&'static str, Value> {
    let find = |name: &str| std::env::split_paths(search_path).map(|path| path.join(name)).find(|path| path.is_file());
    PROGRAMS.iter().filter_map(|name| Some((*name, program(&find(name)?)?))).collect()
}

/// Describes a program by its file attributes and its package manifest. The file's modification time is the same in all
/// pods with the same image.
fn program(path: &Path) -> Option<Value> {
    let file = path.canonicalize().ok()?;
    let metadata = file.metadata().ok()?;
    Some(json!({
        "file": file.to_string_lossy(),
        "size": metadata.len(),
        "modified": metadata.mtime(),
        "beginning": beginning(&file),
        "manifest": manifest(&file).map(|manifest| beginning(&manifest)),
    }))
}

fn manifest(program: &Path) -> Option<PathBuf> {
    let parents = program.ancestors().skip(1).take(MANIFEST_PARENTS);
    parents.map(|parent| parent.join(MANIFEST)).find(|manifest| manifest.is_file())
}

/// Returns the digest of a file's first bytes, or `None` if the file is unreadable.
fn beginning(path: &Path) -> Option<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        File::open(path)?.take(MAX_BYTES).read_to_end(&mut content)?;
        Ok(content)
    };
    read().ok().map(|content| hex::encode(Sha256::digest(content)))
}

/// Returns the digests of the variables that contain package manager settings.
fn settings(variables: &BTreeMap<OsString, OsString>) -> BTreeMap<String, String> {
    let settings = variables.iter().filter(|(name, _)| is_setting(&name.to_string_lossy()));
    let digest = |value: &OsString| hex::encode(Sha256::digest(value.as_bytes()));
    settings.map(|(name, value)| (name.to_string_lossy().into_owned(), digest(value))).collect()
}

fn is_setting(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_ignored = IGNORED.iter().any(|part| lower.contains(part));
    OTHER_SETTINGS.contains(&name) || (!is_ignored && SETTINGS.iter().any(|prefix| lower.starts_with(prefix)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn variables(entries: &[(&str, &Path)]) -> BTreeMap<OsString, OsString> {
        entries.iter().map(|(name, value)| (name.into(), value.as_os_str().to_owned())).collect()
    }

    #[test]
    fn settings_of_package_managers_are_distinguished_from_credentials() {
        for (name, expected) in [
            ("NPM_CONFIG_REGISTRY", true),
            ("npm_config_omit", true),
            ("NODE_ENV", true),
            ("PIP_INDEX_URL", true),
            ("UV_PYTHON", true),
            ("GOPROXY", true),
            ("GOPRIVATE", true),
            ("PULUMI_PYTHON_CMD", true),
            ("PULUMI_PREFER_YARN", true),
            ("PULUMI_ACCESS_TOKEN", false),
            ("NPM_CONFIG__AUTH", false),
            ("NODE_AUTH_TOKEN", false),
            ("NODE_NAME", false),
            ("NODE_IP", false),
            ("UV_CACHE_DIR", false),
            ("POETRY_HTTP_BASIC_A_PASSWORD", false),
            ("GOCACHE", false),
            ("AWS_REGION", false),
            ("PATH", false),
        ] {
            assert_eq!(is_setting(name), expected, "{name}");
        }
    }

    #[test]
    fn every_input_of_an_installation_changes_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let package = directory.path().join("lib/npm");
        let programs = directory.path().join("bin");
        fs::create_dir_all(package.join("bin")).unwrap();
        fs::create_dir(&programs).unwrap();
        let write = |path: &str, content: &str| {
            let path = directory.path().join(path);
            fs::write(&path, content).unwrap();
            File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        };
        write("lib/npm/bin/npm.js", "cli");
        write("lib/npm/package.json", "1.0.0");
        symlink("../lib/npm/bin/npm.js", programs.join("npm")).unwrap();
        let other = Path::new("http://other");
        let key = |plan: &str, source: &str, more: &[(&str, &Path)]| {
            let mut variables = variables(&[("PATH", programs.as_path())]);
            variables.extend(self::variables(more));
            let trees = ["node_modules", "sdks"].map(PathBuf::from);
            of_installation(plan, &trees, Path::new(source), &of_environment(&variables, Path::new("/plugins")))
        };
        let first = key("a", "/share/source", &[]);
        assert_eq!(key("a", "/share/source", &[("NODE_AUTH_TOKEN", other)]), first, "a token was rotated");
        let mut seen = vec![first];
        seen.push(key("b", "/share/source", &[]));
        seen.push(key("a", "/other/source", &[]));
        seen.push(key("a", "/share/source", &[("NPM_CONFIG_REGISTRY", other)]));
        let search_path = variables(&[("PATH", programs.as_path())]);
        for (trees, plugins) in [(&["sdks"][..], "/plugins"), (&["node_modules", "sdks"], "/other")] {
            let trees: Vec<PathBuf> = trees.iter().map(PathBuf::from).collect();
            let environment = of_environment(&search_path, Path::new(plugins));
            seen.push(of_installation("a", &trees, Path::new("/share/source"), &environment));
        }
        write("lib/npm/package.json", "1.0.1");
        seen.push(key("a", "/share/source", &[]));
        write("lib/npm/bin/npm.js", "cl1");
        seen.push(key("a", "/share/source", &[]));
        write("bin/node", "node");
        seen.push(key("a", "/share/source", &[]));
        let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "{seen:?}");
    }

    #[test]
    fn the_key_of_a_plugin_depends_on_its_name_and_the_environment() {
        let key = of_plugin("resource-random-v1.0.0", "python 3.11");
        assert_eq!(key, of_plugin("resource-random-v1.0.0", "python 3.11"));
        assert_ne!(key, of_plugin("resource-random-v1.0.1", "python 3.11"));
        assert_ne!(key, of_plugin("resource-random-v1.0.0", "python 3.12"));
    }
}
