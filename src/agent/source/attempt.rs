//! Installs a source, with retries.
//!
//! The agent installs dependencies at the final path of the source, because virtual environments and links to local
//! packages contain absolute paths. An installation at this path is the *trial* of the source. During the trial, no run
//! can start. If the installation fails, the agent restores the previous source.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::state::{Candidate, Desired, POLL, Source, State};
use super::swap::{CurrentSource, Record, Trial};
use super::{receive, swap};
use crate::agent::install::carry::Copying;
use crate::agent::install::{self, InstallError, carry};
use crate::agent::refusal::Refusal;
use crate::agent::workspace_lock::WorkspaceGuard;
use crate::agent::{durable, interactive_session, mounts};
use crate::artifact::InPod;
use crate::pulumi::install::python::is_in_empty_environment;
use crate::pulumi::install::{Carry, InstallPlan, Installed};
use crate::pulumi::project::Project;

/// Maximum time that an installation waits until the kubelet has mounted the Secrets and ConfigMaps for its
/// environment.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(150);

/// Cause of a failed attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The controller has requested another source, or the agent is shutting down.
    #[error("the source is no longer requested")]
    Stopped,
    /// The pod has no current source, because the agent could not restore the previous source.
    #[error("failed to restore the previous source: {0}")]
    Lost(std::io::Error),
}

impl AttemptError {
    /// Returns the minimum time before the next attempt, if a server limits the number of requests.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            AttemptError::Install(InstallError::Failed { retry_after, .. }) => *retry_after,
            _ => None,
        }
    }
}

/// A source that the agent has received, verified and unpacked. A failed trial moves the source back to the directory of
/// the delivery, so the agent removes the directory only after the last attempt.
pub(super) struct Delivery {
    pub directory: PathBuf,
    pub archive: PathBuf,
    pub tree: PathBuf,
    pub plan: Option<InstallPlan>,
}

/// Removes a candidate from the state when its installation ends, even after a panic.
struct End<'a> {
    source: &'a Source,
    candidate: &'a Arc<Candidate>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.source.lock();
        state.candidate.take_if(|candidate| Arc::ptr_eq(candidate, self.candidate));
        if std::thread::panicking() {
            // The panic may have interrupted a trial and left an incomplete tree at the path of the source. The pod
            // therefore has no current source until the agent installs another source or restarts.
            state.current_source = None;
        }
        drop(state);
        self.candidate.ended.cancel();
    }
}

impl Source {
    /// Installs the source with retries, until the installation succeeds or the controller no longer requests the
    /// source.
    pub(super) async fn put_with_retries(
        self: Arc<Self>,
        candidate: Arc<Candidate>,
        delivery: Delivery,
        guard: WorkspaceGuard,
    ) {
        let end = End { source: &self, candidate: &candidate };
        let mut guard = Some(guard);
        let mut attempts = 0;
        while let Some(current) = guard {
            let tried = self.attempt(&candidate, &delivery, attempts).await;
            drop(current);
            attempts += 1;
            guard = self.after(tried, attempts, &candidate).await;
            if guard.is_some()
                && let Err(error) = unpack_again(&delivery, &candidate.desired).await
            {
                candidate.fail(&error.to_string());
                break;
            }
        }
        drop(end);
        // Removes the directory after the reply to the call, because the directory can contain an old source with many
        // files.
        let removed = tokio::task::spawn_blocking(move || durable::remove(&delivery.directory)).await;
        if let Err(error) = removed.map_err(std::io::Error::other).and_then(|removed| removed) {
            tracing::warn!(%error, "failed to remove an old source");
        }
    }

    /// Installs the missing dependencies of the current source.
    pub(super) async fn install_awaited(self: Arc<Self>, candidate: Arc<Candidate>, current_source: CurrentSource) {
        let _end = End { source: &self, candidate: &candidate };
        let mut attempts = 0;
        let mut guard = candidate.enter(&self.workspace_lock).await;
        while let Some(current) = guard {
            let tried = self.attempt_awaited(&candidate, &current_source).await;
            drop(current);
            attempts += 1;
            guard = self.after(tried, attempts, &candidate).await;
        }
    }

