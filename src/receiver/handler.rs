//! Handles webhook calls.
//!
//! The response to a rejected call does not contain the reason. An unknown path, a suspended receiver, a wrong
//! signature and an exceeded rate limit all result in the same response with the same delay.

use std::collections::BTreeMap;
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
use kube::core::PartialObjectMeta;
use thiserror::Error;
use tokio::time::Instant;

use crate::api::conditions::receiver_reason;
use crate::api::names::ANNOTATION_REQUESTED_AT;
use crate::api::pulumi::{NoToken, ReceiverResource, ReceiverToken, Stack, StackReceiver};
use crate::receiver::call_limits::DelayedRefusals;
use crate::receiver::directory::{Directory, Entry};
use crate::receiver::proof::{Proof, triggers_run};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{WriteError, Writer};
use crate::telemetry::chain;
use crate::telemetry::metrics::{Metrics, WebhookResult};

/// Maximum size of a body, in bytes. Flux has the same maximum.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// Handler for webhook calls.
pub struct Handler {
    pub directory: Directory,
    pub reader: Reader,
    pub writer: Writer,
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
        let head_checked = Instant::now() + half;
        let (parts, body) = request.into_parts();
        let mut checked = self.check_head(&parts).await;
        let is_whole = drain(body, checked.as_mut().map(|checked| &mut checked.proof)).await;
        let refusal = head_checked.max(Instant::now()) + half;
        if !is_whole {
            self.metrics.webhook(WebhookResult::Refused);
            return plain(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let result = match checked {
            Some(checked) => self.finish(checked, &parts).await,
            None => WebhookResult::Refused,
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
        let receiver = &entry.receiver;
        let (reader, of) = (self.reader.clone(), receiver.clone());
        let token = match entry.limits.token_reads.read(move || token(reader, of)).await {
            Ok(token) => token,
            Err(problem) => {
                self.refuse(&entry, &problem.to_string());
                return None;
            }
        };
        match Proof::begin(receiver.spec.kind, &parts.headers, &token, receiver.path(&token) == path) {
            Ok(proof) => Some(CheckedCall { entry, proof }),
            Err(fault) => {
                self.refuse(&entry, &fault.to_string());
                None
            }
        }
    }

    /// Performs the checks that require the body, and requests the runs.
    async fn finish(&self, checked: CheckedCall, parts: &Parts) -> WebhookResult {
        let CheckedCall { entry, proof } = checked;
        if let Err(fault) = proof.verify() {
            self.refuse(&entry, &fault.to_string());
            return WebhookResult::Refused;
        }
        // Authenticates the call before checking the rate limit, because callers without the token must not exhaust the
        // rate limit.
        if !entry.limits.may_call(Instant::now()) {
            self.refuse(&entry, "rate limit exceeded: 1 call per second with a burst of 20");
            return WebhookResult::Refused;
        }
        let receiver = &entry.receiver;
        let (namespace, name) = (receiver.namespace().unwrap_or_default(), receiver.name_any());
        if !triggers_run(receiver.spec.kind, &receiver.spec.events, &parts.headers) {
            tracing::info!(namespace, name, "webhook event ignored");
            return WebhookResult::Ignored;
        }
        let requested = request_runs(&self.reader, &self.writer, receiver, Timestamp::now()).await;
        match requested.problem {
            None => {
                tracing::info!(namespace, name, stacks = requested.stacks, "runs requested by webhook");
                WebhookResult::Accepted
            }
            Some(problem) => {
                tracing::warn!(
                    namespace,
                    name,
                    stacks = requested.stacks,
                    problem,
                    "failed to request runs of some Stacks"
                );
                self.publish(
                    &entry,
                    receiver_reason::FAILED,
                    &format!("failed to request runs of some Stacks: {problem}"),
                );
                WebhookResult::Failed
            }
        }
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
    let secret = reader.get_opt::<Secret>(&namespace, &receiver.spec.secret_ref.name).await;
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

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Maximum number of Stacks that the handler annotates concurrently for one call.
const MAX_CONCURRENT_ANNOTATIONS: usize = 8;
/// Maximum number of errors that a message lists. The message also states how many errors are omitted.
const MAX_LISTED_ERRORS: usize = 3;

/// The reason why requesting a run failed.
#[derive(Debug, Error)]
enum RequestError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("Stack {namespace}/{name} not found")]
    NoStack { namespace: String, name: String },
}

/// Result of requesting runs for all Stacks that a receiver references.
#[derive(Debug, Default, PartialEq, Eq)]
struct RunRequests {
    /// Number of successful requests.
    stacks: usize,
    /// Reasons why requesting runs of the other Stacks failed.
    problem: Option<String>,
}

/// Requests runs of all Stacks that a receiver references. A failure for one Stack does not affect the other Stacks.
async fn request_runs(reader: &Reader, writer: &Writer, receiver: &StackReceiver, now: Timestamp) -> RunRequests {
    let namespace = receiver.namespace().unwrap_or_default();
    let mut stacks = BTreeMap::new();
    let mut errors = Vec::new();
    for resource in &receiver.spec.resources {
        match find_stacks(reader, &namespace, resource).await {
            Ok(found) => stacks.extend(found.into_iter().map(|stack| (stack.name_any(), stack))),
            Err(error) => errors.push(error),
        }
    }
    let request = BTreeMap::from([(ANNOTATION_REQUESTED_AT.to_owned(), Some(now.to_string()))]);
    let request = &request;
    let results: Vec<_> = futures::stream::iter(stacks.into_values())
        .map(|stack| async move { writer.annotate(&stack, request).await })
        .buffer_unordered(MAX_CONCURRENT_ANNOTATIONS)
        .collect()
        .await;
    let all = results.len();
    errors.extend(results.into_iter().filter_map(Result::err).map(RequestError::from));
    let failed = errors.iter().filter(|error| matches!(error, RequestError::Write(_))).count();
    RunRequests { stacks: all.saturating_sub(failed), problem: problem(&errors) }
}

async fn find_stacks(
    reader: &Reader,
    namespace: &str,
    resource: &ReceiverResource,
) -> Result<Vec<PartialObjectMeta<Stack>>, RequestError> {
    let Some(name) = resource.stack_name() else {
        // The schema requires labels. Without this check, an empty selector would match all Stacks.
        if resource.match_labels.is_empty() {
            return Ok(Vec::new());
        }
        let labels: Vec<String> = resource.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        return Ok(reader.list_metadata::<Stack>(namespace, &labels.join(","), |_| true).await?);
    };
    let stack = reader.get_metadata_opt::<Stack>(namespace, name).await?;
    let missing = || RequestError::NoStack { namespace: namespace.to_owned(), name: name.to_owned() };
    Ok(vec![stack.ok_or_else(missing)?])
}

fn problem(errors: &[RequestError]) -> Option<String> {
    let listed: Vec<String> = errors.iter().take(MAX_LISTED_ERRORS).map(|error| chain(error)).collect();
    let others = match errors.len().saturating_sub(MAX_LISTED_ERRORS) {
        0 => String::new(),
        number => format!("; and {number} more"),
    };
    (!listed.is_empty()).then(|| listed.join("; ") + &others)
}
