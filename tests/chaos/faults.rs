//! Executes the planned acts. The faults affect only the pods of this scene, the controller and, if the tests have
//! started the cluster, the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use pulumi_controller::api::pulumi::Stack;
use tokio::time::{Duration, sleep};

use crate::harness::{ApiServerOutage, Controller, OutageKind, Poll, WaitLimit, api_call, wait_until};
use crate::plan::{API_SERVER_AWAY, Act, Kind};
use crate::processes::{Process, Role, find};
use crate::stage::Stage;

/// Namespace of the controller.
const NAMESPACE: &str = "flux-system";
/// Maximum number of container restarts before the test deletes the pod. The kubelet delays further restarts.
const RESTARTS: i32 = 2;
/// Delay between the start of an API server outage and the fault during the outage.
const DURING_OUTAGE: Duration = Duration::from_secs(5);

/// Executes an act, and returns a description that contains the target. Returns `None` if no target exists.
pub async fn perform(stage: &mut Stage<'_>, controller: &Controller, act: Act) -> Option<String> {
    match act.kind {
        Kind::PushRevision => Some(stage.push_to(act.pick).await),
        Kind::RecreateStack => stage.delete_one(act.pick).await,
        Kind::KillController => kill_controller(controller, act.pick).await,
        Kind::MoveLeader => Some(move_leader(stage, controller, act.pick).await),
        Kind::DeletePod => delete_pod(stage, act.pick, false).await,
        Kind::ForceDeletePod => delete_pod(stage, act.pick, true).await,
        Kind::KillAgent => kill_pod_process(stage, Role::Agent, act.pick).await,
        Kind::KillPulumi => kill_pod_process(stage, Role::Pulumi, act.pick).await,
        Kind::KillProvider => kill_pod_process(stage, Role::Provider, act.pick).await,
        Kind::StopApiServer => Some(kill_run_during_outage(stage, act.pick).await),
    }
}

async fn kill_controller(controller: &Controller, pick: usize) -> Option<String> {
    let pods = controller.pods().await;
    let restarts = |pod: &Pod| -> i32 {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        containers.map(|container| container.restart_count).sum()
    };
    let by_uid: BTreeMap<String, String> = pods
        .iter()
        .filter(|pod| restarts(pod) < RESTARTS)
        .filter_map(|pod| Some((pod.uid()?, pod.name_any())))
        .collect();
    match pick_process(find(&by_uid, Role::Controller), pick) {
        Some(process) => process.kill().then(|| process.owner.clone()),
        None => {
            let name = pods.get(pick.checked_rem(pods.len())?)?.name_any();
            controller.kill_pod(&name).await;
            Some(format!("{name}, with its pod"))
        }
    }
}

/// Terminates the leader process, either with SIGKILL or gracefully. After SIGKILL, the lease expires. During a
/// graceful shutdown, the process releases the lease.
async fn move_leader(stage: &Stage<'_>, controller: &Controller, pick: usize) -> String {
    let leader = controller.until_leader_other_than("").await;
    if pick.is_multiple_of(2) {
        controller.kill_pod(&leader).await;
        return format!("{leader}, by force");
    }
    let pods: Api<Pod> = Api::namespaced(stage.scene.client.clone(), NAMESPACE);
    api_call(format!("deleting the leader {leader}"), pods.delete(&leader, &DeleteParams::default())).await;
    leader
}

async fn delete_pod(stage: &mut Stage<'_>, pick: usize, by_force: bool) -> Option<String> {
    let pods = stage.pods().await;
    // If the CLI runs in at least one pod, only the pods with a running CLI are candidates.
    let running = find(&pods, Role::Pulumi).into_iter().map(|process| process.owner).collect::<Vec<_>>();
    let candidates = if running.is_empty() { pods.into_values().collect() } else { running };
    let stack = candidates.get(pick.checked_rem(candidates.len())?)?;
    stage.stacks.get_mut(stack)?.record_hit();
    stage.delete_pod(stack, by_force).await;
    Some(stack.clone())
}

async fn kill_pod_process(stage: &mut Stage<'_>, role: Role, pick: usize) -> Option<String> {
    let pods = stage.pods().await;
    kill_one(stage, &pods, role, pick)
}

fn kill_one(stage: &mut Stage<'_>, pods: &BTreeMap<String, String>, role: Role, pick: usize) -> Option<String> {
    let process = pick_process(find(pods, role), pick)?;
    let member = stage.stacks.get_mut(&process.owner)?;
    // The test records the fault before the kill, so that the recorded time precedes all effects.
    member.record_hit();
    process.kill().then(|| process.owner.clone())
}

fn pick_process(mut found: Vec<Process>, pick: usize) -> Option<Process> {
    let index = pick.checked_rem(found.len())?;
    Some(found.swap_remove(index))
}

/// Stops the API server and kills a run during the outage. The controller must detect the interrupted run after the
/// outage.
async fn kill_run_during_outage(stage: &mut Stage<'_>, pick: usize) -> String {
    let pods = stage.pods().await;
    let kind = if pick.is_multiple_of(2) { OutageKind::Stopped } else { OutageKind::Paused };
    let outage = ApiServerOutage::start(kind).await;
    sleep(DURING_OUTAGE).await;
    let killed = kill_one(stage, &pods, Role::Pulumi, pick);
    sleep(API_SERVER_AWAY.saturating_sub(DURING_OUTAGE)).await;
    outage.finish().await;
    until_reachable(stage).await;
    match killed {
        Some(stack) => format!("{kind:?}; `pulumi` of {stack} was killed during the outage"),
        None => format!("{kind:?}"),
    }
}

async fn until_reachable(stage: &Stage<'_>) {
    wait_until("the API server to be reachable again", WaitLimit::Reaction, async || {
        match stage.scene.api::<Stack>().list(&Default::default()).await {
            Ok(_) => Poll::Found(()),
            Err(error) => Poll::NotYet(error.to_string()),
        }
    })
    .await;
}
