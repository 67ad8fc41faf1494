//! Destination that posts events to Flux notification-controller.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::queue::{Destination, Event, EventHasher, EventKind, Queued, Reporter};
use crate::mutual_tls::{Client, Failure, SendError};
use crate::telemetry::metrics::Metrics;

/// Maximum number of recently posted events in memory. The task compares new events with these events to suppress
/// repetitions.
const MAX_RECENT: usize = 1024;
/// Minimum interval between two posts of equal events. Within the same interval, notification-controller drops
/// repetitions by default.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// API group of the controller's own kinds. The controller sends notifications only about objects of this group and of
/// its subdomains, such as `auto.pulumi.com`.
const OWN_GROUP: &str = "pulumi.com";
/// The action that each event reports: the outcome of a reconciliation, with the same value as in kustomize-controller.
/// The format requires an action since Flux 2.10.
const ACTION: &str = "Reconcile";

/// Address of notification-controller, and the HTTP client and retry policy for requests to this address.
#[derive(Clone, Debug)]
pub struct NotificationController {
    pub address: Url,
    pub client: Client,
    pub retry_policy: RetryPolicy,
}

/// Retry policy for posts. The default is the retry policy of the Flux event recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Maximum number of retries.
    pub retries: u32,
    /// Backoff before the first retry. Each further retry doubles the backoff.
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            timeout: Duration::from_secs(5),
            retries: 4,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
        }
    }
}

/// Reason why the task could not post an event.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    #[error("failed to reach {address}")]
    Unreachable { address: Url, source: reqwest::Error },
    #[error("failed to post to {address}: {failure}")]
    MutualTls { address: Url, failure: Failure },
    #[error("{address} responded with {status}")]
    Refused { address: Url, status: StatusCode },
    #[error("failed to encode an event as JSON")]
    Json(#[from] serde_json::Error),
}

impl PostError {
    /// Returns whether a retry can succeed.
    fn is_transient(&self) -> bool {
        match self {
            PostError::Unreachable { .. } | PostError::MutualTls { .. } => true,
            PostError::Refused { status, .. } => status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED,
            PostError::Json(_) => false,
        }
    }
}

/// Returns whether the task posts an event. The task skips trace events, and events about objects of other controllers,
/// such as pods.
pub(super) fn is_posted(event: &Event) -> bool {
    event.kind != EventKind::Trace && is_own(&event.object)
}

/// Returns whether the object belongs to an API group of this controller.
fn is_own(object: &ObjectReference) -> bool {
    let group = object.api_version.as_deref().and_then(|version| version.split_once('/')).map(|(group, _)| group);
    group.is_some_and(|group| group == OWN_GROUP || group.ends_with(&format!(".{OWN_GROUP}")))
}

/// Destination that posts events to notification-controller, with the recently posted events.
pub(super) struct Notifications {
    controller: NotificationController,
    reporter: Reporter,
    posted: Posted,
}

impl Destination for Notifications {
    const NAME: &'static str = "notification-controller";
    /// As in Flux.
    const MAX_MESSAGE: usize = 39_000;
    const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);
    type Error = PostError;

    async fn deliver(&mut self, queued: Queued, end: &CancellationToken) -> Result<(), PostError> {
        let Queued { event, at } = queued;
        if !self.posted.contains(&event) {
            self.post_with_retries(&event, at, end).await?;
            self.posted.add(&event);
        }
        Ok(())
    }

    fn count_dropped(metrics: &Metrics) {
        metrics.notification_dropped();
    }
}

impl Notifications {
    pub(super) fn new(controller: NotificationController, reporter: Reporter) -> Self {
        Notifications { controller, reporter, posted: Posted::default() }
    }

    async fn post_with_retries(&self, event: &Event, at: Timestamp, end: &CancellationToken) -> Result<(), PostError> {
        let body = Bytes::from(serde_json::to_vec(&self.body(event, at))?);
        let policy = self.controller.retry_policy;
        let mut backoff = policy.initial_backoff;
        for _ in 0..policy.retries {
            match self.post_once(&body).await {
                Err(error) if error.is_transient() && !end.is_cancelled() => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "retrying notification");
                }
                other => return other,
            }
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = end.cancelled() => break,
            }
            backoff = backoff.saturating_mul(2).min(policy.max_backoff);
        }
        self.post_once(&body).await
    }

    async fn post_once(&self, body: &Bytes) -> Result<(), PostError> {
        let NotificationController { address, client, retry_policy } = &self.controller;
        let sent = client.send(address, |client, url| {
            let request = client.post(url).header(CONTENT_TYPE, "application/json");
            request.body(body.clone()).timeout(retry_policy.timeout)
        });
        let response = sent.await.map_err(|error| match error {
            SendError::Refused(failure) => PostError::MutualTls { address: address.clone(), failure },
            SendError::Http(source) => {
                PostError::Unreachable { address: address.clone(), source: source.without_url() }
            }
        })?;
        match response.status() {
            // notification-controller has recently received an equal event.
            StatusCode::TOO_MANY_REQUESTS => Ok(()),
            status if status.is_success() => Ok(()),
            status => Err(PostError::Refused { address: address.clone(), status }),
        }
    }

    fn body<'a>(&'a self, event: &'a Event, at: Timestamp) -> Body<'a> {
        Body {
            involved_object: &event.object,
            severity: if event.kind == EventKind::Warning { "error" } else { "info" },
            // Kubernetes API timestamps have a resolution of one second.
            timestamp: Time(Timestamp::from_second(at.as_second()).unwrap_or(at)),
            message: &event.message,
            reason: &event.reason,
            action: ACTION,
            metadata: &event.metadata,
            reporting_controller: &self.reporter.component,
            reporting_instance: &self.reporter.instance,
        }
    }
}

/// Event in the format of notification-controller: `Event` of `github.com/fluxcd/pkg/apis/event/v1`. Earlier versions of
/// notification-controller ignore fields that they do not know.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    involved_object: &'a ObjectReference,
    severity: &'static str,
    timestamp: Time,
    message: &'a str,
    reason: &'a str,
    action: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: &'a BTreeMap<String, String>,
    reporting_controller: &'a str,
    reporting_instance: &'a str,
}

/// Recently posted events.
#[derive(Debug, Default)]
struct Posted {
    hasher: EventHasher,
    /// Hashes of the events, oldest first.
    events: VecDeque<(u64, Instant)>,
}

impl Posted {
    fn contains(&mut self, event: &Event) -> bool {
        self.events.retain(|(_, at)| at.elapsed() < REPEAT_INTERVAL);
        let hash = self.hasher.hash(event);
        self.events.iter().any(|(posted, _)| *posted == hash)
    }

    fn add(&mut self, event: &Event) {
        if self.events.len() >= MAX_RECENT {
            self.events.pop_front();
        }
        self.events.push_back((self.hasher.hash(event), Instant::now()));
    }
}
