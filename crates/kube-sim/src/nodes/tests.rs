use super::*;
use crate::server::Options;

fn world() -> (Server, Nodes) {
    let options = Options { seed: 1, clock: Box::new(|| jiff::Timestamp::UNIX_EPOCH), history: 1000 };
    let server = Server::new(options).unwrap();
    let nodes = Nodes::new(&server);
    nodes.add_node("one").unwrap();
    (server, nodes)
}

fn stateful_set(server: &Server, image: &str, replicas: u8) -> Key {
    let object = json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "web", "namespace": "default" }, "spec": {
        "replicas": replicas, "serviceName": "web", "updateStrategy": { "type": "OnDelete" }, "selector": { "matchLabels": { "app": "web" } },
        "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }],
        "template": { "metadata": { "labels": { "app": "web" } }, "spec": {
            "initContainers": [{ "name": "init", "image": "init:1" }], "containers": [{ "name": "main", "image": image }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }] } } } });
    server.apply(&object, "test").unwrap();
    Key::new(GroupResource::new("apps", "statefulsets"), Some("default"), "web")
}

fn pod() -> Key {
    Key::new(pods(), Some("default"), "web-0")
}

fn at(server: &Server, pointer: &str) -> Value {
    let object = server.get_key(&pod()).unwrap();
    object.pointer(pointer).cloned().unwrap_or_default()
}

#[test]
fn a_stateful_set_creates_a_pod_that_becomes_ready() {
    let (server, nodes) = world();
    let key = stateful_set(&server, "main:1", 1);
    let mut steps = Vec::new();
    while let Some(step) = nodes.step() {
        steps.push(format!("{step:?}").split([' ', '{']).next().unwrap().to_owned());
        assert!(steps.len() < 50, "{steps:?}");
    }
    steps.retain(|step| step != "StatefulSet");
    assert_eq!(steps, ["Schedule", "Admit", "StartContainer", "FinishInit", "StartContainer", "BecomeReady"]);
    assert_eq!(
        (at(&server, "/status/phase"), condition(&server.get_key(&pod()).unwrap(), "Ready")),
        (json!("Running"), Some("True"))
    );
    let status = server.get_key(&key).unwrap()["status"].clone();
    assert_eq!(
        (&status["readyReplicas"], &status["updateRevision"]),
        (&json!(1), &at(&server, "/metadata/labels/controller-revision-hash"))
    );
}

#[test]
fn a_deleted_pod_terminates_and_returns_with_the_data_of_its_claim_only() {
    let (server, nodes) = world();
    stateful_set(&server, "main:1", 1);
    nodes.run_until_idle();
    let data = |volume: &str| nodes.volume_data(&pod(), volume).unwrap();
    let (uid, claim, scratch) = (at(&server, "/metadata/uid"), data("data"), data("scratch"));
    nodes.exit_container(&pod(), "main", 1, "Error").unwrap();
    nodes.run_until_idle();
    assert_eq!((at(&server, "/status/containerStatuses/0/restartCount"), data("scratch")), (json!(1), scratch.clone()));
    server.delete(&pod()).unwrap();
    assert_eq!(at(&server, "/metadata/deletionGracePeriodSeconds"), 30);
    nodes.run_until_idle();
    assert_ne!(at(&server, "/metadata/uid"), uid);
    assert_eq!((data("data"), data("scratch") == scratch), (claim, false));
}

#[test]
fn a_finalizer_keeps_a_terminated_pod() {
    let (server, nodes) = world();
    stateful_set(&server, "main:1", 1);
    nodes.run_until_idle();
    server.edit(&pod(), |object| metadata::set_finalizers(object, &["example.com/run".to_owned()])).unwrap();
    let uid = at(&server, "/metadata/uid");
    server.delete(&pod()).unwrap();
    nodes.run_until_idle();
    assert_eq!(
        (at(&server, "/metadata/uid"), at(&server, "/status/containerStatuses/0/state/terminated/exitCode")),
        (uid.clone(), json!(143))
    );
    server.edit(&pod(), |object| metadata::set_finalizers(object, &[])).unwrap();
    nodes.run_until_idle();
    assert_ne!(at(&server, "/metadata/uid"), uid);
}

