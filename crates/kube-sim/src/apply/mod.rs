//! Field managers: `metadata.managedFields`, and server-side apply.

mod fieldset;
mod typed;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::schema::Schema;
use crate::status::{Cause, Status};

pub(crate) use fieldset::FieldSet;
pub(crate) use typed::is_equal;

/// Fields that have no owner, because the API server sets them.
const STRIPPED: [&[&str]; 12] = [
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];
/// Maximum number of entries with the operation `Update`. The API server merges the oldest entries.
const MAX_UPDATE_MANAGERS: usize = 10;

/// Identity of a field manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Manager {
    name: String,
    is_apply: bool,
    /// API version of an entry with the operation `Update`. Empty for `Apply`.
    api_version: String,
    subresource: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    fields: FieldSet,
    api_version: String,
    time: Option<String>,
}

type Managers = BTreeMap<Manager, Entry>;

/// What a write needs to know about field managers.
pub(crate) struct FieldWrite<'a> {
    /// Field manager in the request, or the first part of the header `User-Agent`.
    pub(crate) manager: &'a str,
    pub(crate) api_version: &'a str,
    pub(crate) subresource: &'a str,
    /// Types by API version, for all served versions of the kind.
    pub(crate) schemas: &'a BTreeMap<String, Arc<Schema>>,
    /// Fields that the write resets, such as `status` without the subresource.
    pub(crate) reset: &'a FieldSet,
    pub(crate) now: &'a str,
}

