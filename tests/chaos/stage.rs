//! Manages the Stacks, the repositories and the pushed revisions of a chaos test.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::DeleteParams;
use pulumi_controller::api::names::workspace_pod;
use pulumi_controller::api::pulumi::Stack;
use serde_json::{Value, json};

use crate::approver;
use crate::backend::{Backend, S3Backend, is_cloud};
use crate::facts::{LatestRevision, RemovedManually, called, resources_of};
use crate::harness::{File, PulumiCloud, Scene, Source, TOKEN_SECRET, api_call};

/// Number of Stacks.
pub const STACKS: usize = 20;
/// Number of repositories.
const REPOSITORIES: usize = 4;
/// Project name of all programs.
pub const PROJECT: &str = "chaos";
/// Maximum number of faults that affect a Stack between two pushes. More faults would delay the run too long, because
/// the backoff grows with each retry.
const FAULTS_PER_REVISION: usize = 2;

/// All objects of the test.
pub struct Stage<'a> {
    pub scene: &'a Scene,
    pub backend: Backend,
    sources: Vec<Source<'a>>,
    /// Latest pushed revision by repository.
    latest: Vec<LatestRevision>,
    /// Numbers of all pushed revisions.
    pub numbers: BTreeMap<String, u64>,
    pub stacks: BTreeMap<String, Member>,
}

/// A Stack, and the faults that affected the Stack.
#[derive(Debug, Default)]
pub struct Member {
    pub repository: usize,
    /// Name of the Pulumi stack.
    pub pulumi_stack: String,
    /// Whether the Stack is being deleted. The test recreates the Stack after the deletion.
    pub is_deleted: bool,
    pub hits: Vec<Timestamp>,
    hits_on_revision: usize,
    pub removed_manually: Vec<RemovedManually>,
    /// Names of the Updates for which the simulated user has made a decision.
    pub resolved: BTreeSet<String>,
}

impl Member {
    pub fn record_hit(&mut self) {
        self.hits.push(Timestamp::now());
        self.hits_on_revision += 1;
    }

    fn accepts_fault(&self) -> bool {
        self.hits_on_revision < FAULTS_PER_REVISION
    }
}

