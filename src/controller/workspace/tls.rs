//! Builds and checks the Secrets that contain the server certificates of agents: one Secret for each Workspace, and
//! one Secret for each pool pod. The controller does not cache the content of these Secrets.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use uuid::Uuid;

use super::metadata::labels;
use crate::api::auto::PooledPod;
use crate::api::names::{
    LABEL_COMPONENT, pool_pod_server_name, pool_pod_tls_secret, workspace_server_name, workspace_tls_secret,
};
use crate::controller::authority::Generations;
use crate::rpc::identity::{self, IdentityError};
use crate::rpc::server_tls::{
    AUTHORITY_FILE as AUTHORITIES, CERTIFICATE_FILE as CERTIFICATE, INPUTS_KEY_FILE as INPUTS_KEY, KEY_FILE as KEY,
};

/// Value of the component label.
const COMPONENT: &str = "workspace";
/// Minimum length of the inputs key, in bytes.
const MIN_INPUTS_KEY: usize = 32;

/// Returns whether the Workspace's Secret contains a current certificate and an inputs key.
pub(super) fn is_current(secret: &Secret, server_name: &str, authority: &Generations, now: Timestamp) -> bool {
    inputs_key(secret).is_some() && has_certificate(secret, server_name, authority, now)
}

/// Returns whether the Secret of a taken pool pod contains a current certificate and the inputs key of the Workspace.
/// `own` is the Secret of the Workspace.
pub(super) fn is_current_in_pod(
    secret: &Secret,
    own: &Secret,
    server_name: &str,
    authority: &Generations,
    now: Timestamp,
) -> bool {
    inputs_key(secret) == inputs_key(own) && is_current(secret, server_name, authority, now)
}

/// Returns whether the controller has created the Secret for the pool pod with the given UID. A Secret of another owner
/// can have the same name.
pub(super) fn is_of_pod(secret: &Secret, pod_uid: &str) -> bool {
    let component = secret.labels().get(LABEL_COMPONENT).map(String::as_str);
    component == Some(COMPONENT) && secret.owner_references().iter().any(|owner| owner.uid == pod_uid)
}

/// Returns whether the Secret contains the private key, the CA bundle for the agent and a current certificate. The
/// certificate must have the correct name, must be signed by the current CA, and must not be due for renewal.
pub(super) fn has_certificate(secret: &Secret, server_name: &str, authority: &Generations, now: Timestamp) -> bool {
    let text = |key: &str| {
        let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
        std::str::from_utf8(bytes).ok()
    };
    let (Some(certificate), Some(key), Some(authorities)) = (text(CERTIFICATE), text(KEY), text(AUTHORITIES)) else {
        return false;
    };
    // An invalid certificate is treated as missing.
    !key.is_empty()
        && authorities == authority.bundle_pem()
        && identity::names(certificate).is_ok_and(|names| names.dns.iter().any(|name| name == server_name))
        && authority.current().has_issued(certificate).unwrap_or(false)
        && !identity::renewal_due(certificate, now).unwrap_or(true)
}

/// Returns the inputs key, with which the agent computes the keyed hashes of the configuration inputs.
fn inputs_key(secret: &Secret) -> Option<&str> {
    let ByteString(bytes) = secret.data.as_ref()?.get(INPUTS_KEY)?;
    std::str::from_utf8(bytes).ok().filter(|key| key.len() >= MIN_INPUTS_KEY)
}

/// Returns a Secret that contains a new certificate and the inputs key from the Secret `before`. With a new inputs
/// key, all inputs would appear to have changed.
pub(super) fn issue(
    name: &str,
    namespace: &str,
    before: Option<&Secret>,
    authority: &Generations,
    now: Timestamp,
) -> Result<Value, IdentityError> {
    let inputs_key = before.and_then(inputs_key).map_or_else(new_key, str::to_owned);
    let metadata = json!({"name": workspace_tls_secret(name), "namespace": namespace, "labels": labels(name)});
    secret(&metadata, &workspace_server_name(name, namespace), Some(&inputs_key), authority, now)
}

