//! `pulumi.com/v1` Program: a Pulumi YAML program as an object, instead of a file in a repository.
//!
//! Its fields are those of the language, under the names that the language gives them; each goes into the project file. Where
//! the language takes an expression, the schema takes any value.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::core::TypeMeta;
use kube::{CustomResource, CustomResourceExt, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::{bounds, schema};

/// A Pulumi YAML program, as an object of the API.
#[derive(Clone, Debug, Resource, Serialize, Deserialize)]
#[resource(inherit = ProgramDefinition)]
pub struct Program {
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    pub metadata: ObjectMeta,
    /// The program. It is not called `spec`.
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

    /// The definition of the kind.
    pub fn crd() -> CustomResourceDefinition {
        let mut crd = ProgramDefinition::crd();
        for version in &mut crd.spec.versions {
            let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
            let Some(root) = root else { continue };
            // The derive knows only `spec`, and that it has to be there.
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

/// A Pulumi YAML program. Its name is that of the object.
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
    /// What the program is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,

    /// What the program asks of the Pulumi CLI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulumi: Option<PulumiRequirements>,

    /// Packages that are not in the registry, by name: where one comes from, as a text such as `source@version` or as an object with
    /// `source`, `version` and `parameters`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any", extend("maxProperties" = bounds::REFERENCES))]
    pub packages: BTreeMap<String, Value>,

    /// Plugins that lie in the workspace's image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<Plugins>,

    /// Configuration of the project, by key: a value, or an object with `type` (`string`, `integer`, `boolean`, `array`, `object`),
    /// `items`, `default`, `description` and `secret`; for a key of another namespace, such as `aws:region`, with `value`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub config: BTreeMap<String, Value>,

    /// Configuration in the language's own types, by key. Where `config` has the same key, that one counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::ENTRIES))]
    pub configuration: BTreeMap<String, Configuration>,

    /// Values that can be used again, by name: expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any", extend("maxProperties" = bounds::PROGRAM_ENTRIES))]
    pub variables: BTreeMap<String, Value>,

    /// The resources, by the name that the program calls them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = bounds::PROGRAM_ENTRIES))]
    pub resources: BTreeMap<String, ProgramResource>,

    /// The outputs of the stack, by name: expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub outputs: BTreeMap<String, Value>,
}

/// What a program asks of the Pulumi CLI.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PulumiRequirements {
    /// The versions of the CLI that the program runs with, such as `>=3.150.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required_version: Option<String>,
}

/// Plugins by their kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Plugins {
    /// Plugins of resource providers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub providers: Vec<Plugin>,
    /// Plugins of languages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub languages: Vec<Plugin>,
    /// Plugins that enforce policies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = bounds::REFERENCES))]
    pub analyzers: Vec<Plugin>,
}

/// A plugin in the workspace's image.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Plugin {
    /// The plugin's name.
    #[schemars(length(max = bounds::WORD))]
    pub name: String,
    /// The folder that it lies in.
    #[schemars(length(max = bounds::PATH))]
    pub path: String,
    /// The version that it stands for. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub version: Option<String>,
}

/// A value that the program takes from the stack's config.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct Configuration {
    /// `String`, `Number`, `Integer`, `Boolean`, `Object`, or a list of one of them, such as `List<String>`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The value if the stack's config has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub default: Option<Value>,
    /// Whether the value is a secret, also where the stack's config has it in plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<bool>,
    /// The key in the stack's config, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A resource: one that Pulumi manages (`properties`), or one that is there already (`get`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramResource {
    /// The type's token, such as `aws:s3:Bucket`.
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub kind: String,
    /// The name in the state, if it is another than in the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether this provider is the one of all resources of its package that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_provider: Option<bool>,
    /// What the resource is to be: an object of expressions, or an expression that gives an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub properties: Option<Value>,
    /// How Pulumi handles the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<ResourceOptions>,
    /// The resource is there already and is only read. It has no `properties` then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub get: Option<ResourceGetter>,
}

/// How Pulumi handles a resource. A reference to a resource is written `${name}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOptions {
    /// Outputs that are kept as secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub additional_secret_outputs: Option<Vec<String>>,
    /// What the resource was called before: URNs, or objects with `name`, `type`, `parent`, `noParent`, `stack`, `project`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub aliases: Option<Value>,
    /// How long an operation may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom_timeouts: Option<CustomTimeouts>,
    /// Delete the old one before the new one is made, when it has to be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_before_replace: Option<bool>,
    /// Not deleted by its provider when this resource is deleted as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub deleted_with: Option<Value>,
    /// Resources that have to be there before: a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub depends_on: Option<Value>,
    /// For a provider: environment variables under other names, an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub env_var_mappings: Option<Value>,
    /// Properties whose changes are not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub hide_diffs: Option<Vec<String>>,
    /// Properties whose changes do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub ignore_changes: Option<Vec<String>>,
    /// The ID of what is there already and is taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<String>,
    /// The resource that this one belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub parent: Option<Value>,
    /// Where its provider's plugin is downloaded from.
    #[serde(default, rename = "pluginDownloadURL", skip_serializing_if = "Option::is_none")]
    pub plugin_download_url: Option<String>,
    /// Never delete it: true, false, or an expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub protect: Option<Value>,
    /// Its provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub provider: Option<Value>,
    /// Providers of what belongs to it: a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub providers: Option<Value>,
    /// Properties whose changes replace it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::ENTRIES), inner(length(max = bounds::WORD)))]
    pub replace_on_changes: Option<Vec<String>>,
    /// Replaced when one of these resources is replaced: a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub replace_with: Option<Value>,
    /// Replaced when the value of this expression changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_value")]
    pub replacement_trigger: Option<Value>,
    /// Leave it where it is when it is deleted from the stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_on_delete: Option<bool>,
    /// The version of its provider's plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// How long operations on a resource may take, such as `30m`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct CustomTimeouts {
    /// Making it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<String>,
    /// Changing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<String>,
    /// Deleting it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete: Option<String>,
    /// Reading it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
}

/// Which resource is read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
pub struct ResourceGetter {
    /// Its ID at the provider.
    #[schemars(length(min = 1))]
    pub id: String,
    /// What is known of it and helps its provider to find it: expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::map_of_any")]
    pub state: BTreeMap<String, Value>,
}

/// What became of the program.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramStatus {
    /// The generation that was looked at last; -1 before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`, and `Stalled` while the program is not valid.
    #[serde(default)]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,

    /// What `kubectl get` prints of the message of `Ready`: its first line with short digests, at most 56 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,

    /// The artifact that was made of the last valid program. Nothing serves it: the controller hands it to the workspaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ProgramArtifact>,
}

/// What a program was made into.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProgramArtifact {
    /// A name of the artifact: namespace, name and generation of the Program.
    pub path: String,
    /// The generation of the Program, as Stacks report it for a revision.
    pub revision: String,
    /// The digest of the archive: `sha256:…`.
    pub digest: String,
    /// When this artifact was seen first.
    pub last_update_time: Time,
    /// Bytes of the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
}
