//! Tests for reads from a fake API server.

use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use serde_json::json;

use super::*;
use crate::runtime::fake_api::{FakeResponse, client};

/// Object with a time in the managed fields that the parser rejects.
fn object(name: &str) -> Value {
    let managed = json!([{"manager": "a", "operation": "Update", "time": "9999-12-31T23:59:59Z"}]);
    json!({"metadata": {"name": name, "uid": format!("{name}-uid"), "managedFields": managed}})
}

#[tokio::test]
async fn objects_with_invalid_managed_fields_can_be_read() {
    let (client, log) = client(|request| {
        let name = request.path.rsplit('/').next().unwrap_or_default();
        let accept = &request.accept;
        FakeResponse::Json(
            200,
            match name {
                "secrets" | "pods" => {
                    // The reader must not parse the first object.
                    let mut invalid = object("other");
                    invalid["metadata"]["creationTimestamp"] = json!("9999-12-31T23:59:59Z");
                    let items = if name == "pods" { vec![invalid, object("web")] } else { vec![object("web")] };
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
                }
                _ if accept.contains("as=Table") => json!({
                    "columnDefinitions": [{"name": "Data"}],
                    "rows": [{"cells": [2], "object": object(name)}],
                }),
                _ => object(name),
            },
        )
    });
    let reader = Reader::new(client, Duration::from_secs(1));
    let name = |metadata: ObjectMeta| metadata.name.unwrap_or_default();
    let found = reader.get_opt::<Pod>("apps", "web").await.unwrap().unwrap();
    assert_eq!(name(found.metadata), "web");
    let found = reader.get_metadata_opt::<Secret>("apps", "web").await.unwrap().unwrap();
    assert_eq!(name(found.metadata), "web");
    let found = reader.get_cluster_opt::<Namespace>("apps").await.unwrap().unwrap();
    assert_eq!(name(found.metadata), "apps");
    let found = reader.get_cluster_metadata_opt::<Namespace>("apps").await.unwrap().unwrap();
    assert_eq!(name(found.metadata), "apps");
    let row = reader.get_row_opt::<Secret>("apps", "web").await.unwrap().unwrap();
    assert_eq!((name(row.metadata), &row.cells["Data"]), ("web".to_owned(), &json!(2)));
    let found = reader.list_metadata::<Secret>("apps", "a=b", |_| true).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(reader.find_name::<Pod>("apps", "web-uid").await.unwrap().as_deref(), Some("web"));
    assert_eq!(reader.find_name::<Pod>("apps", "missing").await.unwrap(), None);
    let requests = log.all();
    let metadata = requests.iter().filter(|request| request.accept.contains("as=PartialObjectMetadata"));
    assert_eq!(metadata.count(), 5, "the reader requests only metadata: {requests:?}");
}

#[tokio::test]
async fn no_request_is_sent_for_an_invalid_object_name() {
    let (client, log) = client(|_| FakeResponse::refusal(404, "NotFound"));
    let reader = Reader::new(client, Duration::from_secs(1));
    for name in ["../other/secrets/state", "state?watch=true", "state#", "", "a/b", "..", "State", "-a", "%2e%2e"] {
        assert!(reader.get_opt::<Secret>("apps", name).await.expect("successful read").is_none(), "{name}");
        assert!(reader.get_metadata_opt::<Secret>("apps", name).await.expect("successful read").is_none(), "{name}");
        assert!(reader.get_row_opt::<Secret>("apps", name).await.expect("successful read").is_none(), "{name}");
    }
    assert!(reader.get_opt::<Secret>("../other", "state").await.expect("successful read").is_none());
    assert!(log.all().is_empty(), "{:?}", log.verbs());
    assert!(reader.get_opt::<Secret>("apps", "state.v1").await.expect("successful read").is_none());
    assert_eq!(log.verbs(), ["GET /api/v1/namespaces/apps/secrets/state.v1"]);
}

/// Returns the page of a list with the given names, and the token of the next page.
fn page(names: &[&str], next: &str) -> FakeResponse {
    let item = |name: &&str| json!({"metadata": {"name": name, "uid": format!("{name}-uid")}});
    let items: Vec<Value> = names.iter().map(item).collect();
    FakeResponse::Json(200, json!({"metadata": {"continue": next}, "items": items}))
}

