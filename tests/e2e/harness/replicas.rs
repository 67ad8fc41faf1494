//! Helpers for a controller with several replicas: the leader, and the writes of each replica.

use std::path::PathBuf;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};

use super::controller::{Controller, DEPLOYMENT, NAMESPACE};
use super::timeline::Timeline;
use super::wait::{Poll, WaitLimit, api_call, wait_until};

const LEASE: &str = "pulumi-controller-leader-election";
/// Path of the API server's audit log, relative to the run directory of a cluster that the tests have started.
const AUDIT_LOG: &str = "logs/audit.log";

impl Controller {
    /// Scales the Deployment. With more than one replica, increases the liveness probe's failure threshold, because the
    /// tests suspend a process.
    pub async fn scale(&self, replicas: i32) {
        let failures = if replicas > 1 { 60 } else { 3 };
        let probe = json!({"name": "manager", "livenessProbe": {"failureThreshold": failures}});
        let patch = json!({"spec": {"replicas": replicas, "template": {"spec": {"containers": [probe]}}}});
        self.patch_deployment("scaling the controller", patch).await;
        self.until_replicas(replicas).await;
    }

    /// Restarts the pods like `kubectl rollout restart`, and waits until `replicas` pods are available.
    pub async fn restart(&self, replicas: i32) {
        let at = json!({"pulumi-controller.test/restarted": fastrand::u64(..).to_string()});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": at}}}});
        self.patch_deployment("restarting the controller", patch).await;
        self.until_replicas(replicas).await;
    }

    async fn patch_deployment(&self, action: &str, patch: Value) {
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(patch));
        api_call(action, self.deployments.patch(DEPLOYMENT, &parameters, &patch)).await;
    }

    /// Starts to record the states of all leases in the controller's namespace.
    pub fn watch_lease(&self) -> Timeline {
        Timeline::of::<Lease>(Api::namespaced(self.client.clone(), NAMESPACE))
    }

    /// Waits until a running pod other than `not` is the leader, and returns the pod name.
    pub async fn until_leader_other_than(&self, not: &str) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        wait_until(format!("a pod other than {not:?} to lead"), WaitLimit::Reaction, async || {
            let holder = match leases.get(LEASE).await {
                Ok(lease) => holder(&lease),
                Err(error) => return Poll::NotYet(error.to_string()),
            };
            let pods: Vec<String> = self.pods().await.iter().map(Pod::name_any).collect();
            if holder != not && pods.contains(&holder) {
                return Poll::Found(holder);
            }
            Poll::NotYet(format!("the leader is {holder:?}, the pods are {pods:?}"))
        })
        .await
    }

    /// Sends a request to an endpoint of a pod, and returns the response body.
    pub async fn get_endpoint(&self, pod: &str, port: u16, path: &str) -> String {
        let url = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{port}/proxy{path}");
        let request = axum::http::Request::get(&url).body(Vec::new()).expect("a valid request");
        api_call(format!("requesting {url}"), self.client.request_text(request)).await
    }

    /// Waits until the container of a pod has restarted, and returns the exit code of the previous container.
    pub async fn until_container_restarted(&self, pod: &str) -> i32 {
        wait_until(format!("the container of {pod} to have restarted"), WaitLimit::Reaction, async || {
            let pods = self.pods().await;
            let status = pods.into_iter().find(|found| found.name_any() == pod).and_then(|found| found.status);
            let container = status.and_then(|status| status.container_statuses?.into_iter().next());
            let Some(container) = container else { return Poll::NotYet("no container".to_owned()) };
            let ended = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            match ended {
                Some(ended) if container.ready => Poll::Found(ended.exit_code),
                _ => Poll::NotYet(format!("{container:?}")),
            }
        })
        .await
    }
}

/// Returns the holders of the controller's lease in chronological order. Ignores other leases in the same namespace.
pub fn holders(states: &Timeline) -> Vec<String> {
    let leases = states.states_of::<Lease>();
    let mut holders: Vec<String> = leases.iter().filter(|lease| lease.name_any() == LEASE).map(holder).collect();
    holders.dedup();
    holders
}

/// Returns the name of the pod that holds the lease, or an empty string if the lease has no holder.
fn holder(lease: &Lease) -> String {
    let identity = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
    identity.split('_').next().unwrap_or_default().to_owned()
}

/// Guard of a process that is suspended with SIGSTOP. The suspended process simulates a machine that hangs. Drop the
/// guard to resume the process.
pub struct StoppedProcess(Pid);

impl StoppedProcess {
    /// Suspends the controller process in a pod. The node must run on this machine.
    pub fn in_pod(pod: &str) -> StoppedProcess {
        let named = format!("HOSTNAME={pod}\0");
        let is_match = |pid: i32| {
            let file = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let environment = String::from_utf8_lossy(&file("environ")).into_owned();
            environment.contains(&named)
                && String::from_utf8_lossy(&file("cmdline")).contains("--enable-leader-election")
        };
        let processes = std::fs::read_dir("/proc").expect("/proc can be listed").flatten();
        let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let pid = ids.find(|pid| is_match(*pid)).and_then(Pid::from_raw);
        let pid = pid.unwrap_or_else(|| panic!("this machine has no process of {pod}"));
        kill_process(pid, Signal::STOP).expect("a process of the cluster can be suspended");
        StoppedProcess(pid)
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        if let Err(error) = kill_process(self.0, Signal::CONT) {
            println!("failed to resume the controller process: {error}");
        }
    }
}

/// API server audit log, which contains the writes of each controller pod.
pub struct AuditLog(PathBuf);

/// One write request.
#[derive(Clone, Debug, Deserialize)]
pub struct Write {
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    user: User,
}

#[derive(Clone, Debug, Deserialize)]
struct User {
    #[serde(default)]
    extra: std::collections::BTreeMap<String, Vec<String>>,
}

impl Write {
    /// Returns the pod whose ServiceAccount token authenticated the request.
    fn pod(&self) -> &str {
        let names = self.user.extra.get("authentication.kubernetes.io/pod-name");
        names.and_then(|names| names.first()).map_or("", String::as_str)
    }
}

impl AuditLog {
    /// Opens the audit log. Returns `None` if the tests have not started the cluster.
    pub fn open() -> Option<AuditLog> {
        let folder = std::env::var_os("CLUSTER_RUN_DIR")?;
        Some(AuditLog(PathBuf::from(folder).join(AUDIT_LOG)))
    }

    /// Returns a pod's writes in chronological order.
    pub fn writes_of(&self, pod: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.0)
            .unwrap_or_else(|error| panic!("the audit log {} cannot be read: {error}", self.0.display()));
        let writes = text.lines().filter_map(|line| serde_json::from_str::<Write>(line).ok());
        writes.filter(|write| write.pod() == pod).map(|write| format!("{} {}", write.verb, write.uri)).collect()
    }
}
