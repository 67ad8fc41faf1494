//! Matches the wildcards in `.gitignore` and `known_hosts` patterns. The matching time is at most proportional to the
//! pattern length multiplied by the text length. Users control the patterns, and simple backtracking would take
//! exponential time for some patterns. This module performs no I/O.

/// The number of remaining matching steps for a pattern set.
#[derive(Debug)]
pub struct Steps(u64);

/// The error for patterns that exceed the maximum number of matching steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl Steps {
    pub fn new(limit: u64) -> Self {
        Self(limit)
    }

    pub fn take(&mut self, count: usize) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(u64::try_from(count).unwrap_or(u64::MAX)).ok_or(Exhausted)?;
        Ok(())
    }
}

/// An element of a pattern.
#[derive(Clone, Debug)]
enum Part {
    Literal(u8),
    /// `?`: one byte other than a slash.
    One,
    /// `[…]`: one byte of the class other than a slash.
    Class(Class),
    /// `*`: any number of bytes other than slashes.
    Any,
    /// `**` at the end or before an escaped slash: any number of bytes.
    Rest,
    /// `**/`: either nothing, or any number of bytes followed by a slash. The next part is always [`Part::Directory`].
    Directories,
    Directory,
}

#[derive(Clone, Debug)]
struct Class {
    negated: bool,
    ranges: Vec<(u8, u8)>,
}

/// A path pattern that follows the `.gitignore` rules.
#[derive(Clone, Debug)]
pub struct PathPattern {
    /// `None` if the pattern cannot match any path, for example because a bracket is not closed.
    parts: Option<Vec<Part>>,
}

impl PathPattern {
    pub fn parse(pattern: &[u8]) -> Self {
        Self { parts: parse(pattern) }
    }

    /// Returns whether the pattern matches the whole path.
    pub fn matches(&self, path: &[u8], steps: &mut Steps) -> Result<bool, Exhausted> {
        let Some(parts) = &self.parts else { return Ok(false) };
        steps.take(1)?;
        // Compares the last bytes first, because this comparison is fast and rules out most paths.
        let mut ends = parts.iter().rev().zip(path.iter().rev());
        if ends.find_map(|(part, byte)| part.ending(*byte)) == Some(false) {
            return Ok(false);
        }
        let mut states = vec![false; parts.len() + 1];
        let mut next = states.clone();
        mark(&mut states, 0);
        follow(parts, &mut states);
        for byte in path {
            steps.take(states.len())?;
            next.fill(false);
            for (state, part) in parts.iter().enumerate().filter(|(state, _)| states.get(*state) == Some(&true)) {
                let (stays, advances) = part.transition(*byte);
                if stays {
                    mark(&mut next, state);
                }
                if advances {
                    mark(&mut next, state + 1);
                }
            }
            follow(parts, &mut next);
            std::mem::swap(&mut states, &mut next);
        }
        Ok(states.last() == Some(&true))
    }
}

fn mark(states: &mut [bool], state: usize) {
    if let Some(marked) = states.get_mut(state) {
        *marked = true;
    }
}

/// Marks the states that are reachable from the marked states without consuming a byte. A reachable state always has a
/// higher number.
fn follow(parts: &[Part], states: &mut [bool]) {
    for (state, part) in parts.iter().enumerate() {
        if states.get(state) == Some(&true) {
            match part {
                Part::Any | Part::Rest => mark(states, state + 1),
                Part::Directories => (1..=2).for_each(|more| mark(states, state + more)),
                _ => {}
            }
        }
    }
}

impl Part {
    /// Returns whether a path that ends with `byte` can match a pattern that ends with this part. Returns `None` if the
    /// caller must also compare the preceding byte and part.
    fn ending(&self, byte: u8) -> Option<bool> {
        match self {
            Part::Literal(literal) if *literal == byte => None,
            Part::Literal(_) => Some(false),
            _ => Some(true),
        }
    }

