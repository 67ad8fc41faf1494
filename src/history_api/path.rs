//! The request path. All functions are pure.

use crate::history::{FILES, File};

/// Number of segments in a Stack's path.
const STACK_PARTS: usize = 2;
/// Number of segments in a file's path.
const FILE_PARTS: usize = 5;

/// A valid path of a request. The history uses the same path as the name of an object or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestedPath<'a> {
    pub(super) path: &'a str,
    pub(super) namespace: &'a str,
    pub(super) stack: &'a str,
    /// Requested file. `None` if the path requests the list of the Stack's files.
    pub(super) file: Option<File>,
}

impl<'a> RequestedPath<'a> {
    /// Parses a path. Returns `None` if the path is not valid. A valid path cannot lead outside the Stack's directory.
    pub(super) fn parse(path: &'a str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        let parts: Vec<&str> = path.split('/').collect();
        let (namespace, stack) = (*parts.first()?, *parts.get(1)?);
        if !parts.iter().all(|part| is_safe(part)) {
            return None;
        }
        let file = match parts.len() {
            STACK_PARTS => None,
            FILE_PARTS => Some(FILES.into_iter().find(|file| parts.last() == Some(&file.name()))?),
            _ => return None,
        };
        Some(RequestedPath { path, namespace, stack, file })
    }
}

fn is_safe(part: &str) -> bool {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !part.is_empty() && !part.starts_with('.') && part.chars().all(is_safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_stack_or_a_file() {
        let stack = RequestedPath::parse("apps/web/").unwrap();
        assert_eq!((stack.path, stack.namespace, stack.stack, stack.file), ("apps/web", "apps", "web", None));
        let file = RequestedPath::parse("apps/web/uid/20261126T184207Z-up-uid/output.log.gz").unwrap();
        assert_eq!((file.stack, file.file), ("web", Some(File::Output)));
    }

    #[test]
    fn a_path_cannot_leave_the_directory_of_its_stack() {
        for path in [
            "",
            "apps",
            "apps/web/uid",
            "apps/../other",
            "apps/web/../../other/db/uid/summary.json",
            "apps/web/uid/../summary.json",
            "apps//web",
            "apps/web%2f..",
            "apps/web/uid/run/secrets.txt",
            "apps/web/uid/run/more/summary.json",
        ] {
            assert_eq!(RequestedPath::parse(path), None, "{path}");
        }
    }
}