#[tokio::test]
async fn the_metadata_of_a_list_is_read_in_small_pages() {
    let (client, log) = client(|request| match request.query.contains("continue=second") {
        false => page(&["a", "b"], "second"),
        true => page(&["c"], ""),
    });
    let reader = Reader::new(client, Duration::from_secs(1));
    assert_eq!(reader.find_name::<Secret>("apps", "c-uid").await.expect("successful list").as_deref(), Some("c"));
    assert_eq!(reader.find_name::<Secret>("apps", "d-uid").await.expect("successful list"), None);
    let found = reader.list_metadata::<Secret>("apps", "a=b", |_| true).await.expect("successful list");
    let names: Vec<_> = found.iter().map(|object| object.metadata.name.as_deref().unwrap_or_default()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(found[0].metadata.namespace.as_deref(), Some("apps"));
    for request in log.all() {
        assert!(request.query.contains("limit=50"), "{}", request.query);
        assert!(request.accept.contains("as=PartialObjectMetadataList"), "{}", request.accept);
    }
}

#[tokio::test]
async fn a_list_with_large_objects_is_read_in_smaller_pages() {
    let large = "x".repeat(usize::try_from(MAX_PAGE_BYTES).expect("a small number") / 3);
    let (client, log) = client(move |request| {
        let limit = request.query.split('&').find_map(|pair| pair.strip_prefix("limit=")).unwrap_or_default();
        let item = json!({"metadata": {"name": "a", "uid": "a-uid", "annotations": {"a": large}}});
        let items = vec![item; limit.parse::<usize>().expect("a number").min(4)];
        FakeResponse::Json(200, json!({"metadata": {}, "items": items}))
    });
    let reader = Reader::new(client, Duration::from_secs(10));
    assert_eq!(reader.find_name::<Secret>("apps", "a-uid").await.expect("successful list").as_deref(), Some("a"));
    let limits: Vec<_> = log.all().iter().map(|request| request.query.clone()).collect();
    assert_eq!(limits.len(), 3, "{limits:?}");
    assert!(limits.iter().zip(PAGE_SIZES).all(|(query, size)| query.ends_with(&format!("limit={size}"))));
}

#[tokio::test]
async fn a_list_without_end_is_not_read_completely() {
    let names: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
    let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
    let (client, log) = client(move |_| page(&names, "next"));
    let reader = Reader::new(client, Duration::from_secs(10));
    let error = reader.find_name::<Secret>("apps", "uid").await.expect_err("too many objects").to_string();
    let expected = "failed to list objects of kind Secret in namespace apps: list exceeds the maximum of 10000 objects";
    assert_eq!(error, expected);
    assert_eq!(log.all().len(), 6);
}

#[tokio::test]
async fn the_objects_of_a_list_are_selected_by_their_labels() {
    let (client, log) = client(|_| {
        let item = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
        let items = [item("a", json!({"team": "blue"})), item("b", json!({})), json!({"metadata": {"name": "c"}})];
        FakeResponse::Json(200, json!({"metadata": {}, "items": items}))
    });
    let reader = Reader::new(client, Duration::from_secs(1));
    let is_selected = |labels: &BTreeMap<String, String>| labels.contains_key("team");
    let found = reader.list_metadata::<Secret>("apps", "", is_selected).await.expect("successful list");
    let names: Vec<_> = found.iter().map(|object| object.metadata.name.as_deref().unwrap_or_default()).collect();
    assert_eq!(names, ["a"]);
    reader.list_metadata::<Secret>("apps", "team=blue", is_selected).await.expect("successful list");
    let has_selector: Vec<bool> = log.all().iter().map(|request| request.query.contains("labelSelector")).collect();
    assert_eq!(has_selector, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_list_waits_for_other_lists_of_the_reader() {
    let (client, log) = client(|_| FakeResponse::Silence);
    let reader = &Reader::new(client, Duration::from_secs(1));
    let list = |namespace: String| async move { reader.find_name::<Secret>(&namespace, "uid").await };
    let reads = futures::future::join_all((0..9).map(|number| list(format!("apps-{number}"))));
    assert!(tokio::time::timeout(Duration::from_millis(500), reads).await.is_err(), "no response");
    assert_eq!(log.all().len(), LISTS.total);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_list_that_was_not_sent_describes_the_cause() {
    let (client, log) = client(|_| page(&["a"], ""));
    let reader = Reader::new(client, Duration::from_secs(1));
    let mut held = Vec::new();
    for _ in 0..LISTS.per_key {
        held.push(reader.lists.acquire("apps").await.expect("free slot"));
    }
    let error = reader.find_name::<Secret>("apps", "a-uid").await.expect_err("no free slot").to_string();
    let expected =
        "failed to list objects of kind Secret in namespace apps: other lists were in progress for more than 1 s";
    assert_eq!(error, expected);
    assert!(log.all().is_empty(), "{:?}", log.verbs());
    drop(held);
    assert_eq!(reader.find_name::<Secret>("apps", "a-uid").await.expect("successful list").as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn the_lists_of_a_namespace_do_not_delay_other_namespaces() {
    let (client, log) = client(|request| match request.path.contains("/noisy-") {
        true => FakeResponse::Silence,
        false => page(&["a"], ""),
    });
    let reader = &Reader::new(client, Duration::from_secs(5));
    let list = |namespace: String| async move { reader.find_name::<Secret>(&namespace, "a-uid").await };
    let noisy = futures::future::join_all((0..20).map(|number| list(format!("noisy-{}", number % 2))));
    let quiet = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        list("quiet".to_owned()).await
    };
    tokio::select! {
        _ = noisy => panic!("the API server does not respond"),
        found = quiet => assert_eq!(found.expect("successful list").as_deref(), Some("a")),
    }
    assert_eq!(log.all().len(), 5, "each namespace reads two lists at a time: {:?}", log.verbs());
}
