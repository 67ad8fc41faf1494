//! Reconcilers for all kinds. Each reconciler observes the state, decides on an action, performs the action, and
//! writes the status.

pub mod authority;
mod first_report;
pub mod merge;
pub mod namespaces;
pub mod program;
pub mod receiver;
pub mod references;
pub mod stack;
pub mod update;
pub mod workspace;

#[cfg(test)]
mod field_effects;
#[cfg(test)]
mod test_parts;

use crate::api::pulumi::PulumiStack;
use crate::pulumi::stack_name::Qualified;

/// Returns whether two values identify different Pulumi stacks. Ignores parts that only one of the values contains,
/// such as the project.
pub fn differ(one: &PulumiStack, other: &PulumiStack) -> bool {
    qualified(one).differs_from(&qualified(other))
}

/// Returns the name, the project and the backend of a Pulumi stack in a form that can be compared.
fn qualified(stack: &PulumiStack) -> Qualified<'_> {
    Qualified { name: &stack.name, project: stack.project.as_deref(), backend: stack.backend.as_deref() }
}
