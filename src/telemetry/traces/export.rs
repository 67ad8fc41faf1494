//! Exports queued spans to a collector over OTLP with HTTP and Protocol Buffers.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::otlp::{self, Resource};
use super::span::Span;
use crate::telemetry::metrics::Metrics;

/// Maximum number of spans in a request.
const MAX_BATCH: usize = 512;
/// Maximum time for which queued spans are exported after the shutdown has started.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

/// Collector that receives the spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// URL for traces, such as `http://collector:4318/v1/traces`. It contains no credentials.
    pub endpoint: Url,
    /// Headers of each request, for example with credentials. Their values are marked as sensitive, so they are not
    /// part of debug output.
    pub headers: HeaderMap,
    pub retry_policy: RetryPolicy,
}

/// Policy for retries of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// Maximum number of retries.
    pub retries: u32,
    /// Delay before the first retry. The delay doubles with each further retry.
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            timeout: Duration::from_secs(10),
            retries: 5,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
        }
    }
}

/// Error of an attempt to export spans.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("failed to reach the collector at {endpoint}; check --otlp-endpoint and the NetworkPolicies")]
    Unreachable { endpoint: Url, source: reqwest::Error },
    #[error("the collector at {endpoint} responded with {status}; check --otlp-endpoint and its credentials")]
    Refused { endpoint: Url, status: StatusCode },
}

impl ExportError {
    /// Returns whether a retry can succeed, as the specification of OTLP defines.
    fn is_transient(&self) -> bool {
        match self {
            ExportError::Unreachable { .. } => true,
            ExportError::Refused { status, .. } => matches!(
                *status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            ),
        }
    }
}

/// Task that exports the queued spans.
pub struct ExportTask {
    settings: Settings,
    client: reqwest::Client,
    resource: Resource,
    spans: mpsc::Receiver<Span>,
    metrics: Metrics,
}

impl std::fmt::Debug for ExportTask {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ExportTask").field("endpoint", &self.settings.endpoint).finish_non_exhaustive()
    }
}

impl ExportTask {
    pub(super) fn new(
        settings: Settings,
        client: reqwest::Client,
        resource: Resource,
        spans: mpsc::Receiver<Span>,
        metrics: Metrics,
    ) -> Self {
        ExportTask { settings, client, resource, spans, metrics }
    }

    /// Runs until `end` is canceled. Then exports the queued spans for at most the shutdown timeout.
    pub async fn run(mut self, end: CancellationToken) {
        let overdue = {
            let end = end.clone();
            async move {
                end.cancelled().await;
                tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
            }
        };
        tokio::select! {
            () = self.export_all(&end) => {}
            () = overdue => tracing::info!("spans still queued after the shutdown timeout"),
        }
    }

    async fn export_all(&mut self, end: &CancellationToken) {
        loop {
            let mut batch = Vec::new();
            let received = tokio::select! {
                biased;
                () = end.cancelled(), if !self.spans.is_closed() => {
                    self.spans.close();
                    continue;
                }
                received = self.spans.recv_many(&mut batch, MAX_BATCH) => received,
            };
            if received == 0 {
                return;
            }
            match self.export(batch, end).await {
                Ok(()) => self.metrics.spans_exported(received),
                Err(error) => {
                    self.metrics.spans_dropped(received);
                    let error = &error as &dyn std::error::Error;
                    tracing::info!(spans = received, error, "failed to export spans");
                }
            }
        }
    }

    /// Exports spans. After `end` is canceled, makes at most one further attempt.
    async fn export(&self, spans: Vec<Span>, end: &CancellationToken) -> Result<(), ExportError> {
        let body = otlp::encode(&self.resource, spans);
        let policy = self.settings.retry_policy;
        let mut backoff = policy.initial_backoff;
        for _ in 0..policy.retries {
            match self.post(body.clone()).await {
                Err(error) if error.is_transient() && !end.is_cancelled() => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "retrying the export of spans");
                }
                other => return other,
            }
            tokio::select! {
                () = tokio::time::sleep(backoff) => {}
                () = end.cancelled() => break,
            }
            backoff = backoff.saturating_mul(2).min(policy.max_backoff);
        }
        self.post(body).await
    }

    /// Sends one request. The body of the response is not read, because its size is not limited.
    async fn post(&self, body: Vec<u8>) -> Result<(), ExportError> {
        let Settings { endpoint, headers, retry_policy } = &self.settings;
        let request = self.client.post(endpoint.clone()).headers(headers.clone());
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").timeout(retry_policy.timeout);
        let failed = |source: reqwest::Error| ExportError::Unreachable {
            endpoint: endpoint.clone(),
            source: source.without_url(),
        };
        match request.body(body).send().await.map_err(failed)?.status() {
            status if status.is_success() => Ok(()),
            status => Err(ExportError::Refused { endpoint: endpoint.clone(), status }),
        }
    }
}
