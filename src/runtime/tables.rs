//! Objects in the table format of the API server: names, counts and metadata, without content.

use std::collections::HashMap;
use std::fmt::Debug;

use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::GetParams;
use kube::core::Request;
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::Value;

/// `Accept` header of a table request. Without an alternative media type, the API server never responds with the object itself.
const TABLE: HeaderValue = HeaderValue::from_static("application/json;as=Table;g=meta.k8s.io;v=v1");

/// Row of an object.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub metadata: ObjectMeta,
    /// Cells by column name.
    pub cells: HashMap<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    #[serde(default)]
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Vec<TableRow>,
}

#[derive(Deserialize)]
struct Column {
    name: String,
}

#[derive(Deserialize)]
struct TableRow {
    #[serde(default)]
    cells: Vec<Value>,
    object: RowObject,
}

#[derive(Deserialize)]
struct RowObject {
    metadata: ObjectMeta,
}

impl Table {
    fn into_row(self) -> Option<Row> {
        let names = self.column_definitions.into_iter().map(|column| column.name);
        let row = self.rows.into_iter().next()?;
        Some(Row { metadata: row.object.metadata, cells: names.zip(row.cells).collect() })
    }
}

/// Returns the row of an object, or `None` if the object does not exist.
pub(super) async fn get_opt<K>(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<Row>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Debug,
{
    let request = Request::new(K::url_path(&(), Some(namespace))).get(name, &GetParams::default());
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.headers_mut().insert(ACCEPT, TABLE);
    match client.request::<Table>(request).await {
        Ok(table) => Ok(table.into_row()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
