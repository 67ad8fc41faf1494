//! Queue of completed spans, which namespaces share fairly.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry_sdk::trace::SpanData;
use tokio::sync::Notify;

/// Maximum number of queued spans. The size of a span is less than 2 KiB.
pub(super) const CAPACITY: usize = 4096;

/// Queue of spans. Cheap to clone. All clones share the spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Hold the lock only for short critical sections, and never across an `.await`.
    spans: Mutex<Spans>,
    /// Signals that the queue contains spans.
    changed: Notify,
}

/// Queued spans of each namespace, oldest first. A namespace without spans has no entry.
#[derive(Debug, Default)]
struct Spans {
    by_namespace: BTreeMap<String, VecDeque<SpanData>>,
    count: usize,
    /// Namespace of the last span that left the queue.
    last: String,
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
            let batch = self.lock().take(most);
            if !batch.is_empty() {
                return batch;
            }
            self.0.changed.notified().await;
        }
    }

    /// Removes all spans.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<SpanData> {
        self.lock().take(CAPACITY)
    }

    fn lock(&self) -> MutexGuard<'_, Spans> {
        self.0.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spans {
    /// Adds a span. If the queue is full, the function drops a span and returns the dropped span.
    fn push(&mut self, namespace: &str, span: SpanData) -> Option<SpanData> {
        let mut dropped = None;
        if self.count >= CAPACITY {
            let own = self.by_namespace.get(namespace).map_or(0, VecDeque::len);
            let longest = self.by_namespace.values_mut().max_by_key(|spans| spans.len());
            let Some(longest) = longest.filter(|spans| spans.len() > own + 1) else { return Some(span) };
            dropped = longest.pop_back();
        } else {
            self.count += 1;
        }
        self.by_namespace.entry(namespace.to_owned()).or_default().push_back(span);
        dropped
    }

    /// Removes spans. The namespaces take turns.
    fn take(&mut self, most: usize) -> Vec<SpanData> {
        let mut batch = Vec::new();
        while batch.len() < most {
            let after = (Excluded(self.last.as_str()), Unbounded);
            let next = self.by_namespace.range::<str, _>(after).next().or_else(|| self.by_namespace.first_key_value());
            let Some(namespace) = next.map(|(namespace, _)| namespace.clone()) else { break };
            if let Some(spans) = self.by_namespace.get_mut(&namespace) {
                batch.extend(spans.pop_front());
                self.count = self.count.saturating_sub(1);
                if spans.is_empty() {
                    self.by_namespace.remove(&namespace);
                }
            }
            self.last = namespace;
        }
        batch
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
