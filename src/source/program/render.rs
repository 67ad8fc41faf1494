//! Renders the project file of a Program and the archive that contains it. Performs no I/O.

use std::io;

use kube::ResourceExt;
use serde_json::Value;

use crate::api::pulumi::Program;
use crate::artifact::pack_file;
use crate::pulumi::project::{self, PROJECT_FILE};

/// The reason why a Program cannot be rendered as an artifact.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("failed to render the project file: {0}")]
    Encode(#[from] serde_json::Error),
    #[error("failed to pack the project file: {0}")]
    Pack(#[from] io::Error),
}

/// Sections of a project file in the conventional order.
const SECTIONS: [&str; 9] =
    ["description", "pulumi", "packages", "plugins", "config", "configuration", "variables", "resources", "outputs"];

/// Returns the text of the project file. It does not depend on the order of the fields in the object.
///
/// # Errors
/// Fails if the Program cannot be encoded as JSON.
pub fn render(program: &Program) -> Result<String, RenderError> {
    let mut fields = serde_json::to_value(&program.program)?;
    let mut section = |name: &'static str| Some((name, fields.get_mut(name).map(Value::take)?));
    let sections: Vec<(&str, Value)> = SECTIONS.into_iter().filter_map(&mut section).collect();
    Ok(project::yaml_program(&program.name_any(), &sections))
}

/// Returns the archive with the project file in its root directory.
pub fn archive(program: &Program) -> Result<Vec<u8>, RenderError> {
    Ok(pack_file(PROJECT_FILE, render(program)?.as_bytes())?)
}
