//! Names that other programs use: labels, annotations, finalizers, field managers and names of derived objects.
//!
//! Where the Pulumi Kubernetes Operator v2 or Flux has a corresponding name, this controller uses the same name, so
//! that existing tools work without changes.

use sha2::{Digest as _, Sha256};

/// Field manager of all objects that the controller writes.
pub const FIELD_MANAGER: &str = "pulumi-controller";

/// Field manager of the Pulumi Kubernetes Operator v2. The operator also uses field managers that consist of this name,
/// a slash and a suffix.
pub const OPERATOR_FIELD_MANAGER: &str = "pulumi-kubernetes-operator";

/// Finalizer of a Stack. The Pulumi Kubernetes Operator uses the same name.
pub const STACK_FINALIZER: &str = "finalizer.stack.pulumi.com";
/// Finalizer of an Update. The controller removes the finalizer when the run has ended and the pod no longer has the
/// finalizer, label and annotations of the run.
pub const UPDATE_FINALIZER: &str = "finalizer.update.auto.pulumi.com";
/// Finalizer of a Workspace. The controller removes the finalizer after it has deleted the Workspace's objects in the
/// required order.
pub const WORKSPACE_FINALIZER: &str = "finalizer.workspace.auto.pulumi.com";
/// Finalizer on a workspace pod with an open run. The finalizer keeps a force-deleted pod in the API, so that the
/// controller can still read the pod status and the StatefulSet does not replace the pod.
pub const RUN_FINALIZER: &str = "auto.pulumi.com/run";

/// Label on all objects that belong to a Stack. The value is `stack`.
pub const LABEL_STACK_COMPONENT: &str = "pulumi.com/component";
/// Label with the name of the Stack.
pub const LABEL_STACK_NAME: &str = "pulumi.com/stack-name";
/// Flux label that assigns an object to a shard. The objects of a Stack have the same shard as the Stack.
pub const LABEL_SHARD: &str = "sharding.fluxcd.io/key";
/// Label on all objects that belong to a Workspace. The value is `workspace`.
pub const LABEL_COMPONENT: &str = "auto.pulumi.com/component";
/// Label with the name of the Workspace.
pub const LABEL_WORKSPACE_NAME: &str = "auto.pulumi.com/workspace-name";
/// Label of a pod of a pool. The value is the key of the pool. The pod keeps the label when a Workspace takes the pod
/// from the pool.
pub const LABEL_POOL: &str = "auto.pulumi.com/pool";
/// Label of a pod of a pool. The value identifies the shard that manages the pool: the start of the hash of the shard's
/// label selector. The pods of a controller without a label selector do not have this label.
pub const LABEL_POOL_SHARD: &str = "auto.pulumi.com/pool-shard";
/// Label on a workspace pod with an open run. The Workspace's PodDisruptionBudget selects pods with this label.
pub const LABEL_RUN: &str = "auto.pulumi.com/run";
/// Value of [`LABEL_RUN`].
pub const RUN_OPEN: &str = "open";
/// Label on the Secret that contains the outputs of a run. The value is the name of the Update.
pub const LABEL_UPDATE_NAME: &str = "auto.pulumi.com/update-name";

/// Label selector that matches the controller's Deployments, whether Helm, Kustomize or another tool installed them.
pub const CONTROLLER_SELECTOR: &str = "app.kubernetes.io/component=pulumi-controller";

