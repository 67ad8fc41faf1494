//! Calls to webhooks, counted.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What came of a call to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebhookResult {
    /// The Stacks were asked to run.
    Accepted,
    /// It is good, and of an event that runs nothing.
    Ignored,
    /// There is no such webhook, or the call may not be made.
    Refused,
    /// It is good, and not every Stack could be asked to run.
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

/// The calls so far.
#[derive(Clone, Debug, Default)]
pub struct Webhooks(Family<Labels, Counter>);

impl Webhooks {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("pulumi_controller_webhooks", "Calls to webhooks, by what came of them", self.0.clone());
    }

    pub fn count(&self, result: WebhookResult) {
        self.0.get_or_create(&Labels { result }).inc();
    }
}
