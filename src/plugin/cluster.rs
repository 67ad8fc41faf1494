//! Requests to the API server. Each request has a timeout, each list has a limit, and each error message names the
//! failed request and its object. An invalid object does not hide the other objects of a list.

use std::fmt::Debug;
use std::time::Duration;

use futures::AsyncBufRead;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{Api, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use pulumi_controller::api::names;
use pulumi_controller::api::tolerant::Tolerant;
use pulumi_controller::text::chain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::plugin::args::GlobalFlags;
use crate::plugin::error::PluginError;
use crate::plugin::kubeconfig;
use crate::plugin::progress::Progress;

/// Field manager name with which the plugin changes objects.
const FIELD_MANAGER: &str = "kubectl-pulumi";
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Duration that no command reaches.
const UNLIMITED: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);
/// Maximum number of objects in one response.
const PAGE: u32 = 500;
/// Maximum number of objects in a list.
const MAX_OBJECTS: usize = 50_000;
/// Maximum number of invalid objects that a warning names.
const MAX_NAMED: usize = 5;
/// Maximum length of the message about an invalid object, in characters. The message can contain a value of the object.
const MAX_MESSAGE: usize = 300;

/// Kind of namespaced objects.
pub trait Namespaced:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

impl<K> Namespaced for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

/// Namespaces whose objects a command reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    Namespace(String),
}

impl Scope {
    /// Describes the scope for messages.
    fn describe(&self) -> String {
        match self {
            Scope::All => "all namespaces".to_owned(),
            Scope::Namespace(namespace) => format!("namespace {namespace}"),
        }
    }
}

/// Client of a cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    namespace: String,
    request_timeout: Duration,
    timeout: Duration,
    deadline: Instant,
}

impl Cluster {
    /// Creates a client from the kubeconfig. In a pod without a kubeconfig, uses the pod's ServiceAccount.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no valid configuration.
    pub async fn connect(flags: &GlobalFlags) -> Result<Self, PluginError> {
        let config = kubeconfig::load(flags)?;
        let namespace = flags.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        if !names::is_object_name(&namespace) {
            return Err(PluginError::Usage(format!("invalid --namespace={namespace}: use the name of a namespace")));
        }
        let client = Client::try_from(config).map_err(|error| PluginError::Connect(chain(&error)))?;
        Ok(Cluster {
            client,
            namespace,
            request_timeout: REQUEST_TIMEOUT.min(flags.timeout),
            timeout: flags.timeout,
            deadline: Instant::now() + flags.timeout,
        })
    }

    /// Returns the namespace from the `--namespace` flag or, without the flag, from the current context.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the scope of a command: all namespaces, the `--namespace` flag, or the namespace of the current context.
    pub fn scope(&self, all_namespaces: bool) -> Scope {
        if all_namespaces { Scope::All } else { Scope::Namespace(self.namespace.clone()) }
    }

    /// Returns the deadline of the command.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the same client with a new deadline, for the part of a command after a confirmation. The time in which
    /// the user decides does not count.
    #[must_use]
    pub fn with_new_deadline(&self) -> Self {
        Cluster { deadline: Instant::now() + self.timeout, ..self.clone() }
    }

    /// Returns the same client without a deadline.
    #[must_use]
    pub fn without_deadline(&self) -> Self {
        Cluster { deadline: Instant::now() + UNLIMITED, ..self.clone() }
    }

