//! URLs of state backends.

use std::borrow::Cow;

use url::form_urlencoded;

/// Environment variable that overrides the state backend from the project file.
pub const URL_VARIABLE: &str = "PULUMI_BACKEND_URL";
/// Environment variable that selects the state backend if neither the project file nor a login selects one.
pub const API_VARIABLE: &str = "PULUMI_API";
/// Environment variable that contains the access token for Pulumi Cloud.
pub const TOKEN_VARIABLE: &str = "PULUMI_ACCESS_TOKEN";
/// Environment variable that contains the organization for stack names without an organization. The variable takes
/// precedence over the default organization of the access token. A CLI before version 3.259 ignores the variable.
pub const DEFAULT_ORGANIZATION_VARIABLE: &str = "PULUMI_DEFAULT_ORGANIZATION";
/// URL of the default state backend.
pub const PULUMI_CLOUD: &str = "https://api.pulumi.com";

/// Query parameters that are part of the state's location. All other parameters determine only how the CLI accesses the
/// location, such as the encryption, the addressing style, the retries and the credentials.
const LOCATION_PARAMETERS: [&str; 11] = [
    "prefix",
    // S3
    "endpoint",
    "region",
    // Azure
    "domain",
    "storage_account",
    // Google Cloud
    "universe_domain",
    // PostgreSQL
    "dbname",
    "host",
    "port",
    "search_path",
    "table",
];

/// Parts of the location that the CLI reads from the environment if the URL lacks them: the URL scheme, the query
/// parameter, and the environment variables in order of precedence.
const FROM_ENVIRONMENT: [(&str, &str, &[&str]); 3] = [
    ("s3", "endpoint", &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
    ("azblob", "storage_account", &["AZURE_STORAGE_ACCOUNT"]),
    ("azblob", "domain", &["AZURE_STORAGE_DOMAIN"]),
];

/// Prefixes of the AWS regions outside the default partition. The name of a bucket is unique within a partition.
const PARTITIONS: [&str; 7] = ["cn-", "us-gov-", "us-iso-", "us-isob-", "us-isof-", "eu-isoe-", "eusc-"];
const DEFAULT_PARTITION: &str = "aws";
const AZURE_DOMAIN: &str = "blob.core.windows.net";
const GOOGLE_DOMAIN: &str = "googleapis.com";
const POSTGRES_PORT: &str = ":5432";
const POSTGRES_TABLE: &str = "pulumi_state";

/// URL schemes of the state backends that the CLI supports.
const SCHEMES: [&str; 7] = ["https", "http", "s3", "gs", "azblob", "postgres", "file"];

/// Returns an error message for users if the CLI does not support the scheme of a backend URL. The CLI supports the
/// schemes of self-managed backends only in lower case.
pub fn check(url: &str) -> Result<(), String> {
    let scheme = url.trim().split_once("://").map(|(scheme, _)| scheme);
    if is_pulumi_cloud(url) || scheme.is_some_and(|scheme| SCHEMES.contains(&scheme)) {
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
    let (scheme, place, query) = split(url)?;
    let place = place.trim_end_matches('/');
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
    Some(format!("{scheme}://{place}{query}"))
}

/// Returns the location of the state, as a string that is equal for all URLs of the same location. Pulumi Cloud URLs
/// are compared without the default port and the case of the host. Other URLs are compared by the server, the bucket or
/// database, and the path. The order and the encoding of the query parameters do not matter.
///
/// A part that the URL lacks has its default value, because the function does not read the environment: see
/// [`completed`].
pub fn location(url: &str) -> String {
    if is_pulumi_cloud(url) {
        return without_default_port(url.trim());
    }
    let Some((scheme, place, _)) = split(url) else { return url.to_owned() };
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    let path = path.trim_matches('/');
    let of = |name: &str| parameter(url, name);
    let server = match scheme.as_str() {
        "file" => return format!("file://{}", place.trim_end_matches('/')),
        "postgres" => return database(authority, path, of),
        "s3" => s3_server(of("endpoint"), of("region")),
        "azblob" => {
            let (account, domain) = (of("storage_account").unwrap_or_default(), of("domain"));
            format!("{account}.{}", domain.as_deref().unwrap_or(AZURE_DOMAIN)).to_ascii_lowercase()
        }
        _ => of("universe_domain").unwrap_or(Cow::Borrowed(GOOGLE_DOMAIN)).into_owned(),
    };
    // The CLI adds the path to the prefix.
    let prefix = of("prefix").unwrap_or_default();
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{server}/{authority}/{prefix}{path}{slash}")
}

/// Returns the location of a PostgreSQL table. As in the CLI, the query parameters take precedence over the other parts
/// of the URL.
fn database<'a>(authority: &str, path: &str, of: impl Fn(&str) -> Option<Cow<'a, str>>) -> String {
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let with_port = authority.rsplit_once(':').filter(|(_, port)| is_number(port));
    let (host, port) = with_port.unwrap_or((authority, ""));
    let port = of("port").unwrap_or(Cow::Borrowed(port));
    let port = if port.is_empty() { String::new() } else { format!(":{port}") };
    let host = absolute(&of("host").unwrap_or(Cow::Borrowed(host)).to_ascii_lowercase(), &[]);
    let name = of("dbname").unwrap_or(Cow::Borrowed(path));
    let (schema, table) = (of("search_path").unwrap_or_default(), of("table"));
    let table = table.as_deref().unwrap_or(POSTGRES_TABLE);
    format!("postgres://{host}{}/{name}/{schema}/{table}", port.strip_suffix(POSTGRES_PORT).unwrap_or(&port))
}

/// Returns the server of an S3 bucket: the host of the endpoint, or the AWS partition. The scheme of the endpoint does
/// not matter, because it determines only the encryption.
fn s3_server(endpoint: Option<Cow<'_, str>>, region: Option<Cow<'_, str>>) -> String {
    let endpoint = endpoint.unwrap_or_default().to_ascii_lowercase();
    let host = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, host)| host);
    let host = without_user(host).trim_end_matches('/');
    let host = absolute(host, &["80", "443"]);
    let is_aws = host.is_empty() || host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn");
    if !is_aws {
        return host;
    }
    let region = region.unwrap_or_default();
    let is_in = |partition: &&&str| host.split('.').chain([&*region]).any(|label| label.starts_with(**partition));
    PARTITIONS.iter().find(is_in).map_or(DEFAULT_PARTITION, |partition| partition.trim_end_matches('-')).to_owned()
}