impl FieldWrite<'_> {
    fn schema(&self) -> Option<&Schema> {
        self.schemas.get(self.api_version).map(|schema| &**schema)
    }

    fn identity(&self, is_apply: bool) -> Manager {
        Manager {
            name: if self.manager.is_empty() { "unknown".to_owned() } else { self.manager.to_owned() },
            is_apply,
            api_version: if is_apply { String::new() } else { self.api_version.to_owned() },
            subresource: self.subresource.to_owned(),
        }
    }

    /// Sets the managed fields of an object after a create, an update or a patch. `live` is the object before the
    /// write, or null.
    pub(crate) fn track_update(&self, live: &Value, new: &mut Value) {
        let is_valid = |object: &Value| decode(managed_fields(object));
        let live_managers = || is_valid(live).unwrap_or_default();
        let managers = if self.subresource.is_empty() {
            match managed_fields(new) {
                Some(Value::Array(entries)) if is_reset(entries) => Managers::new(),
                entries => decode(entries).filter(|managers| !managers.is_empty()).unwrap_or_else(live_managers),
            }
        } else {
            live_managers()
        };
        take_managed_fields(new);
        let is_create = metadata_uid(live).is_empty();
        if managers.is_empty() && !is_create {
            return;
        }
        if self.type_problem(new).is_some() {
            // The API server forgets the managers of an object whose fields it cannot determine.
            return;
        }
        let managers = self.after_update(live, new, managers);
        set_managed_fields(new, &managers);
    }

    /// Returns why an object does not match its type. Duplicate elements of lists are possible in a stored object.
    fn type_problem(&self, object: &Value) -> Option<String> {
        let problems = typed::validate(self.schema(), object);
        problems.into_iter().find(|problem| !problem.contains(": duplicate entries for key"))
    }

    fn after_update(&self, live: &Value, new: &Value, managers: Managers) -> Managers {
        let mut live = live.clone();
        take_managed_fields(&mut live);
        let live = if live.is_null() { json!({}) } else { live };
        let (mut managers, comparison) = match self.take_from_others(&live, new, managers, None) {
            Ok(taken) => taken,
            Err(_) => return Managers::new(),
        };
        let me = self.identity(false);
        let own = comparison.modified.union(&comparison.added).recursive_difference(self.reset);
        let own = own.difference(&FieldSet::of_paths(&STRIPPED));
        if !own.is_empty() {
            let before = managers.remove(&me).map(|entry| entry.fields).unwrap_or_default();
            let entry = Entry {
                fields: own.union(&before),
                api_version: self.api_version.to_owned(),
                time: Some(self.now.to_owned()),
            };
            managers.insert(me, entry);
        }
        cap(managers)
    }

    /// Removes changed and removed fields from the other managers. Without `force`, a changed field of another manager
    /// is a conflict. `applying` is the manager whose fields stay.
    fn take_from_others(
        &self,
        live: &Value,
        new: &Value,
        managers: Managers,
        applying: Option<(&Manager, bool)>,
    ) -> Result<(Managers, typed::Comparison), Status> {
        let compare = |schema: Option<&Schema>, reset: &FieldSet| {
            let found = typed::compare(schema, live, new);
            typed::Comparison {
                removed: found.removed.recursive_difference(reset),
                modified: found.modified.recursive_difference(reset),
                added: found.added.recursive_difference(reset),
            }
        };
        let comparison = compare(self.schema(), self.reset);
        let mut kept = Managers::new();
        let mut conflicts = Vec::new();
        for (manager, mut entry) in managers {
            if applying.is_some_and(|(me, _)| *me == manager) {
                kept.insert(manager, entry);
                continue;
            }
            // The API server drops the managers of versions that are no longer served.
            let Some(schema) = self.schemas.get(&entry.api_version) else { continue };
            let found = if entry.api_version == self.api_version {
                comparison.clone()
            } else {
                compare(Some(schema), &FieldSet::default())
            };
            let conflict = entry.fields.intersection(&found.modified.union(&found.added));
            if !conflict.is_empty() {
                conflicts.push((manager.clone(), entry.api_version.clone(), conflict.clone()));
            }
            entry.fields = entry.fields.difference(&conflict).difference(&found.removed);
            if !entry.fields.is_empty() {
                kept.insert(manager, entry);
            }
        }
        if !conflicts.is_empty() && applying.is_some_and(|(_, force)| !force) {
            return Err(conflict_status(&conflicts));
        }
        Ok((kept, comparison))
    }

    /// Applies a configuration. Returns the new object with its managed fields.
    ///
    /// # Errors
    /// Returns a conflict if another manager owns a changed field and `force` is not set, and an internal error if the
    /// configuration does not match the type.
    pub(crate) fn apply(&self, live: &Value, config: &Value, force: bool, object: &str) -> Result<Value, Status> {
        if config.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        let mut problems = typed::validate(self.schema(), config);
        if !problems.is_empty() {
            problems.sort_unstable();
            let text = match problems.as_slice() {
                [one] => one.clone(),
                all => format!("errors:\n  {}", all.join("\n  ")),
            };
            return Err(Status::internal(&format!("failed to create typed patch object ({object}): {text}")));
        }
        let mut managers = decode(managed_fields(live)).unwrap_or_default();
        let mut live = live.clone();
        take_managed_fields(&mut live);
        if let Some(problem) = self.type_problem(&live) {
            return Err(Status::internal(&format!("failed to create typed live object ({object}): {problem}")));
        }
        if managers.is_empty() && !metadata_uid(&live).is_empty() {
            let before = FieldWrite { manager: "before-first-apply", ..*self };
            managers = before.after_update(&Value::Null, &live, managers);
        }
        let managers = self.reconciled(&live, managers);
        let me = self.identity(true);
        let merged = typed::merge(self.schema(), Some(&live), Some(config)).unwrap_or_default();
        let last = managers.get(&me).map(|entry| entry.fields.clone()).unwrap_or_default();
        let set = typed::fields(self.schema(), config).recursive_difference(self.reset);
        let mut managers = managers;
        let time = managers.get(&me).and_then(|entry| entry.time.clone());
        let entry = Entry { fields: set, api_version: self.api_version.to_owned(), time };
        managers.insert(me.clone(), entry);
        let new = self.without_dropped(&merged, &last, &managers);
        let (mut managers, _) = self.take_from_others(&live, &new, managers, Some((&me, force)))?;
        if let Some(entry) = managers.get_mut(&me) {
            entry.fields = entry.fields.difference(&FieldSet::of_paths(&STRIPPED));
            if !is_equal(&live, &new) {
                entry.time = Some(self.now.to_owned());
            }
        }
        managers.retain(|_, entry| !entry.fields.is_empty());
        let mut new = new;
        set_managed_fields(&mut new, &managers);
        Ok(new)
    }

    fn reconciled(&self, live: &Value, managers: Managers) -> Managers {
        let reconcile = |(manager, mut entry): (Manager, Entry)| {
            if let Some(schema) = self.schemas.get(&entry.api_version) {
                entry.fields = entry.fields.reconciled_with(schema, live);
            }
            (manager, entry)
        };
        managers.into_iter().map(reconcile).collect()
    }

    /// Removes the fields that the manager applied last time and does not apply this time, unless another manager owns
    /// them.
    fn without_dropped(&self, merged: &Value, last: &FieldSet, managers: &Managers) -> Value {
        let schema = self.schema();
        if last.is_empty() {
            return merged.clone();
        }
        let parents = |set: &FieldSet| set.with_named_parents(schema);
        let mut pruned = typed::remove(schema, merged, &parents(last));
        let owned = managers.values().fold(FieldSet::default(), |owned, entry| owned.union(&entry.fields));
        let merged_set = parents(&typed::fields(schema, merged));
        let kept = parents(&typed::fields(schema, &pruned)).union(&parents(&owned));
        pruned = typed::remove(schema, merged, &merged_set.difference(&kept));
        let dropped = merged_set.difference(&parents(&typed::fields(schema, &pruned)));
        typed::remove(schema, merged, &dropped.intersection(&parents(last)))
    }
}

