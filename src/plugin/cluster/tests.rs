use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use pulumi_controller::api::pulumi::Stack;
use serde_json::json;

use super::*;
use crate::plugin::exec::{self, Process};

/// Requests that the fake API server has received: the method, the path and the query.
pub type Log = Arc<Mutex<Vec<String>>>;

/// Returns a client for a fake API server, and the request log of the server. `respond` returns the response to a
/// request, or `None` for no response.
pub fn cluster(respond: impl Fn(&str) -> Option<(u16, Value)> + Send + Sync + 'static) -> (Cluster, Log) {
    let log = Log::default();
    let (respond, recorded) = (Arc::new(respond), log.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (respond, recorded) = (respond.clone(), recorded.clone());
        async move {
            let target = format!("{} {}", request.method(), request.uri());
            recorded.lock().unwrap().push(target.clone());
            let Some((code, value)) = respond(&target) else { return std::future::pending().await };
            let response = Response::builder().status(code).header("content-type", "application/json");
            response.body(Body::from(value.to_string().into_bytes())).map_err(std::io::Error::other)
        }
    });
    let cluster = Cluster {
        client: Client::new(service, "default"),
        namespace: "apps".to_owned(),
        request_timeout: Duration::from_secs(3),
        timeout: Duration::from_secs(60),
        deadline: Instant::now() + Duration::from_secs(60),
    };
    (cluster, log)
}

fn page(name: &str, next: &str) -> Value {
    let stack = json!({ "apiVersion": "pulumi.com/v1", "kind": "Stack",
        "metadata": { "name": name, "namespace": "apps" }, "spec": { "stack": "dev" } });
    json!({ "apiVersion": "pulumi.com/v1", "kind": "StackList", "metadata": { "continue": next }, "items": [stack] })
}

#[tokio::test]
async fn a_list_is_read_in_pages() {
    let (cluster, log) = cluster(|target| match target.contains("continue=token") {
        true => Some((200, page("web", ""))),
        false => Some((200, page("network", "token"))),
    });
    let stacks: Vec<Stack> = cluster.list(&Scope::All, ListParams::default()).await.unwrap();
    let names: Vec<_> = stacks.iter().filter_map(|stack| stack.metadata.name.as_deref()).collect();
    assert_eq!(names, ["network", "web"]);
    let requests = log.lock().unwrap().clone();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|request| request.starts_with("GET /apis/pulumi.com/v1/stacks?")), "{requests:?}");
    assert!(requests.iter().all(|request| request.contains("limit=500")), "{requests:?}");
}

/// Time that Kubernetes accepts and the parser rejects.
const LATE: &str = "9999-12-31T23:59:59Z";

#[tokio::test]
async fn an_invalid_object_does_not_hide_the_other_objects_of_a_list() {
    let (cluster, _) = cluster(|_| {
        let mut list = page("network", "");
        let mut invalid = list["items"][0].clone();
        invalid["metadata"]["name"] = json!("late");
        invalid["spec"]["expiresAt"] = json!(LATE);
        let mut managed = list["items"][0].clone();
        managed["metadata"]["name"] = json!("web");
        managed["metadata"]["managedFields"] = json!([{ "manager": "a", "operation": "Update", "time": LATE }]);
        list["items"].as_array_mut().unwrap().extend([invalid, managed]);
        Some((200, list))
    });
    let listed = cluster.list_with_invalid::<Stack>(&Scope::All, ListParams::default()).await.unwrap();
    let names: Vec<_> = listed.objects.iter().filter_map(|stack| stack.metadata.name.as_deref()).collect();
    assert_eq!(names, ["network", "web"]);
    let [message] = listed.invalid.as_slice() else { panic!("one invalid object: {:?}", listed.invalid) };
    assert!(message.starts_with("ignoring Stack apps/late: the object cannot be parsed: "), "{message}");
    assert_eq!(cluster.list::<Stack>(&Scope::All, ListParams::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_invalid_object_that_the_user_has_named_is_an_error() {
    let (cluster, _) = cluster(|_| {
        let mut list = page("late", "");
        list["items"][0]["spec"]["expiresAt"] = json!(LATE);
        Some((200, list["items"][0].clone()))
    });
    let error = cluster.get::<Stack>("apps", "late").await.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().starts_with("failed to read Stack apps/late: the object cannot be parsed: "), "{error}");
}

#[test]
fn the_number_of_warnings_is_limited() {
    let invalid: Vec<String> = (0..8).map(|number| format!("object {number}")).collect();
    assert_eq!(warnings(&invalid[..1]), ["object 0"]);
    let found = warnings(&invalid);
    assert_eq!(found.len(), MAX_NAMED + 1);
    assert_eq!(found.last().map(String::as_str), Some("ignoring 3 more objects that cannot be parsed"));
}

#[tokio::test]
async fn a_missing_object_is_reported_with_its_namespace_and_name() {
    let (cluster, log) = cluster(|_| {
        let message = "stacks.pulumi.com \"web\" not found";
        Some((
            404,
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "NotFound", "code": 404 }),
        ))
    });
    let error = cluster.get::<Stack>("apps", "web").await.unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("Stack apps/web does not exist"), "{error}");
    assert_eq!(cluster.get::<Stack>("apps", "../secrets").await.unwrap_err().exit_code(), 3);
    assert_eq!(log.lock().unwrap().len(), 1, "the client sends no request with an invalid name");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_response_times_out() {
    let (cluster, _) = cluster(|_| None);
    let error = cluster.get::<Stack>("apps", "web").await.unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert_eq!(
        error.to_string(),
        "failed to read Stack apps/web: no response within 3 s; check the connection to the cluster"
    );
}

#[tokio::test(start_paused = true)]
async fn all_requests_of_a_command_end_at_its_deadline() {
    let (cluster, log) = cluster(|target| (!target.contains("page-30")).then(|| (200, page("web", "page-30"))));
    let cluster = Cluster { deadline: Instant::now() + Duration::from_secs(2), ..cluster };
    let listing = cluster.list_with_invalid::<Stack>(&Scope::All, ListParams::default());
    let error = listing.await.unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert_eq!(
        error.to_string(),
        "timed out: failed to list objects of kind Stack in all namespaces within the maximum duration of the command; \
         to wait longer, increase --timeout"
    );
    assert_eq!(log.lock().unwrap().len(), 2);
    let renewed = cluster.with_new_deadline();
    assert_eq!(renewed.deadline(), Instant::now() + Duration::from_secs(60));
    assert!(cluster.without_deadline().deadline() > renewed.deadline() + Duration::from_secs(7 * 24 * 60 * 60));
}

#[tokio::test]
async fn a_rejected_process_in_a_pod_is_reported_with_the_missing_permission() {
    let message = "pods \"web-workspace-0\" is forbidden: cannot create resource \"pods/exec\"";
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Forbidden", "code": 403 });
    let (cluster, log) = cluster(move |_| Some((403, status.clone())));
    let process = Process { namespace: "apps", pod: "web-workspace-0", name: "sh", command: Vec::new(), input: None };
    let error = exec::run(&cluster, &process, |_| Ok(()), |_| Ok(())).await.unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains("(Forbidden, 403); ask an administrator for the permission"), "{error}");
    let requests = log.lock().unwrap().clone();
    assert!(requests[0].starts_with("GET /api/v1/namespaces/apps/pods/web-workspace-0/exec?"), "{requests:?}");
}
