//! Git over SSH: opens a connection and runs `git-upload-pack` on the server.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{self, AuthResult, Handle};
use russh::keys::{Algorithm, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key};
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Preferred};

use crate::http_client::addresses;
use crate::source::git::budget::{Budget, one_line};
use crate::source::git::error::GitError;
use crate::source::git::known_hosts::KnownHosts;
use crate::source::git::url::SshLocation;
use crate::text::chain;

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of bytes to store from the server's error output.
const MAX_ERROR_OUTPUT: usize = 4 * 1024;

/// An SSH private key and its passphrase.
pub struct Identity<'a> {
    pub key: &'a str,
    pub passphrase: Option<&'a str>,
}

/// Connects and starts `git-upload-pack` on the server.
pub fn open(
    location: &SshLocation,
    identity: &Identity<'_>,
    known: KnownHosts,
    budget: &Arc<Budget>,
    local_addresses: bool,
) -> Result<(Receiver, Sender), GitError> {
    let key = decode_secret_key(identity.key, identity.passphrase).map_err(|error| unusable(&error, identity))?;
    let refusal = Arc::new(Mutex::new(None));
    let connected = connect(location, key, known, Arc::clone(&refusal), local_addresses);
    let opened = budget.wait(async { tokio::time::timeout(CONNECT_TIMEOUT, connected).await });
    let opened = opened.map_err(|error| budget.reason(&error))?;
    let opened = opened.unwrap_or(Err(GitError::TimedOut { what: "connecting".into(), limit: CONNECT_TIMEOUT }));
    let (session, read, write) = match (opened, refusal.lock().unwrap_or_else(PoisonError::into_inner).take()) {
        (_, Some(refused)) => return Err(refused),
        (opened, None) => opened?,
    };
    let receiver = Receiver {
        read,
        budget: Arc::clone(budget),
        chunk: io::Cursor::default(),
        has_data: false,
        error_output: Vec::new(),
    };
    Ok((receiver, Sender { write, budget: Arc::clone(budget), _session: session }))
}

/// Returns the error that reports an invalid private key. The error message contains no part of the key.
fn unusable(error: &russh::keys::Error, identity: &Identity<'_>) -> GitError {
    GitError::Credentials(match (error, identity.passphrase) {
        (russh::keys::Error::KeyIsEncrypted, None) => "SSH key requires a passphrase: set `password`".to_owned(),
        (_, Some(_)) => format!("invalid SSH key or passphrase: {error}"),
        (_, None) => format!("invalid SSH key: {error}"),
    })
}

type Opened = (Handle<HostKeyVerifier>, ChannelReadHalf, ChannelWriteHalf<client::Msg>);

async fn connect(
    location: &SshLocation,
    key: russh::keys::PrivateKey,
    known: KnownHosts,
    refusal: Arc<Mutex<Option<GitError>>>,
    local_addresses: bool,
) -> Result<Opened, GitError> {
    let addresses = addresses::resolve(&location.host, location.port, local_addresses).await;
    let addresses = addresses.map_err(|error| GitError::Unreachable(chain(&error)))?;
    let unreachable = |error: russh::Error| GitError::Unreachable(chain(&error));
    let algorithms = known.algorithms(location);
    let mut preferred = Preferred::default();
    // Offers only the signature algorithms of the host's trusted keys. A server with several host keys then presents a
    // key with one of these algorithms.
    if !algorithms.is_empty() {
        preferred.key = Cow::Owned(algorithms);
    }
    let config = client::Config {
        preferred,
        inactivity_timeout: Some(Duration::from_secs(60)),
        nodelay: true,
        ..client::Config::default()
    };
    let verifier = HostKeyVerifier { location: location.clone(), known, refusal };
    let mut session = client::connect(Arc::new(config), addresses.as_slice(), verifier).await.map_err(unreachable)?;
    let hash = match key.algorithm() {
        Algorithm::Rsa { .. } => session.best_supported_rsa_hash().await.map_err(unreachable)?.flatten(),
        _ => None,
    };
    let key = PrivateKeyWithHashAlg::new(Arc::new(key), hash);
    match session.authenticate_publickey(&location.user, key).await.map_err(unreachable)? {
        AuthResult::Success => {}
        AuthResult::Failure { .. } => {
            return Err(GitError::CredentialsRefused(format!("SSH, user {}", location.user)));
        }
    }
    let channel = session.channel_open_session().await.map_err(unreachable)?;
    // Requests protocol version 2. A server that ignores this variable uses protocol version 0.
    channel.set_env(false, "GIT_PROTOCOL", "version=2").await.map_err(unreachable)?;
    channel.exec(true, format!("git-upload-pack {}", quoted(&location.path))).await.map_err(unreachable)?;
    let (read, write) = channel.split();
    Ok((session, read, write))
}

