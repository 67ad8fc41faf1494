//! Label and field selectors.

use serde_json::Value;

use crate::status::Status;

/// Conditions on labels and fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, String, bool)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

impl Selector {
    /// Parses the query parameters `labelSelector` and `fieldSelector`. `fields` are the fields that the kind supports.
    pub(crate) fn parse(labels: &str, fields: &str, supported: &[String]) -> Result<Self, Status> {
        let labels = parse_labels(labels).ok_or_else(|| {
            Status::bad_request(&format!("unable to parse requirement: {labels:?} is not a label selector"))
        })?;
        let mut parsed = Vec::new();
        for term in fields.split(',').filter(|term| !term.is_empty()) {
            let (field, value, is_equal) = if let Some((field, value)) = term.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (field, value, true)
            } else {
                return Err(Status::bad_request(&format!("invalid selector: {fields:?}; can't understand {term:?}")));
            };
            let is_supported = ["metadata.name", "metadata.namespace"].contains(&field);
            if !is_supported && !supported.iter().any(|name| name == field) {
                return Err(Status::bad_request(&format!("field label not supported: {field}")));
            }
            parsed.push((field.to_owned(), value.to_owned(), is_equal));
        }
        Ok(Selector { labels, fields: parsed })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label = |name: &str| object.get("metadata")?.get("labels")?.get(name)?.as_str();
        let holds = |requirement: &Requirement| match requirement {
            Requirement::In(name, values) => label(name).is_some_and(|value| values.iter().any(|v| v == value)),
            Requirement::NotIn(name, values) => !label(name).is_some_and(|value| values.iter().any(|v| v == value)),
            Requirement::Exists(name) => label(name).is_some(),
            Requirement::Missing(name) => label(name).is_none(),
            Requirement::Greater(name, limit) => number(label(name)).is_some_and(|value| value > *limit),
            Requirement::Less(name, limit) => number(label(name)).is_some_and(|value| value < *limit),
        };
        let field = |path: &str| {
            let value = path.split('.').try_fold(object, |value, name| value.get(name));
            match value {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            }
        };
        self.labels.iter().all(holds)
            && self.fields.iter().all(|(path, value, equal)| (field(path) == *value) == *equal)
    }
}

fn number(label: Option<&str>) -> Option<i64> {
    label?.parse().ok()
}

fn parse_labels(text: &str) -> Option<Vec<Requirement>> {
    let mut requirements = Vec::new();
    for term in split_terms(text) {
        let term = term.trim();
        if term.is_empty() {
            continue;
        }
        requirements.push(parse_requirement(term)?);
    }
    Some(requirements)
}

/// Splits a selector at the commas outside parentheses.
fn split_terms(text: &str) -> Vec<String> {
    let (mut terms, mut depth, mut term) = (Vec::new(), 0_usize, String::new());
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(std::mem::take(&mut term));
                continue;
            }
            _ => {}
        }
        term.push(c);
    }
    terms.push(term);
    terms
}

fn parse_requirement(term: &str) -> Option<Requirement> {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._/".contains(c));
    let name = |name: &str| Some(name.trim().to_owned()).filter(|name| is_name(name));
    let set = |list: &str| -> Option<Vec<String>> {
        let list = list.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(list.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some((key, list)) = term.split_once(" notin ") {
        return Some(Requirement::NotIn(name(key)?, set(list)?));
    }
    if let Some((key, list)) = term.split_once(" in ") {
        return Some(Requirement::In(name(key)?, set(list)?));
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Some(Requirement::NotIn(name(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Some(Requirement::In(name(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = term.split_once('>') {
        return Some(Requirement::Greater(name(key)?, value.trim().parse().ok()?));
    }
    if let Some((key, value)) = term.split_once('<') {
        return Some(Requirement::Less(name(key)?, value.trim().parse().ok()?));
    }
    match term.strip_prefix('!') {
        Some(key) => Some(Requirement::Missing(name(key)?)),
        None => Some(Requirement::Exists(name(term)?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_match_labels_and_fields() {
        let object =
            json!({ "metadata": { "name": "x", "labels": { "app": "web", "n": "3" } }, "spec": { "nodeName": "a" } });
        let fields = ["spec.nodeName".to_owned()];
        let table = [
            ("", "", true),
            ("app=web", "", true),
            ("app==web,n!=4", "", true),
            ("app in (api, web)", "", true),
            ("app notin (web)", "", false),
            ("app", "", true),
            ("!app", "", false),
            ("!other,other!=1", "", true),
            ("n>2,n<4", "", true),
            ("app=api", "", false),
            ("", "metadata.name=x", true),
            ("", "metadata.name!=x", false),
            ("app", "spec.nodeName=a", true),
        ];
        for (labels, fields_text, expected) in table {
            let selector = Selector::parse(labels, fields_text, &fields).unwrap();
            assert_eq!(selector.matches(&object), expected, "{labels} {fields_text}");
        }
        for (labels, fields_text) in [("a in b", ""), ("=a", ""), ("", "spec.other=1"), ("", "a")] {
            assert_eq!(Selector::parse(labels, fields_text, &fields).unwrap_err().code, 400, "{labels} {fields_text}");
        }
    }
}
