//! Changes that a preview reports, and the plan that it saves for a later run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;
use crate::artifact::Digest;

/// Operation whose changes a preview reports: `up`, `destroy` or `refresh`. Default: `up`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PreviewOf {
    /// The changes of an `up`.
    #[default]
    Up,
    /// Resources that a `destroy` deletes.
    Destroy,
    /// The changes that a `refresh` makes to the Pulumi state.
    Refresh,
}

/// Reference to a plan that another Update saved.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlanReference {
    /// Name of the Update that saved the plan, in the same namespace.
    #[schemars(length(min = 1, max = bounds::NAME))]
    pub update_name: String,
    /// Expected digest of the plan file, from `status.plan.fileDigest` of `updateName`. The run fails if the plan
    /// file has another digest.
    pub file_digest: Digest,
}

/// Changes that a preview reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdatePlan {
    /// Digest of the plan file in the Secret `<name>-plan`. Absent if the preview saved no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_digest: Option<Digest>,
    /// Resources that would change. Deletions and replacements come first. At most 200 entries.
    /// Example: `[{urn: "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs", operation: delete}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PLANNED_RESOURCES))]
    pub resources: Vec<PlannedResource>,
    /// Number of resources that would change, including resources that `resources` omits.
    #[serde(default)]
    pub resource_count: i64,
}

/// Planned change to a resource.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlannedResource {
    /// URN of the resource.
    #[schemars(length(max = bounds::URN))]
    pub urn: String,
    /// Operation of the Pulumi engine, such as `create`, `update`, `replace` or `delete`, or one of the operations
    /// `rename`, `reassign`, `relinquish` and `missing`.
    #[schemars(length(max = bounds::WORD))]
    pub operation: String,
    /// Paths of the changed properties, without the values. For `rename`, the new URN. At most 20 entries.
    /// Example: `["tags.owner"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::PLANNED_PROPERTIES), inner(length(max = bounds::WORD)))]
    pub properties: Vec<String>,
}

impl PreviewOf {
    pub fn as_str(self) -> &'static str {
        match self {
            PreviewOf::Up => "up",
            PreviewOf::Destroy => "destroy",
            PreviewOf::Refresh => "refresh",
        }
    }
}

impl PlannedResource {
    /// Returns the resource type without the parent types, or an empty string if the URN is invalid.
    pub fn kind(&self) -> &str {
        let types = self.urn.split("::").nth(2).unwrap_or_default();
        types.rsplit('$').next().unwrap_or_default()
    }

    /// Returns the name of the resource, or an empty string if the URN is invalid.
    pub fn name(&self) -> &str {
        self.urn.splitn(4, "::").nth(3).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_and_the_name_are_parts_of_the_urn() {
        let parts = |urn: &str| {
            let resource = PlannedResource { urn: urn.to_owned(), ..PlannedResource::default() };
            (resource.kind().to_owned(), resource.name().to_owned())
        };
        let pair = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
        assert_eq!(parts("urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs"), pair("aws:s3/bucket:Bucket", "logs"));
        assert_eq!(parts("urn:pulumi:dev::web::my:Site$aws:rds:Db::a::b"), pair("aws:rds:Db", "a::b"));
        assert_eq!(parts("bad"), pair("", ""));
    }
}
