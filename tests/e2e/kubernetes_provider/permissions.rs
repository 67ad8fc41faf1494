//! Tests the permissions of programs: missing permissions, and permissions for cluster-scoped objects.

use k8s_openapi::api::rbac::v1::Role;
use serde_json::json;

use super::{change_program, deploy, deploy_web, read, until_message};
use crate::harness::{WaitLimit, kubectl, run, try_kubectl};

#[test]
fn a_missing_permission_is_reported_and_the_run_is_repeated_after_the_role_permits_it() {
    run("provider-role", async |scene| {
        let web = deploy_web(scene).await;
        let secret = json!({"resources": {"secret": {
            "type": "kubernetes:core/v1:Secret",
            "properties": {"metadata": {"name": "web"}, "stringData": {"key": "value"}},
        }}});
        let revision = change_program(scene, "web", secret).await;
        let account = format!("system:serviceaccount:{}:web", scene.namespace);
        let cause = format!("User \"{account}\" cannot patch resource \"secrets\" in API group \"\"");
        until_message(&web, WaitLimit::Run, &cause).await;
        let can_i = ["--namespace", &scene.namespace, "auth", "can-i", "patch", "secrets", "--as", &account];
        assert!(try_kubectl(&can_i, "").await.is_err(), "the command in the guide reports the missing permission");

        let role = scene.api::<Role>().get("web").await.expect("the Role exists");
        let mut rules = json!(role.rules.expect("rules"));
        let verbs = ["get", "list", "watch", "create", "patch", "delete"];
        rules
            .as_array_mut()
            .expect("a list")
            .push(json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}));
        scene.patch::<Role>("web", json!({"rules": rules})).await;
        kubectl(&can_i, "").await;
        web.annotate("reconcile.fluxcd.io/requestedAt", "permitted").await;
        web.until_revision_within(WaitLimit::Long, &revision).await;
        assert_eq!(read(scene, "secret/web", "{.data.key}").await, "dmFsdWU=");
    });
}

#[test]
fn patches_change_only_the_fields_in_the_program_and_a_destroy_removes_only_these_fields() {
    run("provider-patch", async |scene| {
        let web = deploy(scene, "kubernetes-patch", "web").await;
        web.until_revision_within(WaitLimit::Long, "1").await;
        assert_eq!(
            read(scene, "configmap/settings", "{.data}").await,
            r#"{"logLevel":"info","owner":"platform","timeout":"30s"}"#
        );
        let namespace = format!("namespace/{}", scene.namespace);
        let owner = "{.metadata.labels.example\\.com/owner}";
        assert_eq!(read(scene, &namespace, owner).await, "web");

        // The program now sets a field that kubectl manages.
        let conflict = json!({"resources": {"settings": {"properties": {"data": {"logLevel": "debug"}}}}});
        change_program(scene, "web", conflict).await;
        let message = until_message(&web, WaitLimit::Run, "kubectl").await;
        assert!(message.contains(".data.logLevel"), "{message}");
        assert_eq!(read(scene, "configmap/settings", "{.data.logLevel}").await, "info");
        let force = json!({"resources": {"settings": {"properties": {
            "metadata": {"annotations": {"pulumi.com/patchForce": "true"}},
        }}}});
        let revision = change_program(scene, "web", force).await;
        web.until_revision_within(WaitLimit::Long, &revision).await;
        assert_eq!(read(scene, "configmap/settings", "{.data.logLevel}").await, "debug");

        web.delete().await;
        web.until_gone().await;
        assert_eq!(read(scene, "configmap/settings", "{.data.owner}").await, "platform", "the object remains");
        assert_eq!(read(scene, "configmap/settings", "{.data.timeout}").await, "");
        assert_eq!(read(scene, &namespace, owner).await, "");
        let role = format!("{}-labels", scene.namespace);
        kubectl(&["delete", "clusterrole,clusterrolebinding", &role], "").await;
    });
}
