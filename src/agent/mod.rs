//! The agent in the workspace pod receives the source, runs the Pulumi CLI and records the runs in a journal. Only this
//! module starts the CLI.
//!
//! [`init`] is the container's first process, and starts [`serve`]. [`service`] implements the gRPC service that the
//! controller calls. [`source`] installs sources, [`operations`] accepts runs, [`run`] executes the runs, and
//! [`journal`] records them. If user-defined init containers need the source, [`fetch`] receives the source before the
//! agent starts.

mod bootstrap;
pub mod cancellation;
mod command;
mod credentials;
mod durable;
mod environment;
mod fetch;
mod home;
mod init;
mod install;
mod interactive_session;
pub mod journal;
mod layout;
mod memory;
mod mounts;
mod operations;
mod output;
mod processes;
mod redactor;
pub mod refusal;
mod resource_limits;
mod run;
mod run_metadata;
mod serve;
mod service;
mod settings;
mod source;
pub mod starting_operations;
mod transcript;
pub mod workspace_lock;

pub use bootstrap::{BootstrapError, bootstrap, make_project, prepare_volume};
pub use fetch::{FetchConfig, fetch};
pub use init::run_as_init;
pub use operations::check_same_content;
pub use processes::launch;
pub use run::{OperationRequest, can_hold_lock};
pub use serve::{AgentConfig, serve, termination_message};
