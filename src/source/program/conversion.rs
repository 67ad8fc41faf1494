//! Values that Pulumi YAML converts. The language host converts each config value that looks like a number or a boolean,
//! even if its type is `string`. In a string, the value then has another form: an account ID becomes
//! `1.23456789012e+11`, and the version `1.30` becomes `1.3`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::source::program::sentences::{Sentences, below, quoted, shown};

/// Config keys whose values a Program inserts into strings, each with the path of the first such field.
pub type Interpolated = BTreeMap<String, String>;

/// Texts that the language host converts to `true` or `false`.
const BOOLEANS: [(&str, &[&str]); 2] =
    [("true", &["t", "T", "TRUE", "true", "True"]), ("false", &["f", "F", "FALSE", "false", "False"])];
/// Decimal exponents of the numbers that the language host writes without an exponent.
const PLAIN_EXPONENTS: std::ops::Range<i32> = -4..6;

/// Returns a sentence for each value in `config` that the program inserts into a string in another form. `path` is the
/// path of the field that contains the values. A key can have the prefix `<project>:`.
pub fn warnings(interpolated: &Interpolated, path: &str, config: &BTreeMap<String, Value>, project: &str) -> Sentences {
    let mut sentences = Sentences::default();
    let own = format!("{project}:");
    sentences.extend(config.iter().filter_map(|(key, value)| {
        let name = key.strip_prefix(&own).unwrap_or(key);
        let place = interpolated.get(name)?;
        let value = text(value)?;
        let result = converted(&value)?;
        Some(format!(
            "{}: Pulumi YAML inserts the value {} as {result} into the string {place}: set it in an object, for example \
             values, and refer to it as ${{values.{}}}",
            below(path, key),
            quoted(&value),
            shown(name)
        ))
    }));
    sentences
}

/// Returns the text of a scalar value.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the text that a string contains instead of `text`, or `None` if the text is the same.
fn converted(text: &str) -> Option<String> {
    // The language host does not convert a text with leading zeros.
    if text.len() > 1 && text.starts_with('0') && !text.starts_with("0.") {
        return None;
    }
    let boolean = BOOLEANS.iter().find(|(_, texts)| texts.contains(&text)).map(|(value, _)| (*value).to_owned());
    let result = boolean.or_else(|| text.parse().ok().map(written))?;
    (result != text).then_some(result)
}

/// Returns a number as the language host writes it into a string, which is the format `%v` of Go.
fn written(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if PLAIN_EXPONENTS.contains(&exponent) {
        return number.to_string();
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_change_in_a_string_are_detected() {
        let rows = [
            ("123456789012", Some("1.23456789012e+11")),
            ("1048576", Some("1.048576e+06")),
            ("1000000", Some("1e+06")),
            ("20220113.2", Some("2.02201132e+07")),
            ("0.00001", Some("1e-05")),
            ("1.30", Some("1.3")),
            ("+5", Some("5")),
            ("1e3", Some("1000")),
            ("True", Some("true")),
            ("f", Some("false")),
            ("nan", Some("NaN")),
            ("inf", Some("+Inf")),
            ("052812345678", None),
            ("999999", None),
            ("-80", None),
            ("0.5", None),
            ("0.0001", None),
            ("0", None),
            ("1", None),
            ("true", None),
            ("1.2.3", None),
            ("12a", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(converted(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn only_values_that_the_program_inserts_into_a_string_cause_warnings() {
        let place = "program.outputs.arn";
        let interpolated =
            BTreeMap::from([("account".to_owned(), place.to_owned()), ("ids".to_owned(), place.to_owned())]);
        let config = |config: Value| serde_json::from_value(config).unwrap();
        let of = |values| warnings(&interpolated, "spec.config", &config(values), "web").to_string();
        let expected = "spec.config.account: Pulumi YAML inserts the value \"123456789012\" as 1.23456789012e+11 into the \
                        string program.outputs.arn: set it in an object, for example values, and refer to it as \
                        ${values.account}";
        assert_eq!(of(json!({"account": "123456789012", "other": "123456789012"})), expected);
        assert!(of(json!({"account": 123_456_789_012_u64})).starts_with("spec.config.account: "));
        assert!(of(json!({"web:account": "1.30"})).starts_with("spec.config[\"web:account\"]: "));
        for values in [json!({"account": "a1"}), json!({"other:account": "1.30"}), json!({"ids": {"account": "1.30"}})]
        {
            assert_eq!(of(values.clone()), "", "{values}");
        }
    }
}
