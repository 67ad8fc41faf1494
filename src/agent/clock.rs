//! Clock of the journal and the results.

/// Returns the current time in milliseconds since 1970.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
