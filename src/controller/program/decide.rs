//! What is to be said of a Program. Pure.

use kube::ResourceExt;

use crate::api::pulumi::Program;
use crate::source::program;

/// What becomes of a Program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is valid: what it was made into, and what it needs of stacks.
    Publish { artifact: Published, needs: Option<String> },
    /// It is not: where and why.
    Refuse(String),
}

/// An artifact as the status names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub path: String,
    pub revision: String,
    pub digest: String,
    pub size: Option<i64>,
}

/// What is to be said of a Program as it is now.
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
