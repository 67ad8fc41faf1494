//! Takes the values of mounted Secrets out of what is shown.

const REPLACEMENT: &str = "[secret]";
/// Shorter values are left: they would be found everywhere, and replacing them would tell them.
const SHORTEST: usize = 4;

/// Knows the values that must not be shown.
#[derive(Clone, Default)]
pub struct Redactor {
    /// The longest first, so that none is cut by a shorter one that is part of it.
    values: Vec<String>,
}

impl Redactor {
    /// A value of several lines is hidden line by line as well, because that is how it is printed.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values = Vec::new();
        for secret in secrets {
            for value in std::iter::once(secret).chain(secret.lines()) {
                let value = value.trim();
                if value.len() >= SHORTEST {
                    values.push(value.to_owned());
                }
            }
        }
        values.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        values.dedup();
        Redactor { values }
    }

    /// The text without the values.
    pub fn redact(&self, text: &str) -> String {
        let mut redacted = text.to_owned();
        for value in &self.values {
            if redacted.contains(value) {
                redacted = redacted.replace(value, REPLACEMENT);
            }
        }
        redacted
    }

    /// How many bytes of a text that goes on are certain: those before what may be the beginning of a value.
    pub fn certain(&self, text: &[u8]) -> usize {
        let uncertain = self.values.iter().filter_map(|value| beginning_at_the_end(text, value.as_bytes()));
        text.len() - uncertain.max().unwrap_or_default()
    }
}

/// The length of the longest end of a text that a value begins with.
fn beginning_at_the_end(text: &[u8], value: &[u8]) -> Option<usize> {
    let longest = text.len().min(value.len().saturating_sub(1));
    (1..=longest).rev().find(|length| value.get(..*length).is_some_and(|beginning| text.ends_with(beginning)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_the_beginning_of_a_value_is_not_certain() {
        let redactor = Redactor::new(["hunter22", "terrific"]);
        for (text, certain) in [
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
            assert_eq!(redactor.certain(text.as_bytes()), certain.len(), "{text}");
        }
    }

    #[test]
    fn values_are_hidden_wherever_they_are_printed() {
        let redactor =
            Redactor::new(["hunter22", "hunter22-longer", "abc", "first line\n  second line\n}", "padded\n"]);
        for (text, wanted) in [
            ("password=hunter22;", "password=[secret];"),
            ("hunter22-longer hunter22", "[secret] [secret]"),
            ("abc is too short", "abc is too short"),
            ("  second line", "  [secret]"),
            ("padded", "[secret]"),
            ("}", "}"),
        ] {
            assert_eq!(redactor.redact(text), wanted);
        }
    }
}
