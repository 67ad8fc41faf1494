//! The source in the workspace: received, verified, unpacked beside the one in place, and exchanged with it as a whole. A
//! failure leaves the old one whole.

mod receive;
mod swap;
mod unpack;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::durable;
use super::gate::Gate;
use super::install;
use super::layout::Layout;
use super::processes;
use super::refusal::Refusal;
use super::settings::Settings;
use crate::artifact::{Digest, Directory};
use crate::rpc::proto;

pub use receive::Parts;

/// What is in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InPlace {
    /// `algorithm:hex` of the archive.
    pub digest: String,
    /// The project's directory in the archive.
    pub directory: String,
    /// Random for each source that is put in place, also for the same archive.
    pub tree: String,
    /// It was put in place where there is no CLI: its dependencies are installed before it counts as in place.
    #[serde(default)]
    pub awaits_install: bool,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    digest: Digest,
    directory: Directory,
    /// Size of the archive in bytes.
    size: u64,
}

/// Puts sources in place.
pub struct Source {
    layout: Layout,
    gate: Gate,
    settings: Arc<Settings>,
    in_place: Mutex<Option<InPlace>>,
    /// Ends an installation when the agent is to end.
    stop: CancellationToken,
    /// Whether there is a CLI that installs dependencies.
    installs: bool,
}

impl Source {
    /// Goes on from what an agent before this one put in place, and removes what it left half done.
    pub fn open(layout: Layout, gate: Gate, settings: Arc<Settings>, stop: CancellationToken) -> Result<Self, Refusal> {
        let staging = layout.staging();
        if let Err(error) = durable::remove(&staging) {
            // Each source gets a new name in there. Not to start would only leave the pod without an agent.
            tracing::warn!(path = %staging.display(), %error, "cannot remove what was left half done; going on beside it");
        }
        std::fs::create_dir_all(&staging).map_err(Refusal::system(format!("cannot make {}", staging.display())))?;
        let in_place = swap::read_record(&layout);
        Ok(Source { layout, gate, settings, in_place: Mutex::new(in_place), stop, installs: true })
    }

    /// Leaves the installation of dependencies to the agent that goes on from here.
    pub fn without_installing(self) -> Self {
        Source { installs: false, ..self }
    }

    /// The source that can be worked with.
    pub fn in_place(&self) -> Option<InPlace> {
        self.lock().clone().filter(|in_place| !in_place.awaits_install)
    }

    /// Receives a source and puts it in place; true when it was there before.
    pub async fn put(&self, mut parts: impl Parts) -> Result<bool, Refusal> {
        let wanted = Wanted::try_from(receive::header(&mut parts).await?)?;
        if self.is_in_place(&wanted) {
            return Ok(true);
        }
        let _pass = self.gate.enter_source()?;
        // Another call may have put it in place in between.
        if self.is_in_place(&wanted) {
            return Ok(true);
        }
        if self.awaits_install(&wanted) {
            return self.install_in_place(&wanted).await.map(|()| false);
        }
        let staging =
            tempfile::tempdir_in(self.layout.staging()).map_err(Refusal::system("cannot make room to unpack"))?;
        let archive = staging.path().join("archive");
        tokio::select! {
            received = receive::archive(&mut parts, &wanted, &archive) => received?,
            () = self.stop.cancelled() => return Err(Refusal::Precondition("the agent ends".to_owned())),
        }
        let tree = staging.path().join("tree");
        let project = unpack::unpack(&archive, &tree, &wanted.directory).await?;
        durable::remove(&archive).map_err(Refusal::system("cannot remove the archive"))?;
        let needs_install = project.needs_install();
        if needs_install && self.installs {
            install::install(&self.layout, &wanted.directory.under(&tree), &self.stop).await?;
        }
        self.refuse_beside_a_person()?;
        self.exchange(&wanted, &tree, needs_install && !self.installs)?;
        // The source before the previous one is in there, and it may have very many files.
        let staging = staging.keep();
        let removed = tokio::task::spawn_blocking(move || durable::remove(&staging));
        let removed = removed.await.map_err(std::io::Error::other);
        if let Err(error) = removed.and_then(|removed| removed) {
            tracing::warn!(%error, "cannot remove an old source");
        }
        tracing::info!(digest = %wanted.digest, directory = wanted.directory.as_str(), "source in place");
        Ok(false)
    }

