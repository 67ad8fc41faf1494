//! Selects the cause of a failed run from the event log and the CLI output.

use super::super::events::Diagnostic;
use super::super::run_summary::RunSummary;
use super::exit::Exit;
use super::program_error;

/// Maximum number of output lines that a message quotes if the CLI reported no error.
const LAST_LINES: usize = 20;
/// Prefix that a Python program's gRPC server writes before an exception message.
const SERVER_EXCEPTION: &str = "Exception calling application: ";
/// Beginning and end of the error that reports a missing planned operation.
const UNSEEN: (&str, &str) = ("expected resource operations for ", " but none were seen");

/// Returns the causes of a failure from the first source that contains any. The sources in order of precedence are the
/// engine errors that contain a cause, the CLI errors, the program's stderr, the remaining engine errors, and the last
/// lines of the output.
pub(super) fn cause_lines(
    exit: Exit,
    stdout: &str,
    stderr: &str,
    stderr_errors: &str,
    run: &RunSummary,
) -> Vec<String> {
    let (generic, causes): (Vec<_>, Vec<_>) =
        run.errors().into_iter().partition(|error| is_verdict(error) || reports_exit(error) || is_unseen(error));
    if !causes.is_empty() {
        let mut errors = unique(causes.iter().map(describe));
        if run.omitted_errors() > 0 {
            errors.insert(errors.len() / 2, format!("({} more errors)", run.omitted_errors()));
        }
        return errors;
    }
    if !stderr_errors.is_empty() {
        return vec![stderr_errors.to_owned()];
    }
    let output = program_error::format(&run.program_stderr().join("\n"));
    if !output.is_empty() {
        return vec![output];
    }
    let (exits, verdicts): (Vec<_>, Vec<_>) = generic.iter().partition(|error| reports_exit(error));
    let generic = if exits.is_empty() { verdicts } else { exits };
    if !generic.is_empty() {
        return unique(generic.into_iter().map(describe));
    }
    last_output(exit, stdout, stderr)
}

/// Returns whether an error only states that the run failed or was canceled, without a cause.
pub(super) fn is_verdict(error: &Diagnostic) -> bool {
    ["update failed", "destroy failed", "refresh failed", "preview failed"].contains(&error.message.trim())
        || error.message.ends_with(" canceled") && error.urn.is_empty()
}

/// Returns whether an engine error reports that a planned operation did not take place. After an operation has failed,
/// the engine also reports this error for each planned operation that depends on the failed operation.
pub(super) fn is_unseen(error: &Diagnostic) -> bool {
    error.message.starts_with(UNSEEN.0) && error.message.trim_end().ends_with(UNSEEN.1)
}

/// Returns whether an engine error only reports that the program or its compilation exited with an error.
fn reports_exit(error: &Diagnostic) -> bool {
    let message = error.message.trim().to_lowercase();
    let message = message.strip_prefix("an unhandled error occurred: ").unwrap_or(&message);
    [
        "program exited with non-zero exit code: ",
        "program exited unexpectedly: ",
        "error in compiling go: unable to run",
    ]
    .iter()
    .any(|exit| message.starts_with(exit))
}

/// Formats an error. The first line contains the type and name of the resource, or the location in the program.
fn describe(error: &Diagnostic) -> String {
    match resource(error) {
        Some((resource_type, name)) => {
            let message = error.message.strip_prefix(SERVER_EXCEPTION).unwrap_or(&error.message);
            format!("{resource_type} {name}: {message}")
        }
        None => program_error::format(&error.message),
    }
}

/// Returns the type and name of the resource to which an error refers. Returns `None` if the error does not concern a
/// single resource.
pub(super) fn resource(error: &Diagnostic) -> Option<(&str, &str)> {
    type_and_name(&error.urn).filter(|(resource_type, _)| *resource_type != "pulumi:pulumi:Stack")
}

/// Returns the type and the name in a URN. For a resource with parents, omits the types of the parents.
pub(super) fn type_and_name(urn: &str) -> Option<(&str, &str)> {
    let mut parts = urn.splitn(4, "::").skip(2);
    let (types, name) = (parts.next()?, parts.next()?);
    Some((types.rsplit('$').next().unwrap_or(types), name))
}

fn unique(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = Vec::new();
    for text in texts {
        if !text.is_empty() && !known.contains(&text) {
            known.push(text);
        }
    }
    known
}

fn last_output(exit: Exit, stdout: &str, stderr: &str) -> Vec<String> {
    let mut lines = last_lines(stderr);
    if lines.is_empty() {
        lines = last_lines(stdout);
    }
    match exit.code {
        Some(code) => lines.insert(0, format!("the Pulumi CLI exited with code {code}")),
        None if lines.is_empty() => {}
        None => lines.insert(0, "last output of the Pulumi CLI:".to_owned()),
    }
    lines
}

fn last_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<_> =
        text.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES).map(str::to_owned).collect();
    lines.reverse();
    lines
}
