use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse(text: &str) -> Project {
    Project::parse(Path::new("Pulumi.yaml"), text).expect("valid project file")
}

#[test]
fn a_project_file_is_parsed() {
    let project = parse(
        "name: web\nruntime:\n  name: nodejs\n  options: {packagemanager: pnpm}\nmain: src\nstackConfigDir: stacks\n\
         config:\n  web:size: {type: integer}\n",
    );
    assert_eq!(project.name, "web");
    assert_eq!(project.runtime, "nodejs");
    assert_eq!(project.runtime_options, json!({"packagemanager": "pnpm"}));
    assert_eq!(project.main.as_deref(), Some("src"));
    assert_eq!(project.settings_path("organization/dev"), Path::new("stacks/Pulumi.dev.yaml"));
}

#[test]
fn tags_are_read_from_the_configuration_of_the_project() {
    let rows = [
        ("", json!(null)),
        ("config: stacks", json!(null)),
        ("config: {web:size: {type: integer}}", json!(null)),
        ("config: {pulumi:tags: {value: {team: web}}}", json!({"team": "web"})),
        ("config: {pulumi:tags: {type: string}}", json!(null)),
        ("config: {pulumi:tags: web}", json!("web")),
    ];
    for (text, expected) in rows {
        assert_eq!(parse(&format!("name: web\nruntime: yaml\n{text}\n")).tags, expected, "{text}");
    }
}

#[test]
fn resources_with_the_name_of_a_config_key_with_a_value_are_omitted() {
    let directory = tempfile::tempdir().expect("a directory");
    let resources = "resources: {a: {type: 'a:b:C'}, b: {type: 'a:b:C', properties: {n: [1, {x: y}]}}}";
    let rows: [(&str, &[&str], &[&str]); 11] = [
        ("runtime: yaml", &[], &[]),
        ("runtime: yaml", &["c"], &[]),
        ("runtime: yaml", &["a", "c"], &["a"]),
        ("runtime: {name: yaml}", &["a", "b"], &["a", "b"]),
        ("runtime: yaml\nconfig: {a: {type: string}}", &[], &[]),
        ("runtime: yaml\nconfig: {a: {type: string, default: x}}", &[], &["a"]),
        ("runtime: yaml\nconfig: {a: {value: x}, b: x}", &[], &["a", "b"]),
        ("runtime: yaml\nconfig: stacks", &["a"], &["a"]),
        ("runtime: yaml\nconfig:", &["a"], &["a"]),
        ("runtime: yaml\nmain: elsewhere", &["a"], &[]),
        ("runtime: nodejs", &["a"], &[]),
    ];
    for (text, keys, expected) in rows {
        std::fs::write(directory.path().join(PROJECT_FILE), format!("name: web\n{text}\n{resources}\n"))
            .expect("written");
        let project = Project::read(directory.path()).expect("a project");
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(project.resources_omitted_for(&keys), expected, "{text}");
    }
    for resources in ["", "resources:", "resources: []"] {
        std::fs::write(directory.path().join(PROJECT_FILE), format!("name: web\nruntime: yaml\n{resources}\n"))
            .expect("written");
        let project = Project::read(directory.path()).expect("a project");
        assert!(project.resources_omitted_for(&BTreeSet::from(["a".to_owned()])).is_empty(), "{resources}");
    }
}

#[test]
fn only_yaml_programs_without_packages_need_no_installation() {
    let table = [
        ("runtime: yaml", false),
        ("runtime: {name: yaml, options: {compiler: sh x.sh}}", false),
        ("runtime: yaml\npackages: {}\nplugins: {providers: []}", false),
        ("runtime: yaml\npackages: {random: 'x@1.0'}", true),
        ("runtime: yaml\nplugins: {providers: [{name: a, path: ./a}]}", true),
        ("runtime: nodejs", true),
        ("runtime: python", true),
    ];
    for (text, expected) in table {
        assert_eq!(parse(&format!("name: web\n{text}\n")).needs_install(), expected, "{text}");
    }
}

#[test]
fn a_directory_with_only_a_project_file_has_no_program() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join(PROJECT_FILE), "").expect("written");
    let table = [
        ("runtime: nodejs", true),
        ("runtime: nodejs\nmain: ../elsewhere", false),
        ("runtime: nodejs\npackages: {random: 'x@1.0'}", false),
    ];
    for (text, expected) in table {
        let project = parse(&format!("name: web\n{text}\n"));
        assert_eq!(project.is_without_program(directory.path()), expected, "{text}");
    }
    assert_eq!(
        parse(&minimal_project_file("a: b", "go")),
        Project { name: "a: b".to_owned(), ..parse("name: a\nruntime: go") }
    );
    std::fs::write(directory.path().join("index.js"), "").expect("written");
    assert!(!parse("name: web\nruntime: nodejs").is_without_program(directory.path()));
}

