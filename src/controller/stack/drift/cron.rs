//! Drift check schedules in the cron format.

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::api::pulumi::DriftSchedule;
use crate::controller::stack::run_windows::time_zone;

/// Number of fields of a schedule: minute, hour, day of the month, month and day of the week.
const FIELDS: usize = 5;
/// Maximum number of scheduled times that occur twice when daylight saving time ends: one for each minute of a day.
const MAX_REPEATED: usize = 24 * 60;

/// Schedule of drift checks.
pub struct Cron {
    /// Schedule in local time, as if the time zone were UTC. In other time zones, `cronexpr` skips the scheduled times
    /// that do not exist when daylight saving time starts. If the local time shifts by a fraction of an hour,
    /// `cronexpr` does not terminate.
    local: Crontab,
    zone: TimeZone,
}

impl Cron {
    /// Parses a schedule. The error message contains the field path.
    pub fn parse(schedule: &DriftSchedule) -> Result<Cron, String> {
        let error = |what: &str| format!("invalid spec.drift.schedule.cron: {:?}: {what}", schedule.cron);
        let fields: Vec<&str> = schedule.cron.split_ascii_whitespace().collect();
        if fields.len() != FIELDS {
            let count = fields.len();
            return Err(error(&format!(
                "{count} field(s); specify minute, hour, day of the month, month and day of the week"
            )));
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let local = cronexpr::parse_crontab_with(&fields.join(" "), options);
        let local = local.map_err(|parse_error| error(reason(&parse_error.to_string())))?;
        let zone = time_zone(schedule.time_zone.as_deref());
        Ok(Cron { local, zone: zone.map_err(|what| format!("invalid spec.drift.schedule.timeZone: {what}"))? })
    }

    /// Returns the first scheduled time after `after`, or `None` if the next four years contain no scheduled time. If a
    /// scheduled time does not exist because daylight saving time starts, the result is the scheduled time plus the
    /// skipped period. If a scheduled time occurs twice because daylight saving time ends, the function returns only
    /// one of the occurrences.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut local = TimeZone::UTC.to_timestamp(self.zone.to_datetime(after)).ok()?;
        for _ in 0..MAX_REPEATED {
            local = self.local.find_next(local).ok()?.timestamp();
            let at = self.zone.to_timestamp(TimeZone::UTC.to_datetime(local)).ok()?;
            if at > after {
                return Some(at);
            }
        }
        None
    }
}

/// Checks a schedule. The error message contains the field path.
pub fn check(schedule: &DriftSchedule) -> Result<(), String> {
    match Cron::parse(schedule)?.next(Timestamp::UNIX_EPOCH) {
        Some(_) => Ok(()),
        None => {
            let cron = &schedule.cron;
            Err(format!("invalid spec.drift.schedule.cron: {cron:?} matches no date; change the day or the month"))
        }
    }
}

/// Returns the last line of a parser error, without the position marker. The other lines repeat the schedule.
fn reason(error: &str) -> &str {
    error.lines().last().unwrap_or_default().trim_start_matches([' ', '^'])
}
