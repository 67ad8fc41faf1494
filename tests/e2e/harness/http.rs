//! Requests to the test services.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};

/// HTTP client that ignores the proxy settings of the environment.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let client = Client::builder().no_proxy().timeout(Duration::from_secs(30));
    client.build().expect("HTTP client")
});

pub fn client() -> &'static Client {
    &CLIENT
}

/// Sends a request, and returns the response. Panics if the request fails.
pub async fn send(action: &str, request: RequestBuilder) -> Response {
    let response = request.send().await.unwrap_or_else(|error| panic!("{action}: {error:?}"));
    let status = response.status();
    if status.is_success() {
        return response;
    }
    let text = response.text().await.unwrap_or_default();
    panic!("{action}: HTTP status {status}: {text}");
}
