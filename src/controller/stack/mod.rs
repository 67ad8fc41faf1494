//! Stack controller: resolves the source, applies the Workspace, creates Updates and records their results.
//!
//! The controller first records a run in the Stack's `status.currentUpdate`, and then creates the run's Update. A
//! *recorded* run is a run in `status.currentUpdate`, with or without its Update.

mod act;
mod action;
mod annotations;
mod approval;
mod arrivals;
mod backend;
mod backoff;
mod build_update;
mod build_workspace;
mod concurrency_group;
mod context;
mod decide;
mod deletion;
mod dependents;
mod destroy_limit;
mod drift;
mod duplicate_stacks;
mod expiry;
mod fetch;
mod first_sources;
mod identity;
mod ignored_settings;
mod input_loop;
mod markdown;
mod next_run;
mod observe;
mod observed;
mod old_updates;
mod orphaned_stacks;
mod output_objects;
mod ownership;
mod pattern;
mod pko_migration;
mod policy_packs;
mod policy_report;
mod polling;
mod prerequisites;
mod reconcile;
#[cfg(test)]
mod rejected_stacks;
mod restrictions;
mod run;
mod run_events;
mod run_spec;
mod run_windows;
mod schedule;
mod source_watches;
mod status;
mod step;
mod waiting;
mod workspace_state;
mod write_outputs;

pub use annotations::has_new_request;
pub use approval::{Approvals, approvals, unapproved_run};
pub use arrivals::Arrivals;
pub use context::{Context, StackCache};
pub use dependents::{Dependents, StackGroup, Stacks, stacks};
pub use destroy_limit::DestroyLimit;
pub use duplicate_stacks::DuplicateStacks;
pub use ignored_settings::settings_without_effect;
pub use ownership::{run_in_a_conflict, stack_of, unrecorded_run};
pub use policy_packs::ClusterPack;
pub use prerequisites::evaluator::{Evaluator, max_memory};
pub use prerequisites::expression::{ExpressionError, evaluate_stdin};
pub use reconcile::{Feeds, controller};
pub use restrictions::{RestrictedRun, Restriction};
pub use source_watches::SourceWatches;
pub use status::{State, with_state};
pub use workspace_state::MutatedWorkspaces;
