//! Kinds that the server serves: the built-in kinds, and the kinds of registered CustomResourceDefinitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::apply::FieldSet;
use crate::builtin;
use crate::schema::{Schema, SchemaError};
use crate::store::GroupResource;

/// Kind that the server serves.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) id: GroupResource,
    pub(crate) kind: String,
    pub(crate) singular: String,
    pub(crate) is_namespaced: bool,
    /// Served versions in order of preference.
    pub(crate) versions: Vec<String>,
    /// Version in which the objects are stored.
    pub(crate) storage: String,
    /// Types by API version, such as `apps/v1`.
    pub(crate) schemas: BTreeMap<String, Arc<Schema>>,
    /// Versions whose status only the subresource changes.
    pub(crate) status_versions: Vec<String>,
    /// Field selectors besides the name and the namespace.
    pub(crate) selectable: Vec<String>,
    /// Columns of the `Table` representation, by version.
    pub(crate) columns: BTreeMap<String, Vec<Column>>,
    /// Whether the kind comes from a CustomResourceDefinition.
    pub(crate) is_custom: bool,
    /// Original schemas by version, for the OpenAPI document.
    pub(crate) raw_schemas: BTreeMap<String, Value>,
}

/// Column of the `Table` representation.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Fields from the root to the value.
    pub(crate) path: Vec<String>,
}

