use serde_json::json;

use super::*;

struct Place {
    _directory: tempfile::TempDir,
    layout: Layout,
}

/// Creates a workspace whose source has the given settings file.
fn place(original: Option<&str>) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    layout.create().unwrap();
    std::fs::create_dir(layout.source()).unwrap();
    std::os::unix::fs::symlink("source", layout.workspace()).unwrap();
    put_source(&layout, original);
    Place { _directory: directory, layout }
}

fn put_source(layout: &Layout, original: Option<&str>) {
    std::fs::remove_dir_all(layout.source()).unwrap();
    std::fs::create_dir(layout.source()).unwrap();
    std::fs::write(layout.source().join("Pulumi.yaml"), "name: example\nruntime: yaml\n").unwrap();
    if let Some(text) = original {
        std::fs::write(layout.source().join("Pulumi.dev.yaml"), text).unwrap();
    }
}

fn tree(name: &str) -> CurrentSource {
    CurrentSource { digest: "sha256:00".into(), tree: name.into(), ..CurrentSource::default() }
}

fn entries(config: &[(&str, &str)]) -> Vec<Entry> {
    let entry = |(key, value): &(&str, &str)| {
        let value = serde_json::from_str(value).unwrap();
        Entry { key: (*key).into(), value, is_path: false, is_secret: key.contains("secret") }
    };
    config.iter().map(entry).collect()
}

/// Applies the settings. Returns the keys of the secret values that the CLI must write to the file.
fn apply(
    settings: &Settings,
    config: &[(&str, &str)],
    digest: &str,
    tree: &CurrentSource,
) -> Result<Vec<String>, ApplyError> {
    apply_with_tags(settings, config, digest, tree, &[])
}

fn apply_with_tags(
    settings: &Settings,
    config: &[(&str, &str)],
    digest: &str,
    tree: &CurrentSource,
    tags: &[(String, String)],
) -> Result<Vec<String>, ApplyError> {
    let config = entries(config);
    let desired = Desired { stack: "organization/example/dev", digest, config: &config, environments: &[], tags };
    settings.apply(&desired, tree)
}

fn text(layout: &Layout) -> String {
    std::fs::read_to_string(layout.source().join("Pulumi.dev.yaml")).unwrap()
}

#[test]
fn a_config_key_of_the_stack_or_the_source_omits_the_resource_with_its_name() {
    let rows: [(&str, &str, bool, &[&str]); 7] = [
        ("", "web", false, &["web"]),
        ("", "example:web", false, &["web"]),
        ("", "example:config:web", false, &["web"]),
        ("", "web.size[0]", true, &["web"]),
        ("", "aws:web", false, &[]),
        ("config:\n  example:db: {secure: AAAA}\n", "size", false, &["db"]),
        ("config:\n  aws:db: x\n", "size", false, &[]),
    ];
    for (original, key, is_path, expected) in rows {
        let place = place(Some(original));
        let resource = "{type: 'a:b:C'}";
        let program = format!("name: example\nruntime: yaml\nresources: {{web: {resource}, db: {resource}}}\n");
        std::fs::write(place.layout.source().join("Pulumi.yaml"), program).unwrap();
        let settings = Settings::open(place.layout.clone());
        let config = [Entry { key: key.into(), value: json!("x"), is_path, is_secret: false }];
        let desired = Desired { stack: "dev", digest: "one", config: &config, environments: &[], tags: &[] };
        settings.apply(&desired, &tree("a")).unwrap();
        assert_eq!(settings.omitted_resources(&desired).unwrap(), expected, "{original} {key}");
        // The CLI has not yet written the encrypted value of a secret to the file.
        let secret = [Entry { is_secret: true, ..config[0].clone() }];
        let desired = Desired { config: &secret, digest: "two", ..desired };
        settings.apply(&desired, &tree("a")).unwrap();
        assert_eq!(settings.omitted_resources(&desired).unwrap(), expected, "secret {original} {key}");
    }
}

#[test]
fn removing_a_config_key_restores_the_value_from_the_source() {
    let place = place(Some("config:\n  example:size: small\n"));
    let settings = Settings::open(place.layout.clone());
    apply(&settings, &[("example:size", "\"big\""), ("example:extra", "true")], "one", &tree("a")).unwrap();
    assert!(text(&place.layout).contains("big") && text(&place.layout).contains("extra"));
    apply(&settings, &[], "two", &tree("a")).unwrap();
    let rebuilt = text(&place.layout);
    assert!(rebuilt.contains("small") && !rebuilt.contains("extra"), "{rebuilt}");
    assert_eq!(settings.digest(), "two");
}

