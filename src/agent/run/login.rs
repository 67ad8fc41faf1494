//! Logs a run in to Pulumi Cloud with the pod's ServiceAccount token. The CLI exchanges this token for an access token,
//! and stores the access token in its credentials file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use zeroize::Zeroizing;

use super::operation_result;
use crate::agent::command::CallError;
use crate::agent::credentials::{self, AccessToken};
use crate::agent::environment::Environment;
use crate::pulumi::arguments::{self, OidcLogin};
use crate::pulumi::backend::{self, TOKEN_VARIABLE};
use crate::pulumi::cli::{CREDENTIAL_HELPER, NO_CREDENTIAL_HELPER};
use crate::pulumi::console;
use crate::pulumi::failure::exit::Exit;
use crate::pulumi::failure::{self, Failure};
use crate::pulumi::oidc;
use crate::pulumi::run_summary::RunSummary;
use crate::rpc::proto;

/// Minimum CLI version that can exchange a ServiceAccount token for an access token.
const OLDEST_WITH_OIDC: &str = "3.209.0";
/// Error that the CLI prints if its version cannot exchange tokens.
const UNKNOWN_FLAG: &str = "unknown flag: --oidc-token";
/// Maximum size of a ServiceAccount token in bytes.
const MAX_TOKEN: u64 = 64 * 1024;

/// Reason why a login failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    #[error(
        "spec.pulumiCloudOIDC is set, but the environment also contains PULUMI_ACCESS_TOKEN: remove one of them from the \
         spec"
    )]
    TokenInEnvironment,
    #[error(
        "spec.pulumiCloudOIDC is set, but the state backend {url} is not Pulumi Cloud: remove the field or change the backend"
    )]
    OtherBackend { url: String },
    #[error("failed to read the ServiceAccount token in {file}: {error}")]
    Token { file: String, error: io::Error },
    #[error("Pulumi Cloud rejected the ServiceAccount token ({claims}): {reason}")]
    Rejected { claims: String, reason: String },
    #[error(
        "spec.pulumiCloudOIDC requires version {OLDEST_WITH_OIDC} or later of the Pulumi CLI, and the image has version \
         {found}: set spec.image (spec.workspaceTemplate.spec.image of a Stack) to a newer image"
    )]
    CliTooOld { found: String },
    #[error("failed to log in to Pulumi Cloud: {}", .0.message)]
    Failed(Failure),
    #[error("failed to log in to Pulumi Cloud: {0}")]
    Call(#[from] CallError),
}

impl LoginError {
    /// Returns whether the login stopped because the run was canceled.
    pub(super) fn is_cancellation(&self) -> bool {
        matches!(self, LoginError::Call(CallError::Canceled))
    }

    /// Returns the outcome for an operation that cannot log in.
    pub(super) fn outcome(&self) -> proto::Outcome {
        match self {
            LoginError::Rejected { .. } => proto::Outcome::InvalidAccessToken,
            LoginError::Failed(failure) => operation_result::outcome(&failure.kind, false),
            _ => proto::Outcome::Failed,
        }
    }
}

/// Period during which the access token must be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Period {
    /// The complete run.
    Run,
    /// Next CLI call.
    Call,
}

/// Account of an access token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Account {
    url: String,
    organization: String,
    team: String,
    user: String,
}

/// Access token, with its start and expiration times in seconds since the Unix epoch.
struct Session {
    account: Account,
    /// `None` if the agent cannot read the credentials file, for example because the CLI has encrypted the file.
    token: Option<Zeroizing<String>>,
    started: i64,
    expires: i64,
}

impl Session {
    /// Returns whether a new login must replace the access token before a period of `seconds` seconds.
    ///
    /// Returns `true` if the token expires before the end of the period, or if at most a fifth of the token lifetime
    /// remains. Returns `false` if more than four fifths of the lifetime remain, because a new token would not be valid
    /// for much longer.
    fn is_due(&self, seconds: i64, now: i64) -> bool {
        let fifth = self.expires.saturating_sub(self.started).max(0) / 5;
        self.expires.saturating_sub(now) <= seconds.min(4 * fifth).max(fifth)
    }

