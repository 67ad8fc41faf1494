//! Live updates for a Stack's page, as server-sent events.
//!
//! - `progress`: the phase and the progress of the open run.
//! - `log`: output lines from the run.
//! - `resources`: the resource states that the output lines report.
//! - `note`: a message for the user.
//! - `end`: the page is outdated, and the script must reload the page.
//! - `signed-out`: the session has ended. The user must sign in again, so the script opens no further stream.

mod events;
mod lines;
mod resource_line;
pub(super) mod run;
pub(super) mod streams;
