//! Checks whether the programs that a test starts are available. The caller must skip the test if a program is missing.
//! If the environment variable `CI` is set, the test fails instead, because a CI job must not pass without its tests.

/// Returns whether all programs are on the `PATH`. Panics if `CI` is set and a program is missing.
pub fn has_programs(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_on_path = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    match programs.iter().find(|name| !is_on_path(name)) {
        None => true,
        Some(missing) => {
            report_skipped(test, &format!("{missing} is not on PATH"));
            false
        }
    }
}

/// Reports a skipped test. Panics if `CI` is set.
pub fn report_skipped(test: &str, why: &str) {
    let is_in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(!is_in_ci, "{test} must not be skipped, because the environment variable CI is set: {why}");
    eprintln!("NOT RUN: {test}: {why}");
}
