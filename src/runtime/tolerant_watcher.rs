//! Watches that continue when the controller cannot parse an object.
//!
//! kube-rs parses a page of objects as one document. A single object that serde rejects, such as an object with more
//! than 128 nesting levels, would prevent the controller from listing any objects of the kind. The watches in this
//! module receive objects as text, and parse each object separately. The watches skip and log an object that cannot be
//! parsed or has too many values. All watches of the controller use this module, because tenants can write every kind
//! of object that the controller watches.

use std::fmt::Debug;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::api::tolerant::{ParseError, Tolerant};

/// Watches a kind and skips objects that cannot be parsed. After an error, the watch waits before it continues.
pub fn watcher<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher_with(api, config, |_| None, |_, _| ())
}

/// Same as [`watcher()`], but passes each skipped object to `skipped`. If a deleted object cannot be parsed, its
/// deletion event contains the last valid version, which `last` returns.
pub fn watcher_with<K>(
    api: Api<Tolerant<K>>,
    config: watcher::Config,
    last: impl Fn(&ObjectMeta) -> Option<K> + Send + 'static,
    skipped: impl Fn(&ObjectMeta, &ParseError) + Send + 'static,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let parsed = move |event| std::future::ready(Ok(parse(event, &last, &skipped)));
    with_backoff(watcher::watcher(api, config), DefaultBackoff::default()).try_filter_map(parsed)
}

/// Waits after each error. The delays increase until the watch has received a complete list or a change.
///
/// With the backoff of kube-rs, each event resets the delay, including [`Event::Init`] and the objects of an incomplete
/// list. A watch whose list fails would therefore list all objects about once a second.
fn with_backoff<K>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
    backoff: impl Backoff,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: Send,
{
    let (events, delay) = (Box::pin(events), None);
    futures::stream::unfold((events, backoff, delay), |(mut events, mut backoff, delay)| async move {
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        let event = events.next().await?;
        let delay = match &event {
            Err(_) => backoff.next(),
            Ok(Event::Init | Event::InitApply(_)) => None,
            Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => {
                backoff.reset();
                None
            }
        };
        Some((event, (events, backoff, delay)))
    })
}

fn parse<K: Resource + DeserializeOwned>(
    event: Event<Tolerant<K>>,
    last: impl Fn(&ObjectMeta) -> Option<K>,
    skipped: impl Fn(&ObjectMeta, &ParseError),
) -> Option<Event<K>> {
    let parsed = |object: Tolerant<K>| {
        let warn = |error: &ParseError| {
            let ObjectMeta { name, namespace, .. } = object.meta();
            let kind = std::any::type_name::<K>();
            tracing::warn!(kind, ?namespace, ?name, %error, "ignoring object that cannot be parsed");
            skipped(object.meta(), error);
        };
        object.parse().inspect_err(warn).ok()
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::Apply(object) => Event::Apply(parsed(object)?),
        Event::InitApply(object) => Event::InitApply(parsed(object)?),
        Event::Delete(object) => Event::Delete(object.parse().ok().or_else(|| last(object.meta()))?),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::{Pod, Secret};
    use kube::ResourceExt;
    use kube::core::PartialObjectMeta;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::runtime::fake_api::{FakeResponse, Log, client};

    /// Backoff with the delays 1 s, 2 s, 4 s and so on.
    struct Doubling(Duration);

    impl Iterator for Doubling {
        type Item = Duration;

        fn next(&mut self) -> Option<Duration> {
            let delay = self.0;
            self.0 *= 2;
            Some(delay)
        }
    }

    impl Backoff for Doubling {
        fn reset(&mut self) {
            self.0 = Duration::from_secs(1);
        }
    }

    type Item = Result<Event<Pod>, watcher::Error>;

    /// Returns the delays in seconds before the events that follow an error.
    async fn delays(events: Vec<Item>) -> Vec<u64> {
        let mut events = Box::pin(with_backoff(futures::stream::iter(events), Doubling(Duration::from_secs(1))));
        let (mut delays, mut is_delayed) = (Vec::new(), false);
        loop {
            let began = Instant::now();
            let Some(event) = events.next().await else { return delays };
            if is_delayed {
                delays.push(began.elapsed().as_secs());
            }
            is_delayed = event.is_err();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_complete_list_or_a_change_resets_the_backoff() {
        let failed = || -> [Item; 3] {
            [Ok(Event::Init), Ok(Event::InitApply(Pod::default())), Err(watcher::Error::NoResourceVersion)]
        };
        let failures = || failed().into_iter().chain(failed()).chain(failed());
        let events = |reset: Event<Pod>| failures().chain([Ok(reset)]).chain(failures()).chain([Ok(Event::Init)]);
        assert_eq!(delays(events(Event::Init).collect()).await, [1, 2, 4, 8, 16, 32]);
        for reset in [Event::InitDone, Event::Apply(Pod::default()), Event::Delete(Pod::default())] {
            assert_eq!(delays(events(reset).collect()).await, [1, 2, 4, 1, 2, 4]);
        }
    }

    /// Object with a time in the managed fields that the parser rejects.
    fn object(name: &str, time: &str) -> Value {
        let managed = json!([{"manager": "a", "operation": "Update", "time": time, "fieldsV1": {}}]);
        json!({"metadata": {"name": name, "namespace": "apps", "resourceVersion": "7", "managedFields": managed}})
    }

    /// Returns the names in the first events of a watch. The list and the watch contain objects with invalid managed
    /// fields.
    async fn names<K>() -> (Vec<String>, Log)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let late = "9999-12-31T23:59:59Z";
        let (client, log) = client(move |request| {
            if request.query.contains("watch=") {
                return FakeResponse::events([("ADDED", object("c", late)), ("DELETED", object("a", late))]);
            }
            let items = [object("a", late), object("b", "2026-01-01T00:00:00Z")];
            FakeResponse::Json(
                200,
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "7"}, "items": items}),
            )
        });
        let api: Api<Tolerant<K>> = Api::namespaced(client, "apps");
        let events = watcher(api, watcher::Config::default()).take(6);
        let events: Vec<Event<K>> = events.try_collect().await.expect("a list and a watch");
        let named = |event: &Event<K>| match event {
            Event::Init => "init".to_owned(),
            Event::InitApply(object) => format!("listed {}", object.name_any()),
            Event::InitDone => "done".to_owned(),
            Event::Apply(object) => format!("changed {}", object.name_any()),
            Event::Delete(object) => format!("deleted {}", object.name_any()),
        };
        (events.iter().map(named).collect(), log)
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_managed_fields_do_not_interrupt_a_watch() {
        let expected = ["init", "listed a", "listed b", "done", "changed c", "deleted a"];
        assert_eq!(names::<Pod>().await.0, expected);
        let (found, log) = names::<PartialObjectMeta<Secret>>().await;
        assert_eq!(found, expected);
        for request in log.all() {
            assert!(request.accept.contains("as=PartialObjectMetadata"), "{}: the data is not read", request.accept);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_lists_are_repeated_with_increasing_delays() {
        let (client, log) = client(|_| FakeResponse::Text("{".to_owned()));
        let api: Api<Tolerant<Pod>> = Api::namespaced(client, "apps");
        let mut events = Box::pin(watcher(api, watcher::Config::default()));
        let listed = async { while events.next().await.is_some() {} };
        assert!(tokio::time::timeout(Duration::from_secs(60), listed).await.is_err(), "the watch does not end");
        let lists = log.all().len();
        assert!((3..=8).contains(&lists), "{lists} lists in one minute");
    }
}
