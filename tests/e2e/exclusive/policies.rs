//! Tests a controller that enforces a policy pack for all Stacks.

use serde_json::json;

use crate::harness::{
    Controller, File, Program, Scene, WaitLimit, client, in_scene, is_done, run_alone, run_with_cleanup,
};

#[test]
fn a_policy_pack_of_the_cluster_applies_to_every_stack() {
    run_alone(async || {
        let controller = Controller::new(&client().await);
        let before = controller.arguments().await;
        let test = async || in_scene("policy-cluster", async |scene| enforce(scene, &controller, &before).await).await;
        run_with_cleanup(test, async || controller.start_with(&before, 1).await).await;
    });
}

/// Checks that the controller adds a policy pack from another namespace to the run. The run fails, because the image
/// contains no policy runtime.
async fn enforce(scene: &Scene, controller: &Controller, before: &[String]) {
    let elsewhere = Scene::new("policy-cluster-too").await;
    let (source, policies) = (scene.source("app").await, elsewhere.source("policies").await);
    let content = "name: house\nruntime: yaml\nversion: 1.0.0\n".to_owned();
    policies.push(&[File { path: "house/PulumiPolicy.yaml".to_owned(), content }]).await;
    let commit = source.push(&Program::new("policy-cluster").step("step", json!({})).files()).await;
    let main = scene.start(scene.stack("main", &source)).await;
    main.until_applied(&commit).await;
    assert_eq!(main.workspace().await.spec.policy_packs, []);

    let name = format!("GitRepository/{}/policies:house", elsewhere.namespace);
    controller.start_with(&[before, &[format!("--policy-packs={name}")]].concat(), 1).await;
    main.until("to run with the policy pack of the cluster", WaitLimit::Long, |stack| {
        let last = stack.status.as_ref().and_then(|status| status.last_update.as_ref());
        last.is_some_and(|last| last.inputs.policy_inputs.contains_key(&format!("cluster/{name}")))
    })
    .await;
    let packs = main.workspace().await.spec.policy_packs;
    assert_eq!(packs.iter().map(|pack| pack.name.as_str()).collect::<Vec<_>>(), [format!("cluster/{name}")]);

    controller.start_with(before, 1).await;
    main.until("to run without policy packs", WaitLimit::Long, is_done).await;
    elsewhere.remove().await;
}
