//! Pages of the web UI. Each page consists of a function that reads the objects with the user's permissions, and pure
//! functions that render the objects. The templates escape all texts.

pub(super) mod fleet;
pub(super) mod frame;
pub(super) mod list;
mod parts;
mod plan_review;
mod resources;
pub(super) mod run;
pub(super) mod stack;
mod stack_forms;
