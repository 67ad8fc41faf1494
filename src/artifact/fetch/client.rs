//! The HTTP client for artifact downloads.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::error::FetchError;
use super::settings::FetchSettings;

/// Path of the system certificates on Linux distributions.
const SYSTEM_CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Builds a client without redirects, which could bypass the allowed hosts, and without a proxy, because artifacts are served
/// inside the cluster.
pub(super) fn build(settings: &FetchSettings) -> Result<reqwest::Client, FetchError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls(settings)?)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(settings.connect_timeout)
        .user_agent(concat!("pulumi-controller/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|cause| FetchError::Settings { why: cause.to_string() })
}

fn tls(settings: &FetchSettings) -> Result<rustls::ClientConfig, FetchError> {
    let failed = |cause: rustls::Error| FetchError::Settings { why: cause.to_string() };
    let mut roots = rustls::RootCertStore::empty();
    match &settings.certificate_authorities {
        Some(path) => {
            let (_, refused) = roots.add_parsable_certificates(read(path)?);
            if refused > 0 || roots.is_empty() {
                let why = format!("no certificates in {}, or invalid ones ({refused})", path.display());
                return Err(FetchError::Settings { why });
            }
        }
        // Certificates are optional in the image, because Flux serves artifacts over http.
        None => {
            roots.add_parsable_certificates(read(Path::new(SYSTEM_CERTIFICATES)).unwrap_or_default());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, FetchError> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    certificates.map_err(|cause| FetchError::Settings {
        why: format!("failed to read the certificate authorities in {}: {cause}", path.display()),
    })
}
