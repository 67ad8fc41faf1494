//! Secrets of the configuration: the CLI encrypts them and writes them into the settings file.

use serde_json::Value;
use zeroize::Zeroizing;

use super::context::Run;
use super::ending::Ending;
use super::error::RunError;
use super::pending::classify;
use crate::agent::command::{Ended, Stdout};
use crate::pulumi::arguments::{self, OperationKind};
use crate::pulumi::failure::FailureKind;
use crate::pulumi::settings::Entry;

impl Run {
    /// Encrypts the secrets of these keys; returns an ending if that fails. Encryption requires the stack, so a missing
    /// one is created first.
    pub(super) async fn encrypt(&self, keys: &[String]) -> Result<Option<Ending>, RunError> {
        for entry in self.config.iter().filter(|entry| entry.is_secret && keys.contains(&entry.key)) {
            let mut ended = self.encrypting_call(entry).await?;
            if is_stack_missing(&ended) && self.parameters.creates_stack() {
                if let Some(ending) = self.init().await? {
                    return Ok(Some(ending));
                }
                ended = self.encrypting_call(entry).await?;
            }
            if is_stack_missing(&ended) && self.parameters.kind == OperationKind::Destroy {
                // The destroy reports the missing stack.
                return Ok(None);
            }
            if !ended.exit.success() {
                let what = format!("failed to encrypt config key {}", entry.key);
                return Ok(Some(self.failed_call(&what, &ended)));
            }
            self.settings.has_secret(&entry.key)?;
            if self.is_cancelled() {
                return Ok(Some(self.canceled("before the CLI was started")));
            }
        }
        Ok(None)
    }

    async fn encrypting_call(&self, entry: &Entry) -> Result<Ended, RunError> {
        let arguments = arguments::set_secret(&self.wanted.stack, entry.is_path, &entry.key);
        let ended = self.call_with(arguments, Some(input(&entry.value)), Stdout::Logged, &|_| {}).await;
        ended.map_err(|error| RunError::Call { action: "encrypt the secrets of the configuration", error })
    }
}

fn is_stack_missing(ended: &Ended) -> bool {
    !ended.exit.success() && classify(ended).kind == FailureKind::StackMissing
}

/// Returns the standard input for a value. The CLI encrypts only strings; programs parse an object from a secret
/// string. The CLI removes one line feed from the end.
fn input(value: &Value) -> Zeroizing<Vec<u8>> {
    let mut text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.push('\n');
    Zeroizing::new(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_value_is_passed_as_text_with_a_trailing_newline() {
        let rows = [
            (json!("x"), "x\n"),
            (json!("x\n"), "x\n\n"),
            (json!(""), "\n"),
            (json!(5), "5\n"),
            (json!({"f": "g"}), "{\"f\":\"g\"}\n"),
        ];
        for (value, wanted) in rows {
            assert_eq!(input(&value).as_slice(), wanted.as_bytes(), "{value}");
        }
    }
}
