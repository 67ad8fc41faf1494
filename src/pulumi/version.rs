//! Supported versions of the Pulumi CLI.

/// Major and minor version of the oldest supported CLI. It has all flags that every run uses: `--suppress-progress`, and
/// `--preview-only` of `refresh`.
pub const OLDEST: (u64, u64) = (3, 105);

/// Whether the output of `pulumi version` names a version that is too old. Returns `false` if the text is not a version.
pub fn is_too_old(version: &str) -> bool {
    let mut numbers = version.trim().trim_start_matches('v').split(['.', '-', '+']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < OLDEST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cli_without_the_required_flags_is_too_old() {
        let rows = [
            ("v3.104.2", true),
            ("3.9.0", true),
            ("v2.250.0", true),
            ("v3.105.0", false),
            ("v3.105.0-alpha.1", false),
            ("v3.259.0+dirty", false),
            ("v4.0.0", false),
            ("", false),
            ("a build of mine", false),
        ];
        for (version, wanted) in rows {
            assert_eq!(is_too_old(version), wanted, "{version}");
        }
    }
}
