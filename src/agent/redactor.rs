//! Redacts secret values in output, including their base64 encodings, JSON escapes and URL encodings. If a run follows a
//! plan, the module also redacts property values that deviate from the plan.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use crate::pulumi::console::REDACTED;
use crate::pulumi::failure::plan;

/// Minimum length of a value that the agent redacts, in bytes. A shorter value often occurs in unrelated text, and the
/// text around the replacement would reveal the value.
const MIN_LENGTH: usize = 4;
/// Minimum number of encoded characters that the agent redacts within a longer base64 string.
const MIN_INNER: usize = 8;
/// Characters outside the unreserved set of RFC 3986. Most programs encode these characters in a URL.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Sets of characters that programs encode in the user information of a URL, for example in a connection string: most
/// programs, JavaScript (`encodeURIComponent`), Go (`url.UserPassword`), and the URL Standard of WHATWG.
const URL_SETS: [&AsciiSet; 4] = [
    RESERVED,
    &RESERVED.remove(b'!').remove(b'\'').remove(b'(').remove(b')').remove(b'*'),
    &RESERVED.remove(b'$').remove(b'&').remove(b'+').remove(b',').remove(b';').remove(b'='),
    &RESERVED
        .remove(b'!')
        .remove(b'$')
        .remove(b'%')
        .remove(b'&')
        .remove(b'\'')
        .remove(b'(')
        .remove(b')')
        .remove(b'*')
        .remove(b'+')
        .remove(b','),
];
/// Number of bytes in a base64 group, which the encoding represents as four characters.
const GROUP: usize = 3;

/// Set of values to redact. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Values, sorted by length in descending order. The agent must replace a long value before the shorter values that
    /// it contains.
    values: Arc<Vec<Zeroizing<String>>>,
    /// Whether the text can contain property values that deviate from a plan.
    has_plan_values: bool,
}

impl Redactor {
    /// Creates a redactor for these values and each of their lines, because a program can print a value line by line.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<Zeroizing<String>> = Vec::new();
        for secret in secrets {
            let whole = secret.trim();
            let shown = std::iter::once(whole).chain(secret.lines().map(str::trim));
            values
                .extend(shown.filter(|value| value.len() >= MIN_LENGTH).map(|value| Zeroizing::new(value.to_owned())));
            if whole.len() >= MIN_LENGTH {
                values.extend(encodings(secret));
                values.extend(encodings(whole));
            }
        }
        values.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.as_str().cmp(other.as_str())));
        values.dedup();
        Redactor { values: Arc::new(values), has_plan_values: false }
    }

    /// Returns a redactor that also redacts property values that deviate from a plan. The CLI prints these values in
    /// plain text, even if they are secret.
    pub fn without_plan_values(self) -> Self {
        Redactor { has_plan_values: true, ..self }
    }

    /// Returns whether the text can contain property values that deviate from a plan.
    pub fn has_plan_values(&self) -> bool {
        self.has_plan_values
    }

    /// Returns the text with a replacement for each value.
    pub fn redact(&self, text: &str) -> String {
        let mut redacted = if self.has_plan_values { plan::without_values(text).0 } else { text.to_owned() };
        for value in self.values.iter() {
            if redacted.contains(value.as_str()) {
                redacted = redacted.replace(value.as_str(), REDACTED);
            }
        }
        redacted
    }

    /// Returns how many bytes of an incomplete text the caller can print now. The remaining bytes may be the start of a
    /// value.
    pub fn printable_len(&self, text: &[u8]) -> usize {
        let uncertain = self.values.iter().filter_map(|value| partial_match_len(text, value.as_bytes()));
        text.len() - uncertain.max().unwrap_or_default()
    }
}

/// Returns all encodings of a value that the agent redacts.
fn encodings(value: &str) -> impl Iterator<Item = Zeroizing<String>> {
    let base64 = [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].map(|engine| engine.encode(value));
    let inner = (0..GROUP)
        .flat_map(|offset| [STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|engine| base64_inside(&engine, value, offset)));
    let base64 = base64.into_iter().chain(inner.flatten());
    base64.chain(json_escaped(value)).chain(url_encoded(value)).map(Zeroizing::new)
}

/// Returns the encoded forms of a value in a URL. The result omits forms that equal the value.
fn url_encoded(value: &str) -> impl Iterator<Item = String> {
    let encoded = URL_SETS.map(|set| utf8_percent_encode(value, set).to_string());
    encoded.into_iter().filter(move |encoded| encoded != value)
}

/// Returns the characters that encode a value within a longer base64 string, for example a password in a basic
/// authentication header. `offset` is the position of the value in the first group of three bytes. The result omits
/// characters that also depend on the bytes around the value.
fn base64_inside(engine: &impl Engine, value: &str, offset: usize) -> Option<String> {
    let skipped = (GROUP - offset) % GROUP;
    let whole = value.as_bytes().get(skipped..)?;
    let groups = whole.get(..whole.len() - whole.len() % GROUP)?;
    Some(engine.encode(groups)).filter(|inner| inner.len() >= MIN_INNER)
}

