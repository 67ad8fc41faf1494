//! The garbage collector and the namespace controller, as actors whose steps the caller triggers.
//!
//! In a real cluster, both controllers work asynchronously. Here, nothing happens until a step, so that a test can choose
//! any order of a controller's own requests and of these steps.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::metadata::{self, FOREGROUND, ORPHAN};
use crate::server::Server;
use crate::status::Status;
use crate::store::{GroupResource, Key};

const COLLECTOR: &str = "garbage-collector";
const NAMESPACES: &str = "namespace-controller";

/// Step that the garbage collector or the namespace controller can do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Delete an object whose owners no longer exist, or whose owner waits for its deletion.
    Delete { key: Key, uid: String, is_foreground: bool },
    /// Remove the owner references to missing owners. The object keeps other owners.
    RemoveOwners { key: Key, uids: Vec<String> },
    /// Remove a finalizer of the garbage collector, because the dependents of the object are gone or orphaned.
    RemoveFinalizer { key: Key, finalizer: String },
    /// Delete an object in a terminating namespace.
    DeleteContent { key: Key, uid: String },
    /// Remove a terminating namespace without content.
    RemoveNamespace { key: Key },
}

/// Owner reference of an object.
struct Owner {
    key: Option<Key>,
    uid: String,
    blocks: bool,
}

impl Server {
    /// Returns the steps that the garbage collector and the namespace controller can do now, in a fixed order. An owner
    /// is identified by its UID, so an owner that was replaced by another object with the same name does not exist.
    pub fn controller_steps(&self) -> Vec<Step> {
        let objects: BTreeMap<Key, std::sync::Arc<Value>> = self.objects().into_iter().collect();
        let mut steps = Vec::new();
        for (key, object) in &objects {
            steps.extend(self.collection_step(&objects, key, object));
            if key.resource == namespaces() && metadata::is_deleting(object) {
                namespace_steps(&objects, key, object, &mut steps);
            }
        }
        // The real garbage collector also looks at the dependents of an object first.
        steps.extend(objects.iter().filter_map(|(key, object)| self.finalizer_step(&objects, key, object)));
        steps
    }

    /// Does a step. A step whose objects have changed in the meantime has no effect.
    pub fn do_controller_step(&self, step: &Step) {
        // A conflict or a missing object means that the step is no longer due.
        let _: Result<(), Status> = match step {
            Step::Delete { key, uid, is_foreground } => {
                if *is_foreground {
                    self.break_circle(key);
                }
                let policy = if *is_foreground { "Foreground" } else { "Background" };
                let options = json!({ "preconditions": { "uid": uid }, "propagationPolicy": policy });
                self.delete_as(key, COLLECTOR, &options)
            }
            Step::DeleteContent { key, uid } => {
                let options = json!({ "preconditions": { "uid": uid }, "propagationPolicy": "Background" });
                self.delete_as(key, NAMESPACES, &options)
            }
            Step::RemoveOwners { key, uids } => {
                self.edit_metadata(key, COLLECTOR, |object| remove_owners(object, uids))
            }
            Step::RemoveFinalizer { key, finalizer } => {
                if finalizer == ORPHAN {
                    self.orphan_dependents(key);
                }
                self.edit_metadata(key, COLLECTOR, |object| {
                    let mut finalizers = metadata::finalizers(object);
                    finalizers.retain(|name| name != finalizer);
                    metadata::set_finalizers(object, &finalizers);
                })
            }
            Step::RemoveNamespace { key } => {
                self.put_unchecked(key, None, NAMESPACES);
                Ok(())
            }
        };
    }

    /// Does the first possible step. Returns it, or `None` if there is nothing to do.
    pub fn controller_step(&self) -> Option<Step> {
        let step = self.controller_steps().into_iter().next()?;
        self.do_controller_step(&step);
        Some(step)
    }

    /// Does all steps one after the other, including those that become possible. Returns the number of steps. The limit
    /// prevents an endless loop if an object cannot be deleted.
    pub fn run_controllers(&self) -> usize {
        const LIMIT: usize = 10_000;
        let mut count = 0;
        while count < LIMIT {
            let before = self.revision();
            let is_done = self.controller_steps().iter().all(|step| {
                self.do_controller_step(step);
                self.revision() == before
            });
            if is_done {
                break;
            }
            count += 1;
        }
        count
    }

    fn owners(&self, key: &Key, object: &Value) -> Vec<Owner> {
        let references = metadata::get(object, "ownerReferences").and_then(Value::as_array).into_iter().flatten();
        let owner = |reference: &Value| {
            let text = |name: &str| reference.get(name).and_then(Value::as_str).unwrap_or_default();
            let found = self.resource_of(text("apiVersion"), text("kind"));
            let key = found.and_then(|(resource, is_namespaced)| {
                let namespace = key.namespace().filter(|_| is_namespaced);
                // A cluster-scoped object cannot have a namespaced owner.
                (namespace.is_some() || !is_namespaced).then(|| Key::new(resource, namespace, text("name")))
            });
            let blocks = reference.get("blockOwnerDeletion").and_then(Value::as_bool).unwrap_or_default();
            Owner { key, uid: text("uid").to_owned(), blocks }
        };
        references.map(owner).collect()
    }

