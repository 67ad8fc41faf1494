//! Writes the state of the cluster to a file after a failed test.

use std::fmt::{Debug, Write as _};
use std::path::PathBuf;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, Resource, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::pulumi::{Program, Stack, StackReceiver};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::controller::Controller;
use super::scene::Scene;
use super::source::GitRepository;

/// Maximum number of log lines per container.
const LOG_LINES: i64 = 400;

/// Maximum time for collecting the state.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Writes the file to the target directory, and returns the path of the file.
pub async fn write(scene: &Scene) -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.txt", scene.namespace));
    let text = timeout(TIMEOUT, text(scene))
        .await
        .unwrap_or_else(|_| format!("the cluster did not return all objects within {TIMEOUT:?}\n"));
    let text = format!("{}\n\n{text}", scene.timeline.text());
    if let Err(error) = std::fs::write(&file, text) {
        println!("failed to write the failure report to {}: {error}", file.display());
    }
    file
}

async fn text(scene: &Scene) -> String {
    let mut text = String::new();
    objects::<Program>(scene, &mut text).await;
    objects::<Stack>(scene, &mut text).await;
    objects::<StackReceiver>(scene, &mut text).await;
    objects::<Workspace>(scene, &mut text).await;
    objects::<Update>(scene, &mut text).await;
    objects::<GitRepository>(scene, &mut text).await;
    objects::<StatefulSet>(scene, &mut text).await;
    objects::<Pod>(scene, &mut text).await;
    events(scene, &mut text).await;
    logs_of_pods(&scene.client, &scene.namespace, &mut text).await;
    let controller = Controller::new(&scene.client);
    let _ = write!(
        text,
        "\n===== log lines of the controller that contain this namespace\n{}\n",
        controller.log_lines(&scene.namespace).await.join("\n")
    );
    text
}

async fn objects<K>(scene: &Scene, text: &mut String)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let kind = K::kind(&());
    match scene.api::<K>().list(&ListParams::default()).await {
        Ok(list) => {
            for mut object in list.items {
                object.managed_fields_mut().clear();
                let yaml = serde_saphyr::to_string(&object).unwrap_or_else(|error| error.to_string());
                let _ = write!(text, "\n===== {kind} {}\n{yaml}", object.name_any());
            }
        }
        Err(error) => drop(writeln!(text, "\n===== {kind}: cannot be listed: {error}")),
    }
}

async fn events(scene: &Scene, text: &mut String) {
    let _ = writeln!(text, "\n===== events");
    for event in scene.api::<Event>().list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
        let involved = &event.involved_object;
        let _ = writeln!(
            text,
            "{} {} {}/{} {} ({}x): {}",
            event.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default(),
            event.type_.unwrap_or_default(),
            involved.kind.as_deref().unwrap_or_default(),
            involved.name.as_deref().unwrap_or_default(),
            event.reason.unwrap_or_default(),
            event.count.unwrap_or(1),
            event.message.unwrap_or_default().trim_end(),
        );
    }
}

async fn logs_of_pods(client: &Client, namespace: &str, text: &mut String) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in pods.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
        let Some(spec) = &pod.spec else { continue };
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            for previous in [true, false] {
                let of = LogParams {
                    container: Some(container.name.clone()),
                    previous,
                    tail_lines: Some(LOG_LINES),
                    ..LogParams::default()
                };
                if let Ok(log) = pods.logs(&pod.name_any(), &of).await {
                    let suffix = if previous { " before its restart" } else { "" };
                    let _ =
                        write!(text, "\n===== log of {}, container {}{suffix}\n{log}", pod.name_any(), container.name);
                }
            }
        }
    }
}
