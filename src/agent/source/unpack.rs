//! Unpacks a verified archive and reads the project in it.

use std::fs::File;
use std::io;
use std::path::Path;

use super::wanted::Wanted;
use crate::agent::durable;
use crate::agent::refusal::Refusal;
use crate::artifact::{self, UnpackError};
use crate::pulumi::project::{Project, ProjectError};

/// Maximum number of file names that an error lists.
const MAX_LISTED: usize = 20;

/// Unpacks an archive into a new directory and returns its project. All files are on the disk afterwards, because a
/// file that a power loss has emptied could be a program without resources.
pub(super) async fn unpack(archive: &Path, tree: &Path, wanted: &Wanted) -> Result<Project, Refusal> {
    let (archive, tree, wanted) = (archive.to_owned(), tree.to_owned(), wanted.clone());
    tokio::task::spawn_blocking(move || unpack_blocking(&archive, &tree, &wanted))
        .await
        .map_err(|error| Refusal::system("failed to unpack the source")(std::io::Error::other(error)))?
}

fn unpack_blocking(archive: &Path, tree: &Path, Wanted { directory, limits, .. }: &Wanted) -> Result<Project, Refusal> {
    let open = || File::open(archive).map_err(Refusal::system("failed to read the source"));
    artifact::survey(open()?, limits).map_err(refusal)?;
    std::fs::create_dir(tree).map_err(Refusal::system("failed to create the source directory"))?;
    artifact::unpack(open()?, tree, limits).map_err(refusal)?;
    let place = directory.under(tree);
    if !place.is_dir() {
        return Err(Refusal::Invalid(format!(
            "directory {:?} not found in the source; its root contains: {}",
            directory.as_str(),
            list(tree)
        )));
    }
    let project = Project::read(&place).map_err(|error| match error {
        ProjectError::Missing { .. } => Refusal::Invalid(format!(
            "no Pulumi.yaml found in directory {:?} of the source; it contains: {}",
            directory.as_str(),
            list(&place)
        )),
        // The path of the tree differs in each attempt, so it is removed from the message.
        other => Refusal::Invalid(format!("invalid project in the source: {}", other.seen_from(tree))),
    })?;
    durable::sync_tree(tree).map_err(Refusal::system("failed to sync the source to disk"))?;
    Ok(project)
}

/// Converts an error of the disk into a system error, and an error of the archive into an invalid request.
fn refusal(error: UnpackError) -> Refusal {
    match error {
        UnpackError::Write { name, cause } => Refusal::system(format!("failed to write {name} of the source"))(cause),
        UnpackError::Destination { .. } => Refusal::system("failed to unpack the source")(io::Error::other(error)),
        hostile => Refusal::Invalid(format!("failed to unpack the source: {hostile}")),
    }
}

/// Lists the file names in a directory for a message.
fn list(directory: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(directory) else { return "unreadable".to_owned() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().chars().take(64).collect()).collect();
    names.sort();
    let surplus = names.len().saturating_sub(MAX_LISTED);
    names.truncate(MAX_LISTED);
    match (names.is_empty(), surplus) {
        (true, _) => "no files".to_owned(),
        (false, 0) => names.join(", "),
        (false, surplus) => format!("{} and {surplus} more", names.join(", ")),
    }
}
