//! `pulumi.com/v1` Program: a Pulumi YAML program as a Kubernetes object.
//!
//! The fields have the same names as in the Pulumi YAML language, and the controller copies the fields to the project
//! file. The schema of a field that accepts expressions permits any JSON value.

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

/// Pulumi YAML program as a Kubernetes object.
#[derive(Clone, Debug, Resource, Serialize, Deserialize)]
#[resource(inherit = ProgramDefinition)]
pub struct Program {
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    pub metadata: ObjectMeta,
    /// Specification of the program. For compatibility with the Pulumi Kubernetes Operator, the field is not named
    /// `spec`.
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

    /// Returns the CustomResourceDefinition of Programs.
    pub fn crd() -> CustomResourceDefinition {
        let mut crd = ProgramDefinition::crd();
        for version in &mut crd.spec.versions {
            let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
            let Some(root) = root else { continue };
            // The derive macro generates a required field `spec`. In a Program, the field is named `program`.
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

/// Specification of a Pulumi YAML program. The name of the Program is the name of the Pulumi project.
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
    /// Description of the Pulumi project. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,

    /// Version requirements for the Pulumi CLI. Default: any version. Example: `{requiredVersion: ">=3.150.0"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi: Option<PulumiRequirements>,

    /// Packages that are not in the Pulumi registry, by name. Each value is the source of the package, such as
    /// `source@version`, or an object with `source`, `version` and `parameters`. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any", extend("maxProperties" = bounds::REFERENCES))]
    pub packages: BTreeMap<String, Value>,

    /// Plugins in the workspace image, by kind. Default: none.
    /// Example: `{providers: [{name: aws, path: /plugins/aws}]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Plugins>,

    /// Project configuration by key. A value is a default value, or an object with `type` (`string`, `integer`,
    /// `boolean`, `array` or `object`), `items`, `default`, `description` and `secret`. For a key in another package's
    /// namespace, such as `aws:region`, the object contains the value in the field `value`. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,

    /// Configuration by key, with the types of the Pulumi YAML language. `config` takes precedence. Default: none.
    /// Example: `{replicas: {type: Integer, default: 3}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub configuration: BTreeMap<String, Configuration>,

    /// Expressions by name. Other expressions can refer to these names. Default: none.
    /// Example: `{greeting: "Hello, ${name}"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any", extend("maxProperties" = bounds::PROGRAM_ENTRIES))]
    pub variables: BTreeMap<String, Value>,

    /// Resources of the program, by logical name. Default: none. Example: `{logs: {type: "aws:s3:Bucket"}}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::PROGRAM_ENTRIES))]
    pub resources: BTreeMap<String, ProgramResource>,

    /// Outputs of the Pulumi stack by name. The values are expressions. Default: none.
    /// Example: `{bucket: "${logs.id}"}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub outputs: BTreeMap<String, Value>,
}

/// Version requirements for the Pulumi CLI.
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
    /// Resource provider plugins. Default: none. Example: `[{name: aws, path: /plugins/aws}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub providers: Vec<Plugin>,
    /// Language plugins. Default: none. Example: `[{name: yaml, path: /plugins/yaml}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub languages: Vec<Plugin>,
    /// Policy plugins. Default: none. Example: `[{name: policies, path: /plugins/policies}]`.
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
    /// Version of the plugin, such as `1.2.3`. Default: any version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub version: Option<String>,
}

/// Configuration variable of the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Configuration {
    /// Type of the value: `String`, `Number`, `Integer`, `Boolean`, `Object`, or a list of one of these types, such as
    /// `List<String>`. Default: the type of `default`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub kind: Option<String>,
    /// Default value for a Stack that does not set the key, as any JSON value. Default: none. Example: `[a, b]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub default: Option<Value>,
    /// Whether the value is a secret, even if the Stack sets it in plain text. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// Name of the key in the Stack configuration. Default: the key of this entry.
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
    /// For providers only: whether this provider is the default provider of its package. Resources of the package
    /// without `options.provider` use the default provider. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_provider: Option<bool>,
    /// Input properties: an object of expressions, or an expression that evaluates to an object. Default: none.
    /// Example: `{acl: private}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub properties: Option<Value>,
    /// Options of the resource. Default: none. Example: `{dependsOn: ["${network}"]}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<ResourceOptions>,
    /// Existing resource that the program reads and Pulumi does not manage. Cannot be combined with `properties`.
    /// Default: none. Example: `{id: vpc-1}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub get: Option<ResourceGetter>,
}

