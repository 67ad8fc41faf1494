//! Tests that use the pods from the Kubernetes tests, and tests for the error messages.

use serde_json::json;

use super::*;

/// Pods from the Kubernetes tests for `restricted` at version 1.35, with the expected results
/// (k8s.io/pod-security-admission v0.35.4, `test/testdata/restricted/v1.35`, Apache License 2.0).
const KUBERNETES: &str = include_str!("kubernetes-restricted.json");

#[test]
fn pod_security_results_match_the_kubernetes_test_cases() {
    let cases: Vec<Value> = serde_json::from_str(KUBERNETES).expect("list of test cases");
    assert!(cases.len() > 90, "found only {} test cases", cases.len());
    for case in cases {
        let (name, expected) = (case["name"].as_str().expect("name is set"), case["allowed"] == true);
        // The standard exempts Windows pods, but `check` rejects them, because the agent supports only Linux.
        let expected = expected && name != "base_windows";
        let found = check(&case["pod"]);
        assert_eq!(found.is_ok(), expected, "{name}: {found:?}");
    }
}

/// Returns a pod that meets the standard except for one changed field.
fn with(pointer: &str, value: Value) -> Value {
    let container = |name: &str| json!({"name": name, "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    let mut template = json!({
        "metadata": {"annotations": {}},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [container("prepare")],
            "containers": [container("pulumi")],
            "ephemeralContainers": [container("debug")],
        },
    });
    let (parent, field) = pointer.rsplit_once('/').expect("valid pointer");
    let mut at = &mut template;
    for part in parent.split('/').skip(1) {
        at = match part.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[part],
        };
    }
    at[field] = value;
    template
}

/// Asserts that the check rejects each row with the expected message.
fn assert_refused<const N: usize>(rows: [(&str, Value, &str); N]) {
    for (pointer, value, words) in rows {
        let error = check(&with(pointer, value)).expect_err(pointer).to_string();
        let expected = format!("pod violates the Pod Security Standard restricted: {words}");
        assert!(error.starts_with(&expected), "{pointer}: {error}");
    }
}

#[test]
fn messages_about_violated_pod_controls_name_the_field() {
    assert_eq!(check(&with("/spec/hostNetwork", json!(false))), Ok(()));
    assert_refused([
        ("/spec/hostNetwork", json!(true), "Host Namespaces: spec.hostNetwork must be unset or false"),
        ("/spec/hostPID", json!(true), "Host Namespaces: spec.hostPID"),
        ("/spec/hostIPC", json!(true), "Host Namespaces: spec.hostIPC"),
        (
            "/spec/volumes",
            json!([{"name": "node", "hostPath": {"path": "/"}}]),
            "HostPath Volumes: spec.volumes[node].hostPath is not an allowed volume type",
        ),
        ("/spec/volumes", json!([{"name": "files", "nfs": {}}]), "Volume Types: spec.volumes[files].nfs"),
    ]);
}

#[test]
fn messages_about_violated_security_contexts_name_the_field() {
    assert_refused([
        (
            "/spec/securityContext/windowsOptions",
            json!({"hostProcess": true}),
            "HostProcess: spec.securityContext.windowsOptions.hostProcess",
        ),
        (
            "/spec/securityContext/seccompProfile",
            json!({"type": "Unconfined"}),
            "Seccomp: spec.securityContext.seccompProfile.type is \"Unconfined\"",
        ),
        (
            "/spec/securityContext/seccompProfile",
            json!(null),
            "Seccomp: spec.initContainers[prepare].securityContext.seccompProfile.type must be RuntimeDefault or Localhost",
        ),
        (
            "/spec/securityContext/runAsNonRoot",
            json!(null),
            "Running as Non-root: spec.initContainers[prepare].securityContext.runAsNonRoot must be true",
        ),
        ("/spec/securityContext/runAsUser", json!(0), "Running as Non-root user: spec.securityContext.runAsUser"),
        (
            "/spec/securityContext/seLinuxOptions",
            json!({"type": "spc_t"}),
            "SELinux: spec.securityContext.seLinuxOptions.type is \"spc_t\"",
        ),
        (
            "/spec/securityContext/seLinuxOptions",
            json!({"user": "u"}),
            "SELinux: spec.securityContext.seLinuxOptions.user",
        ),
        (
            "/spec/securityContext/appArmorProfile",
            json!({"type": "Unconfined"}),
            "AppArmor: spec.securityContext.appArmorProfile.type",
        ),
        (
            "/spec/securityContext/sysctls",
            json!([{"name": "kernel.msgmax"}]),
            "Sysctls: spec.securityContext.sysctls has \"kernel.msgmax\"",
        ),
    ]);
}

#[test]
fn messages_about_violated_container_controls_name_the_field() {
    assert_refused([
        (
            "/spec/containers/0/securityContext/privileged",
            json!(true),
            "Privileged Containers: spec.containers[pulumi].securityContext.privileged",
        ),
        (
            "/spec/containers/0/securityContext/allowPrivilegeEscalation",
            json!(null),
            "Privilege Escalation: spec.containers[pulumi].securityContext.allowPrivilegeEscalation must be false",
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}),
            "Capabilities: spec.containers[pulumi].securityContext.capabilities.add has \"SYS_ADMIN\"",
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            json!({"drop": ["NET_RAW"]}),
            "Capabilities: spec.containers[pulumi].securityContext.capabilities.drop must include ALL",
        ),
        (
            "/spec/containers/0/securityContext/procMount",
            json!("Unmasked"),
            "/proc Mount Type: spec.containers[pulumi].securityContext.procMount is \"Unmasked\"",
        ),
        ("/spec/containers/0/ports", json!([{"hostPort": 80}]), "Host Ports: spec.containers[pulumi].ports.hostPort"),
        (
            "/spec/containers/0/livenessProbe",
            json!({"httpGet": {"host": "10.0.0.1"}}),
            "Host Probes / Lifecycle Hooks: spec.containers[pulumi].livenessProbe.httpGet.host",
        ),
        (
            "/spec/containers/0/lifecycle",
            json!({"preStop": {"tcpSocket": {"host": "10.0.0.1"}}}),
            "Host Probes / Lifecycle Hooks: spec.containers[pulumi].lifecycle.preStop.tcpSocket.host",
        ),
        (
            "/spec/ephemeralContainers/0/securityContext/privileged",
            json!(true),
            "Privileged Containers: spec.ephemeralContainers[debug].securityContext.privileged",
        ),
        (
            "/spec/initContainers/0/securityContext/runAsUser",
            json!(0),
            "Running as Non-root user: spec.initContainers[prepare].securityContext.runAsUser",
        ),
    ]);
}

#[test]
fn the_apparmor_annotation_is_checked() {
    let mut annotated = with("/spec/hostIPC", json!(false));
    let name = format!("{APPARMOR_ANNOTATION}pulumi");
    annotated["metadata"]["annotations"] = json!({name: "unconfined"});
    let error = check(&annotated).expect_err("unconfined").to_string();
    assert!(error.contains("AppArmor: metadata.annotations[container.apparmor"), "{error}");
}
