//! Tests the run history in object storage, and the HTTP endpoint for the run history.

use kube::ResourceExt;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use crate::harness::{
    Controller, ObjectStorage, PortForward, Program, Scene, WaitLimit, client, http, in_scene, kubectl, run_alone,
    run_with_cleanup, unpack,
};
use crate::ui::token;

const PASSWORD: &str = "correct-horse-battery-staple";
/// Port of the endpoint.
const PORT: u16 = 9293;
/// RBAC rules in the component for the endpoint.
const REVIEWER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kustomize/components/history-api/reviewer.yaml");

/// Runs a test with a controller that has additional flags and environment variables. Then restores the controller,
/// even if the test fails.
pub async fn with_settings(flags: &[String], variables: &[Value], test: impl AsyncFn(&Scene)) {
    let controller = Controller::new(&client().await);
    let before = controller.arguments().await;
    let test = async || {
        controller.set_variables(variables).await;
        controller.start_with(&[before.as_slice(), flags].concat(), 1).await;
        in_scene("history", async |scene| test(scene).await).await;
    };
    run_with_cleanup(test, async || {
        let names: Vec<&str> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
        controller.remove_variables(&names).await;
        controller.start_with(&before, 1).await;
    })
    .await;
}

/// Runs a test with a controller that stores the history at this URL.
async fn with_history(url: String, test: impl AsyncFn(&Scene)) {
    let flags = [format!("--history-url={url}"), "--history-max-runs=2".to_owned()];
    with_settings(&flags, &ObjectStorage::variables(), test).await;
}

#[test]
fn a_run_is_stored_without_secrets_and_remains_after_its_stack_is_deleted() {
    run_alone(async || {
        let storage = ObjectStorage::create("history-of-runs").await;
        with_history(storage.history_url("team"), async |scene| {
            let source = scene.source("app").await;
            let program = |value: &str| {
                let program = Program::new("history").step("step", json!({ "value": value }));
                program.output("password", json!({"fn::secret": PASSWORD}))
            };
            let main = scene.start(scene.stack("main", &source)).await;
            for value in ["one", "two", "three"] {
                let commit = source.push(&program(value).files()).await;
                main.until_applied(&commit).await;
            }
            let prefix = format!("team/{}/main/", scene.namespace);
            let summaries = async || {
                let names = storage.list(&prefix).await;
                names.into_iter().filter(|name| name.ends_with("/summary.json")).collect::<Vec<_>>()
            };
            let kept = summaries().await;
            assert_eq!(kept.len(), 2, "the newest two runs: {kept:?}");
            let summary: Value = serde_json::from_str(&storage.read(&kept[1]).await).expect("JSON");
            assert_eq!((&summary["result"], &summary["outputs"]), (&json!("succeeded"), &json!(["password"])));
            let directory = kept[1].trim_end_matches("/summary.json");
            let url = main.get().await.status.and_then(|status| status.runs.into_iter().next()?.history_url);
            assert_eq!(url, Some(format!("s3://history-of-runs/{directory}")));
            let output = storage.read(&format!("{directory}/output.log.gz")).await;
            let events = storage.read(&format!("{directory}/events.jsonl.gz")).await;
            let diff = storage.read(&format!("{directory}/diff.jsonl.gz")).await;
            assert!(output.contains("step") && events.contains("summaryEvent"), "{output}\n{events}");
            assert!(diff.lines().any(|line| line.contains("\"operation\":\"update\"")), "{diff}");
            for text in [&output, &events, &diff, &summary.to_string()] {
                assert!(!text.contains(PASSWORD), "{text}");
            }
            main.delete().await;
            main.until_gone().await;
            assert_eq!(summaries().await.len(), 2, "the history remains");
        })
        .await;
    });
}

#[test]
fn a_run_completes_without_its_history_if_the_storage_is_unavailable() {
    run_alone(async || {
        let url = "s3://history/team?region=us-east-1&endpoint=http://127.0.0.1:9&allow_http=true";
        with_history(url.to_owned(), async |scene| {
            let source = scene.source("app").await;
            let commit = source.push(&Program::new("history").step("step", json!({})).files()).await;
            let main = scene.start(scene.stack("main", &source)).await;
            main.until_applied_within(WaitLimit::Run, &commit).await;
            let update = main.updates().await.remove(0);
            let history = update.status.and_then(|status| status.history).expect("a history");
            assert_eq!(history.url, None);
            let message = history.message.unwrap_or_default();
            assert!(message.contains("to the history of runs") || message.contains("did not respond"), "{message}");
            let record = main.get().await.status.expect("a status").runs.remove(0);
            assert_eq!((record.state.as_str(), record.history_url), ("succeeded", None));
        })
        .await;
    });
}

#[test]
fn the_endpoint_returns_the_output_of_a_run_only_to_users_with_permission() {
    run_alone(async || {
        let test = async || {
            kubectl(&["apply", "--server-side", "--filename", REVIEWER], "").await;
            with_settings(&[format!("--history-addr=127.0.0.1:{PORT}")], &[], read_with_tokens).await;
        };
        run_with_cleanup(test, async || {
            kubectl(&["delete", "--ignore-not-found", "--filename", REVIEWER], "").await;
        })
        .await;
    });
}

async fn read_with_tokens(scene: &Scene) {
    let source = scene.source("app").await;
    let commit = source.push(&Program::new("history").step("step", json!({})).files()).await;
    scene.start(scene.stack("main", &source)).await.until_applied(&commit).await;
    let viewer = token(scene, "viewer", Some("view")).await;
    let stranger = token(scene, "stranger", None).await;
    // The API server proxy removes the token from a request, so the requests use a forwarded port.
    let forward = PortForward::to_pod(&Controller::new(&scene.client).pod().await.name_any(), PORT).await;

    let directory = format!("{}/main", scene.namespace);
    let listed = get(&forward, &directory, Some(&viewer)).await;
    assert_eq!(listed.status(), StatusCode::OK);
    let names = listed.text().await.expect("a text");
    let names: Vec<String> = serde_json::from_str(&names).unwrap_or_else(|error| panic!("{error}: {names}"));
    let output = names.iter().find(|name| name.ends_with("/output.log.gz")).unwrap_or_else(|| panic!("{names:?}"));
    let response = get(&forward, output, Some(&viewer)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let text = unpack(&response.bytes().await.expect("a file"));
    assert!(text.contains("step"), "{text}");

    let rejected = [
        (None, StatusCode::UNAUTHORIZED),
        (Some("invalid"), StatusCode::UNAUTHORIZED),
        (Some(stranger.as_str()), StatusCode::FORBIDDEN),
    ];
    for (token, expected) in rejected {
        for path in [&directory, output] {
            assert_eq!(get(&forward, path, token).await.status(), expected, "{path} with the token {token:?}");
        }
    }
}

/// Sends a request to the endpoint.
async fn get(forward: &PortForward, path: &str, token: Option<&str>) -> Response {
    let mut request = http::client().get(format!("{}/history/{path}", forward.url));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    request.send().await.unwrap_or_else(|error| panic!("reading {path}: {error:?}"))
}
