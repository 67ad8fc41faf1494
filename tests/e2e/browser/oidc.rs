//! Runs the user stories of the sign-in at a real OIDC issuer, whose ID tokens the API server accepts.

use std::path::PathBuf;

use k8s_openapi::api::rbac::v1::RoleBinding;
use serde_json::json;

use super::run_stories;
use crate::harness::{
    Controller, Program, Scene, client, in_scene, kubectl, report_skipped, run_alone, run_with_cleanup,
};

/// Name of the Secret with the client secret, of the ConfigMap with the issuer's authority, and of their volumes.
const NAME: &str = "ui-oidc";
const SECRET_VOLUME: &str = "ui-oidc";
const AUTHORITY_VOLUME: &str = "ui-oidc-authority";
/// Directory with the client secret.
const SECRET_PATH: &str = "/etc/pulumi-controller/ui";
/// Directory with the CA certificates of the issuer.
const AUTHORITY_PATH: &str = "/etc/pulumi-controller/ui-ca";

/// Issuer that `tests/cluster/cluster oidc` has started.
struct Issuer {
    url: String,
    client_id: String,
    /// URL of the UI to which the issuer redirects users.
    ui_url: String,
    /// Name that the API server derives from an ID token of the user.
    user: String,
    /// Directory with the client secret and the certificates.
    folder: PathBuf,
}

impl Issuer {
    /// Returns `None` if the cluster has no issuer.
    fn find() -> Option<Issuer> {
        let variable = |name: &str| std::env::var(name).ok();
        Some(Issuer {
            url: variable("OIDC_ISSUER")?,
            client_id: variable("OIDC_CLIENT_ID")?,
            ui_url: variable("OIDC_UI_URL")?,
            user: variable("OIDC_USER_IN_CLUSTER")?,
            folder: variable("OIDC_FILES")?.into(),
        })
    }

    fn read(&self, name: &str) -> String {
        let file = self.folder.join(name);
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Restarts the controller with this issuer.
    async fn enable(&self, controller: &Controller, before: &[String]) {
        let metadata = json!({"name": NAME, "namespace": "flux-system"});
        let secret = json!({"client-secret": self.read("client-secret")});
        let authority = json!({"ca.crt": self.read("authority.crt")});
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret},
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": authority},
        ]});
        kubectl(&["apply", "--filename", "-"], &objects.to_string()).await;
        let volumes = [
            json!({"name": SECRET_VOLUME, "secret": {"secretName": NAME}}),
            json!({"name": AUTHORITY_VOLUME, "configMap": {"name": NAME}}),
        ];
        let mounts = [(SECRET_VOLUME, SECRET_PATH), (AUTHORITY_VOLUME, AUTHORITY_PATH)]
            .map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true}));
        controller.add_volumes(&volumes, &mounts).await;
        let flags = [
            format!("--ui-url={}", self.ui_url),
            format!("--ui-oidc-issuer={}", self.url),
            format!("--ui-oidc-client-id={}", self.client_id),
            format!("--ui-oidc-client-secret-file={SECRET_PATH}/client-secret"),
            format!("--ui-oidc-ca-file={AUTHORITY_PATH}/ca.crt"),
        ];
        controller.start_with(&[before, &flags].concat(), 1).await;
    }
}

/// Restarts the controller without an issuer.
async fn disable(controller: &Controller, before: &[String]) {
    controller.remove_volumes(&[SECRET_VOLUME, AUTHORITY_VOLUME], &[SECRET_PATH, AUTHORITY_PATH]).await;
    controller.start_with(before, 1).await;
    kubectl(&["--namespace", "flux-system", "delete", "secret,configmap", NAME, "--ignore-not-found"], "").await;
}

/// Runs the stories with a user who has the role `edit` in the first scene, and no permissions in the other scene.
async fn sign_in(issuer: &Issuer, scene: &Scene, other: &Scene) {
    let source = scene.source("web").await;
    let commit = source.push(&Program::new("web").step("page", json!({"value": "one"})).files()).await;
    let web = scene.start(scene.stack("web", &source)).await;
    web.until_applied(&commit).await;
    let source = other.source("vault").await;
    source.push(&Program::new("vault").step("key", json!({"value": "one"})).files()).await;
    let mut vault = other.stack("vault", &source);
    vault.spec.suspend = Some(true);
    let vault = other.start(vault).await;
    scene
        .create::<RoleBinding>(json!({
            "metadata": {"name": "jane"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": issuer.user}],
        }))
        .await;
    let authority = issuer.folder.join("authority.crt");
    let variables = [
        ("UI_NAMESPACE", &*scene.namespace),
        ("OTHER_NAMESPACE", &*other.namespace),
        ("NODE_EXTRA_CA_CERTS", authority.to_str().expect("a path in UTF-8")),
    ];
    run_stories("oidc.test.mjs", &variables).await;
    assert_eq!(web.get().await.spec.suspend, Some(true), "the user has suspended this Stack");
    assert_eq!(vault.get().await.spec.suspend, Some(true), "the user could not resume this Stack");
}

#[test]
fn a_user_signs_in_at_a_real_oidc_issuer() {
    let Some(issuer) = Issuer::find() else {
        report_skipped("browser::oidc", "the cluster has no OIDC issuer, which `tests/cluster/cluster oidc` starts");
        return;
    };
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let test = async || {
            issuer.enable(&controller, &before).await;
            in_scene("oidc", async |scene| {
                in_scene("oidc-other", async |other| sign_in(&issuer, scene, other).await).await;
            })
            .await;
        };
        run_with_cleanup(test, async || disable(&controller, &before).await).await;
    });
}
