//! Selects the secrets provider of a new stack, and changes the secrets provider of an existing stack.
//!
//! The settings file in the source takes precedence over the Stack, because its encrypted values require its secrets
//! provider.

use super::context::{Run, RunError, StepCall};
use super::operation_result::OperationResult;
use super::recovery::Exported;
use crate::agent::settings::ApplyError;
use crate::pulumi::arguments::{self, OperationKind};
use crate::pulumi::settings::Encryption;

/// What the agent does about the secrets provider of an existing stack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    Change,
    /// Keeps a secrets provider other than the desired one, for the given reason.
    Ignore(String),
}

/// Decides about the secrets provider of an existing stack. `of_stack` is the secrets provider in the state, `source`
/// describes the settings file in the source, and `has_plan` specifies whether the operation follows a plan.
fn decide(desired: &str, of_stack: Option<&str>, source: &Encryption, has_plan: bool) -> Decision {
    let Some(of_stack) = of_stack.filter(|of_stack| *of_stack != desired && desired != "default") else {
        return Decision::Keep;
    };
    let reason = match &source.provider {
        Some(provider) if provider == desired => return Decision::Keep,
        Some(provider) => format!("the settings file in the source specifies {provider}"),
        None if source.has_secrets => "the settings file in the source contains encrypted values".to_owned(),
        None if has_plan => "the run follows a plan".to_owned(),
        // The CLI reads the new passphrase from a terminal.
        None if desired == "passphrase" => "the new passphrase is unknown".to_owned(),
        None => return Decision::Change,
    };
    Decision::Ignore(format!(
        "spec.secretsProvider {desired} has no effect, because the stack uses {of_stack} and {reason}: run `pulumi stack \
         change-secrets-provider {desired}`, and commit the settings file if the source contains it"
    ))
}

/// Returns the secrets provider for a new stack, or an error if the Stack and the settings file in the source differ.
fn of_new_stack(desired: Option<&str>, source: &Encryption) -> Result<Option<String>, String> {
    match (desired, &source.provider) {
        (Some(desired), Some(provider)) if provider != desired => Err(format!(
            "failed to create the stack: spec.secretsProvider is {desired}, but the settings file in the source specifies \
             {provider}: set the same secrets provider, or remove spec.secretsProvider"
        )),
        (Some(desired), _) => Ok(Some(desired.to_owned())),
        (None, provider) => Ok(provider.clone()),
    }
}

impl Run {
    /// Returns the secrets provider for a new stack, or the message of a run that must not create the stack.
    pub(super) fn provider_of_new_stack(&self) -> Result<Result<Option<String>, String>, ApplyError> {
        let source = self.settings.encryption_in_source(&self.desired.stack, &self.current_source)?;
        Ok(of_new_stack(self.parameters.secrets_provider(), &source))
    }

    /// Changes the secrets provider of an existing stack if the Stack specifies another one. Returns the keys of the
    /// secret values that the CLI must encrypt. If the change fails, returns the result of the operation.
    ///
    /// The change needs access to both secrets providers. After an interruption, the next run repeats the change,
    /// because the state contains either secrets provider, and the settings file contains no encrypted values yet.
    pub(super) async fn settle_secrets_provider(
        &self,
        missing_secrets: Vec<String>,
    ) -> Result<Result<Vec<String>, Box<OperationResult>>, RunError> {
        let Some(desired) = self.parameters.secrets_provider() else { return Ok(Ok(missing_secrets)) };
        if self.parameters.kind != OperationKind::Up || self.settings.has_checked_provider(&self.desired.stack, desired)
        {
            return Ok(Ok(missing_secrets));
        }
        let exported = self.export("determine the secrets provider").await;
        let of_stack = match exported? {
            Exported::NoStack => return Ok(Ok(missing_secrets)),
            Exported::Failed(operation_result) => return Ok(Err(operation_result)),
            Exported::Written => self.secrets_provider_in_export().await,
        };
        self.remove_exported();
        let source = self.settings.encryption_in_source(&self.desired.stack, &self.current_source)?;
        let has_plan = self.parameters.follows_cli_plan();
        let missing_secrets = match decide(desired, of_stack?.as_deref(), &source, has_plan) {
            Decision::Keep => missing_secrets,
            Decision::Ignore(reason) => {
                self.add_note(reason);
                return Ok(Ok(missing_secrets));
            }
            Decision::Change => match self.change_secrets_provider(desired).await? {
                Ok(missing_secrets) => missing_secrets,
                Err(operation_result) => return Ok(Err(operation_result)),
            },
        };
        self.settings.record_checked_provider(&self.desired.stack, desired);
        Ok(Ok(missing_secrets))
    }