    /// Returns whether this part's state remains active after a byte, and whether the byte leads to the next state.
    fn transition(&self, byte: u8) -> (bool, bool) {
        let is_slash = byte == b'/';
        match self {
            Part::Literal(literal) => (false, *literal == byte),
            Part::One => (false, !is_slash),
            Part::Class(class) => (false, !is_slash && class.has(byte)),
            Part::Any => (!is_slash, false),
            Part::Rest => (true, false),
            Part::Directories => (false, false),
            Part::Directory => (true, is_slash),
        }
    }
}

impl Class {
    fn has(&self, byte: u8) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte)) != self.negated
    }
}

fn parse(pattern: &[u8]) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = pattern;
    let mut is_after_slash = true;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let mut last = *first;
        match first {
            b'\\' => {
                let (literal, after) = rest.split_first()?;
                parts.push(Part::Literal(*literal));
                (last, rest) = (*literal, after);
            }
            b'?' => parts.push(Part::One),
            b'[' => {
                let (class, after) = class(rest)?;
                parts.push(Part::Class(class));
                rest = after;
            }
            b'*' => {
                let stars = rest.iter().take_while(|byte| **byte == b'*').count();
                rest = rest.get(stars..).unwrap_or_default();
                match rest.strip_prefix(b"/") {
                    _ if stars == 0 || !is_after_slash => parts.push(Part::Any),
                    // Git requires an escaped slash after the stars in the path: `**\/a` does not match `a`.
                    _ if rest.is_empty() || rest.starts_with(b"\\/") => parts.push(Part::Rest),
                    None => parts.push(Part::Any),
                    Some(after) => {
                        parts.extend([Part::Directories, Part::Directory]);
                        rest = after;
                        continue;
                    }
                }
            }
            literal => parts.push(Part::Literal(*literal)),
        }
        is_after_slash = last == b'/';
    }
    Some(parts)
}

/// Parses a byte class. Returns the class and the bytes that follow the closing bracket, or `None` if the closing
/// bracket is missing.
fn class(after_bracket: &[u8]) -> Option<(Class, &[u8])> {
    let negated = matches!(after_bracket.first(), Some(b'!' | b'^'));
    let mut rest = after_bracket.get(usize::from(negated)..).unwrap_or_default();
    let mut ranges = Vec::new();
    // The previous byte, if this byte can start a range.
    let mut begin = None;
    let mut is_first = true;
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b']' if !is_first => return Some((Class { negated, ranges }, rest)),
            b'-' if begin.is_some() && !matches!(rest.first(), None | Some(b']')) => {
                let (last, after) = unescaped(rest)?;
                ranges.push((begin.take()?, last));
                rest = after;
            }
            b'[' if rest.first() == Some(&b':') => {
                let (named, after) = named_class(rest)?;
                match named {
                    Some(named) => {
                        ranges.extend(named);
                        begin = None;
                    }
                    None => {
                        ranges.push((b'[', b'['));
                        begin = Some(b'[');
                    }
                }
                rest = after;
            }
            b'\\' => {
                let (literal, after) = rest.split_first()?;
                ranges.push((*literal, *literal));
                begin = Some(*literal);
                rest = after;
            }
            literal => {
                ranges.push((*literal, *literal));
                begin = Some(*literal);
            }
        }
        is_first = false;
    }
}

fn unescaped(rest: &[u8]) -> Option<(u8, &[u8])> {
    let (byte, after) = rest.split_first()?;
    match byte {
        b'\\' => after.split_first().map(|(literal, after)| (*literal, after)),
        byte => Some((*byte, after)),
    }
}

type Ranges = &'static [(u8, u8)];

/// Parses a named class such as `[:alpha:]`, starting at the first colon. Returns the ranges of the class and the bytes
/// after the closing bracket. The ranges are `None` if `rest` does not start with a named class. Returns `None` if the
/// class is unknown or if its closing bracket is missing.
fn named_class(rest: &[u8]) -> Option<(Option<Ranges>, &[u8])> {
    let end = rest.iter().position(|byte| *byte == b']')?;
    let Some(name) = rest.get(1..end).and_then(|name| name.strip_suffix(b":")) else { return Some((None, rest)) };
    let ranges: Ranges = match name {
        b"alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        b"blank" => &[(b' ', b' '), (b'\t', b'\t')],
        b"cntrl" => &[(0, 31), (127, 127)],
        b"digit" => &[(b'0', b'9')],
        b"graph" => &[(b'!', b'~')],
        b"lower" => &[(b'a', b'z')],
        b"print" => &[(b' ', b'~')],
        b"punct" => &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        b"space" => &[(b' ', b' '), (b'\t', b'\r')],
        b"upper" => &[(b'A', b'Z')],
        b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return None,
    };
    Some((Some(ranges), rest.get(end + 1..).unwrap_or_default()))
}