#[test]
fn the_encryption_of_the_source_is_known_and_the_encryption_of_the_agent_can_be_removed() {
    let original = "secretsprovider: hashivault://key\nencryptedkey: a2V5\nconfig:\n  example:a:\n    secure: x\n";
    let in_source = |place: &Place| {
        Settings::open(place.layout.clone()).encryption_in_source("organization/example/dev", &tree("a")).unwrap()
    };
    let provider = Some("hashivault://key".to_owned());
    assert_eq!(in_source(&place(Some(original))), Encryption { provider, has_secrets: true });
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    let keys = |missing: Vec<String>| missing.len();
    assert_eq!(keys(apply(&settings, &[("example:secret", "1")], "one", &tree("a")).unwrap()), 1);
    let path = place.layout.source().join("Pulumi.dev.yaml");
    std::fs::write(&path, "encryptionsalt: v1\nconfig:\n  example:secret:\n    secure: x\n").unwrap();
    settings.record_secret("example:secret").unwrap();
    settings.keep(Some(&tree("a")));
    assert_eq!(keys(apply(&settings, &[("example:secret", "1")], "two", &tree("a")).unwrap()), 0);
    assert!(text(&place.layout).contains("encryptionsalt"));
    settings.forget_encryption("organization/example/dev", &tree("a")).unwrap();
    assert_eq!(keys(apply(&settings, &[("example:secret", "1")], "two", &tree("a")).unwrap()), 1);
    assert!(!text(&place.layout).contains("encryptionsalt"), "{}", text(&place.layout));
    assert_eq!(in_source(&place), Encryption::default(), "the file of the agent is not part of the source");
}

#[test]
fn unchanged_settings_are_not_rewritten_even_by_a_restarted_agent() {
    let place = place(None);
    apply(&Settings::open(place.layout.clone()), &[("example:a", "1")], "one", &tree("a")).unwrap();
    let path = place.layout.source().join("Pulumi.dev.yaml");
    std::fs::write(&path, "# touched\n").unwrap();
    let settings = Settings::open(place.layout.clone());
    assert_eq!(settings.digest(), "one");
    apply(&settings, &[("example:a", "1")], "one", &tree("a")).unwrap();
    assert_eq!(text(&place.layout), "# touched\n");
}

#[test]
fn the_encryption_header_is_carried_over_to_the_next_source() {
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    apply(&settings, &[("example:a", "1")], "one", &tree("a")).unwrap();
    let left = format!("encryptionsalt: v1:abc=:v1:def:ghi\n{}", text(&place.layout));
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), left).unwrap();
    settings.keep(Some(&tree("a")));
    put_source(&place.layout, Some("config:\n  example:b: two\n"));
    apply(&settings, &[("example:a", "1")], "one", &tree("b")).unwrap();
    let rebuilt = text(&place.layout);
    for part in ["v1:abc=:v1:def:ghi", "example:a", "example:b"] {
        assert!(rebuilt.contains(part), "{part} is missing in:\n{rebuilt}");
    }
}

#[test]
fn an_unreadable_settings_file_does_not_block_the_next_source_or_write() {
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    apply(&settings, &[("example:a", "1")], "one", &tree("a")).unwrap();
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
    settings.keep(Some(&tree("a")));
    put_source(&place.layout, None);
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
    apply(&settings, &[], "one", &tree("b")).unwrap_err();
    settings.keep(Some(&tree("b")));
    put_source(&place.layout, None);
    apply(&settings, &[("example:a", "2")], "two", &tree("c")).unwrap();
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), b"\xff\xfe").unwrap();
    apply(&settings, &[("example:a", "3")], "three", &tree("c")).unwrap();
    assert!(text(&place.layout).contains("example:a: 3"), "{}", text(&place.layout));
}

#[test]
fn long_stack_names_are_supported() {
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    let stack = "a".repeat(200);
    let desired = Desired { stack: &stack, digest: "one", config: &[], environments: &[], tags: &[] };
    settings.apply(&desired, &tree("a")).unwrap();
    settings.keep(Some(&tree("a")));
    assert!(settings.kept(Path::new(&format!("Pulumi.{stack}.yaml"))).is_file());
}

