//! Selects the dependencies that an entry contains. The directory of the CLI plugins and Go's module cache also contain
//! dependencies of previous sources, which the agent has installed or restored. If an entry contained these
//! dependencies, each later pod would restore them, and store them again in the entries of later sources.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::agent::home::is_plugin_of_image;

use super::{CacheError, MAX_PARTS, failed, is_directory, is_plugin};
use crate::pulumi::install::go::Module;
use crate::pulumi::install::plugins;

/// Maximum number of plugins in an entry that also contains directories of the source and a module cache.
const MAX_PLUGINS: usize = MAX_PARTS - 2;
/// Directory in the module cache that contains the downloaded archives.
const DOWNLOADS: &str = "cache/download";
/// Directory in the module cache with responses of the checksum database. To verify a toolchain without the network,
/// the go command needs these small files.
const CHECKSUMS: &str = "cache/download/sumdb";

/// Returns the names of the installed plugins. The list omits plugins of the image, and a plugin with a `.partial` file,
/// because the CLI has not installed this plugin completely.
pub fn installed_plugins(directory: &Path) -> Result<Vec<String>, CacheError> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut names: Vec<String> = children(directory)?
        .into_iter()
        .filter_map(|name| name.into_os_string().into_string().ok())
        .filter(|name| is_plugin(name) && is_directory(&directory.join(name)))
        .filter(|name| !directory.join(format!("{name}.partial")).exists())
        .filter(|name| !is_plugin_of_image(&directory.join(name)))
        .collect();
    names.sort();
    Ok(names)
}

/// Returns whether an entry must not contain all these plugins, because some of them can be plugins of previous sources,
/// or because an entry cannot contain so many plugins.
pub fn exceeds_entry(names: &[String]) -> bool {
    names.len() > MAX_PLUGINS || plugins::has_several_versions(names)
}

/// Returns the names in a directory.
pub(super) fn children(directory: &Path) -> Result<Vec<PathBuf>, CacheError> {
    let entries = fs::read_dir(directory).map_err(failed("read", directory))?;
    let names: io::Result<Vec<PathBuf>> = entries.map(|entry| entry.map(|entry| entry.file_name().into())).collect();
    let mut names = names.map_err(failed("read", directory))?;
    names.sort();
    Ok(names)
}

/// Returns the paths in a module cache that belong to these modules and toolchains.
pub(super) fn in_module_cache(cache: &Path, modules: &BTreeSet<Module>) -> Result<Vec<PathBuf>, CacheError> {
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    for Module { path, version } in modules {
        let path = Path::new(path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let unpacked = format!("{}@{version}", name.to_string_lossy());
        find(cache, parent, &unpacked, &mut found)?;
        find(cache, &Path::new(DOWNLOADS).join(path).join("@v"), version, &mut found)?;
    }
    if cache.join(CHECKSUMS).is_dir() {
        found.insert(CHECKSUMS.into());
    }
    Ok(found.into_iter().collect())
}

/// Adds the entries of a directory whose name is `name`, or starts with `name` and a dot.
fn find(cache: &Path, directory: &Path, name: &str, found: &mut BTreeSet<PathBuf>) -> Result<(), CacheError> {
    let path = cache.join(directory);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        // `NotADirectory` means that a parent directory in the path is a file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(failed("read", &path)(error)),
    };
    let is_found = |entry: &str| entry.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let names = entries.flatten().map(|entry| entry.file_name());
    found.extend(names.filter(|entry| is_found(&entry.to_string_lossy())).map(|entry| directory.join(entry)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_modules_of_the_project_are_selected() {
        let cache = tempfile::tempdir().unwrap();
        for path in [
            "a.example@v1.0.0/a.go",
            "a.example@v1.0.0-rc.1/a.go",
            "github.com/!b/sdk@v1.0.0/sdk.go",
            "github.com/!b/sdk@v1.0.10/sdk.go",
            "github.com/!b/sdk/v2@v2.0.0/sdk.go",
            "golang.org/toolchain@v0.0.1-go1.26.1.linux-amd64/bin/go",
            "golang.org/toolchain@v0.0.1-go1.26.10.linux-amd64/bin/go",
            "cache/lock",
            "cache/vcs/0123/HEAD",
            "cache/download/sumdb/sum.golang.org/lookup/x",
            "cache/download/github.com/!b/sdk/@v/list",
            "cache/download/github.com/!b/sdk/@v/v1.0.0.mod",
            "cache/download/github.com/!b/sdk/@v/v1.0.0.zip",
            "cache/download/github.com/!b/sdk/@v/v1.0.10.mod",
            "cache/download/golang.org/toolchain/@v/v0.0.1-go1.26.1.linux-amd64.zip",
        ] {
            let path = cache.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let module = |path: &str, version: &str| Module { path: path.to_owned(), version: version.to_owned() };
        let modules = [
            module("a.example", "v1.0.0"),
            module("github.com/!b/sdk", "v1.0.0"),
            module("golang.org/toolchain", "v0.0.1-go1.26.1"),
            module("missing.example/c", "v1.0.0"),
        ];
        let found = in_module_cache(cache.path(), &BTreeSet::from(modules)).unwrap();
        let expected = [
            "a.example@v1.0.0",
            "cache/download/github.com/!b/sdk/@v/v1.0.0.mod",
            "cache/download/github.com/!b/sdk/@v/v1.0.0.zip",
            "cache/download/golang.org/toolchain/@v/v0.0.1-go1.26.1.linux-amd64.zip",
            "cache/download/sumdb",
            "github.com/!b/sdk@v1.0.0",
            "golang.org/toolchain@v0.0.1-go1.26.1.linux-amd64",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn several_versions_or_too_many_plugins_exceed_an_entry() {
        let names: Vec<String> = (0..MAX_PLUGINS).map(|number| format!("resource-a{number}-v1.0.0")).collect();
        assert!(!exceeds_entry(&names));
        assert!(exceeds_entry(&[names.clone(), vec!["resource-b-v1.0.0".to_owned()]].concat()));
        assert!(exceeds_entry(&["resource-a-v1.0.0", "resource-a-v1.1.0"].map(str::to_owned)));
    }
}
