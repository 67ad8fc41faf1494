//! The Secrets and ConfigMaps that the kubelet mounts in a pod. The simulated kubelet updates them without a delay.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use kube_sim::{GroupResource, Key, Server};
use pulumi_controller::api::names::PULUMI_CONTAINER;
use serde_json::Value;

use super::text;

pub struct Mounts {
    pub server: Server,
    pub pod: Key,
}

impl Mounts {
    /// Returns the first of these directories that is empty.
    pub fn empty<'a>(&self, directories: &'a [String]) -> Option<&'a String> {
        directories.iter().find(|directory| self.keys(directory).is_empty())
    }

    /// Returns the content of a mounted file.
    pub fn file(&self, path: &str) -> Option<String> {
        let (directory, key) = path.rsplit_once('/')?;
        self.keys(directory).remove(key)
    }

    /// Returns the hash of files. Empty if there are no files.
    pub fn hash_of_files(&self, files: &[String]) -> String {
        if files.is_empty() {
            return String::new();
        }
        hash(files.iter().map(|file| (file, self.file(file))).collect::<Vec<_>>())
    }

    /// Returns the hash of each directory.
    pub fn hashes(&self, directories: &[String]) -> impl Iterator<Item = (String, String)> {
        directories.iter().map(|directory| (directory.clone(), hash(self.keys(directory))))
    }

    /// Returns the files in a mounted directory, by name.
    fn keys(&self, directory: &str) -> BTreeMap<String, String> {
        self.object(directory).as_deref().map(keys).unwrap_or_default()
    }

    /// Returns the Secret or the ConfigMap that is mounted at a directory.
    fn object(&self, directory: &str) -> Option<std::sync::Arc<Value>> {
        let pod = self.server.get_key(&self.pod)?;
        let list = |path: &str| pod.pointer(path).and_then(Value::as_array).cloned().unwrap_or_default();
        let container =
            list("/spec/containers").into_iter().find(|container| text(container, "/name") == PULUMI_CONTAINER)?;
        let mounts = container.get("volumeMounts")?.as_array()?;
        let mount = mounts.iter().find(|mount| text(mount, "/mountPath") == directory)?;
        let volume = list("/spec/volumes").into_iter().find(|volume| text(volume, "/name") == text(mount, "/name"))?;
        let (resource, name) = match (text(&volume, "/secret/secretName"), text(&volume, "/configMap/name")) {
            ("", name) => ("configmaps", name),
            (name, _) => ("secrets", name),
        };
        self.server.get(&GroupResource::new("", resource), self.pod.namespace(), name)
    }
}

fn keys(object: &Value) -> BTreeMap<String, String> {
    let entries = ["data", "binaryData", "stringData"].into_iter().filter_map(|field| object.get(field)?.as_object());
    entries.flatten().map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn hash(content: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
