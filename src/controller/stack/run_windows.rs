//! Schedule windows and freezes: decides whether a run may start, and when the next run may start.
//!
//! When daylight saving time starts, a local time in `start` or `end` may not exist. The schedule then uses the end of
//! the skipped period. When daylight saving time ends, a local time may occur twice. The schedule then uses the first
//! occurrence.

use std::iter;

use jiff::Timestamp;
use jiff::civil::{self, Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use crate::api::conditions::time;
use crate::api::pulumi::{Freeze, RunSchedule, RunWindow, Weekday};

/// Maximum size of a namespace's schedule annotation, in bytes.
const MAX_ANNOTATION: usize = 16 * 1024;
/// Maximum number of closed periods that the controller checks to find the time at which a run may start. The search
/// must be short, because each reconciliation of a waiting Stack repeats the search.
const MAX_CLOSINGS: usize = 50;
/// Number of days on which the controller searches for the next open window: yesterday, today and two weeks. A weekly
/// window stays closed for two weeks if daylight saving time starts and skips the window.
const SEARCHED_DAYS: usize = 16;

/// Whether schedules permit the start of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A run may start.
    Open,
    /// No run may start. Contains the earliest time at which a run may start, or `None` if this time is unknown. Also
    /// contains the reason, such as `outside the windows of spec.schedule until 2026-12-01T08:00:00Z`.
    Closed { until: Option<Timestamp>, why: String },
    /// A schedule is invalid. Contains the error message with the field path.
    Invalid(String),
}

/// Returns whether all schedules permit the start of a run. Each schedule has an origin for messages: `spec.schedule`,
/// or a description of the annotation, such as `annotation pulumi.com/schedule of namespace apps`.
pub fn opening(schedules: &[(&str, &RunSchedule)], now: Timestamp) -> Opening {
    let rules: Result<Vec<Rules<'_>>, String> =
        schedules.iter().map(|(origin, schedule)| Rules::of(origin, schedule)).collect();
    let rules = match rules {
        Ok(rules) => rules,
        Err(message) => return Opening::Invalid(message),
    };
    let Some(closing) = last_closing(&rules, now) else { return Opening::Open };
    let next = next_opening(&rules, &closing);
    Opening::Closed { until: next.earliest(), why: closing.describe(&next) }
}

/// Next time at which all schedules permit a run.
#[derive(Debug)]
enum NextOpening {
    At(Timestamp),
    /// The schedules permit no run before this time. The search stopped at this time.
    NotBefore(Timestamp),
    Never,
}

impl NextOpening {
    fn earliest(&self) -> Option<Timestamp> {
        match self {
            NextOpening::At(at) | NextOpening::NotBefore(at) => Some(*at),
            NextOpening::Never => None,
        }
    }
}

/// Checks a schedule. The error message contains the field path.
pub fn check(origin: &str, schedule: &RunSchedule) -> Result<(), String> {
    Rules::of(origin, schedule).map(drop)
}

/// Returns the time zone with this name, or UTC without a name. The binary contains the time zone database, because the
/// container image has none.
pub fn time_zone(name: Option<&str>) -> Result<TimeZone, String> {
    let Some(name) = name else { return Ok(TimeZone::UTC) };
    TimeZoneDatabase::bundled()
        .get(name)
        .map_err(|_| format!("unknown time zone {name:?}; use a name of the IANA database, such as Europe/Berlin"))
}

/// Parses a namespace's schedule annotation, in YAML or JSON. Rejects unknown fields, because a mistyped field must not
/// disable a freeze.
pub fn parse(annotation: &str) -> Result<RunSchedule, String> {
    let size = annotation.len();
    if size > MAX_ANNOTATION {
        return Err(format!(
            "the schedule has {size} bytes, but at most {MAX_ANNOTATION} are permitted; shorten the schedule"
        ));
    }
    let mut options = serde_saphyr::Options::default();
    options.emit_comments = false;
    options.with_snippet = false;
    options.strict_booleans = true;
    let schedule: Option<StrictSchedule> = serde_saphyr::from_str_with_options(annotation, options)
        .map_err(|error| format!("invalid schedule: {error}"))?;
    Ok(schedule.map(RunSchedule::from).unwrap_or_default())
}

/// Returns the closed period at this time. If the closed periods of several schedules overlap, returns the one that
/// ends last. Returns `None` if all schedules permit a run.
fn last_closing<'a>(rules: &[Rules<'a>], at: Timestamp) -> Option<Closing<'a>> {
    rules.iter().filter_map(|rules| rules.closing(at)).max_by_key(Closing::end)
}

