//! The environment that the CLI is given besides the user's own.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Makes the CLI know `--event-log`.
pub const DEBUG_COMMANDS: &str = "PULUMI_DEBUG_COMMANDS";
/// Tells language runtimes that a program drives the CLI.
pub const AUTOMATION_API: &str = "PULUMI_AUTOMATION_API";
/// Keeps the CLI from asking the network for a newer version of itself, and from warning about it.
pub const SKIP_UPDATE_CHECK: &str = "PULUMI_SKIP_UPDATE_CHECK";
/// Makes the CLI take a stack's secrets provider from its state when the settings file names none. A fresh settings file names
/// none, and a new default one would take the stack off the provider that it has.
pub const FALLBACK_TO_STATE_SECRETS_MANAGER: &str = "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER";
/// Where the CLI keeps its plugins and credentials, in `.pulumi`.
pub const HOME: &str = "HOME";
/// Who holds a lock: without it a user that has no name in the image cannot lock a stack.
pub const USER: &str = "USER";

/// Variables of this kind set any flag of the CLI.
const OPTION_PREFIX: &[u8] = b"PULUMI_OPTION_";

/// The variables to set for every call of the CLI. They are set after the user's, so that they win.
pub fn engine_environment(home: &Path, user: &str) -> Vec<(OsString, OsString)> {
    let switches = [DEBUG_COMMANDS, AUTOMATION_API, SKIP_UPDATE_CHECK, FALLBACK_TO_STATE_SECRETS_MANAGER];
    let mut environment: Vec<_> = switches.iter().map(|name| (name.into(), "true".into())).collect();
    environment.push((HOME.into(), home.into()));
    environment.push((USER.into(), user.into()));
    environment
}

/// Whether a variable must not reach the CLI: `PULUMI_OPTION_<FLAG>` would set a flag behind our back.
pub fn is_scrubbed(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(OPTION_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cli_gets_all_that_it_needs() {
        let environment = engine_environment(Path::new("/home/pulumi"), "pulumi");
        let expected = [
            ("PULUMI_DEBUG_COMMANDS", "true"),
            ("PULUMI_AUTOMATION_API", "true"),
            ("PULUMI_SKIP_UPDATE_CHECK", "true"),
            ("PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER", "true"),
            ("HOME", "/home/pulumi"),
            ("USER", "pulumi"),
        ];
        assert_eq!(environment, expected.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn only_variables_that_set_flags_are_scrubbed() {
        let table = [
            ("PULUMI_OPTION_STACK", true),
            ("PULUMI_OPTION_", true),
            ("PULUMI_OPTIONS", false),
            ("PULUMI_ACCESS_TOKEN", false),
            ("MY_PULUMI_OPTION_STACK", false),
        ];
        for (name, expected) in table {
            assert_eq!(is_scrubbed(OsStr::new(name)), expected, "{name}");
        }
    }
}
