//! Creates, changes and observes the Stacks of a scene.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::api::{LogParams, Patch, PatchParams, PostParams};
use pulumi_controller::api::auto::{Update, Workspace};
use pulumi_controller::api::conditions::{self, READY, RECONCILING, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{
    FluxSource, LiteralRef, ProgramReference, ResourceRef, SecretSelector, SourceReference, Stack, StackSpec,
};
use serde_json::{Value, json};

use super::environment::Environment;
use super::provider_log::ProviderLog;
use super::scene::{STATE_SECRET, Scene};
use super::source::{Commit, Source};
use super::wait::{Poll, WaitLimit, api_call, wait_for_change, wait_until};

/// Handle for a Stack in the cluster.
pub struct StackHandle<'a> {
    scene: &'a Scene,
    pub name: String,
    /// Provider log for this Stack.
    pub log: ProviderLog,
}

impl Scene {
    /// Returns a Stack with this source. A test can change the fields before it creates the Stack.
    pub fn stack(&self, name: &str, source: &Source<'_>) -> Stack {
        self.stack_on(name, &source.name)
    }

    /// Returns a Stack whose source is the GitRepository with this name.
    pub fn stack_on(&self, name: &str, repository: &str) -> Stack {
        let environment = Environment::get();
        let source_ref = SourceReference {
            api_version: None,
            kind: "GitRepository".to_owned(),
            name: repository.to_owned(),
            namespace: None,
        };
        let workspace = json!({
            "image": environment.pulumi_image,
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        });
        Stack::new(
            name,
            StackSpec {
                stack: format!("{name}-{}", self.id),
                flux_source: Some(FluxSource { source_ref, dir: None }),
                backend: Some(environment.s3_backend_url.clone()),
                env_refs: run_environment(),
                workspace_template: Some(json!({"spec": workspace})),
                ..StackSpec::default()
            },
        )
    }

    /// Returns a Stack whose source is the Program with this name.
    pub fn stack_on_program(&self, name: &str, program: &str) -> Stack {
        let mut stack = self.stack_on(name, "");
        stack.spec.flux_source = None;
        stack.spec.program_ref = Some(ProgramReference { name: program.to_owned() });
        stack
    }

    /// Returns a Stack that tracks the branch `main` of a Git repository without Flux.
    pub fn stack_on_repository(&self, name: &str, source: &Source<'_>) -> Stack {
        let mut stack = self.stack_on(name, "");
        stack.spec.flux_source = None;
        stack.spec.project_repo = Some(source.url());
        stack.spec.branch = Some("main".to_owned());
        stack
    }

    /// Returns the image for workspace pods.
    pub fn pulumi_image(&self) -> &str {
        &Environment::get().pulumi_image
    }

    /// Creates a Stack. When the Stack is deleted, the controller destroys no resources unless the test sets
    /// `destroyOnFinalize`.
    pub async fn start(&self, stack: Stack) -> StackHandle<'_> {
        let action = format!("creating the Stack {} (is the controller installed?)", stack.name_any());
        api_call(action, self.api::<Stack>().create(&PostParams::default(), &stack)).await;
        StackHandle { scene: self, name: stack.name_any(), log: provider_log(&stack) }
    }
}

/// Returns the provider log of a Stack. The log contains the Pulumi stack name without the organization and the
/// project.
fn provider_log(stack: &Stack) -> ProviderLog {
    ProviderLog::of(stack.spec.stack.rsplit('/').next().unwrap_or_default())
}

impl Scene {
    /// Returns a handle for an existing Stack.
    pub fn stack_handle(&self, name: &str, stack: &Stack) -> StackHandle<'_> {
        StackHandle { scene: self, name: name.to_owned(), log: ProviderLog::of(&stack.spec.stack) }
    }
}

