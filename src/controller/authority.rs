//! Maintains the controller's certificate authority (CA) in a Secret in the controller's namespace. Connections
//! remain usable after the controller rotates the CA, after a user replaces the CA, and after a user deletes the
//! Secret.
//!
//! The module `secret` defines the format of the Secret, and the module `decide` selects the next step. [`CaRotator`]
//! reads the Secret, performs the steps, and publishes the active CA generations.

mod decide;
mod generations;
mod secret;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::decide::{Action, Found, decide};
use crate::rpc::client::{Agents, ClientIdentityError};
use crate::rpc::identity::{self, Authority, IdentityError, Issued};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{Created, WriteError, Writer};
use crate::telemetry::chain;
use crate::telemetry::metrics::Metrics;

pub use generations::Generations;
pub use secret::SECRET;

/// Interval between two reads of the Secret. The controller does not watch Secrets.
const READ_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum number of steps per pass. A pass exceeds the maximum only if another client continuously changes the
/// Secret.
const MAX_STEPS: usize = 6;

/// Failure to create, read or update the CA.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("failed to issue certificates")]
    Issue(#[from] IdentityError),
    #[error("failed to use the client certificates of the controller")]
    Use(#[from] ClientIdentityError),
    #[error(
        "invalid Secret {namespace}/{SECRET}: {reason}; store a CA certificate and its key in ca.crt and ca.key, or delete the \
         Secret so that the controller creates it again"
    )]
    Unusable { namespace: String, reason: String },
    #[error("failed to update Secret {0}/{SECRET}: another client changes it continuously")]
    Contended(String),
}

/// Namespace of the Secret, and the clients that read and write the Secret.
pub struct SecretStore {
    pub reader: Reader,
    pub writer: Writer,
    pub namespace: String,
}

/// Maintains the CA. No other component of the controller writes the Secret.
pub struct CaRotator {
    store: SecretStore,
    events: Events,
    metrics: Metrics,
    agents: Agents,
    clients: Vec<Issued>,
    active: watch::Sender<Arc<Generations>>,
    /// Last reported error, or `None` after a successful pass. The controller does not report the same error twice in
    /// a row.
    error: Option<String>,
}

impl CaRotator {
    /// Reads the CA from the Secret, or creates the CA. If two processes concurrently create a CA, both use the CA
    /// that was stored first.
    pub async fn start(store: SecretStore, events: Events, metrics: Metrics) -> Result<CaRotator, AuthorityError> {
        let now = Timestamp::now();
        let generations = match store.settle(None, now).await? {
            Settled::Good(generations) => generations,
            Settled::Bad { reason, .. } => {
                return Err(AuthorityError::Unusable { namespace: store.namespace, reason });
            }
        };
        let clients = generations.issue_clients(now)?;
        let agents = Agents::new(&clients, generations.bundle_pem())?;
        metrics.authority(generations.current().expiry(), true);
        let (active, _) = watch::channel(Arc::new(generations));
        Ok(CaRotator { store, events, metrics, agents, clients, active, error: None })
    }

    /// Returns the client for all agents, which authenticates with the controller's active certificates.
    pub fn agents(&self) -> Agents {
        self.agents.clone()
    }

    /// Returns a receiver for the active CA generations.
    pub fn authority(&self) -> watch::Receiver<Arc<Generations>> {
        self.active.subscribe()
    }

    /// Returns the client certificates that the controller presents to agents.
    #[cfg(test)]
    fn clients(&self) -> Vec<String> {
        self.clients.iter().map(|client| client.certificate_pem.clone()).collect()
    }

    /// Runs until `end` is canceled.
    pub async fn run(mut self, end: CancellationToken) {
        loop {
            tokio::select! {
                () = end.cancelled() => return,
                () = tokio::time::sleep(READ_INTERVAL) => {}
            }
            self.refresh(Timestamp::now()).await;
        }
    }

    /// Performs one pass: reads the Secret, performs the due steps, and reports errors. After an error, the active CA
    /// remains unchanged.
    async fn refresh(&mut self, now: Timestamp) {
        let known = self.active.borrow().clone();
        let (good, error, secret) = match self.store.settle(Some(&known), now).await {
            Ok(Settled::Good(generations)) => (Some(generations), None, None),
            Ok(Settled::Bad { reason, secret }) => {
                let namespace = self.store.namespace.clone();
                (None, Some(chain(&AuthorityError::Unusable { namespace, reason })), Some(secret))
            }
            Err(error) => (None, Some(chain(&error)), None),
        };
        self.report(error, secret);
        let generations = good.map_or(known, Arc::new);
        if let Err(error) = self.activate(generations, now) {
            self.report(Some(chain(&error)), None);
        }
        self.metrics.authority(self.active.borrow().current().expiry(), self.error.is_none());
    }

