//! Validates a Program without loading providers. This module performs no I/O.
//!
//! A problem is an error that makes the Program invalid for every stack. A need is a requirement that the stack config
//! must meet. The stack config can define names and values that the Program does not declare.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde_json::Value;

use crate::api::pulumi::{Program, ProgramResource};
use crate::source::program::config::{self, describe};
use crate::source::program::conversion::{self, Interpolated};
use crate::source::program::names::{Declarations, Declared, RESERVED, ReferenceText, cycle, parse_references};
use crate::source::program::sentences::{MAX_LISTED, Sentences, below, path_of_cycle, quoted};

/// Maximum number of names in [`Findings::interpolated`].
const MAX_INTERPOLATED: usize = 200;

/// The result of the validation. Each sentence starts with the path of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Errors that make the Program invalid for every stack.
    pub problems: Sentences,
    /// Requirements that the config of every stack with this Program must meet.
    pub needs: Sentences,
    /// Defaults that Pulumi YAML inserts into strings in another form.
    pub warnings: Sentences,
    /// Config keys whose values the Program inserts into strings.
    pub interpolated: Interpolated,
}

/// Validates a Program.
pub fn check(program: &Program) -> Findings {
    let mut checker = Checker {
        declared: Declarations::of(program),
        findings: Findings::default(),
        undeclared: BTreeMap::new(),
        interpolated: BTreeMap::new(),
    };
    checker.check_names(program);
    checker.check_configuration(program);
    checker.check_packages(program);
    let mut dependencies = BTreeMap::new();
    for (name, value) in &program.program.variables {
        let names = checker.check_expression(&below("program.variables", name), value);
        dependencies.insert(name.clone(), names);
    }
    for (name, resource) in &program.program.resources {
        let names = checker.check_resource(&below("program.resources", name), resource);
        dependencies.insert(name.clone(), names);
    }
    for (name, value) in &program.program.outputs {
        checker.check_expression(&below("program.outputs", name), value);
    }
    if let Some(cycle) = cycle(&dependencies) {
        let first = cycle.first().map(String::as_str).unwrap_or_default();
        let section = if program.program.resources.contains_key(first) { "resources" } else { "variables" };
        let place = below(&format!("program.{section}"), first);
        checker.problem(format!("{place} depends on itself: {}", path_of_cycle(&cycle)));
    }
    checker.check_conversions(program);
    checker.into_findings()
}

struct Checker {
    declared: Declarations,
    findings: Findings,
    /// Undeclared names. The first [`MAX_LISTED`] names have the path of the first field that refers to them.
    undeclared: BTreeMap<String, Option<String>>,
    /// The first [`MAX_INTERPOLATED`] names of config values and undeclared names in strings that also contain other
    /// text, each with the path of the first such string.
    interpolated: BTreeMap<String, String>,
}

impl Checker {
    fn problem(&mut self, sentence: String) {
        self.findings.problems.add(sentence);
    }

    fn into_findings(mut self) -> Findings {
        let needs = &mut self.findings.needs;
        for (name, place) in self.undeclared {
            let Some(place) = place else {
                needs.omit(1);
                continue;
            };
            needs.add(format!(
                "{place} refers to {}, which the program does not declare: set it in the config of the stack",
                quoted(&name)
            ));
        }
        self.findings
    }

    /// Checks for reserved and duplicate names.
    fn check_names(&mut self, program: &Program) {
        let content = &program.program;
        let sections = [
            ("program.config", content.config.contains_key(RESERVED)),
            ("program.configuration", content.configuration.contains_key(RESERVED)),
            ("program.variables", content.variables.contains_key(RESERVED)),
            ("program.resources", content.resources.contains_key(RESERVED)),
        ];
        for (section, _) in sections.into_iter().filter(|(_, has_it)| *has_it) {
            self.problem(format!("{section}.{RESERVED}: {RESERVED} is a reserved name in Pulumi YAML: rename it"));
        }
        for name in content.variables.keys().filter(|name| content.resources.contains_key(*name)) {
            let place = below("program.variables", name);
            self.problem(format!("{place} has the same name as a resource: rename one of them"));
        }
        let is_key = |name: &&String| content.config.contains_key(*name) || content.configuration.contains_key(*name);
        for name in content.variables.keys().filter(is_key) {
            let place = below("program.variables", name);
            self.findings.needs.add(format!(
                "{place} has the same name as a config key, and Pulumi rejects this unless the config of the stack sets \
                 the key: rename one of them"
            ));
        }
        for name in content.resources.keys().filter(is_key) {
            let place = below("program.resources", name);
            self.findings
                .needs
                .add(format!("{place} has the same name as a config key, so no run can succeed: rename one of them"));
        }
    }

