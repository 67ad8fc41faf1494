//! Bounded buffer that namespaces share fairly. This module performs no I/O.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Items of each namespace. A full buffer drops items that belong to the namespace with the most items.
#[derive(Debug)]
pub struct FairBuffer<T> {
    capacity: usize,
    /// Items of each namespace, oldest first. A namespace without items has no entry.
    by_namespace: BTreeMap<String, VecDeque<T>>,
    count: usize,
    /// Namespace of the last item that left the buffer.
    last: String,
}

impl<T> FairBuffer<T> {
    pub fn new(capacity: usize) -> Self {
        FairBuffer { capacity, by_namespace: BTreeMap::new(), count: 0, last: String::new() }
    }

    /// Adds an item. If the buffer is full, the function drops an item and returns the dropped item.
    pub fn push(&mut self, namespace: &str, item: T) -> Option<T> {
        let mut dropped = None;
        if self.count >= self.capacity {
            let own = self.by_namespace.get(namespace).map_or(0, VecDeque::len);
            let longest = self.by_namespace.values_mut().max_by_key(|items| items.len());
            let Some(longest) = longest.filter(|items| items.len() > own + 1) else { return Some(item) };
            dropped = longest.pop_back();
        } else {
            self.count += 1;
        }
        self.by_namespace.entry(namespace.to_owned()).or_default().push_back(item);
        dropped
    }

    /// Removes the oldest item of the next namespace. The namespaces take turns.
    pub fn pop(&mut self) -> Option<T> {
        let after = (Excluded(self.last.as_str()), Unbounded);
        let next = self.by_namespace.range::<str, _>(after).next().or_else(|| self.by_namespace.first_key_value());
        let namespace = next.map(|(namespace, _)| namespace.clone())?;
        let items = self.by_namespace.get_mut(&namespace)?;
        let item = items.pop_front();
        self.count = self.count.saturating_sub(1);
        if items.is_empty() {
            self.by_namespace.remove(&namespace);
        }
        self.last = namespace;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns_and_share_the_capacity() {
        let mut buffer = FairBuffer::new(4);
        for (namespace, item, dropped) in [
            ("busy", "busy 1", None),
            ("busy", "busy 2", None),
            ("busy", "busy 3", None),
            ("busy", "busy 4", None),
            ("busy", "busy 5", Some("busy 5")),
            ("quiet", "quiet 1", Some("busy 4")),
            ("quiet", "quiet 2", Some("busy 3")),
            ("quiet", "quiet 3", Some("quiet 3")),
            ("busy", "busy 6", Some("busy 6")),
        ] {
            assert_eq!(buffer.push(namespace, item), dropped, "{item}");
        }
        let left: Vec<&str> = std::iter::from_fn(|| buffer.pop()).collect();
        assert_eq!(left, ["busy 1", "quiet 1", "busy 2", "quiet 2"]);
        assert_eq!(buffer.push("busy", "busy 7"), None);
        assert_eq!(buffer.pop(), Some("busy 7"));
    }
}
