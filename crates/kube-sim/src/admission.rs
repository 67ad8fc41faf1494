//! Admission: hooks that stand for webhooks and policies.

use serde_json::Value;

use crate::request::Call;
use crate::status::Status;

/// Write that a hook sees after the patch has been applied and before the object is validated.
#[derive(Debug)]
pub struct AdmissionRequest<'a> {
    pub call: &'a Call,
    /// New object, or `None` for a deletion.
    pub object: Option<&'a Value>,
    /// Object before the write, or `None` for a creation.
    pub old: Option<&'a Value>,
}

/// Decision of a hook.
#[derive(Clone, Debug)]
pub enum Admission {
    Allow,
    /// Allow, with this object instead.
    Mutate(Value),
    /// Reject with this response. [`Status::denied`] is the response of a webhook.
    Deny(Status),
}
