//! UIDs of the workspace pods. An agent reports the UID of its pod, and the controller verifies this UID.

use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use pulumi_controller::api::names::{LABEL_COMPONENT, workspace_pod};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::workspace::Key;

/// Timeout for the initial list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) enum Pods {
    /// Pods of the cluster.
    Watched(Store<PartialObjectMeta<Pod>>),
    /// Constant UID, which is the same for every workspace.
    One(String),
}

impl Pods {
    /// Watches the pods of all workspaces.
    pub(super) async fn watch(client: &Client, tasks: &mut JoinSet<()>) -> anyhow::Result<Pods> {
        let (store, writer) = reflector::store();
        let workspaces = watcher::Config::default().labels(&format!("{LABEL_COMPONENT}=workspace"));
        let pods = watcher(Api::<PartialObjectMeta<Pod>>::all(client.clone()), workspaces)
            .default_backoff()
            .modify(|pod| pod.managed_fields_mut().clear())
            .reflect(writer);
        tasks.spawn(pods.for_each(|_| std::future::ready(())));
        timeout(LIST_TIMEOUT, store.wait_until_ready())
            .await
            .context("listing the workspace pods timed out")?
            .context("the watch on pods ended")?;
        Ok(Pods::Watched(store))
    }

    /// Returns the UID of a workspace's pod, or `None` if the pod is missing or terminating.
    pub(super) fn uid(&self, workspace: &Key) -> Option<String> {
        let store = match self {
            Pods::Watched(store) => store,
            Pods::One(uid) => return Some(uid.clone()),
        };
        let pod = store.get(&ObjectRef::new(&workspace_pod(&workspace.name)).within(&workspace.namespace))?;
        pod.uid().filter(|_| pod.metadata.deletion_timestamp.is_none())
    }
}