/// Returns the escaped forms of a value in a JSON string. Most programs write one form, and Go programs such as the CLI
/// write another form. The result omits forms that equal the value.
fn json_escaped(value: &str) -> impl Iterator<Item = String> {
    let quoted = serde_json::to_string(value).unwrap_or_default();
    let plain = quoted.trim_start_matches('"').strip_suffix('"').unwrap_or_default().to_owned();
    let go = plain.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    let value = value.to_owned();
    [plain, go].into_iter().filter(move |escaped| *escaped != value && escaped.len() >= MIN_LENGTH)
}

/// Returns the length of the longest suffix of `text` that is a proper prefix of `value`.
fn partial_match_len(text: &[u8], value: &[u8]) -> Option<usize> {
    let longest = text.len().min(value.len().saturating_sub(1));
    (1..=longest).rev().find(|length| value.get(..*length).is_some_and(|beginning| text.ends_with(beginning)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_possible_prefix_of_a_secret_is_withheld() {
        let redactor = Redactor::new(["hunter22", "terrific"]);
        for (text, printable_len) in [
            ("", ""),
            ("it is hunter22", "it is hunter22"),
            ("it is hunter2", "it is "),
            ("it is hun", "it is "),
            ("it is h", "it is "),
            ("it is hunter", "it is "),
            ("it is terri", "it is "),
            ("it is hunt e", "it is hunt e"),
            ("hunter2", ""),
        ] {
            assert_eq!(redactor.printable_len(text.as_bytes()), printable_len.len(), "{text}");
        }
    }

    #[test]
    fn secrets_and_their_lines_are_redacted_unless_they_are_too_short() {
        let redactor =
            Redactor::new(["hunter22", "hunter22-longer", "abc", "first line\n  second line\n}", "padded\n"]);
        for (text, expected) in [
            ("password=hunter22;", "password=[secret];"),
            ("hunter22-longer hunter22", "[secret] [secret]"),
            ("abc is too short", "abc is too short"),
            ("  second line", "  [secret]"),
            ("padded", "[secret]"),
            ("}", "}"),
        ] {
            assert_eq!(redactor.redact(text), expected);
        }
    }

    #[test]
    fn base64_and_json_escaped_secrets_are_redacted() {
        let secret = "p\"ss<w>rd&\n?~?~?~";
        let redactor = Redactor::new([secret, "padded\n"]);
        let escaped = "p\\\"ss<w>rd&\\n?~?~?~";
        let in_go = "p\\\"ss\\u003cw\\u003erd\\u0026\\n?~?~?~";
        for text in [
            STANDARD.encode(secret),
            STANDARD_NO_PAD.encode(secret),
            URL_SAFE.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
            STANDARD.encode("padded\n"),
            STANDARD.encode("padded"),
            escaped.to_owned(),
            in_go.to_owned(),
        ] {
            assert_eq!(redactor.redact(&format!("it is {text}!")), "it is [secret]!", "{text}");
        }
        let header = STANDARD.encode(format!("user:{secret}"));
        assert_eq!(
            redactor.redact(&header),
            "dXNlcjpw[secret]fg==",
            "only groups that the secret fills completely are redacted"
        );
    }

    #[test]
    fn secrets_in_urls_are_redacted() {
        let redactor = Redactor::new(["a/b c!$&'()*+,;=:@[|\u{e9}~"]);
        for text in [
            "a%2Fb%20c%21%24%26%27%28%29%2A%2B%2C%3B%3D%3A%40%5B%7C%C3%A9~",
            "a%2Fb%20c!%24%26'()*%2B%2C%3B%3D%3A%40%5B%7C%C3%A9~",
            "a%2Fb%20c%21$&%27%28%29%2A+,;=%3A%40%5B%7C%C3%A9~",
            "a%2Fb%20c!$&'()*+,%3B%3D%3A%40%5B%7C%C3%A9~",
        ] {
            let url = format!("postgres://user:{text}@db/state");
            assert_eq!(redactor.redact(&url), "postgres://user:[secret]@db/state");
        }
    }

    proptest! {
        #[test]
        fn redacted_base64_text_reveals_little_of_a_secret(before in "[a-z]{0,9}", value in "[!-~]{12,40}", after in "[a-z]{0,9}") {
            for engine in [STANDARD, URL_SAFE_NO_PAD] {
                let shown = Redactor::new([value.as_str()]).redact(&engine.encode(format!("{before}{value}{after}")));
                prop_assert!(shown.contains(REDACTED), "{}", shown);
                // Only the first and the last group of four characters can encode both the value and adjacent bytes.
                let around = engine.encode(before.as_bytes()).len() + engine.encode(after.as_bytes()).len();
                prop_assert!(shown.len() <= REDACTED.len() + around + 12, "{}", shown);
            }
        }

        #[test]
        fn redacting_arbitrary_output_never_panics(value in any::<String>(), text in any::<String>()) {
            let redactor = Redactor::new([value.as_str()]);
            let _ = (redactor.redact(&text), redactor.printable_len(text.as_bytes()));
        }
    }
}
