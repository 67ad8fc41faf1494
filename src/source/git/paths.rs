//! Which files of a repository matter to a Stack: patterns as in `.gitignore`, and a digest of what they match. Pure.

use gix_ignore::glob::Pattern;
use gix_ignore::glob::pattern::Mode;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::source::git::wildcards::{Exhausted, PathPattern, Steps};

/// How many patterns a Stack may give.
const MAX_PATTERNS: usize = 100;
/// The longest pattern.
const MAX_PATTERN_LENGTH: usize = 1024;

/// Patterns. At least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Paths(Vec<String>);

impl Paths {
    /// Checks the patterns; nothing where there is none.
    pub fn parse(patterns: &[String]) -> Result<Option<Self>, String> {
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("there are {}, and {MAX_PATTERNS} are allowed", patterns.len()));
        }
        for pattern in patterns {
            if pattern.trim().is_empty() || pattern.starts_with('#') || pattern.contains(['\n', '\r', '\0']) {
                return Err(format!(
                    "{pattern:?} is no pattern; give one as in .gitignore, such as /apps/web/ or *.ts"
                ));
            }
            if pattern.len() > MAX_PATTERN_LENGTH {
                return Err(format!("one has {} characters, and {MAX_PATTERN_LENGTH} are allowed", pattern.len()));
            }
        }
        Ok((!patterns.is_empty()).then(|| Self(patterns.to_vec())))
    }

    /// The length of all patterns.
    pub fn size(&self) -> usize {
        self.0.iter().map(|pattern| pattern.len() + 1).sum()
    }

    /// Begins to look at files. All of it may take so many steps.
    pub fn selection(&self, steps: u64) -> Selection {
        let mut rules = Rules::default();
        rules.add(self.0.join("\n").as_bytes(), b"");
        Selection { rules, matched: Vec::new(), digest: Sha256::new(), steps: Steps::new(steps), is_exhausted: false }
    }
}

/// Those patterns at work. Directories are entered and left as they are met.
#[derive(Debug)]
pub struct Selection {
    rules: Rules,
    /// Of each directory that is open, whether it matched.
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

    /// Takes a file into the digest, if it matches: its name, its mode and its content by its object's name.
    pub fn file(&mut self, path: &[u8], mode: &[u8], object: &[u8]) {
        if self.matches(path, false) {
            for part in [mode, b" ", object, b" ", path, b"\0"] {
                self.digest.update(part);
            }
        }
    }

    /// What says whether anything that matters has changed.
    ///
    /// # Errors
    /// The patterns take too many steps.
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
        match self.rules.verdict(path, is_directory, &mut self.steps) {
            Ok(verdict) => verdict.unwrap_or_else(|| self.matched.last().copied().unwrap_or_default()),
            Err(Exhausted) => {
                self.is_exhausted = true;
                false
            }
        }
    }
}

/// The rules of files like `.gitignore`. Later ones win, and so do those of directories further down.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    /// The directory that it holds for, with a slash at its end; empty for the root.
    base: Vec<u8>,
    pattern: Pattern,
    parsed: PathPattern,
}

impl Rules {
    /// Adds the rules of a file in this directory; the root has an empty path.
    pub(super) fn add(&mut self, file: &[u8], directory: &[u8]) {
        let base = if directory.is_empty() { Vec::new() } else { [directory, b"/"].concat() };
        let rules = gix_ignore::parse(file, false).map(|(pattern, ..)| Rule {
            base: base.clone(),
            parsed: PathPattern::parse(&pattern.text),
            pattern,
        });
        self.0.extend(rules);
    }

    /// Whether the rules say yes or no; nothing if none says anything.
    pub(super) fn verdict(
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

    /// The digest of a small tree, with other content where a path is named.
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
    fn only_what_matches_matters() {
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
    fn patterns_that_take_too_many_steps_are_no_choice() {
        let patterns = ["**/a/".repeat(150) + "c*"];
        let mut selection = Paths::parse(&patterns).unwrap().unwrap().selection(100_000);
        let path = "a/".repeat(400) + "b";
        selection.file(path.as_bytes(), b"100644", b"1");
        selection.enter(b"a");
        assert_eq!(selection.digest(), Err(Exhausted));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert_eq!(Paths::parse(&[]), Ok(None));
        for pattern in ["", " ", "# all", "a\nb"] {
            assert!(Paths::parse(&[pattern.to_owned()]).is_err(), "{pattern:?}");
        }
        assert!(Paths::parse(&vec!["a".to_owned(); 101]).is_err());
    }
}
