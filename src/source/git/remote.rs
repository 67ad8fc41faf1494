//! A conversation with a server: which references there are, and one commit with its files. It blocks: never on a thread of the runtime.

use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use gix_hash::ObjectId;
use gix_object::bstr::BString;
use gix_pack::Bundle;
use gix_protocol::fetch::negotiate::{Action, Round, one_round};
use gix_protocol::fetch::{Arguments, Context, Negotiate, Options, Response, Shallow, Tags};
use gix_protocol::handshake::Ref;
use gix_protocol::ls_refs::RefPrefixes;
use gix_protocol::{Handshake, LsRefsCommand};
use gix_transport::client::blocking_io::{Transport, http};
use gix_transport::client::git::{ConnectMode, blocking_io::Connection};
use gix_transport::{Protocol, Service};
use gix_utils::progress::Discard;
use reqwest::header::HeaderValue;
use tokio::runtime::Handle;

use crate::source::git::budget::Budget;
use crate::source::git::error::GitError;
use crate::source::git::known_hosts::KnownHosts;
use crate::source::git::reference::Listed;
use crate::source::git::url::{Place, RepositoryUrl};
use crate::source::git::{http as own_http, ssh};

/// The longest list of references: some 300,000 of them.
const LONGEST_LIST: u64 = 32 << 20;

/// What a fetch may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a pack, compressed as they arrive.
    pub pack_bytes: u64,
    /// The largest file, and so about half of the memory that is needed for it.
    pub file_bytes: u64,
    /// How long the references may take.
    pub list_time: Duration,
    /// How long a fetch may take, references and all.
    pub fetch_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pack_bytes: 512 << 20,
            file_bytes: 128 << 20,
            list_time: Duration::from_secs(60),
            fetch_time: Duration::from_secs(10 * 60),
        }
    }
}

/// How a server is talked to.
pub enum Access {
    /// With this client, and these credentials.
    Http {
        client: reqwest::Client,
        login: Option<(String, String)>,
    },
    Ssh {
        key: String,
        passphrase: Option<String>,
        known: KnownHosts,
    },
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// An open conversation.
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
    /// Connects. `what` is what the conversation is about, should it take longer than `limit`.
    pub fn open(
        runtime: Handle,
        url: &RepositoryUrl,
        access: &Access,
        what: &'static str,
        limit: Duration,
    ) -> Result<Self, GitError> {
        let budget = Arc::new(Budget::new(runtime, what, limit));
        budget.allow("the list of references", LONGEST_LIST);
        let mut transport = connect(url, access, &budget)?;
        let nobody = |_| Ok(None);
        let handshake = gix_protocol::handshake(&mut transport, Service::UploadPack, nobody, Vec::new(), &mut Discard);
        let handshake = handshake.map_err(|error| budget.reason(&error))?;
        Ok(Self { transport, handshake, budget, url: url.to_string() })
    }

    /// The references whose names begin so; all without a name. A server may tell of more.
    pub fn list(&mut self, prefixes: &[String]) -> Result<Vec<Listed>, GitError> {
        if let Some(told) = &self.handshake.refs {
            return Ok(told.iter().filter_map(listed).collect());
        }
        let wanted = (!prefixes.is_empty()).then(|| {
            let mut wanted = RefPrefixes::new();
            wanted.extend(prefixes.iter().map(|prefix| BString::from(prefix.as_str())));
            wanted
        });
        let command = LsRefsCommand::new(wanted, &self.handshake.capabilities, agent());
        let told = command.invoke_blocking(&mut self.transport, &mut Discard, false);
        Ok(told.map_err(|error| self.budget.reason(&error))?.iter().filter_map(listed).collect())
    }

    /// Which hash names objects there.
    pub fn object_hash(&self) -> Result<gix_hash::Kind, GitError> {
        let format = self.handshake.capabilities.capability("object-format");
        match format.and_then(|format| format.value().map(ToString::to_string)).as_deref() {
            None | Some("sha1") => Ok(gix_hash::Kind::Sha1),
            Some("sha256") => Ok(gix_hash::Kind::Sha256),
            Some(other) => Err(GitError::Protocol(format!("objects are named by {other}, which is not known"))),
        }
    }

    /// Fetches a commit with its files into a directory; with all that came before it if `full_history`.
    pub fn fetch(
        &mut self,
        commit: &str,
        full_history: bool,
        directory: &Path,
        limits: &Limits,
    ) -> Result<Bundle, GitError> {
        let kind = self.object_hash()?;
        let id = ObjectId::from_hex(commit.as_bytes()).ok().filter(|id| id.kind() == kind);
        let id = id.ok_or_else(|| {
            GitError::Reference(format!("{commit} is no name of a commit in this repository ({kind})"))
        })?;
        if !full_history && !self.sends_one_commit() {
            let what = "the server cannot send one commit without its history: set spec.shallow to false";
            return Err(GitError::Reference(what.to_owned()));
        }
        self.budget.allow("the pack that the server sends", limits.pack_bytes);
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
        let mut bundle = None;
        let fetched = gix_protocol::fetch(
            &mut OneCommit(id),
            |pack, progress, interrupt| {
                bundle = write(pack, directory, kind, limits, progress, interrupt)?;
                Ok(true)
            },
            Discard,
            &self.budget.interrupt,
            context,
            options,
        );
        if let Err(error) = fetched {
            return Err(refused(self.budget.reason(&error), commit, limits));
        }
        let mut bundle = bundle.ok_or_else(|| GitError::Protocol("it sent an empty pack".to_owned()))?;
        bundle.pack.alloc_limit_bytes = usize::try_from(limits.file_bytes).ok();
        Ok(bundle)
    }

