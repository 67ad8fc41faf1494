//! Which files of a repository matter to a Stack: patterns as in `.gitignore`, and a digest of what they match. Pure.

use gix_ignore::Search;
use gix_ignore::glob::pattern::Case;
use gix_ignore::search::Ignore;
use gix_object::bstr::BStr;
use sha2::{Digest as _, Sha256};

/// How many patterns a Stack may give.
const MOST: usize = 100;
/// The longest pattern.
const LONGEST: usize = 1024;

/// Patterns. At least one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Paths(Vec<String>);

impl Paths {
    /// Checks the patterns; nothing where there is none.
    pub fn parse(patterns: &[String]) -> Result<Option<Self>, String> {
        if patterns.len() > MOST {
            return Err(format!("there are {}, and {MOST} are allowed", patterns.len()));
        }
        for pattern in patterns {
            if pattern.trim().is_empty() || pattern.starts_with('#') || pattern.contains(['\n', '\r', '\0']) {
                return Err(format!(
                    "{pattern:?} is no pattern; give one as in .gitignore, such as /apps/web/ or *.ts"
                ));
            }
            if pattern.len() > LONGEST {
                return Err(format!("one has {} characters, and {LONGEST} are allowed", pattern.len()));
            }
        }
        Ok((!patterns.is_empty()).then(|| Self(patterns.to_vec())))
    }

    /// Begins to look at files.
    pub fn selection(&self) -> Selection {
        Selection { search: search_of(self.0.join("\n").as_bytes(), ""), matched: Vec::new(), digest: Sha256::new() }
    }
}

/// Those patterns at work. Directories are entered and left as they are met.
#[derive(Debug)]
pub struct Selection {
    search: Search,
    /// Of each directory that is open, whether it matched.
    matched: Vec<bool>,
    digest: Sha256,
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
    pub fn digest(self) -> String {
        format!("sha256:{}", hex::encode(self.digest.finalize()))
    }

    fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        verdict(&self.search, path, is_directory).unwrap_or_else(|| self.matched.last().copied().unwrap_or_default())
    }
}

/// Patterns of a file like `.gitignore` in this directory; empty for the root.
pub(super) fn search_of(patterns: &[u8], directory: &str) -> Search {
    let mut search = Search::default();
    add(&mut search, patterns, directory);
    search
}

/// Adds the patterns of a directory further down: they win.
pub(super) fn add(search: &mut Search, patterns: &[u8], directory: &str) {
    let file = std::path::Path::new(directory).join("patterns");
    let added =
        search.add_patterns_buffer(patterns, file, Some(std::path::Path::new("")), Ignore { support_precious: false });
    if let Err(error) = added {
        tracing::debug!(%error, directory, "patterns were not read");
    }
}

/// Whether patterns match; nothing if none says anything.
pub(super) fn verdict(search: &Search, path: &[u8], is_directory: bool) -> Option<bool> {
    let found = search.pattern_matching_relative_path(BStr::new(path), Some(is_directory), Case::Sensitive)?;
    Some(!found.pattern.is_negative())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of a small tree, with other content where a path is named.
    fn digest(patterns: &[&str], changed: &str) -> String {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let mut selection = Paths::parse(&patterns).unwrap().unwrap().selection();
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
        selection.digest()
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
    fn what_is_no_pattern_is_refused() {
        assert_eq!(Paths::parse(&[]), Ok(None));
        for pattern in ["", " ", "# all", "a\nb"] {
            assert!(Paths::parse(&[pattern.to_owned()]).is_err(), "{pattern:?}");
        }
        assert!(Paths::parse(&vec!["a".to_owned(); 101]).is_err());
    }
}