    /// Replaces the client certificates before it publishes the CA generations. Otherwise, the controller could not
    /// call the agents of Workspaces that receive the new CA after the publication.
    fn activate(&mut self, generations: Arc<Generations>, now: Timestamp) -> Result<(), AuthorityError> {
        let is_new = *generations != **self.active.borrow();
        let is_due = |client: &Issued| identity::renewal_due(&client.certificate_pem, now).unwrap_or(true);
        if is_new || self.clients.iter().any(is_due) {
            let clients = generations.issue_clients(now)?;
            self.agents.replace_identity(&clients, generations.bundle_pem())?;
            self.clients = clients;
        }
        if is_new {
            let (next, previous) = (generations.next().is_some(), generations.previous().is_some());
            tracing::info!(secret = SECRET, next, previous, "certificate authority changed");
            self.active.send_replace(generations);
        }
        Ok(())
    }

    fn report(&mut self, error: Option<String>, secret: Option<Box<Secret>>) {
        if error == self.error {
            return;
        }
        match &error {
            Some(message) => {
                tracing::error!(error = message, "failed to update the certificate authority; keeping the current one");
                if let Some(secret) = secret {
                    self.events.publish(Event::new(&*secret, EventKind::Warning, "AuthorityUnusable", message));
                }
            }
            None => tracing::info!(secret = SECRET, "certificate authority is up to date again"),
        }
        self.error = error;
    }
}

/// Result of one pass.
enum Settled {
    Good(Generations),
    Bad { reason: String, secret: Box<Secret> },
}

impl SecretStore {
    /// Reads the Secret and performs steps until no step is due. The controller always reads the active CA from the
    /// Secret, so that the same CA is available after a restart.
    async fn settle(&self, known: Option<&Generations>, now: Timestamp) -> Result<Settled, AuthorityError> {
        for _ in 0..MAX_STEPS {
            let secret = self.reader.get_opt::<Secret>(&self.namespace, SECRET).await?;
            let found = secret::read(secret.as_ref());
            let action = decide(&found, known, now);
            let written = match (&action, &found, secret) {
                (Action::Use, Found::Usable { generations, .. }, _) => return Ok(Settled::Good(*generations.clone())),
                (Action::KeepKnown(reason) | Action::Refuse(reason), _, Some(secret)) => {
                    return Ok(Settled::Bad { reason: reason.clone(), secret: Box::new(secret) });
                }
                (action, Found::Usable { generations, .. }, Some(secret)) => {
                    tracing::info!(?action, "updating the certificate authority");
                    let desired = generations_after(action, generations, known, now)?;
                    self.change(&desired, &secret).await
                }
                (_, _, _) => self.create(known, now).await,
            };
            match written {
                // Another client has changed the Secret, so the next iteration reads it again.
                Err(AuthorityError::Write(error)) if error.is_conflict() || error.is_not_found() => {}
                other => other?,
            }
        }
        Err(AuthorityError::Contended(self.namespace.clone()))
    }

    async fn create(&self, known: Option<&Generations>, now: Timestamp) -> Result<(), AuthorityError> {
        let desired = match known {
            Some(known) => known.clone(),
            None => Generations::first(Authority::generate(now)?),
        };
        if let Created::New(_) = self.writer.create(&secret::new(&desired, &self.namespace)).await? {
            tracing::info!(secret = SECRET, restored = known.is_some(), "created the certificate authority Secret");
        }
        Ok(())
    }

    async fn change(&self, desired: &Generations, found: &Secret) -> Result<(), AuthorityError> {
        let patch = secret::patch(desired, found);
        self.writer.merge::<Secret>(&self.namespace, SECRET, &patch).await?;
        Ok(())
    }
}

/// Returns the CA generations that `action` stores in the Secret.
fn generations_after(
    action: &Action,
    found: &Generations,
    known: Option<&Generations>,
    now: Timestamp,
) -> Result<Generations, AuthorityError> {
    Ok(match (action, known) {
        (Action::TrustReplaced { retire_at }, Some(known)) => found.succeeding(known, *retire_at),
        (Action::AddNext { promote_at }, _) => found.with_next(Authority::generate(now)?, *promote_at),
        (Action::Promote { retire_at }, _) => found.promoted(*retire_at),
        (Action::Retire, _) => found.retired(),
        (_, _) => found.clone(),
    })
}

#[cfg(test)]
mod tests;
