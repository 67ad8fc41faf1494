//! Extensions of kube-rs: leader election, writes that require leadership, reads with timeouts, watches that skip
//! invalid objects, the run limiter, fair slots, the work queue, the reconcile runner, requests to requeue objects, and events for the
//! Kubernetes API and for Flux.
//!
//! The controllers depend on this module, but this module does not depend on the controllers. Only [`writes`] writes to
//! the API.

pub mod backoff;
pub mod client;
pub mod controller;
pub mod critical_tasks;
mod dispatcher;
mod error_report;
pub mod events;
pub mod failpoint;
pub mod fair_queue;
pub mod fair_slots;
pub mod field_managers;
pub mod first_lists;
pub mod first_objects;
pub mod index;
pub mod invalid_objects;
pub mod lease;
pub mod lists;
pub mod reads;
pub mod reconcile;
pub mod requeue;
pub mod run_limiter;
pub mod scope;
pub mod served_schemas;
pub mod tolerant_watcher;
pub mod triggers;
pub mod watch;
pub mod work_queue;
pub mod writes;

#[cfg(test)]
pub(crate) mod fake_api;
