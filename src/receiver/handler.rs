//! Handles webhook calls.
//!
//! Refusals reveal nothing: an unknown path, a suspended receiver, a wrong signature and an exceeded rate limit result in the
//! same response, with the same delay after the body.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::api::conditions::receiver_reason;
use crate::api::pulumi::{NoToken, ReceiverToken, StackReceiver};
use crate::receiver::directory::{Directory, Entry};
use crate::receiver::proof::{Proof, runs};
use crate::receiver::requests;
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::Reader;
use crate::runtime::writes::Writer;
use crate::telemetry::chain;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::webhooks::WebhookResult;

/// Maximum size of a body in bytes, as in Flux.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// Handler of webhook calls.
pub struct Handler {
    pub directory: Directory,
    pub reader: Reader,
    pub writer: Writer,
    pub events: Events,
    pub metrics: Metrics,
    /// Delay of refusals. It must exceed the duration of all checks.
    pub refused_after: Duration,
}

/// A call that passed all checks before its body.
struct Promising {
    entry: Entry,
    proof: Proof,
}

/// Routes calls of all paths and methods to the handler.
pub fn router(handler: Arc<Handler>) -> Router {
    Router::new().fallback(move |request: Request<Body>| async move { handler.answer(request).await })
}

impl Handler {
    /// Handles a call and returns the response.
    pub async fn answer(&self, request: Request<Body>) -> Response<Body> {
        // The checks before the body take longer for known paths. The fixed delay hides this from callers.
        let half = self.refused_after / 2;
        let looked = Instant::now() + half;
        let (parts, body) = request.into_parts();
        let mut promising = self.look(&parts).await;
        let is_whole = drain(body, promising.as_mut().map(|promising| &mut promising.proof)).await;
        let refusal = looked.max(Instant::now()) + half;
        if !is_whole {
            self.metrics.webhook(WebhookResult::Refused);
            return plain(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let result = match promising {
            Some(promising) => self.conclude(promising, &parts).await,
            None => WebhookResult::Refused,
        };
        self.metrics.webhook(result);
        plain(match result {
            WebhookResult::Accepted | WebhookResult::Ignored => StatusCode::OK,
            WebhookResult::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            WebhookResult::Refused => {
                tokio::time::sleep_until(refusal).await;
                StatusCode::NOT_FOUND
            }
        })
    }

    /// Makes the checks that do not need the body.
    async fn look(&self, parts: &Parts) -> Option<Promising> {
        let path = parts.uri.path();
        let entry = self.directory.find(path).filter(|_| parts.method == Method::POST)?;
        let receiver = &entry.receiver;
        let (reader, of) = (self.reader.clone(), receiver.clone());
        let token = match entry.pace.token_reads.read(move || token(reader, of)).await {
            Ok(token) => token,
            Err(problem) => {
                self.refuse(&entry, &problem.to_string());
                return None;
            }
        };
        match Proof::begin(receiver.spec.kind, &parts.headers, &token, receiver.path(&token) == path) {
            Ok(proof) => Some(Promising { entry, proof }),
            Err(fault) => {
                self.refuse(&entry, &fault.to_string());
                None
            }
        }
    }

    /// Completes the checks with the body and requests the runs.
    async fn conclude(&self, promising: Promising, parts: &Parts) -> WebhookResult {
        let Promising { entry, proof } = promising;
        if let Err(fault) = proof.end() {
            self.refuse(&entry, &fault.to_string());
            return WebhookResult::Refused;
        }
        // After authentication, so that callers without the token cannot use up the allowance.
        if !entry.pace.may_call(Instant::now()) {
            self.refuse(&entry, "calls come too often: twenty at once, then one a second are taken");
            return WebhookResult::Refused;
        }
        let receiver = &entry.receiver;
        let (namespace, name) = (receiver.namespace().unwrap_or_default(), receiver.name_any());
        if !runs(receiver.spec.kind, &receiver.spec.events, &parts.headers) {
            tracing::info!(namespace, name, "a webhook tells of an event that runs nothing");
            return WebhookResult::Ignored;
        }
        let asked = requests::ask(&self.reader, &self.writer, receiver, Timestamp::now()).await;
        match asked.problem {
            None => {
                tracing::info!(namespace, name, stacks = asked.stacks, "a webhook has asked Stacks to run");
                WebhookResult::Accepted
            }
            Some(problem) => {
                tracing::warn!(
                    namespace,
                    name,
                    stacks = asked.stacks,
                    problem,
                    "a webhook could not ask all its Stacks to run"
                );
                self.tell(&entry, receiver_reason::FAILED, &format!("not all Stacks could be asked to run: {problem}"));
                WebhookResult::Failed
            }
        }
    }

    /// Publishes the reason of a refusal as an event for the owner of the receiver. The caller does not get the reason.
    fn refuse(&self, entry: &Entry, why: &str) {
        let (namespace, name) = (entry.receiver.namespace().unwrap_or_default(), entry.receiver.name_any());
        // Any client can cause refusals, so they are logged at debug level only. The metric counts them, and the event contains
        // the reason.
        tracing::debug!(namespace, name, why, "a call to a webhook was refused");
        self.tell(entry, receiver_reason::VALIDATION_FAILED, &format!("a call was refused: {why}"));
    }

    fn tell(&self, entry: &Entry, reason: &str, message: &str) {
        if entry.pace.may_tell(Instant::now()) {
            self.events.publish(Event::new(entry.receiver.as_ref(), EventKind::Warning, reason, message));
        }
    }
}

/// Reads the token of a receiver.
async fn token(reader: Reader, receiver: Arc<StackReceiver>) -> Result<ReceiverToken, NoToken> {
    let namespace = receiver.namespace().unwrap_or_default();
    let secret = reader.get_opt::<Secret>(&namespace, &receiver.spec.secret_ref.name).await;
    receiver.token(secret.map_err(|error| NoToken::Unreadable(chain(&error)))?)
}

/// Reads a body to its end and passes it to the proof. Returns `false` if the body is incomplete or too large.
async fn drain(body: Body, mut proof: Option<&mut Proof>) -> bool {
    let mut pieces = body.into_data_stream();
    let mut length = 0_usize;
    while let Some(piece) = pieces.next().await {
        let Ok(piece) = piece else { return false };
        length = length.saturating_add(piece.len());
        if length > MAX_BODY {
            return false;
        }
        if let Some(proof) = &mut proof {
            proof.take(&piece);
        }
    }
    true
}

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