/// Returns the earliest time at which all schedules permit a run. `closing` is the current closed period.
fn next_opening(rules: &[Rules<'_>], closing: &Closing<'_>) -> NextOpening {
    let Some(mut at) = closing.until else { return NextOpening::Never };
    for _ in 0..MAX_CLOSINGS {
        match last_closing(rules, at).map(|next| next.until) {
            Some(Some(next)) => at = next,
            Some(None) => return NextOpening::Never,
            None => return NextOpening::At(at),
        }
    }
    NextOpening::NotBefore(at)
}

/// Closed period of a schedule. During this period, the schedule permits no run.
#[derive(Debug)]
struct Closing<'a> {
    /// Origin of the schedule.
    origin: &'a str,
    /// Active freeze, or `None` if the time is outside all windows.
    freeze: Option<&'a Freeze>,
    /// End of the freeze, or start of the next window. `None` if no window opens.
    until: Option<Timestamp>,
}

impl Closing<'_> {
    fn end(&self) -> Timestamp {
        self.until.unwrap_or(Timestamp::MAX)
    }

    /// Describes the closed period. `next` is the next time at which all schedules permit a run.
    fn describe(&self, next: &NextOpening) -> String {
        let origin = self.origin;
        let end = self.until.map(|end| format!(" until {}", time(end))).unwrap_or_default();
        let closing = match self.freeze {
            Some(freeze) => match freeze.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty()) {
                Some(reason) => format!("freeze{end}: {reason} ({origin})"),
                None => format!("freeze{end} ({origin})"),
            },
            None => format!("outside the windows of {origin}{end}"),
        };
        match next {
            NextOpening::At(at) if self.until != Some(*at) => {
                format!("{closing}; runs start again at {}", time(*at))
            }
            NextOpening::At(_) => closing,
            NextOpening::NotBefore(at) => format!("{closing}; no run can start before {}", time(*at)),
            NextOpening::Never => format!("{closing}; no run can start"),
        }
    }
}

/// Schedule with valid fields.
struct Rules<'a> {
    origin: &'a str,
    windows: Vec<Window<'a>>,
    freezes: &'a [Freeze],
}

impl<'a> Rules<'a> {
    fn of(origin: &'a str, schedule: &'a RunSchedule) -> Result<Rules<'a>, String> {
        let error = |field: &str, what: &str| match origin.starts_with("spec.") {
            true => format!("invalid {origin}.{field}: {what}"),
            false => format!("invalid {field} in the {origin}: {what}"),
        };
        let max = usize::try_from(RunSchedule::MAX_ENTRIES).unwrap_or(usize::MAX);
        for (field, count) in [("windows", schedule.windows.len()), ("freezes", schedule.freezes.len())] {
            if count > max {
                return Err(error(field, &format!("{count} entries; at most {max} are permitted")));
            }
        }
        let windows = schedule.windows.iter().enumerate().map(|(index, window)| {
            Window::of(window).map_err(|(field, what)| error(&format!("windows[{index}].{field}"), &what))
        });
        if let Some(index) = schedule.freezes.iter().position(|freeze| freeze.to.0 <= freeze.from.0) {
            let what = "the freeze ends before it starts; set a time later than the time in from";
            return Err(error(&format!("freezes[{index}].to"), what));
        }
        Ok(Rules { origin, windows: windows.collect::<Result<_, _>>()?, freezes: &schedule.freezes })
    }

    /// Returns the closed period of this schedule at this time. If several closed periods overlap, returns the one that
    /// ends last. Returns `None` if the schedule permits a run.
    fn closing(&self, at: Timestamp) -> Option<Closing<'a>> {
        let origin = self.origin;
        let active = self.freezes.iter().filter(|freeze| freeze.from.0 <= at && at < freeze.to.0);
        let frozen = active.map(|freeze| Closing { origin, freeze: Some(freeze), until: Some(freeze.to.0) });
        let opens = self.windows.iter().filter_map(|window| window.opens(at)).min();
        let is_open = self.windows.is_empty() || opens.is_some_and(|opens| opens <= at);
        let outside = (!is_open).then_some(Closing { origin, freeze: None, until: opens });
        frozen.chain(outside).max_by_key(Closing::end)
    }
}

/// Window with valid fields.
struct Window<'a> {
    /// Days on which the window opens. Empty for all days.
    days: &'a [Weekday],
    start: civil::Time,
    /// End of the window. If this time is not after `start`, the window ends on the next day. `24:00` is midnight.
    end: civil::Time,
    zone: TimeZone,
}

