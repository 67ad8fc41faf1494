//! Checks the `kubectl` commands in the documentation without a cluster. The fields in patches and in paths must exist
//! in the CustomResourceDefinitions, and the annotations must exist in the code. `tests/e2e/documents.rs` applies the
//! objects in the documentation, and `tests/e2e/examples` runs all commands from the examples.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a missing prerequisite fails the test"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Key that selects the elements of a list or the values of a map.
const ELEMENT: &str = "[]";
/// Schema of a field that accepts any content.
static ANY: Value = Value::Null;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| if path.is_dir() { files(&path, extension) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Maps the names by which commands select a kind, such as `stack` and `stacks.pulumi.com`, to the kind's schema.
fn schemas() -> BTreeMap<String, Value> {
    let mut schemas = BTreeMap::new();
    for path in files(&root().join("config/crd"), "yaml") {
        let definition: Value = serde_saphyr::from_str(&read(&path)).unwrap();
        if definition["kind"] != "CustomResourceDefinition" {
            continue;
        }
        let versions = definition["spec"]["versions"].as_array().unwrap();
        let version = versions.iter().find(|version| version["storage"] == true).expect("a stored version");
        for name in ["singular", "plural"] {
            let name = definition["spec"]["names"][name].as_str().unwrap();
            let group = definition["spec"]["group"].as_str().unwrap();
            for name in [name.to_owned(), format!("{name}.{group}")] {
                schemas.insert(name, version["schema"]["openAPIV3Schema"].clone());
            }
        }
    }
    assert_eq!(schemas.len(), 6 * 4, "names of the kinds");
    schemas
}

/// Returns the schema of a field or an element. Returns `None` if the API server would reject or drop the field.
fn child<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let known = if key == ELEMENT { schema.get("items") } else { schema["properties"].get(key) };
    let values = schema.get("additionalProperties").filter(|values| values.is_object());
    let has_any_content = schema.is_null()
        || schema["x-kubernetes-preserve-unknown-fields"] == true
        || (schema["type"] == "object" && schema.get("properties").is_none());
    known.or(values).or_else(|| has_any_content.then_some(&ANY))
}

/// Adds the paths of fields that the schema does not contain.
fn find_unknown(schema: &Value, value: &Value, path: &str, unknown: &mut Vec<String>) {
    let fields: Vec<(&str, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.as_str(), value)).collect(),
        Value::Array(elements) => elements.iter().map(|element| (ELEMENT, element)).collect(),
        _ => return,
    };
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        match child(schema, name) {
            Some(schema) => find_unknown(schema, value, &path, unknown),
            None => unknown.push(path),
        }
    }
}

/// Returns the arguments of each `kubectl` command in the `sh` blocks of a document.
fn kubectl_commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut is_shell = false;
    let mut commands = Vec::new();
    for line in text.lines() {
        match line.trim() {
            "```sh" => is_shell = true,
            "```" => is_shell = false,
            line if is_shell => commands.extend(line.split("kubectl ").skip(1).map(str::to_owned)),
            _ => {}
        }
    }
    commands
}

/// Returns the commands in all documents, each with the path of its document.
fn documented_commands() -> Vec<(PathBuf, String)> {
    let mut documents = vec![root().join("README.md")];
    documents.extend(["docs", "examples"].iter().flat_map(|folder| files(&root().join(folder), "md")));
    let commands = documents.into_iter().map(|path| (kubectl_commands(&read(&path)), path));
    commands.flat_map(|(commands, path)| commands.into_iter().map(move |command| (path.clone(), command))).collect()
}

/// Returns the schema of the first kind in a command, among the kinds that this project defines.
fn schema_of<'a>(schemas: &'a BTreeMap<String, Value>, command: &str) -> Option<&'a Value> {
    command.split_whitespace().find_map(|word| schemas.get(word.split(['/', ',']).next()?))
}

fn patch(command: &str) -> Option<Value> {
    command.split_whitespace().find(|word| *word == "patch")?;
    let (_, patch) = ["--patch '", "-p '"].iter().find_map(|flag| command.split_once(flag))?;
    let patch = patch.split('\'').next()?;
    Some(serde_json::from_str(patch).unwrap_or_else(|error| panic!("{command}: {error}")))
}

/// Returns the paths below `spec` and `status` in a command's output format and wait conditions.
fn field_paths(command: &str) -> Vec<Vec<String>> {
    let starts = command.match_indices(".status").chain(command.match_indices(".spec"));
    let starts = starts.map(|(start, _)| command.split_at(start));
    let starts = starts.filter(|(before, _)| before.ends_with(['{', ' ', '\'', ':']) || before.ends_with(".items[*]"));
    let paths = starts.map(|(_, path)| keys(path));
    paths.filter(|keys| keys.first().is_some_and(|first| first == "spec" || first == "status")).collect()
}

/// Parses a JSONPath, such as `.status.runs[*].state`, up to the first character that does not belong to the path.
fn keys(path: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut rest = path;
    loop {
        if let Some(after) = rest.strip_prefix('[') {
            let Some((_, after)) = after.split_once(']') else { return keys };
            keys.push(ELEMENT.to_owned());
            rest = after;
        } else if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after.len());
            if end == 0 {
                return keys;
            }
            keys.push(after[..end].to_owned());
            rest = &after[end..];
        } else {
            return keys;
        }
    }
}

