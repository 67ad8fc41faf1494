//! Measures how long it takes to delete a namespace with many Stacks. The baseline is the time to delete a namespace
//! that contains the same number of pods and no Stacks.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use pulumi_controller::api::auto::Workspace;
use pulumi_controller::api::names::TERMINATION_GRACE_SECONDS;
use pulumi_controller::api::pulumi::Stack;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Crowd, Environment, Scene, WaitLimit, api_call};
use crate::moments::{Moment, now};
use crate::progress::until_count;
use crate::table::{Row, Step};

/// Default number of Stacks, which `DELETE_STACKS` overrides.
const STACKS: usize = 60;
/// Maximum ratio of the measured time to the baseline.
const BUDGET: f64 = 1.5;
/// Timeout until all pods must be running.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout for deleting a namespace. The timeout is long, because the namespace controller can wait for half of the
/// pods' termination grace period between two checks.
const DELETE_TIMEOUT: Duration = Duration::from_secs(TERMINATION_GRACE_SECONDS + 300);
/// Pod script that exits on SIGTERM, like the agent.
const SCRIPT: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

pub async fn measure() -> Vec<Row> {
    let stacks = std::env::var("DELETE_STACKS").ok().map_or(STACKS, |text| text.parse().expect("a number of Stacks"));
    let bare = bare(stacks).await;
    let scene = scene("bench-delete").await;
    println!("creating {stacks} Stacks");
    let times = Crowd::start(&[(&scene, stacks)]).await.until_done(WaitLimit::Long).await;
    println!("{times}");
    let (pods, workspaces) = (Deletions::watch::<Pod>(&scene), Deletions::watch::<Workspace>(&scene));
    let stack_deletions = Deletions::watch::<Stack>(&scene);
    let began = now();
    delete_namespace(&scene).await;
    let total = now() - began;
    vec![row(stacks, total, &bare).with_steps(steps(began, total, [&pods, &workspaces, &stack_deletions]))]
}

fn row(stacks: usize, total: f64, bare: &Bare) -> Row {
    Row::of(
        &format!("namespace with {stacks} Stacks deleted"),
        format!("{BUDGET} of {stacks} bare pods ({:.0} s)", bare.namespace),
        format!("{total:.0} s"),
        Some(total < BUDGET * bare.namespace),
    )
    .with_note(format!("ratio to the bare pods: {:.2}", total / bare.namespace))
    .with_note(format!(
        "the deletion of one bare pod takes {:.1} s; the termination grace period of all pods is \
         {TERMINATION_GRACE_SECONDS} s",
        bare.pod
    ))
}

/// Returns the steps of the deletion. Each step ends when the last pod, the last Workspace, the last Stack or the
/// namespace is deleted.
fn steps(began: Moment, total: f64, deletions: [&Deletions; 3]) -> Vec<Step> {
    let names =
        ["until the last pod is deleted", "until the last Workspace is deleted", "until the last Stack is deleted"];
    let (mut steps, mut before) = (Vec::new(), began);
    for (name, deletions) in names.into_iter().zip(deletions) {
        let end = deletions.last().map_or(before, |last| last.max(before));
        steps.push(Step { name: name.to_owned(), seconds: end - before });
        before = end;
    }
    let rest = (began + total - before).max(0.0);
    steps.push(Step { name: "until the namespace is deleted".to_owned(), seconds: rest });
    steps
}

/// Returns a scene with a new namespace. The harness does not record the states of the objects in this namespace.
async fn scene(name: &str) -> Scene {
    let mut scene = Scene::new(name).await;
    scene.timeline.end();
    scene
}

/// Durations of deletions without the controller, in seconds.
struct Bare {
    namespace: f64,
    pod: f64,
}

/// Measures how long it takes to delete one pod, and to delete a namespace with pods. The pods have the same image and
/// grace period as workspace pods.
async fn bare(pods: usize) -> Bare {
    let scene = scene("bench-delete-bare").await;
    println!("creating {} pods without the controller", pods + 1);
    for number in 0..=pods {
        scene.create::<Pod>(pod(number)).await;
    }
    let api: Api<Pod> = scene.api();
    until_count("bare pods run", pods + 1, START_TIMEOUT, async || {
        let listed = api_call("listing pods", api.list(&ListParams::default())).await;
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let running = listed.items.iter().filter(|pod| phase(pod) == "Running").count();
        (running, format!("{} pods exist", listed.items.len()))
    })
    .await;
    let began = now();
    let first = scene.list::<Pod>().await.first().expect("a pod").name_any();
    scene.delete::<Pod>(&first).await;
    scene.until_gone::<Pod>(&first, WaitLimit::Reaction).await;
    let pod = now() - began;
    let began = now();
    delete_namespace(&scene).await;
    Bare { namespace: now() - began, pod }
}

fn pod(number: usize) -> Value {
    let container = json!({
        "name": "pulumi",
        "image": Environment::get().pulumi_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", SCRIPT],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    json!({
        "metadata": {"name": format!("bare-{number:03}")},
        "spec": {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    })
}

/// Deletes the namespace of a scene and waits until it does not exist.
async fn delete_namespace(scene: &Scene) {
    let namespaces: Api<Namespace> = Api::all(scene.client.clone());
    let name = &scene.namespace;
    api_call(format!("deleting the namespace {name}"), namespaces.delete(name, &DeleteParams::default())).await;
    until_count(&format!("the namespace {name} is deleted"), 1, DELETE_TIMEOUT, async || {
        match api_call("reading the namespace", namespaces.get_opt(name)).await {
            None => (1, String::new()),
            Some(namespace) => (0, remaining(&namespace)),
        }
    })
    .await;
}

/// Returns the namespace controller's messages about the remaining objects.
fn remaining(namespace: &Namespace) -> String {
    let conditions = namespace.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let remaining = conditions.filter(|condition| condition.status == "True");
    remaining.filter_map(|condition| condition.message.clone()).collect::<Vec<_>>().join("; ")
}

/// Time at which a watch observed the most recent deletion of an object.
struct Deletions {
    last: Arc<Mutex<Option<Moment>>>,
    _watch: JoinSet<()>,
}

impl Deletions {
    fn watch<K>(scene: &Scene) -> Deletions
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let last = Arc::<Mutex<Option<Moment>>>::default();
        let mut watch = JoinSet::new();
        watch.spawn(record(scene.api::<K>(), last.clone()));
        Deletions { last, _watch: watch }
    }

    fn last(&self) -> Option<Moment> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn record<K>(api: Api<K>, last: Arc<Mutex<Option<Moment>>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Delete(_))) => {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(now());
            }
            Ok(None) => return,
            Ok(Some(_)) | Err(_) => {}
        }
    }
}
