//! Reads from the API server that bypass the caches. Each request has a timeout, and each error message identifies the
//! object.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, GetParams, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::api::names;
use crate::api::tolerant::{ParseError, Tolerant};

/// Maximum number of objects in a list response.
const MAX_LIST: u32 = 500;

/// Error of a read. A missing object is not an error.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("failed to {request}: API server did not respond within {} s", limit.as_secs())]
    Timeout { request: String, limit: Duration },
    /// The API server rejected the request.
    #[error("failed to {request}: {message} ({reason}, {code})")]
    Refused { request: String, code: u16, reason: String, message: String },
    #[error("failed to {request}")]
    Request { request: String, source: Box<kube::Error> },
    /// The object is invalid, or contains more values than the parser accepts.
    #[error("failed to {request}")]
    Parse { request: String, source: ParseError },
}

impl ReadError {
    pub fn is_forbidden(&self) -> bool {
        matches!(self, ReadError::Refused { code: 403, .. })
    }
}

/// Client for reads with a timeout. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    client: Client,
    timeout: Duration,
}

impl Reader {
    /// Creates a reader. `timeout` applies to each request.
    pub fn new(client: Client, timeout: Duration) -> Self {
        Reader { client, timeout }
    }

    /// Returns an object, or `None` if it does not exist.
    pub async fn get_opt<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        if !may_exist(namespace, name) {
            return Ok(None);
        }
        let api: Api<Tolerant<K>> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("read {} {namespace}/{name}", K::kind(&()));
        let object = self.call(what, api.get_opt(name)).await?;
        object.map(|object| parse(&object, what)).transpose()
    }

    /// Returns the metadata of an object, or `None` if it does not exist.
    pub async fn get_metadata_opt<K>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PartialObjectMeta<K>>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        if !may_exist(namespace, name) {
            return Ok(None);
        }
        let api: Api<Tolerant<PartialObjectMeta<K>>> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("read the metadata of {} {namespace}/{name}", K::kind(&()));
        let object = self.call(what, api.get_opt(name)).await?;
        object.map(|object| parse(&object, what)).transpose()
    }

    /// Returns an object's row in the API server's `Table` representation, or `None` if the object does not exist. The
    /// row contains only the metadata and the columns of the object.
    pub async fn get_row_opt<K>(&self, namespace: &str, name: &str) -> Result<Option<Row>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Debug,
    {
        if !may_exist(namespace, name) {
            return Ok(None);
        }
        let what = || format!("read the metadata of {} {namespace}/{name}", K::kind(&()));
        let table = self.call(what, get_table_opt::<K>(&self.client, namespace, name)).await?;
        let row = table.map(Table::into_row).transpose();
        row.map(Option::flatten).map_err(|source| ReadError::Parse { request: what(), source })
    }

    /// Returns a cluster-scoped object, or `None` if it does not exist.
    pub async fn get_cluster_opt<K>(&self, name: &str) -> Result<Option<K>, ReadError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<Tolerant<K>> = Api::all(self.client.clone());
        let what = || format!("read {} {name}", K::kind(&()));
        let object = self.call(what, api.get_opt(name)).await?;
        object.map(|object| parse(&object, what)).transpose()
    }

    /// Returns the metadata of a cluster-scoped object, or `None` if it does not exist.
    pub async fn get_cluster_metadata_opt<K>(&self, name: &str) -> Result<Option<PartialObjectMeta<K>>, ReadError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<Tolerant<PartialObjectMeta<K>>> = Api::all(self.client.clone());
        let what = || format!("read the metadata of {} {name}", K::kind(&()));
        let object = self.call(what, api.get_opt(name)).await?;
        object.map(|object| parse(&object, what)).transpose()
    }

    /// Returns the object with a UID in a namespace. The function reads the list in pages, and parses only this object.
    pub async fn find<K>(&self, namespace: &str, uid: &str) -> Result<Option<K>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<Tolerant<K>> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("list objects of kind {} in namespace {namespace}", K::kind(&()));
        let mut parameters = ListParams::default().limit(MAX_LIST);
        loop {
            let page = self.call(what, api.list(&parameters)).await?;
            if let Some(object) = page.items.iter().find(|object| object.meta().uid.as_deref() == Some(uid)) {
                return parse(object, what).map(Some);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(None),
            }
        }
    }

    /// Returns the metadata of all objects in a namespace that match a label selector. The function reads the list in
    /// pages.
    pub async fn list_metadata<K>(&self, namespace: &str, labels: &str) -> Result<Vec<PartialObjectMeta<K>>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<Tolerant<PartialObjectMeta<K>>> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("list objects of kind {} in namespace {namespace}", K::kind(&()));
        let mut parameters = ListParams::default().labels(labels).limit(MAX_LIST);
        let mut found = Vec::new();
        loop {
            let page = self.call(what, api.list(&parameters)).await?;
            for object in &page.items {
                found.push(parse(object, what)?);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    async fn call<T>(
        &self,
        what: impl Fn() -> String,
        response: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ReadError> {
        match tokio::time::timeout(self.timeout, response).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => Err(ReadError::Refused {
                request: what(),
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            }),
            Ok(Err(source)) => Err(ReadError::Request { request: what(), source: Box::new(source) }),
            Err(_) => Err(ReadError::Timeout { request: what(), limit: self.timeout }),
        }
    }
}

fn parse<K: DeserializeOwned>(object: &Tolerant<K>, what: impl Fn() -> String) -> Result<K, ReadError> {
    object.parse().map_err(|source| ReadError::Parse { request: what(), source })
}

/// Returns whether the namespace and the name are valid. An invalid name could make the request URL refer to another
/// resource or add query parameters.
fn may_exist(namespace: &str, name: &str) -> bool {
    names::is_object_name(namespace) && names::is_object_name(name)
}

/// `Accept` header for requests that expect a table. The header lists no other media type, so that the API server never
/// responds with the object itself.
const TABLE: HeaderValue = HeaderValue::from_static("application/json;as=Table;g=meta.k8s.io;v=v1");

/// Row for an object in the `Table` representation.
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
    object: Tolerant<PartialObjectMeta>,
}

