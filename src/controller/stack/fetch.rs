//! Fetches a Stack's artifact into the store.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;

use crate::api::conditions::stack_reason;
use crate::api::pulumi::Stack;
use crate::artifact::FetchError;
use crate::controller::stack::context::Context;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::policy_packs::ResolvedPack;
use crate::controller::stack::run_events;
use crate::controller::stack::status::State;
use crate::controller::stack::step::{Next, WATCHED_RETRY, requeue, suspended};
use crate::runtime::events::{Event, EventKind};
use crate::runtime::failpoint;
use crate::runtime::reconcile::ReconcileError;
use crate::source::program::conversion;
use crate::source::{Origin, Resolved};
use crate::telemetry::metrics::FetchResult;

/// Event reason: the artifact lacks content of the Git repository, such as submodules or Git LFS files.
const SOURCE_INCOMPLETE: &str = "SourceIncomplete";
/// Event reason: a Program inserts a config value into a string in another form.
const CONFIG_CONVERTED: &str = "ConfigConverted";
/// Minimum delay before a retry, if the server requests a delay with `Retry-After`.
const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Retry policy after a failed fetch.
#[derive(Debug, PartialEq, Eq)]
enum RetryPolicy {
    /// Retry after the delay that the server requests. If the server requests no delay, retry after the requeue
    /// interval for unavailable sources.
    After(Option<Duration>),
    /// Retry with backoff. The downloaded artifact is complete but invalid, so the next download is probably also
    /// invalid.
    Backoff,
}

/// An artifact to fetch.
struct Wanted<'a> {
    resolved: &'a Resolved,
    /// Namespace of the source.
    source_namespace: &'a str,
    /// Description of the artifact in messages.
    what: String,
}

/// Fetches the artifact, or reports why the fetch failed. Before each retry, the controller resolves the source again.
pub(super) async fn fetch(
    observed: &Observed,
    resolved: &Resolved,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let (stack, arrivals) = (&observed.stack, &context.arrivals);
    let namespace = stack.namespace().unwrap_or_default();
    arrivals.detected(stack, &resolved.digest, now);
    let wanted = Wanted { resolved, source_namespace: &namespace, what: describe(resolved) };
    let next = fetch_wanted(observed, &wanted, context, now).await?;
    if arrivals.is_enabled() && context.store.is_granted(&resolved.digest, &namespace) {
        arrivals.fetched(stack, &resolved.digest, Timestamp::now());
    }
    Ok(next)
}

/// Fetches the artifact of a policy pack in the same way as [`fetch`]. The source of a cluster-wide pack can be in
/// another namespace.
pub(super) async fn fetch_policy_pack(
    observed: &Observed,
    pack: &ResolvedPack,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let what = format!("policy pack {}: {}", pack.name, describe(&pack.resolved));
    let wanted = Wanted { resolved: &pack.resolved, source_namespace: &pack.namespace, what };
    fetch_wanted(observed, &wanted, context, now).await
}

fn describe(resolved: &Resolved) -> String {
    match resolved.revision.as_str() {
        "" => resolved.digest.to_string(),
        revision => format!("revision {revision}"),
    }
}

async fn fetch_wanted(
    observed: &Observed,
    wanted: &Wanted<'_>,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let Wanted { resolved, source_namespace, what } = wanted;
    let stack = &observed.stack;
    let namespace = stack.namespace().unwrap_or_default();
    let fetched = match &resolved.origin {
        Origin::Url(url) => context.fetcher.fetch_from(url, &resolved.digest, source_namespace, &namespace).await,
        Origin::Made(bytes) | Origin::Program { bytes, .. } => {
            context.fetcher.keep(bytes, &resolved.digest, &namespace).await
        }
        Origin::Git(origin) => {
            context.git.fetch_again(origin);
            return report(observed, &State::Working(format!("fetching {what}")), None, context, now).await;
        }
        // The pod already contains the source, so a fetch is not necessary.
        Origin::InPod => return Ok(Next::Rest(Some(WATCHED_RETRY))),
    };
    match fetched {
        Ok(fetched) => {
            let result = if fetched.downloaded { FetchResult::Fetched } else { FetchResult::Cached };
            context.metrics.artifact_fetch(result);
            failpoint::hit("stack-artifact-stored");
            context.artifact_arrived(&namespace, &stack.name_any());
            Ok(Next::Again(Box::new(stack.clone())))
        }
        Err(error) => {
            context.metrics.artifact_fetch(FetchResult::Failed);
            let message = format!("failed to fetch {what}: {error}");
            if keep_project(observed, resolved, context).await {
                tracing::warn!(message, "failed to fetch the source; destroying the Pulumi stack from its state");
                return Ok(Next::Again(Box::new(stack.clone())));
            }
            let event = Event::new(stack, EventKind::Warning, stack_reason::SOURCE_UNAVAILABLE, message.as_str());
            let origin = resolved.origin_revision.as_deref();
            context.events.publish(run_events::with_revisions(event, Some(&resolved.revision), origin));
            let state = if needs_user_change(&error) {
                State::SourceStalled(message)
            } else {
                State::SourceUnavailable(message)
            };
            match retry_policy(&error) {
                RetryPolicy::After(known) => report(observed, &state, known, context, now).await,
                RetryPolicy::Backoff => {
                    report(observed, &state, None, context, now).await?;
                    Err(ReconcileError::reported(error))
                }
            }
        }
    }
}