    /// For a source that came before there was a CLI. The user's init containers have worked on it: it is not exchanged.
    async fn install_in_place(&self, wanted: &Wanted) -> Result<(), Refusal> {
        install::install(&self.layout, &wanted.directory.under(&self.layout.source()), &self.stop).await?;
        let mut in_place = self.lock();
        if let Some(record) = in_place.as_mut() {
            let installed = InPlace { awaits_install: false, ..record.clone() };
            swap::write_record(&self.layout, &installed)
                .map_err(Refusal::system("cannot record that the dependencies are installed"))?;
            *record = installed;
        }
        Ok(())
    }

    fn exchange(&self, wanted: &Wanted, tree: &Path, awaits_install: bool) -> Result<(), Refusal> {
        self.settings.keep(self.in_place().as_ref());
        let next = InPlace {
            digest: wanted.digest.to_string(),
            directory: wanted.directory.as_str().to_owned(),
            tree: uuid::Uuid::new_v4().to_string(),
            awaits_install,
        };
        let mut in_place = self.lock();
        let before = in_place.take();
        match swap::swap(&self.layout, tree, &wanted.directory, before.as_ref(), &next) {
            Ok(()) => {
                *in_place = Some(next);
                Ok(())
            }
            Err(error) => {
                *in_place = swap::read_record(&self.layout);
                Err(error)
            }
        }
    }

    fn is_in_place(&self, wanted: &Wanted) -> bool {
        self.lock().as_ref().is_some_and(|in_place| wanted.is(in_place) && !(in_place.awaits_install && self.installs))
    }

    fn awaits_install(&self, wanted: &Wanted) -> bool {
        self.installs && self.lock().as_ref().is_some_and(|in_place| wanted.is(in_place) && in_place.awaits_install)
    }

    /// A person's own `pulumi` in the source must not lose the ground under it.
    fn refuse_beside_a_person(&self) -> Result<(), Refusal> {
        let source = std::fs::canonicalize(self.layout.source()).unwrap_or_else(|_| self.layout.source());
        let living = processes::living().map_err(Refusal::system("cannot look for other processes"))?;
        let is_at_work = |process: &&processes::Process| {
            process.name == "pulumi"
                && processes::working_directory(process.pid).is_some_and(|directory| directory.starts_with(&source))
        };
        match living.iter().find(is_at_work) {
            None => Ok(()),
            Some(process) => Err(Refusal::Precondition(format!(
                "cannot exchange the source: somebody runs pulumi in it (process {}); wait for it to end",
                process.pid
            ))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<InPlace>> {
        self.in_place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wanted {
    fn is(&self, in_place: &InPlace) -> bool {
        in_place.digest == self.digest.to_string() && in_place.directory == self.directory.as_str()
    }
}

impl TryFrom<proto::SourceHeader> for Wanted {
    type Error = Refusal;

    fn try_from(header: proto::SourceHeader) -> Result<Self, Refusal> {
        let artifact = header.artifact.ok_or_else(|| Refusal::Invalid("the header names no artifact".to_owned()))?;
        Ok(Wanted {
            digest: artifact.digest.parse().map_err(|error: crate::artifact::DigestError| invalid(&error))?,
            directory: artifact.directory.parse().map_err(|error: crate::artifact::DirectoryError| invalid(&error))?,
            size: header.size,
        })
    }
}

fn invalid(error: &dyn std::error::Error) -> Refusal {
    Refusal::Invalid(error.to_string())
}

#[cfg(test)]
mod tests;
