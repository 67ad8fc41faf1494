//! Tests changes to lock files and to code. After a lock file change, the agent installs the new package version. After
//! a code change, the agent installs nothing.

use serde_json::{Value, json};

use super::{
    destroy, first_outputs, go_modules, installations, npm, outputs_of, packages, program_files, replaced, stack,
};
use crate::harness::{File, Scene, run};

/// Pushes a program with an older package version, then the program with a newer version, and then only a code change.
async fn check(scene: &Scene, [older, newer]: [&[File]; 2], path: &str, [before, after]: [&str; 2]) {
    let source = scene.source("app").await;
    let first = source.push(older).await;
    let main = scene.start(stack(scene, &source)).await;
    assert_eq!(first_outputs(&main, &first).await, json!({"version": before, "commit": "one"}));

    let second = source.push(newer).await;
    assert_eq!(first_outputs(&main, &second).await, json!({"version": after, "commit": "one"}));
    assert_eq!(installations(&main).await, 2);

    let third = source.push(&replaced(newer, path, "\"one\"", "\"two\"")).await;
    assert_eq!(outputs_of(&main, &third).await, json!({"version": after, "commit": "two"}));
    assert_eq!(installations(&main).await, 2, "the lock file is unchanged");
    destroy(&main).await;
}

/// Replaces a package in an npm lock file with the version in another lock file.
fn with_older_package(lock: &str, older: &str, package: &str) -> String {
    let parse = |text| serde_json::from_str::<Value>(text).expect("a lock file");
    let (mut lock, older) = (parse(lock), parse(older));
    let location = format!("node_modules/{package}");
    lock["packages"][&location] = older["packages"][&location].clone();
    lock["packages"][""]["dependencies"][package] = older["packages"][""]["dependencies"][package].clone();
    format!("{lock:#}\n")
}

#[test]
fn a_changed_package_lock_installs_the_new_version() {
    run("lock-ts", async |scene| {
        let newer = [npm("npm-extended"), program_files("lock-typescript")].concat();
        let mut older = replaced(&newer, "package.json", "\"is-number\": \"7.0.0\"", "\"is-number\": \"6.0.0\"");
        let lock = &packages("npm-older", &["package-lock.json"])[0].content;
        let file = older.iter_mut().find(|file| file.path == "package-lock.json").expect("a lock file");
        file.content = with_older_package(&file.content, lock, "is-number");
        check(scene, [&older, &newer], "index.ts", ["6.0.0", "7.0.0"]).await;
    });
}

#[test]
fn changed_requirements_install_the_new_version() {
    run("lock-py", async |scene| {
        let older = program_files("lock-python");
        let newer = replaced(&older, "requirements.txt", "six==1.16.0", "six==1.17.0");
        check(scene, [&older, &newer], "__main__.py", ["1.16.0", "1.17.0"]).await;
    });
}

#[test]
fn a_changed_go_sum_installs_the_new_version() {
    run("lock-go", async |scene| {
        let with = |modules| [go_modules(modules), program_files("lock-go")].concat();
        let (older, newer) = (with("go-older"), with("go-extended"));
        check(scene, [&older, &newer], "main.go", ["v1.0.10", "v1.0.12"]).await;
    });
}
