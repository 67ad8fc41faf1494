//! The source in the workspace: received, verified, unpacked next to the current one, and exchanged with it atomically.
//! A failure leaves the current source intact.
//!
//! [`in_pod`] uses a source that is already in the pod. For all others, [`receive`] takes the bytes and unpacks them;
//! [`attempt`] puts the tree in place with the steps of [`swap`], which are recorded on disk. Until then, the source is
//! a candidate: see [`state`].

mod attempt;
mod in_pod;
mod receive;
mod state;
mod swap;

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::command::CliVersion;
use super::durable;
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
use state::{Candidate, State, Wanted};
pub use swap::CurrentSource;
use swap::Record;

impl Source {
    /// Loads the current source of a previous agent and reverts an unfinished exchange.
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
            // Each source gets a new name in this directory. A failed start would only leave the pod without an agent.
            tracing::warn!(path = %staging.display(), %error, "failed to remove incomplete sources; ignoring them");
        }
        std::fs::create_dir_all(&staging)
            .map_err(Refusal::system(format!("failed to create {}", staging.display())))?;
        let version = CliVersion::new(layout.clone(), TaskTracker::new());
        let state = Mutex::new(State { current_source, candidate: None });
        Ok(Source {
            layout,
            workspace_lock,
            settings,
            boot_id,
            state,
            stop,
            tasks: TaskTracker::new(),
            version,
            installs: true,
        })
    }

    /// Leaves the installation of dependencies to the agent that starts later.
    pub fn without_installing(self) -> Self {
        Source { installs: false, ..self }
    }

    /// Returns the current source if it is ready for runs.
    pub fn current_source(&self) -> Option<CurrentSource> {
        self.lock().current_source.clone().filter(|current_source| !current_source.awaits_install)
    }

    /// Returns the name of the current project. Empty if there is none or its project file is invalid, which the run
    /// reports.
    pub fn project_name(&self) -> String {
        let project = self.current_source().and_then(|_| Project::read(&self.layout.workspace()).ok());
        project.map(|project| project.name).unwrap_or_default()
    }

    /// Returns whether a source is in place and none is on its way. Its dependencies can still be missing.
    pub fn is_settled(&self) -> bool {
        let state = self.lock();
        state.current_source.is_some() && state.candidate.is_none()
    }

    /// Returns the source that is on its way.
    pub fn candidate(&self) -> Option<proto::Candidate> {
        self.lock().candidate.as_ref().map(|candidate| candidate.to_proto())
    }

    /// Installs missing dependencies of the current source.
    pub fn resume(self: &Arc<Self>) {
        let mut state = self.lock();
        let Some(current_source) =
            state.current_source.clone().filter(|current_source| current_source.awaits_install && self.installs)
        else {
            return;
        };
        let (Ok(digest), Ok(directory)) = (current_source.digest.parse(), current_source.directory.parse()) else {
            return;
        };
        let (limits, environment, required_directories) = Default::default();
        let wanted = Wanted { digest, directory, size: 0, limits, environment, required_directories };
        let candidate = Arc::new(Candidate::new(wanted, &self.stop).0);
        state.candidate = Some(candidate.clone());
        self.tasks.spawn(self.clone().install_awaited(candidate, current_source));
    }

    /// Receives a source and puts it in place, in the background if that takes longer. Returns whether it was in place
    /// before.
    pub async fn put(self: &Arc<Self>, mut parts: impl Parts) -> Result<bool, Refusal> {
        let wanted = Wanted::try_from(receive::header(&mut parts).await?)?;
        if let Some(was_in_place) = self.known(&wanted).await? {
            return Ok(was_in_place);
        }
        let guard = self.workspace_lock.lock_for_source()?;
        // Another call can have put it in place meanwhile.
        if let Some(was_in_place) = self.known(&wanted).await? {
            return Ok(was_in_place);
        }
        self.refuse_replacing_pod_source()?;
        if let Some(in_pod) = InPod::of(&wanted.digest) {
            return self.adopt(in_pod, wanted, guard).map(|()| false);
        }
        let delivery = self.deliver(&mut parts, &wanted).await?;
        let (candidate, answer) = Candidate::new(wanted, &self.stop);
        let candidate = Arc::new(candidate);
        self.lock().candidate = Some(candidate.clone());
        self.tasks.spawn(self.clone().put_with_retries(candidate, delivery, guard));
        match answer.await {
            Ok(answer) => answer.map(|()| false),
            Err(_) => {
                Err(Refusal::Precondition("internal error in the agent: the source was not put in place".to_owned()))
            }
        }
    }

    /// Returns whether the source is in place (`true`) or on its way (`false`), and `None` otherwise. Cancels another
    /// source that is on its way.
    async fn known(&self, wanted: &Wanted) -> Result<Option<bool>, Refusal> {
        let candidate = self.lock().candidate.clone();
        match candidate {
            Some(candidate) if candidate.wanted.is_same(wanted) => return Ok(Some(false)),
            Some(other) => other.supersede().await?,
            None => {}
        }
        Ok(self.is_in_place(wanted).then_some(true))
    }

    /// Receives, verifies and unpacks a source.
    async fn deliver(&self, parts: &mut impl Parts, wanted: &Wanted) -> Result<Delivery, Refusal> {
        let staging = tempfile::tempdir_in(self.layout.staging())
            .map_err(Refusal::system("failed to create a staging directory"))?;
        let (archive, tree) = (staging.path().join("archive"), staging.path().join("tree"));
        tokio::select! {
            received = receive::archive(parts, wanted, &archive) => received?,
            () = self.stop.cancelled() => return Err(Refusal::Precondition("the agent is shutting down".to_owned())),
        }
        let project = receive::unpack(&archive, &tree, wanted).await?;
        let plan = self.plan(&tree, wanted, project).await?;
        if plan.is_none() {
            // Without an installation there are no retries, which would need the archive.
            durable::remove(&archive).map_err(Refusal::system("failed to remove the archive"))?;
        }
        Ok(Delivery { directory: staging.keep(), archive, tree, plan })
    }

    fn is_in_place(&self, wanted: &Wanted) -> bool {
        let is_usable = |current_source: &CurrentSource| !(current_source.awaits_install && self.installs);
        self.lock().current_source.as_ref().is_some_and(|current_source| {
            current_source.digest == wanted.digest.to_string()
                && current_source.directory == wanted.directory.as_str()
                && is_usable(current_source)
        })
    }
}