    /// Handles the outcome of an attempt. Returns the guard for the next attempt, or `None` if there is no next
    /// attempt.
    async fn after(
        &self,
        tried: Result<(), AttemptError>,
        attempts: u32,
        candidate: &Candidate,
    ) -> Option<WorkspaceGuard> {
        let error = match tried {
            Ok(()) => {
                let Desired { digest, directory, .. } = &candidate.desired;
                tracing::info!(%digest, directory = directory.as_str(), "source installed");
                candidate.reply(Ok(()));
                return None;
            }
            Err(error) => error,
        };
        match error {
            AttemptError::Stopped | AttemptError::Install(InstallError::Stopped) => {
                tracing::info!(digest = %candidate.desired.digest, "the source is no longer requested");
                candidate.reply(Err(Refusal::Precondition(
                    "another source is requested, or the agent is shutting down".to_owned(),
                )));
                None
            }
            // The caller of `PutSource` receives the error, and retries the call.
            AttemptError::Refused(refusal) if !candidate.has_replied() => {
                candidate.reply(Err(refusal));
                None
            }
            AttemptError::Lost(error) => {
                tracing::error!(%error, "failed to restore the previous source; the controller must deliver a source");
                candidate.reply(Err(Refusal::system("failed to restore the previous source")(error)));
                None
            }
            error => {
                candidate.fail(&error.to_string());
                candidate.report("waiting for the next attempt");
                candidate.pause(attempts, error.retry_after(), &self.workspace_lock).await
            }
        }
    }

    /// Attempts to install the source. `failures` is the number of previous failed attempts.
    async fn attempt(&self, candidate: &Candidate, delivery: &Delivery, failures: u32) -> Result<(), AttemptError> {
        self.wait_for_sessions(candidate, &candidate.cancel).await?;
        let before = self.lock().current_source.clone();
        // After a failed attempt, the agent does not copy the previous dependencies again. A program can damage its
        // dependencies, and the copies of damaged dependencies may have caused the failure.
        let copies = failures == 0;
        let carried = self.carry(candidate, delivery, before.as_ref(), copies).await?;
        self.settings.keep(before.as_ref());
        let moved = carried.clone().unwrap_or_default();
        let trial = swap::record_trial(&self.layout, before.as_ref(), &delivery.tree, moved)
            .map_err(Refusal::system("failed to record that the source is being installed"))?;
        let needs_install = delivery.plan.is_some() && carried.is_none();
        let Err(error) = self.run_trial(candidate, delivery, &trial, needs_install).await else { return Ok(()) };
        // The wait ends when the agent shuts down, because the shutdown must not wait for interactive sessions.
        let _ = self.wait_for_sessions(candidate, &self.stop).await;
        if let Err(error) = swap::restore(&self.layout, before.as_ref(), &trial) {
            self.lock().current_source = None;
            return Err(AttemptError::Lost(error));
        }
        Err(error)
    }

    async fn run_trial(
        &self,
        candidate: &Candidate,
        delivery: &Delivery,
        trial: &Trial,
        needs_install: bool,
    ) -> Result<(), AttemptError> {
        let desired = &candidate.desired;
        swap::install_tree(&self.layout, trial, &desired.directory)
            .map_err(Refusal::system("failed to replace the source"))?;
        if needs_install && self.installs {
            self.install(candidate, &self.layout.program()).await?;
        }
        let installed = match delivery.plan.as_ref().filter(|_| self.installs) {
            Some(plan) if needs_install => self.installed_now(candidate, plan).await?,
            plan => plan.map(|plan| plan.installed.clone()),
        };
        let awaits_install = needs_install && !self.installs;
        let installs_now = delivery.plan.as_ref().filter(|_| needs_install && self.installs);
        let uncached = installs_now.and_then(|plan| self.uncached_reason(Some(plan), installed.as_ref()));
        let next = CurrentSource {
            digest: desired.digest.to_string(),
            directory: desired.directory.as_str().to_owned(),
            tree: uuid::Uuid::new_v4().to_string(),
            boot_id: self.boot_id.clone(),
            is_synced: false,
            awaits_install,
            header: if awaits_install { desired.to_header() } else { String::new() },
            installed,
            uncached,
        };
        let mut state = self.lock();
        swap::confirm(&self.layout, &next, trial).map_err(Refusal::system("failed to record the current source"))?;
        *state = State { current_source: Some(next), candidate: None };
        Ok(())
    }

