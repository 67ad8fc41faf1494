//! The next step of a Stack if another Stack manages its Pulumi stack and takes precedence.

use crate::controller::stack::action::Action;
use crate::controller::stack::observed::Observed;
use crate::controller::stack::{deletion, identity};

/// Returns the action for a duplicate, or `None` if the Stack continues normally.
///
/// A duplicate does not run. When it is deleted, it destroys the Pulumi stack if it has applied it itself, unless a Stack in the same
/// namespace has applied it too. A Stack in another namespace cannot prevent the destroy.
pub fn decide(observed: &Observed) -> Option<Action> {
    let (stack, first) = (&observed.stack, observed.duplicate.as_ref()?);
    let managed =
        format!("Pulumi stack {} of project {} is already managed by Stack {first}", stack.spec.stack, first.project);
    if stack.metadata.deletion_timestamp.is_some() {
        if identity::has_applied_here(stack, observed.workspace.as_ref()) {
            let is_same_namespace = Some(&first.namespace) == stack.metadata.namespace.as_ref();
            if !is_same_namespace || !deletion::has_to_destroy(stack) {
                return None;
            }
            let message = format!(
                "{managed}, and a destroy would delete its resources. To leave them to Stack {first}, set spec.destroyOnFinalize to \
                 false; otherwise delete Stack {first} first"
            );
            return Some(Action::Conflict(message));
        }
        if !identity::has_applied(stack) || !deletion::has_to_destroy(stack) {
            return Some(Action::RemoveFinalizer);
        }
        let message = format!(
            "{managed} and is not destroyed; the resources of this Stack are in another Pulumi stack. To delete them, restore \
             spec.stack and spec.backend; to keep them, unset spec.destroyOnFinalize"
        );
        return Some(Action::Conflict(message));
    }
    let message = format!(
        "{managed}, so this Stack does not run. Change spec.stack or spec.backend, set spec.preview, or delete one of the two Stacks: \
         a Stack that has not applied this Pulumi stack does not destroy it. This Stack runs when Stack {first} is deleted or \
         manages another Pulumi stack"
    );
    (!stack.spec.suspend.unwrap_or_default()).then_some(Action::Conflict(message))
}
