//! Strategic merge of templates on plain JSON, with the semantics of `kubectl patch --type=strategic`.
//!
//! Templates stay JSON from the resource to the apply, because typed parsing would drop fields that are newer than
//! `k8s-openapi`. The merge keys of lists are tables (`keys`).

mod error;
mod keys;
mod lists;
mod size;
mod strategic;
mod template;
mod update;
mod workspace;

#[cfg(test)]
mod tests;

pub use error::MergeError;
pub use keys::{KeyTable, POD_TEMPLATE, Rule, SERVICE_TEMPLATE, WORKSPACE};
pub use size::{TooLarge, check_size};
pub use strategic::merge;
pub use template::TemplateError;
pub use update::update_template;
pub use workspace::workspace_template;
