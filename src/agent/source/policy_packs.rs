//! Policy packs of the workspace. Each pack has a directory, whose name depends on the archive digest and on the
//! directory in the archive. The agent therefore never replaces a pack, but installs each new pack next to the existing
//! packs. The agent removes packs that the workspace no longer requires. An installed pack survives a container
//! restart.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::attempt::AttemptError;
use super::receive::{self, Parts};
use super::state::{Candidate, Desired, PolicyPack, PolicyPacks, Source};
use crate::agent::durable;
use crate::agent::install::{self, InstallError};
use crate::agent::layout::Layout;
use crate::agent::refusal::Refusal;
use crate::artifact::{Directory, InPod};
use crate::pulumi::install::InstallPlan;
use crate::pulumi::project::Project;
use crate::rpc::proto;

/// Maximum number of policy packs that a workspace can require.
const MAX_PACKS: usize = 20;
/// Name of the directory with the unpacked archive.
const TREE: &str = "tree";
/// Name of the file that records a completed installation.
const RECORD: &str = "installed.json";
/// Characters that the CLI interprets in its list of policy pack directories.
const SEPARATORS: [char; 2] = [',', '"'];
/// Error that the CLI prints if its version cannot install policy pack dependencies.
const NO_PROJECT: &str = "no Pulumi.yaml project file found";
/// Advice that follows the error [`NO_PROJECT`].
const CLI_ADVICE: &str = "Pulumi CLI 3.121.0 or later is required to install the dependencies of a policy pack";

/// Record of an installed pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Digest of the archive as `algorithm:hex`.
    digest: String,
    /// Directory of the pack in the archive.
    directory: String,
    /// Boot ID of the node when the agent installed the pack. The agent does not use the pack after a reboot, because a
    /// power loss may have damaged the pack.
    boot_id: String,
}

/// A pack that the agent has received, verified and unpacked.
struct Delivery {
    staging: PathBuf,
    archive: PathBuf,
    tree: PathBuf,
}

/// Guard that completes the installation of a pack, even after a panic. If the pack is not installed, the agent removes
/// the pack from the state, and the controller sends the pack again.
struct End<'a> {
    source: &'a Source,
    name: &'a str,
    candidate: &'a Candidate,
    is_installed: bool,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut packs = self.source.policy_packs();
        match packs.get_mut(self.name) {
            Some(pack) if self.is_installed => pack.candidate = None,
            _ => drop(packs.remove(self.name)),
        }
        drop(packs);
        self.candidate.ended.cancel();
    }
}

impl Source {
    /// Receives a policy pack, and installs it in the background. Returns whether the pack was already installed.
    pub async fn put_policy_pack(self: &Arc<Self>, mut parts: impl Parts) -> Result<bool, Refusal> {
        let header = receive::header(&mut parts).await?;
        let mut required = required(&header)?;
        let desired = Desired::try_from(header)?;
        check(&desired)?;
        let name = directory_name(&desired.artifact());
        required.insert(name.clone());
        if let Some(is_installed) = self.is_policy_pack_installed(&name) {
            return Ok(is_installed);
        }
        let _delivery = self.policy_delivery.lock().await;
        // Another call may have delivered the pack since the first check.
        if let Some(is_installed) = self.is_policy_pack_installed(&name) {
            return Ok(is_installed);
        }
        self.remove_other_packs(&required).await?;
        let delivery = self.receive_policy_pack(&mut parts, &desired).await?;
        let (artifact, (candidate, _)) = (desired.artifact(), Candidate::new(desired, &self.stop));
        let candidate = Arc::new(candidate);
        candidate.report("waiting for the end of another installation");
        let pack = PolicyPack { artifact, candidate: Some(candidate.clone()) };
        self.policy_packs().insert(name.clone(), pack);
        self.tasks.spawn(self.clone().install_policy_pack(name, candidate, delivery));
        Ok(false)
    }

    /// Stops all policy pack installations, because they would delay the source installation. The controller sends
    /// these packs again after the source installation.
    pub(super) async fn stop_policy_packs(&self) -> Result<(), Refusal> {
        let candidates: Vec<Arc<Candidate>> =
            self.policy_packs().values().filter_map(|pack| pack.candidate.clone()).collect();
        for candidate in candidates {
            candidate.supersede().await?;
        }
        Ok(())
    }