/// Writes the state's conditions. A suspended Stack keeps its conditions, because its Workspace reports that the pod
/// waits for the source.
async fn report(
    observed: &Observed,
    state: &State,
    known: Option<Duration>,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let stack = &observed.stack;
    if !stack.spec.suspend.unwrap_or_default() || stack.metadata.deletion_timestamp.is_some() {
        return requeue(stack, state, known, context, now).await;
    }
    requeue(stack, &suspended(observed), None, context, now).await?;
    Ok(Next::Rest(known.or(Some(WATCHED_RETRY))))
}

/// Stores the generated project for a destroy if the source is not available. Returns whether the store now contains
/// the project.
async fn keep_project(observed: &Observed, failed: &Resolved, context: &Context) -> bool {
    let made = observed.deletion.as_ref().and_then(|deletion| deletion.without_source.as_ref());
    let Some(made) = made.filter(|made| *made != failed) else { return false };
    let namespace = observed.stack.namespace().unwrap_or_default();
    match &made.origin {
        Origin::Made(bytes) | Origin::Program { bytes, .. } => {
            context.fetcher.keep(bytes, &made.digest, &namespace).await.is_ok()
        }
        Origin::Url(_) | Origin::Git(_) | Origin::InPod => false,
    }
}

/// Returns whether only a user can resolve the error, for example by changing the URL of the source or reducing its
/// size.
fn needs_user_change(error: &FetchError) -> bool {
    matches!(error, FetchError::TooLarge { .. } | FetchError::RefusedHost { .. } | FetchError::Url { .. })
}

/// Returns the retry policy for the error. The fetcher limits the delay that a server can request.
fn retry_policy(error: &FetchError) -> RetryPolicy {
    match error.is_about_content() {
        true => RetryPolicy::Backoff,
        false => RetryPolicy::After(error.retry_after().map(|wait| wait.max(MIN_RETRY_AFTER))),
    }
}

/// Waits for the source lookup. Does not change conditions that apply to the current generation, because the first
/// lookup after a controller restart usually confirms them.
pub(super) async fn await_source(
    stack: &Stack,
    message: String,
    context: &Context,
    now: Timestamp,
) -> Result<Next, ReconcileError> {
    let status = stack.status.as_ref().filter(|status| !status.conditions.is_empty());
    if status.is_some_and(|status| status.observed_generation == stack.metadata.generation) {
        return Ok(Next::Rest(Some(WATCHED_RETRY)));
    }
    requeue(stack, &State::Working(message), None, context, now).await
}

/// Returns the reasons and messages of warning events about a Git repository's content, or about config values that a
/// Program inserts into strings.
pub(super) fn warnings(observed: &Observed) -> Vec<(&'static str, String)> {
    match &observed.source {
        Some(Ok(Resolved { origin: Origin::Git(origin), .. })) => {
            origin.warnings.iter().map(|warning| (SOURCE_INCOMPLETE, warning.clone())).collect()
        }
        Some(Ok(Resolved { origin: Origin::Program { interpolated, .. }, .. })) => {
            let spec = &observed.stack.spec;
            let project = spec.program_ref.as_ref().map(|program| program.name.as_str()).unwrap_or_default();
            let sentences = conversion::warnings(interpolated, "spec.config", &spec.config, project);
            (!sentences.is_empty()).then(|| (CONFIG_CONVERTED, sentences.to_string())).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::Digest;
    use crate::mutual_tls::{Failure, Peer};

    #[test]
    fn a_failed_fetch_is_retried_according_to_its_error() {
        let seconds = Duration::from_secs;
        let (url, why) = (|| "http://source/a.tar.gz".to_owned(), || "why".to_owned());
        let status_error = |status, retry_after: Option<u64>| FetchError::Status {
            url: url(),
            status,
            retry_after: retry_after.map(seconds),
        };
        let postponed = FetchError::Postponed { error: Box::new(status_error(503, Some(120))), left: seconds(90) };
        let digest = || Digest::of(b"a");
        let without_delay = || RetryPolicy::After(None);
        let after = |wait| RetryPolicy::After(Some(seconds(wait)));
        let rows = [
            (FetchError::NotFound { url: url() }, without_delay()),
            (status_error(500, None), without_delay()),
            (status_error(501, None), without_delay()),
            (status_error(503, Some(120)), after(120)),
            (status_error(429, Some(0)), after(1)),
            (postponed, after(90)),
            (FetchError::Connect { url: url(), cause: why() }, without_delay()),
            (FetchError::Truncated { url: url(), received: 7, cause: why() }, without_delay()),
            (
                FetchError::MutualTls { url: url(), failure: Failure::NoTls { peer: Peer::ArtifactServer } },
                without_delay(),
            ),
            (FetchError::Timeout { url: url(), what: "all of it", limit: seconds(240) }, without_delay()),
            (FetchError::RefusedHost { url: url(), host: "host".to_owned() }, without_delay()),
            (FetchError::Url { url: url(), why: why() }, without_delay()),
            (FetchError::Store { digest: digest(), cause: why() }, without_delay()),
            (FetchError::DigestMismatch { url: url(), expected: digest(), bytes: 7 }, RetryPolicy::Backoff),
            (FetchError::TooLarge { url: url(), limit: 7 }, RetryPolicy::Backoff),
        ];
        for (error, expected) in rows {
            assert_eq!(retry_policy(&error), expected, "{error}");
        }
    }
}