    fn check_configuration(&mut self, program: &Program) {
        for (key, entry) in &program.program.config {
            config::add_project_problems(&program.name_any(), key, entry, &mut self.findings.problems);
        }
        for (key, entry) in &program.program.configuration {
            let path = below("program.configuration", key);
            self.check_literal(&format!("{path}.name"), entry.name.as_deref());
            if let Some(default) = &entry.default {
                self.check_expression(&format!("{path}.default"), default);
            }
            if !program.program.config.contains_key(key) {
                let needs = config::language_needs(key, entry.kind.as_deref(), entry.default.as_ref());
                self.findings.needs.extend(needs);
            }
        }
    }

    /// Checks the defaults that the Program inserts into strings.
    fn check_conversions(&mut self, program: &Program) {
        let content = &program.program;
        let project = program.name_any();
        let own = format!("{project}:");
        let key_of = |name: String| {
            let name = name.strip_prefix(&own).map(str::to_owned).unwrap_or(name);
            let key =
                content.configuration.get(&name).and_then(|entry| entry.name.clone()).filter(|key| !key.is_empty());
            key.unwrap_or(name)
        };
        let interpolated = std::mem::take(&mut self.interpolated);
        self.findings.interpolated = interpolated.into_iter().map(|(name, place)| (key_of(name), place)).collect();
        let default = |entry: &Value| match entry {
            Value::Object(fields) => fields.get("default").or_else(|| fields.get("value")).cloned(),
            other => Some(other.clone()),
        };
        let defaults = content.config.iter().filter_map(|(key, entry)| Some((key.clone(), default(entry)?))).collect();
        self.findings.warnings =
            conversion::warnings(&self.findings.interpolated, "program.config", &defaults, &project);
    }

    fn check_packages(&mut self, program: &Program) {
        for (name, package) in &program.program.packages {
            if !package.is_string() && !package.get("source").is_some_and(Value::is_string) {
                let place = below("program.packages", name);
                self.problem(format!("{place} must be a string such as source@version, or an object with source"));
            }
        }
    }

    /// Checks a resource. Returns the names on which the resource depends.
    fn check_resource(&mut self, path: &str, resource: &ProgramResource) -> BTreeSet<String> {
        let kind = resource.kind.as_str();
        if !(2..=3).contains(&kind.split(':').count()) {
            self.problem(format!("{path}.type must be a type token such as aws:s3:Bucket, not {}", quoted(kind)));
        }
        if resource.default_provider.is_some() && !kind.starts_with("pulumi:providers:") {
            self.problem(format!("{path}.defaultProvider is only allowed for a provider (type pulumi:providers:…)"));
        }
        if resource.get.is_some() && resource.properties.as_ref().is_some_and(|value| !is_empty_object(value)) {
            self.problem(format!(
                "{path} must not have both properties, which create a resource, and get, which reads a resource"
            ));
        }
        self.check_literal(&format!("{path}.type"), Some(kind));
        self.check_literal(&format!("{path}.name"), resource.name.as_deref());
        let mut names = BTreeSet::new();
        if let Some(properties) = &resource.properties {
            names.extend(self.check_expression(&format!("{path}.properties"), properties));
        }
        if let Some(get) = &resource.get {
            names.extend(self.check_expression(&format!("{path}.get.id"), &Value::from(get.id.as_str())));
            for (name, value) in &get.state {
                self.check_expression(&below(&format!("{path}.get.state"), name), value);
            }
        }
        if let Some(Ok(Value::Object(options))) = resource.options.as_ref().map(serde_json::to_value) {
            for (option, value) in &options {
                names.extend(self.check_option(&format!("{path}.options.{option}"), option, value));
            }
        }
        names
    }

    /// Checks an option of a resource. Returns the names on which the resource depends because of this option.
    fn check_option(&mut self, path: &str, option: &str, value: &Value) -> BTreeSet<String> {
        match option {
            "parent" | "provider" => self.check_resource_reference(path, value),
            "dependsOn" | "providers" => self.check_resource_references(path, value),
            "aliases" => self.check_expression(path, value),
            other => {
                match other {
                    "deletedWith" => drop(self.check_resource_reference(path, value)),
                    "replaceWith" => drop(self.check_resource_references(path, value)),
                    "protect" => self.check_protect(path, value),
                    "additionalSecretOutputs" | "hideDiffs" | "ignoreChanges" | "replaceOnChanges" => {
                        for (number, text) in value.as_array().into_iter().flatten().enumerate() {
                            self.check_literal(&format!("{path}[{number}]"), text.as_str());
                        }
                    }
                    "import" | "pluginDownloadURL" | "version" => self.check_literal(path, value.as_str()),
                    _ => drop(self.check_expression(path, value)),
                }
                BTreeSet::new()
            }
        }
    }

