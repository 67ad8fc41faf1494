//! Paths of fields in messages about a Program.

/// Path of the field or element `key` below `path`.
pub fn below(path: &str, key: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_".contains(sign);
    match !key.is_empty() && key.chars().all(is_plain) {
        true => format!("{path}.{key}"),
        false => format!("{path}[{key:?}]"),
    }
}
