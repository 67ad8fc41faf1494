//! The controller's certificate authority, kept in a Secret of its own namespace: made, rotated, replaced by a person,
//! and written again when it is deleted, without a connection cut.
//!
//! `secret` is the form in the API, `decide` says what to do next, `ca_rotator` looks, does it, and tells the others.

mod ca_rotator;
mod decide;
mod error;
mod generations;
mod secret;

#[cfg(test)]
mod ca_rotator_tests;

pub use ca_rotator::{CaRotator, Place};
pub use error::AuthorityError;
pub use generations::Generations;
pub use secret::SECRET;
