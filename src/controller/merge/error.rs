//! Errors of a merge.

/// Reason why a patch cannot be merged. Each variant names the path in the patch.
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