    fn check_protect(&mut self, path: &str, value: &Value) {
        let is_literal = value.as_str().is_some_and(|text| !text.contains("${"));
        if is_literal || matches!(value, Value::Number(_) | Value::Array(_)) {
            self.problem(format!("{path} must be a boolean or an expression, not {}", describe(value)));
        }
        self.check_expression(path, value);
    }

    /// Checks an option whose value is a list of resources. Returns the names to which the option refers.
    fn check_resource_references(&mut self, path: &str, value: &Value) -> BTreeSet<String> {
        match value {
            Value::Array(elements) => elements
                .iter()
                .enumerate()
                .flat_map(|(number, element)| self.check_resource_reference(&format!("{path}[{number}]"), element))
                .collect(),
            // Accepts a variable and a function call, because both can result in a list.
            Value::String(text) if self.is_variable(text) => self.check_expression(path, value),
            Value::Object(fields) if is_function(fields) => self.check_expression(path, value),
            other => {
                self.problem(format!("{path} must be a list of references to resources, not {}", describe(other)));
                BTreeSet::new()
            }
        }
    }

    fn is_variable(&self, text: &str) -> bool {
        let read = parse_references(text);
        let root = read.as_ref().ok().and_then(ReferenceText::only_root);
        root.is_some_and(|root| self.declared.find(root) == Some(Declared::Variable))
    }

    /// Checks an option whose value is one resource. Returns the names to which the option refers.
    fn check_resource_reference(&mut self, path: &str, value: &Value) -> BTreeSet<String> {
        let text = match value {
            Value::String(text) => text,
            Value::Object(fields) if is_function(fields) => return self.check_expression(path, value),
            other => {
                self.problem(format!(
                    "{path} must be a reference to a resource such as ${{name}}, not {}",
                    describe(other)
                ));
                return BTreeSet::new();
            }
        };
        let root = match parse_references(text) {
            Ok(read) => read.only_root().map(str::to_owned),
            Err(what) => {
                self.problem(format!("{path}: {what}"));
                return BTreeSet::new();
            }
        };
        let what = match root.as_deref().map(|root| (root, self.declared.find(root))) {
            Some((root, Some(Declared::Resource | Declared::Variable))) => return [root.to_owned()].into(),
            Some((root, Some(Declared::Config))) => {
                format!("must refer to a resource, but {} is a config value", quoted(root))
            }
            Some((root, None)) => format!("refers to {}, which is not a resource of the program", quoted(root)),
            None => format!("must be a reference to a resource such as ${{name}}, not {}", quoted(text)),
        };
        self.problem(format!("{path} {what}"));
        BTreeSet::new()
    }

    /// Reports a problem if the string contains a reference.
    fn check_literal(&mut self, path: &str, text: Option<&str>) {
        match text.map(parse_references) {
            None => {}
            Some(Err(what)) => self.problem(format!("{path}: {what}")),
            Some(Ok(read)) if read.roots.is_empty() => {}
            Some(Ok(_)) => self.problem(format!("{path} must be a string without references")),
        }
    }

    /// Checks an expression. Returns the names to which the expression refers.
    fn check_expression(&mut self, path: &str, value: &Value) -> BTreeSet<String> {
        match value {
            Value::String(text) => self.check_text(path, text),
            Value::Array(elements) => elements
                .iter()
                .enumerate()
                .flat_map(|(number, element)| self.check_expression(&format!("{path}[{number}]"), element))
                .collect(),
            Value::Object(fields) => {
                let mut names = BTreeSet::new();
                for (key, field) in fields {
                    names.extend(self.check_text(path, key));
                    names.extend(self.check_expression(&below(path, key), field));
                }
                names
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => BTreeSet::new(),
        }
    }

    fn check_text(&mut self, path: &str, text: &str) -> BTreeSet<String> {
        let read = match parse_references(text) {
            Ok(read) => read,
            Err(what) => {
                self.problem(format!("{path}: {what}"));
                return BTreeSet::new();
            }
        };
        let is_part_of_string = read.only_root().is_none();
        let roots = read.roots;
        for root in &roots {
            let is_config = self.declared.find(root).is_none_or(|declared| declared == Declared::Config);
            if is_part_of_string && is_config && root != RESERVED && self.interpolated.len() < MAX_INTERPOLATED {
                self.interpolated.entry(root.clone()).or_insert_with(|| path.to_owned());
            }
            if root != RESERVED && self.declared.find(root).is_none() {
                let is_listed = self.undeclared.len() < MAX_LISTED;
                self.undeclared.entry(root.clone()).or_insert_with(|| is_listed.then(|| path.to_owned()));
            }
        }
        roots.into_iter().collect()
    }
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Returns whether an object is a function call.
fn is_function(fields: &serde_json::Map<String, Value>) -> bool {
    fields.keys().any(|key| key.to_lowercase().starts_with("fn::"))
}
