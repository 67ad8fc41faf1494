//! Tests for run requests with a fake API server.

use futures::future::join_all;
use serde_json::{Value, json};

use super::*;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, client};
use crate::runtime::writes::Leadership;
use crate::telemetry::metrics::Metrics;

fn requester(respond: impl Fn(&RecordedRequest) -> FakeResponse + Send + Sync + 'static) -> (RunRequester, Log) {
    let (client, log) = client(respond);
    let limit = Duration::from_secs(5);
    let writer = Writer::new(client.clone(), limit, Leadership::sole(), Metrics::default());
    (RunRequester::new(Reader::new(client, limit), writer), log)
}

fn receiver(namespace: &str, resources: Value) -> StackReceiver {
    let spec = json!({"type": "generic", "secretRef": {"name": "hook"}, "resources": resources});
    serde_json::from_value(json!({"metadata": {"name": "push", "namespace": namespace}, "spec": spec})).expect("valid")
}

/// Responds to requests for four Stacks. A list contains all Stacks, regardless of its label selector.
fn respond(request: &RecordedRequest) -> FakeResponse {
    let stacks = [
        ("web", json!({"team": "blue", "tier": "front"})),
        ("api", json!({"team": "blue", "tier": "back"})),
        ("worker", json!({"team": "red", "tier": "back"})),
        ("cron", json!({})),
    ];
    let object = |(name, labels): &(&str, Value)| {
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": name, "namespace": "apps", "uid": name, "labels": labels}})
    };
    let name = request.path.rsplit('/').next().unwrap_or_default();
    if name == "stacks" {
        let items: Vec<Value> = stacks.iter().map(object).collect();
        return FakeResponse::Json(200, json!({"metadata": {}, "items": items}));
    }
    match stacks.iter().find(|(stack, _)| *stack == name) {
        Some(stack) => FakeResponse::Json(200, object(stack)),
        None => FakeResponse::refusal(404, "NotFound"),
    }
}

fn deadline() -> Instant {
    Instant::now() + MAX_DURATION
}

#[tokio::test]
async fn one_list_is_sufficient_for_all_selectors() {
    let labels = |key: String, value: &str| json!({"matchLabels": {key: value}});
    let mut many: Vec<Value> = (0..63).map(|number| labels(format!("l{number}"), "x")).collect();
    many.push(labels("team".to_owned(), "red"));
    let blue = |tier: &str| json!({"name": "*", "matchLabels": {"team": "blue", "tier": tier}});
    let rows = [
        (
            "one selector",
            json!([labels("tier".to_owned(), "back")]),
            "labelSelector=tier%3Dback",
            vec!["api", "worker"],
        ),
        ("a common label", json!([blue("front"), blue("back")]), "labelSelector=team%3Dblue", vec!["api", "web"]),
        (
            "no common label",
            json!([labels("tier".to_owned(), "front"), labels("team".to_owned(), "red"), {"name": "cron"}]),
            "",
            vec!["cron", "web", "worker"],
        ),
        ("64 selectors", Value::Array(many), "", vec!["worker"]),
        ("two labels of different Stacks", json!([{"matchLabels": {"team": "red", "tier": "front"}}]), "", vec![]),
    ];
    for (what, resources, selector, expected) in rows {
        let (requester, log) = requester(respond);
        let requests = requester.request(&receiver("apps", resources), Timestamp::now(), deadline()).await;
        let requests = requests.expect("a slot is free");
        assert_eq!((requests.stacks, requests.problem()), (expected.len(), None), "{what}");
        let (lists, others): (Vec<_>, Vec<_>) =
            log.all().into_iter().partition(|request| request.method == "GET" && request.path.ends_with("/stacks"));
        assert_eq!(lists.len(), 1, "{what}: {:?}", log.verbs());
        assert!(lists[0].query.contains(selector), "{what}: {}", lists[0].query);
        let patches = others.iter().filter(|request| request.method == "PATCH");
        let mut names: Vec<&str> = patches.filter_map(|request| request.path.rsplit('/').next()).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{what}");
    }
}

