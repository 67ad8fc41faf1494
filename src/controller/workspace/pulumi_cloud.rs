//! Pulumi Cloud credentials for a workspace pod: either a ServiceAccount token with which each run logs in, or the
//! access token from the controller's default Secret. All functions are pure.

use serde_json::{Value, json};

use super::environment::{self, Desired};
use super::pod;
use super::spec_error::SpecError;
use crate::api::auto::WorkspaceSpec;
use crate::api::names::{ACCESS_TOKEN_DIRECTORY, ACCESS_TOKEN_KEY, OIDC_DIRECTORY, OIDC_FILE};
use crate::pulumi::backend::{self, TOKEN_VARIABLE, URL_VARIABLE};
use crate::rpc::proto;

const OIDC_VOLUME: &str = "pulumi-cloud-oidc";
const ACCESS_TOKEN_VOLUME: &str = "pulumi-cloud-access-token";
/// Validity period of the ServiceAccount token, in seconds. A login never uses an expired token, because the kubelet
/// replaces the token after 80 % of this period.
const TOKEN_SECONDS: u32 = 3600;

/// Credentials that the controller adds to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// No credentials, because the environment can contain an access token or the backend is not Pulumi Cloud.
    Environment,
    /// A ServiceAccount token for the given audience.
    ServiceAccountToken { audience: String },
    /// The access token in the given Secret, which may not exist.
    Secret(String),
}

impl Credentials {
    /// Returns the credentials for the pod of a Workspace. `default_secret` is the controller's default Secret.
    pub(super) fn of(spec: &WorkspaceSpec, default_secret: Option<&str>) -> Result<Self, SpecError> {
        let environment = environment::desired(spec)?;
        let has_token = environment.variable(TOKEN_VARIABLE).is_some();
        let other_backend = backend_url(&environment).filter(|url| backend::is_self_managed(url));
        let Some(oidc) = &spec.pulumi_cloud_oidc else {
            let secret = default_secret.filter(|_| !has_token && other_backend.is_none());
            return Ok(secret.map_or(Credentials::Environment, |secret| Credentials::Secret(secret.to_owned())));
        };
        if let Some((field, rule)) = oidc.invalid_field() {
            return Err(SpecError::Oidc { field, rule });
        }
        if has_token {
            return Err(SpecError::OidcWithToken);
        }
        match other_backend {
            Some(url) => {
                let url = backend::without_credentials(url).unwrap_or_default();
                Err(SpecError::OidcWithBackend { url })
            }
            None => Ok(Credentials::ServiceAccountToken { audience: oidc.audience() }),
        }
    }

    /// Returns the name of the default Secret, or `None` if the pod does not use it.
    pub(super) fn default_secret(&self) -> Option<&str> {
        match self {
            Credentials::Secret(name) => Some(name),
            Credentials::Environment | Credentials::ServiceAccountToken { .. } => None,
        }
    }

    /// Mounts the credentials in the `pulumi` container of a pod template. All users can read the files (mode 0644),
    /// because the container user depends on the security profile and on the image.
    pub(super) fn mount(&self, template: &mut Value) {
        let (name, directory, source) = match self {
            Credentials::Environment => return,
            Credentials::ServiceAccountToken { audience } => {
                let token = json!({"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": OIDC_FILE});
                let source = json!({"projected": {"sources": [{"serviceAccountToken": token}]}});
                (OIDC_VOLUME, OIDC_DIRECTORY, source)
            }
            Credentials::Secret(secret) => {
                let items = json!([{"key": ACCESS_TOKEN_KEY, "path": ACCESS_TOKEN_KEY}]);
                let source = json!({"secret": {"secretName": secret, "items": items, "optional": true}});
                (ACCESS_TOKEN_VOLUME, ACCESS_TOKEN_DIRECTORY, source)
            }
        };
        let mut volume = json!({"name": name});
        if let (Some(volume), Value::Object(source)) = (volume.as_object_mut(), source) {
            volume.extend(source);
        }
        let mount = json!({"name": name, "mountPath": directory, "readOnly": true});
        if let Some(volumes) = template.pointer_mut("/spec/volumes").and_then(Value::as_array_mut) {
            volumes.push(volume);
        }
        let mounts = pod::pulumi_container(template).and_then(|container| container.get_mut("volumeMounts"));
        if let Some(mounts) = mounts.and_then(Value::as_array_mut) {
            mounts.push(mount);
        }
    }
}

/// Returns the backend URL from the environment, or `None` if the environment does not contain a literal URL.
fn backend_url(environment: &Desired) -> Option<&str> {
    environment.variable(URL_VARIABLE)?.get("value")?.as_str()
}

