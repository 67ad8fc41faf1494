//! Tests that the controller writes neither unchanged objects nor fields that users or other controllers manage.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::{Poll, Program, Scene, WaitLimit, api_call, run, wait_until};
use crate::identity::AUTHORITY_LOCK;

/// Field manager of another client.
const TEAM: &str = "team";

#[test]
fn no_object_is_written_while_no_input_changes() {
    run("at-rest", async |scene| {
        // A change to the certificate authority would renew the certificates of all pods.
        let _alone = AUTHORITY_LOCK.lock().await;
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("at-rest").step("step", json!({"value": text})).files();
        let commit = source.push(&with_text("one")).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&commit).await;
        let before = until_at_rest(scene).await;
        // Changes to another Stack in the same namespace cause reconciliations.
        let other = scene.source("other").await;
        let pushed = other.push(&with_text("two")).await;
        scene.start(scene.stack("witness", &other)).await.until_applied(&pushed).await;
        let after = versions(scene).await;
        for object in &before {
            assert!(after.contains(object), "{object} has changed: {after:?}");
        }
    });
}

#[test]
fn fields_of_other_clients_and_explicit_zero_values_are_preserved() {
    run("others", async |scene| {
        let source = scene.source("app").await;
        let with_text = |text: &str| Program::new("others").step("step", json!({"value": text})).files();
        let first = source.push(&with_text("one")).await;
        let mut written = json!(scene.stack("main", &source));
        // A client that omits empty fields would remove these explicit zero values.
        for (field, value) in [
            ("refresh", json!(false)),
            ("destroyOnFinalize", json!(false)),
            ("resyncFrequencySeconds", json!(0)),
            ("targets", json!([])),
            ("config", json!({})),
        ] {
            written["spec"][field] = value;
        }
        let created = scene.create_raw(&written).await;
        let main = scene.stack_handle("main", &serde_json::from_value(written).expect("valid Stack"));
        main.until_applied(&first).await;

        let condition = json!({
            "type": "Audited", "status": "True", "reason": "Looked", "message": "written by the team",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": created.metadata.generation,
        });
        let theirs = json!({"status": {"conditions": [condition]}});
        scene.apply_as_team::<Stack>("main", Some(theirs)).await;
        let object = names::workspace_object("main");
        scene.apply_as_team::<Stack>("main", None).await;
        scene.apply_as_team::<Workspace>("main", None).await;
        scene.apply_as_team::<Service>(&object, None).await;
        scene.apply_as_team::<StatefulSet>(&object, None).await;
        let second = source.push(&with_text("two")).await;
        let stack = main.until_applied(&second).await;
        let managed = controller_fields(&stack);
        assert_eq!(managed, BTreeSet::from(["f:metadata.f:finalizers", "f:status"].map(str::to_owned)));

        let conditions = stack.status.map(|status| status.conditions).unwrap_or_default();
        assert!(conditions.iter().any(|condition| condition.type_ == "Audited"), "{conditions:?}");
        assert_team_fields_kept::<Stack>(scene, "main").await;
        assert_team_fields_kept::<Workspace>(scene, "main").await;
        assert_team_fields_kept::<Service>(scene, &object).await;
        assert_team_fields_kept::<StatefulSet>(scene, &object).await;
        let spec = scene.raw_spec("main").await;
        assert_eq!(spec, created.data["spec"], "the spec is as it was created");
    });
}

/// Returns the top-level fields that the controller manages in an object, and the individual metadata fields.
fn controller_fields<K: Resource>(object: &K) -> BTreeSet<String> {
    let entries = object.meta().managed_fields.iter().flatten();
    let ours = entries.filter(|entry| entry.manager.as_deref() == Some(names::FIELD_MANAGER));
    let fields = ours.filter_map(|entry| entry.fields_v1.as_ref()?.0.as_object()).flatten();
    let parts = fields.flat_map(|(part, below)| match (part.as_str(), below.as_object()) {
        ("f:metadata", Some(below)) => below.keys().map(|field| format!("{part}.{field}")).collect(),
        _ => vec![part.clone()],
    });
    parts.collect()
}

/// Returns the kind, the name and the resource version of all objects that belong to Stacks in the scene, except pods.
async fn versions(scene: &Scene) -> Vec<String> {
    fn of<K: Resource<DynamicType = ()>>(objects: &[K]) -> impl Iterator<Item = String> {
        objects.iter().map(|o| format!("{} {} {:?}", K::kind(&()), o.name_any(), o.resource_version()))
    }
    let mut all = Vec::new();
    all.extend(of(&scene.list::<Stack>().await));
    all.extend(of(&scene.list::<Workspace>().await));
    all.extend(of(&scene.list::<Update>().await));
    all.extend(of(&scene.list::<Service>().await));
    all.extend(of(&scene.list::<StatefulSet>().await));
    all.extend(of(&scene.list::<Secret>().await));
    all
}

/// Waits until the resource versions no longer change, because the controller writes a run's last results shortly after
/// the Stack becomes Ready.
async fn until_at_rest(scene: &Scene) -> Vec<String> {
    let mut last = Vec::new();
    let mut same = 0;
    wait_until("all Stacks to be idle", WaitLimit::Reaction, async || {
        let now = versions(scene).await;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same >= 20 { Poll::Found(last.clone()) } else { Poll::NotYet(format!("{last:?}")) }
    })
    .await
}

async fn assert_team_fields_kept<K>(scene: &Scene, name: &str)
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let object = api_call(format!("reading {name}"), scene.api::<K>().get(name)).await;
    let label = object.labels().get("team").map(String::as_str);
    assert_eq!(label, Some("a"), "{} {name} has lost fields of other field managers", K::kind(&()));
    let managed = object.meta().managed_fields.iter().flatten();
    assert!(managed.into_iter().any(|entry| entry.manager.as_deref() == Some(TEAM)), "{} {name}", K::kind(&()));
}

fn raw_stacks(scene: &Scene) -> Api<DynamicObject> {
    Api::namespaced_with(scene.client.clone(), &scene.namespace, &ApiResource::erase::<Stack>(&()))
}

impl Scene {
    /// Creates a Stack from JSON without converting the JSON to Rust types.
    async fn create_raw(&self, stack: &Value) -> DynamicObject {
        let mut stack = stack.clone();
        stack["apiVersion"] = json!(Stack::api_version(&()));
        stack["kind"] = json!(Stack::kind(&()));
        let object: DynamicObject = serde_json::from_value(stack).expect("valid object");
        api_call("creating a Stack", raw_stacks(self).create(&PostParams::default(), &object)).await
    }

    async fn raw_spec(&self, stack: &str) -> Value {
        let object = api_call("reading a Stack", raw_stacks(self).get(stack)).await;
        object.data["spec"].clone()
    }

    /// Uses server-side apply to set a label or, if given, a status as another field manager.
    async fn apply_as_team<K>(&self, name: &str, status: Option<Value>)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        let parameters = PatchParams::apply(TEAM);
        let mut object = status.clone().unwrap_or_else(|| json!({"metadata": {"labels": {"team": "a"}}}));
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let (api, patch) = (self.api::<K>(), Patch::Apply(&object));
        let action = format!("applying to {} {name} as another field manager", K::kind(&()));
        match status {
            Some(_) => drop(api_call(action, api.patch_status(name, &parameters, &patch)).await),
            None => drop(api_call(action, api.patch(name, &parameters, &patch)).await),
        }
    }
}