/// Returns a Secret that contains a new certificate for a pool pod. If a Workspace has taken the pod, `own` is the
/// Secret of the Workspace. That Secret provides the inputs key, so that all pods of a Workspace have the same inputs
/// key. Without `own`, the new Secret contains no inputs key, so the agent computes no hashes. The pod owns the new
/// Secret, so the garbage collector deletes the Secret after the pod.
pub(super) fn issue_for_pod(
    pod: &PooledPod,
    namespace: &str,
    own: Option<&Secret>,
    authority: &Generations,
    now: Timestamp,
) -> Result<Value, IdentityError> {
    let metadata = json!({
        "name": pool_pod_tls_secret(&pod.name),
        "namespace": namespace,
        "labels": {LABEL_COMPONENT: COMPONENT},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
    });
    secret(&metadata, &pool_pod_server_name(&pod.name, namespace), own.and_then(inputs_key), authority, now)
}

/// Returns a Secret that contains a new certificate for the given server name.
fn secret(
    metadata: &Value,
    server_name: &str,
    inputs_key: Option<&str>,
    authority: &Generations,
    now: Timestamp,
) -> Result<Value, IdentityError> {
    let issued = authority.current().issue_server(&[server_name.to_owned()], now)?;
    let base64 = |text: &str| serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap_or_default();
    let mut data = json!({
        CERTIFICATE: base64(&issued.certificate_pem),
        KEY: base64(&issued.key_pem),
        AUTHORITIES: base64(authority.bundle_pem()),
    });
    if let (Some(key), Some(data)) = (inputs_key, data.as_object_mut()) {
        data.insert(INPUTS_KEY.to_owned(), base64(key));
    }
    Ok(json!({"metadata": metadata, "type": "kubernetes.io/tls", "data": data}))
}

/// Returns a random key. Two UUIDs contain 244 random bits.
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

    fn parse(value: Value) -> Secret {
        serde_json::from_value(value).expect("valid Secret")
    }

    #[test]
    fn a_certificate_is_outdated_near_expiry_or_with_another_authority() {
        let now = Timestamp::now();
        let authority = authority(now);
        let issued = parse(issue("app", "team", None, &authority, now).expect("valid Secret"));
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
        let first = parse(issue("app", "team", None, &authority, now).expect("valid Secret"));
        let renewed = parse(issue("app", "team", Some(&first), &authority, now).expect("valid Secret"));
        assert_eq!(inputs_key(&renewed), inputs_key(&first));
        assert_ne!(renewed.data.as_ref().map(|data| &data[KEY]), first.data.as_ref().map(|data| &data[KEY]));
        let other = parse(issue("app", "team", None, &authority, now).expect("valid Secret"));
        assert_ne!(inputs_key(&other), inputs_key(&first));
    }

    #[test]
    fn a_pooled_pod_has_its_own_certificate_and_the_inputs_key() {
        let now = Timestamp::now();
        let authority = authority(now);
        let own = parse(issue("app", "team", None, &authority, now).expect("valid Secret"));
        let pod = PooledPod { name: "pulumi-pool-a-b".to_owned(), uid: "uid".to_owned() };
        let name = pool_pod_server_name(&pod.name, "team");
        let free = parse(issue_for_pod(&pod, "team", None, &authority, now).expect("valid Secret"));
        assert!(has_certificate(&free, &name, &authority, now) && inputs_key(&free).is_none());
        assert!(!is_current_in_pod(&free, &own, &name, &authority, now), "no inputs key");
        let taken = parse(issue_for_pod(&pod, "team", Some(&own), &authority, now).expect("valid Secret"));
        assert!(is_current_in_pod(&taken, &own, &name, &authority, now));
        assert!(!has_certificate(&taken, &workspace_server_name("app", "team"), &authority, now), "another name");
        let other = parse(issue("other", "team", None, &authority, now).expect("valid Secret"));
        assert!(!is_current_in_pod(&taken, &other, &name, &authority, now), "the inputs key of another Workspace");
        assert!(is_of_pod(&taken, "uid"));
        assert!(!is_of_pod(&taken, "other"), "the Secret of another pod");
        assert!(!is_of_pod(&own, "uid"), "the Secret of a Workspace");
        let mut foreign = taken.clone();
        foreign.metadata.labels = None;
        assert!(!is_of_pod(&foreign, "uid"), "a Secret without our label");
        let owners = taken.metadata.owner_references.unwrap_or_default();
        assert_eq!(owners.iter().map(|owner| owner.uid.as_str()).collect::<Vec<_>>(), ["uid"]);
    }

    #[test]
    fn an_incomplete_tls_secret_is_outdated() {
        let now = Timestamp::now();
        let authority = authority(now);
        let issued = parse(issue("app", "team", None, &authority, now).expect("valid Secret"));
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
