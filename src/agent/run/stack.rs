//! Prepares the stack for a run: selects the stack, creates a missing stack, and encrypts the secret configuration
//! values. The CLI writes the encrypted values to the settings file.

use std::ffi::OsString;
use std::ops::ControlFlow;

use super::context::{Run, RunError, StepCall};
use super::operation_result::OperationResult;
use super::recovery::classify;
use crate::agent::command::{Ended, Input};
use crate::pulumi::arguments;
use crate::pulumi::cli::SECRETS;
use crate::pulumi::failure::{self, FailureKind};
use crate::pulumi::secret_values::{self, batches};
use crate::pulumi::settings::Entry;

impl Run {
    /// Selects the stack before the first run in a pod, so that commands that users run in the pod apply to this stack.
    /// The function also creates a missing stack, because otherwise the first attempt of the run would fail. The
    /// function only logs errors, because the run itself reports problems with the stack or the state backend.
    pub(super) async fn select(&self) -> Result<(), RunError> {
        let stack = &self.stack;
        let arguments = match self.provider_of_new_stack()? {
            Ok(provider) if self.creates_stack() => arguments::stack_select_or_init(stack, provider.as_deref()),
            _ => arguments::stack_select(stack),
        };
        // The CLI stores the selection for the path of the project, and users run commands in this directory.
        let call = StepCall::new("selecting the stack", arguments).that_locks_stack();
        match self.call(call.in_directory(self.directory())).await {
            Ok(ended) if ended.exit.success() => {}
            Ok(ended) => tracing::warn!(output = ended.stderr.last_lines(5), "failed to select the stack"),
            Err(error) => tracing::warn!(%error, "failed to select the stack"),
        }
        Ok(())
    }

    /// Creates the stack, unless another client has already created it. If the creation fails, the function returns the
    /// result of the operation.
    pub(super) async fn init(&self) -> Result<Option<OperationResult>, RunError> {
        let provider = match self.provider_of_new_stack()? {
            Ok(provider) => provider,
            Err(message) => return Ok(Some(OperationResult::failed(message))),
        };
        let arguments = arguments::stack_init(&self.stack, provider.as_deref());
        let ended = self.call(StepCall::new("creating the stack", arguments).that_locks_stack()).await;
        let ended = ended.map_err(|error| RunError::Call { action: "create the stack", error })?;
        if ended.exit.success() || failure::stack_exists(&ended.stderr.text()) {
            return Ok(None);
        }
        Ok(Some(self.failed_call("failed to create the stack", &ended)))
    }

    /// Encrypts the secret configuration values of these keys. If the stack is missing, the function creates the stack
    /// first, because the encryption requires the stack. If the encryption fails, the function returns the result of
    /// the operation.
    ///
    /// The start of the CLI takes longer than the encryption, so one call encrypts many values.
    pub(super) async fn encrypt(&self, keys: &[String]) -> Result<Option<OperationResult>, RunError> {
        let entries = self.config.iter().filter(|entry| entry.is_secret && keys.contains(&entry.key));
        for batch in batches(entries) {
            if let ControlFlow::Break(ended) = self.encrypt_batch(&batch, keys.len()).await? {
                return Ok(ended);
            }
        }
        Ok(None)
    }

    async fn encrypt_batch(
        &self,
        batch: &[&Entry],
        count: usize,
    ) -> Result<ControlFlow<Option<OperationResult>>, RunError> {
        let mut missing = batch.to_vec();
        if batch.len() > 1 {
            let (arguments, values) = (arguments::set_secrets(&self.stack), secret_values::as_json(batch));
            let call = || (arguments.clone(), Input::Variable(SECRETS, values.clone()));
            if let ControlFlow::Break(ended) = self.encrypt_with(call, "the secret configuration values", count).await?
            {
                return Ok(ControlFlow::Break(ended));
            }
            // A CLI without support for the variable succeeds without setting the values.
            let encrypted = self.settings.record_encrypted(&self.desired_settings())?;
            missing.retain(|entry| !encrypted.contains(&entry.key));
        }
        for entry in missing {
            let arguments = arguments::set_secret(&self.stack, entry.is_path, &entry.key);
            let call = || (arguments.clone(), Input::Stdin(secret_values::as_stdin(&entry.value)));
            let what = format!("config key {}", entry.key);
            if let ControlFlow::Break(ended) = self.encrypt_with(call, &what, count).await? {
                return Ok(ControlFlow::Break(ended));
            }
            self.settings.record_secret(&entry.key)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Runs a CLI call that encrypts values, and creates the stack if it is missing. If the run cannot continue to
    /// encrypt values, the function breaks, with the result of the operation if the operation must not start.
    async fn encrypt_with(
        &self,
        call: impl Fn() -> (Vec<OsString>, Input),
        what: &str,
        count: usize,
    ) -> Result<ControlFlow<Option<OperationResult>>, RunError> {
        let encrypt = async || {
            let (arguments, input) = call();
            let step = format!("encrypting {count} secret configuration values");
            let ended = self.call(StepCall::new(&step, arguments).with_input(input)).await;
            ended.map_err(|error| RunError::Call { action: "encrypt the secrets of the configuration", error })
        };
        let mut ended = encrypt().await?;
        if is_stack_missing(&ended) {
            if !self.creates_stack() {
                // The operation itself reports the missing stack.
                return Ok(ControlFlow::Break(None));
            }
            if let Some(operation_result) = self.init().await? {
                return Ok(ControlFlow::Break(Some(operation_result)));
            }
            ended = encrypt().await?;
        }
        if !ended.exit.success() {
            let result = self.failed_call(&format!("failed to encrypt {what}"), &ended);
            return Ok(ControlFlow::Break(Some(result)));
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn is_stack_missing(ended: &Ended) -> bool {
    !ended.exit.success() && classify(ended).kind == FailureKind::StackMissing
}