/// Annotation of a Stack. A new value requests a run.
pub const ANNOTATION_RECONCILIATION_REQUEST: &str = "pulumi.com/reconciliation-request";
/// Flux annotation. A new value requests a reconciliation. On a Stack, a new value also requests a run.
pub const ANNOTATION_REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";
/// Flux annotation that forces a run regardless of the last run's result. The value must be equal to the value of
/// `requestedAt`.
pub const ANNOTATION_FORCE_AT: &str = "reconcile.fluxcd.io/forceAt";
/// Flux annotation that resets the failure count. The value must be equal to the value of `requestedAt`.
pub const ANNOTATION_RESET_AT: &str = "reconcile.fluxcd.io/resetAt";
/// Annotation on a Stack that requests a run with a state refresh. The value must be equal to the value of
/// `requestedAt`.
pub const ANNOTATION_REFRESH: &str = "pulumi.com/refresh";
/// Annotation with which a user resolves a run that requires a decision. The value is
/// `<update>=retry|create|clear|abandon`.
/// The user sets the annotation on a Stack, or on an Update that a user created.
pub const ANNOTATION_RESOLVE: &str = "pulumi.com/resolve";
/// Annotation on a Stack that acknowledges orphaned resources. The value contains the IDs of entries in
/// `status.orphanedStacks`.
pub const ANNOTATION_ACKNOWLEDGE: &str = "pulumi.com/acknowledge";
/// Annotation that cancels a run. On an Update, any value cancels the run of the Update. On a Stack, the name of an
/// Update cancels that Update's run, and any other new value cancels the open run.
pub const ANNOTATION_CANCEL: &str = "pulumi.com/cancel";
/// Annotation on a deleted Stack that confirms the destroy of its resources. The value
/// [`destroy_confirmation`](crate::api::pulumi::Stack::destroy_confirmation) permits the destroy even if the number of
/// destroys exceeds `--max-destroys`.
pub const ANNOTATION_CONFIRM_DESTROY: &str = "pulumi.com/confirm-destroy";
/// Namespace annotation that prevents runs from starting. The value is the reason for the pause. An empty value and
/// `false` have no effect.
pub const ANNOTATION_PAUSE: &str = "pulumi.com/pause";
/// Namespace annotation that contains windows and freezes for the runs of all Stacks in the namespace. The value has
/// the same structure as a Stack's `spec.schedule`, in YAML or JSON.
pub const ANNOTATION_SCHEDULE: &str = "pulumi.com/schedule";
/// Namespace annotation that sets the maximum number of the namespace's concurrent runs. The annotation overrides the
/// flag `--max-concurrent-runs-per-namespace`.
pub const ANNOTATION_MAX_CONCURRENT_RUNS: &str = "pulumi.com/max-concurrent-runs";
/// Namespace annotation that sets the namespace's weight. The controller distributes run slots in proportion to the
/// weights.
pub const ANNOTATION_RUN_WEIGHT: &str = "pulumi.com/run-weight";
/// Namespace annotation that lists the concurrency groups that the namespace shares with other namespaces. The value
/// contains the group names, separated by commas.
pub const ANNOTATION_CONCURRENCY_GROUPS: &str = "pulumi.com/concurrency-groups";
/// Namespace annotation that sets how many idle pods each pool in the namespace keeps for sleeping Workspaces. The flag
/// `--max-idle-pods` limits the number.
pub const ANNOTATION_IDLE_PODS: &str = "pulumi.com/idle-pods";
/// Update annotation that contains the reason why the controller deletes the Update before its run starts.
pub const ANNOTATION_REVOKED: &str = "auto.pulumi.com/revoked";
/// Annotation on a workspace pod with an open run. The value is the UID of the Update.
pub const ANNOTATION_RUN: &str = "auto.pulumi.com/run-id";
/// Annotation on a workspace pod with an open run. The value is the name and the UID of the Update, separated by a
/// slash. The name is valid only if the UID is equal to the value of [`ANNOTATION_RUN`]. Otherwise, a version of the
/// controller that does not support this annotation has marked the pod.
pub const ANNOTATION_RUN_UPDATE: &str = "auto.pulumi.com/run-update";
/// Annotation on a workspace pod with an open run. The value is a JSON object with the values that the user has set for
/// [`ANNOTATION_SAFE_TO_EVICT`] and [`ANNOTATION_DO_NOT_DISRUPT`]. After the run, the controller restores these values.
pub const ANNOTATION_RUN_REPLACED: &str = "auto.pulumi.com/run-replaced";
/// Annotation with the hash of a workspace pod's inputs. The pod is outdated if the value differs from the hash of
/// the current inputs.
pub const ANNOTATION_REVISION_HASH: &str = "auto.pulumi.com/revision-hash";
/// Annotation of a workspace pod. A change to the annotation makes the kubelet update the mounted Secrets and
/// ConfigMaps. The value is the time of the last change.
pub const ANNOTATION_MOUNTS_REQUESTED: &str = "auto.pulumi.com/mounts-requested-at";
/// Update annotation that contains the time at which the controller sent the cancel request to the agent.
pub const ANNOTATION_CANCEL_REQUESTED: &str = "auto.pulumi.com/cancel-requested";
/// Workspace and Update annotation that contains the phase times and the push of a run, as JSON. The controller sets
/// the annotation only if it exports traces.
pub const ANNOTATION_PHASE_TIMES: &str = "auto.pulumi.com/phase-times";
/// Annotation of a Secret with outputs. The value is a JSON list of the keys whose outputs are secret.
pub const ANNOTATION_SECRETS: &str = "pulumi.com/secrets";
/// Annotation that permits the Cluster Autoscaler to evict an idle workspace pod, although the pod has an `emptyDir`, and
/// prevents the eviction of a pod with an open run.
pub const ANNOTATION_SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Annotation that prevents Karpenter from disrupting a workspace pod with an open run.
pub const ANNOTATION_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Taint with which an administrator confirms that no process runs on the node.
pub const TAINT_OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Port of the agent's gRPC service.
pub const AGENT_PORT: u16 = 50051;
/// Name of [`AGENT_PORT`] in the pod and in the Service. The prefix `tls-` declares to Istio that the connections use TLS,
/// so that the sidecar passes them through.
pub const AGENT_PORT_NAME: &str = "tls-agent";
/// Port of the agent's readiness probe (plain HTTP).
pub const AGENT_HEALTH_PORT: u16 = 50052;
/// Default termination grace period of a workspace pod, in seconds.
pub const TERMINATION_GRACE_SECONDS: u64 = 600;
/// Maximum termination grace period of a workspace pod, in seconds. After its timeout, a run can hold its run slot
/// during the grace period.
pub const MAX_TERMINATION_GRACE_SECONDS: u64 = 4 * 60 * 60;
/// Name of the container that runs the Pulumi CLI.
pub const PULUMI_CONTAINER: &str = "pulumi";
/// Name of the volume with the source, the project and the agent's journal.
pub const SHARE_VOLUME: &str = "share";
/// Mount path of the share volume.
pub const SHARE_DIRECTORY: &str = "/share";
/// Mount path of the volume with the dependency cache, which the pods of a namespace share.
pub const CACHE_DIRECTORY: &str = "/var/cache/pulumi-controller";
/// Environment variable with the maximum size of all archives in the dependency cache, in bytes.
pub const CACHE_SIZE_VARIABLE: &str = "DEPENDENCY_CACHE_MAX_SIZE";
/// Default of [`CACHE_SIZE_VARIABLE`]: 10 GiB.
pub const CACHE_SIZE: u64 = 10 * 1024 * 1024 * 1024;
/// Environment variable with the path of a file to which init containers write environment variables for the CLI. The
/// Pulumi Kubernetes Operator uses the same name.
pub const ENV_FILE_VARIABLE: &str = "PULUMI_ENV";
/// Environment variable that passes the termination grace period in seconds to the agent.
pub const GRACE_VARIABLE: &str = "POD_TERMINATION_GRACE_SECONDS";
/// Environment variables that the controller sets in the `pulumi` container. Values in the spec have no effect.
pub const RESERVED_VARIABLES: [&str; 6] =
    ["POD_NAME", "POD_NAMESPACE", "POD_UID", "PWD", GRACE_VARIABLE, ENV_FILE_VARIABLE];