/// Reason why a CustomResourceDefinition cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    #[error("failed to parse the CustomResourceDefinition")]
    Yaml(#[from] serde_saphyr::Error),
    #[error("field {0} of the CustomResourceDefinition is missing or unsupported")]
    Field(&'static str),
    #[error("schema of {kind} {version}")]
    Schema { kind: String, version: String, source: SchemaError },
}

impl Resource {
    pub(crate) fn api_version(&self, version: &str) -> String {
        match self.id.group.as_str() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    pub(crate) fn schema(&self, version: &str) -> Option<&Arc<Schema>> {
        self.schemas.get(&self.api_version(version))
    }

    pub(crate) fn has_status(&self, version: &str) -> bool {
        self.status_versions.iter().any(|with| with == version)
    }

    /// Returns the fields that a write through an endpoint resets.
    pub(crate) fn reset_fields(&self, version: &str, subresource: &str) -> FieldSet {
        match subresource {
            "status" if self.is_custom => FieldSet::of_paths(&[&["spec"]]),
            "status" => builtin::status_reset_fields(&self.id),
            _ if self.has_status(version) => FieldSet::of_paths(&[&["status"]]),
            _ => FieldSet::default(),
        }
    }

    /// Parses a CustomResourceDefinition.
    pub(crate) fn of_definition(definition: &Value, metadata: &Arc<Schema>) -> Result<Self, RegistrationError> {
        let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let field = |pointer: &str, name: &'static str| text(pointer).ok_or(RegistrationError::Field(name));
        let group = field("/spec/group", "spec.group")?;
        let kind = field("/spec/names/kind", "spec.names.kind")?;
        let plural = field("/spec/names/plural", "spec.names.plural")?;
        if text("/spec/conversion/strategy").is_some_and(|strategy| strategy != "None") {
            return Err(RegistrationError::Field("spec.conversion.strategy"));
        }
        let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
        let mut resource = Resource {
            id: GroupResource { group, resource: plural },
            singular: text("/spec/names/singular").unwrap_or_else(|| kind.to_lowercase()),
            kind,
            is_namespaced: field("/spec/scope", "spec.scope")? == "Namespaced",
            versions: Vec::new(),
            storage: String::new(),
            schemas: BTreeMap::new(),
            status_versions: Vec::new(),
            selectable: Vec::new(),
            columns: BTreeMap::new(),
            is_custom: true,
            raw_schemas: BTreeMap::new(),
        };
        for version in versions.ok_or(RegistrationError::Field("spec.versions"))? {
            resource.add_version(version, metadata)?;
        }
        sort_versions(&mut resource.versions);
        Ok(resource)
    }

    fn add_version(&mut self, version: &Value, metadata: &Arc<Schema>) -> Result<(), RegistrationError> {
        let name =
            version.get("name").and_then(Value::as_str).ok_or(RegistrationError::Field("spec.versions[].name"))?;
        if version.get("storage").and_then(Value::as_bool) == Some(true) {
            name.clone_into(&mut self.storage);
        }
        if version.get("served").and_then(Value::as_bool) != Some(true) {
            return Ok(());
        }
        if version.pointer("/subresources/scale").is_some() {
            return Err(RegistrationError::Field("spec.versions[].subresources.scale"));
        }
        let raw = version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
        let schema = Schema::of_custom_resource(&raw, metadata).map_err(|source| RegistrationError::Schema {
            kind: self.kind.clone(),
            version: name.to_owned(),
            source,
        })?;
        if version.pointer("/subresources/status").is_some() {
            self.status_versions.push(name.to_owned());
        }
        for selectable in version.get("selectableFields").and_then(Value::as_array).into_iter().flatten() {
            let path = selectable.get("jsonPath").and_then(Value::as_str).unwrap_or_default();
            self.selectable.push(path.trim_start_matches('.').to_owned());
        }
        let columns = version.get("additionalPrinterColumns").and_then(Value::as_array);
        let columns = columns.into_iter().flatten().filter_map(|column| {
            let text = |name: &str| column.get(name).and_then(Value::as_str);
            let path = text("jsonPath")?.trim_start_matches('.').split('.').map(str::to_owned).collect();
            Some(Column { name: text("name")?.to_owned(), kind: text("type")?.to_owned(), path })
        });
        let mut columns: Vec<Column> = columns.collect();
        if columns.is_empty() {
            let path = vec!["metadata".to_owned(), "creationTimestamp".to_owned()];
            columns.push(Column { name: "Age".to_owned(), kind: "date".to_owned(), path });
        }
        self.columns.insert(name.to_owned(), columns);
        self.raw_schemas.insert(name.to_owned(), raw);
        self.versions.push(name.to_owned());
        self.schemas.insert(self.api_version(name), schema);
        Ok(())
    }
}

/// Sorts versions by preference: stable versions first, then beta, then alpha, and newer versions first.
fn sort_versions(versions: &mut [String]) {
    let rank = |version: &String| {
        let rest = version.trim_start_matches('v');
        let number = |text: &str| text.parse::<u32>().unwrap_or_default();
        let (level, major, minor) = if let Some((major, minor)) = rest.split_once("beta") {
            (1, number(major), number(minor))
        } else if let Some((major, minor)) = rest.split_once("alpha") {
            (2, number(major), number(minor))
        } else {
            (0, number(rest), 0)
        };
        (level, std::cmp::Reverse(major), std::cmp::Reverse(minor))
    };
    versions.sort_by_key(rank);
}

/// Kinds that a server serves. Cheap to clone, so that many servers can share the parsed definitions.
#[derive(Clone, Debug)]
pub struct Kinds {
    by_id: BTreeMap<GroupResource, Arc<Resource>>,
    metadata: Arc<Schema>,
}

impl Kinds {
    /// Returns the built-in kinds.
    ///
    /// # Errors
    /// Returns an error if the types of the built-in kinds are invalid.
    pub fn builtin() -> Result<Self, SchemaError> {
        let (resources, metadata) = builtin::resources()?;
        let by_id = resources.into_iter().map(|resource| (resource.id.clone(), Arc::new(resource))).collect();
        Ok(Kinds { by_id, metadata })
    }

    /// Adds the kinds of CustomResourceDefinitions, as YAML or JSON with any number of documents.
    ///
    /// # Errors
    /// Returns an error if a definition contains something that this crate does not implement, such as a CEL function.
    pub fn register(&mut self, definitions: &str) -> Result<(), RegistrationError> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(definitions)?;
        documents.iter().filter(|document| !document.is_null()).try_for_each(|document| self.register_one(document))
    }

    fn register_one(&mut self, definition: &Value) -> Result<(), RegistrationError> {
        let resource = Resource::of_definition(definition, &self.metadata)?;
        self.by_id.insert(resource.id.clone(), Arc::new(resource));
        Ok(())
    }

    pub(crate) fn get(&self, id: &GroupResource) -> Option<&Arc<Resource>> {
        self.by_id.get(id)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.by_id.values()
    }

    /// Returns the kind with this API version and name.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.by_id.values().find(|resource| resource.id.group == group && resource.kind == kind)
    }
}