/// Returns the annotations of this project and of Flux that a command sets or removes.
fn annotations(command: &str) -> Vec<&str> {
    if !command.split_whitespace().any(|word| word == "annotate") {
        return Vec::new();
    }
    let words = command.split_whitespace().map(|word| word.trim_start_matches('\''));
    let names = words.map(|word| word.split(['=', '\'']).next().unwrap_or_default().trim_end_matches('-'));
    let groups = ["pulumi.com/", "auto.pulumi.com/", "reconcile.fluxcd.io/"];
    names.filter(|name| groups.iter().any(|group| name.starts_with(group))).collect()
}

#[test]
fn every_patch_has_only_fields_of_its_kind() {
    let schemas = schemas();
    let mut checked = 0;
    for (path, command) in documented_commands() {
        let (Some(schema), Some(patch)) = (schema_of(&schemas, &command), patch(&command)) else { continue };
        let mut unknown = Vec::new();
        find_unknown(schema, &patch, "", &mut unknown);
        // The schemas in the CustomResourceDefinitions do not describe the metadata.
        unknown.retain(|field| field != ".metadata");
        assert!(unknown.is_empty(), "{}: kubectl {command}: unknown fields {unknown:?}", path.display());
        checked += 1;
    }
    assert!(checked > 30, "found only {checked} patches");
}

#[test]
fn every_path_exists_in_the_schema_of_its_kind() {
    let schemas = schemas();
    let mut checked = 0;
    for (path, command) in documented_commands() {
        let Some(schema) = schema_of(&schemas, &command) else { continue };
        for keys in field_paths(&command) {
            let found = keys.iter().try_fold(schema, |schema, key| child(schema, key));
            assert!(found.is_some(), "{}: kubectl {command}: unknown path {}", path.display(), keys.join("."));
            checked += 1;
        }
    }
    assert!(checked > 80, "found only {checked} paths");
}

#[test]
fn every_annotation_exists_in_the_code() {
    let code: String = files(&root().join("src"), "rs").iter().map(|path| read(path)).collect();
    let mut checked = 0;
    for (path, command) in documented_commands() {
        for annotation in annotations(&command) {
            assert!(code.contains(&format!("\"{annotation}\"")), "{}: unknown {annotation}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 40, "found only {checked} annotations");
}

/// The pod of a Workspace can come from a pool and have any name. A new pod has no selected Pulumi stack.
#[test]
fn every_command_for_a_workspace_pod_works_in_all_pods() {
    let mut checked = 0;
    for (path, command) in documented_commands() {
        let path = path.display();
        assert!(!command.contains("-workspace-0"), "{path}: kubectl {command}: select the pod with its Service");
        let Some((_, arguments)) = command.split_once(" -- pulumi ") else { continue };
        let needs_stack = !arguments.starts_with("about");
        assert!(!needs_stack || arguments.contains("--stack "), "{path}: kubectl {command}: add --stack");
        checked += 1;
    }
    assert!(checked > 10, "found only {checked} Pulumi commands");
}

/// Tests that the checks in this file find mistakes.
#[test]
fn unknown_fields_paths_and_annotations_are_found() {
    let schemas = schemas();
    let command =
        "kubectl patch stack web --type merge \\\n  --patch '{\"spec\":{\"suspended\":true,\"config\":{\"a\":1}}}'";
    let commands = kubectl_commands(&format!("```sh\n{command}\n```\n```text\n{command}\n```\n"));
    assert_eq!(commands.len(), 1, "{commands:?}");
    let command = &commands[0];
    let mut unknown = Vec::new();
    find_unknown(schema_of(&schemas, command).unwrap(), &patch(command).unwrap(), "", &mut unknown);
    assert_eq!(unknown, [".spec.suspended"]);

    let command = "get stack web -o jsonpath='{.status.outputs.a} {.status.runs[0].end}{.metadata.name}'";
    let schema = schema_of(&schemas, command).unwrap();
    let found: Vec<bool> = field_paths(command)
        .iter()
        .map(|keys| keys.iter().try_fold(schema, |schema, key| child(schema, key)).is_some())
        .collect();
    assert_eq!(found, [true, false]);

    let command = "annotate --overwrite stack/web 'pulumi.com/cancel=1' pulumi.com/pause- example.com/a=b";
    assert_eq!(annotations(command), ["pulumi.com/cancel", "pulumi.com/pause"]);
}

#[test]
fn every_test_in_the_table_of_lost_objects_exists() {
    let page = read(&root().join("docs/reliability.md"));
    let (_, table) = page.split_once("## Lost, moved, restored and duplicated objects").expect("the section");
    let (table, _) = table.split_once("\n## ").expect("the next section");
    let rows: Vec<&str> = table.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit(" | ").next()).collect();
    let names: Vec<&str> = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() >= 40, "{names:?}");
    let folders = ["src", "tests"].map(|folder| files(&root().join(folder), "rs"));
    let code: String = folders.iter().flatten().map(|path| read(path)).collect();
    let missing: Vec<_> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
