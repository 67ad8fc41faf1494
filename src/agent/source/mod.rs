//! The source of the workspace. The agent receives, verifies and unpacks a new source next to the current source, and
//! then replaces the current source. After a failure or a crash, the agent restores the current source.
//!
//! [`in_pod`] handles a source that is already in the pod. For all other sources, [`receive`] receives and unpacks the
//! archive, and [`attempt`] installs the unpacked tree. [`swap`] contains the steps of the replacement, and records
//! them on disk. A source whose installation is not complete is a candidate: see [`state`].
//!
//! [`policy_packs`] installs policy packs next to the source. [`dependencies`] uses the dependency cache.

mod attempt;
mod dependencies;
mod in_pod;
mod policy_packs;
mod receive;
mod state;
mod swap;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::command::CliVersion;
use super::durable;
use super::install::cache::DependencyCache;
use super::layout::Layout;
use super::processes;
use super::refusal::Refusal;
use super::settings::Settings;
use super::workspace_lock::WorkspaceLock;
use crate::artifact::InPod;
use crate::pulumi::project::Project;
use crate::rpc::proto;

use attempt::Delivery;
pub use receive::Parts;
pub use state::Source;
use state::{Candidate, Desired, State};
pub use swap::CurrentSource;
use swap::Record;

/// Timeout for the sync of a persistent volume during the agent's shutdown.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

impl Source {
    /// Loads the current source that a previous agent has recorded, and reverts an incomplete replacement.
    pub fn open(
        layout: Layout,
        workspace_lock: WorkspaceLock,
        settings: Arc<Settings>,
        stop: CancellationToken,
    ) -> Result<Self, Refusal> {
        let boot_id = processes::boot_id().map_err(Refusal::system("failed to read the boot ID of the node"))?;
        let current_source = recover(&layout, &boot_id);
        let staging = layout.staging();
        if let Err(error) = durable::remove(&staging) {
            // This error is not fatal: each source has a unique name in this directory, so remaining files do not
            // conflict with a new source.
            tracing::warn!(path = %staging.display(), %error, "failed to remove incomplete sources; ignoring them");
        }
        std::fs::create_dir_all(&staging)
            .map_err(Refusal::system(format!("failed to create {}", staging.display())))?;
        let version = CliVersion::new(layout.clone(), TaskTracker::new());
        let policy_packs = Mutex::new(policy_packs::recover(&layout, &boot_id));
        let state = Mutex::new(State { current_source, candidate: None });
        Ok(Source {
            layout,
            workspace_lock,
            settings,
            boot_id,
            state,
            policy_packs,
            policy_delivery: tokio::sync::Mutex::default(),
            stop,
            tasks: TaskTracker::new(),
            version,
            cache: None,
            first_plugins: Vec::new(),
            installs: true,
        })
    }

    /// Sets the dependency cache.
    pub fn with_cache(self, cache: Option<DependencyCache>) -> Self {
        let first_plugins = if cache.is_some() { dependencies::installed_plugins(&self.layout) } else { Vec::new() };
        Source { cache, first_plugins, ..self }
    }

    /// Disables the installation of dependencies for the `fetch` role. The agent installs the dependencies after it
    /// starts.
    pub fn without_installing(self) -> Self {
        Source { installs: false, ..self }
    }

    /// Returns the current source, or `None` if runs cannot use a source yet.
    pub fn current_source(&self) -> Option<CurrentSource> {
        self.lock().current_source.clone().filter(|current_source| !current_source.awaits_install)
    }

    /// Returns the name of the current project. Returns an empty string if no project exists, or if the project file is
    /// invalid. The next run reports an invalid project file.
    pub fn project_name(&self) -> String {
        let project = self.current_source().and_then(|_| Project::read(&self.layout.workspace()).ok());
        project.map(|project| project.name).unwrap_or_default()
    }

    /// Returns whether a current source exists and the agent is not installing a candidate. The current source's
    /// dependencies may still be missing.
    pub fn is_settled(&self) -> bool {
        let state = self.lock();
        state.current_source.is_some() && state.candidate.is_none()
    }

