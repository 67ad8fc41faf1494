use super::*;

fn variable(name: &str, source: Source) -> EnvironmentVariable {
    EnvironmentVariable { name: name.into(), source: Some(source), optional: false }
}

fn shown(environment: &Environment) -> Vec<&str> {
    environment.secrets.iter().map(|secret| secret.as_str()).collect()
}

fn get<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    environment.variables.get(OsStr::new(name)).and_then(|value| value.to_str())
}

#[test]
fn variables_are_set_from_values_and_files_unless_they_are_reserved() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    let token = directory.path().join("token");
    std::fs::write(&token, "hunter22\n").unwrap();
    let expected = [
        variable("PLAIN", Source::Value("one".into())),
        variable("TOKEN", Source::File(token.to_str().unwrap().into())),
        variable("PULUMI_OPTION_PARALLEL", Source::Value("1".into())),
        variable("HOME", Source::Value("/nonexistent".into())),
    ];
    let environment = build(&layout, &expected).unwrap();
    assert_eq!(get(&environment, "PLAIN"), Some("one"));
    assert_eq!(get(&environment, "TOKEN"), Some("hunter22\n"));
    assert_eq!(get(&environment, "PULUMI_OPTION_PARALLEL"), None);
    assert_eq!(get(&environment, "HOME"), layout.home().to_str());
    assert_eq!(get(&environment, "PATH"), std::env::var("PATH").ok().as_deref());
    assert_eq!(shown(&environment), ["hunter22\n"]);
    assert!(layout.home().is_dir());
}

#[test]
fn removed_options_are_listed_and_an_option_that_changes_a_run_refuses_it() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    let build = |name: &str| build(&layout, &[variable(name, Source::Value("1".into()))]).unwrap();
    let harmless = build("PULUMI_OPTION_PARALLEL");
    assert_eq!(harmless.removed, ["PULUMI_OPTION_PARALLEL"]);
    assert!(harmless.without_refused_options().is_ok() && build("PULUMI_OPTION_OTEL_TRACES").removed.is_empty());
    for (name, end) in [
        ("PULUMI_OPTION_TARGET", "would change more resources than it permits; remove it and use spec.targets"),
        ("PULUMI_OPTION_OVERRIDE_ENV", "than it selects; remove it and use spec.environment"),
    ] {
        let refusal = build(name).without_refused_options().unwrap_err();
        assert!(matches!(&refusal, Refusal::Precondition(why) if why.ends_with(end)), "{refusal}");
    }
}

#[test]
fn a_backend_url_ends_without_a_line_feed() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    let file = directory.path().join("url");
    std::fs::write(&file, "s3://state\n").unwrap();
    for source in [Source::Value("s3://state\n".into()), Source::File(file.to_str().unwrap().into())] {
        let environment = build(&layout, &[variable(URL_VARIABLE, source)]).unwrap();
        assert_eq!(get(&environment, URL_VARIABLE), Some("s3://state"));
    }
}

#[test]
fn programs_have_a_home_directory_of_the_cli_and_a_directory_for_temporary_files() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    assert_eq!(get(&build(&layout, &[]).unwrap(), "PULUMI_HOME"), layout.pulumi_home().to_str());
    let variables = [variable("PULUMI_HOME", Source::Value("/mine".into()))];
    assert_eq!(get(&build(&layout, &variables).unwrap(), "PULUMI_HOME"), Some("/mine"));
    let temporary = |has_temporary| {
        let defaults = BTreeMap::from_iter(defaults(&layout, has_temporary));
        defaults.get("TMPDIR").map(PathBuf::from)
    };
    assert_eq!((temporary(true), temporary(false)), (None, Some(layout.temporary())));
}

#[test]
fn variables_from_init_containers_override_the_defaults_of_the_controller() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    let mut container = BTreeMap::from([
        ("PULUMI_HOME".into(), layout.pulumi_home().into()),
        ("USER".into(), "pulumi".into()),
        ("REGION".into(), "eu".into()),
    ]);
    remove_defaults(&mut container, &layout);
    assert_eq!(container, BTreeMap::from([("REGION".into(), "eu".into())]));
}

#[test]
fn go_caches_are_on_the_share_volume_unless_the_user_sets_their_paths() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    let environment = build(&layout, &[variable("GOMODCACHE", Source::Value("/cache/modules".into()))]).unwrap();
    assert_eq!(get(&environment, "GOCACHE"), layout.go_build_cache().to_str());
    assert_eq!(get(&environment, "GOMODCACHE"), Some("/cache/modules"));
}

