//! Extensions of kube-rs: writes that require leadership, limits for runs, fair slots, backoff per object, panic guard,
//! timeouts, leader election, events in the API, and notifications for Flux.
//!
//! The controllers depend on this module, and this module does not depend on controllers. Only [`writes`] writes to the
//! API.

pub mod backoff;
pub mod client;
pub mod controller;
pub mod events;
pub mod failpoint;
pub mod fair_queue;
pub mod fair_slots;
pub mod field_managers;
pub mod index;
pub mod invalid_objects;
pub mod lease;
pub mod reads;
pub mod reconcile;
pub mod run_limiter;
pub mod scope;
pub mod served_schemas;
pub mod tolerant_watcher;
pub mod watch;
pub mod writes;

#[cfg(test)]
pub(crate) mod fake_api;