fn metadata_uid(object: &Value) -> &str {
    object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default()
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/managedFields").filter(|fields| !fields.is_null())
}

fn take_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

/// Returns whether a client resets the managed fields with an empty list or an empty entry.
fn is_reset(entries: &[Value]) -> bool {
    match entries {
        [] => true,
        [entry] => entry
            .as_object()
            .is_some_and(|entry| entry.values().all(|value| value.is_null() || value.as_str() == Some(""))),
        _ => false,
    }
}

/// Decodes managed fields. Returns `None` if an entry is invalid.
fn decode(entries: Option<&Value>) -> Option<Managers> {
    let mut managers = Managers::new();
    for entry in entries.and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_apply = match text("operation").as_str() {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        let api_version = text("apiVersion");
        if api_version.is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let fields = match entry.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::default(),
            Some(fields) => FieldSet::parse(fields)?,
        };
        let manager = Manager {
            name: text("manager"),
            is_apply,
            api_version: if is_apply { String::new() } else { api_version.clone() },
            subresource: text("subresource"),
        };
        let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
        managers.insert(manager, Entry { fields, api_version, time });
    }
    Some(managers)
}

fn set_managed_fields(object: &mut Value, managers: &Managers) {
    if managers.is_empty() {
        take_managed_fields(object);
        return;
    }
    let mut sorted: Vec<(&Manager, &Entry)> = managers.iter().collect();
    let key = |(manager, entry): &(&Manager, &Entry)| {
        (
            !manager.is_apply,
            entry.time.clone(),
            manager.name.clone(),
            entry.api_version.clone(),
            manager.subresource.clone(),
        )
    };
    sorted.sort_by_key(key);
    let entries = sorted.into_iter().map(|(manager, entry)| {
        let mut encoded = Map::new();
        encoded.insert("apiVersion".to_owned(), entry.api_version.clone().into());
        encoded.insert("fieldsType".to_owned(), "FieldsV1".into());
        encoded.insert("fieldsV1".to_owned(), entry.fields.to_fields());
        if !manager.name.is_empty() {
            encoded.insert("manager".to_owned(), manager.name.clone().into());
        }
        encoded.insert("operation".to_owned(), if manager.is_apply { "Apply" } else { "Update" }.into());
        if !manager.subresource.is_empty() {
            encoded.insert("subresource".to_owned(), manager.subresource.clone().into());
        }
        if let Some(time) = &entry.time {
            encoded.insert("time".to_owned(), time.clone().into());
        }
        Value::Object(encoded)
    });
    let entries = Value::Array(entries.collect());
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".to_owned(), entries);
    }
}