    fn is_valid(&self, now: i64) -> bool {
        now < self.expires
    }
}

/// Last login of the agent. Later runs reuse the access token of this login.
#[derive(Clone, Default)]
pub struct LastLogin(Arc<Mutex<Option<Session>>>);

/// Login of a run.
pub struct Login {
    request: proto::OidcLogin,
    timeout_seconds: u64,
    last: LastLogin,
    /// Tokens that the agent redacts.
    secrets: Mutex<Vec<Zeroizing<String>>>,
}

impl Login {
    /// Creates the login of a run. A timeout of 0 means that the run has no timeout.
    pub fn new(request: proto::OidcLogin, timeout_seconds: u64, last: LastLogin) -> Self {
        Login { request, timeout_seconds, last, secrets: Mutex::default() }
    }

    /// Returns the tokens that the agent must redact.
    pub(super) fn secrets(&self) -> Vec<Zeroizing<String>> {
        lock(&self.secrets).clone()
    }

    /// Returns whether the run must log in before `period`. `url` is the URL of the state backend.
    ///
    /// # Errors
    ///
    /// Returns an error if the run cannot log in.
    pub(super) fn is_due(&self, url: &str, environment: &Environment, period: Period) -> Result<bool, LoginError> {
        if environment.get(TOKEN_VARIABLE).is_some() {
            return Err(LoginError::TokenInEnvironment);
        }
        if backend::is_self_managed(url) {
            return Err(LoginError::OtherBackend { url: url.to_owned() });
        }
        let seconds = match (period, self.timeout_seconds) {
            (Period::Call, _) => 0,
            (Period::Run, 0) => i64::MAX,
            (Period::Run, timeout) => i64::try_from(timeout).unwrap_or(i64::MAX),
        };
        let now = Timestamp::now().as_second();
        Ok(self.session(url, environment, |session| session.is_due(seconds, now)).unwrap_or(true))
    }

    /// Returns whether the access token of an earlier login is still valid.
    pub(super) fn is_valid(&self, url: &str, environment: &Environment) -> bool {
        let now = Timestamp::now().as_second();
        self.session(url, environment, |session| session.is_valid(now)).unwrap_or_default()
    }

    /// Reads a property of the last login. Returns `None` if the last login was for another account, or if the
    /// credentials file now contains a different access token. The token differs if a user has logged in or out since
    /// the last login.
    fn session<T>(&self, url: &str, environment: &Environment, read: impl FnOnce(&Session) -> T) -> Option<T> {
        let stored = stored_token(url, environment).map(|stored| stored.token);
        let last = lock(&self.last.0);
        let session =
            last.as_ref().filter(|session| session.account == self.account(url) && session.token == stored)?;
        // The access token can be from an earlier run.
        self.hide(stored);
        Some(read(session))
    }

    /// Reads the ServiceAccount token, and registers the token for redaction. Returns a description of the token, and
    /// the arguments of the CLI call that logs in.
    pub(super) fn begin(&self, url: &str) -> Result<(String, Vec<OsString>), LoginError> {
        let file = self.request.token_file.as_str();
        let token = read_token(file).map_err(|error| LoginError::Token { file: file.to_owned(), error })?;
        let claims = oidc::describe_claims(&token).unwrap_or_else(|| "the file contains no JSON Web Token".to_owned());
        self.hide(Some(token));
        let proto::OidcLogin { organization, team, user, expiration_seconds, .. } = &self.request;
        let login =
            OidcLogin { url, token_file: file, organization, team, user, expiration_seconds: *expiration_seconds };
        Ok((claims, arguments::oidc_login(&login)))
    }

