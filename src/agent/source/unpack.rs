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
const LISTED: usize = 20;

/// Unpacks an archive into a new directory and returns its project. All files are on the disk afterwards, because a
/// file that a power loss has emptied could be a program without resources.
pub(super) async fn unpack(archive: &Path, tree: &Path, wanted: &Wanted) -> Result<Project, Refusal> {
    let (archive, tree, wanted) = (archive.to_owned(), tree.to_owned(), wanted.clone());
    tokio::task::spawn_blocking(move || unpack_blocking(&archive, &tree, &wanted))
        .await
        .map_err(|error| Refusal::system("cannot unpack the source")(std::io::Error::other(error)))?
}

fn unpack_blocking(archive: &Path, tree: &Path, Wanted { directory, limits, .. }: &Wanted) -> Result<Project, Refusal> {
    let open = || File::open(archive).map_err(Refusal::system("cannot read the source"));
    artifact::survey(open()?, limits).map_err(refusal)?;
    std::fs::create_dir(tree).map_err(Refusal::system("cannot make room to unpack"))?;
    artifact::unpack(open()?, tree, limits).map_err(refusal)?;
    let place = directory.under(tree);
    if !place.is_dir() {
        return Err(Refusal::Invalid(format!(
            "the source has no directory {:?}; at its root there are: {}",
            directory.as_str(),
            list(tree)
        )));
    }
    let project = Project::read(&place).map_err(|error| match error {
        ProjectError::Missing { .. } => Refusal::Invalid(format!(
            "directory {:?} of the source is no Pulumi project: it has no Pulumi.yaml; there are: {}",
            directory.as_str(),
            list(&place)
        )),
        // The path of the tree differs in each attempt, so it is removed from the message.
        other => Refusal::Invalid(format!("the project in the source cannot be used: {}", other.relative_to(tree))),
    })?;
    durable::sync_tree(tree).map_err(Refusal::system("cannot write the source to the disk"))?;
    Ok(project)
}

/// Converts an error of the disk into a system error, and an error of the archive into an invalid request.
fn refusal(error: UnpackError) -> Refusal {
    match error {
        UnpackError::Write { name, cause } => Refusal::system(format!("cannot write {name} of the source"))(cause),
        UnpackError::Destination { .. } => Refusal::system("cannot unpack the source")(io::Error::other(error)),
        hostile => Refusal::Invalid(format!("the source cannot be unpacked: {hostile}")),
    }
}

/// Lists the file names in a directory for a message.
fn list(directory: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(directory) else { return "nothing that can be read".to_owned() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().chars().take(64).collect()).collect();
    names.sort();
    let surplus = names.len().saturating_sub(LISTED);
    names.truncate(LISTED);
    match (names.is_empty(), surplus) {
        (true, _) => "no files".to_owned(),
        (false, 0) => names.join(", "),
        (false, surplus) => format!("{} and {surplus} more", names.join(", ")),
    }
}
