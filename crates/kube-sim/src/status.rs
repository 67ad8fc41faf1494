//! Error responses, as the Kubernetes API server writes them.

use serde_json::{Map, Value, json};

/// Error response of the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    /// Name of the object, its group and its resource or kind.
    pub name: String,
    pub group: String,
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    /// Seconds after which a client should repeat the request. The response also has the header `Retry-After`.
    pub retry_after: Option<u32>,
}

/// Cause of an error, usually a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

impl Cause {
    /// Cause of a rejected value. `detail` follows the field in the message.
    pub(crate) fn field(reason: &str, field: &str, detail: &str) -> Self {
        Cause { reason: reason.to_owned(), message: detail.to_owned(), field: field.to_owned() }
    }

    pub(crate) fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        let value = match value {
            Value::Object(_) | Value::Array(_) => "\"object\"".to_owned(),
            other => other.to_string(),
        };
        Cause::field("FieldValueInvalid", field, &format!("Invalid value: {value}: {detail}"))
    }

    pub(crate) fn required(field: &str) -> Self {
        Cause::field("FieldValueRequired", field, "Required value")
    }

    pub(crate) fn forbidden(field: &str, detail: &str) -> Self {
        Cause::field("FieldValueForbidden", field, &format!("Forbidden: {detail}"))
    }

    pub(crate) fn not_supported(field: &str, value: &Value, supported: &[Value]) -> Self {
        let supported: Vec<String> = supported.iter().map(Value::to_string).collect();
        let detail = format!("Unsupported value: {value}: supported values: {}", supported.join(", "));
        Cause::field("FieldValueNotSupported", field, &detail)
    }
}

impl Status {
    pub fn new(code: u16, reason: &str, message: &str) -> Self {
        Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after: None,
        }
    }

    /// Sets the object of the error.
    #[must_use]
    pub fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        (self.group, self.kind, self.name) = (group.to_owned(), kind.to_owned(), name.to_owned());
        self
    }

    #[must_use]
    pub fn with_causes(mut self, causes: Vec<Cause>) -> Self {
        self.causes = causes;
        self
    }

    pub fn bad_request(message: &str) -> Self {
        Status::new(400, "BadRequest", message)
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(resource, group));
        Status::new(404, "NotFound", &message).about(group, resource, name)
    }

    /// Response to a path that no resource has.
    pub fn unknown_path() -> Self {
        Status::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(resource, group));
        Status::new(409, "AlreadyExists", &message).about(group, resource, name)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, detail: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {detail}", qualified(resource, group));
        Status::new(409, "Conflict", &message).about(group, resource, name)
    }

    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let detail = "the object has been modified; please apply your changes to the latest version and try again";
        Status::conflict(group, resource, name, detail)
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, detail: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {detail}", qualified(resource, group));
        Status::new(403, "Forbidden", &message).about(group, resource, name)
    }

    /// Rejection of a denying admission webhook.
    pub fn denied(webhook: &str, message: &str) -> Self {
        let message = format!("admission webhook {webhook:?} denied the request: {message}");
        Status { reason: String::new(), ..Status::new(400, "", &message) }
    }

    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let mut lines: Vec<String> = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        lines.dedup();
        let text = if lines.len() == 1 { lines.concat() } else { format!("[{}]", lines.join(", ")) };
        let message = format!("{} {name:?} is invalid: {text}", qualified(kind, group));
        Status::new(422, "Invalid", &message).about(group, kind, name).with_causes(causes)
    }

    pub fn internal(message: &str) -> Self {
        Status::new(500, "", message)
    }

    pub fn internal_error(message: &str) -> Self {
        let cause = Cause { reason: String::new(), message: message.to_owned(), field: String::new() };
        let message = format!("Internal error occurred: {message}");
        Status::new(500, "InternalError", &message).with_causes(vec![cause])
    }

    pub fn service_unavailable() -> Self {
        Status::new(503, "ServiceUnavailable", "the server is currently unable to handle the request")
    }

    pub fn too_many_requests(seconds: u32) -> Self {
        let message = "Too many requests, please try again later.";
        Status { retry_after: Some(seconds), ..Status::new(429, "TooManyRequests", message) }
    }

    /// Answer to a watch or a list that needs revisions that no longer exist.
    pub fn expired(message: &str) -> Self {
        Status::new(410, "Expired", message)
    }

    /// Returns the JSON representation.
    pub fn to_json(&self) -> Value {
        let mut details = Map::new();
        for (key, value) in [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)] {
            if !value.is_empty() {
                details.insert(key.to_owned(), value.clone().into());
            }
        }
        if !self.causes.is_empty() {
            let cause = |cause: &Cause| {
                let parts = [("reason", &cause.reason), ("message", &cause.message), ("field", &cause.field)];
                let parts = parts.into_iter().filter(|(_, value)| !value.is_empty());
                Value::Object(parts.map(|(key, value)| (key.to_owned(), value.clone().into())).collect())
            };
            details.insert("causes".to_owned(), self.causes.iter().map(cause).collect());
        }
        if let Some(seconds) = self.retry_after {
            details.insert("retryAfterSeconds".to_owned(), seconds.into());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if let Some(status) = status.as_object_mut() {
            if !self.reason.is_empty() {
                status.insert("reason".to_owned(), self.reason.clone().into());
            }
            if !details.is_empty() {
                status.insert("details".to_owned(), Value::Object(details));
            }
        }
        status
    }
}

fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}