/// Name of the file in the share volume to which [`ENV_FILE_VARIABLE`] refers.
pub const ENV_FILE: &str = ".env";
/// Default of `PULUMI_HOME` in the share volume.
pub const PULUMI_HOME: &str = "home/.pulumi";
/// Directory in the share volume for temporary files, if the container's file system is read-only.
pub const TEMPORARY_DIRECTORY: &str = "home/.tmp";
/// Mount path of the agent's certificate, key and CA bundle.
pub const TLS_DIRECTORY: &str = "/var/run/pulumi-controller/tls";
/// Directory with one mount for each Secret that the environment or the configuration references.
pub const SECRETS_DIRECTORY: &str = "/var/run/secrets/stacks.pulumi.com/secrets";
/// Directory with one mount for each ConfigMap that the environment or the configuration references.
pub const CONFIG_MAPS_DIRECTORY: &str = "/var/run/configmaps/stacks.pulumi.com/configmaps";
/// Mount path of the volume with the ServiceAccount token for Pulumi Cloud.
pub const OIDC_DIRECTORY: &str = "/var/run/secrets/stacks.pulumi.com/oidc";
/// Name of the file with the ServiceAccount token for Pulumi Cloud.
pub const OIDC_FILE: &str = "token";
/// Mount path of the Secret with the default access token for Pulumi Cloud.
pub const ACCESS_TOKEN_DIRECTORY: &str = "/var/run/secrets/stacks.pulumi.com/access-token";
/// Key of a Secret that contains an access token for Pulumi Cloud.
pub const ACCESS_TOKEN_KEY: &str = "accessToken";

/// Returns the name of the StatefulSet, the Service and the PodDisruptionBudget of a Workspace.
pub fn workspace_object(workspace: &str) -> String {
    format!("{workspace}-workspace")
}

/// Returns the name of the pod that a Workspace's StatefulSet creates.
pub fn workspace_pod(workspace: &str) -> String {
    format!("{workspace}-workspace-0")
}

/// Name prefix of the pods that a pool creates.
pub const POOL_POD_PREFIX: &str = "pulumi-pool-";

/// Returns the name of the Secret with the agent's server certificate, for a pod from a pool.
pub fn pool_pod_tls_secret(pod: &str) -> String {
    format!("{pod}-tls")
}

