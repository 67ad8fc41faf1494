//! Requests runs of a receiver's Stacks, with the same annotation that users set.

use std::collections::BTreeMap;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use thiserror::Error;

use crate::api::names::ANNOTATION_REQUESTED_AT;
use crate::api::pulumi::{ReceiverResource, Stack, StackReceiver};
use crate::runtime::reads::{ReadError, Reader};
use crate::runtime::writes::{WriteError, Writer};
use crate::telemetry::chain;

/// Maximum number of concurrent requests.
const MAX_CONCURRENT: usize = 8;
/// Maximum number of faults that are named; further ones are only counted.
const NAMED_FAULTS: usize = 3;

/// Reason why a run was not requested.
#[derive(Debug, Error)]
enum Fault {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("Stack {namespace}/{name} not found")]
    NoStack { namespace: String, name: String },
}

/// Result of the requests for all Stacks of a receiver.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RunRequests {
    /// Number of Stacks for which a run was requested.
    pub stacks: usize,
    /// Reasons why other runs were not requested.
    pub problem: Option<String>,
}

/// Requests runs of all Stacks that a receiver references. A failure for one Stack does not affect the others.
pub async fn request_runs(reader: &Reader, writer: &Writer, receiver: &StackReceiver, now: Timestamp) -> RunRequests {
    let namespace = receiver.namespace().unwrap_or_default();
    let mut stacks = BTreeMap::new();
    let mut faults = Vec::new();
    for resource in &receiver.spec.resources {
        match find(reader, &namespace, resource).await {
            Ok(found) => stacks.extend(found.into_iter().map(|stack| (stack.name_any(), stack))),
            Err(fault) => faults.push(fault),
        }
    }
    let request = BTreeMap::from([(ANNOTATION_REQUESTED_AT.to_owned(), Some(now.to_string()))]);
    let request = &request;
    let answers: Vec<_> = futures::stream::iter(stacks.into_values())
        .map(|stack| async move { writer.annotate(&stack, request).await })
        .buffer_unordered(MAX_CONCURRENT)
        .collect()
        .await;
    let all = answers.len();
    faults.extend(answers.into_iter().filter_map(Result::err).map(Fault::from));
    let failed = faults.iter().filter(|fault| matches!(fault, Fault::Write(_))).count();
    RunRequests { stacks: all.saturating_sub(failed), problem: problem(&faults) }
}

async fn find(
    reader: &Reader,
    namespace: &str,
    resource: &ReceiverResource,
) -> Result<Vec<PartialObjectMeta<Stack>>, Fault> {
    let Some(name) = resource.one() else {
        // The schema requires labels. An empty selector would match all Stacks.
        if resource.match_labels.is_empty() {
            return Ok(Vec::new());
        }
        let labels: Vec<String> = resource.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        return Ok(reader.list_metadata::<Stack>(namespace, &labels.join(",")).await?);
    };
    let stack = reader.get_metadata_opt::<Stack>(namespace, name).await?;
    let missing = || Fault::NoStack { namespace: namespace.to_owned(), name: name.to_owned() };
    Ok(vec![stack.ok_or_else(missing)?])
}

fn problem(faults: &[Fault]) -> Option<String> {
    let named: Vec<String> = faults.iter().take(NAMED_FAULTS).map(|fault| chain(fault)).collect();
    let others = match faults.len().saturating_sub(NAMED_FAULTS) {
        0 => String::new(),
        number => format!(", and {number} others"),
    };
    (!named.is_empty()).then(|| named.join("; ") + &others)
}
