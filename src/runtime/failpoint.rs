//! Places where a test ends the process at once, as a crash would. Without the feature `failpoints` they are nothing.

/// Ends the process here, once, if the environment variable `FAILPOINTS` (comma-separated) has the name. The file
/// `/tmp/failpoint-<name>` remembers that it has done so.
#[cfg(feature = "failpoints")]
pub fn hit(name: &str) {
    let wanted = std::env::var("FAILPOINTS").unwrap_or_default();
    if !wanted.split(',').any(|wanted| wanted.trim() == name) {
        return;
    }
    let marker = std::path::Path::new("/tmp").join(format!("failpoint-{name}"));
    // Made before the end, and only if it is not there: the process that is started anew shall live.
    if std::fs::OpenOptions::new().write(true).create_new(true).open(&marker).is_ok() {
        tracing::error!(name, "failpoint: the process ends here");
        std::process::abort();
    }
}

/// Nothing: the feature `failpoints` is off.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_name: &str) {}