#[test]
fn every_mounted_secret_is_redacted_even_if_unused() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secrets/aws");
    // The kubelet creates each key as a symbolic link into a directory, and replaces this directory atomically.
    std::fs::create_dir_all(secret.join("..2026")).unwrap();
    std::fs::write(secret.join("..2026/key"), "inherited-value").unwrap();
    std::fs::write(secret.join("..2026/large"), "x".repeat(65 * 1024)).unwrap();
    std::os::unix::fs::symlink("..2026", secret.join("..data")).unwrap();
    for key in ["key", "large"] {
        std::os::unix::fs::symlink(format!("..data/{key}"), secret.join(key)).unwrap();
    }
    let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
    let environment = build(&layout, &[]).unwrap();
    assert_eq!(shown(&environment), ["inherited-value"]);
    assert_eq!(environment.redactor().redact("npm: inherited-value"), "npm: [secret]");
}

#[test]
fn the_default_access_token_applies_unless_the_variable_is_set() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("accessToken");
    let layout = Layout::new(directory.path()).with_default_access_token(&file);
    let token = |desired: &[EnvironmentVariable]| {
        let environment = build(&layout, desired).unwrap();
        let redacted = environment.redactor().redact("pul-default");
        (get(&environment, TOKEN_VARIABLE).map(str::to_owned), redacted)
    };
    assert_eq!(token(&[]).0, None, "the Secret does not exist");
    std::fs::write(&file, "pul-default\n").unwrap();
    assert_eq!(token(&[]), (Some("pul-default".to_owned()), "[secret]".to_owned()));
    std::fs::write(&file, "pul-rotated").unwrap();
    assert_eq!(token(&[]).0.as_deref(), Some("pul-rotated"));
    for explicit in ["pul-explicit", ""] {
        let explicit_token = variable(TOKEN_VARIABLE, Source::Value(explicit.into()));
        assert_eq!(token(&[explicit_token]).0.as_deref(), Some(explicit));
    }
    std::fs::write(layout.env_file(), "PULUMI_ACCESS_TOKEN=pul-from-init\n").unwrap();
    assert_eq!(token(&[]).0.as_deref(), Some("pul-from-init"));
}

#[test]
fn a_missing_secret_and_a_missing_key_cause_different_errors() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
    // The kubelet leaves the directory of an optional Secret empty until the Secret exists.
    for secret in ["absent", "present/..2026"] {
        std::fs::create_dir_all(layout.secrets().join(secret)).unwrap();
    }
    std::fs::write(layout.secrets().join("present/..2026/other"), "hunter22").unwrap();
    std::os::unix::fs::symlink("..2026", layout.secrets().join("present/..data")).unwrap();
    for (secret, why) in [("absent", "does not exist"), ("present", "has no such key")] {
        let file = layout.secrets().join(secret).join("token").to_str().unwrap().to_owned();
        let refusal = build(&layout, &[variable("TOKEN", Source::File(file))]).unwrap_err();
        assert!(matches!(refusal, Refusal::Precondition(_)), "the next run can succeed");
        let message = refusal.to_string();
        for word in ["TOKEN", "key \"token\"", &format!("Secret \"{secret}\""), why] {
            assert!(message.contains(word), "{message}");
        }
    }
}

#[test]
fn all_keys_of_a_mount_become_variables_and_only_secrets_are_redacted() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path())
        .with_secrets(directory.path().join("secrets"))
        .with_config_maps(directory.path().join("config-maps"));
    let mount = |path: PathBuf, keys: &[(&str, &str)]| {
        std::fs::create_dir_all(path.join("..2026")).unwrap();
        std::os::unix::fs::symlink("..2026", path.join("..data")).unwrap();
        for (key, value) in keys {
            std::fs::write(path.join("..2026").join(key), value).unwrap();
            std::os::unix::fs::symlink(format!("..data/{key}"), path.join(key)).unwrap();
        }
        path.to_str().unwrap().to_owned()
    };
    let secret = mount(layout.secrets().join("aws"), &[("ID", "first-id"), ("KEY", "hunter22")]);
    let map = mount(layout.config_maps().join("region"), &[("ID", "true"), ("POD_UID", "another pod")]);
    let empty = mount(layout.config_maps().join("empty"), &[]);
    let all = |prefix: &str, directory: &str| variable(prefix, Source::Directory(directory.to_owned()));
    let expected = [all("", &secret), all("AWS_", &secret), all("", &map), all("", &empty)];
    let environment = build(&layout, &expected).unwrap();
    for (name, value) in [("ID", "true"), ("KEY", "hunter22"), ("AWS_ID", "first-id"), ("AWS_KEY", "hunter22")] {
        assert_eq!(get(&environment, name), Some(value), "{name}: the last variable wins");
    }
    assert_ne!(get(&environment, "POD_UID"), Some("another pod"), "a reserved name");
    assert_eq!(environment.redactor().redact("true first-id hunter22"), "true [secret] [secret]");

    let missing = layout.config_maps().join("missing").to_str().unwrap().to_owned();
    let refusal = build(&layout, &[all("", &missing)]).unwrap_err();
    assert!(matches!(refusal, Refusal::Precondition(_)), "the next run can succeed");
    assert!(refusal.to_string().contains("environment variables from all keys of ConfigMap \"missing\""), "{refusal}");
}

