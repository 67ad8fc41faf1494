//! Settings of the trace export.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::telemetry::traces::Settings;

/// Path for traces, relative to the base URL.
const PATH: &str = "v1/traces";
/// URL schemes that the Pulumi CLI supports, except `file`, because a file in a pod would grow with each run.
const CLI_SCHEMES: [&str; 4] = ["grpc", "grpcs", "http", "https"];

/// Returns the settings for a base URL, such as `http://collector:4318`, and for headers in the format `key=value,…`.
/// The error describes the valid values. It does not contain the headers, because headers can contain credentials.
pub(super) fn settings(endpoint: &str, headers: &str) -> Result<Settings, &'static str> {
    let valid = "an http or https URL without user name, password and query, such as http://collector:4318";
    let mut endpoint = Url::parse(endpoint).ok().filter(is_plain).ok_or(valid)?;
    if !matches!(endpoint.scheme(), "http" | "https") {
        return Err(valid);
    }
    let path = endpoint.path().trim_end_matches('/').to_owned();
    if !path.ends_with(&format!("/{PATH}")) {
        endpoint.set_path(&format!("{path}/{PATH}"));
    }
    let headers = self::headers(headers).ok_or("set together with headers in the format key=value,key=value")?;
    Ok(Settings { endpoint, headers })
}

/// Parses headers that have the `OTEL_EXPORTER_OTLP_HEADERS` format. The values are percent-encoded.
fn headers(text: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let mut value: HeaderValue = value.parse().ok()?;
        value.set_sensitive(true);
        headers.append(name.trim().parse::<HeaderName>().ok()?, value);
    }
    Some(headers)
}

/// Returns the endpoint for the Pulumi CLI, or `None` if the value is empty. The error describes the valid values.
/// The endpoint must not contain credentials, because every Pulumi program can read it.
pub(super) fn cli_endpoint(value: &str) -> Result<Option<String>, &'static str> {
    if value.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(value).ok().filter(is_plain).filter(|url| CLI_SCHEMES.contains(&url.scheme()));
    let valid = "a grpc, grpcs, http or https URL without user name, password and query, such as grpc://collector:4317";
    url.map(|_| Some(value.to_owned())).ok_or(valid)
}

/// Returns whether a URL has a host and no part that can contain credentials.
fn is_plain(url: &Url) -> bool {
    let has_user = !url.username().is_empty() || url.password().is_some();
    url.has_host() && !has_user && url.query().is_none() && url.fragment().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_a_base_url_or_the_url_for_traces() {
        let of = |value: &str| settings(value, "").map(|settings| settings.endpoint.to_string());
        for value in ["http://otel:4318", "http://otel:4318/", "http://otel:4318/v1/traces"] {
            assert_eq!(of(value).as_deref(), Ok("http://otel:4318/v1/traces"), "{value}");
        }
        assert_eq!(of("https://otel/base/").as_deref(), Ok("https://otel/base/v1/traces"));
        for value in ["otel:4318", "grpc://otel:4317", "http://user@otel", "http://otel?token=t", "http://", "x"] {
            assert!(of(value).is_err(), "{value}");
        }
    }

    #[test]
    fn headers_are_decoded_and_marked_as_sensitive() {
        let settings = settings("http://otel", "authorization=Bearer%20t, x-tenant=a").unwrap();
        assert_eq!(settings.headers["authorization"], "Bearer t");
        assert_eq!(settings.headers["x-tenant"], "a");
        assert!(!format!("{settings:?}").contains("Bearer"), "{settings:?}");
        for text in ["authorization", "a b=c", "a=%00"] {
            assert!(self::settings("http://otel", text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_endpoint_of_the_cli_contains_no_credentials() {
        assert_eq!(cli_endpoint(""), Ok(None));
        assert_eq!(cli_endpoint("grpc://otel:4317"), Ok(Some("grpc://otel:4317".to_owned())));
        for value in ["file:///tmp/a", "grpcs://otel:4317?key=secret", "http://a:b@otel", "otel:4317"] {
            assert!(cli_endpoint(value).is_err(), "{value}");
        }
    }
}
