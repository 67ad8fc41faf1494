//! Passes secret configuration values to the CLI calls that encrypt them.

use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::settings::Entry;

/// Maximum size of the values of one call, in bytes. The kernel limits an environment variable to 128 KiB.
const MAX_BATCH: usize = 64 * 1024;

/// Divides secrets into batches. One call of [`super::arguments::set_secrets`] encrypts a batch with several values. A
/// batch with a single value requires [`super::arguments::set_secret`]: the value is large, or its key is a path.
pub fn batches<'a>(secrets: impl Iterator<Item = &'a Entry>) -> Vec<Vec<&'a Entry>> {
    let (paths, mut keys): (Vec<_>, Vec<_>) = secrets.partition(|entry| entry.is_path);
    keys.sort_by_key(|entry| size(entry));
    let mut batches: Vec<Vec<&Entry>> = Vec::new();
    let mut batch_size = 0;
    for entry in keys {
        let size = size(entry);
        batch_size += size;
        match batches.last_mut() {
            Some(batch) if batch_size <= MAX_BATCH => batch.push(entry),
            _ => {
                batches.push(vec![entry]);
                batch_size = size;
            }
        }
    }
    batches.extend(paths.into_iter().map(|entry| vec![entry]));
    batches
}

fn size(entry: &Entry) -> usize {
    as_json(&[entry]).len()
}

/// Returns the values of the variable [`super::cli::SECRETS`].
pub fn as_json(secrets: &[&Entry]) -> Zeroizing<String> {
    let values = secrets.iter().map(|entry| (entry.key.clone(), json!({"value": text(&entry.value), "secret": true})));
    Zeroizing::new(Value::Object(values.collect()).to_string())
}

/// Returns the stdin of the CLI call that encrypts a value. The function adds a line feed, because the CLI removes a
/// line feed from the end of the input.
pub fn as_stdin(value: &Value) -> Zeroizing<Vec<u8>> {
    let mut text = text(value);
    text.push('\n');
    Zeroizing::new(text.into_bytes())
}

/// Returns a value as text. The CLI encrypts only strings, so the function encodes other values as JSON, which programs
/// parse.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: Value, is_path: bool) -> Entry {
        Entry { key: key.to_owned(), value, is_path, is_secret: true }
    }

    #[test]
    fn a_secret_value_is_passed_as_text_with_a_trailing_newline() {
        let rows = [
            (json!("x"), "x\n"),
            (json!("x\n"), "x\n\n"),
            (json!(""), "\n"),
            (json!(5), "5\n"),
            (json!({"f": "g"}), "{\"f\":\"g\"}\n"),
        ];
        for (value, expected) in rows {
            assert_eq!(as_stdin(&value).as_slice(), expected.as_bytes(), "{value}");
            let expected = json!({"a:b": {"value": expected.strip_suffix('\n'), "secret": true}});
            assert_eq!(as_json(&[&entry("a:b", value, false)]).as_str(), expected.to_string());
        }
    }

    #[test]
    fn one_call_encrypts_all_values_except_paths_and_large_values() {
        let mut secrets: Vec<Entry> = (0..60).map(|number| entry(&format!("key{number}"), json!("x"), false)).collect();
        secrets.push(entry("list[0]", json!("x"), true));
        secrets.push(entry("large", json!("x".repeat(MAX_BATCH)), false));
        let large = json!("x".repeat(MAX_BATCH / 2));
        secrets.extend((0..3).map(|number| entry(&format!("half{number}"), large.clone(), false)));
        let batches = batches(secrets.iter());
        let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [61, 1, 1, 1, 1]);
        for batch in batches.iter().filter(|batch| batch.len() > 1) {
            assert!(as_json(batch).len() <= MAX_BATCH && batch.iter().all(|entry| !entry.is_path));
        }
    }
}
