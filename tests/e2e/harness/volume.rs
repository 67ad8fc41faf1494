//! PersistentVolumes of tests.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tempfile::TempDir;

use super::command::kubectl;
use super::scene::Scene;

/// A PersistentVolume for a PersistentVolumeClaim of a scene. A local node has no StorageClass, so the volume is a
/// directory on the machine. In an existing cluster, the default StorageClass provides the volume.
pub struct Volume {
    name: Option<String>,
    _folder: TempDir,
}

impl Volume {
    pub async fn create(scene: &Scene, claim: &str) -> Volume {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a temporary directory");
        // All users need write permission, because a hostPath volume ignores `fsGroup`.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("the mode can be set");
        if std::env::var("TEST_NODE").as_deref() != Ok("own") {
            return Volume { name: None, _folder: folder };
        }
        let name = scene.namespace.clone();
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": scene.namespace, "name": claim},
                "hostPath": {"path": folder.path()},
            },
        });
        kubectl(&["create", "--filename", "-"], &volume.to_string()).await;
        Volume { name: Some(name), _folder: folder }
    }

    pub async fn remove(self) {
        if let Some(name) = &self.name {
            kubectl(&["delete", "persistentvolume", name, "--wait=false"], "").await;
        }
    }
}
