//! Names that are a contract: labels, annotations, finalizers, field managers, derived object names.
//!
//! They are those of the Pulumi Kubernetes Operator v2 and of Flux, so that tools written for either go on working.

use sha2::{Digest as _, Sha256};

/// The field manager of everything that the controller applies.
pub const FIELD_MANAGER: &str = "pulumi-controller";

/// The field managers of the Pulumi Kubernetes Operator v2: this one, and those that begin with it and a slash.
pub const OPERATOR_FIELD_MANAGER: &str = "pulumi-kubernetes-operator";

/// Finalizer on a Stack; the same name as the Pulumi Kubernetes Operator uses.
pub const STACK_FINALIZER: &str = "finalizer.stack.pulumi.com";
/// Finalizer on an Update: a run is ended and its pod released before the object goes away.
pub const UPDATE_FINALIZER: &str = "finalizer.update.auto.pulumi.com";
/// Finalizer on a Workspace: its StatefulSet, Service and Secret are removed by the controller, in order.
pub const WORKSPACE_FINALIZER: &str = "finalizer.workspace.auto.pulumi.com";
/// Finalizer on a workspace pod while a run is open in it: a force-deleted pod stays readable and is not replaced.
pub const RUN_FINALIZER: &str = "auto.pulumi.com/run";

/// Label on everything that belongs to a Stack: `stack`.
pub const LABEL_STACK_COMPONENT: &str = "pulumi.com/component";
/// Label with the name of the Stack object.
pub const LABEL_STACK_NAME: &str = "pulumi.com/stack-name";
/// Flux's label for the shard of a controller; what belongs to a Stack is in the Stack's shard.
pub const LABEL_SHARD: &str = "sharding.fluxcd.io/key";
/// Label on a workspace's objects: `workspace`.
pub const LABEL_COMPONENT: &str = "auto.pulumi.com/component";
/// Label with the Workspace's name.
pub const LABEL_WORKSPACE_NAME: &str = "auto.pulumi.com/workspace-name";
/// Label on a workspace pod while a run is open in it: what the Workspace's PodDisruptionBudget selects.
pub const LABEL_RUN: &str = "auto.pulumi.com/run";
/// The value of that label.
pub const RUN_OPEN: &str = "open";
/// Label with the Update's name, on its outputs Secret.
pub const LABEL_UPDATE_NAME: &str = "auto.pulumi.com/update-name";

/// A new value of this annotation on a Stack asks for a run.
pub const ANNOTATION_RECONCILIATION_REQUEST: &str = "pulumi.com/reconciliation-request";
/// Flux's annotation: a new value asks for a reconcile now; on a Stack it asks for a run.
pub const ANNOTATION_REQUESTED_AT: &str = "reconcile.fluxcd.io/requestedAt";
/// Flux's annotation: with the same value as `requestedAt`, it asks for a run whatever came of the last one.
pub const ANNOTATION_FORCE_AT: &str = "reconcile.fluxcd.io/forceAt";
/// Flux's annotation: with the same value as `requestedAt`, it asks to forget the failures that were counted.
pub const ANNOTATION_RESET_AT: &str = "reconcile.fluxcd.io/resetAt";
/// A person's answer to a run that is in doubt, `<update>=retry|clear|abandon`: on the Stack, or on an Update made by hand.
pub const ANNOTATION_RESOLVE: &str = "pulumi.com/resolve";
/// Asks to cancel a run. On a Stack: the name of an Update cancels that one, any other new value the run that is open. On an Update: any
/// value cancels it.
pub const ANNOTATION_CANCEL: &str = "pulumi.com/cancel";
/// On an Update that its Stack has taken back before it started: why.
pub const ANNOTATION_REVOKED: &str = "auto.pulumi.com/revoked";
/// On a workspace pod while a run is open: UID of the Update.
pub const ANNOTATION_RUN: &str = "auto.pulumi.com/run-id";
/// Hash of the user's inputs of a workspace pod; a pod whose value differs from the wanted one is stale.
pub const ANNOTATION_REVISION_HASH: &str = "auto.pulumi.com/revision-hash";
/// When the controller last asked the kubelet, by a change of the pod, to mount its Secrets and ConfigMaps again.
pub const ANNOTATION_MOUNTS_REQUESTED: &str = "auto.pulumi.com/mounts-requested-at";
/// On an Update that is canceled in its run: when the agent was asked to cancel it.
pub const ANNOTATION_CANCEL_REQUESTED: &str = "auto.pulumi.com/cancel-requested";
/// On an outputs Secret: a JSON list of the keys that hold secret outputs.
pub const ANNOTATION_SECRETS: &str = "pulumi.com/secrets";
/// On a workspace pod while a run is open: keeps the cluster autoscaler away.
pub const ANNOTATION_SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// On a workspace pod while a run is open: keeps Karpenter away.
pub const ANNOTATION_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// The taint by which an administrator says that nothing runs on a node any more.
pub const TAINT_OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The port of the agent's gRPC service.
pub const AGENT_PORT: u16 = 50051;
/// The port of the agent's readiness answer (plain HTTP).
pub const AGENT_HEALTH_PORT: u16 = 50052;
/// How long a workspace pod has to end, unless its template says otherwise.
pub const TERMINATION_GRACE_SECONDS: u64 = 600;
/// The container that runs Pulumi.
pub const PULUMI_CONTAINER: &str = "pulumi";
/// The volume that holds source, project, operations.
pub const SHARE_VOLUME: &str = "share";
/// Where the share volume is mounted.
pub const SHARE_DIRECTORY: &str = "/share";
/// Tells a container the file that its pod's variables may be added to, as in the Pulumi Kubernetes Operator.
pub const ENV_FILE_VARIABLE: &str = "PULUMI_ENV";
/// That file, in the share volume.
pub const ENV_FILE: &str = ".env";
/// Where the agent's certificate, key and CA bundle are mounted.
pub const TLS_DIRECTORY: &str = "/var/run/pulumi-controller/tls";
/// Below this directory each Secret behind the environment is mounted as a directory of its own.
pub const SECRETS_DIRECTORY: &str = "/var/run/secrets/stacks.pulumi.com/secrets";
/// Where ConfigMaps of a workspace pod are mounted, each in a directory of its name.
pub const CONFIG_MAPS_DIRECTORY: &str = "/var/run/configmaps/stacks.pulumi.com/configmaps";