#[test]
fn secrets_are_encrypted_once_and_again_after_a_change() {
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    let config = |secret: &'static str| [("secret", secret), ("secret2", "\"z\""), ("a", "1")];
    let none: [String; 0] = [];
    let both = ["secret", "secret2"];
    assert_eq!(apply(&settings, &config("\"x\""), "one", &tree("a")).unwrap(), both);
    assert_eq!(apply(&settings, &config("\"x\""), "one", &tree("a")).unwrap(), both, "values are not encrypted yet");
    let encrypted = text(&place.layout) + "  example:secret:\n    secure: v1:x\n  example:secret2:\n    secure: v1:z\n";
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), encrypted).unwrap();
    settings.record_secret("secret2").unwrap();
    let settings = Settings::open(place.layout.clone());
    settings.record_secret("secret").unwrap();
    assert_eq!(apply(&settings, &config("\"x\""), "one", &tree("a")).unwrap(), none);

    settings.keep(Some(&tree("a")));
    put_source(&place.layout, None);
    let again = Settings::open(place.layout.clone());
    let applied = apply(&again, &config("\"x\""), "one", &tree("b")).unwrap();
    assert_eq!(applied, none, "the next source keeps the encrypted values");
    assert!(text(&place.layout).contains("v1:x"));
    let applied = apply(&again, &config("\"y\""), "one", &tree("b")).unwrap();
    assert_eq!(applied, ["secret"], "only the changed secret is encrypted again");
    assert!(!text(&place.layout).contains("v1:x") && text(&place.layout).contains("v1:z"));
}

#[test]
fn a_secret_that_changed_while_another_stack_was_in_use_is_encrypted_again() {
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    let apply = |stack: &str, secret: &str| {
        let config = entries(&[("secret", secret)]);
        let desired = Desired { stack, digest: "one", config: &config, environments: &[], tags: &[] };
        settings.apply(&desired, &tree("a")).unwrap()
    };
    let encrypt = |stack: &str, value: &str| {
        let path = place.layout.source().join(format!("Pulumi.{stack}.yaml"));
        std::fs::write(path, format!("config:\n  example:secret:\n    secure: {value}\n")).unwrap();
        settings.record_secret("secret").unwrap();
    };
    assert_eq!(apply("dev", "\"x\""), ["secret"]);
    encrypt("dev", "v1:x");
    assert_eq!(apply("prod", "\"y\""), ["secret"]);
    encrypt("prod", "v1:y");
    assert_eq!(apply("dev", "\"y\""), ["secret"], "the file of the stack contains the earlier value");
    assert!(!text(&place.layout).contains("v1:x"), "{}", text(&place.layout));
}

/// Returns a workspace with the second source after the CLI has removed the stack with its settings file. The file
/// contained a secret that the CLI encrypted in the first source.
fn place_without_settings_file() -> (Place, Settings) {
    let place = place(None);
    let settings = Settings::open(place.layout.clone());
    let path = place.layout.source().join("Pulumi.dev.yaml");
    let config = [("secret", "\"x\"")];
    assert_eq!(apply(&settings, &config, "one", &tree("a")).unwrap(), ["secret"]);
    std::fs::write(&path, "encryptionsalt: v1:a\nconfig:\n  example:secret:\n    secure: v1:x\n").unwrap();
    settings.record_secret("secret").unwrap();
    settings.keep(Some(&tree("a")));
    put_source(&place.layout, None);
    assert!(apply(&settings, &config, "one", &tree("b")).unwrap().is_empty());
    std::fs::remove_file(&path).unwrap();
    (place, settings)
}

#[test]
fn a_settings_file_that_the_cli_has_removed_with_its_stack_is_not_restored() {
    let (place, settings) = place_without_settings_file();
    let config = [("secret", "\"x\"")];
    assert_eq!(apply(&settings, &config, "one", &tree("b")).unwrap(), ["secret"]);
    assert!(!text(&place.layout).contains("v1:"), "{}", text(&place.layout));
}

#[test]
fn a_source_after_the_removal_of_a_stack_does_not_restore_an_earlier_settings_file() {
    let (place, settings) = place_without_settings_file();
    let config = [("secret", "\"x\"")];
    settings.keep(Some(&tree("b")));
    put_source(&place.layout, None);
    assert_eq!(apply(&settings, &config, "one", &tree("c")).unwrap(), ["secret"]);
    assert!(!text(&place.layout).contains("v1:"), "{}", text(&place.layout));
}

