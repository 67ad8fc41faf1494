//! Logs, metrics, traces, and the redaction of secrets.

pub mod logging;
pub mod metrics;
pub mod process;
pub mod reconciles;
pub mod redact;
pub mod runs;
pub mod slots;
pub mod stacks;
pub mod traces;

/// Formats an error and its causes as one line for users.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors of other crates already end with their cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the door")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("the key is lost")]
    struct Inner;

    #[derive(Debug, thiserror::Error)]
    #[error("no: {0}")]
    struct Repeating(#[source] Inner);

    #[test]
    fn repeated_causes_of_an_error_are_shown_once() {
        assert_eq!(chain(&Outer(Inner)), "cannot open the door: the key is lost");
        assert_eq!(chain(&Repeating(Inner)), "no: the key is lost");
    }
}
