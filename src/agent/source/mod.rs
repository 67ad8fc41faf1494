//! The source in the workspace: received, verified, unpacked beside the one in place, and exchanged with it as a whole. A
//! failure leaves the old one whole.
//!
//! What is in the pod already is taken as it is ([`in_pod`]). Of all else [`receive`] takes the bytes, [`unpack`] makes a tree of them; [`attempt`] puts it in place by the steps of [`swap`], which
//! [`record`] keeps on the disk. Until it is there it is a [`candidate`].

mod attempt;
mod candidate;
mod in_pod;
mod receive;
mod record;
mod state;
mod swap;
mod unpack;
mod wanted;

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::durable;
use super::layout::Layout;
use super::processes;
use super::refusal::Refusal;
use super::settings::Settings;
use super::version::CliVersion;
use super::workspace_lock::WorkspaceLock;
use crate::artifact::InPod;
use crate::pulumi::project::Project;
use crate::rpc::proto;

use attempt::Delivery;
use candidate::Candidate;
pub use receive::Parts;
pub use record::CurrentSource;
use record::Record;
pub use state::Source;
use state::State;
use wanted::Wanted;

impl Source {
    /// Goes on from what an agent before this one put in place, and takes back what it left half done.
    pub fn open(
        layout: Layout,
        workspace_lock: WorkspaceLock,
        settings: Arc<Settings>,
        stop: CancellationToken,
    ) -> Result<Self, Refusal> {
        let boot_id = processes::boot_id().map_err(Refusal::system("cannot read the node's boot ID"))?;
        let current_source = recover(&layout, &boot_id);
        let staging = layout.staging();
        if let Err(error) = durable::remove(&staging) {
            // Each source gets a new name in there. Not to start would only leave the pod without an agent.
            tracing::warn!(path = %staging.display(), %error, "cannot remove what was left half done; going on beside it");
        }
        std::fs::create_dir_all(&staging).map_err(Refusal::system(format!("cannot make {}", staging.display())))?;
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

    /// Leaves the installation of dependencies to the agent that goes on from here.
    pub fn without_installing(self) -> Self {
        Source { installs: false, ..self }
    }

    /// The source that can be worked with.
    pub fn current_source(&self) -> Option<CurrentSource> {
        self.lock().current_source.clone().filter(|current_source| !current_source.awaits_install)
    }

    /// The name of the project in place. Empty without one, and when its file is wrong: the run says what is wrong with it.
    pub fn project_name(&self) -> String {
        let project = self.current_source().and_then(|_| Project::read(&self.layout.workspace()).ok());
        project.map(|project| project.name).unwrap_or_default()
    }

    /// Whether one is in place and none on its way. It may still have to wait for its dependencies.
    pub fn is_settled(&self) -> bool {
        let state = self.lock();
        state.current_source.is_some() && state.candidate.is_none()
    }

    /// The source that is on its way.
    pub fn candidate(&self) -> Option<proto::Candidate> {
        self.lock().candidate.as_ref().map(|candidate| candidate.to_proto())
    }

    /// Installs what the source in place still needs.
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

    /// Receives a source and puts it in place, or sees to it that it gets there; true when it was there before.
    pub async fn put(self: &Arc<Self>, mut parts: impl Parts) -> Result<bool, Refusal> {
        let wanted = Wanted::try_from(receive::header(&mut parts).await?)?;
        if let Some(was_in_place) = self.known(&wanted).await? {
            return Ok(was_in_place);
        }
        let pass = self.workspace_lock.enter_source()?;
        // Another call may have brought it in between.
        if let Some(was_in_place) = self.known(&wanted).await? {
            return Ok(was_in_place);
        }
        self.refuse_another_pods()?;
        if let Some(in_pod) = InPod::of(&wanted.digest) {
            return self.adopt(in_pod, wanted, pass).map(|()| false);
        }
        let delivery = self.deliver(&mut parts, &wanted).await?;
        let (candidate, answer) = Candidate::new(wanted, &self.stop);
        let candidate = Arc::new(candidate);
        self.lock().candidate = Some(candidate.clone());
        self.tasks.spawn(self.clone().bring(candidate, delivery, pass));
        match answer.await {
            Ok(answer) => answer.map(|()| false),
            Err(_) => Err(Refusal::Precondition("a bug in the agent kept the source from its place".to_owned())),
        }
    }

    /// Whether the source is in place, or on its way: then false. None when neither. Another one on its way gives way.
    async fn known(&self, wanted: &Wanted) -> Result<Option<bool>, Refusal> {
        let candidate = self.lock().candidate.clone();
        match candidate {
            Some(candidate) if candidate.wanted.is_same(wanted) => return Ok(Some(false)),
            Some(other) => other.give_way().await?,
            None => {}
        }
        Ok(self.is_in_place(wanted).then_some(true))
    }

    /// Receives, verifies and unpacks.
    async fn deliver(&self, parts: &mut impl Parts, wanted: &Wanted) -> Result<Delivery, Refusal> {
        let staging =
            tempfile::tempdir_in(self.layout.staging()).map_err(Refusal::system("cannot make room to unpack"))?;
        let (archive, tree) = (staging.path().join("archive"), staging.path().join("tree"));
        tokio::select! {
            received = receive::archive(parts, wanted, &archive) => received?,
            () = self.stop.cancelled() => return Err(Refusal::Precondition("the agent ends".to_owned())),
        }
        let project = unpack::unpack(&archive, &tree, wanted).await?;
        let plan = self.plan(&tree, wanted, project).await?;
        if plan.is_none() {
            // There will be one attempt.
            durable::remove(&archive).map_err(Refusal::system("cannot remove the archive"))?;
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

/// What is in place, as far as it is certain: without a record, without the tree that it speaks of, and after another boot of
/// the node, nothing is.
fn recover(layout: &Layout, boot_id: &str) -> Option<CurrentSource> {
    let Record { current_source, trial } = Record::read(layout);
    if let Some(trial) = &trial {
        tracing::warn!(?trial, "an agent ended before a source was in place: putting back the one before");
        if let Err(error) = swap::take_back(layout, current_source.as_ref(), trial) {
            tracing::error!(%error, "cannot put back the source before: it has to be given again");
            return None;
        }
    }
    let current_source = current_source.filter(|current_source| {
        let is_of_this_boot = current_source.boot_id == boot_id;
        if !is_of_this_boot {
            tracing::warn!(
                digest = current_source.digest,
                "the source was put in place before the node was restarted: it has to be given again"
            );
        }
        is_of_this_boot
    });
    current_source.filter(|current_source| {
        match current_source.digest.parse().ok().and_then(|digest| InPod::of(&digest)) {
            // A container that was started anew has its image as it was: what was written into the project is gone.
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
