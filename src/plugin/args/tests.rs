use clap::CommandFactory as _;

use super::*;

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn global_flags_are_valid_before_and_after_the_command() {
    for words in [["kubectl-pulumi", "-n", "apps", "get", "web"], ["kubectl-pulumi", "get", "web", "-n", "apps"]] {
        let line = CommandLine::try_parse_from(words).unwrap();
        assert_eq!(line.global.namespace.as_deref(), Some("apps"));
        assert!(matches!(line.command, Command::Get(flags) if flags.stacks == ["web"]));
    }
}

#[test]
fn a_timeout_is_a_positive_duration() {
    assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
    for text in ["", "0s", "-1m", "soon", "169h"] {
        assert!(parse_duration(text).is_err(), "{text:?}");
    }
}
