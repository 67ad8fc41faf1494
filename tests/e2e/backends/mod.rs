//! Tests state backends other than Pulumi Cloud, secrets providers, and the run history. The suite `backends` of
//! `tests/run` runs these tests with the emulators that `tests/cluster/cluster backends` starts.

mod azure;
mod backend;
mod credentials;
mod emulators;
mod history;
mod moving;
mod runs;
mod secrets_providers;
mod state;

use backend::Backend;
use serde_json::json;

use crate::harness::{Scene, StackHandle, WaitLimit, run};

/// Suspends a Stack without an open run.
async fn suspend(main: &StackHandle<'_>) {
    main.change(json!({"spec": {"suspend": true}})).await;
    main.until("to be suspended", WaitLimit::Reaction, |stack| {
        let status = stack.status.as_ref();
        status.is_some_and(|status| {
            status.observed_generation == stack.metadata.generation && status.current_update.is_none()
        })
    })
    .await;
}

/// Checks that neither the pod log nor any observed object state contains a secret.
async fn assert_hidden(scene: &Scene, main: &StackHandle<'_>, secrets: &[String]) {
    let log = main.pod_log("pulumi").await;
    let objects = json!([main.get().await, main.workspace().await, main.updates().await, main.events().await]);
    let states = format!("{}\n{objects}", scene.timeline.text());
    for secret in secrets {
        assert!(!log.contains(secret), "the log contains {secret}: {log}");
        assert!(!states.contains(secret), "an object contains {secret}: {states}");
    }
}

/// Declares the tests of a backend. The tests for all backends call the same functions.
macro_rules! tests_of_backend {
    ($module:ident, $backend:expr) => {
        mod $module {
            use super::{Backend, run, runs};

            const BACKEND: Backend = $backend;

            #[test]
            fn a_program_runs_from_push_to_destroy() {
                let name = concat!(stringify!($module), "-push");
                run(name, async |scene| runs::push_to_destroy(scene, BACKEND).await);
            }

            #[test]
            fn a_run_waits_for_the_lock_of_another_cli() {
                let name = concat!(stringify!($module), "-lock");
                run(name, async |scene| runs::foreign_lock(scene, BACKEND).await);
            }

            #[test]
            fn the_lock_of_a_killed_run_is_removed_and_the_run_is_retried() {
                let name = concat!(stringify!($module), "-kill");
                run(name, async |scene| runs::killed_run(scene, BACKEND).await);
            }

            #[test]
            fn the_state_survives_the_replacement_of_the_pod() {
                let name = concat!(stringify!($module), "-pod");
                run(name, async |scene| runs::replaced_pod(scene, BACKEND).await);
            }
        }
    };
}

tests_of_backend!(s3, Backend::S3);
tests_of_backend!(azblob, Backend::Azure);
tests_of_backend!(gs, Backend::Google);
tests_of_backend!(volume, Backend::Volume);
