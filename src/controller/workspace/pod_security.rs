//! Validates a complete pod template against the Pod Security Standard `restricted` (Kubernetes 1.35). All functions
//! are pure.
//!
//! A namespace label enforces the standard in the namespace, and `--restrict-workspace-pods` enforces the standard in
//! all namespaces. Without enforcement, a user who can edit Workspaces could make the controller create any pod. The
//! module ignores two exemptions that the standard defines. It ignores the exemption for Windows, because the agent
//! supports only Linux. It ignores the exemption for user namespaces, because a node can ignore `hostUsers`.

use serde_json::Value;

/// Violation of the standard in a pod template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod violates the Pod Security Standard restricted: {control}: {field} {rule}")]
pub struct Violation {
    control: &'static str,
    field: String,
    rule: String,
}

/// Capabilities that a container can add.
const CAPABILITIES: [&str; 1] = ["NET_BIND_SERVICE"];
const SELINUX_TYPES: [&str; 5] = ["", "container_engine_t", "container_init_t", "container_kvm_t", "container_t"];
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const PROFILES: [&str; 2] = ["Localhost", "RuntimeDefault"];
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Returns the first violation in a pod template (`metadata` and `spec`).
pub fn check(template: &Value) -> Result<(), Violation> {
    let pod = Part { path: "spec".to_owned(), value: template.get("spec").unwrap_or(&Value::Null) };
    let containers = containers(&pod);
    check_pod(&pod)?;
    check_volumes(&pod)?;
    check_sysctls(&pod)?;
    check_apparmor_annotations(template)?;
    for part in std::iter::once(&pod).chain(&containers) {
        check_context(part)?;
    }
    for container in &containers {
        check_container(container)?;
        check_capabilities(container)?;
        check_hosts(container)?;
        check_inherited(&pod, container)?;
    }
    Ok(())
}

/// Pod spec or container, and its path in the pod template.
struct Part<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> Part<'a> {
    /// Returns the field at `pointer` in the part, or `None` if the field is missing or null.
    fn get(&self, pointer: &str) -> Option<&'a Value> {
        self.value.pointer(pointer).filter(|value| !value.is_null())
    }

    fn list(&self, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.get(pointer).and_then(Value::as_array).into_iter().flatten()
    }

    fn violation(&self, control: &'static str, pointer: &str, rule: impl Into<String>) -> Result<(), Violation> {
        let field = format!("{}{}", self.path, pointer.replace('/', "."));
        Err(Violation { control, field, rule: rule.into() })
    }

    /// Returns a violation unless the field is missing or has one of the allowed values.
    fn one_of(&self, control: &'static str, pointer: &str, allowed: &[&str]) -> Result<(), Violation> {
        match self.get(pointer) {
            Some(found) if !found.as_str().is_some_and(|found| allowed.contains(&found)) => {
                let allowed: Vec<&str> = allowed.iter().copied().filter(|value| !value.is_empty()).collect();
                self.violation(control, pointer, format!("is {found}; allowed: unset, {}", allowed.join(", ")))
            }
            _ => Ok(()),
        }
    }

    /// Returns a violation unless the field is missing or false.
    fn forbid_true(&self, control: &'static str, pointer: &str) -> Result<(), Violation> {
        match self.get(pointer) {
            Some(found) if found != &Value::Bool(false) => self.violation(control, pointer, "must be unset or false"),
            _ => Ok(()),
        }
    }

    /// Returns a violation unless the field is missing or empty.
    fn empty(&self, control: &'static str, pointer: &str) -> Result<(), Violation> {
        match self.get(pointer) {
            Some(found) if found.as_str() != Some("") => self.violation(control, pointer, "must be unset"),
            _ => Ok(()),
        }
    }
}

fn containers<'a>(pod: &Part<'a>) -> Vec<Part<'a>> {
    let mut all = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in pod.list(&format!("/{list}")) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            all.push(Part { path: format!("spec.{list}[{name}]"), value: container });
        }
    }
    all
}

fn check_pod(pod: &Part<'_>) -> Result<(), Violation> {
    for field in ["/hostNetwork", "/hostPID", "/hostIPC"] {
        pod.forbid_true("Host Namespaces", field)?;
    }
    Ok(())
}

/// Checks the controls that apply to both the pod and its containers.
fn check_context(part: &Part<'_>) -> Result<(), Violation> {
    part.forbid_true("HostProcess", "/securityContext/windowsOptions/hostProcess")?;
    part.one_of("AppArmor", "/securityContext/appArmorProfile/type", &PROFILES)?;
    part.one_of("SELinux", "/securityContext/seLinuxOptions/type", &SELINUX_TYPES)?;
    part.empty("SELinux", "/securityContext/seLinuxOptions/user")?;
    part.empty("SELinux", "/securityContext/seLinuxOptions/role")?;
    part.one_of("Seccomp", "/securityContext/seccompProfile/type", &PROFILES)?;
    let (user, non_root) = ("/securityContext/runAsUser", "/securityContext/runAsNonRoot");
    if part.get(user).is_some_and(|user| user.as_u64().is_none_or(|user| user == 0)) {
        return part.violation("Running as Non-root user", user, "must be unset or non-zero");
    }
    match part.get(non_root) {
        Some(found) if found != &Value::Bool(true) => {
            part.violation("Running as Non-root", non_root, "must be unset or true")
        }
        _ => Ok(()),
    }
}

