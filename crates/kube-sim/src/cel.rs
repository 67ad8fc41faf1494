//! Rules of CustomResourceDefinitions (`x-kubernetes-validations`).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cel::{Context, Env, Program, Value as Cel, extensions};
use serde_json::Value;

use crate::apply::is_equal;
use crate::schema::{Kind, ListType, Schema};
use crate::status::Cause;
use crate::validate::{child_path, old_item};

/// Functions that rules can call. A rule with another function cannot be registered, so that no rule is silently wrong.
const FUNCTIONS: [&str; 61] = [
    // Operators.
    "_==_",
    "_!=_",
    "_<_",
    "_<=_",
    "_>_",
    "_>=_",
    "_+_",
    "_-_",
    "_*_",
    "_/_",
    "_%_",
    "_&&_",
    "_||_",
    "!_",
    "-_",
    "_?_:_",
    "_[_]",
    "@in",
    "_in_",
    "@not_strictly_false",
    // Standard functions.
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "has",
    "all",
    "exists",
    "exists_one",
    "map",
    "filter",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "dyn",
    "duration",
    "timestamp",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
    "getFullYear",
    "getMonth",
    "getDate",
    "getDayOfMonth",
    "getDayOfWeek",
    "getDayOfYear",
    "max",
    "min",
    // Extensions.
    "charAt",
    "indexOf",
    "lastIndexOf",
    "lowerAscii",
    "upperAscii",
    "replace",
    "split",
    "substring",
    "trim",
    "join",
];

/// Rule of a schema.
pub(crate) struct Rule {
    program: Program,
    text: String,
    message: Option<String>,
    message_expression: Option<Program>,
    reason: String,
    field_path: String,
    /// Whether the rule compares the object with the object before an update.
    is_transition: bool,
}

/// Reason why a rule cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    #[error("failed to compile: {0}")]
    Syntax(String),
    #[error("function `{0}` is not supported")]
    Function(String),
    #[error("keyword `{0}` is not supported")]
    Keyword(String),
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Rule").field("rule", &self.text).finish_non_exhaustive()
    }
}

impl Rule {
    pub(crate) fn parse(rule: &Value) -> Result<Self, RuleError> {
        let text = |name: &str| rule.get(name).and_then(Value::as_str).map(str::to_owned);
        if rule.get("optionalOldSelf").is_some() {
            return Err(RuleError::Keyword("optionalOldSelf".to_owned()));
        }
        let source = text("rule").unwrap_or_default();
        let program = compile(&source)?;
        let message_expression = text("messageExpression").map(|source| compile(&source)).transpose()?;
        let is_transition = program.references().has_variable("oldSelf");
        Ok(Rule {
            program,
            text: source,
            message: text("message"),
            message_expression,
            reason: text("reason").unwrap_or_else(|| "FieldValueInvalid".to_owned()),
            field_path: text("fieldPath").unwrap_or_default(),
            is_transition,
        })
    }
}

fn compile(source: &str) -> Result<Program, RuleError> {
    let program = environment().compile(source).map_err(|errors| RuleError::Syntax(errors.to_string()))?;
    let unknown =
        program.references().functions().into_iter().find(|name| !FUNCTIONS.contains(name)).map(str::to_owned);
    unknown.map_or(Ok(program), |name| Err(RuleError::Function(name)))
}

fn environment() -> &'static Arc<Env> {
    static ENVIRONMENT: OnceLock<Arc<Env>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let mut environment = Env::stdlib();
        for extension in [extensions::strings, extensions::lists] {
            // The names of the extensions do not overlap.
            let _ = environment.add_extension(extension);
        }
        Arc::new(environment)
    })
}

/// Returns the violated rules of an object. Rules about transitions apply only if the value existed before.
pub(crate) fn violations(schema: &Schema, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = Vec::new();
    check(schema, object, old, "", &mut causes);
    causes
}