/// Returns the current source. There is none without a record or the recorded tree, or after a reboot of the node.
fn recover(layout: &Layout, boot_id: &str) -> Option<CurrentSource> {
    let Record { current_source, trial } = Record::read(layout);
    if let Some(trial) = &trial {
        tracing::warn!(?trial, "an earlier agent ended during the trial of a source: restoring the previous source");
        if let Err(error) = swap::restore(layout, current_source.as_ref(), trial) {
            tracing::error!(%error, "failed to restore the previous source: a source must be delivered again");
            return None;
        }
    }
    let current_source = current_source.filter(|current_source| {
        let is_of_this_boot = current_source.boot_id == boot_id;
        if !is_of_this_boot {
            tracing::warn!(
                digest = current_source.digest,
                "the node was rebooted after the source was put in place: a source must be delivered again"
            );
        }
        is_of_this_boot
    });
    current_source.filter(|current_source| {
        match current_source.digest.parse().ok().and_then(|digest| InPod::of(&digest)) {
            // A restarted container starts from the original image and loses the changes in the project.
            Some(InPod::Image) => false,
            Some(InPod::InitContainers) => layout.workspace().is_dir(),
            None => layout.source().is_dir() && is_link_to_directory(&layout.workspace()),
        }
    })
}

fn is_link_to_directory(path: &Path) -> bool {
    path.is_symlink() && path.is_dir()
}

#[cfg(test)]
mod tests;
