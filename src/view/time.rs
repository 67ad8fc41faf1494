//! Formats times and durations as kubectl does.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// Returns the time since `time` in the kubectl format, or an empty string if the time is unknown.
pub fn age(time: Option<&Time>, now: Timestamp) -> String {
    time.map(|time| short_duration(now.duration_since(time.0))).unwrap_or_default()
}

/// Formats a duration with one or two units, as kubectl does.
pub fn short_duration(duration: SignedDuration) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let seconds = duration.as_secs().max(0);
    let with_rest = |unit: i64, name: &str, rest: i64, rest_name: &str| match seconds % unit / rest {
        0 => format!("{}{name}", seconds / unit),
        remaining => format!("{}{name}{remaining}{rest_name}", seconds / unit),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => with_rest(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => with_rest(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => with_rest(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        _ => with_rest(YEAR, "y", DAY, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_format_of_kubectl() {
        let rows = [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (3600, "60m"),
            (10_860, "3h1m"),
            (86_400, "24h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (864_000, "10d"),
            (63_158_400, "2y1d"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(short_duration(SignedDuration::from_secs(seconds)), expected, "{seconds}");
        }
    }
}
