//! Metrics of webhook calls.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Result of a webhook call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebhookResult {
    /// Runs of all Stacks were requested.
    Accepted,
    /// The call is valid, but its event triggers no runs.
    Ignored,
    /// The path is unknown, or the call is not permitted.
    Refused,
    /// The call is valid, but not all runs could be requested.
    Failed,
}

impl EncodeLabelValue for WebhookResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            WebhookResult::Accepted => "accepted",
            WebhookResult::Ignored => "ignored",
            WebhookResult::Refused => "refused",
            WebhookResult::Failed => "failed",
        };
        text.encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: WebhookResult,
}

/// Number of webhook calls by result.
#[derive(Clone, Debug, Default)]
pub struct Webhooks(Family<Labels, Counter>);

impl Webhooks {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pulumi_controller_webhooks", "Number of webhook calls", self.0.clone());
    }

    pub fn count(&self, result: WebhookResult) {
        self.0.get_or_create(&Labels { result }).inc();
    }
}
