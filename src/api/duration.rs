//! Durations in the Go and Flux format: `1h30m`, `45s`, `500ms`.

use jiff::SignedDuration;

/// Parses a duration and returns the number of seconds, rounded up. Returns `None` if the duration is invalid or
/// negative.
pub fn seconds(text: &str) -> Option<u64> {
    let duration = text.parse::<SignedDuration>().ok().filter(|duration| !duration.is_negative())?;
    let more = u64::from(duration.subsec_nanos() > 0);
    u64::try_from(duration.as_secs()).ok()?.checked_add(more)
}

/// Formats a duration in whole seconds, such as `1h2m3s`. A negative duration is formatted as `0s`.
pub fn display(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_go_format_are_parsed() {
        let rows = [("45s", 45), ("1h30m", 5400), ("1.5m", 90), ("500ms", 1), ("0s", 0), ("1m0.2s", 61)];
        for (text, expected) in rows {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for text in ["", "45", "-5s", "ten minutes", "99999999999999999999h"] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_are_printed_in_go_format() {
        let shown = |seconds: i64| display(SignedDuration::from_secs(seconds));
        assert_eq!([shown(0), shown(59), shown(61), shown(3600)], ["0s", "59s", "1m1s", "1h0m0s"]);
        assert_eq!(shown(-5), "0s", "a negative duration is formatted as zero");
    }
}
