//! Restores a source's dependencies from the namespace cache, and stores the dependencies in the cache after an
//! installation. If the cache fails, the agent installs the dependencies, so a cache failure never affects the source.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::state::{Candidate, Source};
use crate::agent::durable;
use crate::agent::environment::{self, Environment};
use crate::agent::home;
use crate::agent::install::cache::{CacheError, DependencyCache, IsStopped, Places, key, selection};
use crate::agent::install::carry::{self, Copying};
use crate::agent::install::{self, plugin_modules};
use crate::agent::layout::Layout;
use crate::pulumi::cli::PULUMI_HOME;
use crate::pulumi::install::plugins::select;
use crate::pulumi::install::{InstallPlan, Installed, go};
use crate::rpc::proto;

/// Timeout for a restoration, which equals the timeout for an installation.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum time that a restoration takes to stop after its timeout.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of downloaded plugins that the agent reports.
const MAX_PLUGINS: usize = 10;
/// Scheduling priority of the threads that write to the cache.
const LOWEST_PRIORITY: i32 = 19;
/// Environment variable with the directory of Go's module cache.
const GO_MODULES_VARIABLE: &str = "GOMODCACHE";
/// Environment variable that can select a Go toolchain.
const GO_TOOLCHAIN_VARIABLE: &str = "GOTOOLCHAIN";

impl Source {
    /// Restores the dependencies of a source or policy pack into `tree`. `root` is the path of this tree after the
    /// installation. Returns whether the restored dependencies are complete, so that no installation is necessary.
    pub(super) async fn restore_dependencies(
        &self,
        candidate: &Candidate,
        plan: &InstallPlan,
        tree: &Path,
        root: &Path,
    ) -> bool {
        let Some((cache, key, places)) = self.cached(candidate, plan, tree, root) else { return false };
        candidate.report("restoring its dependencies from the cache");
        let (staging, evicting) = (self.layout.staging(), cache.clone());
        let (cancel, end) = (candidate.cancel.clone(), Instant::now() + RESTORE_TIMEOUT);
        let is_stopped = move || cancel.is_cancelled() || Instant::now() > end;
        let restoring = tokio::task::spawn_blocking(move || restore(&cache, &key, &places, &staging, &is_stopped));
        // The thread ends later than `RESTORE_TIMEOUT` only if an access to the volume blocks. Such a thread changes
        // nothing, because `is_stopped` then returns `true`.
        let restored = tokio::time::timeout(RESTORE_TIMEOUT + STOP_TIMEOUT, restoring).await;
        let restored = restored.map_err(io::Error::other).and_then(|restored| restored.map_err(io::Error::other));
        let restored = restored.and_then(|restored| restored.map_err(io::Error::other));
        match &restored {
            Ok(true) => tracing::info!("restored the dependencies from the cache without an installation"),
            Ok(false) => tracing::info!("the dependencies are not in the cache"),
            Err(error) => {
                tracing::warn!(%error, "failed to restore the dependencies from the cache; installing them");
            }
        }
        let is_restored = restored.unwrap_or(false);
        if is_restored {
            // Evicts files even if the agent installs no dependencies, because runs add files to Go's build cache.
            report(in_background(move || report(evicting.evict())));
        }
        is_restored
    }

    /// Stores the installed dependencies of the source or policy pack at `root` in the background. `program` is the
    /// directory of the project, or `None` for a policy pack, whose installation installs no plugins. When the function
    /// returns, the copy of the dependencies is complete, so a run can change the original files.
    pub(super) async fn store_dependencies(
        &self,
        candidate: &Candidate,
        plan: &InstallPlan,
        root: &Path,
        program: Option<&Path>,
    ) {
        if !has_known_trees(plan, root) {
            return;
        }
        let Some((cache, key, mut places)) = self.cached(candidate, plan, root, root) else { return };
        if let Some(program) = program {
            places.stored_plugins = self.plugins_of_project(candidate, &places.plugins, program).await;
        }
        let snapshot = Snapshot(self.layout.staging().join(format!("cache-{}", uuid::Uuid::new_v4())));
        let copying = tokio::task::spawn_blocking(move || copy(places, &snapshot.0).map(|places| (places, snapshot)));
        let copied = copying.await.map_err(io::Error::other).and_then(|copied| copied);
        let stored = copied.and_then(|(places, snapshot)| {
            in_background(move || {
                store(&cache, &key, &places);
                drop(snapshot);
            })
        });
        if let Err(error) = stored {
            tracing::warn!(%error, "failed to store the dependencies in the cache");
        }
    }

