//! The group `pulumi.com`.

mod git;
mod history;
mod program;
mod receiver;
mod references;
mod stack;
mod stack_status;

pub use git::*;
pub use history::*;
pub use program::*;
pub use receiver::*;
pub use references::*;
pub use stack::*;
pub use stack_status::*;
