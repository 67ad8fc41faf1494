//! Errors of the CLI itself.

/// Returns the errors that the CLI itself wrote to stderr, without the prefix `error: `. Omits other output, such as
/// warnings.
pub(super) fn error_text(stderr: &str) -> String {
    let mut lines = Vec::new();
    let mut in_error = false;
    for line in stderr.lines() {
        if let Some(error) = line.strip_prefix("error: ") {
            in_error = true;
            lines.push(error.trim_end());
        } else if line.starts_with("warning: ") {
            in_error = false;
        } else if in_error && !line.trim().is_empty() {
            lines.push(line.trim_end());
        }
    }
    lines.join("\n")
}
