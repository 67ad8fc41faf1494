//! Tests for the watches that report changes to mounted objects.

use futures::FutureExt;
use kube::Client;
use serde_json::json;
use tokio::task::JoinHandle;

use super::*;
use crate::runtime::fake_api::{FakeResponse, client};
use crate::runtime::requeue;

fn secret(name: &str, version: u32) -> PartialObjectMeta<Secret> {
    let metadata = json!({"namespace": "apps", "name": name, "resourceVersion": version.to_string()});
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).expect("valid metadata")
}

#[test]
fn only_changes_after_the_initial_list_are_reported() {
    let mut seen = Seen::default();
    let mut tell = |event| seen.changed(event).map(|(_, name)| name);
    let changed = |name: &str| Some(name.to_owned());
    let steps = [
        (Event::Init, None),
        (Event::InitApply(secret("a", 1)), None),
        (Event::InitApply(secret("b", 2)), None),
        (Event::InitDone, None),
        (Event::Apply(secret("a", 3)), changed("a")),
        (Event::Apply(secret("a", 3)), None),
        // A client has created the object, or has added the label to it.
        (Event::Apply(secret("c", 4)), changed("c")),
        (Event::Delete(secret("c", 5)), None),
        // The watch is interrupted.
        (Event::Init, None),
        (Event::InitApply(secret("a", 3)), None),
        (Event::InitApply(secret("b", 6)), changed("b")),
        (Event::InitApply(secret("d", 7)), changed("d")),
        (Event::InitDone, None),
        (Event::Apply(secret("b", 6)), None),
    ];
    for (number, (event, expected)) in steps.into_iter().enumerate() {
        assert_eq!(tell(event), expected, "step {number}");
    }
}

fn empty_list() -> FakeResponse {
    FakeResponse::Json(
        200,
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
            "metadata": {"resourceVersion": "1"}, "items": []}),
    )
}

/// Starts the watch of all objects with the label of Flux. The watch ends when the returned token is canceled.
fn start(client: Client) -> (JoinHandle<()>, CancellationToken) {
    let (requeue, _) = requeue::queue();
    let selector = [("reconcile.fluxcd.io/watch", "Enabled")].into_iter().collect::<Selector>();
    let end = CancellationToken::new();
    (tokio::spawn(InputWatch::new(requeue).run(client, Scope::default(), selector, end.clone())), end)
}

#[tokio::test(start_paused = true)]
async fn only_metadata_of_labeled_secrets_and_config_maps_is_watched() {
    let (client, log) = client(|request| match request.query.contains("watch=true") {
        true => FakeResponse::Silence,
        false => empty_list(),
    });
    let (watching, end) = start(client);
    let requests = async {
        while log.all().len() < 6 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(10), requests).await;
    end.cancel();
    watching.await.expect("ends within the timeout");
    let requests = log.all();
    assert!(in_time.is_ok(), "each kind is listed and watched: {requests:?}");
    let (secrets, config_maps) = ("/api/v1/secrets", "/api/v1/configmaps");
    let times = |path: &str| requests.iter().filter(|request| request.path == path).count();
    assert_eq!((times(secrets), times(config_maps), requests.len()), (3, 3, 6), "{requests:?}");
    for request in requests {
        assert!(request.accept.starts_with("application/json;as=PartialObjectMetadata"), "{request:?}");
        assert!(request.query.contains("labelSelector=reconcile.fluxcd.io%2Fwatch%3DEnabled"), "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_watch_is_started_while_listing_is_forbidden() {
    let (client, log) = client(|_| FakeResponse::refusal(403, "Forbidden"));
    let (watching, end) = start(client);
    tokio::time::sleep(REFUSED_RETRY * 3 + Duration::from_secs(1)).await;
    end.cancel();
    watching.await.expect("ends within the timeout");
    let requests = log.all();
    assert_eq!(requests.len(), 8, "one attempt and three retries for two kinds: {requests:?}");
    // Unlike a watch, a list request for a single object does not log each rejection.
    assert!(
        requests.iter().all(|request| request.query.contains("limit=1") && !request.query.contains("watch=true")),
        "{requests:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_watch_is_retried_at_the_same_interval_as_a_forbidden_list() {
    let (client, log) = client(|request| match request.query.contains("watch=true") {
        true => FakeResponse::refusal(403, "Forbidden"),
        false => empty_list(),
    });
    let (watching, end) = start(client);
    tokio::time::sleep(REFUSED_RETRY * 3 + Duration::from_secs(1)).await;
    end.cancel();
    watching.await.expect("ends within the timeout");
    let requests = log.all();
    let watches = requests.iter().filter(|request| request.query.contains("watch=true")).count();
    assert_eq!(watches, 8, "one attempt and three retries for two kinds: {requests:?}");
}

#[tokio::test(start_paused = true)]
async fn workspaces_are_requeued_until_a_changed_input_is_mounted() {
    let (requeue, mut requeued) = requeue::queue();
    let mut requeues = || std::iter::from_fn(|| requeued.next().now_or_never().flatten()).count();
    let watch = InputWatch::new(requeue);
    let objects = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    watch.set_mounts("apps", "one", objects(&["Secret/aws", "ConfigMap/aws"]));
    watch.set_mounts("apps", "two", objects(&["ConfigMap/aws"]));
    watch.set_mounts("other", "one", objects(&["Secret/aws"]));
    let seconds = |name: &str| watch.next_poll("apps", name).map(|wait| wait.as_secs());
    assert_eq!(seconds("one"), None, "no poll is necessary without a change");

    watch.changed("apps", "Secret/aws");
    assert_eq!((requeues(), seconds("one"), seconds("two")), (1, Some(2), None));
    assert_eq!(watch.next_poll("other", "one"), None, "an object of another namespace");
    tokio::time::advance(Duration::from_secs(40)).await;
    assert_eq!(seconds("one"), Some(10), "the interval grows");
    watch.set_mounts("apps", "one", objects(&["Secret/aws"]));
    watch.mark_mounted("apps", "one", ["ConfigMap/aws".to_owned()].iter());
    assert_eq!(seconds("one"), Some(10), "the change is still pending");
    watch.mark_mounted("apps", "one", ["Secret/aws".to_owned()].iter());
    assert_eq!(seconds("one"), None);

    watch.changed("apps", "Secret/aws");
    assert_eq!(requeues(), 1);
    tokio::time::advance(CHANGE_TIMEOUT).await;
    assert_eq!(seconds("one"), None, "the change never arrives; the usual poll interval applies");
    watch.changed("apps", "Secret/aws");
    assert_eq!(requeues(), 1);
    watch.set_mounts("apps", "one", BTreeSet::new());
    assert_eq!(seconds("one"), None, "the object is no longer mounted");
    watch.forget("apps", "two");
    watch.changed("apps", "ConfigMap/aws");
    assert_eq!(requeues(), 0, "no Workspace mounts the object");
}
