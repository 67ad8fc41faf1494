//! The test provider's log, as the proof needs it; and requests to the test services.

use std::sync::LazyLock;
use std::time::Duration;

use crate::facts::Event;
use crate::harness::Environment;

/// Without the proxies of whoever runs the tests.
static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(|| {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(30));
    client.build().expect("an HTTP client can be made")
});

/// What is at an address of the test services; it has to be there.
pub async fn get(url: &str) -> String {
    let answer = async { CLIENT.get(url).send().await?.error_for_status()?.text().await };
    answer.await.unwrap_or_else(|error| panic!("asking {url}: {error:?}"))
}

/// Everything that the provider did for a Pulumi stack, in order.
pub async fn events(stack: &str) -> Vec<Event> {
    let url = format!("{}/events?stack={stack}", Environment::get().provider_log_url);
    let text = get(&url).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("the provider log answered {url} with {text}: {error}"))
}