#[test]
fn the_error_for_an_invalid_project_names_the_file() {
    let table = [
        ("runtime: yaml", "invalid project file Pulumi.yaml: `name` must be a non-empty string"),
        ("name: 5\nruntime: yaml", "invalid project file Pulumi.yaml: `name` must be a non-empty string"),
        ("name: ''\nruntime: yaml", "invalid project file Pulumi.yaml: `name` must be a non-empty string"),
        ("", "invalid project file Pulumi.yaml: `name` must be a non-empty string"),
        ("name: web", "invalid project file Pulumi.yaml: `runtime` must be set, for example to `yaml` or `nodejs`"),
        (
            "name: web\nruntime: {options: {}}",
            "invalid project file Pulumi.yaml: `runtime` must be set, for example to `yaml` or `nodejs`",
        ),
        ("name: web\nruntime: [", "invalid project file Pulumi.yaml"),
        ("- a", "invalid project file Pulumi.yaml"),
    ];
    for (text, expected) in table {
        let error = Project::parse(Path::new("Pulumi.yaml"), text).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = Project::parse(Path::new("infra/Pulumi.yaml"), "name: web\nruntime: \"").expect_err("invalid YAML");
    assert!(error.to_string().starts_with("invalid project file infra/Pulumi.yaml line 2: "), "{error}");
    let error = error.relative_to(Path::new("infra")).to_string();
    assert!(error.starts_with("invalid project file Pulumi.yaml line 2: "), "{error}");
}

#[test]
fn the_project_file_is_found_in_the_order_of_the_cli() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = Project::read(directory.path()).expect_err("should report a missing project file").to_string();
    assert!(error.starts_with("no Pulumi.yaml, Pulumi.yml or Pulumi.json in "), "{error}");
    for (file, settings) in [("Pulumi.yml", "yml"), ("Pulumi.yaml", "yaml"), ("Pulumi.json", "json")] {
        let text = format!("{{\"name\": \"{settings}\", \"runtime\": \"yaml\"}}");
        std::fs::write(directory.path().join(file), text).expect("write the file");
        let project = Project::read(directory.path()).expect("valid project file");
        assert_eq!(project.name, settings);
        assert_eq!(project.settings_path("dev"), PathBuf::from(format!("Pulumi.dev.{settings}")));
    }
}

#[test]
fn the_file_of_a_policy_pack_needs_no_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = Project::read_policy_pack(directory.path()).expect_err("no file");
    assert!(matches!(error, ProjectError::Missing { .. }), "{error}");
    let text = "description: rules\nruntime:\n  name: python\n  options: {virtualenv: venv}\n";
    std::fs::write(directory.path().join("PulumiPolicy.yml"), text).expect("write the file");
    let pack = Project::read_policy_pack(directory.path()).expect("valid file");
    assert_eq!((pack.name.as_str(), pack.runtime.as_str()), ("", "python"));
    assert_eq!(pack.runtime_options, json!({"virtualenv": "venv"}));
    assert!(pack.file.ends_with("PulumiPolicy.yml"));
}

#[test]
fn a_program_with_many_comments_and_functions_is_parsed() {
    let comments = "# comment\n".repeat(5000);
    let project = parse(&format!(
        "{comments}name: web\nruntime: yaml\nvariables:\n  x: {{fn::join: [',', [a, b]]}}\n  y: !custom z\n"
    ));
    assert_eq!(project.name, "web");
}

#[test]
fn an_oversized_project_file_is_rejected() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = format!("name: web\nruntime: yaml\n#{}", "x".repeat(5 * 1024 * 1024));
    std::fs::write(directory.path().join("Pulumi.yaml"), text).expect("write the file");
    let error = Project::read(directory.path()).expect_err("should reject a large file").to_string();
    assert!(error.ends_with("Pulumi.yaml exceeds the maximum size of 4194304 bytes"), "{error}");
}

proptest! {
    #[test]
    fn arbitrary_text_never_causes_a_panic(text in "[a-z:\\-\\[\\]{}&*! \\n'\"]{0,80}") {
        let _ = Project::parse(Path::new("Pulumi.yaml"), &text);
    }
}