#[test]
fn later_entries_override_earlier_ones_even_if_they_are_optional_or_inherited() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path()).with_secrets(directory.path().join("secrets"));
    let mount = |secret: &str, keys: &[(&str, &str)]| {
        let path = layout.secrets().join(secret);
        std::fs::create_dir_all(path.join("..data")).unwrap();
        for (key, value) in keys {
            std::fs::write(path.join("..data").join(key), value).unwrap();
            std::os::unix::fs::symlink(format!("..data/{key}"), path.join(key)).unwrap();
        }
    };
    let all = |secret: &str| {
        let directory = layout.secrets().join(secret).to_str().unwrap().to_owned();
        EnvironmentVariable { optional: secret != "defaults", ..variable("", Source::Directory(directory)) }
    };
    let region = layout.secrets().join("override/REGION").to_str().unwrap().to_owned();
    let desired = [
        all("defaults"),
        all("override"),
        all("absent"),
        variable("PATH", Source::Inherited(true)),
        variable("NOT_IN_THE_CONTAINER", Source::Inherited(true)),
        EnvironmentVariable { optional: true, ..variable("PLACE", Source::File(region)) },
        variable("URL", Source::Template("postgres://$(USER_NAME):$(PASSWORD)@$(HOME)/$(PLACE)".into())),
    ];
    mount("defaults", &[("PASSWORD", "default"), ("PATH", "/nowhere"), ("USER_NAME", "jane")]);
    let environment = build(&layout, &desired).unwrap();
    assert_eq!(get(&environment, "PATH"), std::env::var("PATH").ok().as_deref());
    assert_eq!(get(&environment, "NOT_IN_THE_CONTAINER"), None);
    let url = "postgres://jane:default@$(HOME)/$(PLACE)";
    assert_eq!(get(&environment, "URL"), Some(url), "the kubelet does not know the variables of the image");
    mount("override", &[("PASSWORD", "rotated"), ("REGION", "eu")]);
    let environment = build(&layout, &desired).unwrap();
    assert_eq!(get(&environment, "PASSWORD"), Some("rotated"));
    assert_eq!(get(&environment, "URL"), Some("postgres://jane:rotated@$(HOME)/eu"));
}

