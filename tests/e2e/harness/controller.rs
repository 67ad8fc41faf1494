//! The installed controller: its Deployment, pods, logs and metrics.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::wait::{Poll, WaitLimit, api_call, wait_until};

pub(super) const NAMESPACE: &str = "flux-system";
pub(super) const DEPLOYMENT: &str = "pulumi-controller";

/// Environment variable with the failpoint at which the controller in the test image exits.
const FAILPOINTS: &str = "FAILPOINTS";
/// Environment variable with the version that the controller in the test image reports instead of its own version.
const PRETENDED_VERSION: &str = "PRETENDED_VERSION";

pub struct Controller {
    pub(super) client: Client,
    pub(super) deployments: Api<Deployment>,
    pub(super) pods: Api<Pod>,
}

impl Controller {
    pub fn new(client: &Client) -> Controller {
        Controller {
            client: client.clone(),
            deployments: Api::namespaced(client.clone(), NAMESPACE),
            pods: Api::namespaced(client.clone(), NAMESPACE),
        }
    }

    /// Waits until the rollout is complete and exactly one pod runs.
    pub async fn until_available(&self) {
        self.until_replicas(1).await;
    }

    /// Waits until the rollout is complete and exactly `replicas` pods run.
    pub async fn until_replicas(&self, replicas: i32) {
        wait_until("the controller to be available", WaitLimit::Reaction, async || {
            let deployment = match self.deployments.get(DEPLOYMENT).await {
                Ok(deployment) => deployment,
                Err(error) => return Poll::NotYet(error.to_string()),
            };
            let status = deployment.status.clone().unwrap_or_default();
            let is_current = status.observed_generation >= deployment.metadata.generation;
            let counts =
                [status.replicas, status.updated_replicas, status.available_replicas].map(Option::unwrap_or_default);
            let pods = self.list_pods(&deployment).await;
            if is_current && counts == [replicas; 3] && i32::try_from(pods.len()) == Ok(replicas) {
                return Poll::Found(());
            }
            Poll::NotYet(format!("{status:?}, pods {:?}", pods.iter().map(describe_pod).collect::<Vec<_>>()))
        })
        .await;
    }

    /// Deletes the controller pod without a grace period to simulate the loss of a machine. Returns the UID of the pod.
    pub async fn kill(&self) -> String {
        let pod = self.pod().await;
        self.kill_pod(&pod.name_any()).await;
        pod.uid().unwrap_or_default()
    }

    /// Deletes one controller pod without a grace period.
    pub async fn kill_pod(&self, name: &str) {
        let without_grace_period = DeleteParams::default().grace_period(0);
        api_call(format!("deleting the controller's pod {name}"), self.pods.delete(name, &without_grace_period)).await;
    }

    /// Restarts the controller with this failpoint. The controller exits when it reaches the failpoint. `None` disables
    /// failpoints.
    pub async fn restart_with_failpoint(&self, failpoint: Option<&str>) {
        self.start_with_variable(FAILPOINTS, failpoint).await;
    }

    /// Restarts the controller, which then reports this version. `None` restores its own version.
    pub async fn restart_with_version(&self, version: Option<&str>) {
        self.start_with_variable(PRETENDED_VERSION, version).await;
    }

    async fn start_with_variable(&self, name: &str, value: Option<&str>) {
        let variable = match value {
            Some(value) => json!({"name": name, "value": value}),
            None => json!({"name": name, "$patch": "delete"}),
        };
        self.change(json!({"env": [variable]})).await;
        self.until_available().await;
    }

    /// Returns the arguments of the controller container.
    pub async fn arguments(&self) -> Vec<String> {
        self.container().await.args.expect("the controller has arguments")
    }

    /// Rolls out the controller with these arguments and this number of replicas.
    pub async fn start_with(&self, arguments: &[String], replicas: i32) {
        self.change(json!({"args": arguments})).await;
        self.until_replicas(replicas).await;
    }

    /// Sets environment variables in the controller container. The caller must wait for the rollout.
    pub async fn set_variables(&self, variables: &[Value]) {
        self.change(json!({ "env": variables })).await;
    }

    /// Removes environment variables from the controller container. The caller must wait for the rollout.
    pub async fn remove_variables(&self, names: &[&str]) {
        let variables: Vec<Value> = names.iter().map(|name| json!({"name": name, "$patch": "delete"})).collect();
        self.change(json!({ "env": variables })).await;
    }

