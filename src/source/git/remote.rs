//! Communicates with a Git server: lists references and fetches a commit. This module runs in a child process, because
//! this code blocks the thread and parses data from the server.

use std::fmt;
use std::fs::File;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use gix_hash::ObjectId;
use gix_object::bstr::BString;
use gix_protocol::fetch::negotiate::{Action, Round, one_round};
use gix_protocol::fetch::{Arguments, Context, Negotiate, Options, Response, Shallow, Tags};
use gix_protocol::handshake::Ref;
use gix_protocol::{Command, Handshake};
use gix_transport::client::blocking_io::{ExtendedBufRead, Transport, TransportV2Ext, http};
use gix_transport::client::git::{ConnectMode, blocking_io::Connection};
use gix_transport::{Protocol, Service};
use gix_utils::progress::Discard;
use reqwest::header::HeaderValue;

use crate::http_client::addresses;
use crate::source::git::budget::{Budget, Terms};
use crate::source::git::error::GitError;
use crate::source::git::known_hosts::KnownHosts;
use crate::source::git::pack_index;
use crate::source::git::reference::Listed;
use crate::source::git::request::{Access, HttpLogin, Limits};
use crate::source::git::url::{Location, RepositoryUrl};
use crate::source::git::{http as own_http, http_client, ssh};

/// Maximum size of the reference list, in bytes. This size suffices for about 300,000 references.
const MAX_LIST: u64 = 32 << 20;
/// User name that the controller sends together with an access token, as in the Pulumi Kubernetes Operator. Most
/// servers ignore the user name and check only the token.
const TOKEN_USER: &str = "git";

/// An open connection to a Git server.
pub struct Remote {
    transport: Box<dyn Transport>,
    handshake: Handshake,
    budget: Arc<Budget>,
    url: String,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Remote {
    /// Connects to the server. `what` describes the operation in timeout errors.
    pub fn open(url: &RepositoryUrl, access: &Access, what: &'static str, terms: Terms) -> Result<Self, GitError> {
        let budget = Arc::new(Budget::new(what, terms)?);
        budget.allow("list of references", MAX_LIST);
        let mut transport = connect(url, access, &budget, terms.local_addresses)?;
        let no_credentials = |_| Ok(None);
        let handshake =
            gix_protocol::handshake(&mut transport, Service::UploadPack, no_credentials, Vec::new(), &mut Discard);
        let handshake = handshake.map_err(|error| budget.reason(&chain(&error)))?;
        Ok(Self { transport, handshake, budget, url: url.to_string() })
    }

    /// Calls `process` with an iterator over the references whose names start with one of the prefixes, or over all
    /// references if `prefixes` is empty. The iterator can also return other references, because a server can ignore
    /// the prefixes.
    pub fn list<T>(
        &mut self,
        prefixes: &[String],
        process: impl FnOnce(&mut dyn Iterator<Item = Listed>) -> T,
    ) -> Result<T, GitError> {
        if let Some(references) = &self.handshake.refs {
            return Ok(process(&mut references.iter().filter_map(listed)));
        }
        let command = Command::LsRefs;
        let mut features = command.default_features(Protocol::V2, &self.handshake.capabilities);
        features.push(agent());
        let mut arguments = command.initial_v2_arguments(&features);
        arguments.extend(prefixes.iter().map(|prefix| BString::from(format!("ref-prefix {prefix}"))));
        let response =
            self.transport.invoke(command.as_str(), features.into_iter(), Some(arguments.into_iter()), false);
        let response = response.map_err(|error| self.budget.reason(&chain(&gix_error::Error::from_error(error))))?;
        let mut lines = Lines { response, failure: None };
        let result = process(&mut lines);
        match lines.failure {
            None => Ok(result),
            Some(failure) => Err(self.budget.reason(&failure)),
        }
    }

    /// Returns the hash algorithm of the object IDs in the repository.
    pub fn object_hash(&self) -> Result<gix_hash::Kind, GitError> {
        let format = self.handshake.capabilities.capability("object-format");
        match format.and_then(|format| format.value().map(ToString::to_string)).as_deref() {
            None | Some("sha1") => Ok(gix_hash::Kind::Sha1),
            Some("sha256") => Ok(gix_hash::Kind::Sha256),
            Some(other) => Err(GitError::Protocol(format!("unsupported object format {other}"))),
        }
    }

    /// Fetches a commit with its files, and writes the pack to a directory. If `full_history` is true, the pack
    /// contains the commit's complete history.
    pub fn fetch(
        &mut self,
        commit: &str,
        full_history: bool,
        directory: &Path,
        limits: &Limits,
    ) -> Result<(), GitError> {
        let kind = self.object_hash()?;
        let id = ObjectId::from_hex(commit.as_bytes()).ok().filter(|id| id.kind() == kind);
        let id = id.ok_or_else(|| GitError::Reference(format!("invalid commit {commit}: must be a {kind} hash")))?;
        if !full_history && !self.supports_shallow() {
            let what = "server does not support fetching a commit without its history: set spec.shallow to false";
            return Err(GitError::Reference(what.to_owned()));
        }
        self.budget.allow("pack", limits.pack_bytes);
        let shallow = if full_history { Shallow::NoChange } else { Shallow::DepthAtRemote(NonZeroU32::MIN) };
        let options = Options {
            shallow_file: directory.join("shallow"),
            shallow: &shallow,
            tags: Tags::None,
            reject_shallow_remote: false,
        };
        let context = Context {
            handshake: &mut self.handshake,
            transport: &mut self.transport,
            user_agent: agent(),
            trace_packetlines: false,
        };
        let path = directory.join(pack_index::PACK);
        let mut written = 0;
        let fetched = gix_protocol::fetch(
            &mut OneCommit(id),
            |pack, _, _| {
                let copied = File::create(&path).and_then(|mut file| std::io::copy(pack, &mut file));
                written = copied.map_err(gix_error::Error::from_error)?;
                Ok(true)
            },
            Discard,
            &self.budget.interrupt,
            context,
            options,
        );
        if let Err(error) = fetched {
            return Err(explain_missing_commit(self.budget.reason(&chain(&error)), commit));
        }
        match written {
            0 => Err(GitError::Protocol("server sent no pack".to_owned())),
            _ => Ok(()),
        }
    }

    fn supports_shallow(&self) -> bool {
        let capabilities = &self.handshake.capabilities;
        match self.handshake.server_protocol_version {
            Protocol::V2 => {
                capabilities.capability("fetch").and_then(|fetch| fetch.supports("shallow")).unwrap_or_default()
            }
            _ => capabilities.contains("shallow"),
        }
    }
}

/// Returns a library error's message and the messages of all causes as one line.
fn chain(error: &gix_error::Error) -> String {
    let mut text = String::new();
    for cause in error.iter_errors() {
        let message = cause.to_string();
        if text.contains(&message) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&message);
    }
    text
}

