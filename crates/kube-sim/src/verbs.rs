//! Writes: create, update and patch, in the order of the checks of the API server.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::{Admission, AdmissionRequest};
use crate::apply::{FieldWrite, differs_only_in_times, is_equal};
use crate::builtin;
use crate::cel;
use crate::list;
use crate::metadata;
use crate::patch;
use crate::request::{Call, PatchType, Verb};
use crate::resources::Resource;
use crate::state::{Core, Reply, convert, key, not_found, to_version};
use crate::status::{Cause, Status};
use crate::store::{GroupResource, Key};
use crate::validate;

/// Maximum size of a stored object in bytes.
const MAX_OBJECT: usize = 1536 * 1024;
/// Number of attempts to generate a unique name.
const NAME_ATTEMPTS: usize = 8;
/// Alphabet of generated names, as in the API server.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Where the new content of an object comes from.
#[derive(Clone, Copy)]
enum Content<'a> {
    /// The object is decoded before the existing object is read.
    Put(&'a Value),
    Patch(PatchType),
}

/// How a decoding error is reported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decoding {
    Body,
    Patch,
    Apply,
}

impl Core {
    pub(crate) fn create(&mut self, call: &Call, resource: &Resource) -> Result<Reply, Status> {
        if !call.subresource.is_empty() {
            return Err(Status::new(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ));
        }
        let mut object = self.body(call, resource)?;
        set_namespace(call, resource, &mut object)?;
        for name in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
            metadata::remove(&mut object, name);
        }
        self.track(call, resource, &empty(call, resource), &mut object);
        self.check_namespace(call, resource, &object)?;
        let object = self.admit(call, object, None)?;
        let is_generated =
            metadata::text(&object, "name").is_empty() && !metadata::text(&object, "generateName").is_empty();
        let attempts = if is_generated { NAME_ATTEMPTS } else { 1 };
        let mut created: Result<Arc<Value>, Status> = Err(Status::internal("no attempt"));
        for _ in 0..attempts {
            created = self.insert(call, resource, object.clone());
            if !created.as_ref().is_err_and(|status| status.reason == "AlreadyExists") {
                break;
            }
        }
        Ok(Reply { code: 201, body: list::render(call, resource, &*created?) })
    }

    /// Stores a new object after all checks.
    fn insert(&mut self, call: &Call, resource: &Resource, mut object: Value) -> Result<Arc<Value>, Status> {
        let (uid, now) = (self.uid(), self.now());
        metadata::set(&mut object, "uid", uid);
        metadata::set(&mut object, "creationTimestamp", now);
        let version = metadata::text(&object, "resourceVersion").to_owned();
        metadata::remove(&mut object, "resourceVersion");
        if metadata::text(&object, "name").is_empty() && !metadata::text(&object, "generateName").is_empty() {
            let prefix: String = metadata::text(&object, "generateName").chars().take(58).collect();
            let name = format!("{prefix}{}", self.random_suffix());
            metadata::set(&mut object, "name", name);
        }
        let mut causes;
        if resource.is_custom {
            if resource.has_status(&call.version)
                && let Value::Object(object) = &mut object
            {
                object.remove("status");
            }
            metadata::set(&mut object, "generation", 1);
            causes = self.validate_custom(call, resource, &object, None);
        } else {
            builtin::prepare_for_create(&resource.id, &mut object);
            self.allocate_address(resource, &mut object);
            if resource.id.resource == "namespaces" {
                builtin::set_defaults(&resource.id, &mut object);
            }
            causes = builtin::validate(&resource.id, &object, true);
        }
        for cause in metadata::validate(&object, resource.is_namespaced) {
            // The names of built-in kinds have been checked.
            if !causes.iter().any(|known| known.field == cause.field && known.field == "metadata.name") {
                causes.push(cause);
            }
        }
        let name = metadata::text(&object, "name").to_owned();
        invalid_unless_empty(resource, &name, causes)?;
        if call.verb == Verb::Create && !version.is_empty() {
            return Err(Status::internal("resourceVersion should not be set on objects to be created"));
        }
        let namespace = resource.is_namespaced.then_some(call.namespace.as_str());
        let key = Key::new(resource.id.clone(), namespace, &name);
        if let Some(existing) = self.store.get(&key) {
            let mut status = Status::already_exists(&resource.id.group, &resource.id.resource, &name);
            if metadata::is_deleting(&existing) {
                status.message = format!("object is being deleted: {}", status.message);
            }
            return Err(status);
        }
        if call.is_dry_run {
            let stored = self.to_storage(resource, object);
            return Ok(to_version(resource, &Arc::new(stored), &call.version));
        }
        let stored = self.to_storage(resource, object);
        check_size(&stored)?;
        let change = self.commit(key, Some(stored), &call.actor);
        Ok(to_version(resource, &change.object(), &call.version))
    }

    pub(crate) fn update(&mut self, call: &Call, resource: &Resource) -> Result<Reply, Status> {
        let object = self.body(call, resource)?;
        check_name(call, &object)?;
        let may_create =
            builtin::allows_create_on_update(&resource.id) && !resource.is_custom && call.subresource.is_empty();
        self.write(call, resource, Content::Put(&object), may_create)
    }

    pub(crate) fn patch(&mut self, call: &Call, resource: &Resource, kind: PatchType) -> Result<Reply, Status> {
        let invalid = |cause: Cause| Err(Status::invalid("meta.k8s.io", "PatchOptions", "", vec![cause]));
        match kind {
            PatchType::Strategic => {
                let message = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
                return Err(Status::new(415, "UnsupportedMediaType", message));
            }
            PatchType::Apply if call.parameter("fieldManager").is_empty() => {
                let detail = "Required value: is required for apply patch";
                return invalid(Cause::field("FieldValueRequired", "fieldManager", detail));
            }
            PatchType::Json | PatchType::Merge if !call.parameter("force").is_empty() => {
                return invalid(Cause::forbidden("force", "may not be specified for non-apply patch"));
            }
            _ => {}
        }
        self.write(call, resource, Content::Patch(kind), kind == PatchType::Apply)
    }

    /// Updates an object, or creates it if that is possible.
    fn write(
        &mut self,
        call: &Call,
        resource: &Resource,
        content: Content<'_>,
        may_create: bool,
    ) -> Result<Reply, Status> {
        let key = key(resource, call);
        let Some(stored) = self.store.get(&key) else {
            if !may_create {
                return Err(not_found(resource, &call.name));
            }
            return self.create_by_update(call, resource, content);
        };
        let old = to_version(resource, &stored, &call.version);
        let mut object = match content {
            Content::Put(object) => {
                let mut object = object.clone();
                check_uid(call, resource, &object, metadata::text(&old, "uid"))?;
                set_namespace(call, resource, &mut object)?;
                self.track(call, resource, &old, &mut object);
                object
            }
            Content::Patch(kind) => {
                let mut object = self.patched(call, resource, &old, kind)?;
                set_namespace(call, resource, &mut object)?;
                object
            }
        };
        check_name(call, &object)?;
        object = self.admit(call, object, Some(&old))?;
        let version = metadata::text(&object, "resourceVersion").to_owned();
        let current = metadata::text(&old, "resourceVersion");
        if version.is_empty() || version == "0" {
            let is_unconditional = !resource.is_custom && builtin::allows_unconditional_update(&resource.id);
            if !is_unconditional {
                let cause = Cause::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
                return Err(Status::invalid(&resource.id.group, &resource.id.resource, &call.name, vec![cause]));
            }
            metadata::set(&mut object, "resourceVersion", current);
        } else if version != current {
            return Err(Status::modified(&resource.id.group, &resource.id.resource, &call.name));
        }
        self.prepare_update(call, resource, &mut object, &old);
        let causes = self.validate_update(call, resource, &object, &old);
        invalid_unless_empty(resource, &call.name, causes)?;
        if differs_only_in_times(&object, &old) {
            object = Value::clone(&old);
        }
        let grace = metadata::get(&old, "deletionGracePeriodSeconds").and_then(Value::as_i64);
        let is_deleted = grace == Some(0) && metadata::finalizers(&object).is_empty();
        let new = self.to_storage(resource, object.clone());
        let is_unchanged = !is_deleted && is_equal(&new, &stored);
        let result = if is_unchanged {
            old
        } else if call.is_dry_run {
            to_version(resource, &Arc::new(new), &call.version)
        } else if is_deleted {
            let object = Arc::new(object);
            self.commit(key, None, &call.actor);
            object
        } else {
            check_size(&new)?;
            let change = self.commit(key, Some(new), &call.actor);
            to_version(resource, &change.object(), &call.version)
        };
        Ok(Reply::ok(list::render(call, resource, &result)))
    }

    fn create_by_update(&mut self, call: &Call, resource: &Resource, content: Content<'_>) -> Result<Reply, Status> {
        let mut object = match content {
            Content::Put(object) => {
                let mut object = object.clone();
                check_uid(call, resource, &object, "")?;
                set_namespace(call, resource, &mut object)?;
                self.track(call, resource, &empty(call, resource), &mut object);
                object
            }
            Content::Patch(kind) => {
                let object = self.patched(call, resource, &Value::Null, kind)?;
                let uid = metadata::text(&object, "uid");
                if !uid.is_empty() {
                    let detail = format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    );
                    return Err(Status::conflict(&resource.id.group, &resource.id.resource, &call.name, &detail));
                }
                object
            }
        };
        if !call.subresource.is_empty() {
            return Err(not_found(resource, &call.name));
        }
        set_namespace(call, resource, &mut object)?;
        check_name(call, &object)?;
        self.check_namespace(call, resource, &object)?;
        let object = self.admit(call, object, None)?;
        let created = self.insert(call, resource, object)?;
        Ok(Reply { code: 201, body: list::render(call, resource, &created) })
    }

    /// Returns the object that a patch makes out of the existing object.
    fn patched(&self, call: &Call, resource: &Resource, old: &Value, kind: PatchType) -> Result<Value, Status> {
        let mut object = match kind {
            PatchType::Json => patch::apply_json(old, &call.body)?,
            PatchType::Merge => patch::apply_merge(old, &call.body)?,
            PatchType::Apply | PatchType::Strategic => return self.applied(call, resource, old),
        };
        self.decode(call, resource, &mut object, Decoding::Patch)?;
        self.track(call, resource, old, &mut object);
        Ok(object)
    }

    fn applied(&self, call: &Call, resource: &Resource, old: &Value) -> Result<Value, Status> {
        let text = String::from_utf8_lossy(&call.body);
        let config: Value = match serde_json::from_str(&text) {
            Ok(config) => config,
            Err(_) => serde_saphyr::from_str(&text)
                .map_err(|error| Status::bad_request(&format!("error decoding YAML: {error}")))?,
        };
        let api_version = resource.api_version(&call.version);
        let given = config.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let kind = config.get("kind").and_then(Value::as_str).unwrap_or_default();
        if given != api_version {
            let message = format!(
                "Incorrect version specified in apply patch. Specified patch version: {given}, expected: {api_version}"
            );
            return Err(Status::bad_request(&message));
        }
        if kind != resource.kind {
            return Err(Status::internal(&format!("failed to create typed patch object: no type for kind {kind:?}")));
        }
        let live = if old.is_null() { empty(call, resource) } else { old.clone() };
        let object = format!(
            "{}/{}; {api_version}, Kind={kind}",
            metadata::text(&config, "namespace"),
            metadata::text(&config, "name")
        );
        let force = call.parameter("force") == "true";
        let mut applied = self.with_fields(call, resource, |write| write.apply(&live, &config, force, &object))?;
        self.decode(call, resource, &mut applied, Decoding::Apply)?;
        Ok(applied)
    }

    fn with_fields<T>(&self, call: &Call, resource: &Resource, use_fields: impl FnOnce(&FieldWrite<'_>) -> T) -> T {
        use_fields(&FieldWrite {
            manager: &call.field_manager(),
            api_version: &resource.api_version(&call.version),
            subresource: &call.subresource,
            schemas: &resource.schemas,
            reset: &resource.reset_fields(&call.version, &call.subresource),
            now: &self.now(),
        })
    }

    fn track(&self, call: &Call, resource: &Resource, old: &Value, object: &mut Value) {
        self.with_fields(call, resource, |write| write.track_update(old, object));
    }

    /// Parses the object in a request.
    fn body(&self, call: &Call, resource: &Resource) -> Result<Value, Status> {
        let mut object: Value = serde_json::from_slice(&call.body)
            .map_err(|error| Status::bad_request(&format!("invalid JSON: {error}")))?;
        let expected = resource.api_version(&call.version);
        let Value::Object(fields) = &mut object else {
            return Err(Status::bad_request("the body is no JSON object"));
        };
        for (name, value) in [("apiVersion", &expected), ("kind", &resource.kind)] {
            if !resource.is_custom && fields.get(name).is_none_or(Value::is_null) {
                fields.insert(name.to_owned(), value.clone().into());
            }
            let given = fields.get(name).and_then(Value::as_str).unwrap_or_default();
            if given != value {
                let message = format!("the {name} in the data ({given}) does not match the expected {name} ({value})");
                return Err(Status::bad_request(&message));
            }
        }
        self.decode(call, resource, &mut object, Decoding::Body)?;
        Ok(object)
    }

    /// Brings an object into the form that its type has after decoding: without unknown fields, and with defaults.
    fn decode(&self, call: &Call, resource: &Resource, object: &mut Value, decoding: Decoding) -> Result<(), Status> {
        let fail = |message: &str| match decoding {
            Decoding::Body => Status::bad_request(message),
            Decoding::Patch => Status::invalid(
                "",
                "",
                "",
                vec![Cause::field("FieldValueInvalid", "patch", &format!("Invalid value: {message}"))],
            ),
            Decoding::Apply => Status::internal(message),
        };
        let Some(schema) = resource.schema(&call.version) else { return Err(Status::unknown_path()) };
        let Some(metadata_schema) = schema.properties.get("metadata") else { return Ok(()) };
        let mut unknown = metadata::normalize(metadata_schema, object)
            .map_err(|path| fail(&format!("json: cannot unmarshal value into Go struct field {path}")))?;
        if resource.is_custom {
            let fields = metadata::get(object, "managedFields").cloned();
            // The API server does not decode the result of an apply, so a null stays.
            if decoding != Decoding::Apply {
                unknown.extend(schema.prune(object));
                schema.drop_nulls(object);
            }
            schema.set_defaults(object);
            if let Some(fields) = fields {
                metadata::set(object, "managedFields", fields);
            }
        } else {
            if let Some(path) = metadata::mismatch(schema, object, "") {
                return Err(fail(&format!("json: cannot unmarshal value into Go struct field {path}")));
            }
            let mut copy = object.clone();
            unknown.extend(schema.prune(&mut copy));
            builtin::normalize(schema, object);
            builtin::set_defaults(&resource.id, object);
            builtin::normalize(schema, object);
        }
        if call.parameter("fieldValidation") == "Strict" && !unknown.is_empty() {
            let list: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
            return Err(fail(&format!("strict decoding error: {}", list.join(", "))));
        }
        Ok(())
    }

    /// Rejects a new object in a namespace that is missing or terminating.
    fn check_namespace(&self, call: &Call, resource: &Resource, object: &Value) -> Result<(), Status> {
        if !resource.is_namespaced {
            return Ok(());
        }
        let namespaces = GroupResource::new("", "namespaces");
        let key = Key::new(namespaces, None, &call.namespace);
        let Some(namespace) = self.store.get(&key) else {
            return Err(Status::not_found("", "namespaces", &call.namespace));
        };
        if !metadata::is_deleting(&namespace) {
            return Ok(());
        }
        let detail =
            format!("unable to create new content in namespace {} because it is being terminated", call.namespace);
        let cause = Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {} is being terminated", call.namespace),
            field: "metadata.namespace".to_owned(),
        };
        let name = metadata::text(object, "name");
        Err(Status::forbidden(&resource.id.group, &resource.id.resource, name, &detail).with_causes(vec![cause]))
    }

    fn admit(&mut self, call: &Call, mut object: Value, old: Option<&Value>) -> Result<Value, Status> {
        for hook in &mut self.admission {
            match hook(&AdmissionRequest { call, object: Some(&object), old }) {
                Admission::Allow => {}
                Admission::Mutate(mutated) => object = mutated,
                Admission::Deny(status) => return Err(status),
            }
        }
        Ok(object)
    }

    fn prepare_update(&self, call: &Call, resource: &Resource, object: &mut Value, old: &Value) {
        let generation = metadata::get(old, "generation").cloned();
        match generation {
            Some(generation) => metadata::set(object, "generation", generation),
            None => metadata::remove(object, "generation"),
        }
        let has_status = resource.has_status(&call.version);
        if call.subresource == "status" {
            if resource.is_custom {
                keep_only_status(object, old);
            } else {
                builtin::prepare_for_status_update(&resource.id, object, old);
            }
        } else if resource.is_custom {
            if has_status {
                copy_field(old, object, "status");
            }
            let content = |object: &Value| {
                let mut object = object.clone();
                if let Value::Object(object) = &mut object {
                    object.remove("metadata");
                }
                object
            };
            if !is_equal(&content(object), &content(old)) {
                let generation = metadata::get(old, "generation").and_then(Value::as_i64).unwrap_or_default();
                metadata::set(object, "generation", generation + 1);
            }
        } else {
            builtin::prepare_for_update(&resource.id, object, old, has_status);
        }
        for name in ["uid", "deletionGracePeriodSeconds"] {
            if metadata::get(object, name).is_none()
                && let Some(value) = metadata::get(old, name)
            {
                metadata::set(object, name, value.clone());
            }
        }
        metadata::set(object, "creationTimestamp", metadata::text(old, "creationTimestamp"));
        if let Some(time) = metadata::get(old, "deletionTimestamp") {
            metadata::set(object, "deletionTimestamp", time.clone());
        }
    }

    fn validate_update(&self, call: &Call, resource: &Resource, object: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = metadata::validate(object, resource.is_namespaced);
        // The API server checks the metadata once for all kinds, and once for each kind except budgets.
        causes.extend(metadata::validate_update(object, old));
        if resource.id.resource != "poddisruptionbudgets" {
            causes.extend(metadata::validate_update(object, old));
        }
        if resource.is_custom {
            causes.extend(self.validate_custom(call, resource, object, Some(old)));
        } else {
            if call.subresource.is_empty() {
                causes.extend(builtin::validate(&resource.id, object, false));
            }
            causes.extend(builtin::validate_update(&resource.id, object, old, &call.subresource));
        }
        causes
    }

    /// Returns the reasons why a custom resource is invalid.
    fn validate_custom(&self, call: &Call, resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
        let Some(schema) = resource.schema(&call.version) else { return Vec::new() };
        let mut causes = Vec::new();
        let name = metadata::text(object, "name");
        if old.is_none() && !name.is_empty() && !builtin::is_subdomain(name) {
            causes.push(Cause::invalid(
                "metadata.name",
                &name.into(),
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
            ));
        }
        causes.extend(validate::validate(schema, object, old));
        let mut before = Vec::new();
        if let Some(old) = old {
            validate::duplicates(schema, old, "", &mut before);
        }
        if before.is_empty() {
            validate::duplicates(schema, object, "", &mut causes);
        }
        let blocks = |cause: &&Cause| {
            [
                "FieldValueNotSupported",
                "FieldValueRequired",
                "FieldValueTooLong",
                "FieldValueTooMany",
                "FieldValueTypeInvalid",
            ]
            .contains(&cause.reason.as_str())
        };
        if !schema.has_rules {
            return causes;
        }
        if causes.iter().find(blocks).is_some() {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            causes.push(Cause::invalid("<nil>", &Value::Null, detail));
        } else {
            causes.extend(cel::violations(schema, object, old));
        }
        causes
    }

    /// Converts an object to the version in which all objects of the kind are stored.
    pub(crate) fn to_storage(&self, resource: &Resource, mut object: Value) -> Value {
        let storage = resource.api_version(&resource.storage);
        if resource.is_custom && object.get("apiVersion").and_then(Value::as_str) != Some(&storage) {
            convert(resource, &mut object, &resource.storage);
        } else if let Some(schema) = resource.schema(&resource.storage).filter(|_| resource.is_custom) {
            // A null that server-side apply has kept disappears with the next read.
            schema.drop_nulls(&mut object);
        }
        object
    }

    fn random_suffix(&mut self) -> String {
        let mut letter = || {
            let at = self.random.usize(..NAME_ALPHABET.len());
            NAME_ALPHABET.get(at).copied().map_or('b', char::from)
        };
        (0..5).map(|_| letter()).collect()
    }

    fn allocate_address(&mut self, resource: &Resource, object: &mut Value) {
        if resource.id.resource != "services" {
            return;
        }
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
        if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
            return;
        }
        let given = spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default().to_owned();
        let address = if given.is_empty() {
            self.addresses += 1;
            format!("10.96.{}.{}", self.addresses / 250 % 256, self.addresses % 250 + 1)
        } else {
            given
        };
        spec.insert("clusterIP".to_owned(), address.clone().into());
        spec.insert("clusterIPs".to_owned(), json!([address]));
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| json!("SingleStack"));
    }
}

