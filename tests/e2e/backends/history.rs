//! Tests the run history in Azure Blob Storage and in Google Cloud Storage.

use pulumi_controller::api::pulumi::RunRecord;
use serde_json::{Value, json};

use super::emulators::Emulators;
use super::{azure, backend};
use crate::exclusive::history::with_settings;
use crate::harness::{Browser, Program, run_alone};
use crate::ui::token;

/// Part of the page for a run whose output is not in the history.
const MISSING: &str = "The history contains no output of this run";

/// Runs a Stack twice with a history that keeps one run. The controller therefore writes, lists, reads and deletes
/// objects.
async fn keep_one_run(url: &str, variables: &[Value]) {
    let flags = [format!("--history-url={url}"), "--history-max-runs=1".to_owned()];
    with_settings(&flags, variables, async |scene| {
        let source = scene.source("app").await;
        let main = scene.start(scene.stack("main", &source)).await;
        for value in ["one", "two"] {
            let program = Program::new("history").step("step", json!({ "value": value }));
            let commit = source.push(&program.files()).await;
            main.until_applied(&commit).await;
        }
        let runs = main.get().await.status.expect("a Stack that is Ready has a status").runs;
        let [second, first] = runs.as_slice() else { panic!("{runs:?}") };
        let directory = format!("{}/{}/main/", url.split('?').next().unwrap_or_default(), scene.namespace);
        for run in [first, second] {
            let stored = run.history_url.as_deref().unwrap_or_default();
            assert!(stored.starts_with(&directory), "{run:?} is not in {directory}");
        }
        let mut viewer = Browser::open(&scene.client).await;
        viewer.sign_in(&token(scene, "viewer", Some("view")).await).await;
        let page = async |run: &RunRecord| {
            let page = viewer.get(&format!("/stacks/{}/main/runs/{}", scene.namespace, run.name)).await;
            assert_eq!(page.status, 200, "{}", page.text);
            page.text
        };
        let (kept, deleted) = (page(second).await, page(first).await);
        assert!(kept.contains("aria-label=\"Output\"") && !kept.contains(MISSING), "{kept}");
        assert!(deleted.contains(MISSING), "{deleted}");
    })
    .await;
}

#[test]
fn a_history_in_azure_blob_storage_keeps_the_newest_run() {
    run_alone(async || {
        let Emulators { azure_account: account, azure_host_in_cluster: host, azure_key: key, .. } = Emulators::get();
        let container = format!("history-{}", fastrand::u32(..));
        azure::create_container(&container).await;
        // The emulator's URLs contain the account in the path.
        let parameters = format!("account_name={account}&endpoint=http://{host}/{account}&allow_http=true");
        let variables = [json!({"name": "AZURE_STORAGE_ACCOUNT_KEY", "value": key})];
        keep_one_run(&format!("az://{container}/runs?{parameters}"), &variables).await;
    });
}

#[test]
fn a_history_in_google_cloud_storage_keeps_the_newest_run() {
    run_alone(async || {
        let Emulators { gcs_address_in_cluster: address, gcs_bucket: bucket, .. } = Emulators::get();
        let variables = [
            json!({"name": "GOOGLE_BASE_URL", "value": format!("http://{address}")}),
            json!({"name": "GOOGLE_SERVICE_ACCOUNT_KEY", "value": backend::google_key().await}),
        ];
        keep_one_run(&format!("gs://{bucket}/runs"), &variables).await;
    });
}
