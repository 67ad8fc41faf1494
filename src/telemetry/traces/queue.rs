//! Queue of completed spans, which namespaces share fairly.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry_sdk::trace::SpanData;
use tokio::sync::Notify;

use crate::telemetry::fair_buffer::FairBuffer;

/// Maximum number of queued spans. The size of a span is less than 2 KiB.
pub(super) const CAPACITY: usize = 4096;

/// Queue of spans. Cheap to clone. All clones share the spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanQueue(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    spans: Mutex<FairBuffer<SpanData>>,
    /// Signals that the queue contains spans.
    changed: Notify,
}

impl Default for Shared {
    fn default() -> Self {
        Shared { spans: Mutex::new(FairBuffer::new(CAPACITY)), changed: Notify::default() }
    }
}

impl SpanQueue {
    /// Adds a namespace's spans, and returns the number of dropped spans. A full queue drops spans that belong to the
    /// namespace with the most queued spans.
    pub(super) fn push(&self, namespace: &str, spans: Vec<SpanData>) -> usize {
        let mut queue = self.lock();
        let dropped = spans.into_iter().filter_map(|span| queue.push(namespace, span)).count();
        drop(queue);
        self.0.changed.notify_one();
        dropped
    }

    /// Waits until the queue contains spans, and removes at most `most` spans. The queue must have only one consumer.
    pub(super) async fn next_batch(&self, most: usize) -> Vec<SpanData> {
        loop {
            let batch = self.take(most);
            if !batch.is_empty() {
                return batch;
            }
            self.0.changed.notified().await;
        }
    }

    /// Removes all spans.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<SpanData> {
        self.take(CAPACITY)
    }

    fn take(&self, most: usize) -> Vec<SpanData> {
        let mut queue = self.lock();
        std::iter::from_fn(|| queue.pop()).take(most).collect()
    }

    fn lock(&self) -> MutexGuard<'_, FairBuffer<SpanData>> {
        self.0.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::telemetry::traces::span::{span, span_id, trace_id};

    fn spans(namespace: &'static str, count: usize) -> Vec<SpanData> {
        let times = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let ids = (span_id(&[namespace]), span_id(&["root"]));
        vec![span(trace_id(&[namespace]), ids, namespace, times); count]
    }

    fn names(spans: &[SpanData]) -> Vec<&str> {
        spans.iter().map(|span| span.name.as_ref()).collect()
    }

    #[tokio::test]
    async fn namespaces_take_turns() {
        let queue = SpanQueue::default();
        assert_eq!(queue.push("a", spans("a", 4)), 0);
        assert_eq!(queue.push("b", spans("b", 1)) + queue.push("c", spans("c", 2)), 0);
        assert_eq!(names(&queue.next_batch(4).await), ["a", "b", "c", "a"]);
        assert_eq!(names(&queue.next_batch(9).await), ["c", "a", "a"]);
        assert!(queue.drain().is_empty());
    }

    #[tokio::test]
    async fn a_batch_waits_for_the_next_span() {
        let queue = SpanQueue::default();
        let push = async { queue.push("a", spans("a", 1)) };
        let (batch, dropped) = tokio::join!(queue.next_batch(4), push);
        assert_eq!((names(&batch), dropped), (vec!["a"], 0));
    }

    #[test]
    fn a_namespace_that_fills_the_queue_loses_its_own_spans() {
        let queue = SpanQueue::default();
        assert_eq!(queue.push("busy", spans("busy", CAPACITY + 3)), 3);
        assert_eq!(queue.push("quiet", spans("quiet", 10)), 10, "spans of the other namespace are dropped");
        assert_eq!(queue.push("busy", spans("busy", 5)), 5);
        let left = queue.drain();
        assert_eq!(left.len(), CAPACITY);
        assert_eq!(names(&left).iter().filter(|name| **name == "quiet").count(), 10);
    }
}
