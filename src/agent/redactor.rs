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
}

#[cfg(test)]
mod tests {
    use super::*;

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
