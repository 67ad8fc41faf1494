//! Tests the polling of Git repositories with real servers on loopback: Git's HTTP backend, with TLS of a private
//! certificate authority and without TLS, the OpenSSH server, a minimal GitHub API, and servers with faults. A minimal
//! API server serves Secrets, so the tests need no cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::large_futures,
    reason = "a missing prerequisite fails the test"
)]

mod attacks;
mod auth;
mod evil_server;
mod follower;
mod github;
mod http_server;
mod polls;
mod proxy;
mod references;
mod repository;
mod secrets;
mod server_faults;
mod ssh;
mod ssh_server;
mod tls;
mod trees;
