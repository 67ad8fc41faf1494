//! `doctor --migration`: lists the Stacks of the Pulumi Kubernetes Operator that a user must change before the controller
//! takes them over. `docs/guides/migrate-from-pko.md` describes all differences. The findings use only the Stacks, so the
//! command needs neither the controller nor permissions for Secrets.
//!
//! The plugin also runs on systems for which the controller is not built, so these modules contain the controller's rules
//! for the fields of the operator. `tests/operator/rejected-stacks.yaml` contains a Stack for each rule. The tests of the
//! controller and of this command use this list, so that the rules cannot diverge.

mod finding;
mod pod_template;
mod references;
mod sources;
mod spec;

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use pulumi_controller::api::pulumi::Stack;
use serde::Serialize;

use crate::plugin::duplicates::duplicates;
use crate::plugin::screen::{Screen, table};
use crate::plugin::select::full_name;

use finding::Finding;

/// Returns the findings about a Stack.
pub fn findings(stack: &Stack) -> Vec<Finding> {
    let mut all = spec::findings(stack);
    all.extend(sources::findings(stack));
    all.extend(references::findings(stack));
    all.extend(pod_template::findings(&stack.spec));
    all
}

/// Returns the finding about a Stack that manages the same Pulumi stack as another Stack.
fn duplicate(other: &Stack) -> Finding {
    let change = format!("Stack {} manages the same Pulumi stack, and only one of the Stacks runs", full_name(other));
    Finding::required("spec.stack", change, "delete one of the Stacks, or set spec.preview")
}

/// Findings about all Stacks.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Report {
    rows: Vec<Row>,
    #[serde(skip)]
    with_namespaces: bool,
    #[serde(skip)]
    place: String,
}

#[derive(Serialize)]
struct Row {
    namespace: String,
    name: String,
    #[serde(flatten)]
    finding: Finding,
}

impl Report {
    /// Returns the findings about the Stacks of a namespace, or of all namespaces if `namespace` is `None`.
    pub fn of(stacks: &[Stack], namespace: Option<&str>) -> Self {
        let mut duplicates = duplicates(stacks);
        let rows = stacks.iter().enumerate().flat_map(|(index, stack)| {
            let row =
                |finding| Row { namespace: stack.namespace().unwrap_or_default(), name: stack.name_any(), finding };
            findings(stack).into_iter().chain(duplicates.remove(&index).map(duplicate)).map(row).collect::<Vec<_>>()
        });
        let place = namespace.map_or_else(|| "the cluster".to_owned(), |namespace| format!("namespace {namespace}"));
        Report { rows: rows.collect(), with_namespaces: namespace.is_none(), place }
    }

    /// Returns the number of Stacks that require an action.
    pub fn affected(&self) -> usize {
        let rows = self.rows.iter().filter(|row| row.finding.requires_action);
        rows.map(|row| (&row.namespace, &row.name)).collect::<BTreeSet<_>>().len()
    }
}

impl Screen for Report {
    fn text(&self) -> String {
        if self.rows.is_empty() {
            return format!("✔ no Stack in {} requires a change before the migration\n", self.place);
        }
        let mut header = vec!["NAME", "FIELD", "REQUIRED", "CHANGE", "ACTION"];
        if self.with_namespaces {
            header.insert(0, "NAMESPACE");
        }
        let cells = |row: &Row| {
            let Finding { field, requires_action, change, action } = &row.finding;
            let required = if *requires_action { "yes" } else { "no" };
            let mut cells = vec![row.name.clone(), field.clone(), required.to_owned(), change.clone(), action.clone()];
            if self.with_namespaces {
                cells.insert(0, row.namespace.clone());
            }
            cells
        };
        table(&header, &self.rows.iter().map(cells).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests;