/// Quotes a path for a shell.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}

/// Verifies the server's host key.
struct HostKeyVerifier {
    location: SshLocation,
    known: KnownHosts,
    refusal: Arc<Mutex<Option<GitError>>>,
}

impl client::Handler for HostKeyVerifier {
    type Error = russh::Error;

    async fn check_server_key(&mut self, presented: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let decision = match presented {
            PublicKeyOrCertificate::PublicKey { key, .. } => self.known.check(&self.location, key),
            PublicKeyOrCertificate::Certificate(_) => Err(GitError::HostKey(format!(
                "{} presented a host certificate, which is not supported: configure the server to present a host key",
                self.location.host
            ))),
        };
        let trusted = decision.is_ok();
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = decision.err();
        Ok(trusted)
    }
}

/// A reader for the data from the server. Enforces the budget's limits.
pub struct Receiver {
    read: ChannelReadHalf,
    budget: Arc<Budget>,
    chunk: io::Cursor<Vec<u8>>,
    /// Whether the server has sent Git protocol data.
    has_data: bool,
    error_output: Vec<u8>,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl Receiver {
    fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match self.budget.wait(self.read.wait())? {
                Some(ChannelMsg::Data { data }) => {
                    self.budget.spend(data.len())?;
                    self.has_data = true;
                    return Ok(data.to_vec());
                }
                Some(ChannelMsg::ExtendedData { data, .. }) => {
                    self.budget.spend(data.len())?;
                    let left = MAX_ERROR_OUTPUT.saturating_sub(self.error_output.len());
                    self.error_output.extend(data.iter().take(left));
                }
                Some(ChannelMsg::Failure) => {
                    let message = "server does not run git-upload-pack for this key".to_owned();
                    return Err(self.budget.fail(GitError::CredentialsRefused(message)));
                }
                Some(ChannelMsg::Eof) => {}
                Some(ChannelMsg::ExitStatus { exit_status }) if exit_status != 0 && !self.has_data => {
                    return Err(self.refused());
                }
                None | Some(ChannelMsg::Close) if !self.has_data => return Err(self.refused()),
                None | Some(ChannelMsg::Close) => return Ok(Vec::new()),
                Some(_) => {}
            }
        }
    }

    /// Returns the error for a server that closes the connection before it sends Git protocol data.
    fn refused(&self) -> io::Error {
        let output = one_line(&String::from_utf8_lossy(&self.error_output));
        let message = if output.is_empty() { "connection closed without an error message".to_owned() } else { output };
        self.budget.fail(GitError::NotFound(message))
    }
}

impl Read for Receiver {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.chunk.read(buffer)?;
        if count > 0 || buffer.is_empty() {
            return Ok(count);
        }
        self.chunk = io::Cursor::new(self.next()?);
        self.chunk.read(buffer)
    }
}

/// A writer for data to the server. Dropping the value closes the connection.
pub struct Sender {
    write: ChannelWriteHalf<client::Msg>,
    budget: Arc<Budget>,
    _session: Handle<HostKeyVerifier>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.budget.wait(self.write.data_bytes(bytes.to_vec()))?;
        sent.map_err(|error| self.budget.fail(GitError::Unreachable(chain(&error))))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_as_one_shell_argument() {
        assert_eq!(quoted("org/app.git"), "'org/app.git'");
        assert_eq!(quoted("a'; rm -rf ~; '"), r"'a'\''; rm -rf ~; '\'''");
    }

    #[test]
    fn the_error_for_an_invalid_key_does_not_reveal_the_key() {
        let identity = Identity { key: "hunter2", passphrase: None };
        let error = decode_secret_key(identity.key, None).expect_err("should reject an invalid key");
        let message = unusable(&error, &identity).to_string();
        assert!(message.contains("invalid SSH key") && !message.contains("hunter2"), "{message}");
    }
}
