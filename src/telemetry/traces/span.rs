//! Spans, and their identifiers.

use std::fmt;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// Identifier of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// Returns the trace of the run with this UID. The API server generates the UID at random, so a client that cannot
    /// read the Update does not know its trace.
    pub fn of_run(uid: &str) -> Self {
        TraceId(derived(&["trace", uid]))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

/// Identifier of a span within its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl SpanId {
    /// Returns the span with this name in the trace of the run with this UID.
    pub fn of_run(uid: &str, name: &str) -> Self {
        SpanId(derived(&["span", uid, name]))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(self.0))
    }
}

/// Returns the first bytes of the hash of a list of texts.
fn derived<const LENGTH: usize>(texts: &[&str]) -> [u8; LENGTH] {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    let digest = hasher.finalize();
    let mut bytes = [0; LENGTH];
    bytes.iter_mut().zip(digest.iter()).for_each(|(byte, value)| *byte = *value);
    bytes
}

/// Returns the context of a span in the format of W3C Trace Context, with the flag `sampled`.
pub fn traceparent(trace: TraceId, span: SpanId) -> String {
    format!("00-{trace}-{span}-01")
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Number(number)
    }
}

/// A completed span. The creator limits the length of all texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    /// Parent in the same trace. `None` for the root.
    pub parent: Option<SpanId>,
    pub name: String,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
    /// Message of the failure, or `None` if the operation has not failed.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_depend_only_on_the_uid_and_the_name() {
        let trace = TraceId::of_run("uid-1");
        assert_eq!(trace, TraceId::of_run("uid-1"));
        assert_ne!(trace, TraceId::of_run("uid-2"));
        let span = SpanId::of_run("uid-1", "run");
        assert_eq!(span, SpanId::of_run("uid-1", "run"));
        assert_ne!(span, SpanId::of_run("uid-1", "queue"));
        assert_ne!(span, SpanId::of_run("uid-2", "run"));
        assert_ne!(SpanId::of_run("a", "bc"), SpanId::of_run("ab", "c"), "the lengths are part of the hash");
    }

    #[test]
    fn a_traceparent_has_the_format_of_w3c() {
        let text = traceparent(TraceId::of_run("uid-1"), SpanId::of_run("uid-1", "run"));
        let parts: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [2, 32, 16, 2], "{text}");
        assert_eq!((parts[0], parts[3]), ("00", "01"));
        assert!(parts.iter().all(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))), "{text}");
    }
}
