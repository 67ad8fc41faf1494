//! Tests of the Helm chart: `values.yaml`, its schema, the table in the README of the chart, and the names in the
//! templates. These tests do not render the templates, so they need no Helm.

use anyhow::{Context, Result};
use clap::CommandFactory;
use pulumi_controller::cli::CommandLine;
use serde_json::Value;

use super::{expect_between, root};

const CHART: &str = "deploy/chart";

/// Start and end markers of the values table.
const VALUES: [&str; 2] = ["<!-- values: generated from values.yaml by `make generate` -->\n", "<!-- /values -->\n"];

fn read(file: &str) -> Result<String> {
    let path = root().join(CHART).join(file);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns each path in `values.yaml` that has a comment with the prefix `# -- `, and its comment. A path is a list of
/// keys.
fn documented(text: &str) -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    let mut keys: Vec<(usize, String)> = Vec::new();
    let mut comment: Option<String> = None;
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(start) = content.strip_prefix("# -- ") {
            comment = Some(start.to_owned());
        } else if let Some(more) = content.strip_prefix("# ") {
            if let Some(comment) = &mut comment {
                comment.push(' ');
                comment.push_str(more);
            }
        } else if let Some((key, _)) = content.split_once(':').filter(|_| !content.starts_with('-')) {
            keys.retain(|(other, _)| *other < indent);
            keys.push((indent, key.to_owned()));
            if let Some(comment) = comment.take() {
                found.push((keys.iter().map(|(_, key)| key.clone()).collect(), comment));
            }
        }
    }
    found
}

/// Returns the paths of undocumented values. A comment on an object also documents the fields of the object.
fn undocumented(value: &Value, path: &[String], documented: &[(Vec<String>, String)]) -> Vec<String> {
    if documented.iter().any(|(other, _)| other == path) {
        return Vec::new();
    }
    match value.as_object() {
        Some(fields) if !fields.is_empty() => {
            let paths = fields.iter().map(|(key, value)| (value, [path, std::slice::from_ref(key)].concat()));
            paths.flat_map(|(value, path)| undocumented(value, &path, documented)).collect()
        }
        _ => vec![path.join(".")],
    }
}

/// Returns the schema properties that have no value, and the values that have no schema property.
fn mismatches(schema: &Value, part: &Value, value: &Value, path: &str) -> Vec<String> {
    let part = match part["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => schema.pointer(pointer).unwrap_or(&Value::Null),
        None => part,
    };
    let (Some(properties), Some(fields)) = (part["properties"].as_object(), value.as_object()) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for name in properties.keys().filter(|name| !fields.contains_key(*name)) {
        found.push(format!("values.yaml does not contain {path}{name}"));
    }
    for (name, value) in fields {
        match properties.get(name) {
            Some(property) => found.extend(mismatches(schema, property, value, &format!("{path}{name}."))),
            None => found.push(format!("values.schema.json does not contain {path}{name}")),
        }
    }
    if part["additionalProperties"] != false {
        found.push(format!("values.schema.json allows additional properties of {path}"));
    }
    found
}

