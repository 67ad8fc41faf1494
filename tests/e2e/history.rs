//! Tests references to the run history. `exclusive/history.rs` tests the history content in object storage.

use serde_json::json;

use crate::harness::{Program, run};

#[test]
fn each_run_is_in_the_history_on_the_volume_of_the_controller() {
    run("history", async |scene| {
        let source = scene.source("app").await;
        let program = |value: &str| Program::new("history").step("step", json!({ "value": value }));
        let first = source.push(&program("one").files()).await;
        let main = scene.start(scene.stack("main", &source)).await;
        main.until_applied(&first).await;
        let second = source.push(&program("two").files()).await;
        let stack = main.until_applied(&second).await;
        let status = stack.status.clone().expect("a Stack that is Ready has a status");
        let updates = main.updates().await;
        assert_eq!(status.runs.len(), 2, "{:?}", status.runs);
        let uid = stack.metadata.uid.clone().unwrap_or_default();
        for (run, update) in status.runs.iter().rev().zip(&updates) {
            assert_eq!(Some(&run.name), update.metadata.name.as_ref());
            assert_eq!((run.kind.as_str(), run.state.as_str()), ("up", "succeeded"));
            assert!(run.cause.is_some() && run.start_time.is_some() && run.end_time.is_some(), "{run:?}");
            let history = update.status.as_ref().and_then(|status| status.history.clone()).expect("a history");
            assert_eq!((history.message.as_deref(), &history.url), (None, &run.history_url));
            let url = history.url.unwrap_or_default();
            let directory = format!("file:///data/history/{}/main/{uid}/", scene.namespace);
            let update_uid = update.metadata.uid.clone().unwrap_or_default();
            assert!(url.starts_with(&directory) && url.ends_with(&format!("-up-{update_uid}")), "{url}");
        }
        assert_eq!(status.runs[0].revision, Some(second.revision()));
        assert_eq!(status.history[0].last_run.as_ref(), Some(&status.runs[0].name));
    });
}
