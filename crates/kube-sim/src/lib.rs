#![doc = include_str!("../README.md")]

mod admission;
mod apply;
mod builtin;
mod cel;
mod controllers;
mod delete;
mod faults;
mod list;
pub mod metadata;
pub mod nodes;
mod patch;
mod request;
mod resources;
mod schema;
mod selectors;
mod server;
mod state;
mod status;
mod store;
mod validate;
mod verbs;
mod watch;

pub use admission::{Admission, AdmissionRequest};
pub use cel::RuleError;
pub use controllers::Step;
pub use faults::{After, Before, Delivery, Disconnected, Interceptor};
pub use request::{Call, PatchType, Verb};
pub use resources::{Kinds, RegistrationError};
pub use schema::SchemaError;
pub use server::{Observer, Options, ResponseBody, Server, Service, TraceHook};
pub use status::{Cause, Status};
pub use store::{Change, GroupResource, Key};
