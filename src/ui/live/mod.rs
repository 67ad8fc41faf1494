//! Live updates of the page of a Stack, as server-sent events.
//!
//! - `progress`: the phase and the progress of the open run.
//! - `log`: lines of the output of the run.
//! - `resources`: the states of the resources that lines of the output report.
//! - `note`: a message for the user.
//! - `end`: the page is outdated, and the script must reload the page.

mod events;
mod lines;
mod resource_line;
pub(super) mod run;
pub(super) mod streams;
