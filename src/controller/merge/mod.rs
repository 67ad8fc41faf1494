//! Strategic merge of templates, as `kubectl patch --type=strategic` does it, on plain JSON.
//!
//! Templates stay JSON from the resource to the apply: typed parsing would drop fields newer than our library. What a
//! list merges by is a table (`keys`).

mod keys;
mod lists;
mod maps;
mod size;
mod template;
mod update;
mod workspace;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use keys::{KeyTable, POD_TEMPLATE, Rule, SERVICE_TEMPLATE, WORKSPACE};
pub use size::{TooLarge, check_size};
pub use template::TemplateError;
pub use update::update_template;
pub use workspace::workspace_template;

/// Why a patch cannot be merged. Each names the place in the patch.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MergeError {
    #[error("{path} must be an object")]
    NotAnObject { path: String },

    #[error("{path} must be a list")]
    NotAList { path: String },

    #[error("{path} has no `{key}`, by which the list is merged")]
    MissingKey { path: String, key: &'static str },

    #[error("{path}.$patch is {found}: it must be `replace`, `delete` or `merge`")]
    UnknownDirective { path: String, found: String },

    #[error("{path}.{field} is set but not among $retainKeys")]
    NotRetained { path: String, field: String },
}

/// Merges `patch` over `base`. Maps merge, null deletes, lists merge by the keys of the table or are replaced; the
/// directives `$patch`, `$retainKeys`, `$setElementOrder/…` and `$deleteFromPrimitiveList/…` are obeyed.
pub fn merge(base: Value, patch: &Value, keys: &'static KeyTable) -> Result<Value, MergeError> {
    maps::merge_value(Some(base), patch, &Rule::Map(keys), &maps::Path::root())
}
