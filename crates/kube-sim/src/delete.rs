//! Deletions: preconditions, grace periods, finalizers and propagation policies.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::admission::{Admission, AdmissionRequest};
use crate::apply::is_equal;
use crate::builtin;
use crate::list;
use crate::metadata;
use crate::request::Call;
use crate::resources::Resource;
use crate::state::{Core, Reply, format_time, key, not_found, to_version};
use crate::status::{Cause, Status};

/// Kinds whose deletion returns the deleted object instead of a status.
const RETURN_DELETED: [&str; 4] = ["pods", "services", "serviceaccounts", "persistentvolumeclaims"];

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
struct DeleteOptions {
    grace_seconds: Option<i64>,
    uid: Option<String>,
    resource_version: Option<String>,
    propagation: Option<String>,
    is_dry_run: bool,
}

impl DeleteOptions {
    fn parse(call: &Call) -> Result<Self, Status> {
        let body = match call.body.as_slice() {
            [] => Value::Null,
            text => {
                serde_json::from_slice(text).map_err(|error| Status::bad_request(&format!("invalid JSON: {error}")))?
            }
        };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let parameter = |name: &str| Some(call.parameter(name).to_owned()).filter(|value| !value.is_empty());
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        let orphan = orphan.map(|orphan| if orphan { "Orphan" } else { "Background" }.to_owned());
        let propagation = text("/propagationPolicy").or_else(|| parameter("propagationPolicy")).or(orphan);
        if let Some(policy) =
            propagation.as_ref().filter(|policy| !matches!(policy.as_str(), "Orphan" | "Background" | "Foreground"))
        {
            let supported = ["Foreground", "Background", "Orphan"].map(Value::from);
            let cause = Cause::not_supported("propagationPolicy", &policy.clone().into(), &supported);
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", vec![cause]));
        }
        Ok(DeleteOptions {
            grace_seconds: body
                .get("gracePeriodSeconds")
                .and_then(Value::as_i64)
                .or_else(|| parameter("gracePeriodSeconds")?.parse().ok())
                .map(|seconds| if seconds < 0 { 1 } else { seconds }),
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            propagation,
            is_dry_run: call.is_dry_run
                || body.get("dryRun").and_then(Value::as_array).is_some_and(|list| !list.is_empty()),
        })
    }
}

/// What a deletion does with an object.
enum Deletion {
    /// The object is already being deleted.
    Pending,
    Mark(Value),
    /// Marks the object, and then removes it.
    MarkAndRemove(Value),
    Remove,
}