impl StackHandle<'_> {
    /// Returns a handle for a Stack that the test has created without `start`.
    pub fn of<'a>(scene: &'a Scene, name: &str, stack: &str) -> StackHandle<'a> {
        StackHandle { scene, name: name.to_owned(), log: ProviderLog::of(stack) }
    }

    pub async fn get(&self) -> Stack {
        api_call(format!("reading the Stack {}", self.name), self.scene.api::<Stack>().get(&self.name)).await
    }

    /// Applies a merge patch to the Stack.
    pub async fn change(&self, patch: Value) {
        self.scene.patch::<Stack>(&self.name, patch).await;
    }

    /// Applies a merge patch to the status.
    pub async fn change_status(&self, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let action = format!("writing the status of the Stack {}", self.name);
        let api = self.scene.api::<Stack>();
        api_call(action, api.patch_status(&self.name, &PatchParams::default(), &patch)).await;
    }

    pub async fn annotate(&self, key: &str, value: &str) {
        self.change(json!({"metadata": {"annotations": {key: value}}})).await;
    }

    /// Waits until the Stack matches `predicate`.
    pub async fn until(&self, what: &str, wait_limit: WaitLimit, predicate: impl Fn(&Stack) -> bool) -> Stack {
        let changes = self.scene.timeline.changes();
        wait_for_change(format!("the Stack {} {what}", self.name), wait_limit, changes, async || {
            match self.scene.api::<Stack>().get(&self.name).await {
                Ok(stack) if predicate(&stack) => Poll::Found(stack),
                Ok(stack) => Poll::NotYet(describe(&[stack])),
                Err(error) => Poll::NotYet(error.to_string()),
            }
        })
        .await
    }

    /// Waits until the Stack has applied this commit with its current spec and has no open run.
    pub async fn until_applied(&self, commit: &Commit) -> Stack {
        self.until_applied_within(WaitLimit::Run, commit).await
    }

    pub async fn until_applied_within(&self, wait_limit: WaitLimit, commit: &Commit) -> Stack {
        self.until_revision_within(wait_limit, &commit.revision()).await
    }

    /// Waits until the Stack has applied this revision with its current spec and has no open run.
    pub async fn until_revision(&self, revision: &str) -> Stack {
        self.until_revision_within(WaitLimit::Run, revision).await
    }

    pub async fn until_revision_within(&self, wait_limit: WaitLimit, revision: &str) -> Stack {
        self.until(&format!("to be Ready on {revision}"), wait_limit, |stack| {
            is_done(stack) && stack.status.as_ref().and_then(|s| s.last_applied_revision.as_deref()) == Some(revision)
        })
        .await
    }

    /// Returns the Updates of the Stack, oldest first.
    pub async fn updates(&self) -> Vec<Update> {
        let mut updates = self.scene.list::<Update>().await;
        updates.retain(|update| update.spec.workspace_name == self.name);
        updates.sort_by_key(|update| (update.creation_timestamp().map(|time| time.0), update.name_any()));
        updates
    }

    /// Returns the events about the Stack.
    pub async fn events(&self) -> Vec<Event> {
        let mut events = self.scene.list::<Event>().await;
        events.retain(|event| {
            let involved = &event.involved_object;
            involved.kind.as_deref() == Some("Stack") && involved.name.as_deref() == Some(self.name.as_str())
        });
        events
    }

    /// Waits for an event about the Stack with this reason, and returns all events about the Stack. The controller
    /// creates an event only after it has changed the Stack, so a test must not expect the event immediately.
    pub async fn until_event(&self, reason: &str) -> Vec<Event> {
        wait_until(format!("the event {reason} of {}", self.name), WaitLimit::Reaction, async || {
            let events = self.events().await;
            match events.iter().any(|event| event.reason.as_deref() == Some(reason)) {
                true => Poll::Found(events),
                false => Poll::NotYet(format!("{:?}", events.iter().map(|event| &event.reason).collect::<Vec<_>>())),
            }
        })
        .await
    }

    pub async fn workspace(&self) -> Workspace {
        api_call(format!("reading the Workspace {}", self.name), self.scene.api::<Workspace>().get(&self.name)).await
    }

    pub async fn pod(&self) -> Pod {
        let name = self.workspace().await.pod_name();
        api_call(format!("reading the pod {name}"), self.scene.api::<Pod>().get(&name)).await
    }

    /// Returns the log of a container in the workspace pod.
    pub async fn pod_log(&self, container: &str) -> String {
        let of = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
        let name = self.workspace().await.pod_name();
        api_call(format!("reading the log of {name}"), self.scene.api::<Pod>().logs(&name, &of)).await
    }

    /// Returns the UID and the restart count of the pod. At least one of the two values changes if the pod is replaced
    /// or a container restarts.
    pub async fn pod_and_restarts(&self) -> (String, i32) {
        let pod = self.pod().await;
        let restarts = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        (pod.uid().unwrap_or_default(), restarts.map(|container| container.restart_count).sum())
    }

    pub async fn delete(&self) {
        self.scene.delete::<Stack>(&self.name).await;
    }

    pub async fn until_gone(&self) {
        let changes = self.scene.timeline.changes();
        wait_for_change(format!("the Stack {} to be deleted", self.name), WaitLimit::Run, changes, async || match self
            .scene
            .api::<Stack>()
            .get_opt(&self.name)
            .await
        {
            Ok(None) => Poll::Found(()),
            Ok(Some(stack)) => Poll::NotYet(describe(&[stack])),
            Err(error) => Poll::NotYet(error.to_string()),
        })
        .await;
    }
}