    /// Prepares the dependencies of a new source:
    /// - If the new source can use the previous dependencies unchanged, the function returns the directories to move.
    /// - If `copies` is true and the cache contains the dependencies, the function restores them, and returns an empty
    ///   list.
    /// - Otherwise, the function returns `None`, and the agent must install the dependencies. If `copies` is true, the
    ///   new source can contain copies of the previous dependencies, which accelerate the installation.
    async fn carry(
        &self,
        candidate: &Candidate,
        delivery: &Delivery,
        before: Option<&CurrentSource>,
        copies: bool,
    ) -> Result<Option<Vec<PathBuf>>, AttemptError> {
        let Some(plan) = delivery.plan.as_ref().filter(|_| self.installs) else { return Ok(None) };
        let source = self.layout.source();
        let trees = carry::existing_directories(&source, &plan.trees);
        let carry = plan.carry(before.and_then(|before| before.installed.as_ref()));
        tracing::info!(?carry, ?trees, never_skipped = plan.reinstall_reason, "dependencies planned");
        if carry == Carry::Move && (plan.works_without_trees || !trees.is_empty()) {
            return Ok(Some(trees));
        }
        if copies && self.restore_dependencies(candidate, plan, &delivery.tree, &source).await {
            self.sync_caches();
            return Ok(Some(Vec::new()));
        }
        if candidate.cancel.is_cancelled() {
            return Err(AttemptError::Stopped);
        }
        if !copies || trees.is_empty() || matches!(carry, Carry::Move | Carry::Nothing) {
            return Ok(None);
        }
        candidate.report("copying the dependencies of the previous source");
        let (tree, cancel) = (delivery.tree.clone(), candidate.cancel.clone());
        // Project scripts can change package files in place. If the installation inputs are unknown, the new source
        // therefore gets copies instead of hard links.
        let links = plan.reinstall_reason.is_none();
        let selects = if carry == Carry::CopyEnvironment { is_in_empty_environment } else { |_: &Path| true };
        let copied = tokio::task::spawn_blocking(move || {
            carry::copy_all(&source, &tree, &trees, Copying { links, selects }, || cancel.is_cancelled())
        });
        let copied = copied.await.map_err(std::io::Error::other).and_then(|copied| copied);
        if candidate.cancel.is_cancelled() {
            return Err(AttemptError::Stopped);
        }
        if let Err(error) = copied {
            tracing::warn!(%error, "failed to copy the dependencies of the previous source; installing all dependencies");
        }
        Ok(None)
    }

    async fn attempt_awaited(&self, candidate: &Candidate, current_source: &CurrentSource) -> Result<(), AttemptError> {
        let desired = &candidate.desired;
        let project = Project::read(&self.layout.workspace()).map_err(|error| Refusal::Invalid(error.to_string()))?;
        // The agent never replaces a source that is part of the pod. A plan would be useless, because no later source
        // can reuse the dependencies of such a source.
        let plan = match InPod::of(&desired.digest) {
            Some(_) => None,
            None => self.plan(&self.layout.source(), desired, project).await?,
        };
        let source = self.layout.source();
        // A directory with dependencies in the source can be incomplete, because an earlier attempt failed or the agent was
        // killed. The cache would restore only the other directories.
        let is_restored = match plan.as_ref().filter(|plan| !plan.contains_trees) {
            Some(plan) => self.restore_dependencies(candidate, plan, &source, &source).await,
            None => false,
        };
        if is_restored {
            self.sync_caches();
        } else {
            self.install(candidate, &self.layout.program()).await?;
        }
        let installed = match &plan {
            Some(plan) if is_restored => Some(plan.installed.clone()),
            Some(plan) => self.installed_now(candidate, plan).await?,
            None => None,
        };
        let uncached = self.uncached_reason(plan.as_ref(), installed.as_ref()).filter(|_| !is_restored);
        let next = CurrentSource {
            awaits_install: false,
            header: String::new(),
            installed,
            uncached,
            ..current_source.clone()
        };
        let mut state = self.lock();
        Record { current_source: Some(next.clone()), trial: None }
            .write(&self.layout)
            .map_err(Refusal::system("failed to record the installed dependencies"))?;
        *state = State { current_source: Some(next), candidate: None };
        Ok(())
    }

