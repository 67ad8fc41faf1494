//! Stack outputs from two sources: the event log, which masks secret values, and `pulumi stack output`, which reveals
//! them.

use std::collections::BTreeMap;

use serde_json::Value;

/// Key whose value marks an object as a special value, such as a secret or an asset.
const SIGNATURE_KEY: &str = "4dabf18193072939515e22adb298388d";
const SECRET_SIGNATURE: &str = "1b47061264138c4ac30d75fd1eb44270";
/// Placeholder that the event log contains instead of an asset's content.
const ELIDED: &str = "<contents elided>";

/// The reason why reading the stack outputs failed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum OutputsError {
    #[error("failed to parse the output of `pulumi stack output`: {reason}")]
    Malformed { reason: String },
    #[error("`pulumi stack output` printed no value for output {name:?}")]
    Missing { name: String },
}

/// One output of a stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: String,
    /// Value of the output. In outputs from the event log, the engine's placeholder replaces each secret value.
    pub value: Value,
    /// Whether any part of the value is secret.
    pub secret: bool,
}

/// Returns the outputs from the event log, sorted by name.
pub fn from_events(outputs: serde_json::Map<String, Value>) -> Vec<Output> {
    let mut outputs: Vec<_> = outputs
        .into_iter()
        .map(|(name, value)| {
            let secret = any_part(&value, &is_secret);
            Output { name, value, secret }
        })
        .collect();
    outputs.sort_by(|one, other| one.name.cmp(&other.name));
    outputs
}

/// Parses the output of `stack output --json --show-secrets`.
pub fn parse(stdout: &[u8]) -> Result<BTreeMap<String, Value>, OutputsError> {
    serde_json::from_slice(stdout).map_err(|error| OutputsError::Malformed {
        // Omits the error message from `serde_json`, because the message can contain a secret value.
        reason: format!("line {}, column {}", error.line(), error.column()),
    })
}

/// Returns whether the event log masks or elides any value. If so, the caller must read the values with `pulumi stack
/// output`.
pub fn need_values(outputs: &[Output]) -> bool {
    outputs.iter().any(is_hidden)
}

/// Replaces masked and elided values with the values from `revealed`. Returns the outputs sorted by name.
pub fn combine(masked: &[Output], revealed: &BTreeMap<String, Value>) -> Result<Vec<Output>, OutputsError> {
    let mut outputs: Vec<Output> = masked
        .iter()
        .map(|output| {
            if !is_hidden(output) {
                return Ok(output.clone());
            }
            let value = revealed.get(&output.name).cloned();
            let value = value.ok_or_else(|| OutputsError::Missing { name: output.name.clone() })?;
            Ok(Output { value, ..output.clone() })
        })
        .collect::<Result<_, _>>()?;
    outputs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(outputs)
}

/// Returns whether the event log masks or elides a part of the value.
pub fn is_hidden(output: &Output) -> bool {
    output.secret || any_part(&output.value, &|value| value.as_str() == Some(ELIDED))
}

fn is_secret(value: &Value) -> bool {
    value.get(SIGNATURE_KEY).and_then(Value::as_str) == Some(SECRET_SIGNATURE)
}

fn any_part(value: &Value, test: &impl Fn(&Value) -> bool) -> bool {
    test(value)
        || match value {
            Value::Array(values) => values.iter().any(|value| any_part(value, test)),
            Value::Object(values) => values.values().any(|value| any_part(value, test)),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn masked() -> Value {
        json!({SIGNATURE_KEY: SECRET_SIGNATURE, "ciphertext": "[secret]"})
    }

    fn events(value: Value) -> Vec<Output> {
        let Value::Object(outputs) = value else { panic!("expected an object") };
        from_events(outputs)
    }

    #[test]
    fn a_secret_in_any_part_makes_the_whole_output_secret() {
        let table = [
            (json!("plain"), false),
            (json!("[secret]"), false),
            (json!({SIGNATURE_KEY: "c44067f5952c0a294b673a41bacd8c17", "text": "<contents elided>"}), false),
            (masked(), true),
            (json!([1, {"a": [masked()]}]), true),
        ];
        for (value, expected) in table {
            let outputs = events(json!({"x": value}));
            assert_eq!(outputs[0].secret, expected, "{}", outputs[0].value);
        }
    }

    #[test]
    fn only_outputs_masked_in_the_event_log_are_taken_from_the_cli() {
        let asset = json!({SIGNATURE_KEY: "c44067f5952c0a294b673a41bacd8c17", "text": "<contents elided>"});
        let outputs = events(json!({"token": masked(), "port": 8080, "asset": asset}));
        assert!(need_values(&outputs));
        let revealed = parse(br#"{"token": {"a": 1}, "port": 9090, "asset": "real", "other": 1}"#).expect("valid JSON");
        let combined = combine(&outputs, &revealed).expect("all outputs exist");
        assert_eq!(
            combined,
            [
                Output { name: "asset".into(), value: json!("real"), secret: false },
                Output { name: "port".into(), value: json!(8080), secret: false },
                Output { name: "token".into(), value: json!({"a": 1}), secret: true },
            ]
        );
    }

    #[test]
    fn outputs_without_secrets_need_no_cli_call() {
        let outputs = events(json!({"port": 8080, "hosts": ["a"]}));
        assert!(!need_values(&outputs));
        assert_eq!(combine(&outputs, &BTreeMap::new()).expect("no output is hidden"), outputs);
    }

    #[test]
    fn errors_name_a_missing_output_and_do_not_quote_invalid_json() {
        let outputs = events(json!({"token": masked()}));
        let error = combine(&outputs, &BTreeMap::new()).expect_err("should report the missing output");
        assert_eq!(error.to_string(), "`pulumi stack output` printed no value for output \"token\"");
        let error = parse(b"\"hunter2\"").expect_err("should reject a value that is not an object");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
