//! Converts the artifact URL from a source's status into the request URL and the `Host` header.

use percent_encoding::percent_decode_str;
use url::Url;

use super::super::quote::quoted;
use super::error::FetchError;
use super::settings::{FetchSettings, split_port};

/// Maximum length of a URL, in bytes.
const MAX_URL: usize = 4096;

/// A validated URL.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// URL of the request.
    pub(super) url: Url,
    /// Value of the `Host` header. The value has no trailing dot, because only the DNS resolver needs a trailing dot.
    pub(super) host: String,
    /// URL for messages: the source URL without the user name, password and query, because these parts can be secret.
    pub(super) shown: String,
    /// Namespace of the artifact's source, if the URL path contains the namespace.
    owner: Option<String>,
}

impl Target {
    /// Validates a URL, expands its host to a fully qualified name, and applies the host replacements from the
    /// settings.
    pub(super) fn resolve(text: &str, settings: &FetchSettings) -> Result<Self, FetchError> {
        let (mut url, shown) = parse(text)?;
        let refused = |why: &str| FetchError::Url { url: shown.clone(), why: why.to_owned() };
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refused("scheme must be http or https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refused("must not contain a user name or password"));
        }
        let is_storage = settings.allowed_hosts.is_service(&url) || is_flux_storage(&url);
        let Some(host) = settings.allowed_hosts.permit(&url) else {
            let host = url.host_str().unwrap_or("no host").to_owned();
            return Err(FetchError::RefusedHost { url: shown, host });
        };
        url.set_host(Some(&host)).map_err(|cause| refused(&cause.to_string()))?;
        if let Some(replacement) = settings.replacement(&url) {
            replace_host(&mut url, replacement).map_err(|why| refused(&why))?;
        }
        url.set_fragment(None);
        let name = url.host_str().unwrap_or_default();
        let name = name.strip_suffix('.').unwrap_or(name);
        let host = url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        let owner = if is_storage { owner(&url) } else { None };
        Ok(Self { url, host, shown, owner })
    }

    /// Returns an error if the path belongs to a source outside `namespace` and the settings forbid cross-namespace
    /// references.
    pub(super) fn check_owner(&self, namespace: &str, settings: &FetchSettings) -> Result<(), FetchError> {
        match &self.owner {
            Some(owner) if settings.own_namespace_only && owner != namespace => {
                Err(FetchError::ForeignArtifact { url: self.shown.clone(), namespace: namespace.to_owned() })
            }
            _ => Ok(()),
        }
    }
}

/// First segments that a path in Flux storage can have: the source kinds. The next two segments are the namespace and
/// the name of the source.
const STORED_KINDS: [&str; 6] =
    ["bucket", "externalartifact", "gitrepository", "helmchart", "helmrepository", "ocirepository"];

/// Returns whether the host is the Service of a Flux artifact server, in any namespace.
fn is_flux_storage(url: &Url) -> bool {
    let service = url.host_str().and_then(|host| host.split('.').next()).unwrap_or_default();
    matches!(service, "source-controller" | "source-watcher")
}

/// Returns the namespace of the source that produced an artifact in Flux storage. Decodes and normalizes the URL path
/// in the same way as the artifact server.
fn owner(url: &Url) -> Option<String> {
    let path = percent_decode_str(url.path()).decode_utf8_lossy();
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    match parts.as_slice() {
        [kind, namespace, _, ..] if STORED_KINDS.contains(kind) => Some((*namespace).to_owned()),
        _ => None,
    }
}

fn parse(text: &str) -> Result<(Url, String), FetchError> {
    // Removes the text before an "@" and after a "?", because even an invalid URL can contain secrets in these parts.
    let hidden = || {
        let host_and_more = text.rsplit('@').next().unwrap_or_default();
        quoted(host_and_more.split('?').next().unwrap_or_default())
    };
    if text.len() > MAX_URL {
        let why = format!("must not exceed {MAX_URL} bytes, but has {}", text.len());
        return Err(FetchError::Url { url: hidden(), why });
    }
    let url = Url::parse(text).map_err(|cause| FetchError::Url { url: hidden(), why: cause.to_string() })?;
    let Some(host) = url.host_str() else {
        return Err(FetchError::Url { url: hidden(), why: "must have a host".to_owned() });
    };
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let shown = format!("{}://{host}{port}{}", url.scheme(), url.path());
    Ok((url, shown))
}

fn replace_host(url: &mut Url, replacement: &str) -> Result<(), String> {
    let (host, port) = split_port(replacement).map_err(|error| error.to_string())?;
    url.set_host(Some(&host.to_string())).map_err(|cause| cause.to_string())?;
    url.set_port(port).map_err(|()| format!("failed to replace its host with {replacement}"))
}

#[cfg(test)]
mod tests {
    use super::super::settings::AllowedHosts;
    use super::*;

