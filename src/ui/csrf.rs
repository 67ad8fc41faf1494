//! Protection against forged forms: a form must come from a page of this UI. In addition, each form contains a
//! session-specific token (`Sessions::form_token`).

use axum::http::{HeaderMap, header};

/// Returns whether a page from the same origin has sent a form. All current browsers send at least one of the headers
/// `Sec-Fetch-Site` and `Origin`.
pub(super) fn is_same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let site = text("sec-fetch-site");
    let origin = text(header::ORIGIN.as_str());
    let host = text(header::HOST.as_str()).unwrap_or_default();
    let is_from_host = |origin: &str| {
        let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        authority.is_some_and(|authority| !host.is_empty() && authority.eq_ignore_ascii_case(host))
    };
    (site.is_some() || origin.is_some())
        && site.is_none_or(|site| site == "same-origin")
        && origin.is_none_or(is_from_host)
}

/// Returns whether a link on another site has opened the page. For such a request, the browser does not send the
/// session cookie.
pub(super) fn is_from_other_site(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_must_come_from_the_same_origin() {
        let rows = [
            (None, None, false),
            (Some("same-origin"), None, true),
            (Some("same-origin"), Some("https://ui.example.com"), true),
            (None, Some("https://ui.example.com"), true),
            (None, Some("https://UI.example.com"), true),
            (None, Some("https://ui.example.com.evil.com"), false),
            (None, Some("https://ui.example.com:8443"), false),
            (None, Some("null"), false),
            (Some("same-origin"), Some("https://evil.com"), false),
            (Some("same-site"), Some("https://ui.example.com"), false),
            (Some("cross-site"), None, false),
            (Some("none"), None, false),
        ];
        for (site, origin, expected) in rows {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, "ui.example.com".parse().unwrap());
            if let Some(site) = site {
                headers.insert("sec-fetch-site", site.parse().unwrap());
            }
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            assert_eq!(is_same_origin(&headers), expected, "{site:?} {origin:?}");
        }
    }
}
