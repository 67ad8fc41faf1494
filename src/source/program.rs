//! Program sources: renders a Program's content as a project file, and packs the file into an artifact. The artifact
//! depends only on the Program, so every replica can build the same artifact at any time.

pub mod check;
mod config;
pub mod conversion;
mod names;
mod sentences;

use std::io;
use std::sync::Arc;

use kube::api::DynamicObject;
use kube::{Resource, ResourceExt};
use serde_json::Value;

use crate::api::pulumi::Program;
use crate::artifact::{Digest, Directory, pack_file};
use crate::pulumi::project::{self, MAXIMUM_SIZE, PROJECT_FILE};
use crate::source::kinds::GroupKind;
use crate::source::program::check::Findings;
use crate::source::program::conversion::Interpolated;
use crate::source::program::sentences::Sentences;
use crate::source::{Origin, Resolved, Unavailable};

/// The artifact of a valid Program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The archive.
    pub bytes: Vec<u8>,
    pub digest: Digest,
    /// The generation of the Program.
    pub revision: String,
    /// Requirements that the config of every stack with this Program must meet.
    pub needs: Sentences,
    /// Defaults that Pulumi YAML inserts into strings in another form.
    pub warnings: Sentences,
    /// Config keys whose values the Program inserts into strings.
    pub interpolated: Interpolated,
}

/// Returns the group and kind of Programs.
pub fn kind() -> GroupKind {
    GroupKind::new(&Program::group(&()), &Program::kind(&()))
}

/// Creates the artifact of a Program. The error lists the invalid fields.
pub fn make(program: &Program) -> Result<Made, String> {
    let Findings { problems, needs, warnings, interpolated } = check::check(program);
    if !problems.is_empty() {
        return Err(problems.to_string());
    }
    let bytes = archive(program).map_err(|error| error.to_string())?;
    let digest = Digest::of(&bytes);
    let revision = program.metadata.generation.unwrap_or_default().to_string();
    Ok(Made { bytes, digest, revision, needs, warnings, interpolated })
}

/// The reason why rendering a Program as an artifact failed.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("failed to render the project file: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("failed to pack the project file: {0}")]
    Pack(#[from] io::Error),
    #[error("the project file exceeds the maximum size of {MAXIMUM_SIZE} bytes")]
    TooLarge,
}

/// The sections of a project file in the conventional order.
const SECTIONS: [&str; 9] =
    ["description", "pulumi", "packages", "plugins", "config", "configuration", "variables", "resources", "outputs"];

/// Returns the content of the project file. The content does not depend on the order of the fields in the Program.
///
/// # Errors
/// Fails if the Program cannot be encoded as JSON, or if the project file is too large.
pub fn render(program: &Program) -> Result<String, RenderError> {
    let mut fields = serde_json::to_value(&program.program)?;
    let mut section = |name: &'static str| Some((name, fields.get_mut(name).map(Value::take)?));
    let sections: Vec<(&str, Value)> = SECTIONS.into_iter().filter_map(&mut section).collect();
    project::yaml_program(&program.name_any(), &sections).ok_or(RenderError::TooLarge)
}

/// Returns an archive that contains the project file in its root directory.
fn archive(program: &Program) -> Result<Vec<u8>, RenderError> {
    Ok(pack_file(PROJECT_FILE, render(program)?.as_bytes())?)
}

/// Returns a Program's current artifact.
pub fn artifact(object: &DynamicObject, directory: Directory) -> Result<Resolved, Unavailable> {
    let what = format!("Program {}/{}", object.namespace().unwrap_or_default(), object.name_any());
    let program: Program =
        object.clone().try_parse().map_err(|error| Unavailable::Stalled(format!("failed to parse {what}: {error}")))?;
    let made = make(&program).map_err(|problems| Unavailable::Invalid(format!("invalid {what}: {problems}")))?;
    Ok(Resolved {
        origin: Origin::Program { bytes: made.bytes.into(), interpolated: Arc::new(made.interpolated) },
        revision: made.revision,
        origin_revision: None,
        metadata: None,
        content_id: None,
        digest: made.digest,
        directory,
    })
}

#[cfg(test)]
mod tests;