fn check_container(container: &Part<'_>) -> Result<(), Violation> {
    container.forbid_true("Privileged Containers", "/securityContext/privileged")?;
    container.one_of("/proc Mount Type", "/securityContext/procMount", &["Default"])?;
    let escalation = "/securityContext/allowPrivilegeEscalation";
    if container.get(escalation) != Some(&Value::Bool(false)) {
        return container.violation("Privilege Escalation", escalation, "must be false");
    }
    for port in container.list("/ports") {
        let host_port = port.get("hostPort").filter(|port| !port.is_null());
        if host_port.is_some_and(|port| port.as_u64() != Some(0)) {
            return container.violation("Host Ports", "/ports.hostPort", "must be unset or 0");
        }
    }
    Ok(())
}

fn check_capabilities(container: &Part<'_>) -> Result<(), Violation> {
    let (add, drop) = ("/securityContext/capabilities/add", "/securityContext/capabilities/drop");
    if let Some(added) =
        container.list(add).find(|added| added.as_str().is_none_or(|name| !CAPABILITIES.contains(&name)))
    {
        let rule = format!("has {added}; allowed: {}", CAPABILITIES.join(", "));
        return container.violation("Capabilities", add, rule);
    }
    match container.list(drop).any(|dropped| dropped == "ALL") {
        true => Ok(()),
        false => container.violation("Capabilities", drop, "must include ALL"),
    }
}

/// Checks the hosts in probes and lifecycle handlers, because the kubelet connects to these hosts from the node.
fn check_hosts(container: &Part<'_>) -> Result<(), Violation> {
    let actions = ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/postStart", "lifecycle/preStop"];
    for action in actions {
        for handler in ["httpGet", "tcpSocket"] {
            container.empty("Host Probes / Lifecycle Hooks", &format!("/{action}/{handler}/host"))?;
        }
    }
    Ok(())
}

/// Checks the fields that each container must set if the pod does not set them.
fn check_inherited(pod: &Part<'_>, container: &Part<'_>) -> Result<(), Violation> {
    let is_set = |pointer: &str| pod.get(pointer).is_some() || container.get(pointer).is_some();
    let (seccomp, non_root) = ("/securityContext/seccompProfile/type", "/securityContext/runAsNonRoot");
    if !is_set(seccomp) {
        return container.violation(
            "Seccomp",
            seccomp,
            "must be RuntimeDefault or Localhost in the container or the pod",
        );
    }
    match is_set(non_root) {
        true => Ok(()),
        false => container.violation("Running as Non-root", non_root, "must be true in the container or the pod"),
    }
}

fn check_volumes(pod: &Part<'_>) -> Result<(), Violation> {
    for volume in pod.list("/volumes").filter_map(Value::as_object) {
        let of_other_types = |(field, source): &(&String, &Value)| {
            *field != "name" && !source.is_null() && !VOLUMES.contains(&field.as_str())
        };
        if let Some((kind, _)) = volume.iter().find(of_other_types) {
            let name = volume.get("name").and_then(Value::as_str).unwrap_or_default();
            let rule = format!("is not an allowed volume type; allowed: {}", VOLUMES.join(", "));
            let control = if kind == "hostPath" { "HostPath Volumes" } else { "Volume Types" };
            return pod.violation(control, &format!("/volumes[{name}]/{kind}"), rule);
        }
    }
    Ok(())
}

fn check_sysctls(pod: &Part<'_>) -> Result<(), Violation> {
    for sysctl in pod.list("/securityContext/sysctls") {
        let name = sysctl.get("name").and_then(Value::as_str).unwrap_or_default();
        if !SYSCTLS.contains(&name) {
            return pod.violation(
                "Sysctls",
                "/securityContext/sysctls",
                format!("has {name:?}, which is not a safe sysctl"),
            );
        }
    }
    Ok(())
}

fn check_apparmor_annotations(template: &Value) -> Result<(), Violation> {
    let annotations = template.pointer("/metadata/annotations").and_then(Value::as_object);
    for (name, profile) in annotations.into_iter().flatten().filter(|(name, _)| name.starts_with(APPARMOR_ANNOTATION)) {
        let profile = profile.as_str().unwrap_or_default();
        if !matches!(profile, "" | "runtime/default") && !profile.starts_with("localhost/") {
            let field = format!("metadata.annotations[{name}]");
            let rule = format!("is {profile:?}; allowed: runtime/default, localhost/*");
            return Err(Violation { control: "AppArmor", field, rule });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