fn invalid_unless_empty(resource: &Resource, name: &str, causes: Vec<Cause>) -> Result<(), Status> {
    // Errors name the internal group of events.
    let group = if resource.id.group == "events.k8s.io" { "" } else { &resource.id.group };
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid(group, &resource.kind, name, causes)) }
}

/// Returns the object to which the first version of an object is compared.
fn empty(call: &Call, resource: &Resource) -> Value {
    let mut empty = match resource.schema(&call.version) {
        Some(schema) if !resource.is_custom => builtin::zero(schema),
        _ => json!({}),
    };
    if let Value::Object(empty) = &mut empty {
        empty.insert("apiVersion".to_owned(), resource.api_version(&call.version).into());
        empty.insert("kind".to_owned(), resource.kind.clone().into());
    }
    empty
}

/// Sets the namespace of an object.
fn set_namespace(call: &Call, resource: &Resource, object: &mut Value) -> Result<(), Status> {
    let given = metadata::text(object, "namespace");
    if resource.is_namespaced && given.is_empty() {
        metadata::set(object, "namespace", call.namespace.as_str());
    } else if resource.is_namespaced && given != call.namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(message));
    } else if !resource.is_namespaced {
        metadata::remove(object, "namespace");
    }
    Ok(())
}

/// Rejects an object that is too large for etcd.
fn check_size(object: &Value) -> Result<(), Status> {
    if object.to_string().len() > MAX_OBJECT {
        Err(Status::internal("etcdserver: request is too large"))
    } else {
        Ok(())
    }
}

