//! Generates the pod template and defines the security profiles. A later step merges the user-defined `podTemplate`
//! into the generated template. All functions are pure.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::config::Mounted;
use super::environment::has_name;
use super::init_containers::{BOOTSTRAP_CONTAINER, FETCH_CONTAINER, GENERATED_CONTAINERS};
use super::metadata::labels;
use super::pod_settings::PodSettings;
use super::source::DesiredSource;
use super::spec_error::SpecError;
use crate::api::auto::WorkspaceSpec;
use crate::api::names::{
    AGENT_HEALTH_PORT, AGENT_PORT, AGENT_PORT_NAME, ANNOTATION_REVISION_HASH, ANNOTATION_SAFE_TO_EVICT, ENV_FILE,
    ENV_FILE_VARIABLE, GRACE_VARIABLE, PULUMI_CONTAINER, PULUMI_HOME, SHARE_DIRECTORY, SHARE_VOLUME,
    TEMPORARY_DIRECTORY, TERMINATION_GRACE_SECONDS, TLS_DIRECTORY, workspace_tls_secret,
};
use crate::pulumi::cli;

const TLS_VOLUME: &str = "tls";
/// Path of the agent binary in the agent image.
const BINARY_IN_IMAGE: &str = "/pulumi-controller";
/// Path of the agent binary in the pod.
const BINARY_IN_POD: &str = "/share/bin/pulumi-controller";
/// Path of the project. The path is either a symbolic link that the init container `bootstrap` creates, or a
/// directory that user-defined init containers create.
const PROJECT_DIRECTORY: &str = "/share/workspace";
/// Default termination grace period of Kubernetes, in seconds.
const KUBERNETES_GRACE_SECONDS: u64 = 30;
/// Maximum number of failed startup probes. With one probe per second, the limit is one hour. If a pod does not start
/// within one hour, its image is probably broken.
const MAX_STARTUP_PROBES: u32 = 3600;
/// ServiceAccount that exists in each namespace.
const DEFAULT_SERVICE_ACCOUNT: &str = "default";
/// Default memory request of a workspace pod. An idle pod used 7 MiB in a measurement. The request excludes the
/// memory for a run, because few pods on a node execute runs at the same time.
const MEMORY_REQUEST: &str = "16Mi";
/// Resources that the generated init containers take over from the `pulumi` container. They need no devices.
const SHARED_RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// Tag suffix of an image that runs as a non-root user. The image with the same tag but without the suffix runs as
/// root.
const NONROOT: &str = "-nonroot";

/// Returns the generated pod template.
pub(super) fn template(
    name: &str,
    spec: &WorkspaceSpec,
    settings: &PodSettings,
    profile: SecurityProfile,
    mounted: &BTreeSet<Mounted<'_>>,
    source: &DesiredSource,
) -> Value {
    let mut pod = json!({
        "initContainers": [bootstrap(settings, source), fetch(settings)],
        "containers": [pulumi(spec, settings, profile, mounted)],
        "volumes": volumes(name, mounted),
        "securityContext": profile.of_pod(settings.assigns_user),
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "enableServiceLinks": false,
        "nodeSelector": {"kubernetes.io/os": "linux"},
    });
    set(&mut pod, "serviceAccountName", spec.service_account_name.as_deref());
    json!({
        "metadata": {
            "labels": labels(name),
            "annotations": {
                "kubectl.kubernetes.io/default-container": PULUMI_CONTAINER,
                // Without this annotation, the Cluster Autoscaler does not evict a pod with an `emptyDir`. During a
                // run, the controller changes the value.
                ANNOTATION_SAFE_TO_EVICT: "true",
            },
        },
        "spec": pod,
    })
}

/// Returns the `pulumi` container of a pod template.
pub(super) fn pulumi_container(template: &mut Value) -> Option<&mut Value> {
    let containers = template.pointer_mut("/spec/containers")?.as_array_mut()?;
    containers.iter_mut().find(|container| has_name(container, PULUMI_CONTAINER))
}

/// Passes the grace period of the merged template to the agent, so that the agent can end a run before the kubelet
/// kills the container.
pub(super) fn set_grace_period(template: &mut Value) {
    let grace = template.pointer("/spec/terminationGracePeriodSeconds").filter(|grace| !grace.is_null());
    let grace = grace.map_or(Some(KUBERNETES_GRACE_SECONDS), Value::as_u64);
    let environment = pulumi_container(template).and_then(|container| container.get_mut("env"));
    let Some(environment) = environment.and_then(Value::as_array_mut) else { return };
    environment.retain(|variable| !has_name(variable, GRACE_VARIABLE));
    // If the grace period is invalid, the container has no variable, because the API server rejects the pod anyway.
    environment.extend(grace.map(|seconds| json!({"name": GRACE_VARIABLE, "value": seconds.to_string()})));
}

