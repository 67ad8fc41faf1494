//! Spans with explicit times, and their identifiers.

use std::borrow::Cow;

use jiff::Timestamp;
use opentelemetry::InstrumentationScope;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sha2::{Digest, Sha256};

/// Value of the attribute `service.name`, and name of the instrumentation scope.
pub(super) const SERVICE: &str = "pulumi-controller";

/// Derives a trace ID from a list of strings.
pub fn trace_id(texts: &[&str]) -> TraceId {
    TraceId::from_bytes(derived("trace", texts))
}

/// Derives a span ID from a list of strings.
pub fn span_id(texts: &[&str]) -> SpanId {
    SpanId::from_bytes(derived("span", texts))
}

/// Hashes a list of strings, and returns the first bytes of the hash.
fn derived<const LENGTH: usize>(purpose: &str, texts: &[&str]) -> [u8; LENGTH] {
    let mut hasher = Sha256::new();
    for text in std::iter::once(&purpose).chain(texts) {
        hasher.update((text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    let digest = hasher.finalize();
    let mut bytes = [0; LENGTH];
    bytes.iter_mut().zip(digest.iter()).for_each(|(byte, value)| *byte = *value);
    bytes
}

/// Returns the span context in the W3C Trace Context format, with the flag `sampled`.
pub fn traceparent(trace: TraceId, span: SpanId) -> String {
    format!("00-{trace}-{span}-01")
}

/// Returns a completed, successful span without attributes. The caller must limit the length of all strings. The parent
/// of a root span is [`SpanId::INVALID`].
pub fn span(
    trace: TraceId,
    (id, parent): (SpanId, SpanId),
    name: impl Into<Cow<'static, str>>,
    (start, end): (Timestamp, Timestamp),
) -> SpanData {
    SpanData {
        span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::NONE),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: start.into(),
        end_time: end.into(),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder(SERVICE).with_version(env!("CARGO_PKG_VERSION")).build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_depend_on_each_text() {
        let trace = trace_id(&["uid-1"]);
        assert_eq!(trace, trace_id(&["uid-1"]));
        assert_ne!(trace, trace_id(&["uid-2"]));
        let span = span_id(&["uid-1", "run"]);
        assert_eq!(span, span_id(&["uid-1", "run"]));
        assert_ne!(span, span_id(&["uid-1", "queue"]));
        assert_ne!(span_id(&["a", "bc"]), span_id(&["ab", "c"]), "the lengths are part of the hash");
    }

    #[test]
    fn a_traceparent_has_the_format_of_w3c() {
        let text = traceparent(trace_id(&["uid-1"]), span_id(&["uid-1", "run"]));
        let parts: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [2, 32, 16, 2], "{text}");
        assert_eq!((parts[0], parts[3]), ("00", "01"));
        assert!(parts.iter().all(|part| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))), "{text}");
    }
}