    fn settings() -> FetchSettings {
        FetchSettings::new(AllowedHosts::services_of("flux-system", "cluster.local").and("localhost").unwrap())
    }

    #[test]
    fn the_host_is_qualified_and_its_header_has_no_trailing_dot() {
        let file = "/gitrepository/flux-system/app/sha256:0a1b.tar.gz";
        let table = [
            (
                format!("http://source-controller.flux-system.svc.cluster.local.{file}"),
                format!("http://source-controller.flux-system.svc.cluster.local.{file}"),
                "source-controller.flux-system.svc.cluster.local",
            ),
            (
                format!("http://source-controller.flux-system:9090{file}#part"),
                format!("http://source-controller.flux-system.svc.cluster.local.:9090{file}"),
                "source-controller.flux-system.svc.cluster.local:9090",
            ),
            (format!("https://localhost:443{file}?a=b"), format!("https://localhost{file}?a=b"), "localhost"),
        ];
        for (text, url, host) in table {
            let target = Target::resolve(&text, &settings()).unwrap();
            assert_eq!((target.url.as_str(), target.host.as_str()), (url.as_str(), host), "{text}");
        }
    }

    #[test]
    fn the_artifact_host_is_replaced_as_in_flux() {
        let settings = FetchSettings {
            source_controller_host: Some("localhost:8080".to_owned()),
            source_watcher_host: Some("127.0.0.1".to_owned()),
            ..settings()
        };
        let table = [
            ("http://source-controller.flux-system.svc.cluster.local./a", "http://localhost:8080/a", "localhost:8080"),
            ("http://source-controller.flux-system:9090/a", "http://localhost:8080/a", "localhost:8080"),
            ("http://source-watcher.flux-system.svc:9090/a", "http://127.0.0.1/a", "127.0.0.1"),
        ];
        for (text, url, host) in table {
            let target = Target::resolve(text, &settings).unwrap();
            assert_eq!((target.url.as_str(), target.host.as_str()), (url, host), "{text}");
        }
        let error = Target::resolve("http://source-controller.default.svc/a", &settings).unwrap_err();
        assert!(matches!(error, FetchError::RefusedHost { .. }), "a replacement does not allow more hosts: {error}");
    }

    #[test]
    fn an_artifact_path_of_another_namespace_is_rejected_in_any_spelling() {
        let isolated = FetchSettings { own_namespace_only: true, ..settings() };
        let service = "http://source-controller.flux-system.svc.cluster.local.";
        let foreign = [
            "/gitrepository/team-a/app/1.tar.gz",
            "//gitrepository//team-a/./app/1.tar.gz",
            "/x/../gitrepository/team-a/app/1.tar.gz",
            "/gitrepository%2Fteam-a%2fapp/1.tar.gz",
            "/gitrepository/team-b/%2e%2e/team-a/app/1.tar.gz",
            "/externalartifact/team-a/app/latest.tar.gz",
        ];
        for path in foreign {
            let target = Target::resolve(&format!("{service}{path}"), &isolated).unwrap();
            let error = target.check_owner("team-b", &isolated).expect_err(path).to_string();
            assert!(error.contains("team-b") && error.contains("--no-cross-namespace-refs"), "{error}");
            assert_eq!(target.check_owner("team-a", &isolated), Ok(()), "{path}");
            assert_eq!(target.check_owner("team-b", &settings()), Ok(()), "{path}");
        }
        for url in [format!("{service}/reports/team-a/app/1.tar.gz"), "http://localhost/bucket/team-a/app/1".to_owned()]
        {
            let target = Target::resolve(&url, &isolated).unwrap();
            assert_eq!(target.check_owner("team-b", &isolated), Ok(()), "{url}: unknown owner");
        }
    }

    #[test]
    fn the_error_for_an_invalid_url_does_not_reveal_its_secrets() {
        let long = format!("http://localhost/{}", "a".repeat(5000));
        let table = [
            ("", "invalid artifact URL"),
            ("localhost/a", "invalid artifact URL"),
            ("http://", "invalid artifact URL"),
            ("file:///etc/passwd", "must have a host"),
            ("ftp://localhost/a", "scheme must be http or https"),
            (
                "http://someone:secret@localhost/a",
                "invalid artifact URL http://localhost/a: must not contain a user name",
            ),
            ("http://secret@localhost/a", "must not contain a user name"),
            ("http://someone:secret@local host/a?secret=b", "invalid artifact URL"),
            ("http://10.1.2.3/a?token=secret", "rejected artifact URL http://10.1.2.3/a: 10.1.2.3 is neither"),
            ("http://kubernetes.default/api", "kubernetes.default is neither a Service"),
            (long.as_str(), "has 5017"),
        ];
        for (text, message) in table {
            let error = Target::resolve(text, &settings()).expect_err(text).to_string();
            assert!(error.contains(message), "{text}: {error}");
            assert!(!error.contains("secret") && !error.contains("someone"), "{error}");
        }
    }
}