/// Sets the resources of the generated init containers to those of the `pulumi` container, unless the user has set them.
/// The scheduler uses the maximum of the init containers and the sum of the containers, so this does not increase the
/// request of the pod. With other values, a LimitRange or a quota could reject the pod although the user has set
/// `resources`.
pub(super) fn set_init_resources(template: &mut Value) {
    let resources = pulumi_container(template).and_then(|container| container.get("resources")).cloned();
    let Some(mut resources) = resources.filter(|resources| !resources.is_null()) else { return };
    for kind in ["requests", "limits"] {
        if let Some(quantities) = resources.get_mut(kind).and_then(Value::as_object_mut) {
            quantities.retain(|resource, _| SHARED_RESOURCES.contains(&resource.as_str()));
        }
    }
    if let Some(resources) = resources.as_object_mut() {
        resources.remove("claims");
    }
    let containers = template.pointer_mut("/spec/initContainers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        let is_generated = GENERATED_CONTAINERS.iter().any(|name| has_name(container, name));
        let Some(container) = container.as_object_mut().filter(|_| is_generated) else { continue };
        container.entry("resources").or_insert_with(|| resources.clone());
    }
}

/// Sets the ServiceAccount of the merged template, even if it is the default. If a later template lacked the field, the
/// deprecated field `serviceAccount`, which the API server sets but no client applies, would keep the previous
/// ServiceAccount.
pub(super) fn set_service_account(template: &mut Value) {
    let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let alias = spec.remove("serviceAccount");
    let is_unset = |account: &Value| account.is_null() || account == "";
    if spec.get("serviceAccountName").is_none_or(is_unset) {
        let account = alias.filter(|alias| !is_unset(alias)).unwrap_or_else(|| DEFAULT_SERVICE_ACCOUNT.into());
        spec.insert("serviceAccountName".to_owned(), account);
    }
}

/// In all containers, sets the environment variable that contains the path of the CLI's environment file. Overrides a
/// user-defined value, because the agent reads only the file at this path.
pub(super) fn set_env_file(template: &mut Value) {
    for list in ["/spec/initContainers", "/spec/containers"] {
        let containers = template.pointer_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let environment = container.entry("env").or_insert_with(|| json!([]));
            let Some(environment) = environment.as_array_mut() else { continue };
            environment.retain(|variable| !has_name(variable, ENV_FILE_VARIABLE));
            let file = format!("{SHARE_DIRECTORY}/{ENV_FILE}");
            environment.push(json!({"name": ENV_FILE_VARIABLE, "value": file}));
        }
    }
}

/// If the root file system of the `pulumi` container is read-only, selects a directory for temporary files on the share
/// volume, so that CLI commands that users run with `kubectl exec` can download plugins. Runs need no variable, because
/// the agent tests the directory.
pub(super) fn set_temporary_directory(template: &mut Value) {
    let Some(container) = pulumi_container(template) else { return };
    let is_read_only = container.pointer("/securityContext/readOnlyRootFilesystem") == Some(&Value::Bool(true));
    let mounts = container.get("volumeMounts").and_then(Value::as_array);
    let is_mounted = mounts.into_iter().flatten().any(|mount| mount.get("mountPath") == Some(&Value::from("/tmp")));
    let environment = container.get_mut("env").and_then(Value::as_array_mut);
    let Some(environment) = environment.filter(|_| is_read_only && !is_mounted) else { return };
    if !environment.iter().any(|variable| has_name(variable, cli::TEMPORARY_DIRECTORY)) {
        environment.push(share_variable(cli::TEMPORARY_DIRECTORY, TEMPORARY_DIRECTORY));
    }
}

/// Sets the name of the Secret that contains the agent's certificate.
pub(super) fn set_tls_secret(template: &mut Value, secret: &str) {
    let volumes = template.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
    let volume = volumes.into_iter().flatten().find(|volume| has_name(volume, TLS_VOLUME));
    if let Some(source) = volume.and_then(|volume| volume.get_mut("secret")) {
        set(source, "secretName", Some(secret));
    }
}