/// Checks the UID in a replacement.
fn check_uid(call: &Call, resource: &Resource, object: &Value, current: &str) -> Result<(), Status> {
    let uid = metadata::text(object, "uid");
    if uid.is_empty() || uid == current {
        return Ok(());
    }
    let detail = format!(
        "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {current}",
        key(resource, call)
    );
    Err(Status::conflict(&resource.id.group, &resource.id.resource, &call.name, &detail))
}

fn check_name(call: &Call, object: &Value) -> Result<(), Status> {
    let name = metadata::text(object, "name");
    if name == call.name {
        return Ok(());
    }
    let message = match name {
        "" => "name must be provided".to_owned(),
        _ => format!("the name of the object ({name}) does not match the name on the URL ({})", call.name),
    };
    Err(Status::bad_request(&message))
}

fn copy_field(from: &Value, to: &mut Value, name: &str) {
    if let Value::Object(to) = to {
        match from.get(name) {
            Some(value) => drop(to.insert(name.to_owned(), value.clone())),
            None => drop(to.remove(name)),
        }
    }
}

/// Restores everything except the status and the managed fields.
fn keep_only_status(object: &mut Value, old: &Value) {
    let status = object.get("status").cloned();
    let fields = metadata::get(object, "managedFields").cloned();
    *object = old.clone();
    match fields {
        Some(fields) => metadata::set(object, "managedFields", fields),
        None => metadata::remove(object, "managedFields"),
    }
    if let Value::Object(object) = object {
        match status {
            Some(status) => drop(object.insert("status".to_owned(), status)),
            None => drop(object.remove("status")),
        }
    }
}
