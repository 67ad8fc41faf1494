//! How an operation ended, and the message that says so.

use std::collections::BTreeMap;

use crate::agent::journal;
use crate::agent::redactor::Redactor;
use crate::pulumi::outputs::Output;
use crate::rpc::proto;

/// The most that a message may have, in bytes.
const LONGEST_MESSAGE: usize = 8 * 1024;
/// The most that all outputs may have, in bytes: what a Secret can hold.
const LARGEST_OUTPUTS: usize = 1024 * 1024;

/// How an operation ended.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub(super) outcome: proto::Outcome,
    pub(super) message: String,
    pub(super) outputs: Vec<Output>,
    pub(super) changes: BTreeMap<String, u64>,
    pub(super) permalink: Option<String>,
}

impl Ending {
    pub(super) fn succeeded(message: &str) -> Self {
        Ending { outcome: proto::Outcome::Succeeded, message: message.to_owned(), ..Ending::default() }
    }

    pub(super) fn canceled(message: &str) -> Self {
        Ending { outcome: proto::Outcome::Canceled, message: message.to_owned(), ..Ending::default() }
    }

    /// The message as it is journalled: bounded, and without secrets in its text. The outputs keep theirs.
    pub(super) fn into_result(self, redactor: &Redactor, started: i64) -> proto::Result {
        let mut message = self.message;
        let mut outputs: Vec<proto::Output> = self.outputs.into_iter().map(output).collect();
        let size: usize = outputs.iter().map(|output| output.name.len() + output.value.len()).sum();
        if size > LARGEST_OUTPUTS {
            outputs.clear();
            message =
                format!("the outputs have {size} bytes and were left out: no more than {LARGEST_OUTPUTS} can be kept");
        }
        let changes = self.changes.into_iter().map(|(word, count)| (word, u32::try_from(count).unwrap_or(u32::MAX)));
        proto::Result {
            outcome: self.outcome.into(),
            message: bounded(&redactor.redact(&message), LONGEST_MESSAGE),
            started,
            ended: journal::now(),
            outputs,
            changes: changes.collect(),
            permalink: self.permalink.unwrap_or_default(),
        }
    }
}

fn output(output: Output) -> proto::Output {
    proto::Output { name: output.name, value: output.value.to_string(), secret: output.secret }
}

/// At most `limit` bytes of a text.
pub(super) fn bounded(text: &str, limit: usize) -> String {
    let end = text.floor_char_boundary(limit);
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_shows_no_secret_and_the_outputs_keep_theirs() {
        let output = Output { name: "password".into(), value: json!("hunter22"), secret: true };
        let ending = Ending { outputs: vec![output], ..Ending::canceled("cannot use hunter22") };
        let result = ending.into_result(&Redactor::new(["hunter22"]), 1);
        assert_eq!(result.message, "cannot use [secret]");
        assert_eq!(result.outputs[0].value, "\"hunter22\"");
    }

    #[test]
    fn outputs_and_messages_are_bounded() {
        let output = Output { name: "big".into(), value: json!("x".repeat(LARGEST_OUTPUTS)), secret: false };
        let result = Ending { outputs: vec![output], ..Ending::succeeded("") }.into_result(&Redactor::default(), 1);
        assert!(result.outputs.is_empty() && result.message.contains("left out"));
        let result = Ending::canceled(&"ä".repeat(LONGEST_MESSAGE)).into_result(&Redactor::default(), 1);
        assert!(result.message.len() <= LONGEST_MESSAGE);
    }
}
