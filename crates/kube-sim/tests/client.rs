//! The simulation under a client of kube-rs: watches, faults and stale views.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failure of the test itself may panic"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt};
use kube_sim::{
    Admission, After, Before, Call, Delivery, GroupResource, Interceptor, Key, Options, Server, Status, Verb,
};
use serde_json::{Value, json};

fn server() -> Server {
    Server::new(Options::new(7, jiff::Timestamp::UNIX_EPOCH)).unwrap()
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "default" }, "data": { "a": value } }))
        .unwrap()
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

fn resource() -> GroupResource {
    GroupResource::new("", "configmaps")
}

fn key(name: &str) -> Key {
    Key::new(resource(), Some("default"), name)
}

async fn create(server: &Server, name: &str, value: &str) {
    maps(server.client("writer")).create(&PostParams::default(), &config_map(name, value)).await.unwrap();
}

async fn set(server: &Server, name: &str, value: &str) {
    let patch = Patch::Merge(json!({ "data": { "a": value } }));
    maps(server.client("writer")).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

fn watch(server: &Server, actor: &str, config: watcher::Config) -> impl Stream<Item = String> + Unpin + use<> {
    let describe = |object: ConfigMap| format!("{}={}", object.name_any(), object.data.unwrap_or_default()["a"]);
    let events = watcher(maps(server.client(actor)), config).map(move |event| match event {
        Ok(Event::Init) => "init".to_owned(),
        Ok(Event::InitApply(object)) => format!("listed {}", describe(object)),
        Ok(Event::InitDone) => "done".to_owned(),
        Ok(Event::Apply(object)) => format!("applied {}", describe(object)),
        Ok(Event::Delete(object)) => format!("deleted {}", describe(object)),
        Err(error) => format!("error {}", error.to_string().split(':').next().unwrap()),
    });
    Box::pin(events)
}

/// Returns the events of the next virtual seconds.
async fn events(stream: &mut (impl Stream<Item = String> + Unpin), seconds: u64) -> Vec<String> {
    let mut events = Vec::new();
    let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
    while let Ok(Some(event)) = tokio::time::timeout_at(end, stream.next()).await {
        events.push(event);
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_watcher_lists_and_then_receives_changes() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let server = server();
        create(&server, "one", "1").await;
        let mut stream = watch(&server, "reader", config);
        assert_eq!(events(&mut stream, 1).await, ["init", "listed one=1", "done"]);
        create(&server, "two", "1").await;
        set(&server, "one", "2").await;
        server.delete(&key("two")).unwrap();
        assert_eq!(events(&mut stream, 1).await, ["applied two=1", "applied one=2", "deleted two=1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_survives_timeouts_through_bookmarks_and_lists_again_after_compaction() {
    let server = server();
    create(&server, "one", "1").await;
    let mut stream = watch(&server, "reader", watcher::Config::default());
    events(&mut stream, 1).await;
    // Changes of another kind advance the revision, so that only bookmarks keep the position of the watch recent.
    for _ in 0..20 {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "generateName": "s-", "namespace": "default" } });
        server.create(&secret).unwrap();
        assert_eq!(events(&mut stream, 60).await, [""; 0]);
        server.compact();
    }
    set(&server, "one", "2").await;
    assert_eq!(events(&mut stream, 1).await, ["applied one=2"]);
    server.expire_watches("reader", None);
    let after = events(&mut stream, 60).await;
    assert_eq!(after, ["error error returned by apiserver during watch", "init", "listed one=2", "done"], "410 Gone");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selector_is_deleted() {
    let server = server();
    let mut labeled = config_map("one", "1");
    labeled.labels_mut().insert("team".to_owned(), "a".to_owned());
    maps(server.client("writer")).create(&PostParams::default(), &labeled).await.unwrap();
    let mut stream = watch(&server, "reader", watcher::Config::default().labels("team=a"));
    events(&mut stream, 1).await;
    let patch = Patch::Merge(json!({ "metadata": { "labels": null }, "data": { "a": "2" } }));
    maps(server.client("writer")).patch("one", &PatchParams::default(), &patch).await.unwrap();
    set(&server, "one", "3").await;
    assert_eq!(events(&mut stream, 1).await, ["deleted one=1"]);
}

#[tokio::test(start_paused = true)]
async fn watch_events_are_delayed_held_released_and_collapsed() {
    let server = server();
    let mut stream = watch(&server, "reader", watcher::Config::default());
    let mut other = watch(&server, "other", watcher::Config::default());
    events(&mut stream, 1).await;
    events(&mut other, 1).await;
    server.set_delivery("reader", Some(resource()), Delivery::Delayed(Duration::from_secs(10)));
    create(&server, "one", "1").await;
    assert_eq!((events(&mut stream, 5).await.len(), events(&mut other, 1).await.len()), (0, 1));
    assert_eq!(events(&mut stream, 10).await, ["applied one=1"]);
    server.set_delivery("reader", None, Delivery::Held);
    server.set_delivery("reader", Some(resource()), Delivery::Held);
    for value in ["2", "3"] {
        set(&server, "one", value).await;
    }
    assert_eq!((events(&mut stream, 100).await.len(), server.undelivered("reader")), (0, 2));
    assert!(server.release_event("reader", &resource()));
    assert_eq!(events(&mut stream, 1).await, ["applied one=2"]);
    server.set_delivery("reader", Some(resource()), Delivery::Collapsed);
    server.delete(&key("one")).unwrap();
    create(&server, "one", "4").await;
    create(&server, "two", "1").await;
    server.delete(&key("two")).unwrap();
    assert_eq!(events(&mut stream, 1).await, [""; 0]);
    server.set_delivery("reader", Some(resource()), Delivery::Immediate);
    assert_eq!(events(&mut stream, 1).await, ["applied one=4"], "nobody has seen the deletion");
    server.set_delivery("reader", Some(resource()), Delivery::Held);
    set(&server, "one", "5").await;
    assert_eq!(server.pending_events().last(), Some(&("reader".to_owned(), resource(), 1)));
    server.expire_watches("reader", Some(&resource()));
    let after = events(&mut stream, 60).await;
    assert_eq!(
        after.last().map(String::as_str),
        Some("done"),
        "the event is lost, and the watch lists again: {after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_frozen_client_sees_an_old_state() {
    let server = server();
    create(&server, "one", "1").await;
    let revision = server.revision();
    set(&server, "one", "2").await;
    create(&server, "two", "1").await;
    server.freeze("late", revision);
    let mut stream = watch(&server, "late", watcher::Config::default());
    assert_eq!(events(&mut stream, 1).await, ["init", "listed one=1", "done"]);
    let stale = maps(server.client("late")).list(&ListParams::default()).await.unwrap().items.remove(0);
    let patch = Patch::Merge(json!({ "metadata": { "resourceVersion": stale.resource_version() } }));
    let error = maps(server.client("late")).patch("one", &PatchParams::default(), &patch).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 409), "a write sees the current object");
    let newer = ListParams::default().at(&server.revision().to_string());
    let error = maps(server.client("late")).list(&newer).await.unwrap_err();
    assert!(
        matches!(error, kube::Error::Api(status) if status.code == 504),
        "its API server does not know this version"
    );
    server.unfreeze("late");
    assert_eq!(events(&mut stream, 1).await, ["applied one=2", "applied two=1"]);
}

/// Interceptor with one decision for writes of a client.
struct Once<B, A> {
    actor: &'static str,
    before: Option<B>,
    after: Option<A>,
}

impl<B: FnOnce() -> Before + Send, A: FnOnce() -> After + Send> Interceptor for Once<B, A> {
    fn before(&mut self, call: &Call) -> Before {
        match call.verb.is_write() && call.actor == self.actor {
            true => self.before.take().map_or(Before::Pass, |decide| decide()),
            false => Before::Pass,
        }
    }

    fn after(&mut self, call: &Call, _: &Result<u64, Status>) -> After {
        match call.verb.is_write() && call.actor == self.actor {
            true => self.after.take().map_or(After::Reply, |decide| decide()),
            false => After::Reply,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_fail_before_and_after_the_commit() {
    /// Sends a creation with faults. Returns the response within ten seconds, and whether the object exists then and a
    /// minute later.
    async fn send(before: Before, after: After) -> (String, bool, bool) {
        let server = server();
        server.intercept(Once { actor: "writer", before: Some(|| before), after: Some(|| after) });
        let api = maps(server.client("writer"));
        let (parameters, object) = (PostParams::default(), config_map("one", "1"));
        let created = tokio::time::timeout(Duration::from_secs(10), api.create(&parameters, &object)).await;
        let response = match created {
            Ok(Ok(_)) => "created".to_owned(),
            Ok(Err(kube::Error::Api(status))) => format!("{} {}", status.code, status.reason),
            Ok(Err(_)) => "connection error".to_owned(),
            Err(_) => "nothing".to_owned(),
        };
        let exists = |server: &Server| server.get_key(&key("one")).is_some();
        let now = exists(&server);
        tokio::time::sleep(Duration::from_secs(60)).await;
        (response, now, exists(&server))
    }
    let minute = Duration::from_secs(20);
    let table = [
        (Before::Pass, After::Reply, ("created", true, true)),
        (Before::Fail(Status::too_many_requests(1)), After::Reply, ("429 TooManyRequests", false, false)),
        (Before::Fail(Status::service_unavailable()), After::Reply, ("503 ServiceUnavailable", false, false)),
        (Before::Fail(Status::denied("a", "no")), After::Reply, ("400 ", false, false)),
        (Before::Disconnect, After::Reply, ("connection error", false, false)),
        (Before::Hang, After::Reply, ("nothing", false, false)),
        (Before::Delay(Duration::from_secs(5)), After::Reply, ("created", true, true)),
        (Before::Delay(minute), After::Reply, ("nothing", false, false)),
        (Before::DelayInNetwork(minute), After::Reply, ("nothing", false, true)),
        (Before::Pass, After::Disconnect, ("connection error", true, true)),
        (Before::Pass, After::Hang, ("nothing", true, true)),
        (Before::Pass, After::Delay(Duration::from_secs(5)), ("created", true, true)),
    ];
    for (before, after, (response, now, later)) in table {
        let what = format!("{before:?} {after:?}");
        assert_eq!(send(before, after).await, (response.to_owned(), now, later), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_deny_and_change_objects_and_answer_reviews() {
    let server = server();
    server.admit(|request| {
        match request.object.map(|object| object["metadata"]["name"].as_str().unwrap_or_default()) {
            Some("denied") => Admission::Deny(Status::denied("policy.example.com", "not this one")),
            Some("changed") => {
                let mut object = request.object.unwrap().clone();
                object["data"]["a"] = "other".into();
                Admission::Mutate(object)
            }
            _ => Admission::Allow,
        }
    });
    let api = maps(server.client("writer"));
    let error = api.create(&PostParams::default(), &config_map("denied", "1")).await.unwrap_err();
    assert!(error.to_string().contains("denied the request: not this one"), "{error}");
    let changed = api.create(&PostParams::default(), &config_map("changed", "1")).await.unwrap();
    assert_eq!(changed.data.unwrap()["a"], "other");
    server.answer_reviews(|call, _| match call.token() {
        Some("good") => Ok(json!({ "userInfo": { "username": "alice" } })),
        _ => Err(Status::new(401, "Unauthorized", "Unauthorized")),
    });
    let review = |token: &str| {
        let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("authorization", format!("Bearer {token}"));
        let body =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" }).to_string().into_bytes();
        request.body(body).unwrap()
    };
    let client = server.client("user");
    let answer: Value = client.request(review("good")).await.unwrap();
    assert_eq!(answer["status"]["userInfo"]["username"], "alice");
    assert!(client.request::<Value>(review("bad")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn discovery_and_definitions() {
    let server = server();
    server.register(include_str!("conformance/widgets.yaml")).unwrap();
    let client = server.client("reader");
    let groups = client.list_api_groups_aggregated().await.unwrap();
    let group = groups
        .items
        .iter()
        .find(|group| group.metadata.as_ref().unwrap().name.as_deref() == Some("sim.example.com"))
        .unwrap();
    let versions: Vec<_> = group.versions.iter().map(|version| version.version.clone().unwrap()).collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
    let request = http::Request::get("/openapi/v3/apis/sim.example.com/v1").body(Vec::new()).unwrap();
    let document: Value = client.request(request).await.unwrap();
    assert!(document["components"]["schemas"]["sim.example.com.v1.Widget"]["properties"]["spec"].is_object());
    assert_eq!(client.apiserver_version().await.unwrap().minor, "35");
    let unsupported = include_str!("conformance/widgets.yaml").replace("duration(self) >=", "quantity(self) >=");
    assert!(server.register(&unsupported).is_err(), "an unsupported function is an error");
}

#[tokio::test(start_paused = true)]
async fn long_lists_have_pages_with_one_revision() {
    let server = server();
    for index in 0..7 {
        create(&server, &format!("m{index}"), "1").await;
    }
    let api = maps(server.client("reader"));
    let mut parameters = ListParams::default().limit(3);
    let mut names = Vec::new();
    loop {
        let page = api.list(&parameters).await.unwrap();
        names.extend(page.items.iter().map(ResourceExt::name_any));
        if names.len() == 3 {
            server.delete(&key("m5")).unwrap();
            create(&server, "m9", "1").await;
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => break,
        }
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
    let page = api.list(&ListParams::default().limit(3)).await.unwrap();
    set(&server, "m1", "2").await;
    server.compact();
    let next = ListParams { continue_token: page.metadata.continue_, ..ListParams::default().limit(3) };
    assert!(matches!(api.list(&next).await, Err(kube::Error::Api(status)) if status.code == 410));
}

/// Runs random requests of two clients. Returns the trace and the fingerprint of the final state.
async fn run(seed: u64) -> (Vec<String>, u64) {
    let server = Server::new(Options::new(seed, jiff::Timestamp::UNIX_EPOCH)).unwrap();
    let trace: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = trace.clone();
    server.trace(move |line| lines.lock().unwrap().push(line.to_owned()));
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut delays = fastrand::Rng::with_seed(seed);
    server.intercept(move |call: &Call| match call.verb {
        Verb::Watch => Before::Pass,
        _ => Before::Delay(Duration::from_millis(delays.u64(0..50))),
    });
    let mut stream = watch(&server, "reader", watcher::Config::default());
    for _ in 0..30 {
        let name = format!("m{}", rng.u8(0..3));
        let api = maps(server.client(if rng.bool() { "one" } else { "two" }));
        // Any response is fine.
        match rng.u8(0..3) {
            0 => drop(api.create(&PostParams::default(), &config_map(&name, "1")).await),
            1 => drop(api.patch(&name, &PatchParams::apply("m").force(), &Patch::Apply(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "a": rng.u8(..).to_string() } }))).await),
            _ => drop(api.delete(&name, &DeleteParams::default()).await),
        }
        let seen = events(&mut stream, 1).await;
        trace.lock().unwrap().extend(seen);
    }
    let trace = trace.lock().unwrap().clone();
    (trace, server.fingerprint())
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_has_the_same_trace() {
    for seed in 0..20 {
        let (first, second) = (run(seed).await, run(seed).await);
        assert!(first.0.len() > 60, "{:?}", first.0);
        assert_eq!(first, second, "seed {seed}");
    }
    assert_ne!(run(1).await, run(2).await);
}

#[tokio::test(start_paused = true)]
async fn observers_see_each_change_and_can_react() {
    let server = server();
    let (seen, reacting) = (Arc::new(Mutex::new(Vec::new())), server.clone());
    let log = seen.clone();
    server.observe(move |change| {
        log.lock().unwrap().push(format!("{} {}", change.actor, change.key));
        if change.key.name() == "one" {
            reacting.put_unchecked(&key("reaction"), Some(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "reaction", "namespace": "default" } })), "oracle");
        }
    });
    create(&server, "one", "1").await;
    assert_eq!(*seen.lock().unwrap(), ["writer configmaps default/one", "oracle configmaps default/reaction"]);
}