/// Options of a resource. A reference to another resource has the form `${name}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOptions {
    /// Names of the output properties that Pulumi stores as secrets. Default: none. Example: `[password]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub additional_secret_outputs: Option<Vec<String>>,
    /// Previous identities of the resource: URNs, or objects with `name`, `type`, `parent`, `noParent`, `stack` and
    /// `project`. Default: none. Example: `[{name: former-name}]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub aliases: Option<Value>,
    /// Timeouts of the operations on the resource. Default: the timeouts of the provider. Example: `{create: 30m}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_timeouts: Option<CustomTimeouts>,
    /// Whether Pulumi deletes the old resource before it creates a replacement. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_before_replace: Option<bool>,
    /// Reference to a resource whose deletion also deletes this resource. If Pulumi deletes both resources,
    /// it calls the provider only for the referenced resource. Default: none. Example: `"${cluster}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub deleted_with: Option<Value>,
    /// List of references to resources that Pulumi must create before this resource. Default: none.
    /// Example: `["${network}"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub depends_on: Option<Value>,
    /// For providers only: object that maps environment variables to the variables that the provider reads. Default:
    /// none. Example: `{TEAM_TOKEN: API_TOKEN}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub env_var_mappings: Option<Value>,
    /// Names of the properties whose changes Pulumi does not show. Default: none. Example: `[tags]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub hide_diffs: Option<Vec<String>>,
    /// Names of the properties whose changes Pulumi ignores. Default: none. Example: `[tags]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub ignore_changes: Option<Vec<String>>,
    /// ID of an existing resource that Pulumi imports. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<String>,
    /// Reference to the parent resource. Default: the stack resource. Example: `"${network}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub parent: Option<Value>,
    /// Download URL of the provider plugin. Default: the URL that Pulumi selects.
    #[serde(default, rename = "pluginDownloadURL", skip_serializing_if = "Option::is_none")]
    pub plugin_download_url: Option<String>,
    /// Whether Pulumi prevents the deletion of the resource: a boolean or an expression. Default: `false`.
    /// Example: `"${isProduction}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub protect: Option<Value>,
    /// Reference to the provider of the resource. Default: the package's default provider. Example: `"${europe}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub provider: Option<Value>,
    /// List of references to providers for the child resources. Default: none. Example: `["${europe}"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub providers: Option<Value>,
    /// Names of the properties whose changes require a replacement of the resource. Default: none. Example: `[name]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub replace_on_changes: Option<Vec<String>>,
    /// List of references to other resources. Pulumi replaces this resource if it replaces one of the referenced
    /// resources. Default: none.
    /// Example: `["${network}"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub replace_with: Option<Value>,
    /// Expression. Pulumi replaces the resource if the value of the expression changes. Default: none. Example:
    /// `"${version}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub replacement_trigger: Option<Value>,
    /// Whether Pulumi keeps the resource at the provider when it deletes the resource from the state. Default: `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_on_delete: Option<bool>,
    /// Version of the provider plugin. Default: the version that Pulumi selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Timeouts of the operations on a resource, as durations such as `30m`. Default: the timeouts of the provider.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct CustomTimeouts {
    /// Timeout of a create operation, as a duration such as `30m`. Default: the timeout of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<String>,
    /// Timeout of an update operation, as a duration such as `30m`. Default: the timeout of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<String>,
    /// Timeout of a delete operation, as a duration such as `30m`. Default: the timeout of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    /// Timeout of a read operation, as a duration such as `30m`. Default: the timeout of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// Existing resource that the program reads.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct ResourceGetter {
    /// ID of the resource at the provider.
    #[schemars(length(min = 1))]
    pub id: String,
    /// Known properties of the resource. Some providers require properties to find the resource. The values are
    /// expressions. Default: none. Example: `{region: eu-central-1}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub state: BTreeMap<String, Value>,
}

/// Observed state of a Program.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// Last observed generation of the object. `-1` before the first validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Conditions of the Program: `Ready`, and `Stalled` while the Program is invalid.
    /// Example: `[{type: Ready, status: "True", reason: Succeeded}]`.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// Abbreviated message of the condition `Ready`, for `kubectl get`: the first line, with shortened digests and at
    /// most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// Artifact of the last valid generation. The controller delivers the artifact to workspace pods, and does not
    /// publish it on an HTTP server. Example: `{digest: "sha256:…", revision: "3", size: 412}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ProgramArtifact>,
}

/// Artifact of a Program.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramArtifact {
    /// Identifier of the artifact, which consists of the Program's namespace, name and generation.
    pub path: String,
    /// Revision of the artifact, which is the Program's generation.
    pub revision: String,
    /// Digest of the archive, in the form `sha256:…`.
    pub digest: Digest,
    /// Time at which the controller first generated this artifact.
    pub last_update_time: Time,
    /// Size of the archive in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
}
