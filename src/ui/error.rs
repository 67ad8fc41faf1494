//! Errors that web UI requests can return. The UI shows each error as a page.

use axum::http::StatusCode;

use crate::history::HistoryError;
use crate::runtime::reads::ReadError;
use crate::text::chain;

/// Rejected or failed request, with a message for the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum UiError {
    #[error("you are not signed in, or your session has expired: sign in again")]
    SignedOut,
    #[error("the API server rejected the token: check that the token is complete and has not expired")]
    InvalidToken,
    #[error("too many sign-ins: wait a few seconds, and sign in again")]
    TooManySignIns,
    #[error("you have sent too many requests: wait a few seconds, and repeat the request")]
    TooManyRequests,
    #[error(
        "the request does not come from a page of this UI, or it has expired: reload the page, and repeat the request"
    )]
    Forged,
    /// The issuer has redirected the browser to the UI, but the browser has no matching sign-in.
    #[error("the sign-in has expired, is already complete, or was started in another browser: sign in again")]
    UnknownSignIn,
    #[error("invalid form: {0}")]
    Form(&'static str),
    #[error("page not found")]
    NotFound,
    #[error("{kind} {namespace}/{name} not found")]
    NoObject { kind: &'static str, namespace: String, name: String },
    /// The API server rejected the user's request.
    #[error("failed to {request}: {message}")]
    Refused { request: String, code: u16, message: String },
    /// The object's state does not permit the action.
    #[error("{0}")]
    Conflict(String),
    #[error("failed to {request}: API server did not respond in time; retry later")]
    Timeout { request: String },
    #[error("failed to {request}: {cause}")]
    Failed { request: String, cause: String },
    /// The cause can contain addresses and paths of the storage, so only the log contains the cause.
    #[error("the storage of the history of runs is not available: retry later, or see the log of the controller")]
    History(#[from] HistoryError),
    #[error("too many requests: retry later")]
    Busy,
    #[error("the list of Stacks is not available yet: retry in a few seconds")]
    NotListed,
}

impl UiError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            UiError::SignedOut | UiError::InvalidToken => StatusCode::UNAUTHORIZED,
            UiError::TooManySignIns | UiError::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            UiError::Forged | UiError::UnknownSignIn | UiError::Refused { code: 403, .. } => StatusCode::FORBIDDEN,
            UiError::Form(_) => StatusCode::BAD_REQUEST,
            UiError::NotFound | UiError::NoObject { .. } => StatusCode::NOT_FOUND,
            UiError::Conflict(_) | UiError::Refused { code: 409, .. } => StatusCode::CONFLICT,
            UiError::Refused { code: 400..=499, .. } => StatusCode::UNPROCESSABLE_ENTITY,
            UiError::Refused { .. } | UiError::Failed { .. } => StatusCode::BAD_GATEWAY,
            UiError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            UiError::History(_) | UiError::Busy | UiError::NotListed => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Converts an error from the Kubernetes client to an error for the user.
    pub(super) fn of_request(request: String, error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 401 => UiError::SignedOut,
            kube::Error::Api(status) => {
                UiError::Refused { request, code: status.code, message: status.message.clone() }
            }
            other => UiError::Failed { request, cause: chain(&other) },
        }
    }

    /// Returns whether the API server has rejected the request because the user lacks a permission.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, UiError::Refused { code: 403, .. })
    }
}

impl From<ReadError> for UiError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Refused { code: 401, .. } => UiError::SignedOut,
            ReadError::Refused { request, code, message, .. } => UiError::Refused { request, code, message },
            ReadError::Timeout { request, .. } => UiError::Timeout { request },
            ReadError::ListsInProgress { .. } => UiError::Busy,
            ReadError::Request { request, source } => UiError::Failed { request, cause: chain(&*source) },
            ReadError::Parse { request, source } => UiError::Failed { request, cause: chain(&source) },
            ReadError::TooLarge { request, limit } => {
                UiError::Failed { request, cause: format!("list exceeds the maximum of {limit}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_describes_the_error() {
        let refused = |code| UiError::Refused { request: String::new(), code, message: String::new() };
        let rows = [
            (UiError::SignedOut, 401),
            (UiError::Forged, 403),
            (UiError::UnknownSignIn, 403),
            (refused(403), 403),
            (refused(409), 409),
            (refused(422), 422),
            (refused(500), 502),
            (UiError::TooManySignIns, 429),
            (UiError::TooManyRequests, 429),
        ];
        for (error, expected) in rows {
            assert_eq!(error.status().as_u16(), expected, "{error:?}");
        }
    }

    #[test]
    fn a_rejected_token_ends_the_session() {
        let refused = |code| ReadError::Refused {
            request: "read Stack apps/web".to_owned(),
            code,
            reason: String::new(),
            message: "no".to_owned(),
        };
        assert!(matches!(UiError::from(refused(401)), UiError::SignedOut));
        assert!(UiError::from(refused(403)).is_forbidden());
        assert_eq!(UiError::from(refused(403)).to_string(), "failed to read Stack apps/web: no");
    }

    #[test]
    fn an_error_of_the_storage_does_not_describe_the_storage() {
        let source =
            object_store::Error::NotImplemented { operation: "s3://bucket".to_owned(), implementer: "test".to_owned() };
        let error = UiError::from(HistoryError::List(source));
        assert!(!error.to_string().contains("bucket") && chain(&error).contains("bucket"), "{error}");
    }
}
