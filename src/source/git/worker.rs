//! Entry point of the child process, which parses all data from Git servers. It reads its limits, its task and the credentials from
//! stdin and writes its response to stdout.

use std::io::{self, Read, Write};

use serde::Serialize;

use crate::source::git::error::GitError;
use crate::source::git::reference::Tip;
use crate::source::git::remote::Remote;
use crate::source::git::request::{Download, List, Pack, Packed, Request};
use crate::source::git::{content, pack_index};
use crate::subprocess;

/// Runs the task that is read from stdin.
///
/// # Errors
/// Fails if the limits cannot be applied or the task cannot be read.
pub fn work_on_stdin() -> io::Result<()> {
    let mut request = Vec::new();
    subprocess::confined_input()?.read_to_end(&mut request)?;
    let work = serde_json::from_slice(&request)?;
    drop(request);
    match work {
        Request::List(list) => answer(&list.run()),
        Request::Download(download) => answer(&download.run()),
        Request::Pack(pack) => answer(&pack.run()),
    }
}

fn answer<T: Serialize>(answer: &Result<T, GitError>) -> io::Result<()> {
    io::stdout().write_all(&serde_json::to_vec(answer)?)
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
