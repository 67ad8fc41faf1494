//! Tests Stacks whose state is in Pulumi Cloud. The test cluster contains a server that implements the Pulumi Cloud
//! API.

mod failures;
mod identity;
mod runs;

use k8s_openapi::api::core::v1::Secret;
use pulumi_controller::api::pulumi::{LastUpdate, Stack};
use serde_json::json;

use crate::harness::{PulumiCloud, Scene, TOKEN_SECRET};

/// Creates a scene's organization, and the Secret with an access token for the organization's first member. Returns the
/// token as well.
pub async fn cloud_with_token(scene: &Scene) -> (PulumiCloud, String) {
    let cloud = PulumiCloud::of(scene).await;
    let token = cloud.token(&cloud.alice).await;
    create_token_secret(scene, &token).await;
    (cloud, token)
}

async fn create_token_secret(scene: &Scene, token: &str) {
    let secret = json!({"metadata": {"name": TOKEN_SECRET}, "stringData": {"accessToken": token}});
    scene.create::<Secret>(secret).await;
}

fn last_update(stack: &Stack) -> LastUpdate {
    stack.status.as_ref().and_then(|status| status.last_update.clone()).expect("a run has ended")
}

/// Returns the number of consecutive failures, which determines the backoff.
fn failures(stack: &Stack) -> i64 {
    last_update(stack).failures
}
