//! Objects for tests.

#[path = "../view/fixtures.rs"]
mod shared;

use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

pub use shared::*;

/// Returns a Workspace for the Stack `web`.
pub fn workspace(status: &Value) -> Workspace {
    let object = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1",
        "kind": "Workspace",
        "metadata": { "name": "web", "namespace": "apps" },
        "spec": {},
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}
