//! Bounded queue of events for one destination, and its delivery.

use std::error::Error;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::event::Event;
use crate::telemetry::metrics::Metrics;

/// Maximum number of queued events; further events are dropped and counted.
const CAPACITY: usize = 1024;

/// Destination of events.
pub(super) trait Destination: Send {
    /// Name in logs.
    const NAME: &'static str;
    /// Maximum time to deliver queued events after shutdown has begun.
    const SHUTDOWN_TIMEOUT: Duration;
    type Error: Error + Send + 'static;

    /// Delivers an event. After `end` is canceled, there is time for a single attempt.
    fn deliver(
        &mut self,
        queued: Queued,
        end: &CancellationToken,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Counts an event that was not delivered.
    fn count_dropped(metrics: &Metrics);
}

/// An event and the time at which it was queued.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) event: Event,
    pub(super) at: Timestamp,
}

/// Write side of a queue. Cheap to clone; never blocks.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    sender: mpsc::Sender<Queued>,
    count_dropped: fn(&Metrics),
    metrics: Metrics,
}

/// Delivers the events of a queue in order.
pub(super) struct Delivery<D> {
    events: mpsc::Receiver<Queued>,
    destination: D,
    metrics: Metrics,
}

/// Creates a queue, and the delivery of its events, which the caller must run.
pub(super) fn queue<D: Destination>(destination: D, metrics: Metrics) -> (Queue, Delivery<D>) {
    let (sender, events) = mpsc::channel(CAPACITY);
    let queue = Queue { sender, count_dropped: D::count_dropped, metrics: metrics.clone() };
    (queue, Delivery { events, destination, metrics })
}

impl Queue {
    /// Queues an event. If the queue is full, the event is dropped and counted.
    pub(super) fn add(&self, event: Event) {
        if let Err(error) = self.sender.try_send(Queued { event, at: Timestamp::now() }) {
            (self.count_dropped)(&self.metrics);
            tracing::debug!(%error, "event dropped");
        }
    }
}

impl<D: Destination> Delivery<D> {
    /// Delivers events until `end` is canceled, and the queued events within the shutdown timeout.
    pub(super) async fn run(mut self, end: &CancellationToken) {
        let overdue = async {
            end.cancelled().await;
            tokio::time::sleep(D::SHUTDOWN_TIMEOUT).await;
        };
        tokio::select! {
            () = self.deliver_all(end) => {}
            () = overdue => tracing::info!(destination = D::NAME, "events still queued after the shutdown timeout"),
        }
    }

    async fn deliver_all(&mut self, end: &CancellationToken) {
        loop {
            let queued = tokio::select! {
                biased;
                () = end.cancelled(), if !self.events.is_closed() => {
                    self.events.close();
                    continue;
                }
                queued = self.events.recv() => queued,
            };
            let Some(queued) = queued else { return };
            if let Err(error) = self.destination.deliver(queued, end).await {
                D::count_dropped(&self.metrics);
                tracing::info!(destination = D::NAME, error = &error as &dyn Error, "failed to deliver event");
            }
        }
    }
}
