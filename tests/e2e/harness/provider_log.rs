//! What the test provider did, as it reported it: the proof that something happened, and that it happened once.

use std::time::Duration;

use serde::Deserialize;

use super::environment::Environment;

/// One report of the provider.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    pub resource: String,
    pub operation: String,
    pub phase: String,
    #[serde(default)]
    pub error: String,
}

impl Event {
    /// `create step begin`, for example.
    fn sentence(&self) -> String {
        format!("{} {} {}", self.operation, self.resource, self.phase)
    }
}

/// The log, seen through the events of one Pulumi stack.
#[derive(Clone, Debug)]
pub struct ProviderLog {
    client: reqwest::Client,
    stack: String,
}

/// How long the log may hold an answer back until an event arrives.
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

    /// Everything that happened to the stack, in order: `["create step begin", "create step done"]`.
    pub async fn sentences(&self) -> Vec<String> {
        self.events("").await.iter().map(Event::sentence).collect()
    }

    /// What matches a filter of the log, such as `&phase=failed`.
    pub async fn events(&self, filter: &str) -> Vec<Event> {
        let url = format!("{}/events?stack={}{filter}", Environment::get().provider_log_url, self.stack);
        let answer = async { self.client.get(&url).send().await?.error_for_status()?.text().await };
        let text = answer.await.unwrap_or_else(|error| panic!("asking the provider log {url}: {error:?}"));
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the provider log answered {url} with {text}: {error}"))
    }

    /// Waits until an operation on a resource has reached a phase.
    pub async fn wait_for(&self, operation: &str, resource: &str, phase: &str) {
        let filter = format!("&operation={operation}&resource={resource}&phase={phase}&count=1&wait={WAIT}s");
        assert!(
            !self.events(&filter).await.is_empty(),
            "waited {WAIT} s for `{operation} {resource} {phase}` of the stack {}; the provider log has only {:?}",
            self.stack,
            self.sentences().await
        );
    }
}

/// `["create step begin", "create step done"]`, and so on for each operation: what a log holds when each happened once.
pub fn once(operations: &[&str]) -> Vec<String> {
    operations.iter().flat_map(|operation| ["begin", "done"].map(|phase| format!("{operation} {phase}"))).collect()
}
