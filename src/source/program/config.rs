//! Checks the two config sections of a Program. The Pulumi CLI validates `config`. The Pulumi YAML language uses
//! `configuration` for values that the stack config does not set.

use serde_json::Value;

/// The types that are valid in `config`.
const PROJECT_TYPES: [&str; 5] = ["string", "integer", "boolean", "array", "object"];
/// The fields of a `config` entry.
const PROJECT_FIELDS: [&str; 6] = ["type", "items", "default", "value", "description", "secret"];

/// Returns the problems of a `config` entry. Each problem starts with the path of the field.
pub fn project_problems(project: &str, key: &str, entry: &Value) -> Vec<String> {
    let path = below("program.config", key);
    let Value::Object(fields) = entry else {
        let fits = is_whole(entry) || matches!(entry, Value::String(_) | Value::Bool(_) | Value::Array(_));
        let what = describe(entry);
        let allowed = "a string, an integer, a boolean, a list, or an object with type and default";
        return if fits { Vec::new() } else { vec![format!("{path} must be {allowed}, not {what}")] };
    };
    let unknown = fields.keys().filter(|field| !PROJECT_FIELDS.contains(&field.as_str()));
    let mut problems: Vec<String> = unknown
        .map(|field| {
            format!("{} is an unknown field: must be one of {}", below(&path, field), PROJECT_FIELDS.join(", "))
        })
        .collect();
    let given = |field: &str| fields.get(field).filter(|value| !value.is_null());
    let kind = match given("type") {
        Some(Value::String(kind)) if PROJECT_TYPES.contains(&kind.as_str()) => Some(kind.as_str()),
        Some(other) => {
            problems.push(format!("{path}.type must be one of {}, not {other}", PROJECT_TYPES.join(", ")));
            None
        }
        None => None,
    };
    if given("description").is_some_and(|value| !value.is_string()) {
        problems.push(format!("{path}.description must be a string"));
    }
    if given("secret").is_some_and(|value| !value.is_boolean()) {
        problems.push(format!("{path}.secret must be a boolean"));
    }
    if given("default").is_some() && given("value").is_some() {
        problems.push(format!("{path} must not have both default and value"));
    }
    match is_own(project, key) {
        true => problems.extend(own_problems(&path, kind, given("items"), given("default"))),
        false if given("type").is_some() || given("default").is_some() || given("value").is_none() => problems
            .push(format!("{path} is in the namespace of another project: set value, and remove type and default")),
        false => {}
    }
    problems
}

/// Returns whether a key is in the project's namespace.
fn is_own(project: &str, key: &str) -> bool {
    key.split_once(':').is_none_or(|(namespace, _)| namespace == project)
}

fn own_problems(path: &str, kind: Option<&str>, items: Option<&Value>, default: Option<&Value>) -> Vec<String> {
    let Some(kind) = kind else { return Vec::new() };
    if kind == "array" && items.is_none() {
        return vec![format!("{path} is an array without items: set items, such as {{type: string}}")];
    }
    match default {
        Some(default) if !fits_project_type(kind, items, default) => {
            vec![format!("{path}.default must be of type {kind}, not {}", describe(default))]
        }
        _ => Vec::new(),
    }
}

/// Returns whether the CLI accepts a value for this type. The CLI also accepts a string that it can parse as an integer
/// or a boolean.
fn fits_project_type(kind: &str, items: Option<&Value>, value: &Value) -> bool {
    let text = value.as_str();
    match kind {
        "string" => value.is_string(),
        "integer" => is_whole(value) || text.is_some_and(|text| text.parse::<i64>().is_ok()),
        "boolean" => value.is_boolean() || matches!(text, Some("true" | "false")),
        "object" => value.is_object(),
        "array" => {
            let of = items.and_then(|items| items.get("type")).and_then(Value::as_str);
            let deeper = items.and_then(|items| items.get("items"));
            let fits = |element: &Value| of.is_none_or(|of| fits_project_type(of, deeper, element));
            value.as_array().is_some_and(|elements| elements.iter().all(fits))
        }
        _ => true,
    }
}

/// The type of a `configuration` entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    String,
    Number,
    Integer,
    Boolean,
    Object,
    List(Box<Kind>),
}

impl Kind {
    /// Parses a type. Type names are case-insensitive.
    fn read(text: &str) -> Option<Kind> {
        let text = text.to_lowercase();
        if let Some(of) = text.strip_prefix("list<").and_then(|rest| rest.strip_suffix('>')) {
            return Some(Kind::List(Box::new(Kind::read(of.trim())?)));
        }
        match text.as_str() {
            "string" => Some(Kind::String),
            "number" => Some(Kind::Number),
            "int" | "integer" => Some(Kind::Integer),
            "bool" | "boolean" => Some(Kind::Boolean),
            "object" => Some(Kind::Object),
            _ => None,
        }
    }

    fn fits(&self, value: &Value) -> bool {
        if is_expression(value) {
            return true;
        }
        match self {
            Kind::String => value.is_string(),
            Kind::Number => value.is_number(),
            Kind::Integer => is_whole(value),
            Kind::Boolean => value.is_boolean(),
            Kind::Object => value.is_object(),
            Kind::List(of) => value.as_array().is_some_and(|elements| elements.iter().all(|element| of.fits(element))),
        }
    }
}

/// Returns the requirements that a `configuration` entry imposes on the stack config. Each requirement starts with the
/// path of the field.
pub fn language_needs(key: &str, kind: Option<&str>, default: Option<&Value>) -> Vec<String> {
    let path = below("program.configuration", key);
    let needs = "or set the key in the config of the stack";
    let Some(text) = kind else { return Vec::new() };
    match (Kind::read(text), default) {
        (None, _) => vec![format!(
            "{path}.type must be String, Number, Integer, Boolean, Object or a list such as List<String>, not {text:?}: correct the type, {needs}"
        )],
        (Some(kind), Some(default)) if !kind.fits(default) => {
            vec![format!(
                "{path}.default must be of type {text}, not {}: correct the default, {needs}",
                describe(default)
            )]
        }
        _ => Vec::new(),
    }
}

/// Returns whether the value is an expression. Only the engine can evaluate an expression, during a run.
fn is_expression(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains("${"),
        Value::Object(fields) => fields.keys().any(|key| key.to_lowercase().starts_with("fn::")),
        _ => false,
    }
}

fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Returns the name of a value's type, for messages.
pub fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Returns the path of the field or element `key` below `path`.
pub fn below(path: &str, key: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_".contains(sign);
    match !key.is_empty() && key.chars().all(is_plain) {
        true => format!("{path}.{key}"),
        false => format!("{path}[{key:?}]"),
    }
}
