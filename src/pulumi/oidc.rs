//! Exchange of an OIDC token for a Pulumi Cloud access token. The CLI performs the exchange during a login.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

/// Prefix of the error in which the CLI reports the Pulumi Cloud response.
const EXCHANGE_FAILED: &str = "OIDC token exchange failed: ";
/// HTTP status code for a request that exceeds the rate limit.
const TOO_MANY_REQUESTS: u64 = 429;
/// Lowest HTTP status code for a server error.
const SERVER_ERRORS: u64 = 500;

/// The OIDC token claims that Pulumi Cloud compares with its configured issuers and policies.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    iss: String,
    #[serde(default)]
    sub: String,
    /// An audience or a list of audiences.
    #[serde(default)]
    aud: Value,
}

/// Describes an OIDC token's issuer, subject and audience for a message. Does not verify the token. Returns `None` if
/// the string is not a JSON Web Token.
pub fn describe_claims(token: &str) -> Option<String> {
    let payload = URL_SAFE_NO_PAD.decode(token.trim().split('.').nth(1)?).ok()?;
    let Claims { iss, sub, aud } = serde_json::from_slice(&payload).ok()?;
    let audience = match &aud {
        Value::Array(audiences) => audiences.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    Some(format!("issuer {iss:?}, subject {sub:?}, audience {audience:?}"))
}

/// Pulumi Cloud response to a failed exchange: a Pulumi Cloud API error, or an OAuth error (RFC 6749).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Response {
    code: u64,
    message: String,
    error: Value,
    error_description: String,
}

/// Returns the reason why Pulumi Cloud rejected the exchange. Returns `None` if the login failed for another reason,
/// for example because the server is unavailable. `stderr` is the output that the login wrote to stderr.
pub fn rejection(stderr: &str) -> Option<String> {
    let (_, body) = stderr.split_once(EXCHANGE_FAILED)?;
    let mut responses = serde_json::Deserializer::from_str(body.trim_start()).into_iter::<Response>();
    let Response { code, message, error, error_description } = responses.next()?.ok()?;
    if code >= SERVER_ERRORS || code == TOO_MANY_REQUESTS {
        return None;
    }
    let texts = [error_description.as_str(), message.as_str(), error.as_str().unwrap_or_default()];
    texts.into_iter().find(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn token(claims: &Value) -> String {
        format!("e30.{}.c2lnbmF0dXJl", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn the_claims_of_a_token_are_described_without_its_signature() {
        let issuer = "https://kubernetes.default.svc";
        let subject = "system:serviceaccount:apps:web";
        let expected = |audience: &str| Some(format!("issuer {issuer:?}, subject {subject:?}, audience {audience:?}"));
        let rows = [
            (json!({"iss": issuer, "sub": subject, "aud": ["urn:a", "urn:b"], "exp": 1}), expected("urn:a, urn:b")),
            (json!({"iss": issuer, "sub": subject, "aud": "urn:a"}), expected("urn:a")),
            (json!({"iss": issuer, "sub": subject}), expected("")),
            (json!(["no claims", 1, 2, 3]), None),
        ];
        for (claims, expected) in rows {
            assert_eq!(describe_claims(&format!("{}\n", token(&claims))), expected, "{claims}");
        }
        for text in ["", "word", "e30.!.x", "e30.e30"] {
            let found = describe_claims(text);
            assert!(found.is_none() || text == "e30.e30", "{text}: {found:?}");
        }
    }

    #[test]
    fn a_rejected_exchange_is_distinguished_from_an_unavailable_server() {
        let failed = |body: &str| {
            format!(
                "error: could not log in to the state backend \"https://api\": OIDC token exchange failed: {body}\n"
            )
        };
        let rows = [
            (
                failed(r#"{"code":401,"message":"Unauthorized: no policy matches"}"#),
                Some("Unauthorized: no policy matches"),
            ),
            (failed("{\n  \"code\": 400,\n  \"message\": \"Bad Request: audience\"\n}"), Some("Bad Request: audience")),
            (
                failed(r#"{"error":"invalid_grant","error_description":"the subject is not allowed"}"#),
                Some("the subject is not allowed"),
            ),
            (failed(r#"{"error":"invalid_grant"}"#), Some("invalid_grant")),
            (failed(r#"{"code":503,"message":"Service Unavailable"}"#), None),
            (failed(r#"{"code":429,"message":"Too Many Requests"}"#), None),
            (failed("<html>502 Bad Gateway</html>"), None),
            (failed("Post \"https://api/api/oauth/token\": dial tcp: lookup api: no such host"), None),
            (failed("Failed to read OIDC token: reading token from file '/token': no such file"), None),
            ("error: could not log in to the state backend: [401] Unauthorized\n".to_owned(), None),
            (String::new(), None),
        ];
        for (stderr, expected) in rows {
            assert_eq!(rejection(&stderr).as_deref(), expected, "{stderr}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = (describe_claims(&text), rejection(&format!("{EXCHANGE_FAILED}{text}")));
        }
    }
}
