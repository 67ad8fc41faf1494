//! Performs the controller's index lookups for one push while any number of other Stacks are idle.

use std::hint::black_box;
use std::time::Duration;

use kube::runtime::watcher::Event;
use kube::{Client, ResourceExt};
use pulumi_controller::api::auto::Update;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::controller::stack::{self, Dependents, DuplicateStacks, StackGroup, Stacks};
use pulumi_controller::controller::update::{self, UpdateGroup, Updates};
use pulumi_controller::runtime::index::{IndexWriter, StoreWriter as _};
use pulumi_controller::runtime::reads::Reader;
use pulumi_controller::runtime::requeue;
use pulumi_controller::source::kinds::GroupKind;
use serde_json::json;

/// Number of retained Updates per Stack.
const UPDATES: usize = 5;
/// Number of Stacks per source.
const STACKS_PER_SOURCE: usize = 10;

/// Idle Stacks, and the controller indexes that contain these Stacks.
pub struct AtRest {
    stacks: Stacks,
    updates: Updates,
    dependents: Dependents,
    duplicates: DuplicateStacks,
    reader: Reader,
    update_writer: IndexWriter<Update, UpdateGroup>,
    /// The Stack that receives the push.
    pushed: Stack,
    runtime: tokio::runtime::Runtime,
}

impl AtRest {
    pub fn new(count: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (stacks, mut stack_writer) = stack::stacks();
        let (updates, mut update_writer) = update::updates();
        let (requeue, _) = requeue::queue();
        let duplicates = DuplicateStacks::new(requeue, true);
        for number in 0..count {
            let stack = stack_number(number);
            duplicates.record(&stack);
            stack_writer.apply(&Event::Apply(stack));
            for attempt in 0..UPDATES {
                update_writer.apply(&Event::Apply(update_number(number, attempt)));
            }
        }
        let (dependents, _) = Dependents::new(stacks.clone(), true);
        let pushed = stack_number(count / 2);
        let reader = runtime.block_on(async { Reader::new(no_api_server(), Duration::from_secs(1)) });
        AtRest { stacks, updates, dependents, duplicates, reader, update_writer, pushed, runtime }
    }

    /// Simulates a push: the source changes, the controller creates an Update, and the Update runs and completes. Each
    /// step looks up the related objects.
    pub fn push(&mut self) {
        let (namespace, name) = (self.pushed.namespace().unwrap_or_default(), self.pushed.name_any());
        let source = self.pushed.spec.flux_source.as_ref().map(|source| source.source_ref.name.clone());
        let bucket = GroupKind::new("source.toolkit.fluxcd.io", "Bucket");
        let source = StackGroup::Source(bucket, (namespace.clone(), source.unwrap_or_default()));
        assert_eq!(black_box(self.stacks.in_group(&source)).len(), STACKS_PER_SOURCE);
        let (of_stack, of_workspace) =
            (UpdateGroup::stack(&namespace, &name), UpdateGroup::workspace(&namespace, &name));
        let number = name.trim_start_matches("app-").parse().unwrap_or_default();
        // Five events change the Update: its creation, its binding to a pod, the end of its run, its result, and its
        // record in the Stack.
        for _ in 0..5 {
            self.update_writer.apply(&Event::Apply(update_number(number, 0)));
            self.duplicates.record(&self.pushed);
            let duplicate = self.runtime.block_on(self.duplicates.preceding(&self.pushed, None, &self.reader));
            assert!(duplicate.is_ok_and(|duplicate| duplicate.is_none()));
            assert_eq!(black_box(self.dependents.of(&self.pushed)).len(), 1);
            assert_eq!(black_box(self.updates.in_group(&of_stack)).len(), UPDATES);
            assert_eq!(black_box(self.updates.in_group(&of_workspace)).len(), UPDATES);
        }
    }
}

/// Returns a Stack that depends on the previous Stack.
fn stack_number(number: usize) -> Stack {
    serde_json::from_value(json!({
        "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "metadata": {"namespace": "apps", "name": format!("app-{number}"), "uid": format!("uid-{number}")},
        "spec": {
            "stack": format!("acme/app/{number}"), "backend": "s3://state",
            "fluxSource": {"sourceRef": {"kind": "Bucket", "name": format!("b-{}", number / STACKS_PER_SOURCE)}},
            "dependsOn": [{"name": format!("app-{}", number.wrapping_sub(1))}],
        },
    }))
    .expect("a Stack")
}

fn update_number(number: usize, attempt: usize) -> Update {
    let name = format!("app-{number}");
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
        "metadata": {
            "namespace": "apps", "name": format!("{name}-{attempt}"),
            "labels": {"pulumi.com/component": "stack", "auto.pulumi.com/workspace-name": name},
        },
        "spec": {"workspaceName": name, "stackName": "dev", "type": "up"},
    }))
    .expect("an Update")
}

/// Returns a client whose requests all fail, because lookups must not call the API server.
fn no_api_server() -> Client {
    let service = tower::service_fn(|request: axum::http::Request<kube::client::Body>| async move {
        Err::<axum::http::Response<kube::client::Body>, _>(std::io::Error::other(format!(
            "unexpected request: {}",
            request.uri()
        )))
    });
    Client::new(service, "default")
}
