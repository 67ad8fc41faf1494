//! Program sources: renders the content of a Program as a project file and packs it into an artifact. The bytes depend only on the
//! Program, so every replica can recreate them at any time.

pub mod check;
mod config;
mod declarations;
mod field_path;
mod references;
mod render;

use kube::api::DynamicObject;
use kube::{Resource, ResourceExt};

use crate::api::pulumi::Program;
use crate::artifact::{Digest, Directory};
use crate::source::kinds::GroupKind;
use crate::source::program::check::Findings;
use crate::source::{Origin, Resolved, Unavailable};

pub use render::{RenderError, render};

/// The artifact of a valid Program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The archive.
    pub bytes: Vec<u8>,
    pub digest: Digest,
    /// The generation of the Program.
    pub revision: String,
    /// Requirements on the config of the stacks that run the Program.
    pub needs: Vec<String>,
}

/// Returns the group and kind of Programs.
pub fn kind() -> GroupKind {
    GroupKind::new(&Program::group(&()), &Program::kind(&()))
}

/// Creates the artifact of a Program. The error lists the invalid fields.
pub fn make(program: &Program) -> Result<Made, String> {
    let Findings { problems, needs } = check::check(program);
    if !problems.is_empty() {
        return Err(listed(&problems));
    }
    let bytes = render::archive(program).map_err(|error| error.to_string())?;
    let digest = Digest::of(&bytes);
    let revision = program.metadata.generation.unwrap_or_default().to_string();
    Ok(Made { bytes, digest, revision, needs })
}

/// Maximum number of problems in a message.
const LISTED: usize = 10;

/// Joins sentences into one line.
pub fn listed(sentences: &[String]) -> String {
    let more = match sentences.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let shown: Vec<&str> = sentences.iter().take(LISTED).map(String::as_str).collect();
    format!("{}{more}", shown.join("; "))
}

/// Returns the current artifact of a Program.
pub fn artifact(object: &DynamicObject, directory: Directory) -> Result<Resolved, Unavailable> {
    let what = format!("Program {}/{}", object.namespace().unwrap_or_default(), object.name_any());
    let program: Program =
        object.clone().try_parse().map_err(|error| Unavailable::Stalled(format!("failed to parse {what}: {error}")))?;
    let made = make(&program).map_err(|problems| Unavailable::Invalid(format!("invalid {what}: {problems}")))?;
    Ok(Resolved {
        origin: Origin::Made(made.bytes.into()),
        revision: made.revision,
        origin_revision: None,
        content_id: None,
        digest: made.digest,
        directory,
    })
}

#[cfg(test)]
mod tests;
