//! Failpoints for tests, which abort the process at a certain point in the code. To simulate an upgrade, this module
//! can also report another version. Both functions have an effect only in builds with debug assertions, such as tests
//! and the test image, but not in releases.

/// Aborts the process if the comma-separated list in the environment variable `FAILPOINTS` contains `name`. The file
/// `/tmp/failpoint-<name>` prevents a second abort.
#[cfg(debug_assertions)]
pub fn hit(name: &str) {
    let desired = std::env::var("FAILPOINTS").unwrap_or_default();
    if !desired.split(',').any(|desired| desired.trim() == name) {
        return;
    }
    let marker = std::path::Path::new("/tmp").join(format!("failpoint-{name}"));
    // Only the process that creates the marker file aborts, so a restarted process does not abort at the same
    // failpoint.
    if std::fs::OpenOptions::new().write(true).create_new(true).open(&marker).is_ok() {
        tracing::error!(name, "aborting at failpoint");
        std::process::abort();
    }
}

/// Does nothing, because the build has no debug assertions.
#[cfg(not(debug_assertions))]
#[inline]
pub fn hit(_name: &str) {}

/// Returns the value of the environment variable `PRETENDED_VERSION`, or the controller version if the variable is not
/// set.
#[cfg(debug_assertions)]
pub fn version() -> &'static str {
    static VERSION: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        std::env::var("PRETENDED_VERSION").unwrap_or_else(|_| env!("CARGO_PKG_VERSION").to_owned())
    });
    &VERSION
}

/// Returns the controller version.
#[cfg(not(debug_assertions))]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::process::Command;

    const NAME: &str = "test-of-the-failpoint";

    #[test]
    fn the_process_is_killed_at_the_failpoint_only_once() {
        let name = format!("{NAME}-{}", std::process::id());
        if let Ok(inherited) = std::env::var("FAILPOINTS") {
            return super::hit(inherited.rsplit(',').next().unwrap());
        }
        let marker = format!("/tmp/failpoint-{name}");
        let run = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let test = "runtime::failpoint::tests::the_process_is_killed_at_the_failpoint_only_once";
            command.args(["--exact", test]).env("FAILPOINTS", format!("another,{name}"));
            command.output().unwrap().status
        };
        let (first, second) = (run(), run());
        std::fs::remove_file(marker).unwrap();
        assert_eq!(first.code(), None, "ended by a signal");
        assert!(second.success(), "{second}");
    }
}