    /// Returns the candidate, which is the source that the agent is currently installing.
    pub fn candidate(&self) -> Option<proto::Candidate> {
        self.lock().candidate.as_ref().map(|candidate| candidate.to_proto())
    }

    /// Starts to install the current source's missing dependencies in the background.
    pub fn resume(self: &Arc<Self>) {
        let mut state = self.lock();
        let Some(current_source) =
            state.current_source.clone().filter(|current_source| current_source.awaits_install && self.installs)
        else {
            return;
        };
        let Some(desired) = Desired::awaited(&current_source) else { return };
        let candidate = Arc::new(Candidate::new(desired, &self.stop).0);
        state.candidate = Some(candidate.clone());
        self.tasks.spawn(self.clone().install_awaited(candidate, current_source));
    }

    /// Receives a source and installs it. Returns before a long step, such as the installation of dependencies, which
    /// continues in the background. Returns whether the source was already installed.
    pub async fn put(self: &Arc<Self>, mut parts: impl Parts) -> Result<bool, Refusal> {
        let desired = Desired::try_from(receive::header(&mut parts).await?)?;
        if let Some(was_in_place) = self.known(&desired).await? {
            return Ok(was_in_place);
        }
        self.stop_policy_packs().await?;
        let guard = self.workspace_lock.lock_for_source()?;
        // Another call may have installed the source since the first check.
        if let Some(was_in_place) = self.known(&desired).await? {
            return Ok(was_in_place);
        }
        self.refuse_replacing_pod_source()?;
        if let Some(in_pod) = InPod::of(&desired.digest) {
            return self.adopt(in_pod, desired, guard).map(|()| false);
        }
        let delivery = self.deliver(&mut parts, &desired).await?;
        let (candidate, reply) = Candidate::new(desired, &self.stop);
        let candidate = Arc::new(candidate);
        self.lock().candidate = Some(candidate.clone());
        self.tasks.spawn(self.clone().put_with_retries(candidate, delivery, guard));
        match reply.await {
            Ok(reply) => reply.map(|()| false),
            Err(_) => {
                Err(Refusal::Precondition("internal error in the agent: the source was not installed".to_owned()))
            }
        }
    }

    /// Returns `true` if the source is already installed, `false` if the source is the candidate, and `None` otherwise.
    /// The function cancels the candidate if the candidate is a different source.
    async fn known(&self, desired: &Desired) -> Result<Option<bool>, Refusal> {
        let candidate = self.lock().candidate.clone();
        match candidate {
            Some(candidate) if candidate.desired.has_same_source(desired) => return Ok(Some(false)),
            Some(other) => other.supersede().await?,
            None => {}
        }
        let is_in_place = self.is_in_place(desired);
        if is_in_place {
            self.record_environment(desired)?;
        }
        Ok(is_in_place.then_some(true))
    }

    /// Records the environment for the installation if the dependencies of the current source are missing. On a
    /// persistent volume, the record can contain the environment of a previous pod, which may have mounted other Secrets.
    fn record_environment(&self, desired: &Desired) -> Result<(), Refusal> {
        let mut state = self.lock();
        let Some(current_source) = state.current_source.as_mut().filter(|current_source| current_source.awaits_install)
        else {
            return Ok(());
        };
        let next = CurrentSource { header: desired.to_header(), ..current_source.clone() };
        Record { current_source: Some(next.clone()), trial: None }
            .write(&self.layout)
            .map_err(Refusal::system("failed to record the current source"))?;
        *current_source = next;
        Ok(())
    }

    /// Receives, verifies and unpacks a source.
    async fn deliver(&self, parts: &mut impl Parts, desired: &Desired) -> Result<Delivery, Refusal> {
        let staging = tempfile::tempdir_in(self.layout.staging())
            .map_err(Refusal::system("failed to create a staging directory"))?;
        let (archive, tree) = (staging.path().join("archive"), staging.path().join("tree"));
        tokio::select! {
            received = receive::archive(parts, desired, &archive) => received?,
            () = self.stop.cancelled() => return Err(Refusal::Precondition("the agent is shutting down".to_owned())),
        }
        let project = receive::unpack(&archive, &tree, desired).await?;
        let plan = self.plan(&tree, desired, project).await?;
        if plan.is_none() {
            // Removes the archive, because the agent needs the archive only to repeat an installation.
            durable::remove(&archive).map_err(Refusal::system("failed to remove the archive"))?;
        }
        Ok(Delivery { directory: staging.keep(), archive, tree, plan })
    }

