//! Finds the time after which another attempt can succeed in the output of a CLI that exceeded a rate limit.

use std::time::Duration;

/// Errors of the CLI about rate limits of plugin servers, in lower case.
const EXCEEDED: [&str; 3] = [
    "github rate limit exceeded for ",
    "rate limit exceeded: 403 http error fetching plugin",
    "429 http error fetching plugin",
];
/// Text before the duration that GitHub requires before the next request, in lower case.
const TRY_AGAIN: &str = "try again in ";
/// Delay if the server does not report the time of the next attempt.
const DEFAULT_DELAY: Duration = Duration::from_secs(60);
/// Maximum delay. GitHub resets its rate limit every hour.
const MAX_DELAY: Duration = Duration::from_secs(3600);

/// Returns the delay before the next attempt, or `None` if the CLI exceeded no rate limit.
pub fn retry_after<'a>(outputs: impl Iterator<Item = &'a str>) -> Option<Duration> {
    let lines = outputs.flat_map(str::lines).map(str::to_lowercase);
    let exceeded = lines.filter(|line| EXCEEDED.iter().any(|error| line.contains(error)));
    exceeded.map(|line| delay(&line).unwrap_or(DEFAULT_DELAY).min(MAX_DELAY)).max()
}

fn delay(line: &str) -> Option<Duration> {
    let (_, after) = line.split_once(TRY_AGAIN)?;
    go_duration(after.split_whitespace().next()?.trim_end_matches(['.', ',']))
}

/// Parses a duration in the format of Go, such as `1h2m3.5s` or `500ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at_checked(end)?;
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(unit_end)?;
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            "us" | "µs" => 0.000_001,
            "ns" => 0.000_000_001,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * seconds;
        rest = after;
    }
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_next_attempt_is_found_in_the_output() {
        let github = |delay: &str| {
            format!(
                "E1 plugins.go:604] GitHub rate limit exceeded for https://api.github.com/x, try again in {delay} You can"
            )
        };
        let rejected = "error: rate limit exceeded: 403 HTTP error fetching plugin from https://api.github.com/x";
        for (output, expected) in [
            (github("42m13.5s."), Some(2533.5)),
            (github("1h0m0.000000001s."), Some(3600.0)),
            (github("1.25s."), Some(1.25)),
            (github("850ms."), Some(0.85)),
            (github("99h."), Some(3600.0)),
            (github("-5s."), Some(60.0)),
            (github("soon."), Some(60.0)),
            (rejected.to_owned(), Some(60.0)),
            (format!("{}\n{rejected}", github("5m0s.")), Some(300.0)),
            ("429 HTTP error fetching plugin from https://x".to_owned(), Some(60.0)),
            ("403 HTTP error fetching plugin from https://x".to_owned(), None),
            ("please try again in 5m".to_owned(), None),
            ("error: cloud API rate limit exceeded, try again in 5m".to_owned(), None),
        ] {
            let found = retry_after([output.as_str()].into_iter()).map(|delay| delay.as_secs_f64());
            assert_eq!(found, expected, "{output}");
        }
    }
}
