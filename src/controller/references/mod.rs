//! Secrets and ConfigMaps that a run refers to: whether each of them exists and has keys. Objects are read individually by
//! name, without their content.

mod check;
mod mounts;
mod poll;
mod reference;

pub use check::{Checked, References};
pub use mounts::request_mounts;
pub use poll::{Poll, Waiter};
pub use reference::{Reference, ReferencedKind};
