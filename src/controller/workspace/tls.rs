//! The Secret with a workspace's server certificate. Its content is looked at and forgotten, never cached.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::render::labels;
use crate::api::names::{workspace_server_name, workspace_tls_secret};
use crate::controller::authority::Generations;
use crate::rpc::identity::{self, IdentityError};
use crate::rpc::server_tls::{AUTHORITY_FILE as AUTHORITIES, CERTIFICATE_FILE as CERTIFICATE, KEY_FILE as KEY};

/// Whether the Secret does what it is for: a certificate under the right name, signed by the authority that signs now,
/// with life in it, its key, and the bundle that the agent shall trust.
pub(super) fn is_current(secret: &Secret, server_name: &str, authority: &Generations, now: Timestamp) -> bool {
    let text = |key: &str| {
        let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
        std::str::from_utf8(bytes).ok()
    };
    let (Some(certificate), Some(key), Some(authorities)) = (text(CERTIFICATE), text(KEY), text(AUTHORITIES)) else {
        return false;
    };
    // A certificate that cannot be read is as good as none.
    !key.is_empty()
        && authorities == authority.bundle_pem()
        && identity::names(certificate).is_ok_and(|names| names.dns.iter().any(|name| name == server_name))
        && authority.current().has_issued(certificate).unwrap_or(false)
        && !identity::renewal_due(certificate, now).unwrap_or(true)
}

/// A Secret with a new certificate.
pub(super) fn issue(
    name: &str,
    namespace: &str,
    authority: &Generations,
    now: Timestamp,
) -> Result<Value, IdentityError> {
    let issued = authority.current().issue_server(&[workspace_server_name(name, namespace)], now)?;
    let base64 = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default();
    Ok(json!({
        "metadata": {"name": workspace_tls_secret(name), "namespace": namespace, "labels": labels(name)},
        "type": "kubernetes.io/tls",
        "data": {
            CERTIFICATE: base64(&issued.certificate_pem),
            KEY: base64(&issued.key_pem),
            AUTHORITIES: base64(authority.bundle_pem()),
        },
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rpc::identity::Authority;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn authority(now: Timestamp) -> Generations {
        Generations::first(Authority::generate(now).expect("an authority"))
    }

    fn secret(value: Value) -> Secret {
        serde_json::from_value(value).expect("a Secret")
    }

    #[test]
    fn a_new_certificate_is_current_until_it_is_due_or_the_authority_changes() {
        let now = Timestamp::now();
        let authority = authority(now);
        let issued = secret(issue("app", "team", &authority, now).expect("a Secret"));
        let name = workspace_server_name("app", "team");
        assert!(is_current(&issued, &name, &authority, now));
        assert!(!is_current(&issued, "other-workspace.team.svc", &authority, now), "another name");
        assert!(!is_current(&issued, &name, &authority, now + 3650 * DAY), "expired");
        let other = self::authority(now);
        assert!(!is_current(&issued, &name, &other, now), "another authority");
    }

    #[test]
    fn a_secret_that_lacks_something_is_not_current() {
        let now = Timestamp::now();
        let authority = authority(now);
        let issued = secret(issue("app", "team", &authority, now).expect("a Secret"));
        for key in [CERTIFICATE, KEY, AUTHORITIES] {
            let mut broken = issued.clone();
            broken.data.as_mut().expect("data").remove(key);
            assert!(!is_current(&broken, &workspace_server_name("app", "team"), &authority, now), "{key}");
            broken.data.as_mut().expect("data").insert(key.to_owned(), ByteString(b"nonsense".to_vec()));
            let current = is_current(&broken, &workspace_server_name("app", "team"), &authority, now);
            assert_eq!(current, key == KEY, "{key}: only the agent can tell whether a key is good");
        }
    }
}
