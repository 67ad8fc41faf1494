//! Test harness: the cluster, one scene per test, and helpers that observe the cluster.
//!
//! A test calls `run("name", async |scene| …)`. Tests run in parallel, each in its own namespace. A test that restarts
//! the controller calls `run_alone`, so that no other test runs at the same time.

mod api_server;
mod browser;
mod bucket;
mod command;
mod controller;
mod crowd;
mod dump;
mod environment;
mod fault_server;
mod flux_notification;
mod flux_object;
pub mod http;
pub mod kubernetes_provider;
pub mod languages;
mod object_storage;
mod oci;
mod operator;
mod port_forward;
mod program;
mod provider_log;
mod pulumi_cloud;
mod replicas;
mod scene;
mod source;
mod stack;
mod timeline;
mod volume;
mod wait;

use std::io::Write;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::LazyLock;
use std::time::Instant;

use futures::FutureExt;
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

pub use api_server::{ApiServerOutage, OutageKind, report_skipped};
pub use browser::Browser;
pub use command::{kubectl, run_program, try_kubectl, try_run_program};
pub use controller::Controller;
pub use crowd::{CompletionTimes, Crowd};
#[allow(unused_imports, reason = "used by the benchmarks")]
pub use environment::Environment;
pub use fault_server::FaultServer;
pub use flux_notification::Call;
pub use flux_object::FluxObject;
pub use object_storage::{ObjectStorage, unpack};
pub use oci::OciRepository;
pub use operator::{OperatorObjects, has_operator_fields};
pub use port_forward::PortForward;
pub use program::{File, Program, archive};
pub use provider_log::{ProviderLog, once};
pub use pulumi_cloud::{PulumiCloud, TOKEN_SECRET};
pub use replicas::{AuditLog, StoppedProcess, holders};
pub use scene::{STATE_SECRET, Scene, client, client_without_retries, from_json};
pub use source::{Commit, GIT_ENVIRONMENT, GitRepository, Source};
pub use stack::{StackHandle, condition, has_condition, is_done, is_stalled, waits_for_source};
pub use volume::Volume;
pub use wait::{Poll, WaitLimit, api_call, wait_for_change, wait_until};

/// Async runtime of all tests. The shared clients' connections also use this runtime.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    rustls::crypto::ring::default_provider()
        .install_default()
        .expect("no other TLS provider is installed in this process");
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be started")
});

/// Lock of the controller. A test that restarts the controller holds the write lock, and each other test holds a read
/// lock.
static CONTROLLER_LOCK: RwLock<()> = RwLock::const_new(());

/// Runs a test in its own scene, in parallel with other tests.
pub fn run(name: &str, test: impl AsyncFnOnce(&Scene)) {
    RUNTIME.block_on(async {
        let _others_may_run = CONTROLLER_LOCK.read().await;
        in_scene(name, test).await;
    });
}

/// Runs a test while no other test runs. The test creates its scenes with `in_scene`.
pub fn run_alone(test: impl AsyncFnOnce()) {
    RUNTIME.block_on(async {
        let _others_wait = CONTROLLER_LOCK.write().await;
        test().await;
    });
}

/// Runs `test` and then `afterwards`. If `test` panics, runs `afterwards`, and then resumes the panic.
pub async fn run_with_cleanup(test: impl AsyncFnOnce(), afterwards: impl AsyncFnOnce()) {
    let outcome = AssertUnwindSafe(test()).catch_unwind().await;
    afterwards().await;
    if let Err(failure) = outcome {
        resume_unwind(failure);
    }
}

/// Creates a scene, runs the test in the scene, checks the conditions of every Stack, and removes the scene. If the
/// test fails, writes the scene's state to a file, and keeps the scene.
pub async fn in_scene(name: &str, test: impl AsyncFnOnce(&Scene)) {
    let began = Instant::now();
    let scene = Scene::new(name).await;
    let outcome = AssertUnwindSafe(async {
        test(&scene).await;
        scene.check_conditions_of_every_stack().await;
    })
    .catch_unwind()
    .await;
    match outcome {
        Ok(()) => {
            scene.remove().await;
            // Writes the duration directly to stderr, because Rust's test harness does not report durations. The test
            // harness does not capture direct writes.
            let _ = writeln!(std::io::stderr(), "{name}: {:.0} s", began.elapsed().as_secs_f64());
        }
        Err(failure) => {
            scene.keep().await;
            resume_unwind(failure);
        }
    }
}
