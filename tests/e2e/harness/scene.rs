//! Creates and removes scenes. A scene is the namespace of one test with all objects that a Stack needs.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, Resource, ResourceExt};
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::dump;
use super::environment::Environment;
use super::source::{GitRepository, Source};
use super::stack::describe;
use super::timeline::Timeline;
use super::wait::{Poll, WaitLimit, api_call, wait_for_change, wait_until};
use crate::conformance;

/// Secret with the state backend's S3 credentials and the passphrase for Pulumi secrets.
pub const STATE_SECRET: &str = "state";

/// A test's namespace with its objects.
pub struct Scene {
    pub client: Client,
    pub namespace: String,
    /// Unique scene ID for names outside the namespace, such as Pulumi stack names.
    pub id: String,
    pub timeline: Timeline,
}

impl Scene {
    pub async fn new(name: &str) -> Scene {
        let id: String = std::iter::repeat_with(fastrand::lowercase).filter(char::is_ascii_lowercase).take(6).collect();
        let namespace = format!("e2e-{name}-{id}");
        let client = client().await;
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted", "pulumi-controller.test/scene": name});
        let object: Namespace = from_json(json!({"metadata": {"name": namespace, "labels": labels}}));
        let namespaces: Api<Namespace> = Api::all(client.clone());
        api_call(format!("creating the namespace {namespace}"), namespaces.create(&PostParams::default(), &object))
            .await;
        let timeline = Timeline::start(&client, &namespace);
        let scene = Scene { client, namespace, id, timeline };
        scene.create::<Secret>(json!({"metadata": {"name": STATE_SECRET}, "stringData": state_credentials()})).await;
        scene
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates an object from JSON.
    pub async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let action = format!("creating the {} {}/{}", K::kind(&()), self.namespace, object["metadata"]["name"]);
        api_call(action, self.api::<K>().create(&PostParams::default(), &from_json(object))).await
    }

    /// Applies a merge patch to an object (`application/merge-patch+json`).
    pub async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let action = format!("patching the {} {}/{name} with {patch}", K::kind(&()), self.namespace);
        api_call(action, self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await
    }

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let action = format!("listing {} in {}", K::plural(&()), self.namespace);
        api_call(action, self.api::<K>().list(&ListParams::default())).await.items
    }

    /// Deletes an object without waiting until the deletion is complete.
    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let action = format!("deleting the {} {}/{name}", K::kind(&()), self.namespace);
        api_call(action, self.api::<K>().delete(name, &DeleteParams::default())).await;
    }

    /// Waits until the object no longer exists.
    pub async fn until_gone<K>(&self, name: &str, wait_limit: WaitLimit)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        wait_until(format!("the {} {name} to be deleted", K::kind(&())), wait_limit, async || {
            match self.api::<K>().get_opt(name).await {
                Ok(None) => Poll::Found(()),
                Ok(Some(object)) => Poll::NotYet(format!("{object:?}")),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await;
    }

    /// Creates a Git repository for this scene. The first push creates the GitRepository object.
    pub async fn source(&self, name: &str) -> Source<'_> {
        Source::new(self, name).await
    }

    /// Creates a ServiceAccount with permission to manage ConfigMaps in this namespace.
    pub async fn service_account_for_config_maps(&self, name: &str) {
        self.create::<ServiceAccount>(json!({"metadata": {"name": name}})).await;
        self.allow_config_maps(name).await;
    }

    /// Grants a ServiceAccount permission to manage ConfigMaps in this namespace.
    pub async fn allow_config_maps(&self, name: &str) {
        let verbs = ["get", "create", "update", "patch", "delete"];
        self.create::<Role>(json!({
            "metadata": {"name": name},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}],
        }))
        .await;
        self.create::<RoleBinding>(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
        }))
        .await;
    }

    /// Checks that every observed state and the final state of this scene's Stacks follow the Flux condition rules.
    pub async fn check_conditions_of_every_stack(&self) {
        let broken = conformance::check_observed_states(&self.timeline.states_of::<Stack>());
        assert!(broken.is_empty(), "conditions that violate the Flux conventions:\n{}", broken.join("\n"));
        wait_until("the conditions of all Stacks to follow the Flux conventions", WaitLimit::Reaction, async || {
            let stacks = self.list::<Stack>().await;
            let broken: Vec<String> = stacks.iter().flat_map(conformance::check_final_state).collect();
            if broken.is_empty() { Poll::Found(()) } else { Poll::NotYet(broken.join("; ")) }
        })
        .await;
    }

    /// Removes the scene. Deletes the Stacks first, because their deletion requires the other objects.
    pub async fn remove(self) {
        for stack in self.list::<Stack>().await {
            self.delete::<Stack>(&stack.name_any()).await;
        }
        let changes = self.timeline.changes();
        wait_for_change(
            format!("the Stacks in {} to be deleted", self.namespace),
            WaitLimit::Run,
            changes,
            async || {
                let stacks = self.list::<Stack>().await;
                if stacks.is_empty() { Poll::Found(()) } else { Poll::NotYet(describe(&stacks)) }
            },
        )
        .await;
        for repository in self.list::<GitRepository>().await {
            self.delete::<GitRepository>(&repository.name_any()).await;
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let action = format!("deleting the namespace {}", self.namespace);
        api_call(action, namespaces.delete(&self.namespace, &DeleteParams::default())).await;
    }

    /// Writes the scene's state to a file, and keeps the namespace for inspection. Suspends the Stacks, so that their
    /// runs do not disturb other tests.
    pub async fn keep(self) {
        let file = dump::write(&self).await;
        // Ignores errors, because the test failure is more important.
        let stacks = self.api::<Stack>().list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
        for stack in stacks {
            let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
            drop(self.api::<Stack>().patch(&stack.name_any(), &PatchParams::default(), &suspend).await);
        }
        let namespace = &self.namespace;
        println!("\n{}", self.timeline.text());
        println!(
            "the test failed. Its objects remain in the namespace {namespace}, with suspended Stacks. The state at the end of \
             the test is in {}. To remove the objects, run: tests/cluster/cluster kubectl delete stacks --all \
             --namespace {namespace} && tests/cluster/cluster kubectl delete namespace {namespace}",
            file.display()
        );
    }
}

fn state_credentials() -> Value {
    let environment = Environment::get();
    json!({
        "AWS_ACCESS_KEY_ID": environment.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": environment.s3_secret_key,
        "PULUMI_CONFIG_PASSPHRASE": "e2e",
    })
}

pub fn from_json<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).expect("an object written in a test has the fields of its type")
}

/// Returns the client for the cluster that the environment variables select. All tests share this client.
pub async fn client() -> Client {
    static CLIENT: OnceCell<Client> = OnceCell::const_new();
    Environment::get();
    CLIENT.get_or_init(async || Client::try_from(config().await).expect("KUBECONFIG is valid")).await.clone()
}

/// Returns a client that does not retry. The shared client retries requests after the status `429 Too Many Requests`.
pub async fn client_without_retries() -> Client {
    let mut config = config().await;
    config.default_retry = false;
    Client::try_from(config).expect("KUBECONFIG is valid")
}

async fn config() -> Config {
    let mut config = Config::from_kubeconfig(&KubeConfigOptions::default()).await.expect("KUBECONFIG can be read");
    config.proxy_url = None;
    config.connect_timeout = Some(Duration::from_secs(10));
    config
}
