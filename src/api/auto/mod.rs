//! The group `auto.pulumi.com`.

mod update;
mod workspace;

pub use update::*;
pub use workspace::*;
