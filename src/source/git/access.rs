//! How a server is talked to right now: credentials from their Secrets, whom to trust, and the client for it.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::source::git::credentials::{self, Login};
use crate::source::git::error::GitError;
use crate::source::git::github_app::TOKEN_USER;
use crate::source::git::http;
use crate::source::git::known_hosts::KnownHosts;
use crate::source::git::remote::Access;
use crate::source::git::url::Place;
use crate::source::git::{Key, Shared};

/// The largest list of host keys or certificates for all Stacks.
const LARGEST_FILE: u64 = 4 << 20;

/// The client for servers that nothing particular is trusted for, with the certificates that it was made with.
#[derive(Debug, Default)]
pub struct Clients(Mutex<Option<(Option<String>, reqwest::Client)>>);

impl Clients {
    /// A client that trusts the system's certificates, those for all Stacks, and these.
    fn client(&self, for_all: Option<String>, own: Vec<String>) -> Result<reqwest::Client, GitError> {
        if !own.is_empty() {
            return http::client(&own.into_iter().chain(for_all).collect::<Vec<_>>());
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = kept.as_ref().filter(|(made_with, _)| *made_with == for_all) {
            return Ok(client.clone());
        }
        let client = http::client(&for_all.iter().cloned().collect::<Vec<_>>())?;
        *kept = Some((for_all, client.clone()));
        Ok(client)
    }
}

impl Shared {
    /// Reads the Secrets that a key names, and what is trusted for all Stacks.
    pub(super) async fn access(&self, key: &Key) -> Result<Access, GitError> {
        let credentials = credentials::read(&self.client, key).await?;
        let trust = &self.settings.trust;
        if let (Place::Ssh(_), Login::Ssh { key, passphrase }) = (key.repository.place(), &credentials.login) {
            let for_all = read(&trust.join("known_hosts")).await?;
            let known = KnownHosts::new(credentials.known_hosts.into_iter().chain(for_all));
            return Ok(Access::Ssh { key: key.clone(), passphrase: passphrase.clone(), known });
        }
        let client = self.clients.client(read(&trust.join("ca.crt")).await?, credentials.authorities)?;
        let login = match credentials.login {
            Login::Basic { user, password } => Some((user, password)),
            Login::GitHubApp(app) => Some((TOKEN_USER.to_owned(), self.tokens.token(&app, &client).await?)),
            Login::Nothing => None,
            Login::Ssh { key, passphrase } => {
                return Ok(Access::Ssh { key, passphrase, known: KnownHosts::default() });
            }
        };
        Ok(Access::Http { client, login })
    }
}

/// A file that need not be there.
async fn read(path: &Path) -> Result<Option<String>, GitError> {
    let failed = |why: String| GitError::Credentials(format!("cannot read {}: {why}", path.display()));
    match tokio::fs::metadata(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
        Ok(metadata) if metadata.len() > LARGEST_FILE => {
            return Err(failed(format!("it is larger than {LARGEST_FILE} bytes")));
        }
        Ok(_) => {}
    }
    tokio::fs::read_to_string(path).await.map(Some).map_err(|error| failed(error.to_string()))
}
