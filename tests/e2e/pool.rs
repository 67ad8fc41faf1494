//! Tests pools of idle pods. When a Workspace wakes up, it takes a pod from a pool.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::ResourceExt;
use pulumi_controller::api::names::{
    ANNOTATION_IDLE_PODS, LABEL_POOL, LABEL_WORKSPACE_NAME, pool_pod_tls_secret, workspace_object, workspace_pod,
};
use pulumi_controller::api::pulumi::ConfigReference;
use serde_json::json;

use crate::harness::{Poll, Program, Scene, StackHandle, WaitLimit, api_call, kubectl, once, run, wait_until};
use crate::sleeping::{run_on_request, stack_with_idle_time, until_asleep};

/// Sets the number of idle pods in each of the namespace's pools.
pub async fn set_idle_pods(scene: &Scene, number: &str) {
    let annotation = format!("{ANNOTATION_IDLE_PODS}={number}");
    kubectl(&["annotate", "namespace", &scene.namespace, "--overwrite", &annotation], "").await;
}

/// Returns whether the namespace has the annotation that enables pools.
pub async fn has_idle_pods(scene: &Scene) -> bool {
    let template = format!("jsonpath={{.metadata.annotations.{}}}", ANNOTATION_IDLE_PODS.replace('.', "\\."));
    !kubectl(&["get", "namespace", &scene.namespace, "--output", &template], "").await.trim().is_empty()
}

/// Waits until a pool contains a ready pod, and returns this pod.
pub async fn until_ready(scene: &Scene) -> Pod {
    wait_until("a pod of the pool to be ready", WaitLimit::Long, async || {
        let pods = idle_pods(scene).await;
        match pods.iter().find(|pod| is_ready(pod)) {
            Some(pod) => Poll::Found(pod.clone()),
            None => {
                Poll::NotYet(format!("{:?}", pods.iter().map(|pod| (&pod.metadata, &pod.status)).collect::<Vec<_>>()))
            }
        }
    })
    .await
}

/// Returns the pool pods that no Workspace has taken.
async fn idle_pods(scene: &Scene) -> Vec<Pod> {
    let is_idle = |pod: &Pod| pod.labels().contains_key(LABEL_POOL) && !pod.labels().contains_key(LABEL_WORKSPACE_NAME);
    scene.list::<Pod>().await.into_iter().filter(is_idle).collect()
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Waits until the namespace has no pod with one of these names.
async fn until_deleted(scene: &Scene, names: &[String]) {
    wait_until(format!("the pods {names:?} to be deleted"), WaitLimit::Long, async || {
        let pods: Vec<String> = scene.list::<Pod>().await.iter().map(Pod::name_any).collect();
        match pods.iter().any(|name| names.contains(name)) {
            true => Poll::NotYet(format!("{pods:?}")),
            false => Poll::Found(()),
        }
    })
    .await;
}

/// Returns the name and the UID of the pod that the Workspace has taken.
async fn taken(main: &StackHandle<'_>) -> Option<(String, String)> {
    main.workspace().await.pooled_pod().map(|pod| (pod.name.clone(), pod.uid.clone()))
}

#[test]
fn a_push_to_a_sleeping_stack_takes_a_pod_from_the_pool_and_starts_one_run() {
    run("pool", async |scene| {
        set_idle_pods(scene, "1").await;
        scene.create::<ConfigMap>(json!({"metadata": {"name": "words"}, "data": {"word": "one"}})).await;
        let source = scene.source("app").await;
        let program = |value: &str| {
            let program = Program::new("pool").config("word", "none").output("word", json!("${word}"));
            program.step("step", json!({"value": value})).files()
        };
        let first = source.push(&program("one")).await;
        let mut stack = stack_with_idle_time(scene, &source);
        let reference = ConfigReference { name: "words".to_owned(), key: "word".to_owned(), json: None };
        stack.spec.config_ref.insert("word".to_owned(), reference);
        let main = scene.start(stack).await;
        main.until_applied(&first).await;
        assert!(idle_pods(scene).await.is_empty(), "no Workspace is asleep");
        until_asleep(scene, "main").await;
        let idle = until_ready(scene).await;
        let idle = (idle.name_any(), idle.uid().expect("a UID"));

        let second = source.push(&program("two")).await;
        main.until_applied(&second).await;
        assert_eq!(taken(&main).await.as_ref(), Some(&idle));
        let workspace = main.workspace().await;
        assert_eq!(workspace.status.and_then(|status| status.pod_uid).as_ref(), Some(&idle.1), "the run used this pod");
        let stateful_set =
            api_call("reading the StatefulSet", scene.api::<StatefulSet>().get(&workspace_object("main"))).await;
        assert_eq!(stateful_set.spec.and_then(|spec| spec.replicas), Some(0));
        assert_eq!(main.log.operations().await, once(&["create step", "update step"]));

        // The next pod has its own certificate but the same inputs key, so the controller detects no configuration
        // change.
        until_deleted(scene, &[idle.0.clone(), workspace_pod("main")]).await;
        assert_eq!(main.updates().await.len(), 2, "the push starts one run, and the sleep starts no run");
        let next = until_ready(scene).await;
        assert_ne!(next.name_any(), idle.0);
        let secrets: Vec<String> = scene.list::<Secret>().await.iter().map(Secret::name_any).collect();
        assert!(secrets.contains(&pool_pod_tls_secret(&next.name_any())), "{secrets:?}");

        main.delete().await;
        main.until_gone().await;
        until_deleted(scene, &[next.name_any()]).await;
    });
}

#[test]
fn a_workspace_without_a_pod_in_the_pool_or_with_a_lost_pod_uses_its_stateful_set() {
    run("pool-lost", async |scene| {
        set_idle_pods(scene, "1").await;
        let source = scene.source("app").await;
        let commit = source.push(&Program::new("pool-lost").step("step", json!({"value": "one"})).files()).await;
        let main = scene.start(stack_with_idle_time(scene, &source)).await;
        main.until_applied(&commit).await;
        until_asleep(scene, "main").await;
        let idle = until_ready(scene).await.name_any();
        run_on_request(&main, "from the pool").await;
        assert_eq!(taken(&main).await.map(|(name, _)| name), Some(idle.clone()));

        // While the Workspace is awake, its StatefulSet creates the next pod.
        scene.delete::<Pod>(&idle).await;
        run_on_request(&main, "after the loss of the pod").await;
        assert_eq!(taken(&main).await, None);
        assert_eq!(main.pod().await.name_any(), workspace_pod("main"));

        // Without the annotation, the controller deletes the idle pod, and the next run creates a pod.
        until_asleep(scene, "main").await;
        let idle = until_ready(scene).await.name_any();
        set_idle_pods(scene, "0").await;
        until_deleted(scene, &[idle]).await;
        run_on_request(&main, "without a pool").await;
        assert_eq!(main.pod().await.name_any(), workspace_pod("main"));
        assert_eq!(main.log.operations().await, once(&["create step"]));
    });
}
