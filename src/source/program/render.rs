//! The project file of a Program, and the archive that holds it. Pure.

use std::io;

use kube::ResourceExt;
use serde_json::Value;

use crate::api::pulumi::Program;
use crate::artifact::pack_file;
use crate::pulumi::project::{self, PROJECT_FILE};

/// Why a Program cannot be made into an artifact.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("it cannot be written as a project file: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("its project file cannot be packed: {0}")]
    Pack(#[from] io::Error),
}

/// The sections of a project file, in the order in which people write them.
const SECTIONS: [&str; 9] =
    ["description", "pulumi", "packages", "plugins", "config", "configuration", "variables", "resources", "outputs"];

/// The text of the project file: the same for the same Program, whatever order its fields came in.
///
/// # Errors
/// The program cannot be written as JSON.
pub fn render(program: &Program) -> Result<String, RenderError> {
    let mut fields = serde_json::to_value(&program.program)?;
    let mut section = |name: &'static str| Some((name, fields.get_mut(name).map(Value::take)?));
    let sections: Vec<(&str, Value)> = SECTIONS.into_iter().filter_map(&mut section).collect();
    Ok(project::yaml_program(&program.name_any(), &sections))
}

/// The archive with the project file in its root.
pub fn archive(program: &Program) -> Result<Vec<u8>, RenderError> {
    Ok(pack_file(PROJECT_FILE, render(program)?.as_bytes())?)
}