/// Returns the environment variables for the runs: the credentials from the scene's Secret, and the provider log
/// address.
fn run_environment() -> BTreeMap<String, ResourceRef> {
    let from_secret = |key: &str| ResourceRef {
        kind: "Secret".to_owned(),
        secret: Some(SecretSelector { namespace: None, name: STATE_SECRET.to_owned(), key: key.to_owned() }),
        ..ResourceRef::default()
    };
    let mut environment: BTreeMap<String, ResourceRef> =
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PULUMI_CONFIG_PASSPHRASE"]
            .map(|key| (key.to_owned(), from_secret(key)))
            .into();
    let log = LiteralRef { value: Environment::get().provider_log_url_in_cluster.clone() };
    let log = ResourceRef { kind: "Literal".to_owned(), literal: Some(log), ..ResourceRef::default() };
    environment.insert("PROVIDER_LOG_URL".to_owned(), log);
    environment
}

/// Returns whether the Stack is Ready for its current generation and has no open run.
pub fn is_done(stack: &Stack) -> bool {
    stack.status.as_ref().is_some_and(|status| {
        conditions::is_true(&status.conditions, READY)
            && status.observed_generation == stack.metadata.generation
            && status.current_update.is_none()
    })
}

/// Returns the condition of this type.
pub fn condition<'a>(stack: &'a Stack, kind: &str) -> Option<&'a Condition> {
    conditions::find(&stack.status.as_ref()?.conditions, kind)
}

/// Returns whether the condition has this status and reason.
pub fn has_condition(stack: &Stack, kind: &str, status: &str, reason: &str) -> bool {
    condition(stack, kind).is_some_and(|condition| condition.status == status && condition.reason == reason)
}

/// Returns whether the Stack waits for its source and is not stalled.
pub fn waits_for_source(stack: &Stack) -> bool {
    has_condition(stack, READY, "False", stack_reason::SOURCE_UNAVAILABLE)
        && has_condition(stack, RECONCILING, "True", stack_reason::SOURCE_UNAVAILABLE)
        && condition(stack, STALLED).is_none()
}

/// Returns whether the Stack is stalled for this reason. The Ready condition must have the same reason.
pub fn is_stalled(stack: &Stack, reason: &str) -> bool {
    has_condition(stack, READY, "False", reason)
        && has_condition(stack, STALLED, "True", reason)
        && condition(stack, RECONCILING).is_none()
}

/// Describes the states of all Stacks for failure messages, with one line per Stack.
pub fn describe(stacks: &[Stack]) -> String {
    let describe_one = |stack: &Stack| {
        let Some(status) = &stack.status else { return format!("{} has no status", stack.name_any()) };
        let conditions: Vec<String> =
            status.conditions.iter().map(|c| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message)).collect();
        format!(
            "{} generation {:?} observed {:?} [{}] applied {:?} current {:?} last {:?}",
            stack.name_any(),
            stack.metadata.generation,
            status.observed_generation,
            conditions.join("; "),
            status.last_applied_revision,
            status.current_update.as_ref().map(|update| &update.name),
            status.last_update,
        )
    };
    stacks.iter().map(describe_one).collect::<Vec<_>>().join("\n")
}