    /// Waits until the kubelet has mounted the Secrets and ConfigMaps for the environment, and then installs the
    /// dependencies of the project or policy pack in `directory`.
    pub(super) async fn install(&self, candidate: &Candidate, directory: &Path) -> Result<(), AttemptError> {
        let Desired { environment, required_directories, .. } = &candidate.desired;
        if mounts::wait(&self.layout, required_directories, Duration::ZERO).await.is_err() {
            candidate.report("waiting for the Secrets and ConfigMaps of its environment to be mounted");
        }
        tokio::select! {
            mounted = mounts::wait(&self.layout, required_directories, MOUNT_TIMEOUT) => mounted?,
            () = candidate.cancel.cancelled() => return Err(AttemptError::Stopped),
        }
        candidate.report("installing its dependencies");
        install::install(&self.layout, directory, environment, candidate.failures(), &candidate.cancel).await?;
        self.sync_caches();
        Ok(())
    }

    /// Syncs the package manager caches in the background. After a power loss, the agent installs the source again.
    /// Package managers such as Go do not detect damaged files in their caches, so the agent must sync the caches, too.
    pub(super) fn sync_caches(&self) {
        let root = self.layout.root().to_owned();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = durable::sync_filesystem(&root) {
                tracing::warn!(%error, "failed to sync the caches of the package managers to disk");
            }
        });
    }

    /// Returns the record of an installation that the agent has just completed, and stores the dependencies in the
    /// cache.
    async fn installed_now(&self, candidate: &Candidate, plan: &InstallPlan) -> Result<Option<Installed>, Refusal> {
        let installed = self.installed(plan, &candidate.desired).await?;
        if installed.is_some() {
            let (source, program) = (self.layout.source(), self.layout.program());
            self.store_dependencies(candidate, plan, &source, Some(&program)).await;
        }
        Ok(installed)
    }

    /// Returns the record of a completed installation. Returns `None` if the installation has changed its own inputs,
    /// because the next source does not contain these changes. For example, `go mod tidy` changes `go.mod` and
    /// `go.sum`.
    async fn installed(&self, plan: &InstallPlan, desired: &Desired) -> Result<Option<Installed>, Refusal> {
        if !plan.works_without_trees {
            return Ok(Some(plan.installed.clone()));
        }
        let project = Project::read(&self.layout.workspace()).map_err(|error| Refusal::Invalid(error.to_string()))?;
        let after = self.plan(&self.layout.source(), desired, project).await?;
        let is_unchanged = after.is_some_and(|after| after.installed == plan.installed);
        if !is_unchanged {
            tracing::info!("the installation changed its own inputs: the next source installs its dependencies again");
        }
        Ok(is_unchanged.then(|| plan.installed.clone()))
    }

    /// Returns the plan of the installation, or `None` if the project has no dependencies to install.
    pub(super) async fn plan(
        &self,
        tree: &Path,
        desired: &Desired,
        project: Project,
    ) -> Result<Option<InstallPlan>, Refusal> {
        if !project.needs_install() || project.is_without_program(&desired.directory.under(tree)) {
            return Ok(None);
        }
        let cli = if self.installs { self.version.get().await } else { String::new() };
        let (tree, directory) = (tree.to_owned(), desired.directory.clone());
        let planning = tokio::task::spawn_blocking(move || install::plan(&tree, &directory, &project, &cli));
        let plan =
            planning.await.map_err(|error| Refusal::system("failed to read the project")(std::io::Error::other(error)));
        plan.map(Some)
    }

    /// Waits until all interactive sessions have ended, because replacing the source would remove files that the user
    /// is still using.
    async fn wait_for_sessions(&self, candidate: &Candidate, stop: &CancellationToken) -> Result<(), AttemptError> {
        let mut reported = None;
        loop {
            if stop.is_cancelled() {
                return Err(AttemptError::Stopped);
            }
            let Some(session) = interactive_session::find(&self.layout)? else { return Ok(()) };
            if reported != Some(session.pid) {
                candidate.report(format!("waiting for the end of an {}", interactive_session::describe(&session)));
                reported = Some(session.pid);
            }
            let _ = tokio::time::timeout(POLL, stop.cancelled()).await;
        }
    }
}

/// Unpacks the source again, because the failed attempt has changed the tree.
async fn unpack_again(delivery: &Delivery, desired: &Desired) -> Result<(), Refusal> {
    let tree = delivery.tree.clone();
    let removed = tokio::task::spawn_blocking(move || durable::remove(&tree)).await;
    removed
        .map_err(std::io::Error::other)
        .and_then(|removed| removed)
        .map_err(Refusal::system("failed to remove the source tree of the failed attempt"))?;
    receive::unpack(&delivery.archive, &delivery.tree, desired).await.map(drop)
}
