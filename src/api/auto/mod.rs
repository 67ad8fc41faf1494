//! The group `auto.pulumi.com`.

mod git;
mod update;
mod workspace;

pub use git::*;
pub use update::*;
pub use workspace::*;
