//! Events about objects. Reconciliations queue events without waiting, and one task delivers the queued events to the
//! Kubernetes API and to Flux notification-controller. Each destination has a bounded queue, so that a slow
//! notification-controller neither delays nor displaces events for the API.

mod kubernetes;
mod notifications;
mod queue;

use tokio_util::sync::CancellationToken;

use self::kubernetes::Kubernetes;
use self::notifications::Notifications;
use self::queue::{Delivery, Queue, Reporter, queue};
use crate::runtime::writes::Writer;
use crate::telemetry::metrics::Metrics;

pub use notifications::{NotificationController, RetryPolicy};
pub use queue::{Event, EventKind};

/// Queues of events. Cheap to clone. Never blocks.
#[derive(Clone, Debug)]
pub struct Events {
    kubernetes: Queue,
    notifications: Option<Queue>,
}

/// Task that delivers the queued events.
pub struct EventTask {
    kubernetes: Delivery<Kubernetes>,
    notifications: Option<Delivery<Notifications>>,
}

impl Events {
    /// Creates the event queue for the Kubernetes API, and the task that delivers the queued events. The caller must
    /// run the task. `component` is the name of the controller, and `instance` is the name of its pod.
    pub fn new(writer: Writer, component: &str, instance: &str, metrics: Metrics) -> (Events, EventTask) {
        Self::with_notifications(writer, None, component, instance, metrics)
    }

    /// Creates the event queue and its task, like [`Events::new`]. If `controller` is set, this function also creates a
    /// second queue, whose events the task posts to notification-controller.
    pub fn with_notifications(
        writer: Writer,
        controller: Option<NotificationController>,
        component: &str,
        instance: &str,
        metrics: Metrics,
    ) -> (Events, EventTask) {
        let reporter = Reporter { component: component.to_owned(), instance: instance.to_owned() };
        let (kubernetes, writes) = queue(Kubernetes::new(writer, reporter.clone()), metrics.clone());
        let (notifications, posts) =
            controller.map(|controller| queue(Notifications::new(controller, reporter), metrics)).unzip();
        (Events { kubernetes, notifications }, EventTask { kubernetes: writes, notifications: posts })
    }

    /// Queues an event for each of its destinations. If a queue is full, it drops the event and increases a metric.
    pub fn publish(&self, event: Event) {
        if let Some(notifications) = self.notifications.as_ref().filter(|_| notifications::is_posted(&event)) {
            notifications.add(event.clone());
        }
        if event.kind != EventKind::Notification {
            self.kubernetes.add(event);
        }
    }
}

impl EventTask {
    /// Delivers events until `end` is canceled. After the cancellation, the task delivers the remaining events for at
    /// most a few seconds.
    pub async fn run(self, end: CancellationToken) {
        let EventTask { kubernetes, notifications } = self;
        let posts = async {
            if let Some(notifications) = notifications {
                notifications.run(&end).await;
            }
        };
        tokio::join!(kubernetes.run(&end), posts);
    }
}

#[cfg(test)]
mod tests;