    async fn container(&self) -> Container {
        let pod = self.deployment().await.spec.and_then(|spec| spec.template.spec);
        let containers = pod.map(|pod| pod.containers).unwrap_or_default();
        containers.into_iter().next().expect("the controller has a container")
    }

    /// Adds volumes, and their mounts in the controller container. The caller must wait for the rollout.
    pub async fn add_volumes(&self, volumes: &[Value], mounts: &[Value]) {
        self.change_pod(json!({"volumeMounts": mounts}), volumes).await;
    }

    /// Removes volumes, and their mounts from the controller container. The caller must wait for the rollout.
    pub async fn remove_volumes(&self, names: &[&str], mount_paths: &[&str]) {
        let volumes: Vec<Value> = names.iter().map(|name| json!({"name": name, "$patch": "delete"})).collect();
        let mounts: Vec<Value> =
            mount_paths.iter().map(|path| json!({"mountPath": path, "$patch": "delete"})).collect();
        self.change_pod(json!({"volumeMounts": mounts}), &volumes).await;
    }

    /// Patches the controller container.
    async fn change(&self, container: Value) {
        self.change_pod(container, &[]).await;
    }

    /// Patches the controller container and the volumes of its pod.
    async fn change_pod(&self, mut container: Value, volumes: &[Value]) {
        let action = format!("patching the controller's container with {container} and its volumes with {volumes:?}");
        container["name"] = json!(self.container().await.name);
        let mut pod = json!({"containers": [container]});
        if !volumes.is_empty() {
            pod["volumes"] = json!(volumes);
        }
        let patch = Patch::Strategic(json!({"spec": {"template": {"spec": pod}}}));
        api_call(action, self.deployments.patch(DEPLOYMENT, &PatchParams::default(), &patch)).await;
    }

    /// Waits until a controller container has restarted after the last rollout.
    pub async fn until_failpoint_reached(&self, failpoint: &str) {
        wait_until(format!("the controller to exit at the failpoint {failpoint}"), WaitLimit::Reaction, async || {
            let deployment = self.deployment().await;
            let pods = self.list_pods(&deployment).await;
            let died =
                pods.iter().flat_map(|pod| &pod.status).flat_map(|status| status.container_statuses.iter().flatten());
            if died.map(|container| container.restart_count).sum::<i32>() > 0 {
                return Poll::Found(());
            }
            Poll::NotYet(format!("{:?}", pods.iter().map(describe_pod).collect::<Vec<_>>()))
        })
        .await;
    }

    /// Returns the lines that contain `text` from the controller's current and previous logs.
    pub async fn log_lines(&self, text: &str) -> Vec<String> {
        let Ok(deployment) = self.deployments.get(DEPLOYMENT).await else {
            return vec!["the controller is not installed".to_owned()];
        };
        let mut lines = Vec::new();
        for pod in self.list_pods(&deployment).await {
            for previous in [true, false] {
                let log = self.pods.logs(&pod.name_any(), &LogParams { previous, ..LogParams::default() }).await;
                let log = log.unwrap_or_default();
                lines.extend(log.lines().filter(|line| line.contains(text)).map(str::to_owned));
            }
        }
        lines
    }

    pub async fn pod(&self) -> Pod {
        let deployment = self.deployment().await;
        self.list_pods(&deployment).await.into_iter().next().expect("the controller has a pod")
    }

    /// Returns all controller pods.
    pub async fn pods(&self) -> Vec<Pod> {
        let deployment = self.deployment().await;
        self.list_pods(&deployment).await
    }

    async fn deployment(&self) -> Deployment {
        api_call(format!("reading the Deployment {NAMESPACE}/{DEPLOYMENT}"), self.deployments.get(DEPLOYMENT)).await
    }

    async fn list_pods(&self, deployment: &Deployment) -> Vec<Pod> {
        let labels = deployment.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone()).unwrap_or_default();
        let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let parameters = ListParams::default().labels(&selector.join(","));
        api_call("listing the controller's pods", self.pods.list(&parameters)).await.items
    }
}

fn describe_pod(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let states: Vec<String> =
        containers.iter().map(|c| format!("{:?}, {} restarts", c.state, c.restart_count)).collect();
    format!("{} {} {}", pod.name_any(), status.phase.unwrap_or_default(), states.join(", "))
}
