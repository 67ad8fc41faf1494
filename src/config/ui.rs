//! Settings of the web UI.

use std::net::SocketAddr;
use std::path::PathBuf;

use url::Url;

use super::history::Invalid;
use crate::cli::UiFlags;

/// Path to which the OIDC issuer redirects the user.
const CALLBACK: &str = "/sign-in/oidc/callback";
/// Scope that requests an ID token.
const OPENID: &str = "openid";

/// Validated settings of the web UI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UiConfig {
    pub address: SocketAddr,
    /// OIDC sign-in settings, if enabled.
    pub oidc: Option<OidcConfig>,
}

/// Validated OIDC sign-in settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// Issuer URL, exactly as in the ID tokens.
    pub issuer: String,
    pub client_id: String,
    /// File that contains the client secret. `None` if the client has no secret.
    pub client_secret_file: Option<PathBuf>,
    /// File with CA certificates that the UI trusts in addition to the system certificates.
    pub ca_file: Option<PathBuf>,
    pub scopes: Vec<String>,
    /// URL to which the issuer redirects the user.
    pub redirect: Url,
}

/// Returns the settings, or `None` if the web UI is disabled.
pub(super) fn of_flags(flags: &UiFlags, address: Option<SocketAddr>) -> Result<Option<UiConfig>, Invalid> {
    let oidc = oidc(flags)?;
    match (address, oidc) {
        (Some(address), oidc) => Ok(Some(UiConfig { address, oidc })),
        (None, None) => Ok(None),
        (None, Some(oidc)) => Err(("ui-oidc-issuer", oidc.issuer, "empty without --ui-addr".to_owned())),
    }
}

fn oidc(flags: &UiFlags) -> Result<Option<OidcConfig>, Invalid> {
    let issuer = flags.ui_oidc_issuer.trim().to_owned();
    if issuer.is_empty() {
        return Ok(None);
    }
    // The controller must not send the ID token or the client secret without encryption.
    let secure = |flag: &'static str, text: &str| {
        let url = Url::parse(text).ok().filter(|url| url.scheme() == "https" && url.has_host());
        url.ok_or_else(|| (flag, text.to_owned(), "an https URL".to_owned()))
    };
    secure("ui-oidc-issuer", &issuer)?;
    let mut redirect = secure("ui-url", flags.ui_url.trim())?;
    if redirect.path() != "/" {
        return Err(("ui-url", flags.ui_url.clone(), "a URL without a path".to_owned()));
    }
    redirect.set_path(CALLBACK);
    redirect.set_query(None);
    redirect.set_fragment(None);
    let client_id = flags.ui_oidc_client_id.trim().to_owned();
    if client_id.is_empty() {
        return Err(("ui-oidc-client-id", client_id, "set together with --ui-oidc-issuer".to_owned()));
    }
    let scopes: Vec<String> = flags.ui_oidc_scopes.iter().map(|scope| scope.trim().to_owned()).collect();
    if !scopes.iter().any(|scope| scope == OPENID) {
        return Err(("ui-oidc-scopes", scopes.join(","), "a list that contains openid".to_owned()));
    }
    let (client_secret_file, ca_file) = (flags.ui_oidc_client_secret_file.clone(), flags.ui_oidc_ca_file.clone());
    Ok(Some(OidcConfig { issuer, client_id, client_secret_file, ca_file, scopes, redirect }))
}
