//! Checks the two config sections of a Program. The Pulumi CLI validates `config`. The Pulumi YAML language uses
//! `configuration` for values that the stack config does not set.

use serde_json::Value;

use crate::source::program::sentences::{Sentences, below, quoted, shown};

/// The types that are valid in `config`.
const PROJECT_TYPES: [&str; 5] = ["string", "integer", "boolean", "array", "object"];
/// The fields of a `config` entry.
const PROJECT_FIELDS: [&str; 6] = ["type", "items", "default", "value", "description", "secret"];

/// Adds the problems of a `config` entry. Each problem starts with the path of the field.
pub fn add_project_problems(project: &str, key: &str, entry: &Value, problems: &mut Sentences) {
    let path = below("program.config", key);
    let Value::Object(fields) = entry else {
        let fits = is_whole(entry) || matches!(entry, Value::String(_) | Value::Bool(_) | Value::Array(_));
        let what = describe(entry);
        let allowed = "a string, an integer, a boolean, a list, or an object with type and default";
        if !fits {
            problems.add(format!("{path} must be {allowed}, not {what}"));
        }
        return;
    };
    let unknown = fields.keys().filter(|field| !PROJECT_FIELDS.contains(&field.as_str()));
    problems.extend(unknown.map(|field| {
        format!("{} is an unknown field: must be one of {}", below(&path, field), PROJECT_FIELDS.join(", "))
    }));
    let given = |field: &str| fields.get(field).filter(|value| !value.is_null());
    let kind = match given("type") {
        Some(Value::String(kind)) if PROJECT_TYPES.contains(&kind.as_str()) => Some(kind.as_str()),
        Some(other) => {
            let other = shown(&other.to_string());
            problems.add(format!("{path}.type must be one of {}, not {other}", PROJECT_TYPES.join(", ")));
            None
        }
        None => None,
    };
    if given("description").is_some_and(|value| !value.is_string()) {
        problems.add(format!("{path}.description must be a string"));
    }
    if given("secret").is_some_and(|value| !value.is_boolean()) {
        problems.add(format!("{path}.secret must be a boolean"));
    }
    if given("default").is_some() && given("value").is_some() {
        problems.add(format!("{path} must not have both default and value"));
    }
    match is_own(project, key) {
        true => problems.extend(own_problems(&path, kind, given("items"), given("default"))),
        false if given("type").is_some() || given("default").is_some() || given("value").is_none() => problems
            .add(format!("{path} is in the namespace of another project: set value, and remove type and default")),
        false => {}
    }
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

/// Maximum number of nested lists in the type of a `configuration` entry.
const MAX_LISTS: usize = 16;

/// The type of a `configuration` entry, which is a type of elements in any number of nested lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    lists: usize,
    element: Element,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    String,
    Number,
    Integer,
    Boolean,
    Object,
}

/// The reason why a type is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindError {
    Unknown,
    TooManyLists,
}

impl Kind {
    /// Parses a type. Type names are case-insensitive.
    fn read(text: &str) -> Result<Kind, KindError> {
        let text = text.to_lowercase();
        let mut name = text.as_str();
        let mut lists = 0;
        while let Some(of) = name.strip_prefix("list<").and_then(|rest| rest.strip_suffix('>')) {
            if lists == MAX_LISTS {
                return Err(KindError::TooManyLists);
            }
            lists += 1;
            name = of.trim();
        }
        let element = match name {
            "string" => Element::String,
            "number" => Element::Number,
            "int" | "integer" => Element::Integer,
            "bool" | "boolean" => Element::Boolean,
            "object" => Element::Object,
            _ => return Err(KindError::Unknown),
        };
        Ok(Kind { lists, element })
    }

    fn fits(self, value: &Value) -> bool {
        if is_expression(value) {
            return true;
        }
        if let Some(lists) = self.lists.checked_sub(1) {
            let inner = Kind { lists, ..self };
            return value.as_array().is_some_and(|elements| elements.iter().all(|element| inner.fits(element)));
        }
        match self.element {
            Element::String => value.is_string(),
            Element::Number => value.is_number(),
            Element::Integer => is_whole(value),
            Element::Boolean => value.is_boolean(),
            Element::Object => value.is_object(),
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
        (Err(KindError::Unknown), _) => vec![format!(
            "{path}.type must be String, Number, Integer, Boolean, Object or a list such as List<String>, not {}: correct the type, {needs}",
            quoted(text)
        )],
        (Err(KindError::TooManyLists), _) => {
            vec![format!("{path}.type must have at most {MAX_LISTS} nested lists: correct the type, {needs}")]
        }
        (Ok(kind), Some(default)) if !kind.fits(default) => {
            vec![format!(
                "{path}.default must be of type {}, not {}: correct the default, {needs}",
                shown(text),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nested(lists: usize) -> String {
        format!("{}String{}", "List< ".repeat(lists), " >".repeat(lists))
    }

    #[test]
    fn the_number_of_nested_lists_in_a_type_is_limited() {
        let string = |lists| Ok(Kind { lists, element: Element::String });
        let rows = [
            (nested(0), string(0)),
            (nested(1), string(1)),
            (nested(MAX_LISTS), string(MAX_LISTS)),
            (nested(MAX_LISTS + 1), Err(KindError::TooManyLists)),
            (nested(100_000), Err(KindError::TooManyLists)),
            ("list<".repeat(100_000), Err(KindError::Unknown)),
            ("list<>".to_owned(), Err(KindError::Unknown)),
        ];
        for (text, expected) in rows {
            assert_eq!(Kind::read(&text), expected, "{}", shown(&text));
        }
        let needs = language_needs("n", Some(&nested(100_000)), None);
        assert_eq!(needs.len(), 1);
        assert!(needs[0].starts_with("program.configuration.n.type must have at most 16 nested lists: "), "{needs:?}");
    }

    #[test]
    fn nested_lists_are_compared_with_the_type() {
        let rows = [
            (json!([["a"], ["${b}"]]), true),
            (json!([["a"], "${b}"]), true),
            (json!([]), true),
            (json!(["a"]), false),
            (json!([[1]]), false),
        ];
        for (value, expected) in rows {
            let kind = Kind::read("List<List<String>>").unwrap();
            assert_eq!(kind.fits(&value), expected, "{value}");
        }
    }
}
