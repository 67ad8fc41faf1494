//! Selects the Stacks that a command reads or changes.

use kube::ResourceExt as _;
use kube::api::ListParams;
use pulumi_controller::api::pulumi::Stack;

use crate::plugin::args::{ListFlags, Selection};
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;

/// Returns the name of a Stack with its namespace, for messages.
pub fn full_name(stack: &Stack) -> String {
    format!("{}/{}", stack.namespace().unwrap_or_default(), stack.name_any())
}

/// Returns the Stacks to list, sorted by namespace and name.
///
/// # Errors
///
/// Returns an error if the flags contradict each other, if a named Stack does not exist, or if a request fails.
pub async fn listed(cluster: &Cluster, flags: &ListFlags) -> Result<Vec<Stack>, PluginError> {
    // As in kubectl, an empty selector selects all Stacks of a list.
    let selector = flags.selector.clone().filter(|labels| !labels.trim().is_empty());
    let all = flags.stacks.is_empty() && selector.is_none();
    let selection = Selection { stacks: flags.stacks.clone(), selector, all, all_namespaces: flags.all_namespaces };
    check(&selection)?;
    read(cluster, &selection).await
}

/// Returns the Stacks to change, sorted by namespace and name. The list contains at least one Stack.
///
/// # Errors
///
/// Returns an error if the flags contradict each other, if no Stack is selected, or if a request fails.
pub async fn selected(cluster: &Cluster, selection: &Selection) -> Result<Vec<Stack>, PluginError> {
    check(selection)?;
    let stacks = read(cluster, selection).await?;
    if stacks.is_empty() {
        return Err(PluginError::NotFound {
            request: "select Stacks".to_owned(),
            kind: "Stack".to_owned(),
            namespace: if selection.all_namespaces { "*".to_owned() } else { cluster.namespace().to_owned() },
            name: selection.selector.clone().unwrap_or_else(|| "*".to_owned()),
        });
    }
    Ok(stacks)
}

/// Checks that the selection is not empty and does not contradict itself. To the API server, an empty selector selects
/// all Stacks, so the value of an unset variable must not select the Stacks to change.
fn check(selection: &Selection) -> Result<(), PluginError> {
    let has_no_labels = selection.selector.as_ref().is_some_and(|labels| labels.trim().is_empty());
    let problem = match (selection.stacks.is_empty(), selection.selector.is_some(), selection.all) {
        _ if has_no_labels => "--selector is empty: use labels, or select all Stacks with --all",
        (true, false, false) => "no Stack is selected: name the Stacks, or use --selector or --all",
        (false, true, _) => "--selector selects Stacks by labels: remove the names of the Stacks, or --selector",
        (false, _, true) => "--all selects all Stacks: remove the names of the Stacks, or --all",
        (true, true, true) => "--selector and --all contradict each other: use one of them",
        (false, ..) if selection.all_namespaces => {
            "--all-namespaces does not apply to names of Stacks: use --namespace, --selector or --all"
        }
        _ => return Ok(()),
    };
    Err(PluginError::Usage(problem.to_owned()))
}

async fn read(cluster: &Cluster, selection: &Selection) -> Result<Vec<Stack>, PluginError> {
    let mut stacks = Vec::new();
    for name in &selection.stacks {
        stacks.push(cluster.get::<Stack>(cluster.namespace(), name).await?);
    }
    if selection.stacks.is_empty() {
        let parameters = match &selection.selector {
            Some(labels) => ListParams::default().labels(labels),
            None => ListParams::default(),
        };
        stacks = cluster.list(&cluster.scope(selection.all_namespaces), parameters).await?;
    }
    stacks.sort_by_key(|stack| (stack.namespace(), stack.name_any()));
    stacks.dedup_by_key(|stack| (stack.namespace(), stack.name_any()));
    Ok(stacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(names: &[&str], selector: Option<&str>, all: bool, all_namespaces: bool) -> Selection {
        Selection {
            stacks: names.iter().map(|name| (*name).to_owned()).collect(),
            selector: selector.map(str::to_owned),
            all,
            all_namespaces,
        }
    }

    #[test]
    fn exactly_one_way_selects_the_stacks() {
        let valid = [
            selection(&["web"], None, false, false),
            selection(&[], Some("team=blue"), false, true),
            selection(&[], None, true, true),
        ];
        for selection in valid {
            assert!(check(&selection).is_ok(), "{selection:?}");
        }
        let invalid = [
            selection(&[], None, false, false),
            selection(&[], None, false, true),
            selection(&["web"], Some("team=blue"), false, false),
            selection(&["web"], None, true, false),
            selection(&["web"], None, false, true),
            selection(&[], Some("team=blue"), true, false),
            selection(&[], Some(""), false, true),
            selection(&[], Some(" "), false, false),
        ];
        for selection in invalid {
            assert_eq!(check(&selection).unwrap_err().exit_code(), 2, "{selection:?}");
        }
    }
}
