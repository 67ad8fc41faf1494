//! Settings and restrictions that the controller applies to workspace pods. The restrictions apply in addition to the
//! admission control of the cluster. All functions are pure.

use serde_json::Value;

use super::pod_security;
use super::spec_error::SpecError;
use crate::config::StorageConfig;

/// ServiceAccount of a pod that sets no ServiceAccount.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";
/// Labels with which network policies and Services usually select pods.
const SELECTOR_LABELS: [&str; 3] = ["app", "control-plane", "k8s-app"];
/// Prefix of other labels with which network policies and Services usually select pods.
const SELECTOR_PREFIX: &str = "app.kubernetes.io/";
/// Controller names in labels such as `app` or `app.kubernetes.io/component`. The network policies for Flux and for
/// this controller use these labels to select pods.
const CONTROLLERS: [&str; 9] = [
    "helm-controller",
    "image-automation-controller",
    "image-reflector-controller",
    "kustomize-controller",
    "notification-controller",
    "pulumi-controller",
    "source-controller",
    "source-watcher",
    "controller",
];
/// Installation names in the label `app.kubernetes.io/part-of`. The network policies for Flux and for this controller
/// also use this label to select pods.
const INSTALLATIONS: [&str; 2] = ["flux", "pulumi-controller"];

/// Settings that the controller applies to workspace pods.
#[derive(Clone, Debug)]
pub struct PodSettings {
    /// Image that contains the binary `/pulumi-controller`.
    pub agent_image: String,
    /// Pull policy of the agent image, or `None` for the Kubernetes default.
    pub agent_image_pull_policy: Option<String>,
    /// Default image of the `pulumi` container.
    pub default_image: String,
    /// Secret that contains the default access token for Pulumi Cloud.
    pub default_access_token_secret: Option<String>,
    /// Whether the controller, instead of the cluster, sets the user and the group of pods with the security profile
    /// `restricted`.
    pub assigns_user: bool,
    /// Default of `evictionProtection`.
    pub eviction_protection: bool,
    pub restrictions: PodRestrictions,
    /// Default storage that an idle Workspace keeps.
    pub storage: StorageConfig,
}

/// Restrictions that apply to the workspace pods in all namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRestrictions {
    /// Whether pods must meet the Pod Security Standard `restricted`, and must not set labels with which network
    /// policies usually select pods.
    pub is_restricted: bool,
    /// ServiceAccounts that pods can use. `name` allows the ServiceAccount in all namespaces, and `namespace/name` in
    /// one namespace. An empty list allows all ServiceAccounts.
    pub service_accounts: Vec<String>,
}

impl PodRestrictions {
    /// Checks the complete pod template of a Workspace in `namespace`.
    pub(super) fn check(&self, namespace: &str, template: &Value) -> Result<(), SpecError> {
        self.check_account(namespace, template)?;
        for (label, value) in template.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten() {
            if is_of_controller(label, value) || (self.is_restricted && is_selector(label)) {
                return Err(SpecError::SelectorLabel { label: label.clone() });
            }
        }
        if self.is_restricted { Ok(pod_security::check(template)?) } else { Ok(()) }
    }

    fn check_account(&self, namespace: &str, template: &Value) -> Result<(), SpecError> {
        let field = |name: &str| template.pointer(&format!("/spec/{name}")).and_then(Value::as_str);
        let named = |account: &&str| !account.is_empty();
        // If `serviceAccountName` is empty, Kubernetes uses the deprecated field `serviceAccount`.
        let account = field("serviceAccountName").filter(named).or_else(|| field("serviceAccount").filter(named));
        let account = account.unwrap_or(DEFAULT_SERVICE_ACCOUNT);
        let is_allowed = |allowed: &String| match allowed.split_once('/') {
            Some((of, name)) => of == namespace && name == account,
            None => allowed == account,
        };
        if self.service_accounts.is_empty() || self.service_accounts.iter().any(is_allowed) {
            return Ok(());
        }
        Err(SpecError::ServiceAccount { account: account.to_owned(), allowed: self.service_accounts.join(", ") })
    }
}

/// Returns whether a network policy would treat a pod with the given label as a controller pod.
fn is_of_controller(label: &str, value: &Value) -> bool {
    let value = value.as_str().unwrap_or_default();
    match label {
        "app" | "app.kubernetes.io/component" | "control-plane" => CONTROLLERS.contains(&value),
        "app.kubernetes.io/part-of" => INSTALLATIONS.contains(&value),
        _ => false,
    }
}

fn is_selector(label: &str) -> bool {
    SELECTOR_LABELS.contains(&label) || label.starts_with(SELECTOR_PREFIX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(restrictions: &PodRestrictions, template: &Value) -> String {
        restrictions.check("team-a", template).map_or_else(|error| error.to_string(), |()| "allowed".to_owned())
    }

    #[test]
    fn only_allowed_service_accounts_are_accepted() {
        let all = PodRestrictions::default();
        let some = PodRestrictions {
            service_accounts: vec!["pulumi".to_owned(), "team-a/deployer".to_owned(), "team-b/admin".to_owned()],
            ..PodRestrictions::default()
        };
        let rows = [
            (json!({"serviceAccountName": "pulumi"}), "allowed"),
            (json!({"serviceAccountName": "deployer"}), "allowed"),
            (json!({"serviceAccount": "pulumi"}), "allowed"),
            (json!({"serviceAccountName": "", "serviceAccount": "pulumi"}), "allowed"),
            (json!({"serviceAccountName": "admin"}), "serviceAccountName \"admin\" is not allowed"),
            (json!({"serviceAccount": "admin"}), "serviceAccountName \"admin\" is not allowed"),
            (json!({"serviceAccountName": "admin", "serviceAccount": "pulumi"}), "serviceAccountName \"admin\""),
            (json!({"serviceAccountName": null}), "serviceAccountName \"default\" is not allowed"),
            (json!({}), "serviceAccountName \"default\" is not allowed"),
        ];
        for (spec, expected) in rows {
            let template = json!({"spec": spec});
            assert_eq!(result(&all, &template), "allowed", "{template}");
            let found = result(&some, &template);
            assert!(found.starts_with(expected), "{template}: {found}");
        }
        let refused = result(&some, &json!({"spec": {}}));
        assert!(refused.contains("pulumi, team-a/deployer, team-b/admin (--allowed-service-accounts)"), "{refused}");
    }

    #[test]
    fn a_pod_with_the_labels_of_a_controller_is_rejected() {
        let restricted = PodRestrictions { is_restricted: true, ..PodRestrictions::default() };
        let rows = [
            ("app", "pulumi-controller", false, false),
            ("app", "source-controller", false, false),
            ("app.kubernetes.io/part-of", "flux", false, false),
            ("app.kubernetes.io/component", "pulumi-controller", false, false),
            ("control-plane", "controller", false, false),
            ("app", "web", true, false),
            ("app.kubernetes.io/name", "web", true, false),
            ("k8s-app", "web", true, false),
            ("team", "flux", true, true),
        ];
        let pod = json!({"containers": [], "securityContext": {}});
        for (label, value, freely, under_restriction) in rows {
            let template = json!({"metadata": {"labels": {label: value}}, "spec": pod});
            for (restrictions, expected) in
                [(PodRestrictions::default(), freely), (restricted.clone(), under_restriction)]
            {
                let found = result(&restrictions, &template);
                assert_eq!(found == "allowed", expected, "{label}={value}: {found}");
                assert!(expected || found.starts_with(&format!("podTemplate.metadata.labels: {label} ")), "{found}");
            }
        }
    }
}
