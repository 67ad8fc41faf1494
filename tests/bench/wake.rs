//! Measures how fast a sleeping Workspace wakes up. The measured time starts with an artifact in the source status, and
//! ends when the CLI starts. The baseline is the start of a pod with the same image and without volumes. For programs
//! with dependencies, the baseline also includes the package manager or `tar`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as CorePod};
use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{READY, find, workspace_reason};
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::languages::IMAGE;
use crate::harness::{
    Controller, File, FluxObject, Poll, Scene, Source, StackHandle, Volume, WaitLimit, client, kubectl, wait_until,
};
use crate::languages;
use crate::moments::{Moment, Moments, now};
use crate::path::{self, Pod, Watched, watched};
use crate::table::{Row, Step, median};

const ROUNDS: usize = 3;
/// Time between the deletion of the pods and the first round. For five minutes, ext4 does
/// not reuse the inodes of deleted files, and checks all these inodes whenever it creates a file. A new pod would
/// therefore unpack thousands of files many times slower than usual.
const SETTLE_TIME: Duration = Duration::from_secs(330);
/// Idle time of the Workspaces. All cases are measured within this time, so that no pod is deleted meanwhile.
const IDLE_AFTER: &str = "3m";
const CLAIM: &str = "pulumi-cache";
const STORED: &str = "stored the dependencies in the cache";

/// Steps of the measurement, in order.
const STEPS: [&str; 5] = [
    "artifact fetched, Workspace woken, pod created",
    "pod scheduled, volumes mounted, agent copied by `bootstrap`",
    "agent started, source and dependencies installed",
    "run recorded and bound to the pod",
    "agent called, CLI started",
];

/// A program, and its Workspace settings.
struct Case {
    name: &'static str,
    scene: &'static str,
    /// Returns the program files. `text` changes in each round.
    files: fn(text: &str) -> Vec<File>,
    has_dependencies: bool,
    keeps_caches: bool,
    /// Whether the Workspace takes a pod from a pool.
    uses_pool: bool,
    /// Budget in seconds, or `None` if the case has no budget.
    budget: Option<f64>,
}

const CASES: [Case; 5] = [
    Case {
        name: "YAML",
        scene: "bench-wake-yaml",
        files: path::program,
        has_dependencies: false,
        keeps_caches: false,
        uses_pool: false,
        budget: Some(3.0),
    },
    Case {
        name: "TypeScript, without a cache",
        scene: "bench-wake-ts",
        files: typescript,
        has_dependencies: true,
        keeps_caches: false,
        uses_pool: false,
        budget: None,
    },
    Case {
        name: "TypeScript, unchanged lock file, with the cache",
        scene: "bench-wake-cache",
        files: typescript,
        has_dependencies: true,
        keeps_caches: true,
        uses_pool: false,
        budget: Some(4.0),
    },
    Case {
        name: "YAML, with a pool",
        scene: "bench-wake-pool-yaml",
        files: path::program,
        has_dependencies: false,
        keeps_caches: false,
        uses_pool: true,
        budget: Some(1.0),
    },
    Case {
        name: "TypeScript, unchanged lock file, with the cache and a pool",
        scene: "bench-wake-pool",
        files: typescript,
        has_dependencies: true,
        keeps_caches: true,
        uses_pool: true,
        budget: Some(1.5),
    },
];

fn typescript(text: &str) -> Vec<File> {
    languages::typescript(text, false)
}

pub async fn measure() -> Vec<Row> {
    let controller = Controller::new(&client().await);
    let arguments = controller.arguments().await;
    controller.start_with(&[arguments.as_slice(), &["--max-idle-pods=1".to_owned()]].concat(), 1).await;
    let mut scenes = Vec::new();
    for case in &CASES {
        scenes.push(Scene::new(case.scene).await);
    }
    let mut cases = Vec::new();
    for (case, scene) in CASES.iter().zip(&scenes) {
        println!("preparing case {} of {}: {}", cases.len() + 1, CASES.len(), case.name);
        cases.push(PreparedCase::prepare(scene, case).await);
    }
    for case in &cases {
        case.until_asleep().await;
    }
    println!("waiting {SETTLE_TIME:?}, because the deleted files slow down the file system");
    sleep(SETTLE_TIME).await;
    let mut rows = Vec::new();
    for case in cases {
        println!("measuring case {} of {}: {}", rows.len() + 1, CASES.len(), case.case.name);
        rows.push(case.measure().await);
    }
    for scene in scenes {
        scene.remove().await;
    }
    controller.start_with(&arguments, 1).await;
    rows
}

/// A case whose Stacks have completed their first run. Each round wakes another Stack.
struct PreparedCase<'a> {
    case: &'a Case,
    scene: &'a Scene,
    /// Repository whose artifacts the sources provide.
    program: Source<'a>,
    /// The Stacks with their sources.
    stacks: Vec<(StackHandle<'a>, FluxObject<'a>)>,
    volume: Option<Volume>,
}

