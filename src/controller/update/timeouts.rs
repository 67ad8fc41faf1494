//! Maximum duration of a run, from `spec.timeout` and the controller's flags. Pure functions.

use std::time::Duration;

/// Limits set by the controller's flags. Zero means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimeouts {
    /// Timeout of runs without `spec.timeout`.
    pub default: Duration,
    /// Upper limit for every run.
    pub maximum: Duration,
}

/// Timeout of one run. A duration of zero means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTimeout {
    pub duration: Duration,
    pub source: TimeoutSource,
}

/// Origin of the timeout of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutSource {
    Spec,
    Default,
    Maximum,
}

impl RunTimeouts {
    /// Returns the timeout of a run with this `spec.timeout`.
    pub fn of(&self, spec: Option<Duration>) -> RunTimeout {
        let wanted = match spec {
            Some(duration) => RunTimeout { duration, source: TimeoutSource::Spec },
            None => RunTimeout { duration: self.default, source: TimeoutSource::Default },
        };
        let exceeds = wanted.duration.is_zero() || wanted.duration > self.maximum;
        match !self.maximum.is_zero() && exceeds {
            true => RunTimeout { duration: self.maximum, source: TimeoutSource::Maximum },
            false => wanted,
        }
    }
}

impl TimeoutSource {
    /// Returns advice about a timeout that does not come from `spec.timeout`.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            TimeoutSource::Spec => None,
            TimeoutSource::Default => Some(
                "spec.timeout is not set, so the controller's --default-run-timeout applies: set spec.timeout for a longer run",
            ),
            TimeoutSource::Maximum => Some("the controller's --max-run-timeout limits every run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_timeout_limits_the_spec_and_the_default_timeout() {
        use TimeoutSource::{Default, Maximum, Spec};
        // Default, maximum, spec.timeout, and the timeout that applies.
        let rows = [
            (10, 60, None, (10, Default)),
            (10, 60, Some(30), (30, Spec)),
            (10, 60, Some(60), (60, Spec)),
            (10, 60, Some(61), (60, Maximum)),
            (10, 60, Some(0), (60, Maximum)),
            (0, 60, None, (60, Maximum)),
            (90, 60, None, (60, Maximum)),
            (10, 0, Some(0), (0, Spec)),
            (0, 0, None, (0, Default)),
        ];
        for (default, maximum, spec, (duration, source)) in rows {
            let seconds = Duration::from_secs;
            let timeouts = RunTimeouts { default: seconds(default), maximum: seconds(maximum) };
            let expected = RunTimeout { duration: seconds(duration), source };
            assert_eq!(timeouts.of(spec.map(seconds)), expected, "{timeouts:?}, spec.timeout {spec:?}");
        }
    }
}
