//! Environment variables `PULUMI_OPTION_<FLAG>`, with which users set flags of the Pulumi CLI. The agent passes only a
//! few of these variables to the CLI, because most of them would set flags that the controller does not expect.

/// Prefix of the environment variables that set CLI flags.
const PREFIX: &str = "PULUMI_OPTION_";
/// Environment variable with which users select policy packs in their source. The value is a comma-separated list of
/// directories.
pub const POLICY_PACK: &str = "PULUMI_OPTION_POLICY_PACK";
/// Environment variable with a comma-separated list of configuration files for the policy packs in [`POLICY_PACK`].
pub const POLICY_PACK_CONFIG: &str = "PULUMI_OPTION_POLICY_PACK_CONFIG";
/// Environment variable with the endpoint to which the CLI exports its spans. A CLI without the flag `--otel-traces`
/// ignores the variable.
pub const OTEL_TRACES: &str = "PULUMI_OPTION_OTEL_TRACES";
/// Variables that the agent passes to the CLI.
const PASSED: [&str; 3] = [POLICY_PACK, POLICY_PACK_CONFIG, OTEL_TRACES];
/// Flags that restrict the changes of a run, as in the names of their environment variables. If the agent removed such a
/// variable, the run would change more resources than the user expects.
const RESTRICTIONS: [&str; 9] = [
    "EXCLUDE",
    "EXCLUDE_DEPENDENTS",
    "EXCLUDE_PROTECTED",
    "EXPECT_NO_CHANGES",
    "PLAN",
    "PREVIEW_ONLY",
    "TARGET",
    "TARGET_DEPENDENTS",
    "TARGET_REPLACE",
];
/// Flags that select configuration values or ESC environments. If the agent removed such a variable, the program would
/// run with other values than the user expects.
const CONFIGURATION: [&str; 4] = ["CONFIG", "CONFIG_FILE", "CONFIG_PATH", "OVERRIDE_ENV"];
/// Fields of a Stack that have the effect of a flag, by the flag in the name of its environment variable.
const FIELDS: [(&str, &str); 20] = [
    ("CONFIG", "spec.config"),
    ("CONFIG_FILE", "spec.config"),
    ("CONFIG_PATH", "spec.config"),
    ("CONTINUE_ON_ERROR", "spec.updateTemplate.spec.continueOnError"),
    ("EXPECT_NO_CHANGES", "spec.updateTemplate.spec.expectNoChanges"),
    ("MESSAGE", "spec.updateTemplate.spec.message"),
    ("OVERRIDE_ENV", "spec.environment"),
    ("PARALLEL", "spec.updateTemplate.spec.parallel"),
    ("PLAN", "spec.approval"),
    ("PREVIEW_ONLY", "spec.preview"),
    ("REFRESH", "spec.refresh"),
    ("REMOVE", "spec.removeStack"),
    ("REPLACE", "spec.updateTemplate.spec.replace"),
    ("RUN_PROGRAM", "spec.runProgram"),
    ("SECRETS_PROVIDER", "spec.secretsProvider"),
    ("STACK", "spec.stack"),
    ("TARGET", "spec.targets"),
    ("TARGET_DEPENDENTS", "spec.targetDependents"),
    ("TARGET_REPLACE", "spec.targets and spec.updateTemplate.spec.replace"),
    ("VERBOSE", "spec.pulumiLogLevel"),
];

fn flag(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)
}

/// Returns whether the agent removes a variable from the environment of the CLI.
pub fn is_removed(name: &str) -> bool {
    flag(name).is_some() && !PASSED.contains(&name)
}

/// Returns what a run without the variable would do, if this differs from what the user expects. A run with such a
/// variable does not start. Example: `would change more resources than it permits`.
pub fn effect_of_removal(name: &str) -> Option<&'static str> {
    match flag(name)? {
        flag if RESTRICTIONS.contains(&flag) => Some("would change more resources than it permits"),
        flag if CONFIGURATION.contains(&flag) => Some("would use other configuration values than it selects"),
        _ => None,
    }
}

/// Returns the variables with which a run does not start.
pub fn refused() -> impl Iterator<Item = String> {
    RESTRICTIONS.into_iter().chain(CONFIGURATION).map(|flag| format!("{PREFIX}{flag}"))
}

/// Returns the advice for a variable that the agent removes.
pub fn instead_of(name: &str) -> String {
    match FIELDS.iter().find(|(of, _)| flag(name) == Some(*of)) {
        Some((_, field)) => format!("remove it and use {field}"),
        None => "remove it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_set_cli_flags_are_removed() {
        let table = [
            ("PULUMI_OPTION_STACK", true),
            ("PULUMI_OPTION_", true),
            ("PULUMI_OPTION_POLICY_PACK", false),
            ("PULUMI_OPTION_POLICY_PACK_CONFIG", false),
            ("PULUMI_OPTION_OTEL_TRACES", false),
            ("PULUMI_OPTION_POLICY_PACKS", true),
            ("PULUMI_OPTIONS", false),
            ("PULUMI_ACCESS_TOKEN", false),
            ("MY_PULUMI_OPTION_STACK", false),
        ];
        for (name, expected) in table {
            assert_eq!(is_removed(name), expected, "{name}");
        }
    }

    #[test]
    fn each_flag_whose_removal_changes_a_run_is_known_and_the_advice_names_the_field() {
        let (more, other) =
            ("would change more resources than it permits", "would use other configuration values than it selects");
        for (name, effect, advice) in [
            ("PULUMI_OPTION_TARGET", Some(more), "remove it and use spec.targets"),
            ("PULUMI_OPTION_EXCLUDE", Some(more), "remove it"),
            ("PULUMI_OPTION_OVERRIDE_ENV", Some(other), "remove it and use spec.environment"),
            ("PULUMI_OPTION_CONFIG_FILE", Some(other), "remove it and use spec.config"),
            ("PULUMI_OPTION_CONFIG", Some(other), "remove it and use spec.config"),
            ("PULUMI_OPTION_PARALLEL", None, "remove it and use spec.updateTemplate.spec.parallel"),
            ("PULUMI_OPTION_COLOR", None, "remove it"),
            ("TARGET", None, "remove it"),
        ] {
            assert_eq!((effect_of_removal(name), instead_of(name).as_str()), (effect, advice), "{name}");
        }
    }
}