/// Returns the login for a run, or `None` if the Workspace defines no login. A timeout of 0 means that the run has no
/// timeout.
pub fn oidc_login(spec: &WorkspaceSpec, timeout_seconds: u64) -> Option<proto::OidcLogin> {
    let oidc = spec.pulumi_cloud_oidc.as_ref()?;
    Some(proto::OidcLogin {
        organization: oidc.organization.clone(),
        team: oidc.team.clone().unwrap_or_default(),
        user: oidc.user.clone().unwrap_or_default(),
        token_file: format!("{OIDC_DIRECTORY}/{OIDC_FILE}"),
        expiration_seconds: oidc.expiration_seconds(timeout_seconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Option<&str> = Some("pulumi-cloud");

    fn spec(spec: Value) -> WorkspaceSpec {
        serde_json::from_value(spec).expect("valid spec")
    }

    #[test]
    fn the_default_access_token_applies_if_the_spec_has_no_other_credentials() {
        let token = |source: Value| {
            let mut variable = json!({"name": "PULUMI_ACCESS_TOKEN"});
            variable.as_object_mut().expect("is a map").extend(source.as_object().expect("is a map").clone());
            variable
        };
        let url = |url: &str| json!({"env": [{"name": "PULUMI_BACKEND_URL", "value": url}]});
        let from_secret = token(json!({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}));
        let of_template = json!({"spec": {"containers": [{"name": "pulumi", "env": [from_secret]}]}});
        let of_other = json!({"spec": {"containers": [{"name": "proxy", "env": [from_secret]}]}});
        let from = json!({"valueFrom": {"configMapKeyRef": {"name": "c", "key": "url"}}});
        let rows = [
            (json!({}), true),
            (json!({"envFrom": [{"secretRef": {"name": "aws"}}]}), true),
            (json!({"podTemplate": of_other}), true),
            (url("https://pulumi.example.com"), true),
            (url("$(URL)"), true),
            (json!({"env": [{"name": "PULUMI_BACKEND_URL", "valueFrom": from["valueFrom"]}]}), true),
            (url("s3://state"), false),
            (url("file:///state"), false),
            (json!({"env": [from_secret]}), false),
            (json!({"env": [token(json!({"value": ""}))]}), false),
            (json!({"podTemplate": of_template}), false),
            (json!({"pulumiCloudOIDC": {"organization": "acme"}}), false),
        ];
        for (fields, expected) in rows {
            let found = Credentials::of(&spec(fields.clone()), DEFAULT).expect("valid");
            assert_eq!(found.default_secret(), DEFAULT.filter(|_| expected), "{fields}");
            let without = Credentials::of(&spec(fields.clone()), None).expect("valid");
            assert_eq!(without.default_secret(), None, "{fields}");
        }
    }

    #[test]
    fn the_error_for_conflicting_credentials_names_both_fields() {
        let oidc = |more: Value| {
            let mut fields = json!({"pulumiCloudOIDC": {"organization": "acme"}});
            fields.as_object_mut().expect("is a map").extend(more.as_object().expect("is a map").clone());
            Credentials::of(&spec(fields), DEFAULT).map_err(|error| error.to_string())
        };
        let expected = Credentials::ServiceAccountToken { audience: "urn:pulumi:org:acme".to_owned() };
        let cloud = json!({"env": [{"name": "PULUMI_BACKEND_URL", "value": "http://cloud.example"}]});
        for fields in [json!({}), cloud] {
            assert_eq!(oidc(fields), Ok(expected.clone()));
        }
        let rows = [
            (
                json!({"env": [{"name": "PULUMI_ACCESS_TOKEN", "value": "x"}]}),
                "pulumiCloudOIDC and PULUMI_ACCESS_TOKEN in env are mutually exclusive: remove one of them",
            ),
            (
                json!({"env": [{"name": "PULUMI_BACKEND_URL", "value": "postgres://user:word@db/state"}]}),
                "pulumiCloudOIDC requires Pulumi Cloud, but PULUMI_BACKEND_URL in env is postgres://db/state: remove one of \
                 them",
            ),
            (
                json!({"pulumiCloudOIDC": {"organization": "acme", "team": "a", "user": "b"}}),
                "invalid pulumiCloudOIDC.user: must not be set together with team",
            ),
        ];
        for (fields, message) in rows {
            assert_eq!(oidc(fields), Err(message.to_owned()));
        }
    }

    #[test]
    fn the_credentials_are_mounted_read_only_in_the_pulumi_container() {
        let empty = json!({"spec": {
            "containers": [{"name": "proxy", "volumeMounts": []}, {"name": "pulumi", "volumeMounts": []}],
            "volumes": [],
        }});
        let mounted = |credentials: &Credentials| {
            let mut template = empty.clone();
            credentials.mount(&mut template);
            assert_eq!(template["spec"]["containers"][0], empty["spec"]["containers"][0]);
            (template["spec"]["volumes"].clone(), template["spec"]["containers"][1]["volumeMounts"].clone())
        };
        assert_eq!(mounted(&Credentials::Environment), (json!([]), json!([])));
        let token = json!({"audience": "urn:a", "expirationSeconds": 3600, "path": "token"});
        assert_eq!(
            mounted(&Credentials::ServiceAccountToken { audience: "urn:a".to_owned() }),
            (
                json!([{"name": OIDC_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}]),
                json!([{"name": OIDC_VOLUME, "mountPath": OIDC_DIRECTORY, "readOnly": true}]),
            )
        );
        let items = json!([{"key": "accessToken", "path": "accessToken"}]);
        assert_eq!(
            mounted(&Credentials::Secret("pulumi-cloud".to_owned())),
            (
                json!([{
                    "name": ACCESS_TOKEN_VOLUME,
                    "secret": {"secretName": "pulumi-cloud", "items": items, "optional": true},
                }]),
                json!([{"name": ACCESS_TOKEN_VOLUME, "mountPath": ACCESS_TOKEN_DIRECTORY, "readOnly": true}]),
            )
        );
    }

    #[test]
    fn a_login_has_the_account_and_an_expiration_that_covers_the_run() {
        assert_eq!(oidc_login(&WorkspaceSpec::default(), 60), None);
        let oidc = json!({"organization": "acme", "team": "platform", "audience": "urn:example"});
        let login = oidc_login(&spec(json!({"pulumiCloudOIDC": oidc})), 3600).expect("has a login");
        let expected = proto::OidcLogin {
            organization: "acme".to_owned(),
            team: "platform".to_owned(),
            user: String::new(),
            token_file: "/var/run/secrets/stacks.pulumi.com/oidc/token".to_owned(),
            expiration_seconds: 7200,
        };
        assert_eq!(login, expected);
    }
}