    /// Returns the reason why the cache cannot contain the dependencies that the agent has installed for the current
    /// source. `plan` is `None` if the source is part of the pod. Returns `None` if the workspace has no cache, or if
    /// the agent stores the dependencies.
    pub(super) fn uncached_reason(&self, plan: Option<&InstallPlan>, installed: Option<&Installed>) -> Option<String> {
        self.cache.as_ref()?;
        let Some(plan) = plan else { return Some("the source is part of the pod".to_owned()) };
        match &plan.reinstall_reason {
            Some(reason) => Some(reason.clone()),
            None if installed.is_none() => Some("the installation changes its own inputs".to_owned()),
            None if !has_known_trees(plan, &self.layout.source()) => {
                Some("the dependencies are outside the source".to_owned())
            }
            None => None,
        }
    }

    /// Returns what the cache does not contain, or `None` if it contains all dependencies of the current source.
    pub fn uncached(&self) -> Option<proto::Uncached> {
        self.cache.as_ref()?;
        let current_source = self.current_source()?;
        // Only a project without an installation downloads its plugins in its runs.
        let needs_no_install = current_source.installed.is_none() && current_source.uncached.is_none();
        let plugins = if needs_no_install { self.downloaded_plugins() } else { Vec::new() };
        let uncached = proto::Uncached { reason: current_source.uncached.unwrap_or_default(), plugins };
        (uncached != proto::Uncached::default()).then_some(uncached)
    }

    /// Returns the first plugins that runs have downloaded since the agent started.
    fn downloaded_plugins(&self) -> Vec<String> {
        let installed = installed_plugins(&self.layout).into_iter();
        installed.filter(|plugin| !self.first_plugins.contains(plugin)).take(MAX_PLUGINS).collect()
    }

    /// Returns the names of the installed plugins that the agent stores for a project. The agent runs the CLI only if
    /// the entry must not contain all plugins.
    async fn plugins_of_project(&self, candidate: &Candidate, plugins: &Path, program: &Path) -> Vec<String> {
        let installed = match selection::installed_plugins(plugins) {
            Ok(installed) => installed,
            Err(error) => {
                tracing::warn!(%error, "failed to list the installed plugins; storing no plugins in the cache");
                return Vec::new();
            }
        };
        if !selection::exceeds_entry(&installed) {
            return installed;
        }
        let environment = &candidate.desired.environment;
        match install::used_plugins(&self.layout, program, environment, &candidate.cancel).await {
            Ok(used) => select(installed, &used),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "failed to list the plugins that the project uses; storing all installed plugins in the cache"
                );
                installed
            }
        }
    }

    /// Returns the cache, the key of the dependencies and the dependency directories. Returns `None` if the workspace
    /// has no cache, or if an installation input is unknown.
    fn cached(
        &self,
        candidate: &Candidate,
        plan: &InstallPlan,
        tree: &Path,
        root: &Path,
    ) -> Option<(DependencyCache, String, Places)> {
        let cache = self.cache.clone().filter(|_| plan.reinstall_reason.is_none())?;
        // If a Secret is not mounted yet, the agent skips the cache, and the installation waits for the Secret.
        let environment = environment::build(&self.layout, &candidate.desired.environment).ok()?;
        let plugins = plugins(&environment)?;
        let environment_key = key::of_environment(&environment.variables, &plugins);
        let key = key::of_installation(&plan.installed.key, &plan.trees, root, &environment_key);
        let go_modules = environment.get(GO_MODULES_VARIABLE).filter(|_| plan.installed.manager == "go");
        let toolchain = environment.get(GO_TOOLCHAIN_VARIABLE).and_then(go::toolchain);
        let places = Places {
            source: tree.to_owned(),
            trees: plan.trees.clone(),
            plugins,
            stored_plugins: Vec::new(),
            go_modules: go_modules.map(PathBuf::from),
            stored_modules: plan.modules.iter().cloned().chain(toolchain).collect(),
            environment: environment_key,
        };
        Some((cache, key, places))
    }
}

/// Returns whether the agent knows the directories of the dependencies in the source at `root`.
fn has_known_trees(plan: &InstallPlan, root: &Path) -> bool {
    plan.works_without_trees || !carry::existing_directories(root, &plan.trees).is_empty()
}

