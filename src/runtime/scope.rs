//! Watch scope: one namespace or all namespaces, and the shard of this controller.

use k8s_openapi::NamespaceResourceScope;
use kube::api::ApiResource;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, ListSemantic};
use kube::{Api, Client, Resource};
use sha2::{Digest as _, Sha256};

use crate::api::tolerant::Tolerant;

/// Number of objects per page of the initial list of a watch. Users can create objects of up to 1.5 MiB, and the
/// controller keeps a whole page in memory. A smaller number would delay the start with thousands of objects.
const PAGE_SIZE: u32 = 50;
/// Number of digits in the identifier of a shard. The name of the shard's Lease ends with the same digits.
const SHARD_DIGITS: usize = 8;

/// Part of the cluster that this process manages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    namespace: Option<String>,
    selector: Option<String>,
}

impl Scope {
    /// Creates a scope. Without a namespace, the scope contains all namespaces. The label selector applies only to the
    /// kinds of this controller.
    pub fn new(namespace: Option<String>, selector: Option<String>) -> Self {
        Scope { namespace, selector }
    }

    /// Returns the namespace if the scope contains only one namespace.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns whether the watch for a kind of this controller contains all of the kind's objects in a namespace.
    pub fn watches_all_of(&self, namespace: &str) -> bool {
        self.selector.is_none() && self.namespace().is_none_or(|watched| watched == namespace)
    }

    /// Returns the identifier of this controller's shard, which is a valid label value. Returns `None` if the controller
    /// has no label selector.
    pub fn shard(&self) -> Option<String> {
        let hash = hex::encode(Sha256::digest(self.selector.as_ref()?));
        hash.get(..SHARD_DIGITS).map(str::to_owned)
    }

    /// Returns the API client for watching a kind.
    pub fn api<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        }
    }

    /// Returns the API client for watching the object metadata of a kind that the controller determines at run time.
    pub fn metadata_api(&self, client: Client, kind: &ApiResource) -> Api<Tolerant<PartialObjectMeta>> {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, kind),
            None => Api::all_with(client, kind),
        }
    }

    /// Returns the watch configuration for this controller's kinds, limited to the controller's shard.
    pub fn own_kinds(&self) -> watcher::Config {
        match &self.selector {
            Some(selector) => self.other_kinds().labels(selector),
            None => self.other_kinds(),
        }
    }

    /// Returns the watch configuration for all other kinds, such as sources. These kinds have no shards.
    ///
    /// The API server divides a list into pages only if the request specifies no resource version. With the semantic
    /// `Any`, which is the resource version 0, the API server ignores the page size. In addition, the first
    /// reconciliations of Stacks use the Workspaces from the initial list, so the list must contain current versions.
    pub fn other_kinds(&self) -> watcher::Config {
        watcher::Config::default().list_semantic(ListSemantic::MostRecent).page_size(PAGE_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::Workspace;

    fn client() -> Client {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| async {
            Ok::<_, std::io::Error>(axum::http::Response::new(kube::client::Body::empty()))
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn requests_are_for_one_namespace_or_all_namespaces() {
        let all = Scope::default().api::<Workspace>(client());
        assert_eq!(all.resource_url(), "/apis/auto.pulumi.com/v1alpha1/workspaces");
        let one = Scope::new(Some("apps".into()), None).api::<Workspace>(client());
        assert_eq!(one.resource_url(), "/apis/auto.pulumi.com/v1alpha1/namespaces/apps/workspaces");
    }

    #[test]
    fn each_label_selector_has_its_own_shard() {
        let shard = |selector: Option<&str>| Scope::new(Some("apps".into()), selector.map(str::to_owned)).shard();
        assert_eq!(shard(None), None);
        // The names of the Leases in kustomize/overlays/sharded end with these values.
        assert_eq!(shard(Some("!sharding.fluxcd.io/key")).as_deref(), Some("42da7484"));
        assert_eq!(shard(Some("sharding.fluxcd.io/key=shard1")).as_deref(), Some("73fdc1be"));
    }

    #[test]
    fn initial_lists_have_small_pages() {
        let scope = Scope::new(None, Some("!sharding.fluxcd.io/key".into()));
        for config in [scope.own_kinds(), scope.other_kinds()] {
            assert_eq!((config.list_semantic, config.page_size), (ListSemantic::MostRecent, Some(PAGE_SIZE)));
        }
    }

    #[test]
    fn the_label_selector_is_used_only_for_kinds_of_this_project() {
        let scope = Scope::new(None, Some("!sharding.fluxcd.io/key".into()));
        assert_eq!(scope.own_kinds().label_selector.as_deref(), Some("!sharding.fluxcd.io/key"));
        assert_eq!(scope.other_kinds().label_selector, None);
    }
}