/// Adds an explanation to an error with which a server reports a missing or unavailable commit. Returns other errors
/// unchanged.
fn explain_missing_commit(error: GitError, commit: &str) -> GitError {
    match &error {
        GitError::Protocol(message)
            if ["not our ref", "unadvertised object", "no such"].iter().any(|part| message.contains(part)) =>
        {
            GitError::Reference(format!(
                "commit {commit} not found, or the server serves only commits to which a branch or tag points"
            ))
        }
        _ => error,
    }
}

fn connect(
    url: &RepositoryUrl,
    access: &Access,
    budget: &Arc<Budget>,
    local_addresses: bool,
) -> Result<Box<dyn Transport>, GitError> {
    match (url.location(), access) {
        (Location::Http(location), Access::Http { login, authorities, proxies }) => {
            if let Some(why) = addresses::refusal(location, &proxies.hosts()).filter(|_| !local_addresses) {
                return Err(GitError::Address(why));
            }
            let client = http_client::client(authorities, proxies, local_addresses)?;
            let authorization = login.as_ref().map(authorization).transpose()?;
            let has_user = !matches!(login, Some(HttpLogin::Token(_)));
            let connection = own_http::Connection::new(client, Arc::clone(budget), location, authorization, has_user);
            let parsed = gix_url::parse(location.as_str()).map_err(|error| GitError::Protocol(error.to_string()))?;
            Ok(Box::new(http::connect_http(connection, parsed, Protocol::V2, false)))
        }
        (Location::Ssh(location), Access::Ssh { key, passphrase, known_hosts }) => {
            let identity = ssh::Identity { key, passphrase: passphrase.as_deref() };
            let known = KnownHosts::new(known_hosts.iter().cloned());
            let (receiver, sender) = ssh::open(location, &identity, known, budget, local_addresses)?;
            let host = None::<(String, Option<u16>)>;
            let path = location.path.as_str();
            Ok(Box::new(Connection::new(receiver, sender, Protocol::V2, path, host, ConnectMode::Process, false)))
        }
        (Location::Http(_), _) => Err(GitError::Credentials(
            "Secret has an SSH key, which requires an SSH URL: for an HTTP URL, set accessToken, bearerToken, or username and password"
                .to_owned(),
        )),
        (Location::Ssh(_), _) => Err(GitError::Credentials(
            "Secret has no sshPrivateKey, which an SSH URL requires".to_owned(),
        )),
    }
}