    /// Stops the installation of policy packs that a run does not enforce, because these installations would delay the
    /// run. The controller sends these packs again if the workspace still requires them.
    pub async fn stop_policy_packs_not_of(&self, request: &proto::RunRequest) -> Result<(), Refusal> {
        let enforced = enforced_by(request);
        let candidates: Vec<Arc<Candidate>> = {
            let packs = self.policy_packs();
            let others = packs.iter().filter(|(name, _)| !enforced.contains(*name));
            others.filter_map(|(_, pack)| pack.candidate.clone()).collect()
        };
        for candidate in candidates {
            candidate.supersede().await?;
        }
        Ok(())
    }

    /// Returns the states of the policy packs.
    pub fn policy_pack_states(&self) -> Vec<proto::PolicyPackState> {
        let state = |pack: &PolicyPack| {
            let progress = pack.candidate.as_ref().map(|candidate| candidate.to_proto()).unwrap_or_default();
            proto::PolicyPackState {
                artifact: Some(pack.artifact.clone()),
                installed: pack.candidate.is_none(),
                doing: progress.doing,
                failure: progress.failure,
            }
        };
        self.policy_packs().values().map(state).collect()
    }

    /// Returns the directory of an installed policy pack.
    pub fn policy_pack_directory(&self, artifact: &proto::Artifact) -> Option<PathBuf> {
        let name = directory_name(artifact);
        let directory: Directory = artifact.directory.parse().ok()?;
        let tree = self.layout.policy_packs().join(&name).join(TREE);
        (self.is_policy_pack_installed(&name) == Some(true)).then(|| directory.under(&tree))
    }

    /// Returns whether a pack is installed, or `None` if the agent has not received the pack.
    fn is_policy_pack_installed(&self, name: &str) -> Option<bool> {
        self.policy_packs().get(name).map(|pack| pack.candidate.is_none())
    }

    /// Removes the packs that the workspace does not require. During an operation, the function removes no packs,
    /// because the operation may be using them.
    async fn remove_other_packs(&self, required: &BTreeSet<String>) -> Result<(), Refusal> {
        let others: Vec<(String, Option<Arc<Candidate>>)> = {
            let packs = self.policy_packs();
            let others = packs.iter().filter(|(name, _)| !required.contains(*name));
            others.map(|(name, pack)| (name.clone(), pack.candidate.clone())).collect()
        };
        for candidate in others.iter().filter_map(|(_, candidate)| candidate.as_ref()) {
            candidate.supersede().await?;
        }
        let guard = self.workspace_lock.lock_for_source();
        if guard.is_ok() {
            for (name, _) in others {
                self.policy_packs().remove(&name);
                remove(self.layout.policy_packs().join(&name)).await;
            }
        }
        match self.policy_packs().len() < 2 * MAX_PACKS {
            true => Ok(()),
            false => Err(Refusal::Precondition("too many policy packs: waiting for the end of the run".to_owned())),
        }
    }

    async fn receive_policy_pack(&self, parts: &mut impl Parts, desired: &Desired) -> Result<Delivery, Refusal> {
        let staging = tempfile::tempdir_in(self.layout.staging())
            .map_err(Refusal::system("failed to create a staging directory"))?;
        let (archive, tree) = (staging.path().join("archive"), staging.path().join(TREE));
        tokio::select! {
            received = receive::archive(parts, desired, &archive) => received?,
            () = self.stop.cancelled() => return Err(Refusal::Precondition("the agent is shutting down".to_owned())),
        }
        receive::unpack_policy_pack(&archive, &tree, desired).await?;
        Ok(Delivery { staging: staging.keep(), archive, tree })
    }

    /// Installs the pack with retries, until the installation succeeds or the workspace no longer requires the pack.
    async fn install_policy_pack(self: Arc<Self>, name: String, candidate: Arc<Candidate>, delivery: Delivery) {
        let mut attempts = 0;
        let mut guard = candidate.enter(&self.workspace_lock).await;
        let mut end = End { source: &self, name: &name, candidate: &candidate, is_installed: false };
        while let Some(current) = guard {
            let tried = self.try_policy_pack(&name, &candidate, &delivery, attempts).await;
            drop(current);
            attempts += 1;
            guard = match tried {
                Ok(()) => {
                    end.is_installed = true;
                    None
                }
                Err(AttemptError::Stopped | AttemptError::Install(InstallError::Stopped)) => None,
                Err(error) => {
                    let retry_after = error.retry_after();
                    candidate.fail(&with_advice(error.to_string()));
                    candidate.report("waiting for the next attempt");
                    candidate.pause(attempts, retry_after, &self.workspace_lock).await
                }
            };
        }
        if end.is_installed {
            tracing::info!(digest = %candidate.desired.digest, "policy pack installed");
        } else {
            remove(self.layout.policy_packs().join(&name)).await;
        }
        drop(end);
        remove(delivery.staging).await;
    }

