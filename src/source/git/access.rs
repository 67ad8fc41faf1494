//! Collects everything needed to connect to a server: credentials from Secrets, and trusted host keys or certificates.

use std::path::Path;

use crate::source::git::addresses;
use crate::source::git::credentials::{self, Login};
use crate::source::git::error::GitError;
use crate::source::git::github_app::TOKEN_USER;
use crate::source::git::remote::Access;
use crate::source::git::shared::Shared;
use crate::source::git::spec::Key;
use crate::source::git::url::Place;

/// Maximum size of the file with host keys or certificates for all Stacks, in bytes.
const MAX_FILE: u64 = 4 << 20;

impl Shared {
    /// Reads the Secrets of a key, and the host keys or certificates that are trusted for all Stacks.
    pub(super) async fn access(&self, key: &Key) -> Result<Access, GitError> {
        let credentials = credentials::read(&self.client, key).await?;
        let trust = &self.settings.trust;
        if let (Place::Ssh(_), Login::Ssh { key, passphrase }) = (key.repository.place(), &credentials.login) {
            let for_all = read(&trust.join("known_hosts")).await?;
            let known_hosts = credentials.known_hosts.into_iter().chain(for_all).collect();
            return Ok(Access::Ssh { key: key.clone(), passphrase: passphrase.clone(), known_hosts });
        }
        if matches!((key.repository.place(), &credentials.login), (Place::Ssh(_), Login::Nothing)) {
            let what = format!("{} is an SSH URL, but the optional SSH key does not exist", key.repository);
            return Err(GitError::Credentials(what));
        }
        let (own, for_all) = (credentials.authorities, read(&trust.join("ca.crt")).await?);
        let login = match credentials.login {
            Login::Basic { user, password } => Some((user, password)),
            Login::GitHubApp(app) => {
                let local_addresses = self.settings.limits.local_addresses;
                if let Some(why) = addresses::refusal(app.api()).filter(|_| !local_addresses) {
                    return Err(GitError::Address(why));
                }
                let client = self.clients.client(for_all.clone(), own.clone(), local_addresses)?;
                Some((TOKEN_USER.to_owned(), self.tokens.token(&app, &client).await?))
            }
            Login::Nothing => None,
            Login::Ssh { key, passphrase } => {
                return Ok(Access::Ssh { key, passphrase, known_hosts: Vec::new() });
            }
        };
        let authorities = own.into_iter().chain(for_all).collect();
        Ok(Access::Http { login, authorities, proxies: self.clients.proxies.clone() })
    }
}

/// Reads an optional file.
async fn read(path: &Path) -> Result<Option<String>, GitError> {
    let failed = |why: String| GitError::Credentials(format!("failed to read {}: {why}", path.display()));
    match tokio::fs::metadata(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(failed(format!("file exceeds the limit of {MAX_FILE} bytes")));
        }
        Ok(_) => {}
    }
    tokio::fs::read_to_string(path).await.map(Some).map_err(|error| failed(error.to_string()))
}