/// Returns the decoded value of a query parameter in a URL. Returns `None` if the value is empty.
pub fn parameter<'a>(url: &'a str, name: &str) -> Option<Cow<'a, str>> {
    let (_, _, query) = split(url)?;
    let found = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name);
    found.map(|(_, value)| value).filter(|value| !value.is_empty())
}

/// Returns the URL of a self-managed backend with the parts of the location that the URL lacks. `value` returns the
/// value for a query parameter and for the environment variables from which the CLI reads the value.
pub fn completed<'a>(url: &str, value: impl Fn(&str, &[&str]) -> Option<Cow<'a, str>>) -> String {
    let mut url = url.trim().to_owned();
    let Some((scheme, _, query)) = split(&url) else { return url };
    let mut separator = if query.is_empty() { '?' } else { '&' };
    let trimmed = url.trim_end_matches(['?', '&']).len();
    let missing = FROM_ENVIRONMENT.iter().filter(|(of, name, _)| *of == scheme && parameter(&url, name).is_none());
    let values = missing.filter_map(|(_, name, variables)| Some((*name, value(name, variables)?)));
    let values: Vec<_> = values.filter(|(_, value)| !value.is_empty()).collect();
    if values.is_empty() {
        return url;
    }
    url.truncate(trimmed);
    for (name, value) in values {
        url = format!("{url}{separator}{name}={value}");
        separator = '&';
    }
    url
}

/// Returns the scheme in lower case, the part between the scheme and the query without credentials, and the query.
fn split(url: &str) -> Option<(String, &str, &str)> {
    let (scheme, rest) = url.trim().split_once("://")?;
    let rest = rest.split('#').next().unwrap_or_default();
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    Some((scheme.to_ascii_lowercase(), without_user(place), query))
}

/// Returns an HTTP URL with the scheme and the host in lower case. Removes the default port, the host's trailing dot
/// and the trailing slash.
fn without_default_port(url: &str) -> String {
    let (scheme, location) = url.split_once("://").unwrap_or(("https", url));
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    let (scheme, authority) = (scheme.to_ascii_lowercase(), authority.to_ascii_lowercase());
    let host = absolute(&authority, if scheme == "http" { &["80"] } else { &["443"] });
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{host}{slash}{path}")
}

