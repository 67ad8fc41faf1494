//! Tracking of Git repositories with real servers on loopback: Git's HTTP backend with and without TLS of a private
//! authority, the OpenSSH server, a minimal API of GitHub Apps, and servers that misbehave. The only part of a cluster
//! is a server for Secrets.

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
mod bad_days;
mod evil_server;
mod follower;
mod github;
mod http_server;
mod polls;
mod proxy;
mod references;
mod repository;
mod secrets;
mod ssh;
mod ssh_server;
mod tls;
mod trees;