#[test]
fn a_selector_matches_stacks_with_all_its_labels() {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let labels = map(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let rows: [(&[(&str, &str)], bool); 6] = [
        (&[("a", "1")], true),
        (&[("c", "3")], true),
        (&[("a", "1"), ("c", "3")], true),
        (&[("b", "3")], false),
        (&[("a", "1"), ("d", "4")], false),
        (&[("0", "0"), ("a", "1")], false),
    ];
    for (selector, expected) in rows {
        assert_eq!(contains(&labels, &map(selector)), expected, "{selector:?}");
    }
    let (first, second) = (map(&[("a", "1"), ("b", "2"), ("c", "3")]), map(&[("a", "1"), ("b", "3"), ("c", "3")]));
    assert_eq!(common_labels(&[&first]), "a=1,b=2,c=3");
    assert_eq!(common_labels(&[&first, &second]), "a=1,c=3");
    assert_eq!(common_labels(&[&first, &map(&[("d", "4")])]), "");
}

#[tokio::test(start_paused = true)]
async fn slow_calls_of_a_namespace_do_not_delay_other_namespaces() {
    let (requester, _log) = requester(|request| match request.path.contains("/noisy/") {
        true => FakeResponse::Silence,
        false => respond(request),
    });
    let resources = json!([{"matchLabels": {"team": "red"}}]);
    let (noisy, quiet) = (receiver("noisy", resources.clone()), receiver("quiet", resources));
    let begin = Instant::now();
    let end = begin + MAX_DURATION;
    let noisy_calls = join_all((0..69).map(|_| requester.request(&noisy, Timestamp::UNIX_EPOCH, end)));
    let quiet_call = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let requests = requester.request(&quiet, Timestamp::UNIX_EPOCH, end).await;
        (requests, begin.elapsed())
    };
    let (noisy_results, (quiet_result, elapsed)) = tokio::join!(noisy_calls, quiet_call);
    assert_eq!(quiet_result.map(|requests| requests.stacks), Ok(1));
    assert!(elapsed < Duration::from_secs(1), "the call of the other namespace took {elapsed:?}");
    let refused = noisy_results.iter().filter(|result| **result == Err(Busy { waiting: 60 })).count();
    assert_eq!(refused, 5, "4 calls are in progress, and 60 calls wait: {noisy_results:?}");
    assert!(begin.elapsed() < MAX_DURATION + Duration::from_secs(1), "the calls took {:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_waiting_calls_of_all_namespaces_are_limited() {
    let (requester, _log) = requester(|_| FakeResponse::Silence);
    let end = Instant::now() + MAX_DURATION;
    let receivers = ["first", "second", "third"].map(|namespace| receiver(namespace, json!([{"name": "web"}])));
    let calls = receivers.iter().flat_map(|receiver| (0..70).map(move |_| receiver));
    let results = join_all(calls.map(|receiver| requester.request(receiver, Timestamp::UNIX_EPOCH, end))).await;
    let refused = results.chunks(70).map(|results| results.iter().filter(|result| result.is_err()).count());
    let expected = [70 - 4 - 60, 70 - 4 - 30, 70 - 4 - 15];
    assert_eq!(refused.collect::<Vec<_>>(), expected, "each namespace has 4 slots and half of the remaining places");
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_at_its_deadline() {
    let (requester, _log) = requester(|request| match request.method == "PATCH" && request.path.ends_with("/web") {
        true => FakeResponse::Silence,
        false => respond(request),
    });
    let begin = Instant::now();
    let receiver = receiver("apps", json!([{"name": "web"}, {"name": "api"}]));
    let requests = requester.request(&receiver, Timestamp::UNIX_EPOCH, begin + Duration::from_secs(3)).await;
    let requests = requests.expect("a slot is free");
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    assert_eq!(requests.stacks, 1, "the request for the other Stack was successful");
    let expected = "the controller could not annotate all selected Stacks within 8 s";
    assert_eq!(requests.problem().as_deref(), Some(expected));
}

#[tokio::test]
async fn the_message_lists_the_first_errors() {
    let (requester, _log) = requester(respond);
    let missing: Vec<Value> = (0..5).map(|number| json!({"name": format!("gone-{number}")})).collect();
    let receiver = receiver("apps", Value::Array(missing));
    let requests = requester.request(&receiver, Timestamp::UNIX_EPOCH, deadline()).await.expect("a slot is free");
    let expected = "Stack apps/gone-0 not found; Stack apps/gone-1 not found; Stack apps/gone-2 not found; and 2 more";
    assert_eq!((requests.stacks, requests.problem().as_deref()), (0, Some(expected)));
}