impl<'a> Window<'a> {
    /// Returns the window with valid fields.
    ///
    /// # Errors
    ///
    /// Returns the name of the invalid field and the error.
    fn of(window: &'a RunWindow) -> Result<Window<'a>, (&'static str, String)> {
        let start = time_of_day(&window.start);
        let end = match window.end.as_str() {
            "24:00" => Some(civil::Time::midnight()),
            end => time_of_day(end),
        };
        Ok(Window {
            days: &window.days,
            start: start.ok_or_else(|| ("start", not_a_time(&window.start, "23:59")))?,
            end: end.ok_or_else(|| ("end", not_a_time(&window.end, "24:00")))?,
            zone: time_zone(window.time_zone.as_deref()).map_err(|what| ("timeZone", what))?,
        })
    }

    /// Returns the earliest time, not before `at`, at which this window is open.
    fn opens(&self, at: Timestamp) -> Option<Timestamp> {
        // A window that opened yesterday can still be open.
        let yesterday = self.zone.to_datetime(at).date().yesterday().ok()?;
        iter::successors(Some(yesterday), |date| date.tomorrow().ok())
            .take(SEARCHED_DAYS)
            .filter(|date| self.days.is_empty() || self.days.contains(&weekday(*date)))
            .filter_map(|date| self.on(date))
            .find(|(start, end)| start < end && at < *end)
            .map(|(start, _)| start.max(at))
    }

    /// Returns the start and the end of the window that opens on this date.
    fn on(&self, date: Date) -> Option<(Timestamp, Timestamp)> {
        let end = if self.end > self.start { date } else { date.tomorrow().ok()? };
        let start = instant(&self.zone, date.to_datetime(self.start))?;
        Some((start, instant(&self.zone, end.to_datetime(self.end))?))
    }
}

/// Returns the error for a string that is not a valid time of day. `last` is the latest valid time.
fn not_a_time(text: &str, last: &str) -> String {
    format!("{text:?} is not a time in the format HH:MM, from 00:00 to {last}")
}

/// Parses a time of day in the format `HH:MM`.
fn time_of_day(text: &str) -> Option<civil::Time> {
    let number = |part: &str| -> Option<i8> {
        let is_valid = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse().ok().filter(|_| is_valid)
    };
    let (hour, minute) = text.split_once(':')?;
    civil::Time::new(number(hour)?, number(minute)?, 0, 0).ok()
}

/// Returns the timestamp of a local time. For a skipped time, returns the end of the skipped period. For a repeated
/// time, returns the first occurrence.
fn instant(zone: &TimeZone, at: DateTime) -> Option<Timestamp> {
    let local = zone.to_ambiguous_timestamp(at);
    match local.offset() {
        AmbiguousOffset::Gap { .. } => {
            let before = local.earlier().ok()?;
            zone.following(before).next().map(|transition| transition.timestamp())
        }
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => local.earlier().ok(),
    }
}

fn weekday(date: Date) -> Weekday {
    match date.weekday() {
        civil::Weekday::Monday => Weekday::Mon,
        civil::Weekday::Tuesday => Weekday::Tue,
        civil::Weekday::Wednesday => Weekday::Wed,
        civil::Weekday::Thursday => Weekday::Thu,
        civil::Weekday::Friday => Weekday::Fri,
        civil::Weekday::Saturday => Weekday::Sat,
        civil::Weekday::Sunday => Weekday::Sun,
    }
}

/// Schema of a namespace's schedule annotation: a [`RunSchedule`] that rejects unknown fields. For custom resources,
/// the API server rejects or removes unknown fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StrictSchedule {
    #[serde(default)]
    windows: Vec<StrictWindow>,
    #[serde(default)]
    freezes: Vec<StrictFreeze>,
}

/// A [`RunWindow`] that rejects unknown fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StrictWindow {
    #[serde(default)]
    days: Vec<Weekday>,
    start: String,
    end: String,
    time_zone: Option<String>,
}

/// A [`Freeze`] that rejects unknown fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictFreeze {
    from: Time,
    to: Time,
    reason: Option<String>,
}

impl From<StrictSchedule> for RunSchedule {
    fn from(StrictSchedule { windows, freezes }: StrictSchedule) -> Self {
        RunSchedule {
            windows: windows.into_iter().map(RunWindow::from).collect(),
            freezes: freezes.into_iter().map(Freeze::from).collect(),
        }
    }
}

impl From<StrictWindow> for RunWindow {
    fn from(StrictWindow { days, start, end, time_zone }: StrictWindow) -> Self {
        RunWindow { days, start, end, time_zone }
    }
}

impl From<StrictFreeze> for Freeze {
    fn from(StrictFreeze { from, to, reason }: StrictFreeze) -> Self {
        Freeze { from, to, reason }
    }
}

#[cfg(test)]
mod tests;