/// Returns a host with its port, without the dot at the end of an absolute host name and without a default port.
fn absolute(authority: &str, default_ports: &[&str]) -> String {
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let with_port = authority.rsplit_once(':').filter(|(_, port)| is_number(port));
    let (host, port) = with_port.map_or((authority, None), |(host, port)| (host, Some(port)));
    let host = host.trim_end_matches('.');
    match port.filter(|port| !default_ports.contains(port)) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
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
        for url in known.into_iter().chain(["http://localhost:8080", "HTTPS://api.pulumi.com", " s3://state\n"]) {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in ["redis://u:secret@host/x", "S3://state", "s3:/state", "nonsense", "", "://x"] {
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
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn urls_of_the_same_location_are_equal() {
        let groups: [&[&str]; 20] = [
            &[
                "https://API.Pulumi.com:443/",
                "HTTPS://api.pulumi.com",
                "https://api.pulumi.com./",
                " https://api.pulumi.com",
                PULUMI_CLOUD,
            ],
            &["http://host:80/Path/", "http://host/Path"],
            &["http://host:8080", "http://Host.:8080/"],
            &["https://host:80"],
            // The region, the endpoints of AWS and the way of the access do not identify a bucket of AWS.
            &[
                "s3://state",
                "S3://state/",
                "s3://state?",
                "s3://state/?region=eu-central-1",
                "s3://state?region=us-east-1&profile=ci&awssdk=v2&role=arn:aws:iam::1:role/ci&kmskeyid=k&ssetype=aws:kms",
                "s3://state?endpoint=s3.eu-central-1.amazonaws.com&accelerate=true&dualstack=true&fips=true&anonymous=false",
            ],
            &["s3://state?region=cn-north-1", "s3://state?endpoint=https://s3.cn-north-1.amazonaws.com.cn"],
            &["s3://State"],
            // Each server has its own buckets.
            &[
                "s3://state?endpoint=minio.example.com&s3ForcePathStyle=true",
                "s3://state/?disableSSL=true&region=x&endpoint=http://Minio.example.com:80/",
                "s3://state?region=y&use_path_style=true&endpoint=https%3A%2F%2Fminio.example.com%3A443&hostname_immutable=true",
                "s3://state?endpoint=user:word@minio.example.com&disable_https=true&request_checksum_calculation=when_required",
            ],
            &["s3://state?endpoint=minio.example.com:9000", "s3://state?endpoint=http://Minio.example.com.:9000/"],
            &[
                "s3://state/team?endpoint=minio.example.com",
                "s3://state//team/?prefix=&endpoint=minio.example.com",
                "s3://state?endpoint=minio.example.com&prefix=team/",
            ],
            &[
                "s3://state/prod?endpoint=minio.example.com&prefix=team/",
                "s3://state/team/prod?endpoint=minio.example.com",
            ],
            &["gs://state", "gs://state/?access_id=a&private_key_path=/k&anonymous=true"],
            &["gs://state?universe_domain=example.com"],
            &[
                "azblob://state?storage_account=acme",
                "azblob://state/?protocol=https&storage_account=Acme&domain=blob.core.windows.net&cdn=false&localemu=false",
            ],
            &["azblob://state?storage_account=other"],
            &["azblob://state?storage_account=acme&domain=blob.core.chinacloudapi.cn"],
            &[
                "postgres://db.example.com/state",
                "postgres://user:word@DB.example.com:5432/state/?sslmode=disable&connect_timeout=3",
                "postgres://user@/?host=db.example.com&dbname=state&table=pulumi_state&port=5432",
                "postgres://db.example.com.:5432/state",
            ],
            &["postgres://db.example.com/state?table=team"],
            &["postgres://db.example.com/state?search_path=team"],
            &["file:///state", "file:///state/?no_tmp_dir=true&metadata=skip"],
        ];
        for (index, group) in groups.iter().enumerate() {
            let first = location(group[0]);
            for url in *group {
                assert_eq!(location(url), first, "{url}");
            }
            for other in groups.iter().skip(index + 1) {
                assert_ne!(location(other[0]), first, "{}", other[0]);
            }
        }
        for text in ["", "word", "$(URL)"] {
            assert_eq!(location(text), text);
        }
    }

    #[test]
    fn the_environment_completes_a_url() {
        let complete = |url: &str| {
            let value = |variable: &&str| match *variable {
                "AWS_ENDPOINT_URL" => Some(Cow::Borrowed("http://minio:9000")),
                "AZURE_STORAGE_ACCOUNT" => Some(Cow::Borrowed("acme")),
                "AZURE_STORAGE_DOMAIN" => Some(Cow::Borrowed("")),
                _ => None,
            };
            completed(url, |_, variables| variables.iter().find_map(value))
        };
        let rows = [
            ("s3://state", "s3://state?endpoint=http://minio:9000"),
            ("s3://state/?", "s3://state/?endpoint=http://minio:9000"),
            ("s3://state?region=x", "s3://state?region=x&endpoint=http://minio:9000"),
            ("s3://state?endpoint=other", "s3://state?endpoint=other"),
            ("azblob://state", "azblob://state?storage_account=acme"),
            ("gs://state", "gs://state"),
            ("https://api.pulumi.com/", "https://api.pulumi.com/"),
            ("word", "word"),
        ];
        for (url, expected) in rows {
            assert_eq!(complete(url), expected, "{url}");
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
