//! Quotes untrusted names for messages: escapes and truncates them.

/// Maximum number of characters of untrusted text in a message.
const MAX_LENGTH: usize = 200;

/// Quotes untrusted text for a message: escapes control characters and truncates long text.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// Quotes an untrusted name that need not be UTF-8.
pub(super) fn quoted_bytes(name: &[u8]) -> String {
    // A character has at most four bytes, so the bytes after this prefix are truncated anyway.
    let beginning = name.get(..MAX_LENGTH * 4 + 4).unwrap_or(name);
    quoted(&String::from_utf8_lossy(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_is_escaped_and_truncated() {
        assert_eq!(quoted("a\n\u{1b}[31m\"b"), r#""a\n\u{1b}[31m\"b""#);
        assert_eq!(quoted(&"ä".repeat(300)), format!("\"{}\"...", "ä".repeat(200)));
        assert_eq!(quoted_bytes(b"a\xffb"), "\"a\u{fffd}b\"");
        assert!(quoted_bytes(&[b'x'; 5000]).len() < 250);
    }
}
