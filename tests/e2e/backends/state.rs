//! Stores a scene's state in one of the backends. The module creates Stacks that use the backend, and runs CLI commands
//! as other users.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret};
use pulumi_controller::api::pulumi::{LiteralRef, ResourceRef, SecretSelector, Stack};
use serde_json::{Value, json};

use super::backend::{Backend, Credentials};
use super::emulators::Emulators;
use crate::harness::{
    Environment, File, Poll, STATE_SECRET, Scene, Source, StackHandle, Volume, WaitLimit, http, wait_until,
};

/// Secret with the backend credentials.
pub const SECRET: &str = "backend";
/// PersistentVolumeClaim of the backend `Volume`.
const CLAIM: &str = "state";
/// Directory that contains the certificate for the `Google` backend.
pub const CERTIFICATES: &str = "/etc/certificates";
const PASSPHRASE: &str = "PULUMI_CONFIG_PASSPHRASE";

pub struct State<'a> {
    scene: &'a Scene,
    backend: Backend,
    /// Names of the environment variables in the Secret.
    secret_variables: Vec<String>,
    volume: Option<Volume>,
    /// Fields that each pod spec needs to use the backend.
    pod: Value,
    /// Volume mounts that each container needs to use the backend.
    mounts: Value,
}

impl<'a> State<'a> {
    pub async fn create(scene: &'a Scene, backend: Backend, credentials: &Credentials) -> State<'a> {
        scene.create::<Secret>(json!({"metadata": {"name": SECRET}, "stringData": credentials})).await;
        let (mut volume, mut pod, mut mounts) = (None, json!({}), json!([]));
        match backend {
            Backend::Volume => {
                volume = Some(Volume::create(scene, CLAIM).await);
                let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Mi"}}});
                scene.create::<PersistentVolumeClaim>(json!({"metadata": {"name": CLAIM}, "spec": spec})).await;
                pod = json!({"volumes": [{"name": "state", "persistentVolumeClaim": {"claimName": CLAIM}}]});
                mounts = json!([{"name": "state", "mountPath": "/state"}]);
            }
            Backend::Google => {
                let Emulators { gcs_url, gcs_address_in_cluster: address, .. } = Emulators::get();
                let request = http::client().get(format!("{gcs_url}/ca.crt"));
                let certificate = http::send("reading the certificate", request).await.text().await.expect("a text");
                let data = json!({"ca.crt": certificate});
                scene.create::<ConfigMap>(json!({"metadata": {"name": "certificates"}, "data": data})).await;
                pod = json!({
                    "hostAliases": [{"ip": address, "hostnames": ["storage.googleapis.com"]}],
                    "volumes": [{"name": "certificates", "configMap": {"name": "certificates"}}],
                });
                mounts = json!([{"name": "certificates", "mountPath": CERTIFICATES}]);
            }
            Backend::S3 | Backend::Azure => {}
        }
        let secret_variables = credentials.keys().cloned().collect();
        State { scene, backend, secret_variables, volume, pod, mounts }
    }

    /// Deletes a Stack together with its resources, and removes the backend's objects outside the scene's namespace.
    pub async fn destroy(self, stack: &StackHandle<'_>) {
        stack.delete().await;
        stack.until_gone().await;
        if let Some(volume) = self.volume {
            volume.remove().await;
        }
    }

    /// Returns a Stack that stores its state in the backend. Deleting the Stack destroys its resources.
    pub fn stack(&self, name: &str, source: &Source<'_>) -> Stack {
        let mut stack = self.scene.stack(name, source);
        stack.spec.destroy_on_finalize = Some(true);
        stack.spec.backend = Some(self.backend.url(self.scene));
        let variables = &mut stack.spec.env_refs;
        // Removes the credentials that the harness sets for its own account on the S3 server.
        variables.retain(|name, _| !name.starts_with("AWS_"));
        variables.extend(self.secret_variables.iter().map(|name| (name.clone(), from_secret(SECRET, name))));
        variables.extend(self.backend.variables().into_iter().map(|(name, value)| (name.to_owned(), literal(&value))));
        let mut pod = self.pod.clone();
        pod["containers"] = json!([{"name": "pulumi", "volumeMounts": self.mounts}]);
        stack.spec.workspace_template.get_or_insert_default()["spec"]["podTemplate"] = json!({"spec": pod});
        stack
    }

    /// Replaces the credentials in the Secret, and changes the pod, because the kubelet syncs a changed pod
    /// immediately. The kubelet syncs other pods only about every minute.
    pub async fn replace_credentials(&self, pod: &str, credentials: &Credentials) {
        self.scene.patch::<Secret>(SECRET, json!({"stringData": credentials})).await;
        let changed = json!({"metadata": {"annotations": {"pulumi-controller.test/changed": "1"}}});
        self.scene.patch::<Pod>(pod, changed).await;
    }

    /// Starts Pulumi CLI commands in a separate pod, which simulates a user on another machine. The pod name is the
    /// CLI's host name. The current directory contains `files`.
    pub async fn start_cli(&self, pod: &str, files: &[File], commands: &str) {
        let environment = Environment::get();
        let write = |(index, file): (usize, &File)| format!("printf '%s' \"$FILE_{index}\" >{}", file.path);
        let writes: Vec<String> = files.iter().enumerate().map(write).collect();
        let script = format!("mkdir /tmp/project && cd /tmp/project && {} && {commands}", writes.join(" && "));
        let contents = files.iter().enumerate();
        let mut variables: Vec<Value> =
            contents.map(|(index, file)| json!({"name": format!("FILE_{index}"), "value": file.content})).collect();
        variables.extend([
            json!({"name": "PULUMI_BACKEND_URL", "value": self.backend.url(self.scene)}),
            json!({"name": "PROVIDER_LOG_URL", "value": environment.provider_log_url_in_cluster}),
            json!({"name": PASSPHRASE, "valueFrom": {"secretKeyRef": {"name": STATE_SECRET, "key": PASSPHRASE}}}),
        ]);
        let plain = self.backend.variables();
        variables.extend(plain.iter().map(|(name, value)| json!({"name": name, "value": value})));
        let container = json!({
            "name": "pulumi", "image": environment.pulumi_image, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", script], "env": variables, "envFrom": [{"secretRef": {"name": SECRET}}],
            "volumeMounts": self.mounts, "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        });
        let mut spec = self.pod.clone();
        spec["restartPolicy"] = json!("Never");
        spec["containers"] = json!([container]);
        spec["securityContext"] = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        self.scene.create::<Pod>(json!({"metadata": {"name": pod}, "spec": spec})).await;
    }

    /// Waits until the commands in a pod have succeeded.
    pub async fn until_cli_succeeded(&self, pod: &str) {
        wait_until(format!("the commands in the pod {pod} to succeed"), WaitLimit::Run, async || {
            let found = self.scene.api::<Pod>().get(pod).await.map(|pod| pod.status.and_then(|status| status.phase));
            match found {
                Ok(Some(phase)) if phase == "Succeeded" => Poll::Found(()),
                other => Poll::NotYet(format!("{other:?}")),
            }
        })
        .await;
    }
}

pub fn from_secret(name: &str, key: &str) -> ResourceRef {
    let secret = SecretSelector { namespace: None, name: name.to_owned(), key: key.to_owned() };
    ResourceRef { kind: "Secret".to_owned(), secret: Some(secret), ..ResourceRef::default() }
}

pub fn literal(value: &str) -> ResourceRef {
    let literal = LiteralRef { value: value.to_owned() };
    ResourceRef { kind: "Literal".to_owned(), literal: Some(literal), ..ResourceRef::default() }
}
