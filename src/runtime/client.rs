//! Kubernetes client that counts its requests to the API server in a metric.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::AuthInfo;
use kube::{Client, Config};
use tower::Service;
use tower::layer::layer_fn;

use crate::telemetry::metrics::Metrics;

/// Creates a client from the kubeconfig, or else from the pod's ServiceAccount.
pub async fn connect(metrics: Metrics) -> Result<Client, ClientError> {
    build(Config::infer().await?, metrics)
}

fn build(config: Config, metrics: Metrics) -> Result<Client, ClientError> {
    let host: Arc<str> = config.cluster_url.authority().map_or("", |authority| authority.as_str()).into();
    let counted = layer_fn(|inner| CountingService { inner, host: host.clone(), metrics: metrics.clone() });
    Ok(ClientBuilder::try_from(config)?.with_layer(&counted).build())
}

/// Creates a client without credentials, for requests that carry a user's credentials. The client uses neither the
/// controller's ServiceAccount token nor a client certificate.
pub async fn connect_without_credentials(metrics: Metrics) -> Result<Client, ClientError> {
    let mut config = Config::infer().await?;
    config.auth_info = AuthInfo::default();
    build(config, metrics)
}

/// Reason why a client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("failed to find the API server: no valid ServiceAccount is mounted, and no valid kubeconfig exists")]
    Config(#[from] kube::config::InferConfigError),
    #[error("failed to create a client for the API server")]
    Client(#[from] kube::Error),
}

/// Middleware that counts the requests by response code.
struct CountingService<S> {
    inner: S,
    host: Arc<str>,
    metrics: Metrics,
}

impl<S, B> Service<Request<Body>> for CountingService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (method, host, metrics) = (request.method().clone(), self.host.clone(), self.metrics.clone());
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await;
            let code = response.as_ref().ok().map(|found| found.status().as_u16());
            metrics.api_request(code, method.as_str(), &host);
            response
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn requests_are_counted_by_result_and_host() {
        let metrics = Metrics::default();
        let respond = |request: Request<Body>| async move {
            match request.uri().path() {
                "/broken" => Err(std::io::Error::other("no connection")),
                _ => Ok(Response::builder().status(404).body(Body::empty()).unwrap()),
            }
        };
        for path in ["/a", "/b", "/broken"] {
            let counted =
                CountingService { inner: service_fn(respond), host: "api:6443".into(), metrics: metrics.clone() };
            let request = Request::get(path).body(Body::empty()).unwrap();
            assert_eq!(counted.oneshot(request).await.is_ok(), path != "/broken");
        }
        let text = metrics.encode().unwrap();
        for line in [
            r#"rest_client_requests_total{code="404",method="GET",host="api:6443"} 2"#,
            r#"rest_client_requests_total{code="<error>",method="GET",host="api:6443"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
        }
    }
}