impl Core {
    pub(crate) fn delete(&mut self, call: &Call, resource: &Resource) -> Result<Reply, Status> {
        let options = DeleteOptions::parse(call)?;
        let key = key(resource, call);
        let stored = self.store.get(&key).ok_or_else(|| not_found(resource, &call.name))?;
        let old = to_version(resource, &stored, &call.version);
        check_preconditions(resource, &old, &options)?;
        for hook in &mut self.admission {
            if let Admission::Deny(status) = hook(&AdmissionRequest { call, object: None, old: Some(&old) }) {
                return Err(status);
            }
        }
        let (object, is_removed) = match self.deletion(resource, &old, &options) {
            Deletion::Pending => (old, false),
            // The API server compares with the stored object, which can lack the default of the status.
            Deletion::Mark(object) if is_equal(&self.to_storage(resource, object.clone()), &stored) => (old, false),
            Deletion::Mark(object) if options.is_dry_run => (Arc::new(object), false),
            Deletion::Mark(object) => {
                let stored = self.to_storage(resource, object);
                let change = self.commit(key, Some(stored), &call.actor);
                (to_version(resource, &change.object(), &call.version), false)
            }
            Deletion::MarkAndRemove(object) if options.is_dry_run => (Arc::new(object), true),
            Deletion::MarkAndRemove(object) => {
                let stored = self.to_storage(resource, object);
                self.commit(key.clone(), Some(stored), &call.actor);
                let change = self.commit(key, None, &call.actor);
                (to_version(resource, &change.object(), &call.version), true)
            }
            Deletion::Remove if options.is_dry_run => (old, true),
            Deletion::Remove => {
                let change = self.commit(key, None, &call.actor);
                (to_version(resource, &change.object(), &call.version), true)
            }
        };
        if is_removed && (resource.is_custom || !RETURN_DELETED.contains(&resource.id.resource.as_str())) {
            let mut details = Map::new();
            details.insert("name".to_owned(), call.name.clone().into());
            if !resource.id.group.is_empty() {
                details.insert("group".to_owned(), resource.id.group.clone().into());
            }
            details.insert("kind".to_owned(), resource.id.resource.clone().into());
            details.insert("uid".to_owned(), metadata::text(&object, "uid").into());
            return Ok(Reply::ok(json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            })));
        }
        Ok(Reply::ok(list::render(call, resource, &object)))
    }

    fn deletion(&self, resource: &Resource, old: &Value, options: &DeleteOptions) -> Deletion {
        if resource.id.resource == "namespaces" {
            return self.namespace_deletion(old);
        }
        let mut object = old.clone();
        let mut is_graceful = false;
        let requested = options.grace_seconds;
        if let Some(default) =
            builtin::default_grace_seconds(&resource.id, old, requested).filter(|_| !resource.is_custom)
        {
            if metadata::is_deleting(old) {
                let current =
                    metadata::get(old, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
                match requested {
                    _ if current == 0 => {}
                    Some(seconds) if seconds < current => {
                        self.shorten(&mut object, current, seconds);
                        is_graceful = true;
                    }
                    _ => return Deletion::Pending,
                }
            } else {
                self.mark(&mut object, default);
                is_graceful = true;
            }
        }
        // Events have no dependents.
        let policy = if resource.id.resource == "events" { Some("Background") } else { options.propagation.as_deref() };
        let finalizers = with_propagation(&metadata::finalizers(old), policy);
        metadata::set_finalizers(&mut object, &finalizers);
        let grace = metadata::get(&object, "deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default();
        if finalizers.is_empty() {
            return match (is_graceful, grace > 0) {
                (true, true) => Deletion::Mark(object),
                (true, false) => Deletion::MarkAndRemove(object),
                (false, _) => Deletion::Remove,
            };
        }
        if !is_graceful {
            let generation = metadata::get(old, "generation").and_then(Value::as_i64);
            if let Some(generation) = generation.filter(|_| !metadata::is_deleting(old)) {
                metadata::set(&mut object, "generation", generation + 1);
            }
            let now = self.now();
            let existing = metadata::text(&object, "deletionTimestamp");
            if existing.is_empty() || existing > now.as_str() {
                metadata::set(&mut object, "deletionTimestamp", now);
            }
            metadata::set(&mut object, "deletionGracePeriodSeconds", 0);
        }
        Deletion::Mark(object)
    }

    fn namespace_deletion(&self, old: &Value) -> Deletion {
        let mut object = old.clone();
        if !metadata::is_deleting(old) {
            metadata::set(&mut object, "deletionTimestamp", self.now());
            if let Value::Object(object) = &mut object {
                object.insert("status".to_owned(), json!({ "phase": "Terminating" }));
            }
            return Deletion::Mark(object);
        }
        let is_finalized = old.pointer("/spec/finalizers").and_then(Value::as_array).is_none_or(Vec::is_empty);
        if is_finalized && metadata::finalizers(old).is_empty() { Deletion::Remove } else { Deletion::Pending }
    }

    /// Marks an object as being deleted with a grace period.
    fn mark(&self, object: &mut Value, seconds: i64) {
        let end = (self.clock)().checked_add(jiff::SignedDuration::from_secs(seconds));
        metadata::set(object, "deletionTimestamp", format_time(end.unwrap_or(jiff::Timestamp::MAX)));
        metadata::set(object, "deletionGracePeriodSeconds", seconds);
        if let Some(generation) = metadata::get(object, "generation").and_then(Value::as_i64) {
            metadata::set(object, "generation", generation + 1);
        }
    }

    /// Shortens the grace period of an object that is being deleted.
    fn shorten(&self, object: &mut Value, current: i64, seconds: i64) {
        let before: Option<jiff::Timestamp> = metadata::text(object, "deletionTimestamp").parse().ok();
        let shift = jiff::SignedDuration::from_secs(seconds.saturating_sub(current));
        let now = (self.clock)();
        let end = before.and_then(|before| before.checked_add(shift).ok()).unwrap_or(now);
        let (end, seconds) = match end < now {
            true => (now, seconds.min(1)),
            false => (end, seconds),
        };
        metadata::set(object, "deletionTimestamp", format_time(end));
        metadata::set(object, "deletionGracePeriodSeconds", seconds);
    }

    pub(crate) fn delete_collection(&mut self, call: &Call, resource: &Resource) -> Result<Reply, Status> {
        let listed = list::list(self, &Call { accept: String::new(), ..call.clone() }, resource, None)?;
        let items = listed.get("items").and_then(Value::as_array).into_iter().flatten();
        let names: Vec<(String, String)> = items
            .map(|item| (metadata::text(item, "namespace").to_owned(), metadata::text(item, "name").to_owned()))
            .collect();
        for (namespace, name) in names {
            self.delete(&Call { namespace, name, ..call.clone() }, resource)?;
        }
        Ok(Reply::ok(listed))
    }
}

fn check_preconditions(resource: &Resource, old: &Value, options: &DeleteOptions) -> Result<(), Status> {
    // Errors name the internal group of events.
    let group = if resource.id.group == "events.k8s.io" { "" } else { &resource.id.group };
    let conflict = |detail: String| {
        let name = metadata::text(old, "name");
        Err(Status::conflict(group, &resource.kind, name, &detail))
    };
    let (uid, version) = (metadata::text(old, "uid"), metadata::text(old, "resourceVersion"));
    if let Some(expected) = options.uid.as_ref().filter(|expected| *expected != uid) {
        return conflict(format!(
            "the UID in the precondition ({expected}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        ));
    }
    if let Some(expected) = options.resource_version.as_ref().filter(|expected| *expected != version) {
        return conflict(format!(
            "the ResourceVersion in the precondition ({expected}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        ));
    }
    Ok(())
}

/// Returns the finalizers of an object after a deletion with a propagation policy.
fn with_propagation(finalizers: &[String], policy: Option<&str>) -> Vec<String> {
    let is_ours = |name: &&String| matches!(name.as_str(), metadata::ORPHAN | metadata::FOREGROUND);
    let mut kept: Vec<String> = finalizers.iter().filter(|name| !is_ours(name)).cloned().collect();
    match policy {
        Some("Orphan") => kept.push(metadata::ORPHAN.to_owned()),
        Some("Foreground") => kept.push(metadata::FOREGROUND.to_owned()),
        Some(_) => {}
        None => kept.extend(finalizers.iter().find(is_ours).cloned()),
    }
    kept
}
