//! Schedules of a Stack: windows and freezes for runs, and drift check times.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Windows and freezes for runs. A run starts only within a window, and not during a freeze.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunSchedule {
    /// Windows in which runs start. Default: runs start at any time.
    /// Example: `[{days: [Mon, Tue], start: "08:00", end: "17:00"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RunSchedule::MAX_ENTRIES))]
    pub windows: Vec<RunWindow>,

    /// Periods in which no run starts, even within a window. Default: none.
    /// Example: `[{from: "2026-12-23T00:00:00Z", to: "2027-01-02T00:00:00Z"}]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RunSchedule::MAX_ENTRIES))]
    pub freezes: Vec<Freeze>,
}

impl RunSchedule {
    /// Maximum number of windows, and of freezes, in a schedule.
    pub const MAX_ENTRIES: u32 = 20;
}

/// Window that opens on selected days of the week.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunWindow {
    /// Days on which the window opens. Default: all days. Example: `[Mon, Tue]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Weekday>,

    /// Time of day at which the window opens, such as `08:00`.
    #[schemars(extend("pattern" = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,

    /// Time of day at which the window closes, such as `17:00` or `24:00`. A window whose `end` is not after `start`
    /// closes on the next day.
    #[schemars(extend("pattern" = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"))]
    pub end: String,

    /// Time zone of the IANA database, such as `Europe/Berlin`. Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub time_zone: Option<String>,
}

/// Day of the week.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub enum Weekday {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

/// Period in which no run starts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
pub struct Freeze {
    /// Start of the freeze, such as `2026-12-23T00:00:00Z`.
    pub from: Time,

    /// End of the freeze, such as `2027-01-02T00:00:00Z`.
    pub to: Time,

    /// Reason for the freeze, as text for users. Default: no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub reason: Option<String>,
}

/// Times of drift checks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriftSchedule {
    /// Times in the cron format, with the five fields minute, hour, day of the month, month and day of the week, such
    /// as `30 2 * * *`.
    #[schemars(length(min = 9, max = bounds::WORD))]
    pub cron: String,

    /// Time zone of the IANA database, such as `Europe/Berlin`. Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = bounds::WORD))]
    pub time_zone: Option<String>,
}
