use std::path::Path;

use super::*;

const NPM: &str = "name: a\nruntime: nodejs";
const PIP: &str = "name: a\nruntime: {name: python, options: {virtualenv: venv}}";
const GO: &str = "name: a\nruntime: go";
const MANIFEST: (&str, &str) = ("package.json", r#"{"dependencies": {"left-pad": "^1.0.0"}}"#);
const LOCK: (&str, &str) = ("package-lock.json", r#"{"lockfileVersion": 3}"#);

fn planned(project: &str, directory: &str, contents: &[(&str, &str)], cli: &str) -> InstallPlan {
    let project = Project::parse(Path::new("Pulumi.yaml"), project).expect("valid project file");
    let project_in_source = ProjectInSource { project: &project, directory: Path::new(directory) };
    let expected = files(project_in_source);
    let contents = contents.iter().map(|(path, content)| (PathBuf::from(path), content.as_bytes().to_vec()));
    // As in the agent, passes only the requested files.
    plan(project_in_source, &contents.filter(|(path, _)| expected.contains(path)).collect(), &BTreeSet::new(), cli)
}

fn npm(contents: &[(&str, &str)]) -> InstallPlan {
    planned(NPM, "", contents, "v3.259.0")
}

#[test]
fn an_installation_is_skipped_only_if_all_its_inputs_are_known() {
    let with_manifest = |manifest: &'static str| vec![("package.json", manifest), LOCK];
    let uv = ("uv.lock", "source = { virtual = \".\" }");
    let pyproject = ("pyproject.toml", "dependencies = [\"pulumi>=3\"]");
    for (project, contents, expected) in [
        (NPM, vec![MANIFEST, LOCK], None),
        (NPM, vec![MANIFEST], Some("no lock file")),
        (NPM, vec![LOCK], Some("no package.json")),
        (NPM, vec![MANIFEST, ("yarn.lock", "left-pad@^1.0.0:")], None),
        (NPM, vec![MANIFEST, ("pnpm-lock.yaml", "lockfileVersion: '9.0'")], None),
        (NPM, vec![MANIFEST, ("bun.lock", "{\"lockfileVersion\": 1}")], None),
        (NPM, vec![MANIFEST, ("bun.lockb", "binary")], Some("bun.lockb")),
        (NPM, vec![MANIFEST, LOCK, ("pnpm-workspace.yaml", "packages: ['a']")], Some("local path")),
        (NPM, with_manifest(r#"{"dependencies": {"shared": "file:../sibling"}}"#), Some("local path")),
        (NPM, with_manifest(r#"{"devDependencies": {"shared": "workspace:*"}}"#), Some("local path")),
        (NPM, with_manifest(r#"{"dependencies": {"shared": "../sibling"}}"#), Some("local path")),
        (NPM, with_manifest(r#"{"overrides": {"a": {"b": "link:./b"}}}"#), Some("local path")),
        (NPM, with_manifest(r#"{"workspaces": ["a"]}"#), Some("local path")),
        (NPM, with_manifest(r#"{"patchedDependencies": {"a@1.0.0": "patches/a.patch"}}"#), Some("local path")),
        (NPM, with_manifest(r#"{"pnpm": {"patchedDependencies": {"a": "patches/a.patch"}}}"#), Some("local path")),
        (NPM, with_manifest(r#"{"scripts": {"prepare": "tsc"}}"#), Some("script \"prepare\"")),
        (NPM, with_manifest(r#"{"scripts": {"test": "jest"}}"#), None),
        (NPM, with_manifest("{"), Some("package.json")),
        (NPM, vec![MANIFEST, ("package-lock.json", r#"{"packages": {"a": {"link": true}}}"#)], Some("local path")),
        ("name: a\nruntime: {name: nodejs, options: {packagemanager: yarn}}", vec![MANIFEST, LOCK], Some("no lock")),
        ("name: a\nruntime: {name: nodejs, options: {packagemanager: other}}", vec![MANIFEST, LOCK], Some("\"other\"")),
        (PIP, vec![("requirements.txt", "six==1.16.0")], None),
        (PIP, vec![("requirements.txt", "six>=1")], Some("does not pin")),
        (PIP, vec![("requirements.txt", "-e .")], Some("local path")),
        (PIP, vec![], Some("no lock file")),
        ("name: a\nruntime: python", vec![("requirements.txt", "six==1.16.0")], Some("outside the source")),
        ("name: a\nruntime: python", vec![pyproject, uv], None),
        ("name: a\nruntime: python", vec![pyproject, ("poetry.lock", "[[package]]")], None),
        ("name: a\nruntime: python", vec![pyproject, ("uv.lock", "source = { editable = \".\" }")], Some("local path")),
        ("name: a\nruntime: {name: python, options: {toolchain: uv}}", vec![pyproject], Some("no lock file")),
        (GO, vec![("go.mod", "module a"), ("go.sum", "")], None),
        (GO, vec![("go.mod", "module a")], Some("no lock file")),
        (GO, vec![("go.mod", "replace b => ../b"), ("go.sum", "")], Some("local path")),
        (GO, vec![("go.mod", "module a"), ("go.sum", ""), ("go.work", "use .")], Some("local path")),
        ("name: a\nruntime: dotnet", vec![], Some("runtime dotnet")),
        ("name: a\nruntime: yaml\npackages: {random: 'terraform-provider@1.0.0'}", vec![], None),
        ("name: a\nruntime: yaml\npackages: {random: terraform-provider}", vec![], Some("no version")),
        ("name: a\nruntime: yaml\npackages: {own: {source: ./own, version: 1.0.0}}", vec![], Some("local path")),
        ("name: a\nruntime: yaml\nplugins: {providers: [{name: own, path: ../own}]}", vec![], Some("local path")),
    ] {
        let plan = planned(project, "", &contents, "v3.259.0");
        match (&plan.reinstall_reason, expected) {
            (None, None) => assert_eq!(plan.carry(Some(&plan.installed)), Carry::Move, "{project} {contents:?}"),
            (Some(why), Some(expected)) if why.contains(expected) => {
                assert_ne!(plan.carry(Some(&plan.installed)), Carry::Move, "{project} {contents:?}");
            }
            (found, _) => panic!("{project} {contents:?}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn the_cache_key_contains_every_install_input() {
    let base = npm(&[MANIFEST, LOCK]).installed;
    assert_eq!(npm(&[MANIFEST, LOCK, ("index.js", "1")]).installed, base, "the cache key excludes the program");
    let changed = [
        npm(&[MANIFEST, ("package-lock.json", "{}")]),
        npm(&[("package.json", "{}"), LOCK]),
        npm(&[MANIFEST, LOCK, (".npmrc", "omit=dev")]),
        planned(NPM, "", &[MANIFEST, LOCK], "v3.260.0"),
        planned(NPM, "infra", &[MANIFEST, LOCK], "v3.259.0"),
        planned("name: a\nruntime: {name: nodejs, options: {packagemanager: npm}}", "", &[MANIFEST, LOCK], "v3.259.0"),
        planned("name: a\nruntime: {name: nodejs, options: {typescript: false}}", "", &[MANIFEST, LOCK], "v3.259.0"),
        planned(&format!("{NPM}\nmain: src"), "", &[MANIFEST, LOCK], "v3.259.0"),
        planned(&format!("{NPM}\npackages: {{a: b@1}}"), "", &[MANIFEST, LOCK], "v3.259.0"),
        planned(&format!("{NPM}\nplugins: {{providers: []}}"), "", &[MANIFEST, LOCK], "v3.259.0"),
    ];
    for (number, plan) in changed.iter().enumerate() {
        assert_ne!(plan.installed.key, base.key, "change {number}");
    }
    assert!(planned(NPM, "", &[MANIFEST, LOCK], "").reinstall_reason.is_some(), "an unknown CLI version");
}

#[test]
fn a_new_import_of_a_go_program_requires_an_installation() {
    let project = Project::parse(Path::new("Pulumi.yaml"), GO).expect("valid project file");
    let project_in_source = ProjectInSource { project: &project, directory: Path::new("") };
    let module = Files::from([("go.mod".into(), b"module a".to_vec()), ("go.sum".into(), Vec::new())]);
    let planned = |imports: &[&str]| {
        plan(project_in_source, &module, &imports.iter().map(|path| (*path).to_owned()).collect(), "v3.259.0")
    };
    let before = planned(&["fmt", "b.example"]).installed;
    assert_eq!(planned(&["b.example", "fmt"]).carry(Some(&before)), Carry::Move);
    assert_eq!(planned(&["b.example", "fmt", "c.example"]).carry(Some(&before)), Carry::Nothing);
}

#[test]
fn dependencies_are_copied_only_if_no_obsolete_packages_can_remain() {
    let base = npm(&[MANIFEST, LOCK]).installed;
    assert_eq!(npm(&[("package.json", "{}"), LOCK]).carry(Some(&base)), Carry::Copy);
    assert_eq!(npm(&[MANIFEST, ("yarn.lock", "")]).carry(Some(&base)), Carry::Nothing, "another package manager");
    assert_eq!(npm(&[MANIFEST, LOCK]).carry(None), Carry::Nothing, "the first source");
    let pip = |text| planned(PIP, "", &[("requirements.txt", text)], "v3.259.0");
    assert_eq!(pip("six>=1").carry(Some(&pip("six>=1").installed)), Carry::Copy, "pip with the same requirements");
    assert_eq!(
        pip("six>=1").carry(Some(&pip("six>=1\nother").installed)),
        Carry::CopyEnvironment,
        "pip does not remove packages"
    );
}

#[test]
fn dependency_files_and_trees_are_searched_up_to_the_source_root() {
    let lock = ("package-lock.json", "{}");
    let plan = planned(&format!("{NPM}\nmain: src/index.ts"), "a/b", &[MANIFEST, lock], "v3.259.0");
    assert_eq!(plan.reinstall_reason, None);
    let trees = ["a/b/src/index.ts", "a/b/src", "a/b", "a", ""].map(|place| Path::new(place).join("node_modules"));
    assert_eq!(plan.trees, trees);
    let poetry = planned("name: a\nruntime: python", "a", &[("poetry.lock", "")], "v3.259.0");
    assert_eq!(poetry.trees, [Path::new(".venv"), Path::new("a/.venv")]);
    let pip = |option: &str| format!("name: a\nruntime: {{name: python, options: {{virtualenv: {option}}}}}");
    for (option, expected) in
        [("venv", Some("a/venv")), ("../venv", Some("venv")), ("../../venv", None), ("/venv", None), (".", None)]
    {
        let trees = planned(&pip(option), "a", &[], "v3.259.0").trees;
        assert_eq!(trees, expected.map(PathBuf::from).into_iter().collect::<Vec<_>>(), "{option}");
    }
    let packages = planned("name: a\nruntime: yaml\npackages: {a: b@1}", "a", &[], "v3.259.0");
    assert_eq!(packages.trees, [Path::new("a/sdks")]);
}
