//! Tests polling Git repositories on real servers, which listen on loopback addresses. The servers are `git
//! http-backend` with and without TLS, the OpenSSH server, a minimal GitHub API, and servers with faults. A minimal
//! Kubernetes API server provides Secrets, so the tests need no cluster.

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
