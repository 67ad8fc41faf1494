//! Semantic version ranges in the syntax that Flux uses, for example `>=1.2.0 <2.0.0`, `1.x`, `~1.2` or `^1 || 3.0.1`.
//! This module performs no I/O.

use std::fmt;

use semver::{Comparator, Op, Version, VersionReq};
use serde::{Deserialize, Serialize};

/// Maximum length of a range, in bytes.
const MAX_LENGTH: usize = 256;

/// A version range. Two ranges are equal if their strings are equal.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SemverRange {
    text: String,
    /// The alternatives of the range, which `||` separates. A version is in the range if at least one alternative
    /// matches.
    alternatives: Vec<VersionReq>,
}

impl TryFrom<String> for SemverRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<SemverRange> for String {
    fn from(range: SemverRange) -> Self {
        range.text
    }
}

impl PartialEq for SemverRange {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for SemverRange {}

impl std::hash::Hash for SemverRange {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for SemverRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl SemverRange {
    /// Parses a range. The error contains the reason why the range is invalid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() || text.len() > MAX_LENGTH {
            return Err(format!("invalid version range {text:?}: must be a range such as >=1.2.0 <2.0.0 or 1.x"));
        }
        let alternatives = text.split("||").map(|part| {
            let part = normalize(part);
            VersionReq::parse(&part).map_err(|error| format!("invalid version range {text:?}: {error}"))
        });
        Ok(Self { alternatives: alternatives.collect::<Result<_, _>>()?, text: text.to_owned() })
    }

    /// Returns the entry with the highest version in the range. Ignores entries whose names are not versions.
    pub fn highest<Name: AsRef<str>, T>(&self, entries: impl Iterator<Item = (Name, T)>) -> Option<(Name, T)> {
        let versions = entries.filter_map(|(name, value)| Some((version(name.as_ref())?, name, value)));
        let fitting = versions.filter(|(version, ..)| self.contains(version));
        let highest = fitting.max_by(|one, other| (&one.0, one.1.as_ref()).cmp(&(&other.0, other.1.as_ref())));
        highest.map(|(_, name, value)| (name, value))
    }

    fn contains(&self, version: &Version) -> bool {
        self.alternatives.iter().any(|range| range_contains(range, version))
    }
}

/// Parses a tag name as a version, with or without the prefix `v`. Missing minor and patch numbers are 0.
fn version(tag: &str) -> Option<Version> {
    let text = tag.strip_prefix('v').unwrap_or(tag);
    if let Ok(version) = Version::parse(text) {
        return Some(version);
    }
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let parts: Vec<&str> = numbers.split('.').collect();
    let missing = 3_usize.checked_sub(parts.len()).filter(|missing| *missing > 0)?;
    Version::parse(&format!("{numbers}{}{rest}", ".0".repeat(missing))).ok()
}

/// Converts a range to the syntax that the `semver` crate uses: separates comparators with commas, and adds the
/// operator `=` to a version without an operator.
fn normalize(part: &str) -> String {
    let words = part.replace(',', " ");
    let mut comparators: Vec<String> = Vec::new();
    let mut words = words.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let operator = word.trim_end_matches(|c: char| !"<>=~^!".contains(c));
        // Accepts a space after an operator, for example in `>= 1.2`. Converts a hyphen range such as `1.2 - 2.3` to
        // two comparators.
        let mut value = word.get(operator.len()..).unwrap_or_default();
        if value.is_empty() {
            value = words.next().unwrap_or_default();
        }
        let value = value.strip_prefix('v').unwrap_or(value);
        if words.next_if_eq(&"-").is_some() {
            let to = words.next().unwrap_or_default();
            comparators.push(format!(">={value}"));
            comparators.push(format!("<={}", to.strip_prefix('v').unwrap_or(to)));
        } else if operator.is_empty() && value.starts_with(|c: char| c.is_ascii_digit()) && !has_wildcard(value) {
            comparators.push(format!("={value}"));
        } else {
            comparators.push(format!("{operator}{value}"));
        }
    }
    comparators.join(", ")
}

/// Returns whether a version contains a wildcard. Checks only the numbers, because the pre-release part can also
/// contain the letter `x`.
fn has_wildcard(value: &str) -> bool {
    value.split(['-', '+']).next().is_some_and(|numbers| numbers.contains(['x', 'X', '*']))
}

/// Returns whether `version` is in `range`. As in Flux, a range includes pre-releases only if at least one of its
/// bounds is a pre-release. If so, the range includes all pre-releases within its bounds.
fn range_contains(range: &VersionReq, version: &Version) -> bool {
    if version.pre.is_empty() || range.comparators.iter().all(|comparator| comparator.pre.is_empty()) {
        return range.matches(version);
    }
    range.comparators.iter().all(|comparator| matches_pre_release(comparator, version))
}

fn matches_pre_release(comparator: &Comparator, version: &Version) -> bool {
    let mut from = Version::new(comparator.major, comparator.minor.unwrap_or(0), comparator.patch.unwrap_or(0));
    from.pre = comparator.pre.clone();
    match comparator.op {
        Op::Greater => *version > from,
        Op::GreaterEq => *version >= from,
        Op::Less => *version < from,
        Op::LessEq => *version <= from,
        // Uses the same upper bound for pre-releases as for releases.
        _ => {
            let release = Comparator { pre: semver::Prerelease::EMPTY, ..comparator.clone() };
            *version >= from && release.matches(&Version::new(version.major, version.minor, version.patch))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semver_ranges_match_as_in_flux() {
        let tags =
            ["v0.9.0", "1.0.0", "v1.2.3", "v1.10.0", "v2.0.0-rc.1", "v2.0.0", "v2.1.0-beta", "3.0", "latest", "v4.x"];
        let rows = [
            ("*", Some("3.0")),
            ("1.x", Some("v1.10.0")),
            ("1.2.x", Some("v1.2.3")),
            ("~1.2", Some("v1.2.3")),
            ("^1.0", Some("v1.10.0")),
            ("1.2.3", Some("v1.2.3")),
            ("v1.2.3", Some("v1.2.3")),
            (">=1.0.0 <2.0.0", Some("v1.10.0")),
            (">=1.0.0, <2.0.0", Some("v1.10.0")),
            (">= 1.0 < 1.5", Some("v1.2.3")),
            ("1.0.0 - 1.9.9", Some("v1.2.3")),
            ("0.9.0 || ~1.2", Some("v1.2.3")),
            ("2", Some("v2.0.0")),
            (">=2.0.0-rc.0 <2.0.0", Some("v2.0.0-rc.1")),
            (">=2.0.0-0", Some("3.0")),
            ("~2.1.0-0", Some("v2.1.0-beta")),
            ("2.1.x", None),
            (">4", None),
        ];
        for (range, expected) in rows {
            let parsed = SemverRange::parse(range).unwrap_or_else(|error| panic!("{range}: {error}"));
            let found = parsed.highest(tags.iter().map(|tag| (*tag, ()))).map(|(tag, ())| tag);
            assert_eq!(found, expected, "{range}");
        }
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for range in ["", "newest", ">=", "1.2.3.4", "!=1", "1.0 -", &"1".repeat(300)] {
            assert!(SemverRange::parse(range).is_err(), "{range}");
        }
    }
}
