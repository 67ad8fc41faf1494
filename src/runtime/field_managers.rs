//! Functions that rename an object's field managers, so that fields of the Pulumi Kubernetes Operator belong to this
//! controller. The functions send no requests to the API server.
//!
//! After the transfer, the next server-side apply removes each field that only the operator owned and that the apply
//! does not contain.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde_json::{Map, Value, json};

use crate::api::names::{FIELD_MANAGER, OPERATOR_FIELD_MANAGER};

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

/// Returns whether the Pulumi Kubernetes Operator still manages fields of an object.
pub fn is_managed_by_operator<K: Resource>(object: &K) -> bool {
    entries(object).iter().any(is_operators)
}

/// Returns whether the Pulumi Kubernetes Operator has applied fields outside the status of an object. In this case, the
/// operator created the object and keeps it up to date.
pub fn is_applied_by_operator<K: Resource>(object: &K) -> bool {
    entries(object).iter().any(|entry| is_operators(entry) && is_apply(entry) && !is_of_subresource(entry))
}

/// Returns the managed fields with this controller as field manager instead of the Pulumi Kubernetes Operator. Returns
/// `None` if the operator manages no field.
pub fn managed_fields<K: Resource>(object: &K) -> Option<Vec<ManagedFieldsEntry>> {
    if !is_managed_by_operator(object) {
        return None;
    }
    let entries = entries(object).iter();
    Some(merged(entries.map(|entry| if is_operators(entry) { renamed(entry.clone()) } else { entry.clone() })))
}

/// Returns the managed fields of an object that this controller has created, as if a server-side apply had set the
/// fields. The next server-side apply then removes each of these fields that it does not contain. Returns `None` if the
/// controller created no fields.
pub fn as_applied<K: Resource>(object: &K) -> Option<Vec<ManagedFieldsEntry>> {
    let is_created = |entry: &ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER) && !is_apply(entry) && !is_of_subresource(entry)
    };
    if !entries(object).iter().any(is_created) {
        return None;
    }
    let applied =
        |entry: &ManagedFieldsEntry| ManagedFieldsEntry { operation: Some(APPLY.to_owned()), ..entry.clone() };
    let entries = entries(object).iter();
    Some(merged(entries.map(|entry| if is_created(entry) { applied(entry) } else { entry.clone() })))
}

/// Returns the time at which an apply of this controller last changed the object.
pub fn last_apply<K: Resource>(object: &K) -> Option<Timestamp> {
    let is_ours = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(FIELD_MANAGER) && is_apply(entry) && !is_of_subresource(entry)
    };
    entries(object).iter().find(is_ours)?.time.as_ref().map(|time| time.0)
}

/// Merges entries that belong to the same manager.
fn merged(entries: impl Iterator<Item = ManagedFieldsEntry>) -> Vec<ManagedFieldsEntry> {
    let mut kept: Vec<ManagedFieldsEntry> = Vec::new();
    for entry in entries {
        match kept.iter_mut().find(|other| is_same_manager(other, &entry)) {
            Some(other) => merge_fields(other, entry),
            None => kept.push(entry),
        }
    }
    kept
}

fn entries<K: Resource>(object: &K) -> &[ManagedFieldsEntry] {
    object.meta().managed_fields.as_deref().unwrap_or_default()
}