    /// Returns the step for an object whose owners are missing or wait for its deletion.
    fn collection_step(
        &self,
        objects: &BTreeMap<Key, std::sync::Arc<Value>>,
        key: &Key,
        object: &Value,
    ) -> Option<Step> {
        let owners = self.owners(key, object);
        if owners.is_empty() || (metadata::is_deleting(object) && !has_finalizer(object, FOREGROUND)) {
            return None;
        }
        let (mut solid, mut waiting, mut missing) = (0, 0, Vec::new());
        for owner in &owners {
            // The garbage collector retries an owner of an unknown kind.
            let Some(owner_key) = &owner.key else { return None };
            match objects.get(owner_key).filter(|found| metadata::text(found, "uid") == owner.uid) {
                None => missing.push(owner.uid.clone()),
                Some(found) if metadata::is_deleting(found) && has_finalizer(found, FOREGROUND) => waiting += 1,
                Some(_) => solid += 1,
            }
        }
        let uid = metadata::text(object, "uid").to_owned();
        if metadata::is_deleting(object) || (missing.is_empty() && waiting == 0) {
            return None;
        }
        if solid > 0 {
            let waits = |owner: &&Owner| {
                let found = owner.key.as_ref().and_then(|key| objects.get(key));
                found.is_some_and(|found| metadata::is_deleting(found) && has_finalizer(found, FOREGROUND))
            };
            missing.extend(owners.iter().filter(waits).map(|owner| owner.uid.clone()));
            return Some(Step::RemoveOwners { key: key.clone(), uids: missing });
        }
        let has_dependents = || !self.dependents(objects, &uid).is_empty();
        let is_foreground = (waiting > 0 && has_dependents()) || has_finalizer(object, FOREGROUND);
        Some(Step::Delete { key: key.clone(), uid, is_foreground })
    }

    /// Returns the step that ends the deletion of an object with a finalizer of the garbage collector.
    fn finalizer_step(
        &self,
        objects: &BTreeMap<Key, std::sync::Arc<Value>>,
        key: &Key,
        object: &Value,
    ) -> Option<Step> {
        if !metadata::is_deleting(object) {
            return None;
        }
        let step = |finalizer: &str| Some(Step::RemoveFinalizer { key: key.clone(), finalizer: finalizer.to_owned() });
        if has_finalizer(object, ORPHAN) {
            return step(ORPHAN);
        }
        let dependents = self.dependents(objects, metadata::text(object, "uid"));
        let is_blocked = dependents.iter().any(|(_, blocks)| *blocks);
        if has_finalizer(object, FOREGROUND) && !is_blocked { step(FOREGROUND) } else { None }
    }

    /// Returns the objects with an owner, and whether they block its deletion.
    fn dependents(&self, objects: &BTreeMap<Key, std::sync::Arc<Value>>, uid: &str) -> Vec<(Key, bool)> {
        let dependent = |(key, object): (&Key, &std::sync::Arc<Value>)| {
            let owner = self.owners(key, object).into_iter().find(|owner| owner.uid == uid)?;
            Some((key.clone(), owner.blocks))
        };
        objects.iter().filter_map(dependent).collect()
    }

    /// Lets an object no longer block its owners if one of its dependents is waiting for its own dependents. The objects
    /// could otherwise wait for each other.
    fn break_circle(&self, key: &Key) {
        let objects: BTreeMap<Key, std::sync::Arc<Value>> = self.objects().into_iter().collect();
        let Some(object) = objects.get(key) else { return };
        let dependents = self.dependents(&objects, metadata::text(object, "uid"));
        let is_waiting =
            |found: &std::sync::Arc<Value>| metadata::is_deleting(found) && has_finalizer(found, FOREGROUND);
        if !dependents.iter().any(|(dependent, _)| objects.get(dependent).is_some_and(is_waiting)) {
            return;
        }
        // If the object has just disappeared, it blocks nothing.
        let _ = self.edit_metadata(key, COLLECTOR, |object| {
            let owners = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
            for owner in owners.into_iter().flatten().filter_map(Value::as_object_mut) {
                owner.insert("blockOwnerDeletion".to_owned(), false.into());
            }
        });
    }

    fn orphan_dependents(&self, key: &Key) {
        let objects: BTreeMap<Key, std::sync::Arc<Value>> = self.objects().into_iter().collect();
        let Some(owner) = objects.get(key) else { return };
        let uids = vec![metadata::text(owner, "uid").to_owned()];
        for (dependent, _) in self.dependents(&objects, metadata::text(owner, "uid")) {
            // A dependent that has just disappeared needs no change.
            let _ = self.edit_metadata(&dependent, COLLECTOR, |object| remove_owners(object, &uids));
        }
    }
}