/// Adds an annotation with the revision hash to a pod template.
pub(super) fn annotate(template: &mut Value, revision_hash: &str) {
    let metadata = template.pointer_mut("/metadata").and_then(Value::as_object_mut);
    let Some(annotations) = metadata.map(|m| m.entry("annotations").or_insert_with(|| json!({}))) else { return };
    set(annotations, ANNOTATION_REVISION_HASH, Some(revision_hash));
}

/// Returns the init container that copies the agent binary and creates the working directory. Without this init
/// container, the container runtime would create the working directory as root. If user-defined init containers
/// provide the project, they create the working directory instead.
fn bootstrap(settings: &PodSettings, source: &DesiredSource) -> Value {
    let mut role = vec!["bootstrap", "--to", BINARY_IN_POD];
    if !source.is_from_init_containers() {
        role.extend(["--project", PROJECT_DIRECTORY]);
    }
    own_container(settings, BOOTSTRAP_CONTAINER, &role, &[share_mount()], &[])
}

fn fetch(settings: &PodSettings) -> Value {
    own_container(settings, FETCH_CONTAINER, &["fetch"], &[share_mount(), tls_mount()], &[pod_uid_variable()])
}

/// Returns an init container that uses the agent image.
fn own_container(settings: &PodSettings, name: &str, role: &[&str], mounts: &[Value], environment: &[Value]) -> Value {
    let command: Vec<&str> = std::iter::once(BINARY_IN_IMAGE).chain(role.iter().copied()).collect();
    let mut container = json!({
        "name": name,
        "image": settings.agent_image,
        "command": command,
        "volumeMounts": mounts,
        "securityContext": restricted(),
    });
    set(&mut container, "imagePullPolicy", settings.agent_image_pull_policy.as_deref());
    if let Some(container) = container.as_object_mut().filter(|_| !environment.is_empty()) {
        container.insert("env".to_owned(), Value::from(environment));
    }
    container
}

fn share_mount() -> Value {
    json!({"name": SHARE_VOLUME, "mountPath": SHARE_DIRECTORY})
}

fn tls_mount() -> Value {
    json!({"name": TLS_VOLUME, "mountPath": TLS_DIRECTORY, "readOnly": true})
}

fn pulumi(
    spec: &WorkspaceSpec,
    settings: &PodSettings,
    profile: SecurityProfile,
    mounted: &BTreeSet<Mounted<'_>>,
) -> Value {
    let own = own_environment();
    // Generated variables come last and take precedence, as in the Pulumi Kubernetes Operator. The container omits
    // user-defined variables with the same names, because the API server rejects duplicate names.
    let is_in = |list: &[Value], variable: &Value| list.iter().any(|other| other.get("name") == variable.get("name"));
    let users = spec.env.iter().filter(|variable| !is_in(&own, variable));
    let defaults = default_environment().into_iter().filter(|variable| !is_in(&spec.env, variable));
    let environment: Vec<Value> = users.chain(&own).cloned().chain(defaults).collect();
    // As in the Pulumi Kubernetes Operator, an empty image is not set. Templates of other tools often set it.
    let image = spec.image.as_deref().filter(|image| !image.is_empty());
    let mut container = json!({
        "name": PULUMI_CONTAINER,
        "image": image.unwrap_or_else(|| profile.image(&settings.default_image)),
        "command": [BINARY_IN_POD, "agent"],
        // Commands that users run with `kubectl exec` start in this directory. The agent uses another directory.
        "workingDir": PROJECT_DIRECTORY,
        "env": environment,
        "ports": [{"name": AGENT_PORT_NAME, "containerPort": AGENT_PORT}],
        // The container has no liveness probe, because the kubelet must not interrupt the run of a throttled
        // container. The startup probe runs every second, so that the kubelet detects a started agent early. After
        // the startup probe has succeeded, the readiness probe runs at a longer interval.
        "startupProbe": {
            "httpGet": {"path": "/readyz", "port": AGENT_HEALTH_PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": MAX_STARTUP_PROBES,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": AGENT_HEALTH_PORT},
            "periodSeconds": 10,
            "timeoutSeconds": 2,
        },
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts(mounted),
        "resources": resources(spec.resources.as_ref()),
    });
    if let (Some(container), Some(context)) = (container.as_object_mut(), profile.of_pulumi()) {
        container.insert("securityContext".to_owned(), context);
    }
    set(&mut container, "imagePullPolicy", spec.image_pull_policy.as_deref());
    if let Some(container) = container.as_object_mut().filter(|_| !spec.env_from.is_empty()) {
        container.insert("envFrom".to_owned(), Value::from(spec.env_from.clone()));
    }
    container
}