    fn sends_one_commit(&self) -> bool {
        let capabilities = &self.handshake.capabilities;
        match self.handshake.server_protocol_version {
            Protocol::V2 => {
                capabilities.capability("fetch").and_then(|fetch| fetch.supports("shallow")).unwrap_or_default()
            }
            _ => capabilities.contains("shallow"),
        }
    }
}

/// Writes what arrives into the directory, with its index.
fn write(
    pack: &mut dyn std::io::BufRead,
    directory: &Path,
    kind: gix_hash::Kind,
    limits: &Limits,
    progress: &mut dyn gix_utils::progress::DynNestedProgress,
    interrupt: &std::sync::atomic::AtomicBool,
) -> gix_error::Result<Option<Bundle>> {
    let options = gix_pack::bundle::write::Options {
        // Each thread has its own objects in memory.
        thread_limit: Some(1),
        alloc_limit_bytes: usize::try_from(limits.file_bytes).ok(),
        ..gix_pack::bundle::write::Options::default()
    };
    let none = None::<gix_object::find::Never>;
    Bundle::write_to_directory(pack, Some(directory), progress, interrupt, none, kind, options)?.to_bundle().transpose()
}

/// Servers say in several ways that they do not have a commit, or do not give it out; the library says one thing of what is too large.
fn refused(error: GitError, commit: &str, limits: &Limits) -> GitError {
    match &error {
        GitError::Protocol(said) if said.contains("too large to fit in memory") => {
            GitError::TooLarge { what: "a file, or the list of all objects,", limit: limits.file_bytes }
        }
        GitError::Protocol(said)
            if ["not our ref", "unadvertised object", "no such"].iter().any(|part| said.contains(part)) =>
        {
            GitError::Reference(format!(
                "the repository has no commit {commit}, or the server does not give out commits that no branch or tag names"
            ))
        }
        _ => error,
    }
}

fn connect(url: &RepositoryUrl, access: &Access, budget: &Arc<Budget>) -> Result<Box<dyn Transport>, GitError> {
    match (url.place(), access) {
        (Place::Http(place), Access::Http { client, login }) => {
            let authorization = login.as_ref().map(|(user, password)| authorization(user, password)).transpose()?;
            let connection = own_http::Connection::new(client.clone(), Arc::clone(budget), place, authorization);
            let parsed = gix_url::parse(place.as_str()).map_err(|error| GitError::Protocol(error.to_string()))?;
            Ok(Box::new(http::connect_http(connection, parsed, Protocol::V2, false)))
        }
        (Place::Ssh(place), Access::Ssh { key, passphrase, known }) => {
            let identity = ssh::Identity { key, passphrase: passphrase.as_deref() };
            let (receiver, sender) = ssh::open(place, &identity, known.clone(), budget)?;
            let host = None::<(String, Option<u16>)>;
            let path = place.path.as_str();
            Ok(Box::new(Connection::new(receiver, sender, Protocol::V2, path, host, ConnectMode::Process, false)))
        }
        (Place::Http(_), _) => Err(GitError::Credentials(
            "the Secret holds an SSH key, and the repository is not reached by SSH: give it accessToken, or username and password"
                .to_owned(),
        )),
        (Place::Ssh(_), _) => Err(GitError::Credentials(
            "the repository is reached by SSH, and the Secret holds no sshPrivateKey".to_owned(),
        )),
    }
}

fn authorization(user: &str, password: &str) -> Result<HeaderValue, GitError> {
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let mut value = HeaderValue::from_str(&format!("Basic {encoded}"))
        .map_err(|_| GitError::Credentials("the credentials make no header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn agent() -> gix_protocol::command::Feature {
    ("agent", Some(concat!("git/pulumi-controller-", env!("CARGO_PKG_VERSION")).to_owned()))
}

/// A reference by the commit that it means in the end.
fn listed(told: &Ref) -> Option<Listed> {
    let (name, object) = match told {
        Ref::Peeled { full_ref_name, object, .. }
        | Ref::Direct { full_ref_name, object }
        | Ref::Symbolic { full_ref_name, object, .. } => (full_ref_name, object),
        Ref::Unborn { .. } => return None,
    };
    Some(Listed { name: name.to_string(), commit: object.to_string() })
}

/// There is nothing to negotiate: we have nothing, and want one commit.
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