/// Returns the names of the plugins in the container's directory of the CLI plugins.
pub(super) fn installed_plugins(layout: &Layout) -> Vec<String> {
    let home = std::env::var_os(PULUMI_HOME).filter(|home| !home.is_empty());
    let home = home.map_or_else(|| layout.pulumi_home(), PathBuf::from);
    selection::installed_plugins(&home.join(home::PLUGINS)).unwrap_or_default()
}

/// Returns the directory of the CLI plugins.
fn plugins(environment: &Environment) -> Option<PathBuf> {
    Some(Path::new(environment.get(PULUMI_HOME)?).join(home::PLUGINS))
}

fn restore(
    cache: &DependencyCache,
    key: &str,
    places: &Places,
    staging: &Path,
    is_stopped: IsStopped<'_>,
) -> Result<bool, CacheError> {
    let create = |source| CacheError::Io { action: "create a directory in", path: staging.to_owned(), source };
    let directory = tempfile::tempdir_in(staging).map_err(create)?;
    let restored = cache.restore(key, places, directory.path(), is_stopped);
    // The restored dependencies can contain directories without write permission.
    if let Err(error) = durable::remove(directory.path()) {
        tracing::warn!(%error, "failed to remove a directory with restored dependencies");
    }
    restored
}

/// Directory with a copy of the dependencies. The directory is removed even if the copy fails, or if the thread that
/// stores the copy cannot start.
struct Snapshot(PathBuf);

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Err(error) = durable::remove(&self.0) {
            tracing::warn!(%error, "failed to remove the copy of the dependencies");
        }
    }
}

/// Copies the dependencies in the source to `snapshot`. Package files are hard links: see [`carry`]. Also adds the Go
/// modules of the plugins to the modules that the agent stores.
fn copy(mut places: Places, snapshot: &Path) -> io::Result<Places> {
    std::fs::create_dir(snapshot)?;
    let trees = carry::existing_directories(&places.source, &places.trees);
    for parent in trees.iter().filter_map(|tree| tree.parent()) {
        std::fs::create_dir_all(snapshot.join(parent))?;
    }
    let copying = Copying { links: true, selects: |_| true };
    carry::copy_all(&places.source, snapshot, &trees, copying, || false)?;
    if places.go_modules.is_some() {
        places.stored_modules.extend(plugin_modules::find(&places.plugins, &places.stored_plugins));
    }
    Ok(Places { source: snapshot.to_owned(), trees, ..places })
}

/// Runs `work` in a thread with the lowest priority, so that the thread does not slow down runs.
fn in_background(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        // Sets the priority of this thread only. If the call fails, the thread keeps the normal priority.
        let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
        work();
    };
    std::thread::Builder::new().name("cache".to_owned()).spawn(work).map(drop)
}

fn report(evicted: Result<(), impl std::fmt::Display>) {
    if let Err(error) = evicted {
        tracing::warn!(%error, "failed to remove unused files from the dependency cache");
    }
}

/// Stores the copied dependencies in the cache.
fn store(cache: &DependencyCache, key: &str, places: &Places) {
    match cache.store(key, places) {
        Ok(true) => tracing::info!("stored the dependencies in the cache"),
        Ok(false) => tracing::info!("the cache already contains the dependencies, or another agent is storing them"),
        Err(error) => tracing::warn!(%error, "failed to store the dependencies in the cache"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_snapshot_is_removed_after_a_failed_copy() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        std::fs::create_dir_all(source.join("nested/tree")).unwrap();
        let places = Places {
            source: source.clone(),
            trees: vec!["nested/tree".into()],
            plugins: directory.path().join("plugins"),
            stored_plugins: Vec::new(),
            go_modules: None,
            stored_modules: BTreeSet::new(),
            environment: String::new(),
        };
        let snapshot = Snapshot(directory.path().join("snapshot"));
        // The directory of the copy already exists, as after an earlier step of the copy.
        std::fs::create_dir(&snapshot.0).unwrap();
        std::fs::write(snapshot.0.join("partial"), "").unwrap();
        let path = snapshot.0.clone();
        let copied = copy(places, &path).map(|places| (places, snapshot));
        assert!(copied.is_err() && !path.exists() && source.exists());
    }

    #[test]
    fn a_snapshot_without_a_copy_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        drop(Snapshot(directory.path().join("missing")));
        assert!(directory.path().exists());
    }
}
