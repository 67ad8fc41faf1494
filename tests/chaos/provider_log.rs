//! Reads the provider log, and sends requests to other test services.

use std::sync::LazyLock;
use std::time::Duration;

use crate::facts::Event;
use crate::harness::Environment;

/// HTTP client that ignores the proxy settings of the environment.
static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(|| {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
    client.build().expect("HTTP client")
});

/// Sends a GET request to a test service and returns the response body. Panics if the request fails.
pub async fn get(url: &str) -> String {
    let response = async { CLIENT.get(url).send().await?.error_for_status()?.text().await };
    response.await.unwrap_or_else(|error| panic!("requesting {url}: {error:?}"))
}

/// Returns all provider events for a Pulumi stack in order.
pub async fn events(stack: &str) -> Vec<Event> {
    let url = format!("{}/events?stack={stack}", Environment::get().provider_log_url);
    let text = get(&url).await;
    serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("the provider log responded to {url} with {text}: {error}"))
}
