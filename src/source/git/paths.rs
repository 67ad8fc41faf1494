//! Selects the files in a repository that are relevant for a Stack, and computes a digest of these files. A user
//! specifies the selection as patterns that follow the `.gitignore` rules. This module performs no I/O.

use gix_ignore::glob::Pattern;
use gix_ignore::glob::pattern::Mode;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::source::git::wildcards::{Exhausted, PathPattern, Steps};

/// Maximum number of patterns in a path list.
const MAX_PATTERNS: usize = 100;
/// Maximum length of a pattern, in bytes.
const MAX_PATTERN_LENGTH: usize = 1024;

/// A path list: a non-empty list of patterns that match file paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Paths(Vec<String>);

impl Paths {
    /// Validates a list of patterns. Returns `None` if the list is empty.
    pub fn parse(patterns: &[String]) -> Result<Option<Self>, String> {
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("{} patterns exceed the limit of {MAX_PATTERNS}", patterns.len()));
        }
        for pattern in patterns {
            if pattern.trim().is_empty() || pattern.starts_with('#') || pattern.contains(['\n', '\r', '\0']) {
                return Err(format!(
                    "pattern {pattern:?} must have the format of .gitignore, such as /apps/web/ or *.ts"
                ));
            }
            if pattern.len() > MAX_PATTERN_LENGTH {
                return Err(format!("pattern of {} bytes exceeds the limit of {MAX_PATTERN_LENGTH}", pattern.len()));
            }
        }
        Ok((!patterns.is_empty()).then(|| Self(patterns.to_vec())))
    }

    /// Returns the total length of all patterns including separators, in bytes.
    pub fn size(&self) -> usize {
        self.0.iter().map(|pattern| pattern.len() + 1).sum()
    }

    /// Starts a selection. `steps` is the maximum number of matching steps for the selection.
    pub fn selection(&self, steps: u64) -> Selection {
        let mut rules = Rules::default();
        rules.add(self.0.join("\n").as_bytes(), b"");
        Selection { rules, matched: Vec::new(), digest: Sha256::new(), steps: Steps::new(steps), is_exhausted: false }
    }
}

/// A selection in progress. The caller traverses the directories and calls [`Selection::enter`] and
/// [`Selection::leave`] for each directory.
#[derive(Debug)]
pub struct Selection {
    rules: Rules,
    /// One element per directory from the root to the current directory: whether the patterns match the directory.
    matched: Vec<bool>,
    digest: Sha256,
    steps: Steps,
    is_exhausted: bool,
}

impl Selection {
    pub fn enter(&mut self, path: &[u8]) {
        let matches = self.matches(path, true);
        self.matched.push(matches);
    }

    pub fn leave(&mut self) {
        self.matched.pop();
    }

    /// Adds the path, the mode and the object ID of a file to the digest if the patterns match.
    pub fn file(&mut self, path: &[u8], mode: &[u8], object: &[u8]) {
        if self.matches(path, false) {
            for part in [mode, b" ", object, b" ", path, b"\0"] {
                self.digest.update(part);
            }
        }
    }

    /// Returns the digest of the paths, modes and object IDs of the selected files.
    ///
    /// # Errors
    /// Fails if the patterns exceeded the maximum number of matching steps.
    pub fn digest(self) -> Result<String, Exhausted> {
        if self.is_exhausted {
            return Err(Exhausted);
        }
        Ok(format!("sha256:{}", hex::encode(self.digest.finalize())))
    }

    fn matches(&mut self, path: &[u8], is_directory: bool) -> bool {
        if self.is_exhausted {
            return false;
        }
        match self.rules.decision(path, is_directory, &mut self.steps) {
            Ok(decision) => decision.unwrap_or_else(|| self.matched.last().copied().unwrap_or_default()),
            Err(Exhausted) => {
                self.is_exhausted = true;
                false
            }
        }
    }
}

/// Rules in the `.gitignore` format. Later rules take precedence, so the caller must add a subdirectory's rules after
/// the rules of its parent.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// Directory to which the rule applies, with a trailing slash. Empty for the root.
    base: Vec<u8>,
    pattern: Pattern,
    parsed: PathPattern,
}