    async fn try_policy_pack(
        &self,
        name: &str,
        candidate: &Candidate,
        delivery: &Delivery,
        failures: u32,
    ) -> Result<(), AttemptError> {
        if failures > 0 {
            // The failed attempt has moved and changed the tree.
            receive::unpack_policy_pack(&delivery.archive, &delivery.tree, &candidate.desired).await?;
        }
        let place = self.layout.policy_packs().join(name);
        move_tree(delivery.tree.clone(), place.clone()).await?;
        self.install_or_restore(candidate, &place.join(TREE), failures).await?;
        let proto::Artifact { digest, directory } = candidate.desired.artifact();
        let record = Record { digest, directory, boot_id: self.boot_id.clone() };
        let written = serde_json::to_vec_pretty(&record)
            .map_err(std::io::Error::other)
            .and_then(|record| durable::write_atomically(&place.join(RECORD), &record));
        written.map_err(Refusal::system("failed to record the policy pack"))?;
        Ok(())
    }
}

impl Source {
    /// Installs the dependencies of the pack in `tree`, or restores the dependencies from the cache.
    async fn install_or_restore(&self, candidate: &Candidate, tree: &Path, failures: u32) -> Result<(), AttemptError> {
        let plan = self.plan_policy_pack(candidate, tree).await;
        if let Some(plan) = plan.as_ref().filter(|_| failures == 0)
            && self.restore_dependencies(candidate, plan, tree, tree).await
        {
            self.sync_caches();
            return Ok(());
        }
        self.install(candidate, &candidate.desired.directory.under(tree)).await?;
        if let Some(plan) = &plan {
            self.store_dependencies(candidate, plan, tree, None).await;
        }
        Ok(())
    }

    /// Returns the installation plan of a pack. Returns `None` if the workspace has no cache. Also returns `None` if
    /// the project file of the pack is invalid, because the CLI reports this error.
    async fn plan_policy_pack(&self, candidate: &Candidate, tree: &Path) -> Option<InstallPlan> {
        self.cache.as_ref()?;
        let directory = candidate.desired.directory.clone();
        let project = Project::read_policy_pack(&directory.under(tree)).ok()?;
        let (tree, cli) = (tree.to_owned(), self.version.get().await);
        tokio::task::spawn_blocking(move || install::plan(&tree, &directory, &project, &cli)).await.ok()
    }
}