#[test]
fn changed_tags_are_written_and_encrypted_values_are_kept() {
    let place = place(Some("config:\n  pulumi:tags:\n    team: web\n"));
    let settings = Settings::open(place.layout.clone());
    let config = [("secret", "\"x\"")];
    let tags = |revision: &str| [("flux:revision".to_owned(), revision.to_owned())];
    assert_eq!(apply(&settings, &config, "one", &tree("a")).unwrap(), ["secret"]);
    let salt = "encryptionsalt: v1:abc=:v1:def:ghi\n";
    let encrypted = format!("{salt}{}  example:secret:\n    secure: v1:x\n", text(&place.layout));
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), encrypted).unwrap();
    settings.record_secret("secret").unwrap();
    for revision in ["main-1", "main-2"] {
        let tags = tags(revision);
        let missing = apply_with_tags(&settings, &config, "one", &tree("a"), &tags).unwrap();
        assert!(missing.is_empty(), "{missing:?}");
        for part in ["v1:abc=:v1:def:ghi", "secure: v1:x", "team: web", revision] {
            assert!(text(&place.layout).contains(part), "{part} is missing in:\n{}", text(&place.layout));
        }
    }
    let unchanged = text(&place.layout) + "# touched\n";
    std::fs::write(place.layout.source().join("Pulumi.dev.yaml"), &unchanged).unwrap();
    let settings = Settings::open(place.layout.clone());
    apply_with_tags(&settings, &config, "one", &tree("a"), &tags("main-2")).unwrap();
    assert_eq!(text(&place.layout), unchanged, "unchanged tags are not written again");
    apply(&settings, &config, "one", &tree("a")).unwrap();
    let without = text(&place.layout);
    assert!(!without.contains("main-2") && without.contains("secure: v1:x"), "{without}");
}

struct Mount {
    directory: tempfile::TempDir,
    layout: Layout,
}

impl Mount {
    fn new(content: &[u8]) -> Mount {
        let directory = tempfile::tempdir().unwrap();
        let secret = directory.path().join("secrets/keys");
        // The kubelet creates each key as a symbolic link into a directory.
        std::fs::create_dir_all(secret.join("..data")).unwrap();
        std::fs::write(secret.join("..data/one"), content).unwrap();
        std::os::unix::fs::symlink("..data/one", secret.join("one")).unwrap();
        let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
        Mount { directory, layout }
    }

    fn file(&self, key: &str) -> proto::ConfigItem {
        let file = self.directory.path().join("secrets/keys").join(key);
        proto::ConfigItem { key: "k".into(), file: file.display().to_string(), ..Default::default() }
    }

    fn read(&self, item: proto::ConfigItem) -> Result<(Value, Vec<String>), String> {
        let mut environment = Environment::default();
        environment.variables.insert("SET".into(), "[1]".into());
        let expected = proto::Settings { stack: "dev".into(), config: vec![item], ..Default::default() };
        let entries = resolve_config(&self.layout, &mut environment, &expected).map_err(|error| error.to_string())?;
        let hidden = environment.secrets.iter().map(|secret| secret.to_string()).collect();
        Ok((entries[0].value.clone(), hidden))
    }
}

#[test]
fn config_values_come_from_literals_variables_and_files() {
    let mount = Mount::new(b"{\"a\": [\"hidden\", 1]}");
    let given = proto::ConfigItem { key: "k".into(), value: "5".into(), ..Default::default() };
    let variable = proto::ConfigItem { key: "k".into(), variable: "SET".into(), ..Default::default() };
    let rows = [
        (given.clone(), json!(5), vec![]),
        (proto::ConfigItem { value: "\"x\"".into(), secret: true, ..given }, json!("x"), vec!["x"]),
        (variable.clone(), json!("[1]"), vec![]),
        (proto::ConfigItem { json: true, ..variable }, json!([1]), vec![]),
        (mount.file("one"), json!("{\"a\": [\"hidden\", 1]}"), vec![]),
        (
            proto::ConfigItem { json: true, secret: true, ..mount.file("one") },
            json!({"a": ["hidden", 1]}),
            vec!["hidden", "1"],
        ),
    ];
    for (item, value, hidden) in rows {
        let hidden: Vec<String> = hidden.into_iter().map(str::to_owned).collect();
        assert_eq!(mount.read(item.clone()), Ok((value, hidden)), "{item:?}");
    }
}

#[test]
fn errors_name_the_config_key_or_source_without_revealing_the_value() {
    let mount = Mount::new(b"hidden");
    let rows = [
        (mount.file("other"), "key \"other\" of Secret \"keys\": the Secret has no such key"),
        (
            proto::ConfigItem { json: true, ..mount.file("one") },
            "value of config key k is not valid JSON: error at line 1, column 1",
        ),
        (
            proto::ConfigItem { key: "k".into(), variable: "NONE".into(), ..Default::default() },
            "variable NONE, which is not set",
        ),
        (
            proto::ConfigItem { key: "k".into(), value: "hidden".into(), ..Default::default() },
            "value of config key k is not valid JSON",
        ),
    ];
    for (item, expected) in rows {
        let error = mount.read(item).unwrap_err();
        assert!(error.contains(expected) && !error.contains("hidden"), "{error}");
    }
    assert!(Mount::new(b"\xff").read(mount.file("one")).is_ok(), "each mount has its own variable");
    let binary = Mount::new(b"\xff");
    assert!(binary.read(binary.file("one")).unwrap_err().contains("config key k is not valid UTF-8"));
}
