//! The operations on resources, and what each of them can do to a resource that the state contains.

/// Operation for a resource whose URN changes, for example because of an alias. Lists the previous URN.
pub const RENAME: &str = "rename";
/// Operation for a managed resource that the program only reads in the future, so Pulumi no longer manages it.
pub const RELINQUISH: &str = "relinquish";
/// Operation for a managed resource that a refresh has not found, so the refresh removes it from the state.
pub const MISSING: &str = "missing";
/// Operation for an unchanged resource that another provider manages in the future, for example in another region.
pub const REASSIGN: &str = "reassign";

/// Effect of an operation on a resource that the state contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing changes, or another operation reports the change. The agent does not list these operations.
    None,
    /// Pulumi starts to manage a resource. Other resources do not change.
    Addition,
    /// The resource changes, or patterns that matched the resource no longer match it.
    Change,
    /// Pulumi creates a new copy of the resource, and deletes the old copy.
    Replacement,
    /// Pulumi no longer manages the resource.
    Loss,
}

/// All operations of the engine in the versions 3.105 to 3.276 of the CLI, and the operations that the agent derives
/// from the states before and after a step. Any other operation is unknown.
const EFFECTS: [(&str, Effect); 21] = [
    // A `same` step can change the URN or the provider, which the agent reports as `rename` and `reassign`.
    ("same", Effect::None),
    ("create", Effect::Addition),
    ("update", Effect::Change),
    ("delete", Effect::Loss),
    ("replace", Effect::Replacement),
    ("create-replacement", Effect::Replacement),
    ("delete-replaced", Effect::Replacement),
    // A `read` step of a managed resource is also a `relinquish`.
    ("read", Effect::None),
    ("read-replacement", Effect::Replacement),
    // A `refresh` step before an `up` only compares the resource, unless the agent reports `missing`. Changes to the
    // actual resource that result from the refresh have their own steps.
    ("refresh", Effect::None),
    // Removes a resource that the program only read, so Pulumi has not managed it.
    ("discard", Effect::None),
    // Part of a replacement, and removes a resource that the program only read.
    ("discard-replaced", Effect::None),
    // Removes a resource that an interrupted replacement has already deleted.
    ("remove-pending-replace", Effect::None),
    // Adopts an existing resource without a change. A change after the import has its own `update` step.
    ("import", Effect::Addition),
    ("import-replacement", Effect::Replacement),
    // Compares an imported resource with the program.
    ("diff", Effect::None),
    // Configures a provider plugin in memory.
    ("extend-parameterize", Effect::None),
    (RENAME, Effect::Change),
    (REASSIGN, Effect::Change),
    (RELINQUISH, Effect::Loss),
    (MISSING, Effect::Loss),
];

impl Effect {
    /// Returns the effect of an operation, or `None` for an unknown operation.
    pub fn of(operation: &str) -> Option<Effect> {
        EFFECTS.iter().find(|(known, _)| *known == operation).map(|(_, effect)| *effect)
    }
}

/// Returns the operations that a list of changed resources can contain. The operations of a replacement are combined in
/// the operation `replace`.
pub fn listed() -> impl Iterator<Item = &'static str> {
    let is_listed = |(operation, effect): &(&str, Effect)| match effect {
        Effect::None => false,
        Effect::Replacement => *operation == "replace",
        Effect::Addition | Effect::Change | Effect::Loss => true,
    };
    EFFECTS.into_iter().filter(is_listed).map(|(operation, _)| operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_one_effect_and_other_operations_are_unknown() {
        let rows = [
            ("same", Some(Effect::None)),
            ("import", Some(Effect::Addition)),
            ("update", Some(Effect::Change)),
            (RENAME, Some(Effect::Change)),
            ("read-replacement", Some(Effect::Replacement)),
            ("delete", Some(Effect::Loss)),
            (RELINQUISH, Some(Effect::Loss)),
            ("untested", None),
            ("", None),
        ];
        for (operation, effect) in rows {
            assert_eq!(Effect::of(operation), effect, "{operation}");
        }
        let names: std::collections::BTreeSet<&str> = EFFECTS.iter().map(|(operation, _)| *operation).collect();
        assert_eq!(names.len(), EFFECTS.len());
        let expected = ["create", "update", "delete", "replace", "import", RENAME, REASSIGN, RELINQUISH, MISSING];
        assert_eq!(listed().collect::<Vec<_>>(), expected);
    }
}
