//! Quotes untrusted text in messages.

/// Maximum number of characters that a message quotes from an untrusted string.
const MAX_QUOTED: usize = 200;

/// Quotes untrusted text for a message. Escapes control characters and truncates long strings.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// Quotes an untrusted name, which may be invalid UTF-8, for a message.
#[cfg(target_os = "linux")]
pub(super) fn quoted_bytes(name: &[u8]) -> String {
    // A character has at most four bytes, so [`quoted`] never uses the bytes after this prefix.
    let beginning = name.get(..MAX_QUOTED * 4 + 4).unwrap_or(name);
    quoted(&String::from_utf8_lossy(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_in_errors_is_escaped_and_truncated() {
        assert_eq!(quoted("a\n\u{1b}[31m\"b"), r#""a\n\u{1b}[31m\"b""#);
        assert_eq!(quoted(&"ä".repeat(300)), format!("\"{}\"...", "ä".repeat(200)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_untrusted_name_can_be_invalid_utf_8() {
        assert_eq!(quoted_bytes(b"a\xffb"), "\"a\u{fffd}b\"");
        assert!(quoted_bytes(&[b'x'; 5000]).len() < 250);
    }
}