/// Returns the generated environment variables. The `POD_…` variables identify the pod to the agent. `PWD` contains
/// the project path for CLI commands that users run with `kubectl exec`. Without `PWD`, the CLI would use the target
/// of the symbolic link as its working directory.
pub(super) fn own_environment() -> Vec<Value> {
    vec![
        field_variable("POD_NAME", "metadata.name"),
        field_variable("POD_NAMESPACE", "metadata.namespace"),
        pod_uid_variable(),
        json!({"name": "PWD", "value": PROJECT_DIRECTORY}),
    ]
}

/// Returns the environment variables that the spec can override. CLI commands that users run with `kubectl exec` need
/// these variables if the container's user ID has no user name or cannot write to its home directory. The agent uses
/// the same values for runs.
fn default_environment() -> [Value; 2] {
    [json!({"name": cli::USER, "value": cli::DEFAULT_USER}), share_variable(cli::PULUMI_HOME, PULUMI_HOME)]
}

/// Returns a variable that contains a path in the share volume.
fn share_variable(name: &str, path: &str) -> Value {
    json!({"name": name, "value": format!("{SHARE_DIRECTORY}/{path}")})
}

fn pod_uid_variable() -> Value {
    field_variable("POD_UID", "metadata.uid")
}

fn field_variable(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// Returns the resources from the spec. Adds a memory request if the spec contains neither a memory request nor a
/// memory limit.
fn resources(desired: Option<&Value>) -> Value {
    let mut resources = desired.filter(|desired| desired.is_object()).cloned().unwrap_or_else(|| json!({}));
    // Kubernetes uses the limit as the request if only a limit is set.
    if ["requests", "limits"].iter().any(|kind| is_set(resources.get(kind), "memory")) {
        return resources;
    }
    if let Some(requests) = requests(&mut resources) {
        requests.insert("memory".to_owned(), Value::from(MEMORY_REQUEST));
    }
    resources
}

fn is_set(quantities: Option<&Value>, resource: &str) -> bool {
    quantities.and_then(|quantities| quantities.get(resource)).is_some_and(|quantity| !quantity.is_null())
}

fn requests(resources: &mut Value) -> Option<&mut serde_json::Map<String, Value>> {
    let requests = resources.as_object_mut()?.entry("requests").or_insert_with(|| json!({}));
    if requests.is_null() {
        *requests = json!({});
    }
    requests.as_object_mut()
}

fn mounts(mounted: &BTreeSet<Mounted<'_>>) -> Value {
    let mut mounts = vec![share_mount(), tls_mount()];
    // The container mounts entire directories, because the kubelet does not update individually mounted files
    // (`subPath`).
    mounts.extend(
        mounted
            .iter()
            .map(|mounted| json!({"name": volume_name(*mounted), "mountPath": mounted.directory(), "readOnly": true})),
    );
    Value::Array(mounts)
}

fn volumes(name: &str, mounted: &BTreeSet<Mounted<'_>>) -> Value {
    let mut volumes = vec![
        json!({"name": SHARE_VOLUME, "emptyDir": {}}),
        json!({"name": TLS_VOLUME, "secret": {"secretName": workspace_tls_secret(name), "optional": false}}),
    ];
    // The volumes are optional, so that the pod starts even if a referenced object is missing. A run that requires
    // the object waits and reports the missing object.
    volumes.extend(mounted.iter().map(|mounted| match mounted {
        Mounted::Secret(secret) => {
            json!({"name": volume_name(*mounted), "secret": {"secretName": secret, "optional": true}})
        }
        Mounted::ConfigMap(map) => json!({"name": volume_name(*mounted), "configMap": {"name": map, "optional": true}}),
    }));
    Value::Array(volumes)
}

/// Returns a volume name that contains a hash of the object name. An object name is not always a valid volume name.
/// Object names can contain dots and up to 253 characters, but a volume name must not contain dots and is limited to
/// 63 characters.
fn volume_name(mounted: Mounted<'_>) -> String {
    let (kind, name) = match mounted {
        Mounted::Secret(name) => ("secret", name),
        Mounted::ConfigMap(name) => ("configmap", name),
    };
    let digest = Sha256::digest(name);
    format!("{kind}-{}", hex::encode(digest.iter().take(16).copied().collect::<Vec<u8>>()))
}

fn set(object: &mut Value, field: &str, value: Option<&str>) {
    if let (Some(object), Some(value)) = (object.as_object_mut(), value) {
        object.insert(field.to_owned(), Value::from(value));
    }
}

/// Security profile of a workspace pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SecurityProfile {
    /// Pod Security Standard `restricted`.
    #[default]
    Restricted,
    /// Pod Security Standard `baseline`. The container runs as the user that the image specifies.
    Baseline,
}

