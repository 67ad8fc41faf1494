//! Exports queued spans to a collector over OTLP/HTTP with Protocol Buffers.
//!
//! `opentelemetry-otlp` encodes the spans and retries failed requests. This module does not use the OpenTelemetry SDK's
//! batch processor. The batch processor calls the exporter on a thread without a tokio runtime, which the HTTP client
//! requires. Furthermore, the batch processor does not report the number of dropped spans, and its tokio variant is
//! experimental.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::queue::SpanQueue;

/// Maximum number of spans in a request.
const MAX_BATCH: usize = 512;
/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of an export, including retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of retries per request.
const RETRIES: usize = 5;
/// Backoff before the first retry. Each further retry doubles the backoff.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum backoff before a retry.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Maximum time for the export of queued spans during the shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

/// Collector that receives the spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// URL that receives the traces, without credentials, such as `http://collector:4318/v1/traces`.
    pub endpoint: Url,
    /// Headers that each request contains, for example credentials. The values are marked as sensitive, so that debug
    /// output does not contain them.
    pub headers: HeaderMap,
}

/// Reason why the settings of the exporter are invalid. The controller has validated the flags, but the exporter also
/// reads environment variables.
#[derive(Debug, thiserror::Error)]
#[error("failed to create the trace exporter; check the variables that start with OTEL_EXPORTER_OTLP_")]
pub struct ExporterError(#[from] ExporterBuildError);

/// HTTP client of the exporter: the controller's client with additional headers for the collector.
#[derive(Debug)]
struct CollectorClient {
    client: reqwest::Client,
    headers: HeaderMap,
}

#[tonic::async_trait]
impl HttpClient for CollectorClient {
    /// Sends one request, and discards the body of the response. The exporter needs only the status and the header
    /// `Retry-After`, and the size of the body is not limited.
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The exporter adds headers from environment variables. The controller replaces these headers with the headers
        // from its flag, and keeps only the content type.
        let content_type = request.headers_mut().remove(CONTENT_TYPE);
        *request.headers_mut() = self.headers.clone();
        if let Some(content_type) = content_type {
            request.headers_mut().insert(CONTENT_TYPE, content_type);
        }
        let mut request = reqwest::Request::try_from(request)?;
        *request.timeout_mut() = Some(REQUEST_TIMEOUT);
        match self.client.execute(request).await {
            Ok(mut received) => {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = received.status();
                *response.headers_mut() = std::mem::take(received.headers_mut());
                Ok(response)
            }
            Err(error) => {
                // The exporter's error does not contain the cause.
                tracing::info!(error = &error as &dyn std::error::Error, "failed to reach the collector");
                Err(error.into())
            }
        }
    }
}

/// Task that exports the queued spans.
pub struct ExportTask {
    endpoint: Url,
    exporter: SpanExporter,
    spans: SpanQueue,
    metrics: Metrics,
}

impl std::fmt::Debug for ExportTask {
    /// Omits the exporter, because its debug output would contain the headers from the environment.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ExportTask").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl ExportTask {
    pub(super) fn new(
        settings: &Settings,
        client: reqwest::Client,
        resource: &Resource,
        spans: SpanQueue,
        metrics: Metrics,
    ) -> Result<Self, ExporterError> {
        let retry_policy = RetryPolicy::default().with_max_retries(RETRIES);
        let retry_policy = retry_policy.with_initial_delay(INITIAL_BACKOFF).with_max_delay(MAX_BACKOFF);
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(CollectorClient { client, headers: settings.headers.clone() })
            .with_endpoint(settings.endpoint.as_str())
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(EXPORT_TIMEOUT)
            .with_retry_policy(retry_policy)
            .build()?;
        exporter.set_resource(resource);
        Ok(ExportTask { endpoint: settings.endpoint.clone(), exporter, spans, metrics })
    }

    /// Exports spans until `end` is canceled. After the cancellation, the task exports the queued spans until the
    /// shutdown timeout expires.
    pub async fn run(self, end: CancellationToken) {
        let overdue = {
            let end = end.clone();
            async move {
                end.cancelled().await;
                tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
            }
        };
        tokio::select! {
            () = self.export_all(&end) => {}
            () = overdue => tracing::info!("dropped the queued spans after the shutdown timeout"),
        }
    }

    async fn export_all(&self, end: &CancellationToken) {
        loop {
            // The task exports the queued spans even after the shutdown has started.
            let batch = tokio::select! {
                biased;
                batch = self.spans.next_batch(MAX_BATCH) => batch,
                () = end.cancelled() => return,
            };
            let received = batch.len();
            match self.exporter.export(batch).await {
                Ok(()) => self.metrics.spans_exported(received),
                Err(error) => {
                    self.metrics.spans_dropped(received);
                    let error = &error as &dyn std::error::Error;
                    tracing::info!(spans = received, endpoint = %self.endpoint, error, "failed to export spans");
                }
            }
        }
    }
}
