//! The StatefulSet controller, for StatefulSets with at most one replica.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{NodeStep, Nodes, StatefulSetAction, condition, pods, set_field};
use crate::metadata;
use crate::request::Verb;
use crate::status::Status;
use crate::store::{GroupResource, Key};

const CONTROLLER: &str = "statefulset-controller";

fn stateful_sets() -> GroupResource {
    GroupResource::new("apps", "statefulsets")
}

/// Returns the name of the revision of a template.
fn revision(stateful_set: &Value) -> String {
    let template = stateful_set.pointer("/spec/template").map(Value::to_string).unwrap_or_default();
    let hash: String = Sha256::digest(template).iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", metadata::text(stateful_set, "name"))
}

fn pod_of(key: &Key) -> Key {
    Key::new(pods(), key.namespace(), &format!("{}-0", key.name()))
}

fn replicas(stateful_set: &Value) -> i64 {
    stateful_set.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

fn is_owned(pod: &Value, stateful_set: &Value) -> bool {
    let owners = metadata::get(pod, "ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let uid = metadata::text(stateful_set, "uid");
    owners.into_iter().any(|owner| owner.get("uid").and_then(Value::as_str) == Some(uid))
}

fn label<'v>(pod: &'v Value, name: &str) -> &'v str {
    metadata::get(pod, "labels").and_then(|labels| labels.get(name)).and_then(Value::as_str).unwrap_or_default()
}

impl Nodes {
    pub(super) fn stateful_set_steps(&self) -> Vec<NodeStep> {
        let mut steps = Vec::new();
        for stateful_set in self.server.list(&stateful_sets(), None) {
            if metadata::is_deleting(&stateful_set) {
                continue;
            }
            let key = Key::new(
                stateful_sets(),
                Some(metadata::text(&stateful_set, "namespace")),
                metadata::text(&stateful_set, "name"),
            );
            let actions = [self.pod_action(&key, &stateful_set), self.status_action(&key, &stateful_set)];
            let step = |action: StatefulSetAction| NodeStep::StatefulSet { key: key.clone(), action };
            steps.extend(actions.into_iter().flatten().map(step));
        }
        steps
    }

    fn pod_action(&self, key: &Key, stateful_set: &Value) -> Option<StatefulSetAction> {
        let Some(pod) = self.server.get_key(&pod_of(key)) else {
            return (replicas(stateful_set) > 0).then_some(StatefulSetAction::CreatePod);
        };
        if metadata::is_deleting(&pod) || !is_owned(&pod, stateful_set) {
            return None;
        }
        let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        let is_rolling =
            stateful_set.pointer("/spec/updateStrategy/type").and_then(Value::as_str) == Some("RollingUpdate");
        let is_old = label(&pod, "controller-revision-hash") != revision(stateful_set);
        let is_over = matches!(phase, "Failed" | "Succeeded");
        (replicas(stateful_set) == 0 || is_over || (is_rolling && is_old)).then_some(StatefulSetAction::DeletePod)
    }

    fn status_action(&self, key: &Key, stateful_set: &Value) -> Option<StatefulSetAction> {
        let current = stateful_set.get("status").cloned().unwrap_or_default();
        (self.status(key, stateful_set) != current).then_some(StatefulSetAction::WriteStatus)
    }

    fn status(&self, key: &Key, stateful_set: &Value) -> Value {
        let pod = self.server.get_key(&pod_of(key)).filter(|pod| is_owned(pod, stateful_set));
        let update = revision(stateful_set);
        let before = stateful_set.pointer("/status/currentRevision").and_then(Value::as_str).unwrap_or_default();
        let pod_revision = pod.as_ref().map(|pod| label(pod, "controller-revision-hash").to_owned());
        let current = match (&pod_revision, before) {
            (Some(of_pod), _) if *of_pod == update => update.clone(),
            (_, "") => update.clone(),
            (_, before) => before.to_owned(),
        };
        let is_ready =
            pod.as_ref().is_some_and(|pod| condition(pod, "Ready") == Some("True") && !metadata::is_deleting(pod));
        let mut status = json!({
            "observedGeneration": metadata::get(stateful_set, "generation"), "replicas": i64::from(pod.is_some()),
            "availableReplicas": i64::from(is_ready), "currentRevision": current, "updateRevision": update, "collisionCount": 0,
        });
        // Go omits these numbers if they are zero.
        let has = |revision: &str| pod_revision.as_deref() == Some(revision);
        for (name, holds) in
            [("readyReplicas", is_ready), ("currentReplicas", has(&current)), ("updatedReplicas", has(&update))]
        {
            if holds {
                set_field(&mut status, name, 1.into());
            }
        }
        status
    }