#[test]
fn pods_that_cannot_start_report_why() {
    let (server, nodes) = world();
    nodes.set_image_available("main:1", false);
    stateful_set(&server, "main:1", 1);
    nodes.run_until_idle();
    assert_eq!(at(&server, "/status/containerStatuses/0/state/waiting/reason"), "ImagePullBackOff");
    nodes.set_image_available("main:1", true);
    nodes.set_can_be_ready(&pod(), false);
    nodes.run_until_idle();
    assert_eq!(
        (at(&server, "/status/phase"), at(&server, "/status/containerStatuses/0/ready")),
        (json!("Running"), json!(false))
    );
    nodes.set_schedulable(&pod(), false);
    server.delete(&pod()).unwrap();
    nodes.run_until_idle();
    assert_eq!(at(&server, "/status/conditions/0/reason"), "Unschedulable");
    server.admit(|request| match request.call.resource.resource.as_str() {
        "pods" if request.old.is_none() => crate::Admission::Deny(Status::denied("policy", "no")),
        _ => crate::Admission::Allow,
    });
    server.delete(&pod()).unwrap();
    assert!(server.get_key(&pod()).is_none(), "a pod without a node has no grace period");
    nodes.step();
    let events = server.list(&GroupResource::new("", "events"), Some("default"));
    assert_eq!(events[0]["reason"], "FailedCreate");
}

#[test]
fn lost_and_removed_nodes() {
    let (server, nodes) = world();
    stateful_set(&server, "main:1", 1);
    nodes.run_until_idle();
    let uid = at(&server, "/metadata/uid");
    nodes.lose_node("one").unwrap();
    nodes.run_until_idle();
    assert!(at(&server, "/metadata/deletionTimestamp").is_string(), "the node controller deletes the pod");
    assert!(at(&server, "/status/containerStatuses/0/state/running").is_object(), "the kubelet reports nothing");
    nodes.remove_node("one").unwrap();
    nodes.add_node("two").unwrap();
    nodes.run_until_idle();
    assert_ne!(at(&server, "/metadata/uid"), uid);
    assert_eq!(at(&server, "/spec/nodeName"), "two");
    nodes.evict(&pod(), "low on memory").unwrap();
    assert_eq!((at(&server, "/status/reason"), at(&server, "/status/phase")), (json!("Evicted"), json!("Failed")));
    nodes.run_until_idle();
    assert_eq!(at(&server, "/status/phase"), "Running", "the StatefulSet controller replaces the pod");
}

#[test]
fn on_delete_keeps_a_pod_of_an_old_revision() {
    let (server, nodes) = world();
    let key = stateful_set(&server, "main:1", 1);
    nodes.run_until_idle();
    stateful_set(&server, "main:2", 1);
    nodes.run_until_idle();
    assert_eq!(at(&server, "/spec/containers/0/image"), "main:1");
    let status = server.get_key(&key).unwrap()["status"].clone();
    assert_ne!(status["currentRevision"], status["updateRevision"]);
    stateful_set(&server, "main:2", 0);
    nodes.run_until_idle();
    assert!(server.get_key(&pod()).is_none());
}

#[tokio::test(start_paused = true)]
async fn steps_take_time() {
    let server = Server::new(Options::new(1, jiff::Timestamp::UNIX_EPOCH)).unwrap();
    let nodes = Nodes::new(&server);
    nodes.add_node("one").unwrap();
    let running = nodes.clone();
    tokio::spawn(async move { running.run(|_| Duration::from_secs(1)).await });
    stateful_set(&server, "main:1", 1);
    tokio::time::sleep(Duration::from_millis(5500)).await;
    assert_eq!(at(&server, "/status/phase"), "Pending");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(condition(&server.get_key(&pod()).unwrap(), "Ready"), Some("True"));
}
