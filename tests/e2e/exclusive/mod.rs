//! Tests that must run alone, because they restart the controller or need all CPUs. `make test-all` runs these tests
//! sequentially after all other tests. `make test` runs only the tests in `short_exclusive_tests` of `tests/run`.

mod api_server;
mod crowd;
mod definitions;
mod guard_rails;
pub mod history;
mod hostile_agents;
mod leader;
mod many_stacks;
mod overlays;
mod policies;
mod restart;
mod run_slots;
mod shared_groups;
mod sleeping;
mod takeover;
mod traces;
mod upgrade;
