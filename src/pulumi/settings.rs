//! The settings file of a stack, `Pulumi.<stack>.yaml`, as a state: rebuilt from what is wanted, never edited.

use serde_json::Value;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("the stack's settings file in the source is not valid: {reason}")]
    Original { reason: String },
    #[error("the stack's settings file in the workspace is not valid: {reason}")]
    Current { reason: String },
    #[error("config key {key:?} is null; give it a value or remove it")]
    Null { key: String },
    #[error("config key {key:?} is not valid: {reason}")]
    Key { key: String, reason: String },
    #[error("cannot write the stack's settings file: {reason}")]
    Write { reason: String },
}

/// How the settings file is written: as the project file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Yaml,
    Json,
}

/// The name of a stack's settings file, by the last segment of the stack's name.
pub fn file_name(stack: &str, format: Format) -> String {
    todo!()
}

/// The text of the settings file that is wanted: `original` (the source's own file) with `config` over it and the encryption
/// header kept from `current` (the file as the CLI left it), unless the original has one. The same input gives the same text.
pub fn rebuild(
    original: Option<&str>,
    current: Option<&str>,
    project: &str,
    config: &[(String, Value)],
    format: Format,
) -> Result<String, SettingsError> {
    todo!()
}