/// Merges the oldest entries with the operation `Update` if there are too many.
fn cap(mut managers: Managers) -> Managers {
    let mut updaters: Vec<Manager> = managers.keys().filter(|manager| !manager.is_apply).cloned().collect();
    let mut count = updaters.len();
    updaters.sort_by_key(|manager| (managers.get(manager).and_then(|entry| entry.time.clone()), manager.clone()));
    let mut first_of_version: BTreeMap<String, Manager> = BTreeMap::new();
    for manager in updaters {
        if count <= MAX_UPDATE_MANAGERS {
            break;
        }
        let Some(entry) = managers.get(&manager).cloned() else { continue };
        let Some(first) = first_of_version.get(&entry.api_version).cloned() else {
            first_of_version.insert(entry.api_version, manager);
            continue;
        };
        let bucket = Manager {
            name: "ancient-changes".to_owned(),
            is_apply: false,
            api_version: entry.api_version.clone(),
            subresource: String::new(),
        };
        if !managers.contains_key(&bucket)
            && let Some(moved) = managers.remove(&first)
        {
            managers.insert(bucket.clone(), moved);
        }
        managers.remove(&manager);
        count -= 1;
        if let Some(merged) = managers.get_mut(&bucket) {
            merged.fields = merged.fields.union(&entry.fields);
            merged.time = entry.time;
        }
    }
    managers
}

/// Returns whether two objects differ only in the times of their managed fields.
pub(crate) fn differs_only_in_times(one: &Value, other: &Value) -> bool {
    let fields =
        |object: &Value| object.as_object().into_iter().flatten().filter(|(name, _)| *name != "metadata").count();
    let is_same = |(name, value): (&String, &Value)| name == "metadata" || other.get(name) == Some(value);
    if fields(one) != fields(other) || !one.as_object().into_iter().flatten().all(is_same) {
        return false;
    }
    let without_times = |object: &Value| {
        let mut object = object.clone();
        if let Some(entries) = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut) {
            for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
            entries.sort_by_key(Value::to_string);
        }
        object
    };
    without_times(one) == without_times(other)
}

fn conflict_status(conflicts: &[(Manager, String, FieldSet)]) -> Status {
    let describe = |(manager, api_version, _): &(Manager, String, FieldSet)| {
        let mut text = format!("{:?}", manager.name);
        if !manager.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", manager.subresource);
        }
        if manager.is_apply { text } else { format!("{text} using {api_version}") }
    };
    let mut causes = Vec::new();
    for conflict in conflicts {
        for path in conflict.2.paths() {
            let message = format!("conflict with {}", describe(conflict));
            causes.push(Cause { reason: "FieldManagerConflict".to_owned(), message, field: path });
        }
    }
    let message = match causes.as_slice() {
        [one] => format!("Apply failed with 1 conflict: {}: {}", one.message, one.field),
        all => {
            let mut lines = Vec::new();
            for conflict in conflicts {
                lines.push(format!("conflicts with {}:", describe(conflict)));
                lines.extend(conflict.2.paths().into_iter().map(|path| format!("- {path}")));
            }
            format!("Apply failed with {} conflicts: {}", all.len(), lines.join("\n"))
        }
    };
    Status::new(409, "Conflict", &message).with_causes(causes)
}

#[cfg(test)]
mod tests;