fn check(schema: &Schema, value: &Value, old: Option<&Value>, path: &str, causes: &mut Vec<Cause>) {
    if value.is_null() {
        return;
    }
    let is_unchanged = old.is_some_and(|old| is_equal(old, value));
    if !schema.rules.is_empty() {
        let is_root = path.is_empty();
        let current = to_cel(schema, value, is_root);
        let before = old.map(|old| to_cel(schema, old, is_root));
        for rule in &schema.rules {
            if rule.is_transition && before.is_none() {
                continue;
            }
            if !rule.is_transition && is_unchanged {
                continue;
            }
            causes.extend(evaluate(rule, value, &current, before.as_ref(), path));
        }
    }
    match value {
        Value::Object(map) => {
            for (name, below) in map.iter().filter(|(name, _)| !(path.is_empty() && *name == "metadata")) {
                if let Some(field) = schema.field(name) {
                    check(field, below, old.and_then(|old| old.get(name)), &child_path(path, name), causes);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                for (index, item) in list.iter().enumerate() {
                    check(items, item, old_item(schema, item, old), &format!("{path}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn evaluate(rule: &Rule, value: &Value, current: &Cel, before: Option<&Cel>, path: &str) -> Option<Cause> {
    let mut context = Context::with_env(environment().clone());
    context.add_variable_from_value("self", current.clone());
    if let Some(before) = before {
        context.add_variable_from_value("oldSelf", before.clone());
    }
    // No other function has this name.
    let _ = context.add_function("dyn", |value: Cel| value);
    let field = match rule.field_path.as_str() {
        "" => path.to_owned(),
        below => format!("{path}{below}").trim_start_matches('.').to_owned(),
    };
    // The API server writes the path of the root in this way.
    let field = if field.is_empty() { "<nil>".to_owned() } else { field };
    match rule.program.execute(&context) {
        Ok(Cel::Bool(true)) => None,
        Ok(_) => {
            let expression = rule.message_expression.as_ref().and_then(|program| program.execute(&context).ok());
            let computed = match expression {
                Some(Cel::String(text)) => Some(text.to_string()),
                _ => None,
            };
            let default = || rule.message.clone().unwrap_or_else(|| format!("failed rule: {}", rule.text));
            let message = computed.unwrap_or_else(default);
            Some(match rule.reason.as_str() {
                "FieldValueRequired" => Cause::field(&rule.reason, &field, &format!("Required value: {message}")),
                "FieldValueForbidden" => Cause::forbidden(&field, &message),
                "FieldValueDuplicate" => Cause::field(&rule.reason, &field, &format!("Duplicate value: {value}")),
                _ => Cause::invalid(&field, value, &message),
            })
        }
        Err(error) => {
            let path = if path.is_empty() { "<nil>" } else { path };
            Some(Cause::invalid(path, value, &format!("rule: {}: {error}", rule.text)))
        }
    }
}

/// Converts a value to CEL. At the root, the metadata contain only the name.
fn to_cel(schema: &Schema, value: &Value, is_root: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(bool) => Cel::Bool(*bool),
        Value::Number(number) => match number.as_i64() {
            Some(int) if schema.kind == Some(Kind::Number) => Cel::Float(int as f64),
            Some(int) => Cel::Int(int),
            None => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => text_to_cel(schema, text),
        Value::Array(list) => {
            let untyped = Schema::default();
            let items = schema.items.as_deref().unwrap_or(&untyped);
            let mut list: Vec<Cel> = list.iter().map(|item| to_cel(items, item, false)).collect();
            if schema.list != ListType::Atomic {
                // The order of the elements is irrelevant for comparisons.
                list.sort_by_key(|item| format!("{item:?}"));
            }
            Cel::List(Arc::new(list))
        }
        Value::Object(map) => {
            let fields = map.iter().filter_map(|(name, below)| {
                if is_root && name == "metadata" {
                    let names =
                        below.as_object()?.iter().filter(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
                    let names = names.map(|(name, value)| (name.clone(), to_cel(&Schema::default(), value, false)));
                    return Some((name.clone(), names.collect::<HashMap<String, Cel>>().into()));
                }
                // Rules cannot see fields that the schema does not declare, and a field with a null is not set.
                let field = schema.field(name).filter(|_| !below.is_null())?;
                Some((name.clone(), to_cel(field, below, false)))
            });
            let declared: HashMap<String, Cel> = match schema.is_untyped() {
                true => {
                    map.iter().map(|(name, below)| (name.clone(), to_cel(&Schema::default(), below, false))).collect()
                }
                false => fields.collect(),
            };
            declared.into()
        }
    }
}

fn text_to_cel(schema: &Schema, text: &str) -> Cel {
    match schema.bounds.format() {
        Some("duration") => {
            if let Some(nanoseconds) = go_duration(text) {
                return Cel::Duration(chrono::Duration::nanoseconds(nanoseconds));
            }
        }
        Some("date-time") => {
            let mut context = Context::with_env(environment().clone());
            context.add_variable_from_value("text", Cel::from(text.to_owned()));
            let time = environment().compile("timestamp(text)").ok().and_then(|program| program.execute(&context).ok());
            if let Some(time) = time {
                return time;
            }
        }
        _ => {}
    }
    Cel::from(text.to_owned())
}

/// Parses a duration in the notation of Go, such as `1h30m`, and returns nanoseconds.
pub(crate) fn go_duration(text: &str) -> Option<i64> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit_and_rest) = rest.split_at_checked(digits)?;
        let end = unit_and_rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit_and_rest.len());
        let (unit, next) = unit_and_rest.split_at_checked(end)?;
        let factor = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * factor;
        rest = next;
    }
    Some(if is_negative { -total as i64 } else { total as i64 })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(rule: &str) -> Schema {
        let schema = json!({ "type": "object", "x-kubernetes-validations": [{ "rule": rule, "message": "no" }], "properties": {
            "metadata": { "type": "object" },
            "spec": { "type": "object", "properties": {
                "n": { "type": "integer" }, "text": { "type": "string" }, "age": { "type": "string", "format": "duration" } } } } });
        Schema::parse(&schema, "", None).unwrap()
    }

    #[test]
    fn rules_are_evaluated() {
        let table = [
            ("self.spec.n > 1", json!({ "n": 2 }), true),
            ("self.spec.n > 1", json!({ "n": 1 }), false),
            ("!has(self.spec.n)", json!({}), true),
            ("size(self.metadata.name) <= 3", json!({}), true),
            ("dyn(self.spec.n) != null", json!({ "n": 1 }), true),
            ("self.spec.age >= duration('1m')", json!({ "age": "90s" }), true),
            ("self.spec.age >= duration('1m')", json!({ "age": "30s" }), false),
            ("['a', 'b'].all(x, x != self.spec.text)", json!({ "text": "b" }), false),
            ("self.spec.text in ['a']", json!({ "text": "a" }), true),
            ("self.spec.missing == 1", json!({}), false),
            ("!has(self.spec.text)", json!({ "text": null }), true),
        ];
        for (rule, spec, expected) in table {
            let object = json!({ "metadata": { "name": "abc" }, "spec": spec });
            assert_eq!(violations(&schema(rule), &object, None).is_empty(), expected, "{rule} {object}");
        }
    }

    #[test]
    fn transition_rules_need_an_old_object() {
        let schema = schema("self.spec == oldSelf.spec");
        let (one, other) = (json!({ "spec": { "n": 1 } }), json!({ "spec": { "n": 2 } }));
        assert!(violations(&schema, &one, None).is_empty());
        assert!(violations(&schema, &one, Some(&one)).is_empty());
        assert_eq!(violations(&schema, &other, Some(&one))[0].field, "<nil>");
    }

    #[test]
    fn unsupported_functions_are_rejected() {
        let error = Rule::parse(&json!({ "rule": "quantity('1').isLessThan(quantity('2'))" })).unwrap_err();
        assert!(matches!(error, RuleError::Function(_)), "{error}");
        assert!(Rule::parse(&json!({ "rule": "self.(" })).is_err());
    }

    #[test]
    fn durations_have_the_notation_of_go() {
        for (text, seconds) in [("1h", 3600.0), ("1m30s", 90.0), ("-0.5s", -0.5), ("0", 0.0)] {
            assert_eq!(go_duration(text), Some((seconds * 1e9) as i64), "{text}");
        }
        for text in ["", "1", "1d", "m", "1h30"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }
}
