//! Detects changes of Secrets and ConfigMaps since the last run, and whether they trigger a run. The agent reports a keyed hash of each, so
//! a run starts only after the kubelet has updated the pod.

use std::collections::BTreeMap;

use crate::api::auto::{Workspace, WorkspaceStatus};
use crate::api::pulumi::{LastUpdate, Stack};
use crate::controller::stack::inputs::{Baseline, Inputs};
use crate::controller::stack::observed::Observed;

/// Returns the hash of the values that the configuration refers to.
pub fn config(observed: &Observed) -> Option<String> {
    status(observed.workspace.as_ref())?.config_inputs.clone()
}

/// Returns the hashes of the mounted objects. A changed object that is not watched keeps the hash of the last run, so that its change
/// neither triggers a run nor counts as a new input of a run.
pub fn mounted(observed: &Observed) -> BTreeMap<String, String> {
    let before = last(&observed.stack).map(|last| &last.mounted_inputs);
    let counts = |(object, word): (&String, &String)| {
        let before = before.and_then(|before| before.get(object)).filter(|_| !observed.watched.contains(object));
        (object.clone(), before.unwrap_or(word).clone())
    };
    status(observed.workspace.as_ref()).map(|now| now.mounted_inputs.iter().map(counts).collect()).unwrap_or_default()
}

/// Returns the mounted objects whose content differs from that of the last run, watched or not.
pub fn changed<'a>(stack: &Stack, workspace: Option<&'a Workspace>) -> Vec<&'a str> {
    let (Some(now), Some(last)) = (status(workspace), last(stack)) else { return Vec::new() };
    let differs = |object: &str, word: &str| last.mounted_inputs.get(object).is_some_and(|before| before != word);
    now.mounted_inputs
        .iter()
        .filter(|(object, word)| differs(object, word))
        .map(|(object, _)| object.as_str())
        .collect()
}

/// Returns the message of a run if a Secret or ConfigMap has changed since the last run. An object without a recorded hash has not changed.
pub fn reason(last: &LastUpdate, inputs: &Inputs) -> Option<String> {
    let has_read = |now: &String| last.run_config_inputs.as_ref() == Some(now);
    if matches!((&last.config_inputs, &inputs.config_inputs), (Some(before), Some(now)) if before != now && !has_read(now))
    {
        return Some("A Secret or ConfigMap referenced by the configuration has changed".to_owned());
    }
    let differs = |object: &str, word: &str| last.mounted_inputs.get(object).is_some_and(|before| before != word);
    let (object, _) = inputs.mounted_inputs.iter().find(|(object, word)| differs(object, word))?;
    Some(format!("{} has changed", object.replacen('/', " ", 1)))
}

/// Returns the hashes that the record of the last run lacks; `None` if there are none or no run has ended.
pub fn baseline(observed: &Observed) -> Option<Baseline> {
    let (now, last) = (status(observed.workspace.as_ref())?, last(&observed.stack)?);
    let is_new = |object: &String| !last.mounted_inputs.contains_key(object);
    let mounted = now.mounted_inputs.iter().filter(|(object, _)| is_new(object));
    // The Workspace may report the values that the run has read only after the run has ended.
    let is_first = |now: &String| match &last.config_inputs {
        None => true,
        Some(before) => before != now && last.run_config_inputs.as_ref() == Some(now),
    };
    let first = Baseline {
        config: now.config_inputs.clone().filter(is_first),
        mounted: mounted.map(|(object, word)| (object.clone(), word.clone())).collect(),
    };
    (first != Baseline::default()).then_some(first)
}

fn status(workspace: Option<&Workspace>) -> Option<&WorkspaceStatus> {
    workspace?.status.as_ref()
}

fn last(stack: &Stack) -> Option<&LastUpdate> {
    stack.status.as_ref()?.last_update.as_ref()
}