/// Returns the policy packs that an earlier agent has installed since the last reboot of the node. The function removes
/// the directories of all other packs.
pub(super) fn recover(layout: &Layout, boot_id: &str) -> PolicyPacks {
    let mut packs = PolicyPacks::new();
    for entry in std::fs::read_dir(layout.policy_packs()).into_iter().flatten().flatten() {
        let (place, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let record = std::fs::read(place.join(RECORD)).ok();
        let record: Record = record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default();
        let artifact = proto::Artifact { digest: record.digest, directory: record.directory };
        let is_usable = record.boot_id == boot_id && name == directory_name(&artifact) && place.join(TREE).is_dir();
        if is_usable && packs.len() < 2 * MAX_PACKS {
            packs.insert(name, PolicyPack { artifact, candidate: None });
        } else if let Err(error) = durable::remove(&place) {
            tracing::warn!(path = %place.display(), %error, "failed to remove an incomplete policy pack; ignoring it");
        }
    }
    packs
}

/// Returns the directory names of the packs that a run enforces.
fn enforced_by(request: &proto::RunRequest) -> BTreeSet<String> {
    let evaluates = matches!(request.kind(), proto::OperationKind::Up | proto::OperationKind::Preview);
    let packs = request.settings.iter().filter(|_| evaluates).flat_map(|settings| &settings.policy_packs);
    packs.filter_map(|pack| pack.artifact.as_ref()).map(directory_name).collect()
}

/// Returns the directory names of all packs that the workspace requires.
fn required(header: &proto::SourceHeader) -> Result<BTreeSet<String>, Refusal> {
    let required: BTreeSet<String> = header.policy_packs.iter().chain(&header.artifact).map(directory_name).collect();
    match required.len() <= MAX_PACKS {
        true => Ok(required),
        false => Err(Refusal::Invalid(format!("a workspace can have at most {MAX_PACKS} policy packs"))),
    }
}

/// Returns an error if the pack has no archive, or if the CLI cannot parse the pack's directory path.
fn check(desired: &Desired) -> Result<(), Refusal> {
    if InPod::of(&desired.digest).is_some() {
        return Err(Refusal::Invalid("a policy pack must have an archive".to_owned()));
    }
    let directory = desired.directory.as_str();
    match directory.contains(SEPARATORS) {
        true => Err(Refusal::Invalid(format!("directory {directory:?} must not contain commas or quotation marks"))),
        false => Ok(()),
    }
}

/// Returns the directory name of a pack.
fn directory_name(artifact: &proto::Artifact) -> String {
    let hash = hex::encode(Sha256::digest(format!("{}\n{}", artifact.digest, artifact.directory)));
    hash.get(..32).unwrap_or_default().to_owned()
}

/// Moves an unpacked tree to the pack's directory, and replaces the tree from a failed attempt.
async fn move_tree(tree: PathBuf, place: PathBuf) -> Result<(), Refusal> {
    let moved = tokio::task::spawn_blocking(move || {
        durable::remove(&place)?;
        std::fs::create_dir_all(&place)?;
        durable::rename(&tree, &place.join(TREE))?;
        durable::sync_directory(&place)
    });
    let moved = moved.await.map_err(std::io::Error::other).and_then(|moved| moved);
    moved.map_err(Refusal::system("failed to move the policy pack to its directory"))
}

/// Removes a directory in a blocking task, because the directory can contain many files. The function only logs errors,
/// because the agent no longer uses the directory.
async fn remove(directory: PathBuf) {
    let removed = tokio::task::spawn_blocking(move || remove_blocking(&directory)).await;
    if let Err(error) = removed {
        tracing::warn!(%error, "failed to remove a policy pack");
    }
}

fn remove_blocking(directory: &Path) {
    if let Err(error) = durable::remove(directory) {
        tracing::warn!(path = %directory.display(), %error, "failed to remove a policy pack");
    }
}

/// Adds advice to the error that an unsuitable CLI version prints when it installs a policy pack.
fn with_advice(error: String) -> String {
    if error.contains(NO_PROJECT) { format!("{error}\n({CLI_ADVICE})") } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(digest: &str, directory: &str) -> proto::Artifact {
        proto::Artifact { digest: digest.to_owned(), directory: directory.to_owned() }
    }

    #[test]
    fn packs_of_different_archives_or_directories_have_different_directories() {
        let names = [artifact("a", ""), artifact("b", ""), artifact("a", "x"), artifact("a", "y")];
        let names: BTreeSet<String> = names.iter().map(directory_name).collect();
        assert_eq!(names.len(), 4);
        assert!(names.iter().all(|name| name.len() == 32));
    }

    #[test]
    fn the_number_of_required_packs_is_limited() {
        let header = |count: usize| proto::SourceHeader {
            artifact: Some(artifact("0", "")),
            policy_packs: (0..count).map(|number| artifact(&number.to_string(), "")).collect(),
            ..proto::SourceHeader::default()
        };
        assert_eq!(required(&header(MAX_PACKS)).map(|required| required.len()).ok(), Some(MAX_PACKS));
        assert!(required(&header(MAX_PACKS + 1)).is_err());
    }

    #[test]
    fn only_complete_packs_of_this_boot_are_recovered() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        layout.create().unwrap();
        let put = |artifact: &proto::Artifact, boot_id: Option<&str>| {
            let place = layout.policy_packs().join(directory_name(artifact));
            std::fs::create_dir_all(place.join(TREE)).unwrap();
            let proto::Artifact { digest, directory } = artifact.clone();
            if let Some(boot_id) = boot_id {
                let record = Record { digest, directory, boot_id: boot_id.to_owned() };
                std::fs::write(place.join(RECORD), serde_json::to_vec(&record).unwrap()).unwrap();
            }
        };
        let (kept, older, partial) = (artifact("a", "x"), artifact("b", ""), artifact("c", ""));
        put(&kept, Some("now"));
        put(&older, Some("before"));
        put(&partial, None);
        let packs = recover(&layout, "now");
        let found: Vec<&proto::Artifact> = packs.values().map(|pack| &pack.artifact).collect();
        assert_eq!(found, [&kept]);
        assert_eq!(std::fs::read_dir(layout.policy_packs()).unwrap().count(), 1);
    }

    #[test]
    fn an_old_cli_causes_an_error_with_advice() {
        assert!(with_advice(format!("error: {NO_PROJECT}")).contains("3.121.0"));
        assert_eq!(with_advice("other".to_owned()), "other");
    }
}
