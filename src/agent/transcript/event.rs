//! Redacts the secrets in the engine events.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::agent::redactor::Redactor;
use crate::pulumi::console;

/// Maximum size of an event in bytes. A marker replaces a larger event, for example an event that contains a large
/// file.
const MAX_EVENT: usize = 256 * 1024;

/// Returns an event as one line of JSON, without secrets. The function redacts each string separately, so that the
/// result is valid JSON.
pub(super) fn redacted(line: &[u8], redactor: &Redactor) -> String {
    if line.len() > MAX_EVENT {
        return omitted(line);
    }
    match serde_json::from_slice(line) {
        Ok(event) => value(event, redactor).to_string(),
        // The program can write any text to the event log.
        Err(_) => omitted(line),
    }
}

fn omitted(line: &[u8]) -> String {
    format!("{{\"omittedBytes\":{}}}", line.len())
}

fn value(value: Value, redactor: &Redactor) -> Value {
    match value {
        Value::String(text) => Value::String(redacted_text(&text, redactor)),
        Value::Array(list) => Value::Array(list.into_iter().map(|item| self::value(item, redactor)).collect()),
        Value::Object(fields) => Value::Object(object(fields, redactor)),
        // A secret can be a number.
        Value::Number(number) => {
            let text = number.to_string();
            let shown = redactor.redact(&text);
            if shown == text { Value::Number(number) } else { Value::String(shown) }
        }
        Value::Bool(_) | Value::Null => value,
    }
}

fn object(fields: Map<String, Value>, redactor: &Redactor) -> Map<String, Value> {
    fields.into_iter().map(|(key, field)| (redactor.redact(&key), value(field, redactor))).collect()
}

/// Removes the color tags from a string and redacts the string, because color tags can split a secret.
fn redacted_text(text: &str, redactor: &Redactor) -> String {
    let plain =
        if text.contains(['\u{1b}', '<']) { Cow::Owned(console::without_colors(text)) } else { Cow::Borrowed(text) };
    redactor.redact(&plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_redacted_in_all_parts_of_an_event() {
        let redactor = Redactor::new(["hunter22", "123456"]);
        let rows = [
            (r#"{"a":"x hunter22 y","b":[{"hunter22":true}]}"#, r#"{"a":"x [secret] y","b":[{"[secret]":true}]}"#),
            (r#"{"port":123456,"size":7}"#, r#"{"port":"[secret]","size":7}"#),
            ("{\"message\":\"<{%fg 1%}>hunt<{%reset%}>er22\"}", r#"{"message":"[secret]"}"#),
            ("not json hunter22", r#"{"omittedBytes":17}"#),
        ];
        for (line, expected) in rows {
            assert_eq!(redacted(line.as_bytes(), &redactor), expected);
        }
    }

    #[test]
    fn a_large_event_is_replaced_with_a_mark() {
        let line = format!("{{\"text\":\"{}\"}}", "x".repeat(MAX_EVENT));
        assert_eq!(redacted(line.as_bytes(), &Redactor::default()), format!("{{\"omittedBytes\":{}}}", line.len()));
    }
}
