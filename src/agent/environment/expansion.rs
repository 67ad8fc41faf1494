//! References to other variables in the values of environment variables. The kubelet expands these references when the
//! container starts. The agent expands them for each run, so that a run uses the current values.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Replaces each `$(NAME)` with the value of the variable, in the same way as the kubelet: keeps references to unknown
/// variables, and replaces `$$` with `$`. Returns `None` if the result exceeds `limit` bytes.
pub(super) fn expand(template: &str, variables: &BTreeMap<OsString, OsString>, limit: u64) -> Option<OsString> {
    let mut expanded = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.extend_from_slice(before.as_bytes());
        let reference = after.strip_prefix('(').and_then(|name| name.split_once(')'));
        rest = match (after.strip_prefix('$'), reference) {
            (None, Some((name, after))) => {
                match variables.get(OsStr::new(name)) {
                    Some(value) => expanded.extend_from_slice(value.as_bytes()),
                    None => expanded.extend_from_slice(format!("$({name})").as_bytes()),
                }
                after
            }
            (escaped, _) => {
                expanded.push(b'$');
                escaped.unwrap_or(after)
            }
        };
        if expanded.len() as u64 > limit {
            return None;
        }
    }
    expanded.extend_from_slice(rest.as_bytes());
    (expanded.len() as u64 <= limit).then(|| OsString::from_vec(expanded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_expanded_as_in_the_kubelet() {
        let variables = BTreeMap::from([("A".into(), "1".into()), ("B".into(), "$(A)".into())]);
        let rows = [
            ("", Some("")),
            ("plain", Some("plain")),
            ("$(A)", Some("1")),
            ("x$(A)y$(A)", Some("x1y1")),
            ("$(B)", Some("$(A)")),
            ("$(C)", Some("$(C)")),
            ("$()", Some("$()")),
            ("$$", Some("$")),
            ("$$(A)", Some("$(A)")),
            ("$$$(A)", Some("$1")),
            ("$A", Some("$A")),
            ("$(A", Some("$(A")),
            ("$(A$(B)", Some("$(A$(B)")),
            ("a$", Some("a$")),
            ("0123456789$(A)", None),
            ("0123456789a", None),
        ];
        for (template, expected) in rows {
            assert_eq!(expand(template, &variables, 10), expected.map(OsString::from), "{template}");
        }
    }
}
