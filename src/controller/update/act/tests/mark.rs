//! Tests for a run whose pod the controller cannot mark.

use super::*;
use crate::api::conditions::{PROGRESSING, find, update_reason};

/// Reconciles a run twice. The fake API server responds to each mark of the pod with `response`, and accepts all status
/// writes. Returns the results, the Update and the requests.
async fn mark_twice(response: FakeResponse) -> (Vec<Result<Next, ReconcileError>>, Update, Vec<String>) {
    let object = Arc::new(Mutex::new(unbound()));
    let stored = object.clone();
    let (client, log) = client(move |request: &RecordedRequest| match request.path.as_str() {
        POD => response.clone(),
        PATH => {
            let mut object = stored.lock().unwrap();
            apply_json_merge_patch(&mut object, &request.body);
            FakeResponse::Json(200, object.clone())
        }
        _ => FakeResponse::refusal(404, "NotFound"),
    });
    let parts = TestParts::new(client);
    let context = context(&parts);
    let mut results = Vec::new();
    for now in ["2026-01-01T12:10:00Z", "2026-01-01T12:11:00Z"] {
        let observed = observed(object.lock().unwrap().clone(), Some(pod()));
        let action = Action::RecordBinding(RunBinding::default());
        results.push(Box::pin(act(&observed, action, &context, now.parse().unwrap())).await);
    }
    let update = serde_json::from_value(object.lock().unwrap().clone()).unwrap();
    (results, update, log.verbs())
}

#[tokio::test]
async fn a_rejected_mark_is_reported_once_and_retried() {
    let message = "admission webhook \"pods.example.com\" denied the request: no finalizers";
    let denied = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": "Forbidden", "code": 403});
    for response in [FakeResponse::Json(403, denied), FakeResponse::refusal(422, "Invalid")] {
        let (results, update, requests) = Box::pin(mark_twice(response.clone())).await;
        assert!(results.iter().all(|next| matches!(next, Ok(Next::Done(Some(_))))), "{results:?}");
        let (mark, report) = (format!("PATCH {POD}"), format!("PATCH {PATH}"));
        assert_eq!(requests, [mark.clone(), report, mark], "an unchanged message is not written again: {response:?}");
        let status = update.status.unwrap();
        let progressing = find(&status.conditions, PROGRESSING).unwrap();
        assert_eq!(
            (progressing.status.as_str(), progressing.reason.as_str()),
            ("False", update_reason::POD_PATCH_REJECTED)
        );
        assert!(progressing.message.contains("app-workspace-0"), "{}", progressing.message);
        assert_eq!(status.run, None, "the run is not bound");
    }
}

#[tokio::test(start_paused = true)]
async fn a_temporary_error_of_the_mark_is_not_reported() {
    let refused = FakeResponse::refusal;
    let responses = [
        refused(404, "NotFound"),
        refused(409, "Conflict"),
        refused(500, "InternalError"),
        refused(503, "ServiceUnavailable"),
        FakeResponse::Silence,
    ];
    for response in responses {
        let (results, update, requests) = Box::pin(mark_twice(response.clone())).await;
        assert!(results.iter().all(Result::is_err), "the attempt is retried with backoff: {results:?}");
        assert_eq!(requests, [format!("PATCH {POD}"), format!("PATCH {POD}")], "{response:?}");
        assert!(update.status.unwrap().conditions.is_empty(), "{response:?}");
    }
}
