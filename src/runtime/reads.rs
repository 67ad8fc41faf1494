//! Reads from the API server that bypass the caches. Each request has a timeout, and each error message identifies the
//! object.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, GetParams, ListParams};
use kube::core::{PartialObjectMeta, PartialObjectMetaExt as _};
use kube::{Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::api::names;
use crate::api::tolerant::{ParseError, Tolerant};
use crate::runtime::fair_slots::{FairSlots, Limits};
use crate::runtime::lists::{self, Identified, Identity, Labeled};

/// Numbers of objects per page with which the controller reads a list. If a page exceeds [`MAX_PAGE_BYTES`], the
/// controller reads the list again with the next number.
const PAGE_SIZES: [u32; 3] = [50, 5, 1];
/// Maximum size of a page. By default, the API server stores no object that is larger than 1.5 MiB.
const MAX_PAGE_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum number of objects in a list.
const MAX_LISTED: usize = 10_000;
/// Limits for the lists that a reader and its clones read at the same time. A list with many objects takes seconds. The
/// namespaces therefore share the lists fairly, so that a namespace waits only until one list of another namespace is
/// complete. The callers limit the number of waiting lists.
const LISTS: Limits = Limits { total: 8, per_key: 2, waiting_per_key: usize::MAX };

/// Error of a read. A missing object is not an error.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("failed to {request}: API server did not respond within {} s", limit.as_secs())]
    Timeout { request: String, limit: Duration },
    /// The request was not sent, because too many other lists were in progress.
    #[error("failed to {request}: other lists were in progress for more than {} s", limit.as_secs())]
    ListsInProgress { request: String, limit: Duration },
    /// The API server rejected the request.
    #[error("failed to {request}: {message} ({reason}, {code})")]
    Refused { request: String, code: u16, reason: String, message: String },
    #[error("failed to {request}")]
    Request { request: String, source: Box<kube::Error> },
    /// The object is invalid, or contains more values than the parser accepts.
    #[error("failed to {request}")]
    Parse { request: String, source: ParseError },
    /// The list exceeds the maximum size or the maximum number of objects.
    #[error("failed to {request}: list exceeds the maximum of {limit}")]
    TooLarge { request: String, limit: String },
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
    lists: FairSlots,
}

impl Reader {
    /// Creates a reader. `timeout` applies to each request.
    pub fn new(client: Client, timeout: Duration) -> Self {
        Reader { client, timeout, lists: FairSlots::new(LISTS) }
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

    /// Returns the name of the object with this UID in a namespace, or `None` if the object does not exist.
    pub async fn find_name<K>(&self, namespace: &str, uid: &str) -> Result<Option<String>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let select = |found: Identified| Some(found.metadata).filter(|identity| identity.uid.as_deref() == Some(uid));
        let found = self.list_identities::<K, _>(namespace, ListParams::default(), select).await?;
        Ok(found.into_iter().find_map(|identity| identity.name))
    }

    /// Returns the names and the UIDs of all objects in a namespace that match a label selector and whose labels satisfy
    /// `is_selected`. The metadata of the result contains no other field. An empty label selector matches all objects.
    pub async fn list_metadata<K>(
        &self,
        namespace: &str,
        selector: &str,
        is_selected: impl Fn(&BTreeMap<String, String>) -> bool,
    ) -> Result<Vec<PartialObjectMeta<K>>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        let parameters = match selector.is_empty() {
            true => ListParams::default(),
            false => ListParams::default().labels(selector),
        };
        let select = |found: Labeled| is_selected(found.labels()).then(|| found.into_identity());
        let found = self.list_identities::<K, _>(namespace, parameters, select).await?;
        let namespace = Some(namespace.to_owned());
        let metadata = |Identity { name, uid }: Identity| {
            let metadata = ObjectMeta { name, uid, namespace: namespace.clone(), ..ObjectMeta::default() };
            metadata.into_response_partial::<K>()
        };
        Ok(found.into_iter().map(metadata).collect())
    }

    /// Returns the first `limit` objects of kind `K` in a namespace that match a field selector, parsed as `T`. Returns
    /// [`ReadError::TooLarge`] if the response exceeds `max_bytes`. The function omits the objects that cannot be parsed.
    pub async fn list_as<K, T>(
        &self,
        namespace: &str,
        fields: &str,
        limit: u32,
        max_bytes: u64,
    ) -> Result<Vec<T>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        T: DeserializeOwned,
    {
        let parameters = ListParams::default().fields(fields).limit(limit);
        let what = || list_of::<K>(namespace);
        let response = async {
            let request = kube::core::Request::new(K::url_path(&(), Some(namespace))).list(&parameters);
            lists::page::<T>(&self.client, request.map_err(kube::Error::BuildRequest)?, max_bytes).await
        };
        let page = self.call(what, response).await?;
        let too_large = || ReadError::TooLarge { request: what(), limit: format!("{max_bytes} bytes") };
        Ok(page.ok_or_else(too_large)?.items)
    }

    /// Lists the objects in a namespace that match the parameters, and returns the identities that `select` returns.
    /// [`LISTS`] limits the number of calls of this function that read at the same time.
    async fn list_identities<K, T>(
        &self,
        namespace: &str,
        parameters: ListParams,
        select: impl Fn(T) -> Option<Identity>,
    ) -> Result<Vec<Identity>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        T: DeserializeOwned,
    {
        let what = || list_of::<K>(namespace);
        let slot = tokio::time::timeout(self.timeout, self.lists.acquire(namespace)).await;
        let Ok(Ok(_slot)) = slot else {
            return Err(ReadError::ListsInProgress { request: what(), limit: self.timeout });
        };
        for size in PAGE_SIZES {
            let parameters = parameters.clone().limit(size);
            if let Some(found) = self.read_pages::<K, T>(namespace, parameters, &select).await? {
                return Ok(found);
            }
        }
        Err(ReadError::TooLarge { request: what(), limit: format!("{MAX_PAGE_BYTES} bytes") })
    }

    /// Reads a list in pages. Returns `None` if a page exceeds [`MAX_PAGE_BYTES`].
    async fn read_pages<K, T>(
        &self,
        namespace: &str,
        mut parameters: ListParams,
        select: &impl Fn(T) -> Option<Identity>,
    ) -> Result<Option<Vec<Identity>>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        T: DeserializeOwned,
    {
        let what = || list_of::<K>(namespace);
        let (mut found, mut read) = (Vec::new(), 0_usize);
        loop {
            let response = async {
                let request = kube::core::Request::new(K::url_path(&(), Some(namespace))).list_metadata(&parameters);
                let request = request.map_err(kube::Error::BuildRequest)?;
                lists::page::<T>(&self.client, request, MAX_PAGE_BYTES).await
            };
            let Some(page) = self.call(what, response).await? else { return Ok(None) };
            read = read.saturating_add(page.items.len());
            if read > MAX_LISTED {
                return Err(ReadError::TooLarge { request: what(), limit: format!("{MAX_LISTED} objects") });
            }
            found.extend(page.items.into_iter().filter_map(select));
            match page.next {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(Some(found)),
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

fn list_of<K: Resource<DynamicType = ()>>(namespace: &str) -> String {
    format!("list objects of kind {} in namespace {namespace}", K::kind(&()))
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
mod tests;