/// StatefulSet, Service and PodDisruptionBudget of a Workspace.
pub fn workspace_object(workspace: &str) -> String {
    format!("{workspace}-workspace")
}

/// The one pod of a Workspace.
pub fn workspace_pod(workspace: &str) -> String {
    format!("{workspace}-workspace-0")
}

/// The Secret with a Workspace's server certificate.
pub fn workspace_tls_secret(workspace: &str) -> String {
    format!("{workspace}-workspace-tls")
}

/// The name that the agent's certificate carries and the controller checks.
pub fn workspace_server_name(workspace: &str, namespace: &str) -> String {
    format!("{workspace}-workspace.{namespace}.svc")
}

/// The Secret that holds the outputs of one Update.
pub fn outputs_secret(update: &str) -> String {
    format!("{update}-stack-outputs")
}

/// How many hexadecimal digits the name of a Stack's Update ends with.
pub const UPDATE_HASH_LENGTH: usize = 11;
/// How many of them count the attempts; a larger number begins again at 0.
const ATTEMPT_DIGITS: usize = 5;

/// Name of a Stack's Update: made of the Stack's UID and the number of the attempt, so that whoever makes it makes the
/// same one. The number comes first: sorted by name, the Updates of a Stack are sorted by time.
pub fn update(stack: &str, uid: &str, attempt: i64) -> String {
    let hash = hex::encode(Sha256::digest(format!("{uid}/{attempt}")));
    let hash = hash.get(..UPDATE_HASH_LENGTH - ATTEMPT_DIGITS).unwrap_or(&hash);
    let number = attempt.rem_euclid(1 << (4 * ATTEMPT_DIGITS));
    format!("{stack}-{number:0ATTEMPT_DIGITS$x}{hash}")
}

/// Whether Kubernetes accepts a text as the name of an object: a DNS subdomain (RFC 1123).
pub fn is_object_name(name: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        [bytes.first(), bytes.last()].iter().all(|end| end.is_some_and(is_alphanumeric))
            && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// The path of a webhook, by Flux's rule for its Receiver.
pub fn webhook_path(token: &[u8], name: &str, namespace: &str) -> String {
    let digest = Sha256::new().chain_update(token).chain_update(name).chain_update(namespace).finalize();
    format!("/hook/{}", hex::encode(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_an_object_is_a_dns_subdomain() {
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
    fn an_updates_name_depends_on_the_stack_and_the_attempt_alone() {
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
