//! Settings for artifact downloads, including the allowed hosts.

use std::path::PathBuf;
use std::time::Duration;

use url::{Host, Url};

use super::super::rules::Limits;
use crate::mutual_tls::MutualTls;

/// Settings for fetching artifacts.
#[derive(Clone, Debug)]
pub struct FetchSettings {
    /// Hosts from which the controller may fetch artifacts.
    pub allowed_hosts: AllowedHosts,
    /// Host and port that replace the host and port in all URLs except source-watcher URLs. A controller that runs
    /// outside the cluster requires this setting. The Flux controllers read this setting from the environment variable
    /// `SOURCE_CONTROLLER_LOCALHOST`.
    pub source_controller_host: Option<String>,
    /// Host and port that replace the host and port in source-watcher URLs. The Flux controllers read this setting from
    /// the environment variable `SOURCE_WATCHER_LOCALHOST`.
    pub source_watcher_host: Option<String>,
    /// PEM file with the CA certificates that the client uses to verify HTTPS servers. Default: the system
    /// certificates.
    pub certificate_authorities: Option<PathBuf>,
    /// Settings of SPIFFE mutual TLS, which then replaces HTTP and other HTTPS connections. Default: no mutual TLS.
    pub mutual_tls: Option<MutualTls>,
    /// Whether a namespace may fetch an artifact from Flux storage only if the artifact's source is in the same
    /// namespace. Default: false.
    pub own_namespace_only: bool,
    /// Maximum size of a download in bytes. Default: 256 MiB.
    pub download_bytes: u64,
    /// Timeout for opening a connection. Default: 5 s.
    pub connect_timeout: Duration,
    /// Timeout for each read from the connection. Default: 30 s.
    pub idle_timeout: Duration,
    /// Timeout for a whole download. Default: 4 min. The default is shorter than the reconciliation timeout, so that
    /// the reconciliation can report a download timeout.
    pub overall_timeout: Duration,
}

impl FetchSettings {
    /// Returns the default settings with `allowed_hosts`.
    pub fn new(allowed_hosts: AllowedHosts) -> Self {
        Self {
            allowed_hosts,
            source_controller_host: None,
            source_watcher_host: None,
            certificate_authorities: None,
            mutual_tls: None,
            own_namespace_only: false,
            download_bytes: Limits::default().download_bytes,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            overall_timeout: Duration::from_secs(240),
        }
    }

    /// Returns the configured replacement for the host of `url`. Flux uses the same rule.
    pub(super) fn replacement(&self, url: &Url) -> Option<&str> {
        let watcher = url.host_str().is_some_and(|host| host.starts_with("source-watcher"));
        if watcher { self.source_watcher_host.as_deref() } else { self.source_controller_host.as_deref() }
    }
}

/// Hosts from which the controller may fetch artifacts. A user who can write a source's status controls the artifact
/// URL. The restriction to these hosts prevents such a user from directing requests to services that only the
/// controller can reach.
///
/// The allowed hosts are the Services of one namespace and explicitly listed hosts.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts {
    services: Option<Services>,
    named: Vec<NamedHost>,
}

#[derive(Clone, Debug)]
struct Services {
    namespace: String,
    cluster_domain: String,
}

#[derive(Clone, Debug)]
struct NamedHost {
    host: Host,
    /// `None` allows any port.
    port: Option<u16>,
}

/// The error for a string that is not a host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid artifact host {text:?}: must be a host name or address, optionally with a port: {why}")]
pub struct InvalidHost {
    pub text: String,
    pub why: String,
}

impl AllowedHosts {
    /// Returns a list that allows no hosts.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns a list that allows the Services in `namespace` on any port. Accepts the forms `<service>.<namespace>`,
    /// `<service>.<namespace>.svc` and `<service>.<namespace>.svc.<cluster domain>`, with or without a trailing dot.
    /// The cluster domain is usually `cluster.local`.
    pub fn services_of(namespace: &str, cluster_domain: &str) -> Self {
        let services = Services {
            namespace: namespace.to_lowercase(),
            cluster_domain: cluster_domain.trim_matches('.').to_lowercase(),
        };
        Self { services: Some(services), named: Vec::new() }
    }

    /// Allows an additional host: `name`, `name:port`, `address` or `[address]:port`. If `text` contains no port,
    /// allows every port.
    ///
    /// # Errors
    /// Fails if `text` is not a host.
    pub fn and(mut self, text: &str) -> Result<Self, InvalidHost> {
        let (host, port) = split_port(text)?;
        self.named.push(NamedHost { host, port });
        Ok(self)
    }

    /// Returns the host to connect to, or `None` if the URL is not allowed. Expands a short Service name to a fully
    /// qualified name. Without this expansion, the DNS search list would determine the target. A name such as
    /// `service.dev` could then resolve to a host on the Internet.
    pub(super) fn permit(&self, url: &Url) -> Option<String> {
        let host = without_dot(url.host()?.to_owned());
        let named = self
            .named
            .iter()
            .find(|named| named.host == host && (named.port.is_none() || named.port == url.port_or_known_default()));
        if named.is_some() {
            return url.host_str().map(str::to_owned);
        }
        let Host::Domain(domain) = host else { return None };
        self.services.as_ref().and_then(|services| services.complete(&domain))
    }
}

