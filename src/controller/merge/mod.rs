//! Strategic merge of templates, as `kubectl patch --type=strategic` does it, on plain JSON.
//!
//! Templates stay JSON from the resource to the apply: typed parsing would drop fields newer than our library. What a
//! list merges by is a table (`keys`).

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
