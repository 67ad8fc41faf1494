//! Tests that have the cluster to themselves: they restart the controller, or need every processor. `make test` runs them one by one after
//! all others, since each of them would have to wait for those that are at work.

mod api_server;
mod crowd;
mod leader;
mod many_stacks;
mod overlays;
mod restart;
mod takeover;
mod upgrade;