fn namespace_steps(
    objects: &BTreeMap<Key, std::sync::Arc<Value>>,
    key: &Key,
    namespace: &Value,
    steps: &mut Vec<Step>,
) {
    let mut is_empty = true;
    for (content, object) in objects.iter().filter(|(content, _)| content.namespace() == Some(key.name())) {
        is_empty = false;
        // The deletion also removes the finalizers of the garbage collector.
        if !metadata::is_deleting(object) || has_finalizer(object, FOREGROUND) || has_finalizer(object, ORPHAN) {
            steps.push(Step::DeleteContent { key: content.clone(), uid: metadata::text(object, "uid").to_owned() });
        }
    }
    if is_empty && metadata::finalizers(namespace).is_empty() {
        steps.push(Step::RemoveNamespace { key: key.clone() });
    }
}

fn namespaces() -> GroupResource {
    GroupResource::new("", "namespaces")
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    metadata::finalizers(object).iter().any(|name| name == finalizer)
}

fn remove_owners(object: &mut Value, uids: &[String]) {
    let Some(owners) = metadata::get(object, "ownerReferences").and_then(Value::as_array).cloned() else { return };
    let is_kept = |owner: &Value| !uids.iter().any(|uid| owner.get("uid").and_then(Value::as_str) == Some(uid));
    let kept: Vec<Value> = owners.into_iter().filter(is_kept).collect();
    match kept.is_empty() {
        true => metadata::remove(object, "ownerReferences"),
        false => metadata::set(object, "ownerReferences", kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Options;

    fn server() -> Server {
        Server::new(Options { seed: 1, clock: Box::new(|| jiff::Timestamp::UNIX_EPOCH), history: 1000 }).unwrap()
    }

    fn config_map(server: &Server, name: &str, owners: &[(&str, &str, bool)]) -> String {
        let owner = |(name, uid, blocks): &(&str, &str, bool)| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": blocks });
        let owners: Vec<Value> = owners.iter().map(owner).collect();
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": "default", "ownerReferences": owners } });
        metadata::text(&server.create(&object).unwrap(), "uid").to_owned()
    }

    fn key(name: &str) -> Key {
        Key::new(GroupResource::new("", "configmaps"), Some("default"), name)
    }

    fn names(server: &Server) -> Vec<String> {
        let all = server.list(&GroupResource::new("", "configmaps"), Some("default"));
        all.iter().map(|object| metadata::text(object, "name").to_owned()).collect()
    }

    #[test]
    fn background_deletion_collects_dependents_without_another_owner() {
        let server = server();
        let (one, other) = (config_map(&server, "one", &[]), config_map(&server, "other", &[]));
        let child = config_map(&server, "child", &[("one", &one, true)]);
        config_map(&server, "grandchild", &[("child", &child, false)]);
        config_map(&server, "shared", &[("one", &one, true), ("other", &other, true)]);
        config_map(&server, "stranger", &[("other", "another-uid", true)]);
        server.delete(&key("one")).unwrap();
        assert!(names(&server).contains(&"child".to_owned()), "nothing happens before a step");
        assert!(server.run_controllers() > 0);
        assert_eq!(names(&server), ["other", "shared"]);
        let shared = server.get_key(&key("shared")).unwrap();
        assert_eq!(metadata::get(&shared, "ownerReferences").unwrap().as_array().unwrap().len(), 1);
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let server = server();
        let owner = config_map(&server, "owner", &[]);
        config_map(&server, "child", &[("owner", &owner, true)]);
        server.edit(&key("child"), |object| metadata::set_finalizers(object, &["example.com/a".to_owned()])).unwrap();
        server.delete_as(&key("owner"), "test", &json!({ "propagationPolicy": "Foreground" })).unwrap();
        server.run_controllers();
        assert_eq!(names(&server), ["child", "owner"], "the child has a finalizer");
        server.edit(&key("child"), |object| metadata::set_finalizers(object, &[])).unwrap();
        server.run_controllers();
        assert_eq!(names(&server), [""; 0]);
    }

    #[test]
    fn orphaned_dependents_stay() {
        let server = server();
        let owner = config_map(&server, "owner", &[]);
        config_map(&server, "child", &[("owner", &owner, true)]);
        server.delete_as(&key("owner"), "test", &json!({ "propagationPolicy": "Orphan" })).unwrap();
        assert_eq!(names(&server), ["child", "owner"]);
        server.run_controllers();
        assert_eq!(names(&server), ["child"]);
        assert!(metadata::get(&server.get_key(&key("child")).unwrap(), "ownerReferences").is_none());
    }

    #[test]
    fn a_terminating_namespace_rejects_new_content_and_disappears_last() {
        let server = server();
        config_map(&server, "a", &[]);
        server.edit(&key("a"), |object| metadata::set_finalizers(object, &["example.com/a".to_owned()])).unwrap();
        let namespace = Key::new(namespaces(), None, "default");
        server.delete(&namespace).unwrap();
        let object =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "b", "namespace": "default" } });
        let error = server.create(&object).unwrap_err();
        assert_eq!((error.code, error.causes[0].reason.as_str()), (403, "NamespaceTerminating"));
        server.run_controllers();
        assert!(server.get_key(&namespace).is_some());
        server.edit(&key("a"), |object| metadata::set_finalizers(object, &[])).unwrap();
        server.run_controllers();
        assert!(server.get_key(&namespace).is_none());
        assert_eq!(server.create(&object).unwrap_err().code, 404);
    }
}
