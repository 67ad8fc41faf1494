//! Components of the web UI, and the user who has sent a request.

use axum::http::HeaderMap;
use axum::response::Response;
use jiff::Timestamp;
use tokio::time::Instant;

use super::directory::Directory;
use super::error::UiError;
use super::live::streams::Streams;
use super::oidc::Oidc;
use super::permissions::Permissions;
use super::request_limits::RequestLimits;
use super::session::{Session, Sessions};
use super::sign_in_limits::SignInLimits;
use super::stored_runs::StoredRuns;
use super::users::{User, Users};

/// Components of the web UI.
pub(super) struct Ui {
    pub(super) users: Users,
    pub(super) sessions: Sessions,
    pub(super) sign_in_limits: SignInLimits,
    /// Rate limits for authorization code exchanges. Each exchange causes requests to the issuer and to the API server.
    pub(super) exchange_limits: SignInLimits,
    pub(super) request_limits: RequestLimits,
    /// OIDC issuer through which users sign in, if OIDC is enabled.
    pub(super) oidc: Option<Oidc>,
    pub(super) permissions: Permissions,
    pub(super) directory: Directory,
    pub(super) stored_runs: StoredRuns,
    pub(super) streams: Streams,
    /// Cluster name in the title of each page. Empty if the cluster has no name.
    pub(super) cluster_name: String,
}

/// Signed-in user of a request.
pub(super) struct Visitor {
    pub(super) user: User,
    pub(super) session: Session,
    /// Token that each form in the session contains.
    pub(super) form_token: String,
}

/// Result of a request.
pub(super) type Answer = Result<Response, UiError>;

impl Ui {
    /// Returns the user of a request.
    ///
    /// # Errors
    /// Returns an error if the request contains no valid session.
    pub(super) fn visitor(&self, headers: &HeaderMap) -> Result<Visitor, UiError> {
        let now = Timestamp::now().as_second();
        let session = self.sessions.open(headers, now).ok_or(UiError::SignedOut)?;
        let user = self.users.with_token(&session.token)?;
        let form_token = self.sessions.form_token(&session);
        Ok(Visitor { user, session, form_token })
    }

    /// Returns whether a request contains a valid session. The API server can still reject the token of the session.
    pub(super) fn has_session(&self, headers: &HeaderMap) -> bool {
        self.sessions.open(headers, Timestamp::now().as_second()).is_some()
    }

    /// Ends a session before its expiry, together with its streams.
    pub(super) fn end_session(&self, session: &Session) {
        // A new stream checks the session after it has a slot. Either this check or the call below therefore ends a
        // stream that the browser opens at the same time.
        self.sessions.end(session, Timestamp::now().as_second());
        self.streams.sign_out(session.id());
    }

    /// Counts a request, and returns whether the rate limit of its user permits the request. A request without a
    /// session has no user. Such a request causes an API server request only during a sign-in, which has its own rate
    /// limit.
    pub(super) fn may_request(&self, headers: &HeaderMap) -> bool {
        let session = self.sessions.open(headers, Timestamp::now().as_second());
        session.is_none_or(|session| self.request_limits.may_request(&session.user, Instant::now()))
    }
}
