//! Functions that shorten values for the columns of `kubectl get`. A row normally has fewer than 160 characters.

/// Maximum length of the column `Status`, in characters.
pub const MAX_STATUS: usize = 56;
/// Maximum length of the column `Progress`, in characters. A row of an Update can exceed 160 characters if the names
/// are long.
pub const MAX_PROGRESS: usize = 69;
/// Maximum length of the column `Revision`, in characters.
const MAX_REVISION: usize = 24;
/// Number of trailing characters that a shortened revision keeps: `@sha1:` and a short digest.
const REVISION_END: usize = 14;
const ELLIPSIS: &str = "...";
/// Number of digits in a shortened digest or commit hash.
const SHORT_DIGEST: usize = 8;
/// Minimum number of consecutive hexadecimal digits in a digest. Shorter sequences stay unchanged.
const MIN_DIGEST: usize = 40;

/// Returns the first line of `text` with shortened digests, truncated to `max_length` characters.
pub fn text(text: &str, max_length: usize) -> String {
    let short = with_short_digests(text.lines().next().unwrap_or_default());
    match short.chars().count() > max_length {
        true => short.chars().take(max_length.saturating_sub(ELLIPSIS.len())).chain(ELLIPSIS.chars()).collect(),
        false => short,
    }
}

/// Returns a shortened revision such as `main@sha1:ae7cb438`, or `None` if `revision` is empty.
pub fn revision(revision: &str) -> Option<String> {
    let short = with_short_digests(revision.lines().next().unwrap_or_default());
    let length = short.chars().count();
    Some(match length > MAX_REVISION {
        true => {
            let begin = short.chars().take(MAX_REVISION - ELLIPSIS.len() - REVISION_END);
            begin.chain(ELLIPSIS.chars()).chain(short.chars().skip(length - REVISION_END)).collect()
        }
        false => short,
    })
    .filter(|short| !short.is_empty())
}

fn with_short_digests(line: &str) -> String {
    let mut short = String::with_capacity(line.len());
    for run in line.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
        let digits = run.bytes().take_while(u8::is_ascii_hexdigit).count();
        let (digest, rest) = run.split_at(digits);
        short.push_str(digest.get(..SHORT_DIGEST).filter(|_| digits >= MIN_DIGEST).unwrap_or(digest));
        short.push_str(rest);
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "ae7cb43820266feff5057cfe94d0ecdeaff55c58";

    #[test]
    fn a_text_column_shows_one_bounded_line_with_short_digests() {
        let rows = [
            (String::new(), String::new()),
            ("it fails\nbecause of this".to_owned(), "it fails".to_owned()),
            (format!("up to date with main@sha1:{COMMIT}"), "up to date with main@sha1:ae7cb438".to_owned()),
            (format!("a@sha1:{COMMIT} a@sha1:{COMMIT}, added"), "a@sha1:ae7cb438 a@sha1:ae7cb438, added".to_owned()),
            ("a deed of 1234567890abcdef".to_owned(), "a deed of 1234567890abcdef".to_owned()),
            ("ä".repeat(56), "ä".repeat(56)),
            ("ä".repeat(57), format!("{}...", "ä".repeat(53))),
        ];
        for (given, expected) in rows {
            assert_eq!(text(&given, MAX_STATUS), expected);
        }
    }

    #[test]
    fn a_revision_column_shows_the_name_and_a_short_digest() {
        let rows = [
            (String::new(), None),
            ("7".to_owned(), Some("7")),
            (COMMIT.to_owned(), Some("ae7cb438")),
            (format!("main@sha1:{COMMIT}"), Some("main@sha1:ae7cb438")),
            (format!("latest@sha256:{}", "0123456789abcdef".repeat(4)), Some("latest@sha256:01234567")),
            (format!("v1.22.3@sha1:{COMMIT}"), Some("v1.22.3@sha1:ae7cb438")),
            (format!("feature/payments-of-invoices@sha1:{COMMIT}"), Some("feature...@sha1:ae7cb438")),
            ("ä".repeat(100), Some("äääääää...ääääääääääääää")),
        ];
        for (given, expected) in rows {
            assert_eq!(revision(&given).as_deref(), expected, "{given}");
        }
    }

    #[test]
    fn stack_and_workspace_rows_are_shorter_than_160_characters() {
        // The name of a Stack is at most 42 characters long, and the longest value of `READY` is `Unknown`.
        let (name, ready, age) = (42, 7, 6);
        let row = |columns: &[usize]| columns.iter().sum::<usize>() + 3 * (columns.len() - 1);
        assert!(row(&[name, ready, MAX_REVISION, MAX_STATUS, age]) < 160, "Stack or Workspace");
    }
}
