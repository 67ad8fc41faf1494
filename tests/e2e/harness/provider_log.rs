//! Reads the test provider's events, which prove that an operation took place exactly once.

use std::time::Duration;

use serde::Deserialize;

use super::environment::Environment;

/// One event of the provider.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    pub resource: String,
    pub operation: String,
    pub phase: String,
    #[serde(default)]
    pub error: String,
}

impl Event {
    /// Returns the event as text, such as `create step begin`.
    fn description(&self) -> String {
        format!("{} {} {}", self.operation, self.resource, self.phase)
    }
}

/// Provider log client that reads the events for one Pulumi stack.
#[derive(Clone, Debug)]
pub struct ProviderLog {
    client: reqwest::Client,
    stack: String,
}

/// Maximum time that the server waits for an event before it responds, in seconds.
const WAIT: u64 = 180;

impl ProviderLog {
    pub fn of(stack: &str) -> ProviderLog {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(WAIT + 20))
            .build()
            .expect("an HTTP client for the provider log");
        ProviderLog { client, stack: stack.to_owned() }
    }

    /// Returns all events of the stack in order, for example `["create step begin", "create step done"]`.
    pub async fn operations(&self) -> Vec<String> {
        self.events("").await.iter().map(Event::description).collect()
    }

    /// Returns the events that match a provider log filter, such as `&phase=failed`.
    pub async fn events(&self, filter: &str) -> Vec<Event> {
        let url = format!("{}/events?stack={}{filter}", Environment::get().provider_log_url, self.stack);
        let response = async { self.client.get(&url).send().await?.error_for_status()?.text().await };
        let text = response.await.unwrap_or_else(|error| panic!("requesting the provider log {url}: {error:?}"));
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the provider log responded to {url} with {text}: {error}"))
    }

    /// Waits until an operation on a resource has reached a phase.
    pub async fn wait_for(&self, operation: &str, resource: &str, phase: &str) {
        let filter = format!("&operation={operation}&resource={resource}&phase={phase}&count=1&wait={WAIT}s");
        assert!(
            !self.events(&filter).await.is_empty(),
            "waited {WAIT} s for `{operation} {resource} {phase}` of the stack {}; the provider log has only {:?}",
            self.stack,
            self.operations().await
        );
    }
}

/// Returns the log that is expected if each operation takes place once, such as `["create step begin", "create step
/// done"]`.
pub fn once(operations: &[&str]) -> Vec<String> {
    operations.iter().flat_map(|operation| ["begin", "done"].map(|phase| format!("{operation} {phase}"))).collect()
}