impl<'a> Stage<'a> {
    /// Creates all objects without waiting for their first runs.
    pub async fn create(scene: &'a Scene) -> Stage<'a> {
        let mut stage = Stage {
            scene,
            backend: backend(scene).await,
            sources: Vec::new(),
            latest: Vec::new(),
            numbers: BTreeMap::new(),
            stacks: BTreeMap::new(),
        };
        approver::permit(scene).await;
        for repository in 0..REPOSITORIES {
            stage.sources.push(scene.source(&repository_name(repository)).await);
            let latest = stage.push(repository).await;
            stage.latest.push(latest);
        }
        for number in 0..STACKS {
            let name = format!("s{number:02}");
            let stack = stage.object(&name, number % REPOSITORIES);
            let member = Member {
                repository: number % REPOSITORIES,
                pulumi_stack: stack.spec.stack.rsplit('/').next().unwrap_or_default().to_owned(),
                ..Member::default()
            };
            scene.start(stack).await;
            stage.stacks.insert(name, member);
        }
        stage
    }

    fn object(&self, name: &str, repository: usize) -> Stack {
        let mut stack = match &self.backend {
            Backend::S3(_) => self.scene.stack_on(name, &repository_name(repository)),
            Backend::Cloud(cloud) => self.scene.stack_in_cloud(name, &self.sources[repository], cloud, PROJECT),
        };
        stack.spec.destroy_on_finalize = Some(true);
        if requires_approval(name) {
            stack.spec.approval = serde_json::from_value(approver::settings()).expect("approval settings");
        }
        stack
    }

    async fn push(&mut self, repository: usize) -> LatestRevision {
        let number = u64::try_from(self.numbers.len()).expect("a small number") + 1;
        let file = File { path: "Pulumi.yaml".to_owned(), content: format!("{:#}\n", program(number)) };
        let revision = self.sources[repository].push(&[file]).await.revision();
        self.numbers.insert(revision.clone(), number);
        LatestRevision { revision, number }
    }

    /// Pushes another revision to one of the repositories, and returns a description of the push.
    pub async fn push_to(&mut self, pick: usize) -> String {
        let repository = pick % REPOSITORIES;
        self.latest[repository] = self.push(repository).await;
        // A push does not reset the fault count of a Stack that is being deleted.
        let follows = |member: &&mut Member| member.repository == repository && !member.is_deleted;
        for member in self.stacks.values_mut().filter(follows) {
            member.hits_on_revision = 0;
        }
        format!("revision {} to {}", self.latest[repository].number, repository_name(repository))
    }

    pub fn latest(&self, member: &Member) -> &LatestRevision {
        &self.latest[member.repository]
    }

    /// Deletes a Stack. [`Stage::create_again`] recreates the Stack later. Returns `None` if all Stacks are already
    /// being deleted.
    pub async fn delete_one(&mut self, pick: usize) -> Option<String> {
        let staying: Vec<String> =
            self.stacks.iter().filter(|(_, member)| !member.is_deleted).map(|(name, _)| name.clone()).collect();
        let name = staying.get(pick.checked_rem(staying.len())?)?.clone();
        self.scene.delete::<Stack>(&name).await;
        let member = self.stacks.get_mut(&name)?;
        member.is_deleted = true;
        // The deletion cancels a queued run, but not an open run.
        member.hits.push(Timestamp::now());
        Some(name)
    }

    /// Recreates each deleted Stack when the deletion is complete. Returns the names of the recreated Stacks.
    pub async fn create_again(&mut self, existing: &[Stack]) -> Vec<String> {
        let exists = |name: &str| existing.iter().any(|stack| stack.name_any() == name);
        let gone = self.stacks.iter().filter(|(name, member)| member.is_deleted && !exists(name));
        let gone: Vec<(String, usize)> = gone.map(|(name, member)| (name.clone(), member.repository)).collect();
        for (name, repository) in &gone {
            self.scene.start(self.object(name, *repository)).await;
            if let Some(member) = self.stacks.get_mut(name) {
                member.is_deleted = false;
                member.hits_on_revision = 0;
            }
        }
        gone.into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the UIDs of the pods that a fault may affect, and the names of their Stacks.
    pub async fn pods(&self) -> BTreeMap<String, String> {
        let pods = self.scene.list::<Pod>().await;
        let owner = |pod: &Pod| {
            let is_pod_of_member =
                |(name, member): &(&String, &Member)| workspace_pod(name) == pod.name_any() && member.accepts_fault();
            self.stacks.iter().find(is_pod_of_member).map(|(name, _)| name.clone())
        };
        pods.iter().filter_map(|pod| Some((pod.uid()?, owner(pod)?))).collect()
    }

    /// Deletes the pod of a Stack. If `by_force` is true, the grace period is zero.
    pub async fn delete_pod(&self, stack: &str, by_force: bool) {
        let name = workspace_pod(stack);
        let parameters = if by_force { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
        api_call(format!("deleting the pod {name}"), self.scene.api::<Pod>().delete(&name, &parameters)).await;
    }

    /// Disables `destroyOnFinalize`, because removing the scene must not start destroy runs.
    pub async fn disable_destroy(&self) {
        for name in self.stacks.keys() {
            self.scene.patch::<Stack>(name, json!({"spec": {"destroyOnFinalize": false}})).await;
        }
    }
}

/// Returns the backend of all Stacks. For Pulumi Cloud, first creates the organization and the Secret with an access
/// token.
async fn backend(scene: &Scene) -> Backend {
    if !is_cloud() {
        return Backend::S3(S3Backend::of(PROJECT));
    }
    let cloud = PulumiCloud::of(scene).await;
    let token = cloud.token(&cloud.alice).await;
    scene.create::<Secret>(json!({"metadata": {"name": TOKEN_SECRET}, "stringData": {"accessToken": token}})).await;
    Backend::Cloud(cloud)
}

/// Returns whether the plans of a Stack require an approval. Every fifth Stack requires approvals. These Stacks use
/// different repositories.
fn requires_approval(name: &str) -> bool {
    let number: usize = name.trim_start_matches('s').parse().unwrap_or_default();
    number % 5 == 4
}

fn repository_name(repository: usize) -> String {
    format!("r{repository}")
}

/// Returns a program with four resources. Three resources form a dependency chain. Each operation takes a few seconds
/// and consists of several steps. The resource names contain the revision, and one resource changes with each revision.
fn program(number: u64) -> Value {
    let step = |name: &str, seconds: f64, value: &str| {
        let properties = json!({"name": called(name, number), "seconds": seconds, "steps": 3, "value": value});
        json!({"type": "testing:index:Step", "properties": properties})
    };
    let [first, second, third, turn] = resources_of(number);
    json!({
        "name": PROJECT,
        "runtime": "yaml",
        "resources": {
            &first: step(&first, 2.0, "one"),
            &second: step(&second, 2.0, "${first.createdAt}"),
            &third: step(&third, 3.0, "three"),
            &turn: step(&turn, 1.5, "${second.createdAt}"),
        },
        "outputs": {"revision": number},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_revision_is_encoded_in_its_resource_names() {
        let program = program(7);
        let resources = program["resources"].as_object().unwrap();
        let names: BTreeSet<&String> = resources.keys().collect();
        assert_eq!(names, resources_of(7).iter().collect());
        for (name, resource) in resources {
            assert_eq!(resource["properties"]["name"], json!(format!("{name}@7")));
        }
        assert_ne!(resources_of(7), resources_of(8), "one resource is added and one removed");
    }
}