    /// Returns the client for requests that have no dedicated function. The caller must pass these requests to
    /// [`Cluster::call`].
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns an object.
    ///
    /// # Errors
    ///
    /// Returns an error if the object does not exist, or if the request fails.
    pub async fn get<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<K, PluginError> {
        self.get_opt(namespace, name).await?.ok_or_else(|| PluginError::NotFound {
            request: format!("read {}", K::kind(&())),
            kind: K::kind(&()).into_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns an object, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn get_opt<K: Namespaced>(&self, namespace: &str, name: &str) -> Result<Option<K>, PluginError> {
        // With an invalid namespace or name, for example from another user's spec, the request path could address a
        // different resource.
        if !names::is_object_name(namespace) || !names::is_object_name(name) {
            return Ok(None);
        }
        let api: Api<Tolerant<K>> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("read {} {namespace}/{name}", K::kind(&()));
        let object = self.call(what, api.get_opt(name)).await?;
        object.map(|object| parse(&object, what)).transpose()
    }

    /// Returns the objects in a scope, except those that cannot be parsed. Prints a warning about these objects on
    /// stderr.
    ///
    /// # Errors
    ///
    /// Returns an error if a request fails, or if there are too many objects.
    pub async fn list<K: Namespaced>(&self, scope: &Scope, parameters: ListParams) -> Result<Vec<K>, PluginError> {
        let Listed { objects, invalid } = self.list_with_invalid(scope, parameters).await?;
        let mut progress = Progress::new();
        warnings(&invalid).iter().for_each(|warning| progress.warning(warning));
        Ok(objects)
    }

    /// Returns the objects in a scope. Reads the list in pages.
    ///
    /// # Errors
    ///
    /// Returns an error if a request fails, or if there are too many objects.
    pub async fn list_with_invalid<K: Namespaced>(
        &self,
        scope: &Scope,
        parameters: ListParams,
    ) -> Result<Listed<K>, PluginError> {
        let api: Api<Tolerant<K>> = match scope {
            Scope::All => Api::all(self.client.clone()),
            Scope::Namespace(namespace) => Api::namespaced(self.client.clone(), namespace),
        };
        let what = || format!("list objects of kind {} in {}", K::kind(&()), scope.describe());
        let mut parameters = parameters.limit(PAGE);
        let mut found = Listed { objects: Vec::new(), invalid: Vec::new() };
        loop {
            let page = self.call(what, api.list(&parameters)).await?;
            page.items.iter().for_each(|object| found.add(object));
            if found.objects.len() + found.invalid.len() > MAX_OBJECTS {
                let request = what();
                return Err(PluginError::Failed(format!(
                    "failed to {request}: found more than {MAX_OBJECTS} objects; select a namespace or labels"
                )));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(found),
            }
        }
    }

    /// Applies a JSON merge patch to an object.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn merge<K: Namespaced>(&self, namespace: &str, name: &str, patch: &Value) -> Result<K, PluginError> {
        let api: Api<Tolerant<K>> = Api::namespaced(self.client.clone(), namespace);
        let parameters = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let what = || format!("change {} {namespace}/{name}", K::kind(&()));
        let object = self.call(what, api.patch(name, &parameters, &Patch::Merge(patch))).await?;
        parse(&object, what)
    }

    /// Creates an object in a namespace.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn create<K: Namespaced + Serialize>(&self, namespace: &str, object: &K) -> Result<K, PluginError> {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("create {} in namespace {namespace}", K::kind(&()));
        self.call(what, api.create(&post_parameters(), object)).await
    }

    /// Sends a review, such as a SelfSubjectAccessReview, which the API server answers and does not store.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn review<K>(&self, object: &K) -> Result<K, PluginError>
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::all(self.client.clone());
        self.call(|| format!("create {}", K::kind(&())), api.create(&post_parameters(), object)).await
    }

    /// Opens the log of a pod. The timeout applies only until the response starts.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails.
    pub async fn open_log(
        &self,
        namespace: &str,
        pod: &str,
        parameters: &LogParams,
    ) -> Result<impl AsyncBufRead + use<>, PluginError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        self.call(|| format!("read the log of Pod {namespace}/{pod}"), api.log_stream(pod, parameters)).await
    }

    /// Waits for the response to a request until the timeout of the request or the deadline of the command expires.
    ///
    /// # Errors
    ///
    /// Returns an error if the API server rejects the request or does not respond in time.
    pub async fn call<T>(
        &self,
        what: impl Fn() -> String,
        response: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, PluginError> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(self.request_timeout.min(remaining), response).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => Err(PluginError::Refused {
                request: what(),
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            }),
            Ok(Err(error)) => Err(PluginError::Request { request: what(), cause: chain(&error) }),
            Err(_) if remaining < self.request_timeout => Err(PluginError::TimedOut(format!(
                "timed out: failed to {} within the maximum duration of the command; to wait longer, increase --timeout",
                what()
            ))),
            Err(_) => Err(PluginError::NoResponse { request: what(), limit: self.request_timeout }),
        }
    }
}

/// Objects of a list.
#[derive(Debug)]
pub struct Listed<K> {
    pub objects: Vec<K>,
    /// Messages about the objects that cannot be parsed.
    pub invalid: Vec<String>,
}

impl<K: Namespaced> Listed<K> {
    fn add(&mut self, object: &Tolerant<K>) {
        match object.parse() {
            Ok(object) => self.objects.push(object),
            Err(error) => {
                let metadata = object.meta();
                let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
                let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
                let message = format!("ignoring {} {namespace}/{name}: {}", K::kind(&()), chain(&error));
                self.invalid.push(message.chars().take(MAX_MESSAGE).collect());
            }
        }
    }
}

/// Returns the warnings about invalid objects.
fn warnings(invalid: &[String]) -> Vec<String> {
    let mut warnings: Vec<String> = invalid.iter().take(MAX_NAMED).cloned().collect();
    match invalid.len().saturating_sub(MAX_NAMED) {
        0 => {}
        others => warnings.push(format!("ignoring {others} more objects that cannot be parsed")),
    }
    warnings
}

fn parse<K: DeserializeOwned>(object: &Tolerant<K>, what: impl Fn() -> String) -> Result<K, PluginError> {
    object.parse().map_err(|error| PluginError::Request { request: what(), cause: chain(&error) })
}

fn post_parameters() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

#[cfg(test)]
pub mod tests;