/// Returns the header `Authorization` for a login.
fn authorization(login: &HttpLogin) -> Result<HeaderValue, GitError> {
    let basic = |user: &str, password: &str| {
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
    };
    let value = match login {
        HttpLogin::Token(token) => basic(TOKEN_USER, token),
        HttpLogin::Basic { user, password } => basic(user, password),
        HttpLogin::Bearer(token) => format!("Bearer {token}"),
    };
    let mut value = HeaderValue::from_str(&value).map_err(|_| {
        GitError::Credentials("credentials contain characters that are not allowed in an HTTP header".to_owned())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn agent() -> gix_protocol::command::Feature {
    ("agent", Some(concat!("git/pulumi-controller-", env!("CARGO_PKG_VERSION")).to_owned()))
}

/// An iterator over the references in a response. Reads one line at a time, because the complete list can require much
/// memory.
struct Lines<'a> {
    response: Box<dyn ExtendedBufRead<'a> + Unpin + 'a>,
    /// The error that ended the iteration.
    failure: Option<String>,
}

impl Iterator for Lines<'_> {
    type Item = Listed;

    fn next(&mut self) -> Option<Listed> {
        loop {
            let line = match self.response.readline()? {
                Ok(Ok(line)) => line,
                Ok(Err(error)) => {
                    self.failure = Some(error.to_string());
                    return None;
                }
                Err(error) => {
                    self.failure = Some(error.to_string());
                    return None;
                }
            };
            match parse_line(line.as_slice()?) {
                Some(Some(listed)) => return Some(listed),
                Some(None) => {}
                None => {
                    self.failure = Some("invalid line in the list of references".to_owned());
                    return None;
                }
            }
        }
    }
}

/// Parses a line such as `HASH refs/tags/v1 peeled:HASH`. Returns `Some(None)` for a reference without a commit, and
/// `None` for an invalid line.
fn parse_line(line: &[u8]) -> Option<Option<Listed>> {
    let line = String::from_utf8_lossy(line);
    let mut words = line.trim_end().split(' ');
    let (object, name) = (words.next()?, words.next().filter(|name| !name.is_empty())?);
    if object == "unborn" {
        return Some(None);
    }
    // For an annotated tag, the word `peeled:HASH` contains the commit to which the tag points.
    let commit = words.find_map(|word| word.strip_prefix("peeled:")).unwrap_or(object);
    let is_hash = matches!(commit.len(), 40 | 64) && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| Some(Listed { name: name.to_owned(), commit: commit.to_owned() }))
}

/// Converts a reference from the library's type. Resolves an annotated tag to its commit.
fn listed(reference: &Ref) -> Option<Listed> {
    let (name, object) = match reference {
        Ref::Peeled { full_ref_name, object, .. }
        | Ref::Direct { full_ref_name, object }
        | Ref::Symbolic { full_ref_name, object, .. } => (full_ref_name, object),
        Ref::Unborn { .. } => return None,
    };
    Some(Listed { name: name.to_string(), commit: object.to_string() })
}

/// A negotiation in which the client requests one commit and reports that it has no commits.
struct OneCommit(ObjectId);

impl Negotiate for OneCommit {
    fn mark_complete_and_common_ref(&mut self) -> gix_error::Result<Action> {
        Ok(Action::MustNegotiate { remote_ref_target_known: Vec::new() })
    }

    fn add_wants(&mut self, arguments: &mut Arguments, _known: &[bool]) -> bool {
        arguments.want(self.0);
        true
    }

    fn one_round(
        &mut self,
        _state: &mut one_round::State,
        _arguments: &mut Arguments,
        _previous: Option<&Response>,
    ) -> gix_error::Result<(Round, bool)> {
        let round =
            Round { haves_sent: 0, in_vain: 0, haves_to_send: 0, previous_response_had_at_least_one_in_common: false };
        Ok((round, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_errors_include_causes_without_debug_formatting() {
        let cause = gix_error::Error::from(gix_error::Message::from("the version is missing"));
        let error = gix_transport::client::Error::Capabilities { err: cause };
        let message = chain(&gix_error::Error::from_error(error));
        assert!(
            message.starts_with("Capabilities could not be parsed") && message.contains("the version is missing"),
            "{message}"
        );
        assert!(!message.contains(['{', '\n']), "{message}");
    }

    #[test]
    fn reference_list_lines_are_parsed() {
        let (a, b) = ("a".repeat(40), "b".repeat(40));
        let found = |line: &str| parse_line(line.as_bytes()).map(|listed| listed.map(|l| (l.name, l.commit)));
        let named = |name: &str, commit: &str| Some(Some((name.to_owned(), commit.to_owned())));
        assert_eq!(found(&format!("{a} refs/heads/main\n")), named("refs/heads/main", &a));
        assert_eq!(found(&format!("{a} HEAD symref-target:refs/heads/main\n")), named("HEAD", &a));
        assert_eq!(found(&format!("{a} refs/tags/v1 peeled:{b}\n")), named("refs/tags/v1", &b));
        assert_eq!(found("unborn HEAD symref-target:refs/heads/main"), Some(None));
        for line in ["", "main", &a, "abc refs/heads/main", &format!("{} refs/heads/main", "x".repeat(40))] {
            assert_eq!(found(line), None, "{line}");
        }
    }
}
