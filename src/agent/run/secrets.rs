//! Secrets of the configuration: the CLI encrypts them, and puts them into the settings file.

use std::ffi::OsString;

use serde_json::Value;

use super::ending::Ending;
use super::pending::classify;
use super::{Run, RunError};
use crate::agent::command::{Ended, Stdout};
use crate::pulumi::arguments::{self, OperationKind};
use crate::pulumi::failure::FailureKind;
use crate::pulumi::settings::Entry;

/// The most that is given to the CLI by one command line, in bytes; Linux takes no argument of more than 128 KiB.
const LONGEST_COMMAND_LINE: usize = 96 * 1024;

impl Run {
    /// Has all secrets encrypted; the ending, when that cannot be done. It takes the stack: one that is to be made is made first.
    pub(super) async fn encrypt(&self) -> Result<Option<Ending>, RunError> {
        let calls = match calls(&self.wanted.stack, &self.config) {
            Ok(calls) => calls,
            Err(what) => return Ok(Some(Ending::failed(what))),
        };
        for arguments in calls {
            let mut ended = self.encrypting_call(arguments.clone()).await?;
            if is_stack_missing(&ended) && self.asked.makes_stack() {
                if let Some(ending) = self.init().await? {
                    return Ok(Some(ending));
                }
                ended = self.encrypting_call(arguments).await?;
            }
            if is_stack_missing(&ended) && self.asked.kind == OperationKind::Destroy {
                // The destroy says so itself.
                return Ok(None);
            }
            if !ended.exit.success() {
                return Ok(Some(self.failed_call("the secrets of the configuration cannot be encrypted", &ended)));
            }
        }
        self.settings.has_secrets(&self.settings_wanted(), &self.in_place)?;
        Ok(None)
    }

    async fn encrypting_call(&self, arguments: Vec<OsString>) -> Result<Ended, RunError> {
        let ended = self.call(arguments, Stdout::Logged).await;
        ended.map_err(|error| RunError::Call { doing: "encrypt the secrets of the configuration", error })
    }
}

fn is_stack_missing(ended: &Ended) -> bool {
    !ended.exit.success() && classify(ended).kind == FailureKind::StackMissing
}

/// The command lines that set all secrets. An error names the one that is too long.
fn calls(stack: &str, config: &[Entry]) -> Result<Vec<Vec<OsString>>, String> {
    let secrets = || config.iter().filter(|entry| entry.is_secret);
    for entry in secrets() {
        if entry.value.to_string().len() > LONGEST_COMMAND_LINE {
            let kibibytes = LONGEST_COMMAND_LINE / 1024;
            return Err(format!(
                "config key {} is a secret of more than {kibibytes} KiB, which the CLI cannot be given",
                entry.key
            ));
        }
    }
    let texts: Vec<(&Entry, String)> = secrets().map(|entry| (entry, text(&entry.value))).collect();
    let mut calls = Vec::new();
    for are_paths in [false, true] {
        let pairs: Vec<(&str, &str)> = texts
            .iter()
            .filter(|(entry, _)| entry.is_path == are_paths)
            .map(|(entry, text)| (entry.key.as_str(), text.as_str()))
            .collect();
        let portions = portions(pairs, |(key, text)| key.len() + text.len());
        calls.extend(portions.iter().map(|portion| arguments::set_secrets(stack, are_paths, portion)));
    }
    Ok(calls)
}

/// A value as the CLI takes it. It encrypts texts only; programs read an object out of a secret text as well.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Cuts a list so that no part of several is longer than a command line may be.
fn portions<T>(items: Vec<T>, length: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut portions: Vec<(usize, Vec<T>)> = Vec::new();
    for item in items {
        let more = length(&item);
        match portions.last_mut().filter(|(taken, _)| taken + more <= LONGEST_COMMAND_LINE) {
            Some((taken, portion)) => {
                *taken += more;
                portion.push(item);
            }
            None => portions.push((more, vec![item])),
        }
    }
    portions.into_iter().map(|(_, portion)| portion).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(key: &str, value: Value, is_path: bool, is_secret: bool) -> Entry {
        Entry { key: key.to_owned(), value, is_path, is_secret }
    }

    fn lines(config: &[Entry]) -> Vec<String> {
        let line = |call: &Vec<OsString>| {
            let words: Vec<String> = call.iter().skip(2).map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        calls("dev", config).unwrap().iter().map(line).collect()
    }

    #[test]
    fn secrets_of_a_kind_are_set_by_one_call() {
        let config = [
            entry("a", json!("x"), false, true),
            entry("b.c", json!("y"), true, true),
            entry("d", json!(5), false, true),
            entry("e", json!({"f": "g"}), false, true),
            entry("plain", json!("z"), false, false),
        ];
        assert_eq!(
            lines(&config),
            [
                "config set-all --stack=dev --secret=a=x --secret=d=5 --secret=e={\"f\":\"g\"}",
                "config set-all --stack=dev --path --secret=b.c=y",
            ]
        );
        assert!(lines(&config[4..]).is_empty());
    }

    #[test]
    fn no_command_line_is_too_long() {
        let long = "x".repeat(60 * 1024);
        let config = ["a", "b", "c"].map(|key| entry(key, json!(long), false, true));
        assert_eq!(lines(&config).len(), 3);
        let longer = [entry("a", json!("x".repeat(97 * 1024)), false, true)];
        let error = calls("dev", &longer).unwrap_err();
        assert!(error.contains("config key a is a secret of more than 96 KiB"), "{error}");
    }
}
