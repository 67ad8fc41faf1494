//! Receives an archive and computes its digest at the same time. Unpacks the archive only if the digest is correct.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tonic::Status;

use super::state::Desired;
use crate::agent::durable;
use crate::agent::refusal::Refusal;
use crate::artifact::{self, Directory, Hasher, UnpackError};
use crate::pulumi::project::{POLICY_PACK_FILES, Project, ProjectError};
use crate::rpc::proto::put_source_request::Part;
use crate::rpc::proto::{PutSourceRequest, SourceHeader};

/// Maximum size of a chunk in bytes.
const MAX_CHUNK: usize = 256 * 1024;
/// Timeout for the next message of a call.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of file names in an error message.
const MAX_LISTED: usize = 20;

/// Message stream of a call.
pub trait Parts: Send {
    fn next(&mut self) -> impl Future<Output = Result<Option<PutSourceRequest>, Status>> + Send;
}

impl Parts for tonic::Streaming<PutSourceRequest> {
    fn next(&mut self) -> impl Future<Output = Result<Option<PutSourceRequest>, Status>> + Send {
        self.message()
    }
}

async fn next(parts: &mut impl Parts) -> Result<Option<Part>, Refusal> {
    match tokio::time::timeout(CHUNK_TIMEOUT, parts.next()).await {
        Ok(Ok(Some(message))) => {
            message.part.map(Some).ok_or_else(|| Refusal::Invalid("source message is empty".to_owned()))
        }
        Ok(Ok(None)) => Ok(None),
        Ok(Err(status)) => Err(Refusal::Precondition(format!("source stream failed: {}", status.message()))),
        Err(_) => Err(Refusal::TooLate(format!(
            "timed out after {} s waiting for the next chunk of the source",
            CHUNK_TIMEOUT.as_secs()
        ))),
    }
}

/// Receives the header, which must be the first message.
pub(super) async fn header(parts: &mut impl Parts) -> Result<SourceHeader, Refusal> {
    match next(parts).await? {
        Some(Part::Header(header)) => Ok(header),
        _ => Err(Refusal::Invalid("the first message of a source must be its header".to_owned())),
    }
}

/// Writes the archive to a file, and verifies the size and the digest of the archive.
pub(super) async fn archive(parts: &mut impl Parts, desired: &Desired, to: &Path) -> Result<(), Refusal> {
    let limit = desired.limits.download_bytes;
    if desired.size > limit {
        let size = desired.size;
        return Err(Refusal::Invalid(format!(
            "the source of {size} bytes exceeds the limit of {limit} bytes (--artifact-max-size)"
        )));
    }
    let failed = || Refusal::system(format!("failed to write the source to {}", to.display()));
    let mut file = tokio::fs::File::create(to).await.map_err(failed())?;
    let mut hasher = Hasher::new(desired.digest.algorithm());
    let mut size: u64 = 0;
    while let Some(part) = next(parts).await? {
        let Part::Chunk(chunk) = part else {
            return Err(Refusal::Invalid("source has more than one header".to_owned()));
        };
        if chunk.len() > MAX_CHUNK {
            return Err(Refusal::Invalid(format!("source chunk exceeds {MAX_CHUNK} bytes")));
        }
        size += chunk.len() as u64;
        if size > desired.size {
            break;
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await.map_err(failed())?;
    }
    file.flush().await.map_err(failed())?;
    if size != desired.size {
        let found = if size > desired.size { "more".to_owned() } else { size.to_string() };
        return Err(Refusal::DataLoss(format!(
            "size of the source does not match: expected {} bytes, received {found}",
            desired.size
        )));
    }
    let found = hasher.finish();
    if !desired.digest.verify(&found) {
        return Err(Refusal::DataLoss(format!(
            "digest of the source does not match: expected {}, received {found}",
            desired.digest
        )));
    }
    Ok(())
}

/// Unpacks an archive into a new directory, and returns the project in the archive. The function syncs all files to the
/// disk, because a power loss can empty a file that is not synced. An empty file can be a valid program without
/// resources, and a run of this program would delete all resources.
pub(super) async fn unpack(archive: &Path, tree: &Path, desired: &Desired) -> Result<Project, Refusal> {
    unpack_with(archive, tree, desired, read_project).await
}

/// Unpacks the archive of a policy pack into a new directory in the same way as [`unpack`].
pub(super) async fn unpack_policy_pack(archive: &Path, tree: &Path, desired: &Desired) -> Result<(), Refusal> {
    unpack_with(archive, tree, desired, check_policy_pack).await
}

async fn unpack_with<T: Send + 'static>(
    archive: &Path,
    tree: &Path,
    desired: &Desired,
    read: fn(&Path, &Directory) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let (archive, tree, desired) = (archive.to_owned(), tree.to_owned(), desired.clone());
    tokio::task::spawn_blocking(move || {
        unpack_blocking(&archive, &tree, &desired)?;
        let content = read(&tree, &desired.directory)?;
        durable::sync_tree(&tree).map_err(Refusal::system("failed to sync the source to disk"))?;
        Ok(content)
    })
    .await
    .map_err(|error| Refusal::system("failed to unpack the source")(std::io::Error::other(error)))?
}

fn unpack_blocking(archive: &Path, tree: &Path, Desired { directory, limits, .. }: &Desired) -> Result<(), Refusal> {
    let open = || File::open(archive).map_err(Refusal::system("failed to read the source"));
    artifact::survey(open()?, limits).map_err(refusal)?;
    std::fs::create_dir(tree).map_err(Refusal::system("failed to create the source directory"))?;
    artifact::unpack(open()?, tree, limits).map_err(refusal)?;
    if !directory.under(tree).is_dir() {
        return Err(Refusal::Invalid(format!(
            "directory {:?} not found in the source; its root contains: {}",
            directory.as_str(),
            list(tree)
        )));
    }
    Ok(())
}

fn read_project(tree: &Path, directory: &Directory) -> Result<Project, Refusal> {
    let place = directory.under(tree);
    Project::read(&place).map_err(|error| match error {
        ProjectError::Missing { .. } => Refusal::Invalid(format!(
            "no Pulumi.yaml found in directory {:?} of the source; it contains: {}",
            directory.as_str(),
            list(&place)
        )),
        // Removes the path of the tree from the message, because this path is different in each attempt.
        other => Refusal::Invalid(format!("invalid project in the source: {}", other.relative_to(tree))),
    })
}

fn check_policy_pack(tree: &Path, directory: &Directory) -> Result<(), Refusal> {
    let place = directory.under(tree);
    if POLICY_PACK_FILES.iter().any(|name| place.join(name).is_file()) {
        return Ok(());
    }
    let place_name = match directory.as_str() {
        "" => "the root".to_owned(),
        directory => format!("directory {directory:?}"),
    };
    Err(Refusal::Invalid(format!(
        "no PulumiPolicy.yaml found in {place_name} of the policy pack; it contains: {}; set the field dir of \
         the policy pack",
        list(&place)
    )))
}

/// Converts an I/O error into [`Refusal::system`], and an invalid archive into [`Refusal::Invalid`].
fn refusal(error: UnpackError) -> Refusal {
    match error {
        UnpackError::Write { name, cause } => Refusal::system(format!("failed to write {name} of the source"))(cause),
        UnpackError::Destination { .. } => Refusal::system("failed to unpack the source")(io::Error::other(error)),
        hostile => Refusal::Invalid(format!("failed to unpack the source: {hostile}")),
    }
}

/// Lists the file names in a directory, for an error message.
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