impl Rules {
    /// Adds the rules from a file in `directory`, which is empty for the root. `file` is the content of the file.
    pub(super) fn add(&mut self, file: &[u8], directory: &[u8]) {
        let base = if directory.is_empty() { Vec::new() } else { [directory, b"/"].concat() };
        let rules = gix_ignore::parse(file, false).map(|(pattern, ..)| Rule {
            base: base.clone(),
            parsed: PathPattern::parse(&pattern.text),
            pattern,
        });
        self.0.extend(rules);
    }

    /// Returns the decision of the last matching rule: `Some(false)` if the rule is negated, and `Some(true)`
    /// otherwise. Returns `None` if no rule matches.
    pub(super) fn decision(
        &self,
        path: &[u8],
        is_directory: bool,
        steps: &mut Steps,
    ) -> Result<Option<bool>, Exhausted> {
        for rule in self.0.iter().rev() {
            steps.take(1)?;
            let Some(relative) = path.strip_prefix(rule.base.as_slice()) else { continue };
            if rule.matches(relative, is_directory, steps)? {
                return Ok(Some(!rule.pattern.is_negative()));
            }
        }
        Ok(None)
    }
}

impl Rule {
    fn matches(&self, path: &[u8], is_directory: bool, steps: &mut Steps) -> Result<bool, Exhausted> {
        let Pattern { text, mode, first_wildcard_pos } = &self.pattern;
        if mode.contains(Mode::MUST_BE_DIR) && !is_directory {
            return Ok(false);
        }
        let is_for_names = mode.contains(Mode::NO_SUB_DIR) && !mode.contains(Mode::ABSOLUTE);
        let name = path.rsplit(|byte| *byte == b'/').next().filter(|_| is_for_names);
        let value = name.unwrap_or(path);
        match first_wildcard_pos {
            None => Ok(value == text.as_slice()),
            Some(at) if !value.starts_with(text.get(..*at).unwrap_or_default()) => Ok(false),
            Some(_) => self.parsed.matches(value, steps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the digest of a small tree in which only the file `changed` has different content.
    fn digest(patterns: &[&str], changed: &str) -> String {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let mut selection = Paths::parse(&patterns).unwrap().unwrap().selection(1_000_000);
        let file = |selection: &mut Selection, path: &str| {
            selection.file(path.as_bytes(), b"100644", if path == changed { b"2" } else { b"1" });
        };
        file(&mut selection, "README.md");
        selection.enter(b"apps");
        for app in ["web", "api"] {
            selection.enter(format!("apps/{app}").as_bytes());
            for name in ["index.ts", "README.md"] {
                file(&mut selection, &format!("apps/{app}/{name}"));
            }
            selection.leave();
        }
        selection.leave();
        selection.digest().unwrap()
    }

    #[test]
    fn only_matching_paths_affect_the_digest() {
        let rows: [(&[&str], &str, bool); 9] = [
            (&["/apps/web/"], "apps/web/index.ts", true),
            (&["/apps/web/"], "apps/api/index.ts", false),
            (&["apps/web"], "apps/web/README.md", true),
            (&["*.ts"], "apps/api/index.ts", true),
            (&["*.ts"], "apps/api/README.md", false),
            (&["/README.md"], "apps/web/README.md", false),
            (&["README.md"], "apps/web/README.md", true),
            (&["/apps/", "!*.md"], "apps/web/README.md", false),
            (&["/apps/", "!*.md"], "apps/web/index.ts", true),
        ];
        for (patterns, changed, matters) in rows {
            assert_eq!(digest(patterns, changed) != digest(patterns, ""), matters, "{patterns:?} {changed}");
        }
    }

    #[test]
    fn no_digest_is_computed_for_patterns_that_take_too_many_steps() {
        let patterns = ["**/a/".repeat(150) + "c*"];
        let mut selection = Paths::parse(&patterns).unwrap().unwrap().selection(100_000);
        let path = "a/".repeat(400) + "b";
        selection.file(path.as_bytes(), b"100644", b"1");
        selection.enter(b"a");
        assert_eq!(selection.digest(), Err(Exhausted));
    }

    #[test]
    fn invalid_path_patterns_are_rejected() {
        assert_eq!(Paths::parse(&[]), Ok(None));
        for pattern in ["", " ", "# all", "a\nb"] {
            assert!(Paths::parse(&[pattern.to_owned()]).is_err(), "{pattern:?}");
        }
        assert!(Paths::parse(&vec!["a".to_owned(); 101]).is_err());
    }
}