#[test]
fn variables_from_all_keys_of_an_object_do_not_outlive_their_keys() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path())
        .with_secrets(directory.path().join("secrets"))
        .with_config_maps(directory.path().join("config-maps"));
    for (file, value) in [
        ("secrets/aws/SESSION_TOKEN", "temporary"),
        ("secrets/aws/KEY", "changed"),
        ("config-maps/region/NAMESPACE", "apps"),
        ("config-maps/region/PATH", "/tools"),
    ] {
        let file = directory.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, value).unwrap();
    }
    let from = |prefix: &str, directory: PathBuf| variable(prefix, Source::Directory(directory.display().to_string()));
    let (secret, map) = (layout.secrets().join("aws"), layout.config_maps().join("region"));
    let variables = [
        ("AWS_SESSION_TOKEN", "temporary"),
        ("KEY", "1"),
        ("PATH", "/tools"),
        ("POD_NAMESPACE", "apps"),
        ("TOKEN", "temporary"),
    ];
    let container: BTreeMap<_, _> =
        variables.map(|(name, value)| (OsString::from(name), OsString::from(value))).into_iter().collect();
    let mounted = mounted_variables(&layout, &container);
    let left = |desired: &[EnvironmentVariable]| {
        let mut environment = Environment { variables: container.clone(), secrets: Vec::new(), removed: Vec::new() };
        environment.remove_mounted(&mounted, desired);
        environment.variables.keys().map(|name| name.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = ["AWS_SESSION_TOKEN", "KEY", "PATH", "POD_NAMESPACE", "TOKEN"];
    assert_eq!(left(&[from("AWS_", secret.clone()), from("POD_", map.clone()), from("", map)]), all[1..]);
    assert_eq!(left(&[from("", secret)]), all, "another prefix");
    assert_eq!(left(&[]), all);
}

#[test]
fn an_error_names_the_invalid_environment_variable() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    let missing = directory.path().join("aws/secret-key").to_str().unwrap().to_owned();
    for (expected, words) in [
        (variable("KEY", Source::File(missing.clone())), vec!["KEY", missing.as_str(), "no such file"]),
        (variable("A=B", Source::Value(String::new())), vec!["A=B"]),
        (variable("NUL", Source::Value("a\0b".into())), vec!["NUL"]),
        (EnvironmentVariable { name: "EMPTY".into(), ..EnvironmentVariable::default() }, vec!["EMPTY"]),
    ] {
        let message = build(&layout, &[expected]).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn env_file_errors_show_only_the_number_of_the_invalid_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(".env");
    assert_eq!(read_env_file(&file).unwrap(), []);
    std::fs::write(&file, "# a comment\nREGION=eu\nexport TOKEN='hunter 22 $x'\n\nEMPTY=\n").unwrap();
    let variables = read_env_file(&file).unwrap();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(variables, [("REGION", "eu"), ("TOKEN", "hunter 22 $x"), ("EMPTY", "")]);
    std::fs::write(&file, "REGION=eu\nTOKEN=hunter 22\n").unwrap();
    let refusal = read_env_file(&file).unwrap_err().to_string();
    assert!(refusal.contains("line 2") && !refusal.contains("hunter"), "{refusal}");
    std::fs::write(&file, "A=".to_owned() + &"x".repeat(1024 * 1024)).unwrap();
    assert!(read_env_file(&file).unwrap_err().to_string().contains("exceeds"));
}

#[test]
fn the_last_value_of_an_init_container_applies_unless_the_container_sets_the_variable() {
    let directory = tempfile::tempdir().unwrap();
    let layout = Layout::new(directory.path());
    std::fs::write(layout.env_file(), "TOKEN=expired-token\nPATH=/nowhere\nTOKEN=renewed-token\n").unwrap();
    let environment = build(&layout, &[]).unwrap();
    assert_eq!(get(&environment, "TOKEN"), Some("renewed-token"));
    assert_eq!(get(&environment, "PATH"), std::env::var("PATH").ok().as_deref());
    assert_eq!(shown(&environment), ["expired-token", "renewed-token"]);
}

#[test]
fn the_agent_determines_the_same_backend_as_the_cli() {
    let home = tempfile::tempdir().unwrap();
    let home_path = home.path().to_str().unwrap();
    let project = Project { backend_url: Some("s3://project".to_owned()), ..Project::default() };
    let url = |variables: &[(&str, &str)], project: Option<&Project>| {
        let mut environment = Environment::default();
        environment.variables.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
        super::backend_url(&environment, project).unwrap()
    };
    assert_eq!(url(&[], None), PULUMI_CLOUD);
    assert_eq!(url(&[("PULUMI_HOME", home_path)], None), PULUMI_CLOUD, "no login");
    assert_eq!(url(&[("PULUMI_API", "https://pulumi.example.com")], None), "https://pulumi.example.com");
    std::fs::write(home.path().join("credentials.json"), r#"{"current": "s3://login?region=x&sig=y"}"#).unwrap();
    assert_eq!(url(&[("PULUMI_HOME", home_path)], None), "s3://login?region=x");
    assert_eq!(url(&[("PULUMI_HOME", home_path)], Some(&project)), "s3://project");
    let variables = [("PULUMI_HOME", home_path), ("PULUMI_BACKEND_URL", "s3://variable")];
    assert_eq!(url(&variables, Some(&project)), "s3://variable");
    assert_eq!(url(&[("PULUMI_HOME", home_path), ("PULUMI_BACKEND_URL", "")], Some(&project)), "s3://project");
    let endpoint = [("AWS_ENDPOINT_URL", "http://minio"), ("AWS_ENDPOINT_URL_S3", "http://user:word@s3.example.com")];
    assert_eq!(url(&endpoint, Some(&project)), "s3://project?endpoint=http://s3.example.com");
    assert_eq!(url(&endpoint, None), PULUMI_CLOUD);
}
