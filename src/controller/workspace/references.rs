//! Secrets and ConfigMaps that must exist before a run of a Workspace's stack starts. Pure functions.

use std::collections::BTreeSet;

use super::config;
use super::environment;
use crate::api::auto::WorkspaceSpec;
use crate::controller::references::Reference;

/// Returns the references of the environment and of the configuration of one stack, each object once and without optional
/// references. Returns nothing for an invalid spec; the run reports the error.
pub fn references(spec: &WorkspaceSpec, stack: Option<&str>) -> Vec<Reference> {
    let environment = environment::required(spec).unwrap_or_default();
    let configuration = stack.map(|stack| config::required(spec, stack)).unwrap_or_default();
    let mut known = BTreeSet::new();
    let all = environment.into_iter().chain(configuration);
    all.filter(|reference| known.insert(reference.object())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_non_optional_mounted_reference_is_required() {
        let key = |name: &str| json!({"name": name, "key": "k"});
        let spec: WorkspaceSpec = serde_json::from_value(json!({
            "env": [
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": key("token")}},
                {"name": "REGION", "valueFrom": {"configMapKeyRef": key("region")}},
                {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "maybe", "key": "k", "optional": true}}},
                {"name": "PLAIN", "value": "x"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "envFrom": [
                {"secretRef": {"name": "aws"}},
                {"configMapRef": {"name": "defaults"}},
                {"secretRef": {"name": "aws"}, "prefix": "AGAIN_"},
                {"configMapRef": {"name": "perhaps", "optional": true}},
            ],
            "podTemplate": {"spec": {"containers": [{"name": "pulumi", "env": [
                {"name": "PROXY", "valueFrom": {"configMapKeyRef": key("proxy")}},
                {"name": "OWN", "valueFrom": {"secretKeyRef": {"name": "own", "key": "k", "optional": true}}},
            ]}]}},
            "stacks": [
                {"name": "dev", "config": [
                    {"key": "size", "valueFrom": {"configMapKeyRef": key("settings")}},
                    {"key": "password", "secret": true, "valueFrom": {"secretKeyRef": key("database")}},
                    {"key": "file", "valueFrom": {"path": "/var/run/token"}},
                ]},
                {"name": "prod", "config": [{"key": "size", "valueFrom": {"configMapKeyRef": key("other")}}]},
            ],
        }))
        .expect("a spec");
        let named = |stack| -> Vec<String> {
            let named = |reference: Reference| format!("{} {}", reference.object(), reference.referrer);
            let mut named: Vec<String> = references(&spec, stack).into_iter().map(named).collect();
            named.sort();
            named
        };
        let environment = [
            "ConfigMap/defaults envFrom",
            "ConfigMap/proxy environment variable PROXY",
            "ConfigMap/region environment variable REGION",
            "Secret/aws envFrom",
            "Secret/token environment variable TOKEN",
        ];
        assert_eq!(named(None), environment);
        let mut of_dev = environment.to_vec();
        of_dev.extend(["ConfigMap/settings config key size", "Secret/database config key password"]);
        of_dev.sort_unstable();
        assert_eq!(named(Some("dev")), of_dev);
        assert_eq!(named(Some("unknown")), environment);
        let found = references(&spec, None);
        let aws = found.iter().find(|reference| reference.name == "aws").expect("there");
        assert_eq!(aws.directory, "/var/run/secrets/stacks.pulumi.com/secrets/aws");
    }
}
