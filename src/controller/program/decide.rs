//! Decides the next action for a Program. Pure functions.

use kube::ResourceExt;

use crate::api::pulumi::Program;
use crate::source::program;

/// Next action for a Program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The Program is valid: its artifact, and the values that it requires from stacks.
    Publish { artifact: Published, needs: Option<String> },
    /// The Program is invalid: the location and reason of each problem.
    Refuse(String),
}

/// Artifact as recorded in the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub path: String,
    pub revision: String,
    pub digest: String,
    pub size: Option<i64>,
}

/// Decides the next action from the current Program.
pub fn decide(program: &Program) -> Action {
    let made = match program::make(program) {
        Ok(made) => made,
        Err(problems) => return Action::Refuse(problems),
    };
    let (namespace, name) = (program.namespace().unwrap_or_default(), program.name_any());
    let artifact = Published {
        path: format!("programs/{namespace}/{name}/{}.tar.gz", made.revision),
        revision: made.revision,
        digest: made.digest.to_string(),
        size: i64::try_from(made.bytes.len()).ok(),
    };
    let needs = (!made.needs.is_empty()).then(|| program::listed(&made.needs));
    Action::Publish { artifact, needs }
}
