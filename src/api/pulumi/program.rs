//! `pulumi.com/v1` Program: a Pulumi YAML program as a Kubernetes object.
//!
//! The fields have the names of the Pulumi YAML language, and the controller copies them to the project file. A field that accepts
//! expressions has the schema of any JSON value.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::core::TypeMeta;
use kube::{CustomResource, CustomResourceExt, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{bounds, schema};
use crate::artifact::Digest;

/// A Pulumi YAML program as a Kubernetes object.
#[derive(Clone, Debug, Resource, Serialize, Deserialize)]
#[resource(inherit = ProgramDefinition)]
pub struct Program {
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    pub metadata: ObjectMeta,
    /// Specification of the program. For compatibility, this field is not named `spec`.
    #[serde(default)]
    pub program: ProgramSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ProgramStatus>,
}

impl Program {
    pub fn new(name: &str, program: ProgramSpec) -> Self {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Program { types: Some(TypeMeta::resource::<Program>()), metadata, program, status: None }
    }

    /// Returns the CustomResourceDefinition of the kind.
    pub fn crd() -> CustomResourceDefinition {
        let mut crd = ProgramDefinition::crd();
        for version in &mut crd.spec.versions {
            let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
            let Some(root) = root else { continue };
            // The derive macro generates a required field `spec`, which a Program does not have.
            root.title = Some(Self::kind(&()).into_owned());
            root.required = None;
            if let Some(properties) = &mut root.properties
                && let Some(spec) = properties.remove("spec")
            {
                properties.insert("program".to_owned(), spec);
            }
        }
        crd
    }
}

/// Specification of a Pulumi YAML program. The project has the name of the object.
#[derive(CustomResource, Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[kube(
    group = "pulumi.com",
    version = "v1",
    kind = "Program",
    root = "ProgramDefinition",
    namespaced,
    status = "ProgramStatus",
    category = "pulumi",
    doc = "Program is a Pulumi YAML program.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.summary"}"#,
    printcolumn = r#"{"name":"Revision","type":"string","jsonPath":".status.artifact.revision"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
pub struct ProgramSpec {
    /// Description of the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,

    /// Requirements for the Pulumi CLI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi: Option<PulumiRequirements>,

    /// Sources of packages that are not in the Pulumi registry, by name of the package. Each value is a string such as `source@version`, or
    /// an object with `source`, `version` and `parameters`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any", extend("maxProperties" = bounds::REFERENCES))]
    pub packages: BTreeMap<String, Value>,

    /// Plugins in the workspace image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Plugins>,

    /// Project configuration by key. Each entry is a default value, or an object with `type` (`string`, `integer`, `boolean`, `array`,
    /// `object`), `items`, `default`, `description` and `secret`. A key of another namespace, such as `aws:region`, has a `value`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,

    /// Configuration with the types of the Pulumi YAML language, by key. `config` takes precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub configuration: BTreeMap<String, Configuration>,

    /// Named values for use in expressions. The values are expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any", extend("maxProperties" = bounds::PROGRAM_ENTRIES))]
    pub variables: BTreeMap<String, Value>,

    /// Resources by logical name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::PROGRAM_ENTRIES))]
    pub resources: BTreeMap<String, ProgramResource>,

    /// Stack outputs by name. The values are expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub outputs: BTreeMap<String, Value>,
}

/// Requirements for the Pulumi CLI.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PulumiRequirements {
    /// Required version range of the Pulumi CLI, such as `>=3.150.0`. Default: any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_version: Option<String>,
}

/// Plugins by kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Plugins {
    /// Resource provider plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub providers: Vec<Plugin>,
    /// Language plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub languages: Vec<Plugin>,
    /// Policy plugins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub analyzers: Vec<Plugin>,
}

/// Plugin in the workspace image.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Plugin {
    /// Name of the plugin.
    #[schemars(length(max = bounds::WORD))]
    pub name: String,
    /// Directory of the plugin in the workspace image.
    #[schemars(length(max = bounds::PATH))]
    pub path: String,
    /// Version of the plugin. Default: any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub version: Option<String>,
}

