//! The controller's side of the child processes that read what servers send: what each may use, and what its answer means.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::source::git::error::GitError;
use crate::source::git::reference::Tip;
use crate::source::git::request::{Download, List, Pack, Packed, Request};
use crate::source::git::slots::Slots;
use crate::subprocess::{Limits, Subprocess};

/// The child's role on the command line.
const ROLE: &str = "git";
const MEBIBYTE: u64 = 1 << 20;
/// Memory for a conversation with a server. Servers that know only the protocol's first version tell all references at once: some 150,000 of
/// them fit.
const CONVERSATION_MEMORY: u64 = 64 * MEBIBYTE;
/// Memory for packing a commit: three times the largest file, for a base, a delta and its result, and the list of all objects.
const PACKING_MEMORY: u64 = 448 * MEBIBYTE;
/// Address space besides memory: the binary, and what allocators reserve for each thread.
const ADDRESSES: u64 = 2048 * MEBIBYTE;
/// How much longer than its own limit of time a child may take.
const GRACE: Duration = Duration::from_secs(10);
/// How long packing may take.
const PACKING_TIME: Duration = Duration::from_secs(10 * 60);
/// The largest answer of a conversation: a name, or a sentence.
const ANSWER: u64 = 64 << 10;

/// What a conversation may use; the rest depends on what it is about.
const CONVERSATION: Limits = Limits {
    memory: CONVERSATION_MEMORY,
    address_space: CONVERSATION_MEMORY + ADDRESSES,
    stack: 8 * MEBIBYTE,
    cpu: Duration::from_secs(20),
    nice: 5,
    wall: GRACE,
    file_size: 0,
    open_files: 64,
    // The resolver of host names starts one.
    threads: true,
    answer: ANSWER,
};

/// The most memory that all children take at once.
pub fn most_memory() -> u64 {
    Slots::memory_bytes(CONVERSATION_MEMORY, CONVERSATION_MEMORY, PACKING_MEMORY)
}

/// Asks the server which commit is meant.
pub async fn list(subprocess: &Subprocess, list: List) -> Result<Tip, GitError> {
    let limits = Limits { wall: list.limits.list_time + GRACE, ..CONVERSATION };
    let tip: Tip = run(subprocess, "asking the server", &Request::List(list), &limits).await?;
    match tip.is_plausible() {
        true => Ok(tip),
        false => Err(GitError::Protocol("what it names is no commit".to_owned())),
    }
}

/// Fetches a commit into a directory.
pub async fn download(subprocess: &Subprocess, download: Download) -> Result<(), GitError> {
    let limits = Limits {
        cpu: Duration::from_secs(60),
        wall: download.limits.fetch_time + GRACE,
        file_size: download.limits.pack_bytes + MEBIBYTE,
        ..CONVERSATION
    };
    run(subprocess, "fetching the commit", &Request::Download(download), &limits).await
}

/// Packs a commit that was fetched.
pub async fn pack(subprocess: &Subprocess, pack: Pack) -> Result<Packed, GitError> {
    let limits = Limits {
        memory: PACKING_MEMORY,
        // The pack is mapped twice while its index is made.
        address_space: PACKING_MEMORY + 2 * pack.limits.pack_bytes + pack.limits.index_bytes() + ADDRESSES,
        cpu: Duration::from_secs(120),
        nice: 10,
        wall: PACKING_TIME,
        file_size: pack.archive_limits.download_bytes.max(pack.limits.index_bytes()) + MEBIBYTE,
        answer: ANSWER + 128 * u64::try_from(pack.choices.len()).unwrap_or(u64::MAX),
        ..CONVERSATION
    };
    run(subprocess, "packing the files of the commit", &Request::Pack(pack), &limits).await
}

async fn run<T: DeserializeOwned>(
    subprocess: &Subprocess,
    what: &'static str,
    request: &(impl Serialize + Sync),
    limits: &Limits,
) -> Result<T, GitError> {
    let unusable = |error: serde_json::Error| GitError::Protocol(format!("{what}: {error}"));
    let request = serde_json::to_vec(request).map_err(unusable)?;
    match subprocess.run(ROLE, &request, limits).await {
        Ok(answer) => serde_json::from_slice::<Result<T, GitError>>(&answer).map_err(unusable)?,
        Err(failure) => Err(GitError::Child { what: what.into(), failure }),
    }
}