    /// Syncs the source on a persistent volume to the disk before the agent exits, so that the next pod can use the
    /// source on any node.
    pub async fn sync_for_next_pod(&self) {
        let current_source = self.lock().current_source.clone().filter(|_| self.layout.owner().is_file());
        let Some(current_source) = current_source.filter(|_| self.is_settled()) else { return };
        let layout = self.layout.clone();
        let syncing = tokio::task::spawn_blocking(move || {
            durable::sync_filesystem(layout.root())?;
            let synced = CurrentSource { is_synced: true, ..current_source };
            Record { current_source: Some(synced), trial: None }.write(&layout)
        });
        let synced = tokio::time::timeout(SYNC_TIMEOUT, syncing).await.map_err(|_| std::io::ErrorKind::TimedOut.into());
        let synced = synced.and_then(|synced| synced.map_err(std::io::Error::other)).and_then(|synced| synced);
        if let Err(error) = synced {
            tracing::warn!(%error, "failed to sync the source: on another node, the next pod installs the source again");
        }
    }

    fn is_in_place(&self, desired: &Desired) -> bool {
        let is_usable = |current_source: &CurrentSource| !(current_source.awaits_install && self.installs);
        self.lock().current_source.as_ref().is_some_and(|current_source| {
            current_source.digest == desired.digest.to_string()
                && current_source.directory == desired.directory.as_str()
                && is_usable(current_source)
        })
    }
}

/// Returns the current source. Returns `None` if the record or its tree is missing, or if the node has rebooted since
/// the agent installed the source.
fn recover(layout: &Layout, boot_id: &str) -> Option<CurrentSource> {
    let Record { current_source, trial } = Record::read(layout);
    match &trial {
        Some(trial) => {
            tracing::warn!(?trial, "an earlier agent ended while it installed a source: restoring the previous source");
            if let Err(error) = swap::restore(layout, current_source.as_ref(), trial) {
                tracing::error!(%error, "failed to restore the previous source; the controller must deliver a source");
                return None;
            }
        }
        // An earlier agent may have ended directly after it recorded the end of a trial.
        None => swap::keep_previous(layout, &layout.staging().join("older")),
    }
    let current_source = current_source.and_then(|current_source| adopt_synced(layout, current_source, boot_id));
    let current_source = current_source.filter(|current_source| {
        let is_of_this_boot = current_source.boot_id == boot_id;
        if !is_of_this_boot {
            tracing::warn!(
                digest = current_source.digest,
                "the node was rebooted after the source was installed; the controller must deliver a source"
            );
        }
        is_of_this_boot
    });
    current_source.filter(|current_source| {
        match current_source.digest.parse().ok().and_then(|digest| InPod::of(&digest)) {
            // A restarted container starts from the original image, so the dependencies that the agent installed are
            // missing.
            Some(InPod::Image) => false,
            Some(InPod::InitContainers) => layout.workspace().is_dir(),
            None => layout.source().is_dir() && is_link_to_directory(&layout.workspace()),
        }
    })
}

/// If the previous pod's agent has synced the source on a persistent volume, the function records the node's current
/// boot ID for the source. Returns `None` if the function cannot write the record. Otherwise, the old record would
/// still mark the source as synced, and the next agent could use a damaged source after a power loss.
fn adopt_synced(layout: &Layout, current_source: CurrentSource, boot_id: &str) -> Option<CurrentSource> {
    if !current_source.is_synced {
        return Some(current_source);
    }
    let adopted = CurrentSource { boot_id: boot_id.to_owned(), is_synced: false, ..current_source };
    let record = Record { current_source: Some(adopted.clone()), trial: None };
    match record.write(layout) {
        Ok(()) => Some(adopted),
        Err(error) => {
            tracing::error!(%error, "failed to record the source of the previous pod; the controller must deliver a source");
            None
        }
    }
}

fn is_link_to_directory(path: &Path) -> bool {
    path.is_symlink() && path.is_dir()
}

#[cfg(test)]
mod tests;