impl Table {
    fn into_row(self) -> Result<Option<Row>, ParseError> {
        let names = self.column_definitions.into_iter().map(|column| column.name);
        let Some(row) = self.rows.into_iter().next() else { return Ok(None) };
        Ok(Some(Row { metadata: row.object.parse()?.metadata, cells: names.zip(row.cells).collect() }))
    }
}

/// Returns the table for an object, or `None` if the object does not exist.
async fn get_table_opt<K>(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<Table>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Debug,
{
    let request = kube::core::Request::new(K::url_path(&(), Some(namespace))).get(name, &GetParams::default());
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.headers_mut().insert(ACCEPT, TABLE);
    match client.request::<Table>(request).await {
        Ok(table) => Ok(Some(table)),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
    use serde_json::json;

    use super::*;
    use crate::runtime::fake_api::{FakeResponse, client};

    /// Object with a time in the managed fields that the parser rejects.
    fn object(name: &str) -> Value {
        let managed = json!([{"manager": "a", "operation": "Update", "time": "9999-12-31T23:59:59Z"}]);
        json!({"metadata": {"name": name, "uid": format!("{name}-uid"), "managedFields": managed}})
    }

    #[tokio::test]
    async fn objects_with_invalid_managed_fields_can_be_read() {
        let (client, log) = client(|request| {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            let accept = &request.accept;
            FakeResponse::Json(
                200,
                match name {
                    "secrets" | "pods" => {
                        // The reader must not parse the first object.
                        let mut invalid = object("other");
                        invalid["metadata"]["creationTimestamp"] = json!("9999-12-31T23:59:59Z");
                        let items = if name == "pods" { vec![invalid, object("web")] } else { vec![object("web")] };
                        json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
                    }
                    _ if accept.contains("as=Table") => json!({
                        "columnDefinitions": [{"name": "Data"}],
                        "rows": [{"cells": [2], "object": object(name)}],
                    }),
                    _ => object(name),
                },
            )
        });
        let reader = Reader::new(client, Duration::from_secs(1));
        let name = |metadata: ObjectMeta| metadata.name.unwrap_or_default();
        let found = reader.get_opt::<Pod>("apps", "web").await.unwrap().unwrap();
        assert_eq!(name(found.metadata), "web");
        let found = reader.get_metadata_opt::<Secret>("apps", "web").await.unwrap().unwrap();
        assert_eq!(name(found.metadata), "web");
        let found = reader.get_cluster_opt::<Namespace>("apps").await.unwrap().unwrap();
        assert_eq!(name(found.metadata), "apps");
        let found = reader.get_cluster_metadata_opt::<Namespace>("apps").await.unwrap().unwrap();
        assert_eq!(name(found.metadata), "apps");
        let row = reader.get_row_opt::<Secret>("apps", "web").await.unwrap().unwrap();
        assert_eq!((name(row.metadata), &row.cells["Data"]), ("web".to_owned(), &json!(2)));
        let found = reader.list_metadata::<Secret>("apps", "a=b").await.unwrap();
        assert_eq!(found.len(), 1);
        let found = reader.find::<Pod>("apps", "web-uid").await.unwrap().unwrap();
        assert_eq!(name(found.metadata), "web");
        assert!(reader.find::<Pod>("apps", "missing").await.unwrap().is_none());
        let requests = log.all();
        let metadata = requests.iter().filter(|request| request.accept.contains("as=PartialObjectMetadata"));
        assert_eq!(metadata.count(), 3, "the reader requests only metadata: {requests:?}");
    }

    #[tokio::test]
    async fn no_request_is_sent_for_an_invalid_object_name() {
        let (client, log) = client(|_| FakeResponse::refusal(404, "NotFound"));
        let reader = Reader::new(client, Duration::from_secs(1));
        for name in ["../other/secrets/state", "state?watch=true", "state#", "", "a/b", "..", "State", "-a", "%2e%2e"] {
            assert!(reader.get_opt::<Secret>("apps", name).await.expect("successful read").is_none(), "{name}");
            assert!(
                reader.get_metadata_opt::<Secret>("apps", name).await.expect("successful read").is_none(),
                "{name}"
            );
            assert!(reader.get_row_opt::<Secret>("apps", name).await.expect("successful read").is_none(), "{name}");
        }
        assert!(reader.get_opt::<Secret>("../other", "state").await.expect("successful read").is_none());
        assert!(log.all().is_empty(), "{:?}", log.verbs());
        assert!(reader.get_opt::<Secret>("apps", "state.v1").await.expect("successful read").is_none());
        assert_eq!(log.verbs(), ["GET /api/v1/namespaces/apps/secrets/state.v1"]);
    }
}