#[test]
fn the_documented_values_match_the_chart() -> Result<()> {
    let text = read("values.yaml")?;
    let values: Value = serde_saphyr::from_str(&text)?;
    let documented = documented(&text);
    let missing = undocumented(&values, &[], &documented);
    anyhow::ensure!(
        missing.is_empty(),
        "these values in values.yaml have no comment that starts with `# -- `: {missing:?}"
    );
    let mut table = "| value | default | description |\n|---|---|---|\n".to_owned();
    for (path, comment) in documented {
        let default = values.pointer(&format!("/{}", path.join("/"))).context(path.join("."))?;
        let cells = [format!("`{}`", path.join(".")), format!("`{default}`"), comment];
        table.push_str(&format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")));
    }
    expect_between(&root().join(CHART).join("README.md"), VALUES, &table)
}

#[test]
fn the_values_schema_has_exactly_the_values() -> Result<()> {
    let schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
    let mut values: Value = serde_saphyr::from_str(&read("values.yaml")?)?;
    // A parent chart can set this value.
    values["global"] = Value::Object(Default::default());
    assert_eq!(mismatches(&schema, &schema, &values, ""), Vec::<String>::new());
    Ok(())
}

/// Returns the flag and its default in a comment such as "Log level (`--log-level`). Default: `info`".
fn documented_default(comment: &str) -> Option<(&str, &str)> {
    let (flag, rest) = comment.split_once("(`--")?.1.split_once("`)")?;
    let default = rest.split_once("Default: ")?.1.split(" (").next()?;
    (!default.contains(' ')).then(|| (flag, default.trim_matches('`')))
}

#[test]
fn the_documented_defaults_are_those_of_the_flags() -> Result<()> {
    let command = CommandLine::command();
    let manager = command.find_subcommand("manager").context("the command line has no subcommand manager")?;
    let documented = documented(&read("values.yaml")?);
    let defaults: Vec<_> = documented.iter().filter_map(|(_, comment)| documented_default(comment)).collect();
    assert!(defaults.len() >= 10, "{defaults:?}");
    for (name, default) in defaults {
        let flag =
            manager.get_arguments().find(|flag| flag.get_long() == Some(name)).with_context(|| name.to_owned())?;
        assert_eq!(flag.get_default_values(), [default], "--{name}");
    }
    Ok(())
}

#[test]
fn the_chart_has_the_version_of_the_controller() -> Result<()> {
    let chart: Value = serde_saphyr::from_str(&read("Chart.yaml")?)?;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(chart["version"], version, "deploy/chart/Chart.yaml: version");
    assert_eq!(chart["appVersion"], format!("v{version}"), "deploy/chart/Chart.yaml: appVersion");
    Ok(())
}

/// Returns the concatenated content of all templates.
fn templates() -> Result<String> {
    let folder = root().join(CHART).join("templates");
    let files = std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut text = String::new();
    for file in files {
        text.push_str(&std::fs::read_to_string(file?.path())?);
    }
    Ok(text)
}

/// Returns the words in a text that follow a prefix. A word ends before the first character that does not match
/// `is_part`.
fn words_after<'a>(text: &'a str, prefix: &'a str, is_part: fn(char) -> bool) -> impl Iterator<Item = &'a str> {
    let rests = text.split(prefix).skip(1);
    rests.filter_map(move |rest| rest.split(|character| !is_part(character)).next())
}

#[test]
fn the_templates_use_all_values_and_no_other_values() -> Result<()> {
    let text = read("values.yaml")?;
    let values: Value = serde_saphyr::from_str(&text)?;
    let templates = templates()?;
    let is_path = |character: char| character.is_ascii_alphanumeric() || character == '.';
    for prefix in [".Values.", "$values."] {
        for path in words_after(&templates, prefix, is_path) {
            let pointer = format!("/{}", path.replace('.', "/"));
            assert!(values.pointer(&pointer).is_some(), "values.yaml does not contain {path}");
        }
    }
    for (path, _) in documented(&text) {
        let name = path.last().context("an empty path")?;
        let is_used = templates.contains(&format!(".{name}")) || templates.contains(&format!("\"{name}\""));
        assert!(is_used, "no template uses {}", path.join("."));
    }
    Ok(())
}

#[test]
fn the_templates_read_existing_files_and_set_existing_flags() -> Result<()> {
    let templates = templates()?;
    let files: Vec<_> = words_after(&templates, "\"files/", |character| character != '"').collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        let path = root().join(CHART).join("files").join(file.trim_end_matches("/*.yaml"));
        anyhow::ensure!(path.exists(), "{} does not exist", path.display());
    }
    let command = CommandLine::command();
    let manager = command.find_subcommand("manager").context("the command line has no subcommand manager")?;
    let arguments = read("templates/_args.tpl")?;
    let is_flag = |character: char| character.is_ascii_lowercase() || character == '-';
    let flags = ["(list \"", "\"--"].into_iter().flat_map(|prefix| words_after(&arguments, prefix, is_flag));
    // Ignores the format string `--%s=%v`, which contains no flag name.
    let flags: Vec<_> = flags.filter(|flag| !flag.is_empty()).collect();
    assert!(flags.len() >= 20, "{flags:?}");
    for flag in flags {
        assert!(manager.get_arguments().any(|known| known.get_long() == Some(flag)), "--{flag} does not exist");
    }
    Ok(())
}
