//! Objects for the tests of the `view` module, the web UI and the kubectl plugin. The kubectl plugin is a separate
//! crate, and `plugin/fixtures.rs` includes this file as a module. The API types have different paths in the two
//! crates, so this file imports the types from its parent module.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Stack, Update};

/// Revision of the examples.
pub const REVISION: &str = "main@sha1:9f2c7d10a1b2c3d4e5f60718293a4b5c6d7e8f90";
/// Digest of each example plan.
pub const PLAN: &str = "sha256:d242d1f0da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8";
/// Digest of each example artifact and file.
pub const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Returns the current time that the examples assume.
pub fn now() -> Timestamp {
    "2026-11-02T12:00:00Z".parse().unwrap()
}

/// Returns a condition.
pub fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-02T11:00:00Z" })
}

/// Returns a two-day-old Stack in the namespace `apps`. `spec` extends the minimal spec.
pub fn stack(name: &str, spec: &Value, status: &Value) -> Stack {
    let mut spec = spec.clone();
    spec["stack"] = json!("dev");
    let object = json!({
        "apiVersion": "pulumi.com/v1",
        "kind": "Stack",
        "metadata": { "name": name, "namespace": "apps", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": "2026-10-31T12:00:00Z" },
        "spec": spec,
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}

/// Returns an Update of the Stack `web` that was created one hour ago.
pub fn update(name: &str, kind: &str, status: &Value) -> Update {
    let object = json!({
        "apiVersion": "auto.pulumi.com/v1alpha1",
        "kind": "Update",
        "metadata": { "name": name, "namespace": "apps", "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-11-02T11:00:00Z" },
        "spec": { "workspaceName": "web", "stackName": "dev", "type": kind },
        "status": status,
    });
    serde_json::from_value(object).unwrap()
}
