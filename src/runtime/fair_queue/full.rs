//! Reasons why a run must wait.

use std::fmt;

use crate::api::conditions::{WAITING_FOR_GROUP, WAITING_FOR_SLOT};
use crate::api::names::ANNOTATION_MAX_CONCURRENT_RUNS;

/// Reason why a run must wait for a slot. The reason becomes part of a status message, so it contains no numbers that
/// change often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Full {
    All {
        limit: usize,
    },
    Namespace {
        name: String,
        limit: usize,
        /// Whether a namespace annotation sets the limit.
        is_annotated: bool,
    },
    Node {
        name: String,
        limit: usize,
    },
    /// The queue reserves the free slots for namespaces with fewer open runs than this namespace.
    Reserved,
    /// The queue reserves the node's free slots for namespaces with fewer open runs on the node.
    ReservedOnNode {
        name: String,
    },
    /// The run's concurrency group has reached its maximum number of open runs.
    Group {
        name: String,
        limit: usize,
        /// Whether several namespaces share the group.
        is_shared: bool,
    },
}

impl fmt::Display for Full {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Full::Group { name, limit, is_shared } = self {
            let setting = if *is_shared { "--concurrency-groups" } else { "spec.concurrencyGroup" };
            return write!(formatter, "{WAITING_FOR_GROUP}{name}: {limit} of {limit} runs open ({setting})");
        }
        formatter.write_str(WAITING_FOR_SLOT)?;
        match self {
            Full::All { limit } => write!(formatter, "{limit} of {limit} in use (--max-concurrent-runs)"),
            Full::Namespace { name, limit, is_annotated: false } => {
                write!(formatter, "{limit} of {limit} in use by namespace {name} (--max-concurrent-runs-per-namespace)")
            }
            Full::Namespace { name, limit, is_annotated: true } => write!(
                formatter,
                "{limit} of {limit} in use by namespace {name} (annotation {ANNOTATION_MAX_CONCURRENT_RUNS} of the \
                 namespace)"
            ),
            Full::Node { name, limit } => {
                write!(formatter, "{limit} of {limit} in use on node {name} (--max-concurrent-runs-per-node)")
            }
            Full::Reserved => formatter
                .write_str("the free slots are reserved for namespaces with fewer runs (--max-concurrent-runs)"),
            Full::ReservedOnNode { name } => write!(
                formatter,
                "the free slots of node {name} are reserved for namespaces with fewer runs on this node \
                 (--max-concurrent-runs-per-node)"
            ),
            // For a group, the function has already written the complete message.
            Full::Group { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_queued_run_contains_the_reason_and_the_setting() {
        let name = || "x1".to_owned();
        let namespace = |is_annotated| Full::Namespace { name: name(), limit: 1, is_annotated };
        let group = |is_shared| Full::Group { name: name(), limit: 2, is_shared };
        for (full, words) in [
            (Full::All { limit: 10 }, "waiting for a run slot: 10 of 10 in use (--max-concurrent-runs)"),
            (Full::All { limit: 1 }, "waiting for a run slot: 1 of 1 in use (--max-concurrent-runs)"),
            (
                Full::Node { name: name(), limit: 4 },
                "waiting for a run slot: 4 of 4 in use on node x1 (--max-concurrent-runs-per-node)",
            ),
            (
                Full::Reserved,
                "waiting for a run slot: the free slots are reserved for namespaces with fewer runs (--max-concurrent-runs)",
            ),
            (
                Full::ReservedOnNode { name: name() },
                "waiting for a run slot: the free slots of node x1 are reserved for namespaces with fewer runs on this \
                 node (--max-concurrent-runs-per-node)",
            ),
            (
                namespace(false),
                "waiting for a run slot: 1 of 1 in use by namespace x1 (--max-concurrent-runs-per-namespace)",
            ),
            (
                namespace(true),
                "waiting for a run slot: 1 of 1 in use by namespace x1 (annotation pulumi.com/max-concurrent-runs of the \
                 namespace)",
            ),
            (group(false), "waiting for concurrency group x1: 2 of 2 runs open (spec.concurrencyGroup)"),
            (group(true), "waiting for concurrency group x1: 2 of 2 runs open (--concurrency-groups)"),
        ] {
            assert_eq!(full.to_string(), words);
        }
    }
}
