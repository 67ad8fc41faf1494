//! Handles webhook calls.
//!
//! The response to a rejected call does not contain the reason. An unknown path, a suspended receiver, a wrong
//! signature and an exceeded rate limit all result in the same response with the same delay. Only authenticated calls
//! receive the response that too many calls are waiting. A call with an OIDC token can take longer, if the handler reads
//! the keys of the issuer. The path of such a receiver is not secret.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::api::conditions::receiver_reason;
use crate::api::pulumi::{NoToken, ReceiverToken, ReceiverType, StackReceiver};
use crate::receiver::call_limits::DelayedRefusals;
use crate::receiver::directory::{Directory, Entry};
use crate::receiver::issuers::Issuers;
use crate::receiver::proof::{Proof, triggers_run};
use crate::receiver::run_requests::{MAX_DURATION, RunRequester, RunRequests};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::fair_slots::Busy;
use crate::runtime::reads::Reader;
use crate::telemetry::chain;
use crate::telemetry::metrics::{Metrics, WebhookResult};

/// Maximum size of a body, in bytes. Flux has the same maximum.
const MAX_BODY: usize = 3 * 1024 * 1024;
/// Value of the header `Retry-After` in seconds. The calls in progress end within this time.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("10");

/// Handler for webhook calls.
pub struct Handler {
    pub directory: Directory,
    pub reader: Reader,
    pub requester: RunRequester,
    pub issuers: Issuers,
    pub events: Events,
    pub metrics: Metrics,
    /// Delay before the response to a rejected call. The delay must exceed the duration of all checks.
    pub refusal_delay: Duration,
    pub delayed_refusals: DelayedRefusals,
}

/// A call that has passed all checks that do not require the body.
struct CheckedCall {
    entry: Entry,
    proof: Proof,
}

/// Returns a router that passes calls for all paths and methods to the handler.
pub fn router(handler: Arc<Handler>) -> Router {
    Router::new().fallback(move |request: Request<Body>| async move { handler.handle(request).await })
}

