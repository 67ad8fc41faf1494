//! URLs of state backends.

/// Environment variable that overrides the state backend from the project file.
pub const URL_VARIABLE: &str = "PULUMI_BACKEND_URL";
/// Environment variable that selects the state backend if neither the project file nor a login selects one.
pub const API_VARIABLE: &str = "PULUMI_API";
/// Environment variable that contains the access token for Pulumi Cloud.
pub const TOKEN_VARIABLE: &str = "PULUMI_ACCESS_TOKEN";
/// URL of the default state backend.
pub const PULUMI_CLOUD: &str = "https://api.pulumi.com";

/// Query parameters that are part of the state's location. Other parameters can contain credentials.
const LOCATION_PARAMETERS: [&str; 5] = ["region", "endpoint", "storage_account", "domain", "prefix"];

/// URL schemes of the state backends that the CLI supports.
const SCHEMES: [&str; 7] = ["https", "http", "s3", "gs", "azblob", "postgres", "file"];

/// Returns an error message for users if the CLI does not support the scheme of a backend URL.
pub fn check(url: &str) -> Result<(), String> {
    let scheme = url.trim().split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    if scheme.is_some_and(|scheme| SCHEMES.contains(&scheme.as_str())) {
        return Ok(());
    }
    let shown = without_credentials(url).unwrap_or_else(|| url.to_owned());
    Err(format!(
        "invalid backend URL {shown:?}: must begin with https:// or http:// (Pulumi Cloud), s3://, gs://, azblob://, postgres:// or \
         file://"
    ))
}

/// Returns whether a backend URL refers to Pulumi Cloud, including self-hosted Pulumi Cloud.
pub fn is_pulumi_cloud(url: &str) -> bool {
    let scheme = url.trim().split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| matches!(scheme.as_str(), "http" | "https"))
}

/// Returns whether a URL refers to a state backend other than Pulumi Cloud. Returns `false` if the string is not a URL.
pub fn is_self_managed(url: &str) -> bool {
    url.contains("://") && !is_pulumi_cloud(url)
}

/// Returns a URL for display: without the user name, password and fragment, and without the query parameters that are
/// not part of the state's location. Sorts the query parameters. Returns `None` if the string is not a URL.
pub fn without_credentials(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once("://")?;
    let rest = rest.split('#').next().unwrap_or_default();
    let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
    let location = without_user(location).trim_end_matches('/');
    let is_shown = |name: &str| LOCATION_PARAMETERS.contains(&name);
    let parameters = query.split('&').filter_map(|parameter| parameter.split_once('='));
    let mut shown: Vec<String> = parameters
        .filter(|(name, _)| is_shown(name))
        .map(|(name, value)| {
            format!("{name}={}", without_credentials(value).unwrap_or_else(|| without_user(value).to_owned()))
        })
        .collect();
    shown.sort();
    let query = if shown.is_empty() { String::new() } else { format!("?{}", shown.join("&")) };
    Some(format!("{scheme}://{location}{query}"))
}

/// Returns a normalized URL, so that the URLs of equal locations are equal. Sorts the query parameters, and converts a
/// Pulumi Cloud URL to its shortest form.
pub fn normalized(url: &str) -> String {
    if is_pulumi_cloud(url) {
        return without_default_port(url.trim());
    }
    let Some((location, query)) = url.split_once('?') else { return url.to_owned() };
    let mut parameters: Vec<&str> = query.split('&').collect();
    parameters.sort_unstable();
    format!("{location}?{}", parameters.join("&"))
}

/// Returns an HTTP URL with the scheme and the host in lower case. Removes the default port, the host's trailing dot
/// and the trailing slash.
fn without_default_port(url: &str) -> String {
    let (scheme, location) = url.split_once("://").unwrap_or(("https", url));
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (scheme, authority) = (scheme.to_ascii_lowercase(), authority.to_ascii_lowercase());
    let port = if scheme == "http" { ":80" } else { ":443" };
    let host = authority.strip_suffix(port).unwrap_or(&authority).trim_end_matches('.');
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{host}{slash}{path}")
}

