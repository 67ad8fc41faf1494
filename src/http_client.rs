//! Settings of HTTP clients for servers outside the cluster: proxies, and CA certificates that a client trusts in
//! addition to the system certificates.

pub mod addresses;

use std::fmt;
use std::sync::Arc;

use reqwest::{Client, ClientBuilder, NoProxy, Proxy};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use url::Url;

/// Path of the system CA certificates on common Linux distributions.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Reason why a client cannot trust the given CA certificates.
#[derive(Debug, thiserror::Error)]
#[error("invalid certificate authorities: {0}")]
pub struct InvalidAuthorities(String);

/// The proxies that the controller's environment variables specify. A child process has no environment variables, so
/// the controller passes the proxies in the request.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    all: Option<String>,
    not_for: Option<String>,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies").finish_non_exhaustive()
    }
}

impl Proxies {
    /// Returns the proxies that the environment variables of this process specify.
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Returns the proxies that variables specify. `get` returns the value of a variable.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let either = |name: &str| get(name).or_else(|| get(&name.to_lowercase()));
        Self {
            http: either("HTTP_PROXY"),
            https: either("HTTPS_PROXY"),
            all: either("ALL_PROXY"),
            not_for: either("NO_PROXY"),
        }
    }

    /// Returns the host names of the proxies.
    pub fn hosts(&self) -> Vec<String> {
        let given = [&self.http, &self.https, &self.all].into_iter().flatten();
        let parsed = given.filter_map(|text| {
            let url = Url::parse(text).ok().filter(Url::has_host);
            url.or_else(|| Url::parse(&format!("http://{text}")).ok())?.host_str().map(str::to_owned)
        });
        parsed.collect()
    }

    /// Returns the proxies in the HTTP client's format. Ignores invalid URLs.
    fn list(&self) -> Vec<Proxy> {
        let proxies = [
            self.http.as_ref().map(Proxy::http),
            self.https.as_ref().map(Proxy::https),
            self.all.as_ref().map(Proxy::all),
        ];
        let not_for = self.not_for.as_deref().and_then(NoProxy::from_string);
        proxies.into_iter().flatten().flatten().map(|proxy| proxy.no_proxy(not_for.clone())).collect()
    }
}

/// Returns the builder of a client that uses the proxies, and trusts the system certificates and `authorities`, which
/// are certificates in PEM format.
///
/// # Errors
/// Returns an error if one of the `authorities` contains no valid certificate.
pub fn builder(authorities: &[String], proxies: &Proxies) -> Result<ClientBuilder, InvalidAuthorities> {
    let builder = Client::builder().no_proxy().tls_backend_preconfigured(tls(authorities)?);
    Ok(proxies.list().into_iter().fold(builder, ClientBuilder::proxy))
}

fn tls(authorities: &[String]) -> Result<rustls::ClientConfig, InvalidAuthorities> {
    let mut roots = rustls::RootCertStore::empty();
    let system = CertificateDer::pem_file_iter(SYSTEM_CERTIFICATES).map(|found| found.flatten().collect::<Vec<_>>());
    roots.add_parsable_certificates(system.unwrap_or_default());
    for text in authorities {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        let found = found.map_err(|error| InvalidAuthorities(error.to_string()))?;
        let (added, _) = roots.add_parsable_certificates(found);
        if added == 0 {
            return Err(InvalidAuthorities("no certificate in PEM format found".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| InvalidAuthorities(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variables_of_proxies_have_upper_or_lower_case_names() {
        let of = |variables: &[(&str, &str)]| {
            let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            let get = |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| value.clone());
            let proxies = Proxies::from_variables(get);
            (proxies.hosts(), proxies.list().len(), proxies.not_for)
        };
        let hosts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let rows: [(&[(&str, &str)], &[&str], Option<&str>); 5] = [
            (&[], &[], None),
            (&[("HTTPS_PROXY", ""), ("NO_PROXY", "")], &[], None),
            (&[("HTTPS_PROXY", "http://a:3128"), ("NO_PROXY", ".svc")], &["a"], Some(".svc")),
            (&[("http_proxy", "a:3128"), ("https_proxy", "b"), ("no_proxy", "c")], &["a", "b"], Some("c")),
            (&[("ALL_PROXY", "http://a"), ("all_proxy", "http://b")], &["a"], None),
        ];
        for (variables, expected, not_for) in rows {
            let (found, count, found_not_for) = of(variables);
            assert_eq!((&found, count), (&hosts(expected), expected.len()), "{variables:?}");
            assert_eq!(found_not_for.as_deref(), not_for, "{variables:?}");
        }
    }

    #[test]
    fn authorities_without_a_certificate_are_rejected() {
        let of = |text: &str| builder(&[text.to_owned()], &Proxies::default()).map(|_| ()).unwrap_err().to_string();
        assert_eq!(of("no certificate"), "invalid certificate authorities: no certificate in PEM format found");
        let cut = of("-----BEGIN CERTIFICATE-----\nAAAA\n");
        assert!(cut.starts_with("invalid certificate authorities: "), "{cut}");
        assert!(builder(&[], &Proxies::default()).is_ok());
    }
}