/// Configuration value of the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Configuration {
    /// `String`, `Number`, `Integer`, `Boolean`, `Object`, or a list of one of these types, such as `List<String>`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Default value, used if the Stack does not set the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub default: Option<Value>,
    /// Whether the value is a secret, even if the Stack sets it in plain text. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// Name of the key in the configuration of the Stack. Default: the key of this entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Resource that Pulumi manages (`properties`), or existing resource that the program reads (`get`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramResource {
    /// Type token, such as `aws:s3:Bucket`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub kind: String,
    /// Name of the resource in the Pulumi state. Default: the logical name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether all resources of the package of this provider that specify no provider use this provider. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_provider: Option<bool>,
    /// Input properties: an object of expressions, or an expression that evaluates to an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub properties: Option<Value>,
    /// Resource options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<ResourceOptions>,
    /// Reads an existing resource, which Pulumi does not manage. Cannot be combined with `properties`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub get: Option<ResourceGetter>,
}

/// Resource options. A reference to a resource has the form `${name}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOptions {
    /// Output properties to store as secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub additional_secret_outputs: Option<Vec<String>>,
    /// Previous identities of the resource: URNs, or objects with `name`, `type`, `parent`, `noParent`, `stack` and `project`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub aliases: Option<Value>,
    /// Timeouts of the resource operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_timeouts: Option<CustomTimeouts>,
    /// Whether to delete the old resource before its replacement is created. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_before_replace: Option<bool>,
    /// Reference to another resource. If that resource is deleted too, Pulumi does not call the provider to delete this resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub deleted_with: Option<Value>,
    /// List of references to resources that must be created first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub depends_on: Option<Value>,
    /// Object that maps environment variables to other names. Only for providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub env_var_mappings: Option<Value>,
    /// Properties whose changes are hidden in the diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub hide_diffs: Option<Vec<String>>,
    /// Properties whose changes are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub ignore_changes: Option<Vec<String>>,
    /// ID of an existing resource to import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<String>,
    /// Reference to the parent resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub parent: Option<Value>,
    /// Download URL of the provider plugin.
    #[serde(default, rename = "pluginDownloadURL", skip_serializing_if = "Option::is_none")]
    pub plugin_download_url: Option<String>,
    /// Whether to prevent the deletion of the resource: a boolean or an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub protect: Option<Value>,
    /// Reference to the provider of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub provider: Option<Value>,
    /// List of references to the providers of the child resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub providers: Option<Value>,
    /// Properties whose changes replace the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub replace_on_changes: Option<Vec<String>>,
    /// List of references to other resources. If one of these resources is replaced, this resource is replaced too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub replace_with: Option<Value>,
    /// Expression. The resource is replaced when its value changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub replacement_trigger: Option<Value>,
    /// Whether to keep the resource at the provider when Pulumi deletes it from the stack. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_on_delete: Option<bool>,
    /// Version of the provider plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Timeouts of the operations on a resource, as durations such as `30m`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct CustomTimeouts {
    /// Timeout of a create operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<String>,
    /// Timeout of an update operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<String>,
    /// Timeout of a delete operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    /// Timeout of a read operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// Existing resource to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct ResourceGetter {
    /// ID of the resource at the provider.
    #[schemars(length(min = 1))]
    pub id: String,
    /// Known properties, which some providers need to find the resource. The values are expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub state: BTreeMap<String, Value>,
}

/// Observed state of a Program.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// Last validated generation. `-1` before the first validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Condition `Ready`, and the condition `Stalled` while the program is not valid.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// First line of the message of `Ready` for `kubectl get`, with short digests, at most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// Artifact of the last valid generation. The controller delivers it to the workspace pods and does not serve it over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ProgramArtifact>,
}

/// Artifact of a Program.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramArtifact {
    /// Identifier of the artifact, which contains the namespace, the name and the generation of the Program.
    pub path: String,
    /// Generation of the Program, which Stacks report as their revision.
    pub revision: String,
    /// Digest of the archive, in the form `sha256:…`.
    pub digest: Digest,
    /// Time at which the controller first generated this artifact.
    pub last_update_time: Time,
    /// Size of the archive in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
}