impl<'a> PreparedCase<'a> {
    async fn prepare(scene: &'a Scene, case: &'a Case) -> PreparedCase<'a> {
        if case.uses_pool {
            let annotation = format!("{}=1", names::ANNOTATION_IDLE_PODS);
            kubectl(&["annotate", "namespace", &scene.namespace, &annotation], "").await;
        }
        let volume = if case.keeps_caches { Some(create_volume(scene).await) } else { None };
        let program = scene.source("app").await;
        let first = program.artifact_of(&program.push(&(case.files)("start")).await).await;
        let mut stacks = Vec::new();
        for round in 1..=ROUNDS {
            let source = scene.flux_object("ExternalArtifact", "externalartifacts", &format!("served-{round}"));
            source.create(json!({})).await;
            source.publish(&first).await;
            let stack = prepared(scene.stack_on_kind(&format!("main-{round}"), None, &source), case);
            let stack = scene.start(stack).await;
            stack.until_revision(&first.revision).await;
            if case.keeps_caches && round == 1 {
                until_stored(&stack).await;
            }
            stacks.push((stack, source));
        }
        PreparedCase { case, scene, program, stacks, volume }
    }

    async fn until_asleep(&self) {
        for (stack, _) in &self.stacks {
            until_asleep(self.scene, stack).await;
        }
    }

    async fn measure(self) -> Row {
        let PreparedCase { case, scene, program, stacks, volume } = self;
        let (workspaces, updates) = (Moments::<Workspace>::watch(scene.api()), Moments::<Update>::watch(scene.api()));
        let pods = Moments::<CorePod>::watch(scene.api());
        let mut rounds = Vec::new();
        for (stack, source) in &stacks {
            if case.uses_pool {
                until_pool_ready(scene).await;
            }
            let round = rounds.len() + 1;
            let artifact = program.artifact_of(&program.push(&(case.files)(&format!("round {round}"))).await).await;
            let began = now();
            source.publish(&artifact).await;
            stack.until_revision(&artifact.revision).await;
            let found = stack.pod().await;
            let (uid, pod) = (found.uid(), Pod::named(scene, found.name_any()));
            let moments = moments(began, watched(&artifact.revision, &workspaces, &updates), &pods, uid, &pod).await;
            println!("round {round} of {ROUNDS}: exec after {:.2} s", moments[STEPS.len()] - began);
            rounds.push((moments, pod));
        }
        let (_, pod) = rounds.last().expect("at least one round");
        let (limit, description) = limit(scene, case, pod).await;
        if let Some(volume) = volume {
            volume.remove().await;
        }
        let rounds: Vec<Vec<Moment>> = rounds.into_iter().map(|(moments, _)| moments).collect();
        row(case, &rounds, limit, &description)
    }
}

/// Returns the start time and the end time of each step.
async fn moments(
    began: Moment,
    Watched { source_installed, bound, update, .. }: Watched,
    pods: &Moments<CorePod>,
    uid: Option<String>,
    pod: &Pod,
) -> Vec<Moment> {
    let created = pods.first("of this run", |pod| pod.uid() == uid);
    let initialized = pods.first("that is initialized", |pod| pod.uid() == uid && has_condition(pod, "Initialized"));
    let (exec, _) = pod.journal(&update.uid().unwrap_or_default()).await;
    // A pool pod exists before the measurement, so its steps have no duration.
    let (created, initialized) = (created.max(began), initialized.max(began));
    vec![began, created, initialized, source_installed, bound, exec]
}

fn row(case: &Case, rounds: &[Vec<Moment>], limit: f64, description: &str) -> Row {
    let total = median(rounds.iter().map(|moments| moments[STEPS.len()] - moments[0]).collect());
    let step = |i: usize| median(rounds.iter().map(|moments| moments[i + 1] - moments[i]).collect());
    let steps = (0..STEPS.len()).map(|i| Step { name: STEPS[i].to_owned(), seconds: step(i) }).collect();
    let name = format!("artifact in status → exec of `pulumi up`, asleep, {}", case.name);
    let row = match case.budget {
        Some(budget) => Row::seconds(&name, total, budget),
        None => Row::of(&name, "", format!("{total:.2} s"), None),
    };
    row.with_steps(steps)
        .with_note(format!("{description}: {limit:.2} s; ratio {:.2}; medians of {ROUNDS}", total / limit))
}

