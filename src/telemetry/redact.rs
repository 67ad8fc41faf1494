//! Redaction of credentials in URLs.

use std::borrow::Cow;
use std::io;

/// Replacement for a secret.
pub const HIDDEN: &str = "***";

/// Redacts the user name and the password in every URL that the text contains.
pub fn url_credentials(text: &str) -> Cow<'_, str> {
    let mut hidden = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        hidden.push_str(before);
        hidden.push_str("://");
        let end = after.find(ends_authority).unwrap_or(after.len());
        let (authority, others) = after.split_at_checked(end).unwrap_or((after, ""));
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                hidden.push_str(HIDDEN);
                hidden.push('@');
                hidden.push_str(host);
            }
            None => hidden.push_str(authority),
        }
        rest = others;
    }
    if hidden.is_empty() {
        return Cow::Borrowed(text);
    }
    hidden.push_str(rest);
    Cow::Owned(hidden)
}

fn ends_authority(c: char) -> bool {
    c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '\\' | '<' | '>' | '`')
}

/// Writer that redacts credentials in URLs. Each write must contain complete lines.
pub struct Redacting<W>(pub W);

impl<W: io::Write> io::Write for Redacting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(url_credentials(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn credentials_in_urls_are_redacted() {
        let cases = [
            ("nothing here", "nothing here"),
            ("see https://example.org/a@b", "see https://example.org/a@b"),
            ("https://user:pass@example.org/x", "https://***@example.org/x"),
            ("git clone 'https://token@h/x' and ssh://git@h:22/y", "git clone 'https://***@h/x' and ssh://***@h:22/y"),
            ("https://a:p@ss@h", "https://***@h"),
            ("{\"url\":\"https://u:p@h\"}", "{\"url\":\"https://***@h\"}"),
            ("postgres://u:ä@h?x=1://", "postgres://***@h?x=1://"),
        ];
        for (text, expected) in cases {
            assert_eq!(url_credentials(text), expected);
        }
    }

    proptest! {
        #[test]
        fn passwords_in_urls_are_always_redacted(password in "[a-zA-Z0-9:@!$]{12,40}", host in "[a-z]{1,20}", around in ".{0,20}") {
            let text = format!("{around} https://user:{password}@{host}/path {around}");
            prop_assert!(!url_credentials(&text).contains(&password));
        }

        #[test]
        fn text_without_credentials_is_unchanged(text in "[^@]*") {
            prop_assert_eq!(url_credentials(&text), text.as_str());
        }
    }
}
