//! Tests which CLI plugins a cache entry contains. A script replaces the CLI.

use std::fs;

use crate::harness::Workspace;

const PLUGINS: &str = "home/.pulumi/plugins";
const STORED: &str = "stored the dependencies in the cache";

/// Returns the files of a project whose lock file has this version.
fn project(lock_version: &str) -> [(&str, &str); 3] {
    [("Pulumi.yaml", "name: example\nruntime: nodejs\n"), ("package.json", "{}"), ("package-lock.json", lock_version)]
}

fn installed_plugins(workspace: &Workspace) -> Vec<String> {
    let entries = fs::read_dir(workspace.path(PLUGINS)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_entry_contains_only_the_used_versions_of_plugins() {
    let inputs = tempfile::tempdir().unwrap();
    let here = inputs.path().display();
    let script = format!(
        "set -eu\n\
         case \"$*\" in *version*) echo v3.259.0; exit;; *'plugin ls'*) cat {here}/used; exit;; *install*) ;; *) exit 0;; esac\n\
         mkdir -p node_modules\n\
         for plugin in $(cat {here}/plugins); do\n\
             directory=\"$HOME/.pulumi/plugins/$plugin\"\n\
             mkdir -p \"$directory\"\n\
             echo \"$plugin\" >\"$directory/program\"\n\
         done"
    );
    let write = |name: &str, content: &str| fs::write(inputs.path().join(name), content).unwrap();
    let mut workspace = Workspace::start_with_cache(&script).await;
    let (old, new) = (project(r#"{"lockfileVersion": 2}"#), project(r#"{"lockfileVersion": 3}"#));

    write("plugins", "resource-a-v1.0.0 resource-b-v1.0.0");
    workspace.deliver(&old).await.unwrap();
    workspace.until_logged(STORED).await;

    workspace.replace_pod().await;
    fs::write(workspace.path("log"), "").unwrap();
    workspace.deliver(&old).await.unwrap();
    assert_eq!(installed_plugins(&workspace), ["resource-a-v1.0.0", "resource-b-v1.0.0"]);
    write("plugins", "resource-a-v1.1.0");
    write("used", r#"[{"name": "a", "kind": "resource", "version": "1.1.0"}]"#);
    workspace.deliver(&new).await.unwrap();
    workspace.until_logged(STORED).await;

    workspace.replace_pod().await;
    workspace.deliver(&new).await.unwrap();
    assert_eq!(installed_plugins(&workspace), ["resource-a-v1.1.0", "resource-b-v1.0.0"], "{}", workspace.log());
}