impl Handler {
    /// Handles a call and returns the response.
    pub async fn handle(&self, request: Request<Body>) -> Response<Body> {
        // The checks that do not require the body take longer for an existing path than for an unknown path. The fixed
        // delay hides this difference.
        let half = self.refusal_delay / 2;
        let received = Instant::now();
        let head_checked = received + half;
        let (parts, body) = request.into_parts();
        let mut checked = self.check_head(&parts).await;
        // The maximum duration includes the read of the Secret, but not the time that the caller needs for the body.
        let remaining = MAX_DURATION.saturating_sub(received.elapsed());
        let is_whole = drain(body, checked.as_mut().map(|checked| &mut checked.proof)).await;
        let refusal = head_checked.max(Instant::now()) + half;
        if !is_whole {
            self.metrics.webhook(WebhookResult::Refused);
            return plain(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let result = match checked {
            Some(checked) => self.finish(checked, &parts, remaining).await,
            None => Ok(WebhookResult::Refused),
        };
        let Ok(result) = result else {
            self.metrics.webhook(WebhookResult::Refused);
            return unavailable();
        };
        self.metrics.webhook(result);
        plain(match result {
            WebhookResult::Accepted | WebhookResult::Ignored => StatusCode::OK,
            WebhookResult::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            WebhookResult::Refused => {
                self.delayed_refusals.wait_until(refusal).await;
                StatusCode::NOT_FOUND
            }
        })
    }

    /// Performs the checks that do not require the body.
    async fn check_head(&self, parts: &Parts) -> Option<CheckedCall> {
        let path = parts.uri.path();
        let entry = self.directory.find(path).filter(|_| parts.method == Method::POST)?;
        let proof = match entry.receiver.spec.kind {
            ReceiverType::GenericOidc => {
                let authenticated = self.issuers.authenticate(&entry.receiver, &parts.headers).await;
                authenticated.map(|()| Proof::Given).map_err(|fault| fault.to_string())
            }
            kind => self.begin_proof(&entry, kind, parts).await,
        };
        match proof {
            Ok(proof) => Some(CheckedCall { entry, proof }),
            Err(why) => {
                self.refuse(&entry, &why);
                None
            }
        }
    }

    /// Reads the token of the receiver, and performs the checks that do not require the body.
    async fn begin_proof(&self, entry: &Entry, kind: ReceiverType, parts: &Parts) -> Result<Proof, String> {
        let (reader, receiver) = (self.reader.clone(), entry.receiver.clone());
        let token = entry.limits.token_reads.read(move || token(reader, receiver)).await;
        let token = token.map_err(|problem| problem.to_string())?;
        let is_current = entry.receiver.path(&token) == parts.uri.path();
        Proof::begin(kind, &parts.headers, &token, is_current).map_err(|fault| fault.to_string())
    }

    /// Performs the checks that require the body, and requests the runs within the remaining time.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many calls are waiting.
    async fn finish(&self, checked: CheckedCall, parts: &Parts, remaining: Duration) -> Result<WebhookResult, Busy> {
        let CheckedCall { entry, proof } = checked;
        if let Err(fault) = proof.verify() {
            self.refuse(&entry, &fault.to_string());
            return Ok(WebhookResult::Refused);
        }
        // Authenticates the call before checking the rate limits, because callers without the token must not exhaust
        // the rate limits.
        if let Err(exceeded) = entry.limits.count_call(Instant::now()) {
            self.refuse(&entry, &exceeded.to_string());
            return Ok(WebhookResult::Refused);
        }
        let receiver = &entry.receiver;
        if !triggers_run(receiver.spec.kind, &receiver.spec.events, &parts.headers) {
            let (namespace, name) = (receiver.namespace().unwrap_or_default(), receiver.name_any());
            tracing::info!(namespace, name, "webhook event ignored");
            return Ok(WebhookResult::Ignored);
        }
        if let Err(exceeded) = entry.limits.count_run_request(Instant::now()) {
            self.refuse(&entry, &exceeded.to_string());
            return Ok(WebhookResult::Refused);
        }
        match self.requester.request(receiver, Timestamp::now(), Instant::now() + remaining).await {
            Ok(requests) => Ok(self.report(&entry, &requests)),
            Err(busy) => {
                let waiting = busy.waiting;
                self.refuse(&entry, &format!("too many calls are waiting, {waiting} of them in this namespace"));
                Err(busy)
            }
        }
    }

    /// Logs the result of requesting runs. Publishes an event if requesting some runs has failed.
    fn report(&self, entry: &Entry, requests: &RunRequests) -> WebhookResult {
        let (namespace, name) = (entry.receiver.namespace().unwrap_or_default(), entry.receiver.name_any());
        let (stacks, problem) = (requests.stacks, requests.problem());
        let Some(problem) = problem else {
            tracing::info!(namespace, name, stacks, "runs requested by webhook");
            return WebhookResult::Accepted;
        };
        tracing::warn!(namespace, name, stacks, problem, "failed to request runs of some Stacks");
        let message = format!("failed to request runs of some Stacks: {problem}");
        self.publish(entry, receiver_reason::FAILED, &message);
        WebhookResult::Failed
    }

    /// Publishes an event with the reason for a rejection, so that the receiver's owner can read the reason. The
    /// webhook caller does not receive the reason.
    fn refuse(&self, entry: &Entry, reason: &str) {
        let (namespace, name) = (entry.receiver.namespace().unwrap_or_default(), entry.receiver.name_any());
        // Logs rejections at debug level, because any client can cause rejections. A metric counts the rejections, and
        // the event contains the reason.
        tracing::debug!(namespace, name, reason, "webhook call rejected");
        self.publish(entry, receiver_reason::VALIDATION_FAILED, &format!("webhook call rejected: {reason}"));
    }

    fn publish(&self, entry: &Entry, reason: &str, message: &str) {
        if entry.limits.may_publish(Instant::now()) {
            self.events.publish(Event::new(entry.receiver.as_ref(), EventKind::Warning, reason, message));
        }
    }
}

/// Reads the token of a receiver.
async fn token(reader: Reader, receiver: Arc<StackReceiver>) -> Result<ReceiverToken, NoToken> {
    let namespace = receiver.namespace().unwrap_or_default();
    let secret = reader.get_opt::<Secret>(&namespace, receiver.secret_name()?).await;
    receiver.token(secret.map_err(|error| NoToken::Unreadable(chain(&error)))?)
}

/// Reads the whole body, and passes each piece to the proof. Returns `false` if the body is incomplete or too large.
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
            proof.update(&piece);
        }
    }
    true
}

/// Returns the response to an authenticated call that must be repeated later.
fn unavailable() -> Response<Body> {
    let mut response = plain(StatusCode::SERVICE_UNAVAILABLE);
    response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    response
}

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
