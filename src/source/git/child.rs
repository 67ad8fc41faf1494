//! Child processes that parse all data from Git servers. For each task, such as a query or a fetch, the controller
//! starts a child process with resource limits. The child process reads its limits, the task and the credentials from
//! stdin, and writes its response to stdout. This module contains the code that starts a child process, and the code
//! that runs in the child process.

use std::io::{self, Read, Write};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::source::git::error::GitError;
use crate::source::git::reference::Tip;
use crate::source::git::remote::Remote;
use crate::source::git::request::{Download, List, Pack, Packed, Request};
use crate::source::git::slots::Slots;
use crate::source::git::{content, pack_index};
use crate::subprocess::{self, Limits, Subprocess};

/// Command-line argument that selects the role of the child process.
const ROLE: &str = "git";
const MEBIBYTE: u64 = 1 << 20;
/// Memory limit for a child process that communicates with a server, in bytes. A server without protocol version 2
/// sends all references in one response. The limit suffices for about 150,000 references.
const QUERY_MEMORY_LIMIT: u64 = 64 * MEBIBYTE;
/// Memory limit for packing a commit. The limit suffices for the object list and for three objects of the maximum file
/// size: a base object, a delta and the resulting object.
const PACKING_MEMORY_LIMIT: u64 = 448 * MEBIBYTE;
/// Size by which the address space limit exceeds the memory limit, in bytes. The binary itself needs address space, and
/// the allocator reserves address space for each thread.
const EXTRA_ADDRESS_SPACE: u64 = 2048 * MEBIBYTE;
/// Grace period between a child process's time limit and the kill signal.
const GRACE: Duration = Duration::from_secs(10);
/// Timeout for packing.
const PACKING_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Maximum size of a response, in bytes. A response contains only a name or an error message.
const MAX_RESPONSE_SIZE: u64 = 64 << 10;

/// Limits for a child process that communicates with a server. Each kind of task overrides some of these limits.
const QUERY_LIMITS: Limits = Limits {
    memory: QUERY_MEMORY_LIMIT,
    address_space: QUERY_MEMORY_LIMIT + EXTRA_ADDRESS_SPACE,
    stack: 8 * MEBIBYTE,
    cpu: Duration::from_secs(20),
    nice: 5,
    wall: GRACE,
    file_size: 0,
    open_files: 64,
    // The DNS resolver starts a thread.
    threads: true,
    response: MAX_RESPONSE_SIZE,
};

/// Returns the maximum total memory that concurrent child processes use, in bytes.
pub fn max_memory() -> u64 {
    Slots::memory_bytes(QUERY_MEMORY_LIMIT, QUERY_MEMORY_LIMIT.max(PACKING_MEMORY_LIMIT))
}

/// Queries the server for the commit to which a reference resolves.
pub async fn list(subprocess: &Subprocess, list: List) -> Result<Tip, GitError> {
    let limits = Limits { wall: list.limits.list_time + GRACE, ..QUERY_LIMITS };
    let tip: Tip = run(subprocess, "querying the server", &Request::List(list), &limits).await?;
    match tip.is_well_formed() {
        true => Ok(tip),
        false => Err(GitError::Protocol("server sent an invalid commit hash or reference name".to_owned())),
    }
}

/// Fetches a commit into a directory.
pub async fn download(subprocess: &Subprocess, download: Download) -> Result<(), GitError> {
    let limits = Limits {
        cpu: Duration::from_secs(60),
        wall: download.limits.fetch_time + GRACE,
        file_size: download.limits.pack_bytes + MEBIBYTE,
        ..QUERY_LIMITS
    };
    run(subprocess, "fetching the commit", &Request::Download(download), &limits).await
}

/// Packs a fetched commit.
pub async fn pack(subprocess: &Subprocess, pack: Pack) -> Result<Packed, GitError> {
    let limits = Limits {
        memory: PACKING_MEMORY_LIMIT,
        // While the library creates the index, it maps the pack into memory twice.
        address_space: PACKING_MEMORY_LIMIT
            + 2 * pack.limits.pack_bytes
            + pack.limits.index_bytes()
            + EXTRA_ADDRESS_SPACE,
        cpu: Duration::from_secs(120),
        nice: 10,
        wall: PACKING_TIMEOUT,
        file_size: pack.archive_limits.download_bytes.max(pack.limits.index_bytes()) + MEBIBYTE,
        response: MAX_RESPONSE_SIZE + 128 * u64::try_from(pack.choices.len()).unwrap_or(u64::MAX),
        ..QUERY_LIMITS
    };
    run(subprocess, "packing the commit", &Request::Pack(pack), &limits).await
}

async fn run<T: DeserializeOwned>(
    subprocess: &Subprocess,
    what: &'static str,
    request: &(impl Serialize + Sync),
    limits: &Limits,
) -> Result<T, GitError> {
    let unusable = |error: serde_json::Error| {
        GitError::Protocol(format!("{what}: invalid request or response of the child process: {error}"))
    };
    let request = serde_json::to_vec(request).map_err(unusable)?;
    match subprocess.run(ROLE, &request, limits).await {
        Ok(response) => serde_json::from_slice::<Result<T, GitError>>(&response).map_err(unusable)?,
        Err(failure) => Err(GitError::Child { what: what.into(), failure }),
    }
}

/// Reads a task from stdin and runs it.
///
/// # Errors
/// Fails if the process cannot apply its limits or cannot read the task.
pub fn run_child() -> io::Result<()> {
    let mut request = Vec::new();
    subprocess::confined_input()?.read_to_end(&mut request)?;
    let work = serde_json::from_slice(&request)?;
    drop(request);
    match work {
        Request::List(list) => write_response(&list.run()),
        Request::Download(download) => write_response(&download.run()),
        Request::Pack(pack) => write_response(&pack.run()),
    }
}

fn write_response<T: Serialize>(response: &Result<T, GitError>) -> io::Result<()> {
    io::stdout().write_all(&serde_json::to_vec(response)?)
}

impl List {
    fn run(&self) -> Result<Tip, GitError> {
        let mut remote = Remote::open(&self.repository, &self.access, "querying the server", self.limits.listing())?;
        match remote.list(&self.reference.prefixes(), |listed| self.reference.select(listed))? {
            Some(tip) => Ok(tip),
            None => Err(remote.list(&[], |listed| self.reference.missing(listed))?),
        }
    }
}

impl Download {
    fn run(&self) -> Result<(), GitError> {
        let mut remote = Remote::open(&self.repository, &self.access, "fetching", self.limits.fetching())?;
        remote.fetch(&self.commit, self.full_history, &self.directory, &self.limits)
    }
}

impl Pack {
    fn run(&self) -> Result<Packed, GitError> {
        let hash = match self.commit.len() {
            64 => gix_hash::Kind::Sha256,
            _ => gix_hash::Kind::Sha1,
        };
        let bundle = pack_index::make(&self.directory, hash, &self.limits)?;
        content::make(&bundle, self)
    }
}