    /// Records a successful login. `started` is the time at which the login started, in seconds since the Unix epoch.
    pub(super) fn finish(&self, url: &str, environment: &Environment, started: i64) {
        let stored = stored_token(url, environment);
        let requested = i64::try_from(self.request.expiration_seconds).unwrap_or(i64::MAX);
        let expires = stored.as_ref().and_then(|stored| stored.expires).map(Timestamp::as_second);
        let expires = expires.unwrap_or_else(|| started.saturating_add(requested));
        let token = stored.map(|stored| stored.token);
        self.hide(token.clone());
        tracing::info!(url, organization = self.request.organization, expires, "logged in to Pulumi Cloud");
        *lock(&self.last.0) = Some(Session { account: self.account(url), token, started, expires });
    }

    fn account(&self, url: &str) -> Account {
        let proto::OidcLogin { organization, team, user, .. } = self.request.clone();
        Account { url: url.to_owned(), organization, team, user }
    }

    fn hide(&self, token: Option<Zeroizing<String>>) {
        let mut secrets = lock(&self.secrets);
        let token = token.filter(|token| !secrets.contains(token));
        secrets.extend(token);
    }
}

/// Prevents the CLI from using a credential helper that it finds in the image, because a login with a ServiceAccount
/// token then fails. A variable of the user takes precedence.
pub fn disable_credential_helper(environment: &mut Environment) {
    if environment.get(CREDENTIAL_HELPER).is_none() {
        environment.variables.insert(CREDENTIAL_HELPER.into(), NO_CREDENTIAL_HELPER.into());
    }
}

/// Returns whether the CLI is too old to exchange tokens.
pub(super) fn is_unsupported(stderr: &str) -> bool {
    stderr.contains(UNKNOWN_FLAG)
}

/// Returns the reason why a login failed. `claims` describes the ServiceAccount token.
pub(super) fn login_error(claims: String, exit: Exit, stdout: &str, stderr: &str) -> LoginError {
    match oidc::rejection(stderr) {
        Some(reason) => LoginError::Rejected { claims, reason: console::for_display(&reason) },
        None => LoginError::Failed(failure::classify(exit, stdout, stderr, &RunSummary::default())),
    }
}

fn stored_token(url: &str, environment: &Environment) -> Option<AccessToken> {
    credentials::read(&environment.variables)?.access_token(url)
}