impl AllowedHosts {
    /// Returns whether the host of the URL is a Service in the allowed namespace.
    pub(super) fn is_service(&self, url: &Url) -> bool {
        let Some(Host::Domain(domain)) = url.host().map(|host| without_dot(host.to_owned())) else { return false };
        self.services.as_ref().is_some_and(|services| services.complete(&domain).is_some())
    }
}

impl Services {
    fn complete(&self, domain: &str) -> Option<String> {
        let (service, rest) = domain.split_once('.')?;
        let rest = rest.strip_suffix(&format!(".svc.{}", self.cluster_domain)).unwrap_or(rest);
        let namespace = rest.strip_suffix(".svc").unwrap_or(rest);
        let is_name = !service.is_empty() && service.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (is_name && namespace == self.namespace).then(|| format!("{service}.{namespace}.svc.{}.", self.cluster_domain))
    }
}

/// Splits `host:port`, the format in which users specify host replacements and allowed hosts. The port is optional.
pub(super) fn split_port(text: &str) -> Result<(Host, Option<u16>), InvalidHost> {
    let invalid = |why: &str| InvalidHost { text: text.to_owned(), why: why.to_owned() };
    let (name, port) = match text.rsplit_once(':') {
        // An IPv6 address without brackets contains no port, because its colons are part of the address.
        Some((name, port)) if !port.contains(']') && (name.starts_with('[') || !name.contains(':')) => {
            let port = port.parse().map_err(|_| invalid("port must be a number from 0 to 65535"))?;
            (name, Some(port))
        }
        _ => (text, None),
    };
    if name.is_empty() {
        return Err(invalid("name must not be empty"));
    }
    let bracketed = if name.contains(':') && !name.starts_with('[') { format!("[{name}]") } else { name.to_owned() };
    let host = Host::parse(&bracketed).map_err(|cause| invalid(&cause.to_string()))?;
    Ok((without_dot(host), port))
}

fn without_dot(host: Host<impl Into<String>>) -> Host {
    match host {
        Host::Domain(domain) => {
            let domain: String = domain.into();
            Host::Domain(domain.strip_suffix('.').unwrap_or(&domain).to_lowercase())
        }
        Host::Ipv4(address) => Host::Ipv4(address),
        Host::Ipv6(address) => Host::Ipv6(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permitted(hosts: &AllowedHosts, url: &str) -> Option<String> {
        hosts.permit(&Url::parse(url).unwrap())
    }

    #[test]
    fn every_form_of_a_service_host_is_allowed_and_fully_qualified() {
        let hosts = AllowedHosts::services_of("flux-system", "cluster.local");
        for url in [
            "http://source-controller.flux-system/a",
            "http://source-controller.flux-system./a",
            "http://source-controller.flux-system.svc/a",
            "http://source-controller.flux-system.svc./a",
            "http://source-controller.flux-system.svc.cluster.local/a",
            "http://source-controller.flux-system.svc.cluster.local./a",
            "http://Source-Controller.Flux-System.SVC:9090/a",
            "https://source-controller.flux-system.svc.cluster.local.:8443/a",
        ] {
            let completed = Some("source-controller.flux-system.svc.cluster.local.".to_owned());
            assert_eq!(permitted(&hosts, url), completed, "{url}");
        }
    }

    #[test]
    fn hosts_other_than_services_of_the_namespace_are_rejected() {
        let hosts = AllowedHosts::services_of("flux-system", "cluster.local");
        for url in [
            "http://kubernetes.default.svc/a",
            "http://source-controller.flux-system.svc.other.domain/a",
            "http://source-controller.flux-system.example.com/a",
            "http://flux-system.svc.cluster.local/a",
            "http://pod.source-controller.flux-system.svc.cluster.local/a",
            "http://.flux-system/a",
            "http://flux-system/a",
            "http://source-controller.flux-system.svc.cluster.local../a",
            "http://10.0.0.1/a",
            "http://[::1]/a",
            "http://localhost/a",
            "http://169.254.169.254/latest/meta-data",
        ] {
            assert_eq!(permitted(&hosts, url), None, "{url}");
            assert_eq!(permitted(&AllowedHosts::none(), url), None, "{url}");
        }
    }

    #[test]
    fn an_allowed_host_without_a_port_is_allowed_on_any_port() {
        let hosts = AllowedHosts::none().and("artifacts.example.com").unwrap();
        let hosts = hosts.and("127.0.0.1:8080").unwrap().and("[::1]:80").unwrap().and("::2").unwrap();
        for (url, host) in [
            ("http://artifacts.example.com/a", "artifacts.example.com"),
            ("https://ARTIFACTS.example.com.:444/a", "artifacts.example.com."),
            ("http://127.0.0.1:8080/a", "127.0.0.1"),
            ("http://[::1]/a", "[::1]"),
            ("http://[::2]:1234/a", "[::2]"),
        ] {
            assert_eq!(permitted(&hosts, url).as_deref(), Some(host), "{url}");
        }
        for url in ["http://127.0.0.1/a", "http://[::1]:81/a", "https://[::1]/a", "http://x.artifacts.example.com/a"] {
            assert_eq!(permitted(&hosts, url), None, "{url}");
        }
    }

    #[test]
    fn an_invalid_allowed_host_is_rejected() {
        for text in ["", ":80", "a b", "host:http", "host:70000", "http://host", "host/path"] {
            let error = AllowedHosts::none().and(text).expect_err(text);
            assert_eq!(error.text, text);
        }
    }
}