impl SecurityProfile {
    pub(super) fn parse(profile: Option<&str>) -> Result<Self, SpecError> {
        match profile {
            None | Some("" | "restricted") => Ok(Self::Restricted),
            Some("baseline") => Ok(Self::Baseline),
            Some(other) => Err(SpecError::SecurityProfile { profile: other.to_owned() }),
        }
    }

    /// Returns the security context of the pod. If `assigns_user` is `false`, the cluster sets the user and the group.
    pub(super) fn of_pod(self, assigns_user: bool) -> Value {
        let seccomp = json!({"type": "RuntimeDefault"});
        match self {
            Self::Restricted if !assigns_user => json!({"runAsNonRoot": true, "seccompProfile": seccomp}),
            Self::Restricted => json!({
                "runAsNonRoot": true,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "seccompProfile": seccomp,
            }),
            Self::Baseline => json!({"seccompProfile": seccomp}),
        }
    }

    /// Returns the security context of the `pulumi` container, or `None` if the profile requires no security context.
    pub(super) fn of_pulumi(self) -> Option<Value> {
        match self {
            Self::Restricted => Some(restricted()),
            Self::Baseline => None,
        }
    }

    /// Returns the default image of a Workspace. `default` is the value of `--default-workspace-image`.
    pub(super) fn image(self, default: &str) -> &str {
        match self {
            Self::Restricted => default,
            Self::Baseline => default.strip_suffix(NONROOT).unwrap_or(default),
        }
    }
}

/// Returns the container security context that the Pod Security Standard `restricted` requires.
pub(super) fn restricted() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_security_profile_other_than_restricted_or_baseline_is_invalid() {
        let rows = [
            (None, Ok(SecurityProfile::Restricted)),
            (Some(""), Ok(SecurityProfile::Restricted)),
            (Some("restricted"), Ok(SecurityProfile::Restricted)),
            (Some("baseline"), Ok(SecurityProfile::Baseline)),
            (
                Some("privileged"),
                Err("invalid securityProfile \"privileged\": must be restricted or baseline".to_owned()),
            ),
        ];
        for (profile, expected) in rows {
            assert_eq!(SecurityProfile::parse(profile).map_err(|error| error.to_string()), expected);
        }
    }

    #[test]
    fn a_missing_or_empty_image_selects_the_default_image() {
        let settings = PodSettings {
            agent_image: "controller:1".to_owned(),
            agent_image_pull_policy: None,
            default_image: "pulumi/pulumi:3-nonroot".to_owned(),
            default_access_token_secret: None,
            assigns_user: true,
            eviction_protection: true,
            restrictions: Default::default(),
            storage: Default::default(),
        };
        for (image, expected) in [
            (None, "pulumi/pulumi:3-nonroot"),
            (Some(""), "pulumi/pulumi:3-nonroot"),
            (Some("registry.example/mine:1"), "registry.example/mine:1"),
        ] {
            let spec = WorkspaceSpec { image: image.map(str::to_owned), ..WorkspaceSpec::default() };
            let container = pulumi(&spec, &settings, SecurityProfile::Restricted, &BTreeSet::new());
            assert_eq!(container["image"], json!(expected), "{image:?}");
        }
    }

    #[test]
    fn the_baseline_profile_uses_the_image_without_the_nonroot_suffix() {
        let rows = [
            ("pulumi/pulumi:latest-nonroot", "pulumi/pulumi:latest"),
            ("registry.example/pulumi:3.200-nonroot", "registry.example/pulumi:3.200"),
            ("registry.example/mine:1", "registry.example/mine:1"),
        ];
        for (image, baseline) in rows {
            assert_eq!(SecurityProfile::Baseline.image(image), baseline);
            assert_eq!(SecurityProfile::Restricted.image(image), image);
        }
    }
}
