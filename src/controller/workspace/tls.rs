//! Secret with the server certificate of the agent of a Workspace. The content of the Secret is not cached.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::metadata::labels;
use crate::api::names::{workspace_server_name, workspace_tls_secret};
use crate::controller::authority::Generations;
use crate::rpc::identity::{self, IdentityError};
use crate::rpc::server_tls::{
    AUTHORITY_FILE as AUTHORITIES, CERTIFICATE_FILE as CERTIFICATE, INPUTS_KEY_FILE as INPUTS_KEY, KEY_FILE as KEY,
};

/// Minimum length of the inputs key, in bytes.
const MIN_INPUTS_KEY: usize = 32;

/// Returns whether the Secret is current. It must contain the private key, the CA bundle for the agent, the inputs key
/// and a certificate. The certificate must have the correct name, must be signed by the current CA, and must not be due
/// for renewal.
pub(super) fn is_current(secret: &Secret, server_name: &str, authority: &Generations, now: Timestamp) -> bool {
    let text = |key: &str| {
        let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
        std::str::from_utf8(bytes).ok()
    };
    let (Some(certificate), Some(key), Some(authorities)) = (text(CERTIFICATE), text(KEY), text(AUTHORITIES)) else {
        return false;
    };
    // A certificate that cannot be parsed counts as missing.
    !key.is_empty()
        && inputs_key(secret).is_some()
        && authorities == authority.bundle_pem()
        && identity::names(certificate).is_ok_and(|names| names.dns.iter().any(|name| name == server_name))
        && authority.current().has_issued(certificate).unwrap_or(false)
        && !identity::renewal_due(certificate, now).unwrap_or(true)
}

/// Returns the key with which the agent hashes the configuration inputs.
fn inputs_key(secret: &Secret) -> Option<&str> {
    let ByteString(bytes) = secret.data.as_ref()?.get(INPUTS_KEY)?;
    std::str::from_utf8(bytes).ok().filter(|key| key.len() >= MIN_INPUTS_KEY)
}

/// Returns a Secret with a new certificate. Keeps the inputs key of the Secret `before`. With another key, all inputs
/// would appear to have changed.
pub(super) fn issue(
    name: &str,
    namespace: &str,
    before: Option<&Secret>,
    authority: &Generations,
    now: Timestamp,
) -> Result<Value, IdentityError> {
    let issued = authority.current().issue_server(&[workspace_server_name(name, namespace)], now)?;
    let inputs_key = before.and_then(inputs_key).map_or_else(new_key, str::to_owned);
    let base64 = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default();
    Ok(json!({
        "metadata": {"name": workspace_tls_secret(name), "namespace": namespace, "labels": labels(name)},
        "type": "kubernetes.io/tls",
        "data": {
            CERTIFICATE: base64(&issued.certificate_pem),
            KEY: base64(&issued.key_pem),
            AUTHORITIES: base64(authority.bundle_pem()),
            INPUTS_KEY: base64(&inputs_key),
        },
    }))
}

/// Returns a random key. Two UUIDs have 244 random bits.
fn new_key() -> String {
    format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rpc::identity::Authority;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn authority(now: Timestamp) -> Generations {
        Generations::first(Authority::generate(now).expect("valid authority"))
    }

    fn secret(value: Value) -> Secret {
        serde_json::from_value(value).expect("valid Secret")
    }

    #[test]
    fn a_certificate_is_outdated_near_expiry_or_with_another_authority() {
        let now = Timestamp::now();
        let authority = authority(now);
        let issued = secret(issue("app", "team", None, &authority, now).expect("valid Secret"));
        let name = workspace_server_name("app", "team");
        assert!(is_current(&issued, &name, &authority, now));
        assert!(!is_current(&issued, "other-workspace.team.svc", &authority, now), "a different name");
        assert!(!is_current(&issued, &name, &authority, now + 3650 * DAY), "expired");
        let other = self::authority(now);
        assert!(!is_current(&issued, &name, &other, now), "a different authority");
    }

    #[test]
    fn renewing_a_certificate_keeps_the_key_for_input_hashes() {
        let now = Timestamp::now();
        let authority = authority(now);
        let first = secret(issue("app", "team", None, &authority, now).expect("valid Secret"));
        let renewed = secret(issue("app", "team", Some(&first), &authority, now).expect("valid Secret"));
        assert_eq!(inputs_key(&renewed), inputs_key(&first));
        assert_ne!(renewed.data.as_ref().map(|data| &data[KEY]), first.data.as_ref().map(|data| &data[KEY]));
        let other = secret(issue("app", "team", None, &authority, now).expect("valid Secret"));
        assert_ne!(inputs_key(&other), inputs_key(&first));
    }

    #[test]
    fn an_incomplete_tls_secret_is_outdated() {
        let now = Timestamp::now();
        let authority = authority(now);
        let issued = secret(issue("app", "team", None, &authority, now).expect("valid Secret"));
        for key in [CERTIFICATE, KEY, AUTHORITIES, INPUTS_KEY] {
            let mut broken = issued.clone();
            broken.data.as_mut().expect("data is set").remove(key);
            assert!(!is_current(&broken, &workspace_server_name("app", "team"), &authority, now), "{key}");
            broken.data.as_mut().expect("data is set").insert(key.to_owned(), ByteString(b"nonsense".to_vec()));
            let current = is_current(&broken, &workspace_server_name("app", "team"), &authority, now);
            assert_eq!(current, key == KEY, "{key}: only the format of the key is checked");
        }
    }
}