fn is_operators(entry: &ManagedFieldsEntry) -> bool {
    let manager = entry.manager.as_deref().unwrap_or_default();
    manager.strip_prefix(OPERATOR_FIELD_MANAGER).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_apply(entry: &ManagedFieldsEntry) -> bool {
    entry.operation.as_deref() == Some(APPLY)
}

fn is_of_subresource(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref().is_some_and(|subresource| !subresource.is_empty())
}

/// Returns the entry as if this controller had written the fields. The controller writes objects with server-side
/// apply, and statuses with patches.
fn renamed(mut entry: ManagedFieldsEntry) -> ManagedFieldsEntry {
    entry.manager = Some(FIELD_MANAGER.to_owned());
    if is_of_subresource(&entry) {
        entry.operation = Some(UPDATE.to_owned());
    }
    if is_apply(&entry)
        && let Some(FieldsV1(fields)) = &mut entry.fields_v1
    {
        own_defaults_of_strategy(fields);
    }
    entry
}

/// Adds the default update strategy of a StatefulSet to the managed fields. The Pulumi Kubernetes Operator applies an
/// empty strategy, and the API server adds defaults that have no owner. A later apply with another strategy removes
/// these defaults only if this controller owns the defaults.
fn own_defaults_of_strategy(fields: &mut Value) {
    let strategy = fields.get_mut("f:spec").and_then(|spec| spec.get_mut("f:updateStrategy"));
    if let Some(strategy) = strategy.and_then(Value::as_object_mut) {
        strategy.entry("f:rollingUpdate").or_insert_with(|| json!({".": {}, "f:partition": {}}));
    }
}

/// Returns whether the API server assigns two entries to the same manager. Such entries must be merged,
/// because the API server would drop one of them.
fn is_same_manager(one: &ManagedFieldsEntry, other: &ManagedFieldsEntry) -> bool {
    let version = |entry: &ManagedFieldsEntry| if is_apply(entry) { None } else { entry.api_version.clone() };
    one.manager == other.manager
        && one.operation == other.operation
        && one.subresource.as_deref().unwrap_or_default() == other.subresource.as_deref().unwrap_or_default()
        && version(one) == version(other)
}

fn merge_fields(into: &mut ManagedFieldsEntry, from: ManagedFieldsEntry) {
    match (&mut into.fields_v1, from.fields_v1) {
        (Some(FieldsV1(Value::Object(into))), Some(FieldsV1(Value::Object(from)))) => union(into, from),
        (into, from) => *into = into.take().or(from),
    }
}

/// Merges the set of fields `from` into the set `into`. Each set is a tree of field names.
fn union(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, below) in from {
        match (into.get_mut(&name), below) {
            (Some(Value::Object(into)), Value::Object(below)) => union(into, below),
            (Some(_), _) => {}
            (None, below) => {
                into.insert(name, below);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::StatefulSet;
    use k8s_openapi::api::core::v1::Service;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::api::auto::{Update, Workspace};
    use crate::api::pulumi::{Program, Stack};

    /// Parses a list of objects that version 2.9 of the Pulumi Kubernetes Operator created in a cluster.
    fn left<K: DeserializeOwned>(list: &str) -> Vec<K> {
        let list: Value = serde_saphyr::from_str(list).expect("valid YAML");
        let items = list["items"].as_array().expect("is a list").clone();
        items.into_iter().map(|item| serde_json::from_value(item).expect("valid object")).collect()
    }

    macro_rules! left {
        ($name:literal) => {
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/operator/", $name, ".yaml"))
        };
    }

    /// Returns the manager, operation and subresource of each entry.
    fn managers<K: Resource>(object: &K) -> Vec<String> {
        let managed = managed_fields(object).unwrap_or_else(|| entries(object).to_vec());
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        let words =
            |e: &ManagedFieldsEntry| format!("{} {} {}", word(&e.manager), word(&e.operation), word(&e.subresource));
        managed.iter().map(words).collect()
    }

    #[test]
    fn all_fields_managed_by_pko_are_taken_over() {
        let ours = "pulumi-controller";
        for stack in left::<Stack>(left!("stacks")) {
            assert!(is_managed_by_operator(&stack) && !is_applied_by_operator(&stack), "{stack:?}");
            let update = format!("{ours} Update ");
            let expected = [format!("{ours} Update status"), "kubectl-client-side-apply Update ".to_owned(), update];
            assert_eq!(managers(&stack), expected);
        }
        for workspace in left::<Workspace>(left!("workspaces")) {
            assert!(is_applied_by_operator(&workspace));
            assert_eq!(managers(&workspace), [format!("{ours} Apply "), format!("{ours} Update status")]);
        }
        for update in left::<Update>(left!("updates")) {
            assert_eq!(managers(&update), [format!("{ours} Update status"), format!("{ours} Update ")]);
        }
        for service in left::<Service>(left!("services")) {
            assert_eq!(managers(&service), [format!("{ours} Apply ")]);
        }
        for program in left::<Program>(left!("programs")) {
            assert!(managers(&program).iter().all(|manager| !manager.contains("operator")), "{program:?}");
        }
        for stateful_set in left::<StatefulSet>(left!("statefulsets")) {
            let status = "kube-controller-manager Update status".to_owned();
            assert_eq!(managers(&stateful_set), [format!("{ours} Apply "), status]);
            let managed = managed_fields(&stateful_set).expect("due");
            let fields = &managed[0].fields_v1.as_ref().expect("fields are set").0;
            assert_eq!(
                fields["f:spec"]["f:updateStrategy"],
                json!({"f:rollingUpdate": {".": {}, "f:partition": {}}}),
                "otherwise OnDelete would be rejected"
            );
            assert!(
                fields["f:spec"]["f:template"]["f:spec"]["f:initContainers"].get("k:{\"name\":\"fetch\"}").is_some()
            );
        }
    }

    #[test]
    fn apply_entries_of_controller_and_pko_are_merged() {
        let entry = |manager: &str, fields: Value| json!({"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "a", "managedFields": [
            entry("pulumi-controller", json!({"f:spec": {"f:ports": {}, "f:selector": {}}})),
            entry("other", json!({"f:spec": {"f:type": {}}})),
            entry("pulumi-kubernetes-operator", json!({"f:spec": {"f:ports": {"f:x": {}}}, "f:metadata": {"f:labels": {}}})),
        ]}}))
        .expect("valid Service");
        let managed = managed_fields(&service).expect("due");
        let fields: Vec<&Value> = managed.iter().filter_map(|e| e.fields_v1.as_ref().map(|f| &f.0)).collect();
        let ours = json!({"f:spec": {"f:ports": {"f:x": {}}, "f:selector": {}}, "f:metadata": {"f:labels": {}}});
        assert_eq!(fields, [&ours, &json!({"f:spec": {"f:type": {}}})]);
    }

    #[test]
    fn created_fields_become_applied_fields() {
        let with = |entries: Value| -> Service {
            serde_json::from_value(json!({"metadata": {"managedFields": entries}})).expect("valid Service")
        };
        let created =
            json!({"manager": "pulumi-controller", "operation": "Update", "fieldsV1": {"f:data": {"f:a": {}}}});
        let applied =
            json!({"manager": "pulumi-controller", "operation": "Apply", "fieldsV1": {"f:data": {"f:b": {}}}});
        let other = json!({"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {"f:c": {}}}});
        let managed = as_applied(&with(json!([created, other, applied]))).expect("due");
        let found: Vec<_> = managed.iter().map(|e| (e.manager.as_deref(), e.operation.as_deref())).collect();
        assert_eq!(found, [(Some("pulumi-controller"), Some("Apply")), (Some("kubectl"), Some("Update"))]);
        assert_eq!(
            managed[0].fields_v1.as_ref().map(|fields| &fields.0),
            Some(&json!({"f:data": {"f:a": {}, "f:b": {}}}))
        );
        assert!(as_applied(&with(json!([other, applied]))).is_none());
        let status = json!({"manager": "pulumi-controller", "operation": "Update", "subresource": "status"});
        assert!(as_applied(&with(json!([status]))).is_none());
    }

    #[test]
    fn the_last_apply_excludes_other_writes() {
        let entry = |manager: &str, operation: &str, subresource: &str, minute: i64| {
            json!({
                "manager": manager, "operation": operation, "subresource": subresource,
                "time": format!("2026-01-01T12:0{minute}:00Z"),
            })
        };
        let managed = json!([
            entry("kubectl", "Apply", "", 1),
            entry("pulumi-controller", "Update", "", 2),
            entry("pulumi-controller", "Apply", "status", 3),
            entry("pulumi-controller", "Apply", "", 4),
        ]);
        let service: Service =
            serde_json::from_value(json!({"metadata": {"managedFields": managed}})).expect("valid Service");
        let expected: Timestamp = "2026-01-01T12:04:00Z".parse().expect("valid time");
        assert_eq!(last_apply(&service), Some(expected));
        assert_eq!(last_apply(&Service::default()), None);
    }

    #[test]
    fn objects_without_field_managers_of_pko_are_unchanged() {
        let with = |manager: &str| -> Service {
            let managed = json!([{"manager": manager, "operation": "Apply"}]);
            serde_json::from_value(json!({"metadata": {"managedFields": managed}})).expect("valid Service")
        };
        for manager in ["pulumi-controller", "pulumi-kubernetes-operator-fork", "kubectl", ""] {
            assert!(!is_managed_by_operator(&with(manager)) && managed_fields(&with(manager)).is_none(), "{manager}");
        }
        assert!(managed_fields(&Service::default()).is_none());
    }
}