fn read_token(file: &str) -> io::Result<Zeroizing<String>> {
    let mut token = Zeroizing::new(String::new());
    File::open(file)?.take(MAX_TOKEN).read_to_string(&mut token)?;
    Ok(token)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const URL: &str = "https://api.pulumi.com";

    #[test]
    fn an_access_token_is_replaced_before_it_expires() {
        let session = Session { account: Account::default(), token: None, started: 1000, expires: 2000 };
        // Each row contains the current time, the length of the period in seconds, and whether a login is due.
        let rows = [
            (1000, 0, false),
            (1799, 0, false),
            (1800, 0, true),
            (2500, 0, true),
            (1000, 500, false),
            (1499, 500, false),
            (1500, 500, true),
            (1199, i64::MAX, false),
            (1200, i64::MAX, true),
        ];
        for (now, seconds, expected) in rows {
            assert_eq!(session.is_due(seconds, now), expected, "{seconds} s at {now}");
        }
        let expired = Session { expires: 900, ..session };
        assert!(expired.is_due(0, 1000) && !expired.is_valid(1000), "issued with an expiration in the past");
        assert!(expired.is_valid(899));
    }

    fn environment(home: &Path, more: &[(&str, &str)]) -> Environment {
        let mut environment = Environment::default();
        environment.variables.insert("PULUMI_HOME".into(), home.into());
        environment.variables.extend(more.iter().map(|(name, value)| (name.into(), value.into())));
        environment
    }

    fn store(home: &Path, token: &str, expires: Timestamp) {
        let account = format!(r#"{{"accessToken": "{token}", "tokenInformation": {{"expiresAt": "{expires}"}}}}"#);
        let text = format!(r#"{{"current": "{URL}", "accounts": {{"{URL}": {account}}}}}"#);
        std::fs::write(home.join("credentials.json"), text).unwrap();
    }

    fn login(token_file: &Path, team: &str, timeout_seconds: u64, last: &LastLogin) -> Login {
        let request = proto::OidcLogin {
            organization: "acme".into(),
            team: team.into(),
            token_file: token_file.to_str().unwrap().into(),
            expiration_seconds: 7200,
            ..proto::OidcLogin::default()
        };
        Login::new(request, timeout_seconds, last.clone())
    }

    fn in_hours(hours: i64) -> Timestamp {
        Timestamp::from_second(Timestamp::now().as_second() + hours * 3600).unwrap()
    }

    #[test]
    fn later_runs_use_the_stored_access_token_until_another_user_logs_in() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("token");
        std::fs::write(&file, "e30.e30.c2lnbmF0dXJl\n").unwrap();
        let (last, environment) = (LastLogin::default(), environment(home.path(), &[]));
        let first = login(&file, "", 3600, &last);
        assert!(first.is_due(URL, &environment, Period::Run).unwrap());
        let (_, arguments) = first.begin(URL).unwrap();
        assert!(arguments.contains(&OsString::from(format!("--oidc-token=file://{}", file.display()))));
        store(home.path(), "pul-1", in_hours(2));
        first.finish(URL, &environment, Timestamp::now().as_second());
        let shown: Vec<String> = first.secrets().iter().map(|secret| secret.trim().to_owned()).collect();
        assert_eq!(shown, ["e30.e30.c2lnbmF0dXJl", "pul-1"]);

        let second = login(&file, "", 3600, &last);
        assert!(!second.is_due(URL, &environment, Period::Run).unwrap() && second.is_valid(URL, &environment));
        assert_eq!(second.secrets().len(), 1, "the access token is redacted");
        let is_due = |login: &Login, url: &str| login.is_due(url, &environment, Period::Call).unwrap();
        assert!(!is_due(&second, URL));
        assert!(is_due(&second, "https://pulumi.example.com"), "another backend");
        assert!(is_due(&login(&file, "platform", 3600, &last), URL), "another team");
        store(home.path(), "pul-2", in_hours(2));
        assert!(is_due(&second, URL), "a user has logged in");
        std::fs::remove_file(home.path().join("credentials.json")).unwrap();
        assert!(is_due(&second, URL) && !second.is_valid(URL, &environment), "a user has logged out");
    }

    #[test]
    fn a_rejected_token_is_distinguished_from_other_failures() {
        let exchange = "error: could not log in to the state backend \"u\": OIDC token exchange failed: ";
        let rows = [
            (r#"{"code":401,"message":"no policy"}"#, true, "token (issuer \"i\"): no policy"),
            (r#"{"code":500,"message":"down"}"#, false, "failed to log in to Pulumi Cloud: "),
            ("Post \"https://api\": no such host", false, "no such host"),
        ];
        let exit = Exit { code: Some(1), signal: None };
        for (body, is_rejected, text) in rows {
            let error = login_error("issuer \"i\"".into(), exit, "", &format!("{exchange}{body}\n"));
            assert_eq!(error.outcome() == proto::Outcome::InvalidAccessToken, is_rejected, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
        let home = tempfile::tempdir().unwrap();
        let login = login(&home.path().join("missing"), "", 0, &LastLogin::default());
        let error = login.begin(URL).unwrap_err();
        assert!(error.to_string().contains("missing: No such file"), "{error}");
        assert_eq!(error.outcome(), proto::Outcome::Failed);
    }

    #[test]
    fn a_login_requires_pulumi_cloud_and_no_other_access_token() {
        let home = tempfile::tempdir().unwrap();
        let login = login(&home.path().join("token"), "", 0, &LastLogin::default());
        let with = |url: &str, token: &str| {
            let environment = environment(home.path(), &[(TOKEN_VARIABLE, token)]);
            login.is_due(url, &environment, Period::Run).map_err(|error| error.to_string())
        };
        assert_eq!(with(URL, ""), Ok(true));
        assert!(with(URL, "pul-1").unwrap_err().contains("PULUMI_ACCESS_TOKEN"));
        assert!(with("s3://state", "").unwrap_err().contains("s3://state is not Pulumi Cloud"));
    }
}
