//! Sources that are already in the pod: an image directory, or files that init containers write to the project path.
//! The agent neither receives nor replaces such a source, and installs the dependencies in its directory.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::state::{Candidate, Desired, Source};
use super::swap::{CurrentSource, Record};
use crate::agent::durable;
use crate::agent::layout::Layout;
use crate::agent::refusal::Refusal;
use crate::agent::workspace_lock::WorkspaceGuard;
use crate::artifact::{Directory, InPod};
use crate::pulumi::project::{Project, ProjectError};

impl Source {
    /// Makes the files in the pod the current source. Runs can use this source after the agent has installed its
    /// dependencies.
    pub(super) fn adopt(
        self: &Arc<Self>,
        source: InPod,
        desired: Desired,
        guard: WorkspaceGuard,
    ) -> Result<(), Refusal> {
        if let Some(archive) = &self.lock().current_source {
            let digest = &archive.digest;
            return Err(Refusal::Precondition(format!(
                "source {digest} is already installed in this pod: a source from the image or from the init containers \
                 requires another pod"
            )));
        }
        let project = match source {
            InPod::Image => link_image_directory(&self.layout, &desired.directory)?,
            InPod::InitContainers => read_prepared(&self.layout)?,
        };
        let awaits_install = project.needs_install() && !project.is_without_program(&self.layout.workspace());
        let next = CurrentSource {
            digest: desired.digest.to_string(),
            directory: desired.directory.as_str().to_owned(),
            tree: uuid::Uuid::new_v4().to_string(),
            boot_id: self.boot_id.clone(),
            is_synced: false,
            awaits_install,
            header: if awaits_install { desired.to_header() } else { String::new() },
            installed: None,
            uncached: None,
        };
        let mut state = self.lock();
        Record { current_source: Some(next.clone()), trial: None }
            .write(&self.layout)
            .map_err(Refusal::system("failed to record the current source"))?;
        state.current_source = Some(next.clone());
        // The installation in the background acquires the lock itself.
        drop(guard);
        if awaits_install {
            let candidate = Arc::new(Candidate::new(desired, &self.stop).0);
            state.candidate = Some(candidate.clone());
            self.tasks.spawn(self.clone().install_awaited(candidate, next));
        }
        Ok(())
    }

    /// Returns an error if the current source is part of the pod. In this case, a different source requires another
    /// pod.
    pub(super) fn refuse_replacing_pod_source(&self) -> Result<(), Refusal> {
        let current_source = self.lock().current_source.as_ref().map(|current_source| current_source.digest.clone());
        match current_source.and_then(|digest| InPod::of(&digest.parse().ok()?)) {
            Some(_) => Err(Refusal::Precondition(
                "the source of this pod is from its image or its init containers: another source requires another pod"
                    .to_owned(),
            )),
            None => Ok(()),
        }
    }
}

/// Creates a symbolic link from the project path to an image directory.
fn link_image_directory(layout: &Layout, directory: &Directory) -> Result<Project, Refusal> {
    let place = directory.under(Path::new("/"));
    let project = Project::read(&place).map_err(|error| match error {
        ProjectError::Missing { .. } => {
            Refusal::Invalid(format!("the image has no Pulumi project in {}: Pulumi.yaml not found", place.display()))
        }
        other => Refusal::Invalid(format!("invalid project in the image: {other}")),
    })?;
    let link = layout.workspace();
    match std::fs::symlink_metadata(&link) {
        Ok(found) if !found.is_symlink() => {
            let path = link.display();
            return Err(Refusal::Precondition(format!(
                "{path} is not a symbolic link: change the init containers so that they do not create this path"
            )));
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Refusal::system(format!("failed to inspect {}", link.display()))(error));
        }
        _ => {}
    }
    let failed = || Refusal::system(format!("failed to link {} to the project", link.display()));
    durable::remove(&link).map_err(failed())?;
    std::os::unix::fs::symlink(&place, &link).map_err(failed())?;
    Ok(project)
}

/// Reads the project that the init containers have written to the pod.
fn read_prepared(layout: &Layout) -> Result<Project, Refusal> {
    let place = layout.workspace();
    Project::read(&place).map_err(|error| match error {
        ProjectError::Missing { .. } => Refusal::Precondition(format!(
            "no source is specified, and no init container has put a Pulumi project into {}: Pulumi.yaml not found",
            place.display()
        )),
        other => Refusal::Invalid(format!("invalid project of the init containers: {other}")),
    })
}