/// Returns the server name in the agent's certificate, for a pod from a pool. The name of a pod cannot end with
/// `-workspace`, so no Workspace has this server name.
pub fn pool_pod_server_name(pod: &str, namespace: &str) -> String {
    format!("{pod}.{namespace}.svc")
}

/// Returns the name of a run's pod. `host` is the host name in the binding of the run.
pub fn run_pod(workspace: &str, host: &str) -> String {
    if host.starts_with(POOL_POD_PREFIX) { host.to_owned() } else { workspace_pod(workspace) }
}

/// Returns the name of the Secret with the agent's server certificate.
pub fn workspace_tls_secret(workspace: &str) -> String {
    format!("{workspace}-workspace-tls")
}

/// Returns the server name in an agent's certificate. The controller verifies this name.
pub fn workspace_server_name(workspace: &str, namespace: &str) -> String {
    format!("{workspace}-workspace.{namespace}.svc")
}

/// Returns the name of the Secret with an Update's outputs.
pub fn outputs_secret(update: &str) -> String {
    format!("{update}-stack-outputs")
}

/// Returns the name of the Secret with the plan that an Update saved.
pub fn plan_secret(update: &str) -> String {
    format!("{update}-plan")
}

/// Number of hexadecimal digits with which an Update name ends, for Updates that belong to a Stack.
pub const UPDATE_HASH_LENGTH: usize = 11;
/// Number of hexadecimal digits that encode the attempt. When the attempt exceeds the maximum, the encoded number
/// starts at 0 again.
const ATTEMPT_DIGITS: usize = 5;

/// Returns the name of an Update that a Stack creates. The name depends only on the UID of the Stack and the attempt,
/// so that a repeated creation uses the same name. The attempt precedes the hash, so that sorting a Stack's Updates by
/// name sorts them by creation.
pub fn update(stack: &str, uid: &str, attempt: i64) -> String {
    let hash = hex::encode(Sha256::digest(format!("{uid}/{attempt}")));
    let hash = hash.get(..UPDATE_HASH_LENGTH - ATTEMPT_DIGITS).unwrap_or(&hash);
    let number = attempt.rem_euclid(1 << (4 * ATTEMPT_DIGITS));
    format!("{stack}-{number:0ATTEMPT_DIGITS$x}{hash}")
}

/// Returns whether `name` is a valid object name in Kubernetes: a DNS subdomain (RFC 1123).
pub fn is_object_name(name: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        [bytes.first(), bytes.last()].iter().all(|end| end.is_some_and(is_alphanumeric))
            && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Returns the path of a webhook. Flux computes the webhook path of a Receiver in the same way.
pub fn webhook_path(token: &[u8], name: &str, namespace: &str) -> String {
    let digest = Sha256::new().chain_update(token).chain_update(name).chain_update(namespace).finalize();
    format!("/hook/{}", hex::encode(digest))
}

/// Returns the path of a webhook without a token. The hashed text ends with a character that no namespace contains, and
/// [`webhook_path`] hashes a text that ends with a namespace. No token can therefore lead to the same path.
pub fn webhook_path_without_token(name: &str, namespace: &str) -> String {
    webhook_path(b"generic-oidc/", &format!("{namespace}/{name}"), "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_name_is_a_dns_subdomain() {
        for name in ["a", "state", "state-1.v1", "0", "kube-root-ca.crt"] {
            assert!(is_object_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in
            ["", ".", "..", "a..b", "a/b", "../a", "a?b=c", "a#", "a%2fb", "A", "-a", "a-", "a_b", " a", "ä", &long]
        {
            assert!(!is_object_name(name), "{name}");
        }
    }

    #[test]
    fn the_host_name_of_a_run_identifies_a_pod_of_a_pool() {
        assert_eq!(run_pod("app", "app-workspace-0"), "app-workspace-0");
        assert_eq!(run_pod("app", ""), "app-workspace-0");
        assert_eq!(run_pod("app", "my-host"), "app-workspace-0", "a host name of the podTemplate");
        assert_eq!(run_pod("app", "pulumi-pool-0f3a-qwerty"), "pulumi-pool-0f3a-qwerty");
    }

    #[test]
    fn an_update_name_depends_only_on_stack_and_attempt() {
        let name = update("app", "uid-1", 1);
        assert_eq!(name, update("app", "uid-1", 1));
        assert_ne!(name, update("app", "uid-1", 2));
        assert_ne!(name, update("app", "uid-2", 1));
        assert_eq!(name.len(), "app-".len() + 11);
        assert!(name.starts_with("app-00001"), "{name}");
        let names: Vec<_> = [1, 2, 9, 10, 16, 0x1ff, 0xf_ffff].map(|attempt| update("app", "uid-1", attempt)).into();
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(update("app", "uid-1", i64::MAX).len(), name.len());
    }
}
