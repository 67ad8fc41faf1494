//! Finds the Go modules that CLI plugins use. The CLI compiles a plugin that consists of Go files when it starts the
//! plugin.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::pulumi::install::go::{self, Module};

/// Maximum number of files and directories that the agent lists in a plugin.
const MAX_ENTRIES: usize = 20_000;

/// Returns the modules that the `go.sum` files of the plugins list. `names` contains the directory names of the plugins
/// in `plugins`. Ignores unreadable files, because the go command downloads a module that the cache lacks.
pub fn find(plugins: &Path, names: &[String]) -> BTreeSet<Module> {
    names.iter().flat_map(|name| in_plugin(&plugins.join(name))).collect()
}

fn in_plugin(root: &Path) -> BTreeSet<Module> {
    let mut modules = BTreeSet::new();
    let (mut pending, mut listed) = (vec![root.to_owned()], 0);
    while let Some(directory) = pending.pop() {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        for entry in entries.take(MAX_ENTRIES.saturating_sub(listed)) {
            listed += 1;
            let (Ok(kind), name) = (entry.file_type(), entry.file_name()) else { continue };
            if kind.is_dir() && !go::is_ignored_directory(&name.to_string_lossy()) {
                pending.push(entry.path());
            } else if kind.is_file() && name == "go.sum" {
                let sum = super::read(&entry.path()).ok().flatten().unwrap_or_default();
                modules.extend(go::modules_in_sum(&String::from_utf8_lossy(&sum)));
            }
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_of_plugins_in_go_are_found() {
        let plugins = tempfile::tempdir().unwrap();
        for (path, sum) in [
            ("resource-a-v1.0.0/go.sum", "a.example v1.0.0 h1:x="),
            ("resource-a-v1.0.0/component/go.sum", "b.example v1.0.0 h1:x="),
            ("resource-a-v1.0.0/vendor/c/go.sum", "c.example v1.0.0 h1:x="),
            ("resource-a-v2.0.0/go.sum", "a.example v2.0.0 h1:x="),
        ] {
            let path = plugins.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, sum).unwrap();
        }
        let names = ["resource-a-v1.0.0", "resource-missing-v1.0.0"].map(str::to_owned);
        let found: Vec<String> = find(plugins.path(), &names).into_iter().map(|module| module.path).collect();
        assert_eq!(found, ["a.example", "b.example"]);
    }
}
