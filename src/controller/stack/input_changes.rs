//! Whether a Secret or a ConfigMap has another content than when the last run was started, and whether that is a reason to run.
//! What is known of contents is a word for each, from the agent: so a run starts when the pod has the new value. Pure.

use std::collections::BTreeMap;

use crate::api::auto::{Workspace, WorkspaceStatus};
use crate::api::pulumi::{LastUpdate, Stack};
use crate::controller::stack::inputs::{Baseline, Inputs};
use crate::controller::stack::observed::Observed;

/// The word for the values behind the configuration.
pub fn config(observed: &Observed) -> Option<String> {
    status(observed.workspace.as_ref())?.config_inputs.clone()
}

/// The words for what the pod mounts. What has changed without being watched keeps the word of the last run: it is no reason
/// to run, and no new input of a run that comes for another reason.
pub fn mounted(observed: &Observed) -> BTreeMap<String, String> {
    let before = last(&observed.stack).map(|last| &last.mounted_inputs);
    let counts = |(object, word): (&String, &String)| {
        let before = before.and_then(|before| before.get(object)).filter(|_| !observed.watched.contains(object));
        (object.clone(), before.unwrap_or(word).clone())
    };
    status(observed.workspace.as_ref()).map(|now| now.mounted_inputs.iter().map(counts).collect()).unwrap_or_default()
}

/// What the pod mounts with another content than at the last run, watched or not.
pub fn changed<'a>(stack: &Stack, workspace: Option<&'a Workspace>) -> Vec<&'a str> {
    let (Some(now), Some(last)) = (status(workspace), last(stack)) else { return Vec::new() };
    let differs = |object: &str, word: &str| last.mounted_inputs.get(object).is_some_and(|before| before != word);
    now.mounted_inputs
        .iter()
        .filter(|(object, word)| differs(object, word))
        .map(|(object, _)| object.as_str())
        .collect()
}

/// Why a run is due, if one of the inputs that count is another one than the last run was started for. What nobody had seen then
/// is no change.
pub fn reason(last: &LastUpdate, inputs: &Inputs) -> Option<String> {
    let has_read = |now: &String| last.run_config_inputs.as_ref() == Some(now);
    if matches!((&last.config_inputs, &inputs.config_inputs), (Some(before), Some(now)) if before != now && !has_read(now))
    {
        return Some("A Secret or a ConfigMap behind the configuration has changed".to_owned());
    }
    let differs = |object: &str, word: &str| last.mounted_inputs.get(object).is_some_and(|before| before != word);
    let (object, _) = inputs.mounted_inputs.iter().find(|(object, word)| differs(object, word))?;
    Some(format!("{} has changed", object.replacen('/', " ", 1)))
}

/// What is seen for the first time, if a run has ended before.
pub fn baseline(observed: &Observed) -> Option<Baseline> {
    let (now, last) = (status(observed.workspace.as_ref())?, last(&observed.stack)?);
    let is_new = |object: &String| !last.mounted_inputs.contains_key(object);
    let mounted = now.mounted_inputs.iter().filter(|(object, _)| is_new(object));
    // The Workspace reports later than the run what the run has read.
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
