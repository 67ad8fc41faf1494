//! The web UI lists Stacks, shows their runs, and performs user actions. The server renders all pages.
//!
//! Users sign in with a Kubernetes API token or through an OIDC issuer. The UI sends all requests for a user with the
//! user's token. The API server therefore decides what the user may read and change, and the controller needs no
//! additional permissions. The controller itself watches all Stacks: `directory` keeps a short row for each Stack, and
//! `permissions` asks the API server which rows a user may see.
//!
//! Every replica serves the UI. Each replica keeps its session key only in memory.

mod actions;
mod attempts;
mod csrf;
mod directory;
mod error;
mod form;
mod graph;
mod issuer_client;
mod live;
mod oidc;
mod oidc_sign_in;
mod pages;
mod permissions;
mod query;
mod request_limits;
mod response;
mod router;
mod row;
mod session;
mod sign_in;
mod sign_in_limits;
mod state;
mod stored_runs;
mod users;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::directory::Directory;
use self::live::streams::Streams;
use self::oidc::Oidc;
use self::permissions::Permissions;
use self::request_limits::RequestLimits;
use self::session::Sessions;
use self::sign_in_limits::SignInLimits;
use self::state::Ui;
use self::stored_runs::StoredRuns;
use self::users::Users;
use crate::config::OidcConfig;
use crate::history::HistoryStore;
use crate::http_client::Proxies;
use crate::runtime::scope::Scope;
use crate::server;

pub use self::session::SessionError;

/// Maximum duration of a connection. This duration is longer than the maximum duration of a stream.
const MAX_CONNECTION: Duration = Duration::from_secs(11 * 60);
/// Maximum number of connections. Each stream occupies a connection.
const CONNECTIONS: usize = 256;
/// Maximum number of waiting connections per peer. A peer can be a proxy for all users. A connection with an open
/// stream is a waiting connection.
const WAITING_PER_PEER: usize = 192;

/// Dependencies and settings of the web UI.
pub struct Settings {
    /// Client with the controller's identity, for the Stack watch.
    pub client: Client,
    /// Client without an identity, for user requests.
    pub without_credentials: Client,
    pub scope: Scope,
    /// History of runs, if enabled.
    pub history: Option<HistoryStore>,
    /// Cluster name in the title of each page. Empty if the cluster has no name.
    pub cluster_name: String,
    /// OIDC sign-in settings, if OIDC is enabled.
    pub oidc: Option<OidcConfig>,
    pub tasks: TaskTracker,
}

/// Starts the web UI, which runs until the caller cancels `end`.
///
/// # Errors
/// Returns an error if the session key cannot be created.
pub fn start(settings: Settings, listener: TcpListener, end: &CancellationToken) -> Result<(), SessionError> {
    let Settings { client, without_credentials, scope, history, cluster_name, oidc, tasks } = settings;
    let directory = Directory::default();
    let ui = Ui {
        users: Users::new(without_credentials),
        sessions: Sessions::new()?,
        sign_in_limits: SignInLimits::default(),
        exchange_limits: SignInLimits::default(),
        request_limits: RequestLimits::default(),
        oidc: oidc.map(|config| Oidc::new(config, Proxies::from_environment())),
        permissions: Permissions::default(),
        directory: directory.clone(),
        stored_runs: StoredRuns::new(client.clone(), history),
        streams: Streams::new(tasks.clone(), end.clone()),
        cluster_name,
    };
    // In a sharded installation, the list contains the Stacks from all shards.
    tasks.spawn(directory::follow(scope.api(client), scope.other_kinds(), directory, end.clone()));
    let limits = server::Limits {
        connections: CONNECTIONS,
        waiting_per_peer: WAITING_PER_PEER,
        all: MAX_CONNECTION,
        ..server::Limits::default()
    };
    let router = router::router(Arc::new(ui));
    tasks.spawn(server::serve("the web UI", listener, router, limits, tasks.clone(), end.clone()));
    Ok(())
}

#[cfg(test)]
mod tests;
