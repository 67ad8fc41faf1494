//! Helpers for run tests: slow programs, assertions on Updates, and commands in the pod.

use k8s_openapi::api::core::v1::Pod;
use kube::api::EvictParams;
use kube::{Api, ResourceExt};
use pulumi_controller::api::auto::{RunProgress, Update};
use pulumi_controller::api::conditions::{self, FAILED};
use pulumi_controller::api::names::{PULUMI_CONTAINER, workspace_pod};
use serde_json::json;

use crate::harness::{Poll, Program, Scene, StackHandle, WaitLimit, api_call, client_without_retries, wait_for_change};

/// Returns a program with one resource. The resource operations take `seconds` seconds, and report progress every
/// second.
pub fn slow(name: &str, seconds: u32) -> Program {
    Program::new(name).step("slow", json!({"seconds": seconds, "steps": seconds}))
}

/// Returns the failure reason of an Update.
pub fn failure(update: &Update) -> Option<&str> {
    let failed = conditions::find(&update.status.as_ref()?.conditions, FAILED)?;
    (failed.status == "True").then_some(failed.reason.as_str())
}

/// Returns the progress of an Update.
pub fn progress(update: &Update) -> RunProgress {
    update.status.as_ref().and_then(|status| status.progress.clone()).unwrap_or_default()
}

/// Waits until an Update matches `predicate`.
pub async fn until_update(
    scene: &Scene,
    name: &str,
    what: &str,
    wait_limit: WaitLimit,
    predicate: impl Fn(&Update) -> bool,
) -> Update {
    wait_for_change(format!("the Update {name} {what}"), wait_limit, scene.timeline.changes(), async || {
        match scene.api::<Update>().get(name).await {
            Ok(update) if predicate(&update) => Poll::Found(update),
            other => Poll::NotYet(format!("{:?}", other.map(|update| update.status))),
        }
    })
    .await
}

/// Waits until the status of the Stack's only Update contains the process ID, and returns the Update.
pub async fn running_update(scene: &Scene, main: &StackHandle<'_>) -> Update {
    let changes = scene.timeline.changes();
    let name = wait_for_change("an Update to exist", WaitLimit::Run, changes, async || {
        match main.updates().await.as_slice() {
            [update] => Poll::Found(update.name_any()),
            other => Poll::NotYet(format!("{} Updates", other.len())),
        }
    })
    .await;
    until_update(scene, &name, "to report its process", WaitLimit::Run, |update| progress(update).pid.is_some()).await
}

/// Waits until the Stack status contains a completed run with this reason, and returns the name of the Update.
pub async fn until_ended_with_reason(main: &StackHandle<'_>, reason: &str) -> String {
    let stack = main
        .until(&format!("to have a run that ended with {reason}"), WaitLimit::Long, |stack| {
            let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
            last.is_some_and(|last| last.reason.as_deref() == Some(reason))
        })
        .await;
    stack.status.and_then(|status| status.last_update?.name).expect("a run has a name")
}

/// Runs a script in the pod with `kubectl exec`. The script must succeed.
pub async fn in_pod(scene: &Scene, stack: &str, script: &str) -> String {
    exec(scene, stack, &["sh", "-c", script]).await
}

/// Runs a command in the pod with `kubectl exec`. The command must succeed.
pub async fn exec(scene: &Scene, stack: &str, command: &[&str]) -> String {
    let output = tokio::time::timeout(WaitLimit::Run.limit(), kubectl_exec(scene, stack, command).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{command:?} in the pod did not end")).expect("kubectl starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?} in the pod: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns a command that runs a script in the pod. A test can continue while the script runs.
pub fn shell_in_pod(scene: &Scene, stack: &str, script: &str) -> tokio::process::Command {
    kubectl_exec(scene, stack, &["sh", "-c", script])
}

fn kubectl_exec(scene: &Scene, stack: &str, command: &[&str]) -> tokio::process::Command {
    let pod = workspace_pod(stack);
    let mut kubectl = tokio::process::Command::new("kubectl");
    kubectl.args(["exec", "--namespace", &scene.namespace, &pod, "--container", PULUMI_CONTAINER, "--"]);
    kubectl.args(command).kill_on_drop(true);
    kubectl
}

/// Kills the CLI of the Stack's only run with SIGKILL while the CLI creates a resource.
pub async fn kill_cli(scene: &Scene, main: &StackHandle<'_>) -> Update {
    main.log.wait_for("create", "slow", "begin").await;
    let update = running_update(scene, main).await;
    let pid = progress(&update).pid.expect("process ID");
    in_pod(scene, &main.name, &format!("kill -9 {pid}")).await;
    update
}

/// Evicts the pod as `kubectl drain` does. Returns the status code as an error if the API server rejects the eviction.
pub async fn evict(scene: &Scene, stack: &str) -> Result<(), u16> {
    let pods = Api::<Pod>::namespaced(client_without_retries().await, &scene.namespace);
    match pods.evict(&workspace_pod(stack), &EvictParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(error) => panic!("requesting the eviction: {error}"),
    }
}

/// Returns the current state of an Update.
pub async fn read(scene: &Scene, name: &str) -> Update {
    api_call(format!("reading the Update {name}"), scene.api::<Update>().get(name)).await
}