/// Returns the baseline without the controller in seconds, and its description.
async fn limit(scene: &Scene, case: &Case, pod: &Pod) -> (f64, String) {
    let image = if case.has_dependencies { IMAGE } else { scene.pulumi_image() };
    let mut starts = Vec::new();
    for round in 1..=ROUNDS {
        starts.push(bare_pod(scene, image, round).await);
    }
    let start = median(starts);
    if !case.has_dependencies {
        return (start, "bare pod".to_owned());
    }
    let (command, name) = match case.keeps_caches {
        true => (
            "for archive in /var/cache/pulumi-controller/v1/archives/*.tar.gz; do tar -xzf \"$archive\"; done",
            "`tar -xzf`",
        ),
        false => ("npm install --loglevel=error", "`npm install`"),
    };
    let mut durations = Vec::new();
    for round in 1..=ROUNDS {
        // Deletes no directory of an earlier round, because deleted files slow down the file system.
        let bare = format!("mkdir -p /tmp/bare-{round} && cd /tmp/bare-{round}");
        let prepare = if case.keeps_caches { bare } else { bare_project(bare) };
        durations.push(pod.duration(&prepare, command).await);
    }
    let duration = median(durations);
    (start + duration, format!("bare pod ({start:.2} s) and {name} ({duration:.2} s)"))
}

/// Returns a script that writes the project to a directory. `script` changes to this directory.
fn bare_project(mut script: String) -> String {
    for File { path, content } in typescript("bare") {
        script.push_str(&format!("\ncat >{path} <<'END_OF_FILE'\n{content}END_OF_FILE"));
    }
    script
}

/// Creates a pod without volumes, and returns the time until the pod is ready, in seconds.
async fn bare_pod(scene: &Scene, image: &str, round: usize) -> f64 {
    let name = format!("bare-{round}");
    let pods = Moments::<CorePod>::watch(scene.api());
    let container = json!({
        "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "3600"],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    let security = json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    let spec = json!({"containers": [container], "securityContext": security, "terminationGracePeriodSeconds": 0});
    let began = now();
    scene.create::<CorePod>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let ready = wait_until(format!("the pod {name} to be ready"), WaitLimit::Run, async || {
        match pods.find(|pod| pod.name_any() == name && has_condition(pod, "Ready")) {
            Some((moment, _)) => Poll::Found(moment),
            None => Poll::NotYet("not ready".to_owned()),
        }
    })
    .await;
    scene.delete::<CorePod>(&name).await;
    ready - began
}

fn has_condition(pod: &CorePod, kind: &str) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn prepared(mut stack: Stack, case: &Case) -> Stack {
    if case.has_dependencies {
        stack = languages::with_registry(stack);
    }
    if let Some(template) = &mut stack.spec.workspace_template {
        template["spec"]["idle"] = idle(case);
    }
    stack
}

fn idle(case: &Case) -> Value {
    let keep = if case.keeps_caches { "Caches" } else { "Nothing" };
    json!({"after": IDLE_AFTER, "keep": keep, "claim": CLAIM})
}

async fn create_volume(scene: &Scene) -> Volume {
    let volume = Volume::create(scene, CLAIM).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    scene.create::<PersistentVolumeClaim>(json!({"metadata": {"name": CLAIM}, "spec": spec})).await;
    volume
}

async fn until_stored(stack: &StackHandle<'_>) {
    wait_until("the dependencies to be stored in the cache", WaitLimit::Run, async || {
        let log = stack.pod_log(names::PULUMI_CONTAINER).await;
        if log.contains(STORED) { Poll::Found(()) } else { Poll::NotYet(log) }
    })
    .await;
}

/// Waits until the Workspace sleeps and has no pod.
async fn until_asleep(scene: &Scene, stack: &StackHandle<'_>) {
    wait_until("the Workspace to be asleep", WaitLimit::Long, async || {
        let conditions = stack.workspace().await.status.map(|status| status.conditions).unwrap_or_default();
        let reason = find(&conditions, READY).map(|ready| ready.reason.clone());
        let is_of_workspace = |pod: &CorePod| pod.labels().contains_key(names::LABEL_WORKSPACE_NAME);
        let pods: Vec<CorePod> = scene.list::<CorePod>().await.into_iter().filter(is_of_workspace).collect();
        match reason.as_deref() {
            Some(workspace_reason::SLEEPING) if pods.is_empty() => Poll::Found(()),
            reason => Poll::NotYet(format!("{reason:?}, {} pods", pods.len())),
        }
    })
    .await;
}

/// Waits until the pool contains a ready pod.
async fn until_pool_ready(scene: &Scene) {
    wait_until("a pod of the pool to be ready", WaitLimit::Long, async || {
        let pods = scene.list::<CorePod>().await;
        let is_idle = |pod: &&CorePod| {
            pod.labels().contains_key(names::LABEL_POOL) && !pod.labels().contains_key(names::LABEL_WORKSPACE_NAME)
        };
        match pods.iter().filter(is_idle).any(|pod| has_condition(pod, "Ready")) {
            true => Poll::Found(()),
            false => {
                Poll::NotYet(format!("{:?}", pods.iter().map(|pod| (&pod.metadata, &pod.status)).collect::<Vec<_>>()))
            }
        }
    })
    .await;
}