    pub(super) fn act_on_stateful_set(&self, key: &Key, action: StatefulSetAction) -> Result<(), Status> {
        let Some(stateful_set) = self.server.get_key(key) else { return Ok(()) };
        match action {
            StatefulSetAction::CreatePod => self.create_pod(key, &stateful_set),
            StatefulSetAction::DeletePod => {
                let Some(pod) = self.server.get_key(&pod_of(key)) else { return Ok(()) };
                let options = json!({ "preconditions": { "uid": metadata::text(&pod, "uid") } });
                self.server.delete_as(&pod_of(key), CONTROLLER, &options)
            }
            StatefulSetAction::WriteStatus => {
                let mut object = Value::clone(&stateful_set);
                set_field(&mut object, "status", self.status(key, &stateful_set));
                self.server.request(Verb::Update, &object, "status", CONTROLLER).map(drop)
            }
        }
    }

    /// Creates the pod. An event of the StatefulSet reports a rejected pod.
    fn create_pod(&self, key: &Key, stateful_set: &Value) -> Result<(), Status> {
        self.create_claims(key, stateful_set)?;
        let created = self.server.request(Verb::Create, &pod(key, stateful_set), "", CONTROLLER);
        let Err(status) = created else { return Ok(()) };
        let now = self.now();
        let message =
            format!("create Pod {}-0 in StatefulSet {} failed error: {}", key.name(), key.name(), status.message);
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "generateName": format!("{}.", key.name()), "namespace": key.namespace() },
            "involvedObject": {
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": key.name(), "namespace": key.namespace(),
                "uid": metadata::text(stateful_set, "uid"),
            },
            "reason": "FailedCreate", "message": message, "type": "Warning", "count": 1, "firstTimestamp": now,
            "lastTimestamp": now, "source": { "component": CONTROLLER },
        });
        // The rejection of the pod matters more than that of its event.
        let _ = self.server.request(Verb::Create, &event, "", CONTROLLER);
        Err(status)
    }

    fn create_claims(&self, key: &Key, stateful_set: &Value) -> Result<(), Status> {
        let templates = stateful_set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        for template in templates.into_iter().flatten() {
            let mut claim = template.clone();
            metadata::set(&mut claim, "name", claim_name(key, template));
            metadata::set(&mut claim, "namespace", key.namespace().unwrap_or_default());
            match self.server.request(Verb::Create, &claim, "", CONTROLLER) {
                Err(status) if status.reason != "AlreadyExists" => return Err(status),
                _ => {}
            }
        }
        Ok(())
    }
}

fn claim_name(key: &Key, template: &Value) -> String {
    format!("{}-{}-0", metadata::text(template, "name"), key.name())
}

/// Returns the pod of a StatefulSet.
fn pod(key: &Key, stateful_set: &Value) -> Value {
    let template = stateful_set.pointer("/spec/template").cloned().unwrap_or_default();
    let name = format!("{}-0", key.name());
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": template.get("metadata"), "spec": template.get("spec") });
    let mut labels = metadata::get(&pod, "labels").cloned().unwrap_or_else(|| json!({}));
    for (label, value) in [
        ("controller-revision-hash", revision(stateful_set)),
        ("statefulset.kubernetes.io/pod-name", name.clone()),
        ("apps.kubernetes.io/pod-index", "0".to_owned()),
    ] {
        set_field(&mut labels, label, value.into());
    }
    metadata::set(&mut pod, "labels", labels);
    metadata::set(&mut pod, "name", name.clone());
    metadata::set(&mut pod, "generateName", format!("{}-", key.name()));
    metadata::set(&mut pod, "namespace", key.namespace().unwrap_or_default());
    let owner = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": key.name(), "uid": metadata::text(stateful_set, "uid"),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    metadata::set(&mut pod, "ownerReferences", owner);
    if let Some(spec) = pod.get_mut("spec") {
        set_field(spec, "hostname", name.into());
        if let Some(service) = stateful_set.pointer("/spec/serviceName") {
            set_field(spec, "subdomain", service.clone());
        }
        let templates = stateful_set.pointer("/spec/volumeClaimTemplates").and_then(Value::as_array);
        let mut volumes = spec.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        for template in templates.into_iter().flatten() {
            let source = json!({ "claimName": claim_name(key, template) });
            volumes.push(json!({ "name": metadata::text(template, "name"), "persistentVolumeClaim": source }));
        }
        if !volumes.is_empty() {
            set_field(spec, "volumes", volumes.into());
        }
    }
    pod
}