/// Returns whether a string matches a pattern with the wildcards `*` and `?`, as in OpenSSH `known_hosts` files.
pub fn matches_host(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // The position after the last star in the pattern, and the position in the string up to which this star matches.
    let mut star: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(at), text.get(from)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                at += 1;
                star = Some((at, from));
            }
            (Some(b'?'), Some(_)) => (at, from) = (at + 1, from + 1),
            (Some(one), Some(other)) if one == other => (at, from) = (at + 1, from + 1),
            // Backtracks only to the last star, because this star can match every byte that an earlier star can match.
            _ => match star.as_mut() {
                Some((behind, taken)) if *taken < text.len() => {
                    *taken += 1;
                    (at, from) = (*behind, *taken);
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use gix_ignore::glob::wildmatch;
    use gix_object::bstr::BStr;
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern.as_bytes()).matches(path.as_bytes(), &mut Steps::new(u64::MAX)).unwrap()
    }

    #[test]
    fn path_patterns_match_as_in_git() {
        let rows = [
            ("a*c", "abc", true),
            ("a*c", "a/c", false),
            ("a?c", "a/c", false),
            ("**/c", "c", true),
            ("**/c", "a/b/c", true),
            ("a/**/c", "a/c", true),
            ("a/**/c", "a/b/b/c", true),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a\\/**", "a/-/a", true),
            ("a**c", "a/c", false),
            ("**\\/c", "c", false),
            ("**\\/c", "a/b/c", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("[[:digit:]]", "7", true),
            ("[[:nothing:]]", "7", false),
            ("[a", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a", false),
            ("*[a^[:]", "a", true),
        ];
        for (pattern, path, expected) in rows {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn pathological_patterns_match_in_bounded_time() {
        let started = Instant::now();
        let path = "a/".repeat(500) + "b";
        for pattern in ["**/a/".repeat(150) + "c", "*a".repeat(400) + "b", "**/*a*/".repeat(100) + "c"] {
            assert!(!matches(&pattern, &path), "{pattern}");
        }
        assert!(!matches_host(("*a".repeat(1000) + "b").as_bytes(), "a".repeat(250).as_bytes()));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }

    #[test]
    fn matching_stops_at_the_step_limit() {
        let pattern = PathPattern::parse(b"*a*a*a*");
        assert_eq!(pattern.matches(b"aaaaaaaaaa", &mut Steps::new(80)), Err(Exhausted));
        assert_eq!(pattern.matches(b"aaaaaaaaaa", &mut Steps::new(81)), Ok(true));
    }

    #[test]
    fn host_patterns_match_as_in_openssh() {
        let rows = [
            ("*.example", "git.example", true),
            ("*", "", true),
            ("gi?.example", "git.example", true),
            ("gi?.example", "gi.example", false),
            ("[git.example]:22?", "[git.example]:222", true),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbx", false),
            ("", "a", false),
        ];
        for (pattern, host, expected) in rows {
            assert_eq!(matches_host(pattern.as_bytes(), host.as_bytes()), expected, "{pattern} {host}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn path_patterns_match_as_in_gix(pattern in "[ab/*?\\[\\]!^\\\\:-]{0,9}", path in "[ab]{1,3}(/[ab\\]-]{1,2}){0,3}") {
            // Git matches `[:` before `]` literally, but gix rejects such a set.
            prop_assume!(!pattern.contains("[:]"));
            let mode = wildmatch::Mode::NO_MATCH_SLASH_LITERAL;
            let expected = gix_ignore::glob::wildmatch(BStr::new(pattern.as_bytes()), BStr::new(path.as_bytes()), mode);
            prop_assert_eq!(matches(&pattern, &path), expected, "{} {}", pattern, path);
        }
    }
}
