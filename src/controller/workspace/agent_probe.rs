//! Probes agents that are starting. A task probes the agent's port until the port is open, and then requeues the
//! Workspace. The kubelet would report the ready container up to two seconds later: it checks containers once per
//! second, and runs their probes afterwards.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::auto::Workspace;
use crate::api::names::AGENT_PORT;
use crate::rpc::client::Agents;
use crate::runtime::requeue::Requeue;

/// Interval between two probes. A probe sends one or two packets.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a single probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which the task probes an agent. Afterwards, the controller waits until the kubelet reports that the pod
/// is ready.
const PROBE_DURATION: Duration = Duration::from_secs(20);

/// All probes of this process. Clones are cheap.
#[derive(Clone)]
pub struct AgentProbes {
    requeue: Requeue<Workspace>,
    agents: Agents,
    tasks: TaskTracker,
    end: CancellationToken,
    /// Probes by pod UID. Hold the lock only for short critical sections, and never across an `.await`.
    probes: Arc<Mutex<HashMap<String, Probe>>>,
}

struct Probe {
    is_open: bool,
    since: Instant,
}

impl AgentProbes {
    /// Creates the component. `requeue` receives the Workspaces whose agent has opened its port. All tasks stop when
    /// `end` is canceled.
    pub fn new(requeue: Requeue<Workspace>, agents: Agents, tasks: TaskTracker, end: CancellationToken) -> Self {
        AgentProbes { requeue, agents, tasks, end, probes: Arc::default() }
    }

    /// Returns whether the agent in the pod has opened its port. The first call for a pod starts the probes.
    pub(super) fn is_open(&self, workspace: ObjectRef<Workspace>, pod_uid: &str, ip: IpAddr) -> bool {
        let mut probes = self.lock();
        if let Some(probe) = probes.get(pod_uid) {
            return probe.is_open;
        }
        probes.retain(|_, probe| probe.since.elapsed() < PROBE_DURATION * 2);
        probes.insert(pod_uid.to_owned(), Probe { is_open: false, since: Instant::now() });
        drop(probes);
        let (this, uid) = (self.clone(), pod_uid.to_owned());
        self.tasks.spawn(async move {
            tokio::select! {
                () = this.end.cancelled() => {}
                () = this.probe(workspace, &uid, SocketAddr::new(ip, AGENT_PORT)) => {}
            }
        });
        false
    }

    async fn probe(&self, workspace: ObjectRef<Workspace>, pod_uid: &str, agent: SocketAddr) {
        let until_open = async {
            while !matches!(tokio::time::timeout(PROBE_TIMEOUT, self.agents.is_listening(agent)).await, Ok(true)) {
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        };
        if tokio::time::timeout(PROBE_DURATION, until_open).await.is_err() {
            return;
        }
        if let Some(probe) = self.lock().get_mut(pod_uid) {
            probe.is_open = true;
        }
        self.requeue.request(workspace);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Probe>> {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::controller::test_parts::TestParts;
    use crate::runtime::fake_api::{FakeResponse, client};
    use crate::runtime::requeue;

    /// Address of the agent in this test. All agents use the same port, so no other test may use this address.
    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 83, 7, 1));

    #[tokio::test]
    async fn a_workspace_is_requeued_once_when_its_agent_becomes_reachable() {
        let (requeue, mut requeued) = requeue::queue();
        let (client, _) = client(|_| FakeResponse::refusal(404, "NotFound"));
        let (agents, end) = (TestParts::new(client).agents, CancellationToken::new());
        let probes = AgentProbes::new(requeue, agents, TaskTracker::new(), end);
        let app = ObjectRef::<Workspace>::new("app").within("team");
        assert!(!probes.is_open(app.clone(), "pod", ADDRESS), "the port is closed");
        assert!(!probes.is_open(app.clone(), "pod", ADDRESS));
        let listener = TcpListener::bind((ADDRESS, AGENT_PORT)).await.unwrap();
        assert_eq!(requeued.next().await, Some(app.clone()));
        assert!(probes.is_open(app.clone(), "pod", ADDRESS));
        assert!(!probes.is_open(app, "another pod", ADDRESS));
        drop(listener);
        assert_eq!(probes.tasks.len(), 1, "only the other pod is probed");
    }
}
