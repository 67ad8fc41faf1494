//! Certificate authority (CA) of the controller, stored in a Secret in the controller's namespace. The CA can be created,
//! rotated, replaced by a user and restored after deletion without interrupting connections.
//!
//! `secret` defines the format of the Secret, `decide` selects the next step, and `ca_rotator` reads the Secret, performs the
//! steps and publishes the CA in force.

mod ca_rotator;
mod decide;
mod error;
mod generations;
mod secret;

#[cfg(test)]
mod ca_rotator_tests;

pub use ca_rotator::{CaRotator, SecretStore};
pub use error::AuthorityError;
pub use generations::Generations;
pub use secret::SECRET;
