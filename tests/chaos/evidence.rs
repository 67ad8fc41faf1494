//! Collects all facts about a Stack.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use pulumi_controller::api::auto::{Update, UpdateKind};
use pulumi_controller::api::conditions::{FAILED, find, is_true};
use pulumi_controller::api::pulumi::Stack;

use crate::facts::{Facts, Run, RunOutcome};
use crate::harness::is_done;
use crate::provider_log;
use crate::stage::{PROJECT, Stage};

/// Returns the facts about one Stack. `seen` contains all Update states that the watch has observed.
pub async fn of(stage: &Stage<'_>, name: &str, seen: &[Update]) -> Facts {
    let stack = stage.scene.list::<Stack>().await.into_iter().find(|stack| stack.name_any() == name);
    let current = stage.scene.list::<Update>().await;
    let member = &stage.stacks[name];
    let backend = &stage.backend;
    Facts {
        stack: name.to_owned(),
        events: provider_log::events(&member.pulumi_stack).await,
        removed_manually: member.removed_manually.clone(),
        state: backend.state(PROJECT, &member.pulumi_stack).await,
        locks: backend.locks(PROJECT, &member.pulumi_stack).await,
        latest: stage.latest(member).clone(),
        applied: stack.as_ref().and_then(|stack| stack.status.as_ref()?.last_applied_revision.clone()),
        stuck: stuck(stack.as_ref()),
        runs: runs(stage, name, seen, &current),
        hits: member.hits.clone(),
    }
}

/// Returns the reason why a Stack has not reached the latest revision, or `None` if the Stack has reached it.
fn stuck(stack: Option<&Stack>) -> Option<String> {
    let Some(stack) = stack else { return Some("the Stack was deleted and not created again".to_owned()) };
    if is_done(stack) {
        return None;
    }
    let conditions = stack.status.iter().flat_map(|status| &status.conditions);
    let text: Vec<String> =
        conditions.map(|c| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message)).collect();
    Some(if text.is_empty() { "no condition has a message".to_owned() } else { text.join("; ") })
}

/// Returns the latest state of each run of the Stack. Ignores the previews that create plans. The watch can have missed
/// the latest state, so `current` has priority.
fn runs(stage: &Stage<'_>, name: &str, seen: &[Update], current: &[Update]) -> Vec<Run> {
    let current_uids: BTreeSet<Option<String>> = current.iter().map(Update::uid).collect();
    let of_stack = seen
        .iter()
        .chain(current)
        .filter(|update| update.spec.workspace_name == name && update.spec.kind != UpdateKind::Preview);
    let last: BTreeMap<Option<String>, &Update> = of_stack.map(|update| (update.uid(), update)).collect();
    let mut runs: Vec<Run> = last.iter().map(|(uid, update)| run(stage, update, current_uids.contains(uid))).collect();
    runs.sort_by(|one, other| (one.created, &one.update).cmp(&(other.created, &other.update)));
    runs
}

fn run(stage: &Stage<'_>, update: &Update, exists: bool) -> Run {
    let status = update.status.clone().unwrap_or_default();
    let outcome = update.is_complete().then(|| match find(&status.conditions, FAILED) {
        Some(failed) if is_true(&status.conditions, FAILED) => {
            RunOutcome::Failed { reason: failed.reason.clone(), message: status.message.clone().unwrap_or_default() }
        }
        _ => RunOutcome::Succeeded,
    });
    Run {
        update: update.name_any(),
        number: update
            .artifact()
            .and_then(|artifact| stage.numbers.get(&artifact.revision))
            .copied()
            .unwrap_or_default(),
        is_destroy: update.spec.kind == UpdateKind::Destroy,
        created: update.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        has_begun: status.start_time.is_some(),
        ended: status.end_time.map(|time| time.0),
        outcome,
        exists,
    }
}
