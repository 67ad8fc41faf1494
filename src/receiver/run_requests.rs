//! Requests runs of the Stacks that a StackReceiver selects. The namespaces share the slots for this work fairly, because
//! a tenant can create any number of receivers, and a receiver can select thousands of Stacks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use thiserror::Error;
use tokio::time::Instant;

use crate::api::names::ANNOTATION_REQUESTED_AT;
use crate::api::pulumi::{Stack, StackReceiver};
use crate::runtime::fair_slots::{Busy, FairSlots, Limits};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{WriteError, Writer};
use crate::telemetry::chain;

/// Maximum duration of the work for one call. The duration is shorter than the callers' timeouts. For example, GitHub's
/// timeout is ten seconds.
pub const MAX_DURATION: Duration = Duration::from_secs(8);
/// Limits for the calls that request runs. Git providers do not repeat calls, so the calls of a push to many
/// repositories must be able to wait.
pub(super) const SLOTS: Limits = Limits { total: 16, per_key: 4, waiting_per_key: 60 };
/// Maximum number of waiting calls of all namespaces. A waiting call keeps its connection, so the server permits more
/// connections. The calls of one namespace can use half of the places.
pub(super) const MAX_WAITING: usize = 2 * SLOTS.waiting_per_key;
/// Maximum number of concurrent requests to the API server for one call.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// Maximum number of errors that a message lists. The message also states how many errors are omitted.
const MAX_LISTED_ERRORS: usize = 3;

/// The reason why requesting a run failed.
#[derive(Debug, Error)]
enum RequestError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("Stack {namespace}/{name} not found")]
    NoStack { namespace: String, name: String },
    #[error("the controller could not annotate all selected Stacks within {} s", MAX_DURATION.as_secs())]
    Timeout,
}

/// Result of requesting runs for all Stacks that a receiver selects.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RunRequests {
    /// Number of successful requests.
    pub stacks: usize,
    /// Messages of the first errors.
    errors: Vec<String>,
    /// Number of further errors.
    more_errors: usize,
}

impl RunRequests {
    /// Returns the reasons why requesting runs of the other Stacks failed.
    pub fn problem(&self) -> Option<String> {
        let others = match self.more_errors {
            0 => String::new(),
            number => format!("; and {number} more"),
        };
        (!self.errors.is_empty()).then(|| self.errors.join("; ") + &others)
    }

    fn fail(&mut self, error: &RequestError) {
        match self.errors.len() < MAX_LISTED_ERRORS {
            true => self.errors.push(chain(error)),
            false => self.more_errors += 1,
        }
    }
}

/// Requests runs for webhook calls.
pub struct RunRequester {
    reader: Reader,
    writer: Writer,
    slots: FairSlots,
}

impl RunRequester {
    pub fn new(reader: Reader, writer: Writer) -> Self {
        RunRequester { reader, writer, slots: FairSlots::with_places(SLOTS, MAX_WAITING) }
    }

    /// Requests runs of all Stacks that a receiver selects. A failure for one Stack does not affect the other Stacks.
    /// After `deadline`, the function cancels the remaining requests and reports an error.
    ///
    /// # Errors
    /// Returns [`Busy`] if too many calls are waiting.
    pub async fn request(
        &self,
        receiver: &StackReceiver,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<RunRequests, Busy> {
        let namespace = receiver.namespace().unwrap_or_default();
        let mut requests = RunRequests::default();
        let work = async {
            let _slot = self.slots.acquire(&namespace).await?;
            let stacks = self.selected(receiver, &namespace, &mut requests).await;
            self.annotate(stacks, now, &mut requests).await;
            Ok::<(), Busy>(())
        };
        let ended = tokio::time::timeout_at(deadline, Box::pin(work)).await;
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(busy)) => return Err(busy),
            Err(_) => requests.fail(&RequestError::Timeout),
        }
        Ok(requests)
    }

    /// Returns the Stacks that a receiver selects, by name. Sends at most one list request.
    async fn selected(
        &self,
        receiver: &StackReceiver,
        namespace: &str,
        requests: &mut RunRequests,
    ) -> BTreeMap<String, PartialObjectMeta<Stack>> {
        let resources = &receiver.spec.resources;
        let mut stacks = BTreeMap::new();
        let names: BTreeSet<&str> = resources.iter().filter_map(|resource| resource.stack_name()).collect();
        let reads: Vec<_> = names.into_iter().map(|name| self.find(namespace, name)).collect();
        let mut found = futures::stream::iter(reads).buffered(MAX_CONCURRENT_REQUESTS);
        while let Some(result) = found.next().await {
            match result {
                Ok(stack) => drop(stacks.insert(stack.name_any(), stack)),
                Err(error) => requests.fail(&error),
            }
        }
        let labels = resources.iter().filter(|resource| resource.stack_name().is_none());
        // The schema requires labels. Without this check, empty labels would select all Stacks.
        let labels = labels.map(|resource| &resource.match_labels).filter(|labels| !labels.is_empty());
        let selectors: Vec<&BTreeMap<String, String>> = labels.collect();
        if !selectors.is_empty() {
            match self.list(namespace, &selectors).await {
                Ok(found) => stacks.extend(found.into_iter().map(|stack| (stack.name_any(), stack))),
                Err(error) => requests.fail(&RequestError::from(error)),
            }
        }
        stacks
    }

    async fn find(&self, namespace: &str, name: &str) -> Result<PartialObjectMeta<Stack>, RequestError> {
        let stack = self.reader.get_metadata_opt::<Stack>(namespace, name).await?;
        let missing = || RequestError::NoStack { namespace: namespace.to_owned(), name: name.to_owned() };
        stack.ok_or_else(missing)
    }

    /// Returns the Stacks whose labels match at least one of the selectors. One list replaces a list for each selector,
    /// because a namespace can read only two lists at the same time.
    async fn list(
        &self,
        namespace: &str,
        selectors: &[&BTreeMap<String, String>],
    ) -> Result<Vec<PartialObjectMeta<Stack>>, ReadError> {
        let common = common_labels(selectors);
        self.reader
            .list_metadata::<Stack>(namespace, &common, |labels| {
                selectors.iter().any(|selector| contains(labels, selector))
            })
            .await
    }

    /// Annotates the Stacks with a request for a run.
    async fn annotate(
        &self,
        stacks: BTreeMap<String, PartialObjectMeta<Stack>>,
        now: Timestamp,
        requests: &mut RunRequests,
    ) {
        let request = BTreeMap::from([(ANNOTATION_REQUESTED_AT.to_owned(), Some(now.to_string()))]);
        let (writer, request) = (&self.writer, &request);
        let mut results = futures::stream::iter(stacks.into_values())
            .map(|stack| async move { writer.annotate(&stack, request).await })
            .buffer_unordered(MAX_CONCURRENT_REQUESTS);
        while let Some(result) = results.next().await {
            match result {
                Ok(()) => requests.stacks += 1,
                Err(error) => requests.fail(&RequestError::from(error)),
            }
        }
    }
}

/// Returns a label selector with the labels that all selectors contain. The API server then omits objects that match no
/// selector.
fn common_labels(selectors: &[&BTreeMap<String, String>]) -> String {
    let Some((first, others)) = selectors.split_first() else { return String::new() };
    let common = first.iter().filter(|(key, value)| others.iter().all(|other| other.get(*key) == Some(*value)));
    common.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Returns whether `labels` contains all labels of the selector. Because both maps have the same order, one pass over
/// `labels` is sufficient.
fn contains(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    let mut labels = labels.iter();
    selector.iter().all(|wanted| labels.any(|label| label == wanted))
}

#[cfg(test)]
mod tests;