/// Strips the user name and the password from a URL's authority.
fn without_user(location: &str) -> &str {
    let authority = location.split('/').next().unwrap_or_default();
    let user = authority.rfind('@').map_or(0, |at| at + 1);
    location.get(user..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_with_an_unknown_scheme_is_rejected() {
        let known =
            ["https://api.pulumi.com", "s3://state?region=x", "gs://s", "azblob://s", "postgres://u:p@h/d", "file://~"];
        for url in known.into_iter().chain(["http://localhost:8080", "S3://state"]) {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in ["redis://u:secret@host/x", "s3:/state", "nonsense", "", "://x"] {
            let error = check(url).expect_err(url);
            let schemes = SCHEMES.iter().all(|scheme| error.contains(&format!("{scheme}://")));
            assert!(schemes && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn only_http_urls_are_urls_of_pulumi_cloud() {
        for url in [PULUMI_CLOUD, "https://pulumi.example.com/", "http://localhost:8080", "HTTPS://api.pulumi.com"] {
            assert!(is_pulumi_cloud(url), "{url}");
        }
        for url in ["s3://state?endpoint=https://minio", "file://~", "postgres://h/d", "api.pulumi.com", ""] {
            assert!(!is_pulumi_cloud(url), "{url}");
        }
    }

    #[test]
    fn only_urls_with_other_schemes_are_urls_of_self_managed_backends() {
        for url in ["s3://state", "gs://state", " file://~", "POSTGRES://h/d"] {
            assert!(is_self_managed(url), "{url}");
        }
        for url in ["https://api.pulumi.com", "HTTP://localhost:8080", "", "$(URL)", "word"] {
            assert!(!is_self_managed(url), "{url}");
        }
    }

    #[test]
    fn equal_locations_have_equal_urls() {
        for url in [
            "https://API.Pulumi.com:443/",
            "HTTPS://api.pulumi.com",
            "https://api.pulumi.com./",
            " https://api.pulumi.com",
        ] {
            assert_eq!(normalized(url), PULUMI_CLOUD, "{url}");
        }
        for (url, expected) in [
            ("http://host:80/Path/", "http://host/Path"),
            ("http://host:8080", "http://host:8080"),
            ("https://host:80", "https://host:80"),
            ("s3://State?region=x&endpoint=Y", "s3://State?endpoint=Y&region=x"),
            ("file://~", "file://~"),
            ("", ""),
        ] {
            assert_eq!(normalized(url), expected, "{url}");
        }
    }

    #[test]
    fn a_backend_url_is_shown_without_credentials() {
        let rows = [
            ("s3://state/", Some("s3://state")),
            ("s3://state/team/prod", Some("s3://state/team/prod")),
            ("s3://state?region=eu-central-1&awssdk=v2", Some("s3://state?region=eu-central-1")),
            ("s3://state?region=x&endpoint=minio:9000", Some("s3://state?endpoint=minio:9000&region=x")),
            ("s3://state?endpoint=user:word@minio:9000&kmskey=k", Some("s3://state?endpoint=minio:9000")),
            ("s3://state?endpoint=http://user:word@minio:9000", Some("s3://state?endpoint=http://minio:9000")),
            (
                "postgres://user:word@db.example.com:5432/state?sslpassword=x",
                Some("postgres://db.example.com:5432/state"),
            ),
            ("postgres://us@er:wo@rd@db.example.com/state", Some("postgres://db.example.com/state")),
            ("https://api.pulumi.com/#token=x", Some("https://api.pulumi.com")),
            ("azblob://state?storage_account=acme&sas=x", Some("azblob://state?storage_account=acme")),
            ("file://~", Some("file://~")),
            ("file:///state/", Some("file:///state")),
            ("word", None),
            ("", None),
        ];
        for (url, expected) in rows {
            assert_eq!(without_credentials(url).as_deref(), expected, "{url}");
        }
    }
}
