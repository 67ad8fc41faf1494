//! The group `pulumi.com`.

mod stack;

pub use stack::*;
