//! Errors of a merge.

/// Reason why a patch cannot be merged. Each variant names the path in the patch.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MergeError {
    #[error("{path} must be an object")]
    NotAnObject { path: String },

    #[error("{path} must be a list")]
    NotAList { path: String },

    #[error("{path} must have the merge key `{key}`")]
    MissingKey { path: String, key: &'static str },

    #[error("invalid {path}.$patch {found}: must be `replace`, `delete` or `merge`")]
    UnknownDirective { path: String, found: String },

    #[error("{path}.{field} is set but not listed in $retainKeys")]
    NotRetained { path: String, field: String },
}
