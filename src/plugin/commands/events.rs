//! `events`: lists the events of a Stack and its objects.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::ListParams;
use pulumi_controller::api::names;
use pulumi_controller::api::pulumi::Stack;
use pulumi_controller::view::runs;
use pulumi_controller::view::time::age;
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::progress::write_error;
use crate::plugin::screen::{self, Screen, table};
use crate::plugin::updates;

/// Kinds whose events the command lists if the user names no Stack.
const KINDS: [&str; 4] = ["Stack", "Workspace", "Update", "Program"];
/// Maximum number of listed events. The command omits older events.
const MAX_EVENTS: usize = 200;

/// Lists the events of one Stack, or of all Stacks in the namespace.
///
/// # Errors
///
/// Returns an error if the Stack does not exist, or if a request fails.
pub async fn run(cluster: &Cluster, stack: Option<&str>, format: Format) -> Result<(), PluginError> {
    let selectors: Vec<String> = match stack {
        Some(name) => objects(cluster, name).await?.iter().map(|(kind, name)| selector(kind, Some(name))).collect(),
        None => KINDS.iter().map(|kind| selector(kind, None)).collect(),
    };
    let scope = cluster.scope(false);
    let mut events: Vec<Event> = Vec::new();
    for fields in &selectors {
        events.extend(cluster.list::<Event>(&scope, ListParams::default().fields(fields)).await?);
    }
    let list = EventList::of(events, Timestamp::now());
    if list.0.is_empty() && format == Format::Text {
        let namespace = cluster.namespace();
        write_error(&format!("No events found in {namespace}. Kubernetes keeps events for one hour by default.\n"));
        return Ok(());
    }
    screen::print(&list, format)
}

/// Returns the kind and the name of a Stack and each of its objects.
async fn objects(cluster: &Cluster, name: &str) -> Result<BTreeSet<(&'static str, String)>, PluginError> {
    let stack: Stack = cluster.get(cluster.namespace(), name).await?;
    let updates = updates::list(cluster, cluster.namespace(), name).await?;
    let mut objects: BTreeSet<_> = updates.iter().map(|update| ("Update", update.name_any())).collect();
    objects.extend(runs::current_or_last(&stack).map(|run| ("Update", run.to_owned())));
    objects.insert(("Stack", name.to_owned()));
    objects.insert(("Workspace", name.to_owned()));
    objects.insert(("StatefulSet", names::workspace_object(name)));
    objects.insert(("Pod", names::workspace_pod(name)));
    objects.extend(updates.iter().map(|update| ("Pod", update.pod_name())));
    Ok(objects)
}

/// Returns the field selector that selects the events of one object, or of all objects of one kind.
fn selector(kind: &str, name: Option<&str>) -> String {
    let name = name.map(|name| format!(",involvedObject.name={name}")).unwrap_or_default();
    format!("involvedObject.kind={kind}{name}")
}

/// Events, oldest first.
#[derive(Serialize)]
#[serde(transparent)]
struct EventList(Vec<Row>);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Time>,
    #[serde(skip)]
    age: String,
    #[serde(rename = "type")]
    kind: String,
    reason: String,
    object: String,
    count: i32,
    message: String,
}

impl EventList {
    fn of(events: Vec<Event>, now: Timestamp) -> Self {
        let mut rows: Vec<Row> = events.into_iter().map(|event| Row::of(event, now)).collect();
        rows.sort_by(|one, other| (&one.last, &one.object).cmp(&(&other.last, &other.object)));
        let surplus = rows.len().saturating_sub(MAX_EVENTS);
        EventList(rows.split_off(surplus))
    }
}

impl Row {
    fn of(event: Event, now: Timestamp) -> Self {
        // The scheduler, for example, records repetitions only in the series.
        let series = event.series.as_ref();
        let observed = series.and_then(|series| series.last_observed_time.as_ref()).map(|time| Time(time.0));
        let last = observed.or_else(|| event.last_timestamp.clone());
        let last = last.or_else(|| event.event_time.as_ref().map(|time| Time(time.0)));
        let last = last.or_else(|| event.metadata.creation_timestamp.clone());
        let object = &event.involved_object;
        Row {
            age: age(last.as_ref(), now),
            last,
            kind: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            object: format!(
                "{}/{}",
                object.kind.as_deref().unwrap_or_default(),
                object.name.as_deref().unwrap_or_default()
            ),
            count: series.and_then(|series| series.count).or(event.count).unwrap_or(1),
            message: event.message.unwrap_or_default(),
        }
    }
}

impl Screen for EventList {
    fn text(&self) -> String {
        let cells = |row: &Row| {
            let age = if row.count > 1 { format!("{} (x{})", row.age, row.count) } else { row.age.clone() };
            vec![age, row.kind.clone(), row.reason.clone(), row.object.clone(), row.message.clone()]
        };
        let rows: Vec<_> = self.0.iter().map(cells).collect();
        table(&["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::fixtures::now;
    use crate::plugin::reference_tests::assert_example;

    fn event(kind: &str, name: &str, reason: &str, message: &str, more: Value) -> Event {
        let mut object = json!({
            "metadata": { "name": "e", "namespace": "apps" },
            "involvedObject": { "kind": kind, "name": name },
            "type": "Normal",
            "reason": reason,
            "message": message,
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            object[key] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn events_are_listed_by_time_with_their_objects_and_numbers() {
        let events = vec![
            event(
                "Stack",
                "web",
                "StackCreated",
                "Successfully updated stack",
                json!({ "lastTimestamp": "2026-11-02T11:58:30Z" }),
            ),
            event(
                "Pod",
                "web-workspace-0",
                "BackOff",
                "Back-off pulling image",
                json!({ "type": "Warning", "count": 4, "lastTimestamp": "2026-11-02T11:55:00Z" }),
            ),
            event(
                "Pod",
                "web-workspace-0",
                "Scheduled",
                "Successfully assigned",
                json!({ "eventTime": "2026-11-02T11:45:00.000000Z" }),
            ),
        ];
        assert_example("kubectl pulumi events web", &EventList::of(events, now()).text());
    }

    #[test]
    fn a_series_contains_the_number_and_the_last_time() {
        let series = json!({ "count": 7, "lastObservedTime": "2026-11-02T11:50:00.000000Z" });
        let more = json!({ "eventTime": "2026-11-02T09:00:00.000000Z", "lastTimestamp": null, "series": series });
        let list = EventList::of(vec![event("Pod", "web-workspace-0", "FailedScheduling", "no node", more)], now());
        assert_eq!((list.0[0].age.as_str(), list.0[0].count), ("10m", 7));
    }

    #[test]
    fn only_the_newest_events_are_listed() {
        let at =
            |second: usize| json!({ "lastTimestamp": format!("2026-11-02T11:{:02}:{:02}Z", second / 60, second % 60) });
        let events = (0..MAX_EVENTS + 1).map(|second| event("Stack", "web", "A", "b", at(second))).collect();
        let list = EventList::of(events, now());
        assert_eq!(list.0.len(), MAX_EVENTS);
        assert_eq!(list.0[0].last, Some(Time("2026-11-02T11:00:01Z".parse().unwrap())));
    }

    #[test]
    fn the_selector_names_the_object() {
        assert_eq!(selector("Stack", Some("web")), "involvedObject.kind=Stack,involvedObject.name=web");
        assert_eq!(selector("Stack", None), "involvedObject.kind=Stack");
    }
}