    /// Changes the secrets provider. The CLI writes the encryption key to the settings file, and encrypts the state
    /// again. The settings file contains no encrypted values during the change, because the CLI could otherwise leave
    /// values in the file that it cannot decrypt.
    async fn change_secrets_provider(
        &self,
        desired: &str,
    ) -> Result<Result<Vec<String>, Box<OperationResult>>, RunError> {
        self.settings.forget_encryption(&self.desired.stack, &self.current_source)?;
        let missing_secrets = self.settings.apply(&self.desired_settings(), &self.current_source)?;
        let arguments = arguments::change_secrets_provider(&self.stack, desired);
        let change = async || {
            let call = StepCall::new("changing the secrets provider", arguments.clone()).that_locks_stack();
            let ended = self.call(call).await;
            ended.map_err(|error| RunError::Call { action: "change the secrets provider", error })
        };
        let mut ended = change().await?;
        if !ended.exit.success()
            && let Some(holder) = self.holder(&ended.stderr.text()).await
            && self.remove_stale_lock(&holder).await
        {
            ended = change().await?;
        }
        if !ended.exit.success() {
            let what = format!("failed to change the secrets provider of the stack to {desired}");
            return Ok(Err(Box::new(self.failed_call(&what, &ended))));
        }
        tracing::warn!(operation = self.record.request().id, provider = desired, "changed the secrets provider");
        Ok(Ok(missing_secrets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "hashivault://key";

    fn source(provider: Option<&str>, has_secrets: bool) -> Encryption {
        Encryption { provider: provider.map(str::to_owned), has_secrets }
    }

    #[test]
    fn the_secrets_provider_of_an_existing_stack_is_changed_only_without_encrypted_values_in_the_source() {
        let (none, other) = (source(None, false), source(Some("gcpkms://other"), true));
        let change =
            |desired, of_stack, source: &Encryption, has_plan| match decide(desired, of_stack, source, has_plan) {
                Decision::Keep => "keep".to_owned(),
                Decision::Change => "change".to_owned(),
                Decision::Ignore(reason) => {
                    reason.split_once(" uses passphrase and ").unwrap().1.split_once(':').unwrap().0.to_owned()
                }
            };
        let old = Some("passphrase");
        for (desired, of_stack, source, has_plan, expected) in [
            (KEY, old, &none, false, "change"),
            (KEY, Some(KEY), &none, false, "keep"),
            (KEY, None, &none, false, "keep"),
            ("default", old, &none, false, "keep"),
            (KEY, old, &source(Some(KEY), true), false, "keep"),
            (KEY, old, &none, true, "the run follows a plan"),
            (KEY, old, &source(None, true), false, "the settings file in the source contains encrypted values"),
            (KEY, old, &other, false, "the settings file in the source specifies gcpkms"),
        ] {
            assert_eq!(change(desired, of_stack, source, has_plan), expected, "{desired} {of_stack:?} {source:?}");
        }
        let Decision::Ignore(reason) = decide("passphrase", Some("service"), &none, false) else {
            panic!("not ignored")
        };
        assert_eq!(
            reason,
            "spec.secretsProvider passphrase has no effect, because the stack uses service and the new passphrase is \
             unknown: run `pulumi stack change-secrets-provider passphrase`, and commit the settings file if the source \
             contains it"
        );
    }

    #[test]
    fn a_new_stack_uses_the_secrets_provider_of_the_settings_file_in_the_source() {
        for (desired, provider, expected) in [
            (None, None, Ok(None)),
            (None, Some(KEY), Ok(Some(KEY))),
            (None, Some("passphrase"), Ok(Some("passphrase"))),
            (Some(KEY), None, Ok(Some(KEY))),
            (Some(KEY), Some(KEY), Ok(Some(KEY))),
            (Some("passphrase"), Some(KEY), Err(())),
        ] {
            let found = of_new_stack(desired, &source(provider, true)).map_err(|message| {
                assert!(message.contains("spec.secretsProvider is passphrase, but"), "{message}");
            });
            assert_eq!(found, expected.map(|found| found.map(str::to_owned)), "{desired:?} {provider:?}");
        }
    }
}
