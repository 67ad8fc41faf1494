//! Prepares the stack for a run: selects the stack, creates a missing stack, and encrypts the secret configuration
//! values. The CLI writes the encrypted values to the settings file.

use serde_json::Value;
use zeroize::Zeroizing;

use super::context::{Run, RunError};
use super::operation_result::OperationResult;
use super::recovery::classify;
use crate::agent::command::{Ended, Stdout};
use crate::pulumi::arguments;
use crate::pulumi::failure::{self, FailureKind};
use crate::pulumi::settings::Entry;

impl Run {
    /// Selects the stack before the first run in a pod, so that commands that users run in the pod apply to this stack.
    /// The function also creates a missing stack, because otherwise the first attempt of the run would fail. The
    /// function only logs errors, because the run itself reports problems with the stack or the state backend.
    pub(super) async fn select(&self) {
        let stack = &self.stack;
        let arguments = match self.parameters.creates_stack() {
            true => arguments::stack_select_or_init(stack, self.parameters.secrets_provider()),
            false => arguments::stack_select(stack),
        };
        // The CLI stores the selection for the path of the project, and users run commands in this directory.
        match self.locking_call_in(&self.directory(), arguments).await {
            Ok(ended) if ended.exit.success() => {}
            Ok(ended) => tracing::warn!(output = ended.stderr.last_lines(5), "failed to select the stack"),
            Err(error) => tracing::warn!(%error, "failed to select the stack"),
        }
    }

    /// Creates the stack, unless another client has already created it. If the creation fails, the function returns the
    /// result of the operation.
    pub(super) async fn init(&self) -> Result<Option<OperationResult>, RunError> {
        let ended = self.locking_call(arguments::stack_init(&self.stack, self.parameters.secrets_provider())).await;
        let ended = ended.map_err(|error| RunError::Call { action: "create the stack", error })?;
        if ended.exit.success() || failure::stack_exists(&ended.stderr.text()) {
            return Ok(None);
        }
        Ok(Some(self.failed_call("failed to create the stack", &ended)))
    }

    /// Encrypts the secret configuration values of these keys. If the stack is missing, the function creates the stack
    /// first, because the encryption requires the stack. If the encryption fails, the function returns the result of
    /// the operation.
    pub(super) async fn encrypt(&self, keys: &[String]) -> Result<Option<OperationResult>, RunError> {
        for entry in self.config.iter().filter(|entry| entry.is_secret && keys.contains(&entry.key)) {
            let mut ended = self.encrypting_call(entry).await?;
            if is_stack_missing(&ended) && self.parameters.creates_stack() {
                if let Some(operation_result) = self.init().await? {
                    return Ok(Some(operation_result));
                }
                ended = self.encrypting_call(entry).await?;
            }
            if is_stack_missing(&ended) && self.parameters.kind.is_destroy() {
                // The destroy itself reports the missing stack.
                return Ok(None);
            }
            if !ended.exit.success() {
                let what = format!("failed to encrypt config key {}", entry.key);
                return Ok(Some(self.failed_call(&what, &ended)));
            }
            self.settings.record_secret(&entry.key)?;
            if self.is_cancelled() {
                return Ok(Some(self.canceled("before the CLI was started")));
            }
        }
        Ok(None)
    }

    async fn encrypting_call(&self, entry: &Entry) -> Result<Ended, RunError> {
        let arguments = arguments::set_secret(&self.stack, entry.is_path, &entry.key);
        let (directory, stdin) = (self.layout.program(), Some(input(&entry.value)));
        let ended = self.call_in(&directory, arguments, stdin, Stdout::Logged, &|_| {}).await;
        ended.map_err(|error| RunError::Call { action: "encrypt the secrets of the configuration", error })
    }
}

fn is_stack_missing(ended: &Ended) -> bool {
    !ended.exit.success() && classify(ended).kind == FailureKind::StackMissing
}

/// Returns the stdin of the CLI call that encrypts a value. The CLI encrypts only strings, so the function encodes
/// other values as JSON, which programs parse. The function adds a line feed, because the CLI removes a line feed from
/// the end of the input.
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
        for (value, expected) in rows {
            assert_eq!(input(&value).as_slice(), expected.as_bytes(), "{value}");
        }
    }
}
