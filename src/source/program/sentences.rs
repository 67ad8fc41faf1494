//! Sentences about a Program, for messages. The memory for the sentences does not depend on the size of the Program.

use std::fmt;

use crate::api::conditions::shorten;

/// Maximum number of sentences in a message, and of names in a sentence.
pub const MAX_LISTED: usize = 10;
/// Maximum length of a key, a name or a value from a Program in a sentence, in bytes.
const MAX_SHOWN: usize = 100;
/// Length of a path in bytes, from which the path does not become longer.
const MAX_PATH: usize = 1000;

/// The first [`MAX_LISTED`] sentences, and the number of further sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sentences {
    first: Vec<String>,
    more: usize,
}

impl Sentences {
    pub fn add(&mut self, sentence: String) {
        if self.first.len() < MAX_LISTED {
            self.first.push(sentence);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Counts sentences without keeping their text.
    pub fn omit(&mut self, count: usize) {
        self.more = self.more.saturating_add(count);
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.more == 0
    }
}

impl Extend<String> for Sentences {
    fn extend<I: IntoIterator<Item = String>>(&mut self, sentences: I) {
        sentences.into_iter().for_each(|sentence| self.add(sentence));
    }
}

/// Joins the first sentences into one line, and appends the number of omitted sentences.
impl fmt::Display for Sentences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first.join("; "))?;
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Shortens a text from a Program.
pub fn shown(text: &str) -> String {
    shorten(text, MAX_SHOWN)
}

/// Shortens a text from a Program, and quotes it.
pub fn quoted(text: &str) -> String {
    format!("{:?}", shown(text))
}

/// Returns a dependency cycle. The first and the last name in `names` are equal.
pub fn path_of_cycle(names: &[String]) -> String {
    let mut listed: Vec<String> = names.iter().take(MAX_LISTED).map(|name| shown(name)).collect();
    if names.len() > MAX_LISTED {
        listed.push("…".to_owned());
        listed.extend(names.last().map(|name| shown(name)));
    }
    listed.join(" → ")
}

/// Returns the path of the field or element `key` below `path`. The function shortens a long key. If `path` is too
/// long, the function returns `path`, which is the path of an enclosing field.
pub fn below(path: &str, key: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_".contains(sign);
    match !key.is_empty() && key.chars().all(is_plain) {
        _ if path.len() > MAX_PATH => path.to_owned(),
        true => format!("{path}.{}", shown(key)),
        false => format!("{path}[{}]", quoted(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_sentences_are_kept() {
        let mut sentences = Sentences::default();
        assert!(sentences.is_empty());
        sentences.extend((0..MAX_LISTED).map(|n| format!("s{n}")));
        assert!(!sentences.is_empty());
        assert_eq!(sentences.to_string(), "s0; s1; s2; s3; s4; s5; s6; s7; s8; s9");
        sentences.add("s10".to_owned());
        sentences.omit(2);
        assert_eq!(sentences.first.len(), MAX_LISTED);
        assert_eq!(sentences.to_string(), "s0; s1; s2; s3; s4; s5; s6; s7; s8; s9; and 3 more");
    }

    #[test]
    fn long_keys_and_paths_are_shortened() {
        let long = "k".repeat(100_000);
        let rows = [
            ("p", "key", "p.key".to_owned()),
            ("p", "a key", "p[\"a key\"]".to_owned()),
            ("p", "", "p[\"\"]".to_owned()),
            ("p", long.as_str(), format!("p.{}...", "k".repeat(97))),
            (long.as_str(), "key", long.clone()),
        ];
        for (path, key, expected) in rows {
            assert_eq!(below(path, key), expected);
        }
        let deep = (0..127).fold("p".to_owned(), |path, _| below(&path, &"\u{1}".repeat(100_000)));
        assert!(deep.len() < 2 * MAX_PATH, "{}", deep.len());
    }

    #[test]
    fn long_cycles_are_shortened() {
        let names =
            |count: usize| -> Vec<String> { (0..count).map(|n| n.to_string()).chain(["0".to_owned()]).collect() };
        let rows = [
            (names(1), "0 → 0"),
            (names(9), "0 → 1 → 2 → 3 → 4 → 5 → 6 → 7 → 8 → 0"),
            (names(5000), "0 → 1 → 2 → 3 → 4 → 5 → 6 → 7 → 8 → 9 → … → 0"),
        ];
        for (names, expected) in rows {
            assert_eq!(path_of_cycle(&names), expected);
        }
    }
}
