//! Workspace controller: maintains the workspace pod, which contains the requested source and runs Pulumi.
//!
//! The module `controller` contains the watches and the reconcile loop, which uses the following modules:
//!
//! - `render` builds the objects of a Workspace.
//! - `observe` reads the state.
//! - `decide` selects the next action.
//! - `act` and `deliver` perform the action.
//! - `status` reports the result.

mod act;
mod activity;
mod agent_call;
mod agent_probe;
mod agent_reply;
mod apply_conflicts;
mod config;
mod context;
mod controller;
mod decide;
mod deliver;
mod environment;
mod guard;
mod idle;
mod init_containers;
mod input_versions;
mod input_watch;
mod metadata;
mod missing_pod;
mod observe;
mod parts;
mod pod;
mod pod_security;
mod pod_settings;
mod pod_state;
mod pod_values;
mod policy_packs;
mod polls;
mod pool;
mod pulumi_cloud;
mod render;
mod repeats;
mod report;
mod silence;
mod sleep;
mod source;
mod spec_error;
mod status;
mod storage;
mod tls;

pub use agent_probe::AgentProbes;
pub use config::{config_files, settings};
pub use context::{Context, Memory};
pub use controller::{Feeds, controller, reconcile, run_changes};
pub use environment::{references, run_environment};
pub use input_watch::InputWatch;
pub use pod_settings::{PodRestrictions, PodSettings};
pub use pod_state::is_pko_pod;
pub use polls::Polls;
pub use pool::{Maintenance, MaintenanceParts, Pool};
pub use pulumi_cloud::oidc_login;
pub use render::{Rendered, render};
pub use report::{Report, State};
pub use spec_error::SpecError;
pub use status::set_conditions;
