//! Watches: queues of events that the server fills, and the response bodies that deliver them.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use crate::faults::Delivery;
use crate::list::{Representation, parse_version, partial, selector};
use crate::request::Call;
use crate::resources::Resource;
use crate::selectors::Selector;
use crate::state::{Core, to_version};
use crate::status::Status;
use crate::store::{Change, Key, set_resource_version};

/// Duration of a watch for which the client specifies none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);
/// Time before the end of a watch at which the server sends a bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Interval between bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// Event for a client.
#[derive(Clone, Debug)]
struct Event {
    kind: &'static str,
    key: Option<Key>,
    line: Bytes,
    due: Instant,
    /// Whether the event leaves the queue of a held watch.
    is_released: bool,
}

/// Watch of a client.
pub(crate) struct Watch {
    pub(crate) actor: String,
    pub(crate) resource: Arc<Resource>,
    version: String,
    namespace: String,
    selector: Selector,
    representation: Representation,
    has_bookmarks: bool,
    /// Last revision whose changes are in the queue.
    pub(crate) revision: u64,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    delivery: Delivery,
    is_ended: bool,
    /// Ends the connection with an error after the events.
    is_broken: bool,
    is_dropped: bool,
    waker: Option<Waker>,
    /// Last revision whose changes have been queued.
    revision: u64,
}

impl Watch {
    /// Starts a watch. The queue contains all changes since the requested resource version. `view` is the last revision
    /// that the client sees.
    pub(crate) fn start(
        core: &Core,
        call: &Call,
        delivery: Delivery,
        view: Option<u64>,
    ) -> Result<(Self, WatchBody), Status> {
        let resource = core.resource(call)?;
        let selector = selector(call, &resource)?;
        let initial_events = call.parameter("sendInitialEvents") == "true";
        if initial_events && call.parameter("resourceVersionMatch") != "NotOlderThan" {
            let cause = crate::status::Cause::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
            return Err(Status::invalid("meta.k8s.io", "ListOptions", "", vec![cause]));
        }
        let requested = parse_version(call.parameter("resourceVersion"))?;
        let current = view.unwrap_or_else(|| core.store.revision());
        let queue = Arc::new(Mutex::new(Queue { delivery, ..Queue::default() }));
        let mut watch = Watch {
            actor: call.actor.clone(),
            resource,
            version: call.version.clone(),
            namespace: call.namespace.clone(),
            selector,
            representation: Representation::of(call),
            has_bookmarks: matches!(call.parameter("allowWatchBookmarks"), "true" | "1"),
            revision: current,
            queue: queue.clone(),
        };
        if requested == 0 || initial_events {
            watch.queue_initial(core, current, initial_events);
        } else if requested < core.store.compacted() {
            watch.push_error(&Status::expired(&format!(
                "too old resource version: {requested} ({})",
                core.store.compacted()
            )));
            watch.end();
        } else {
            watch.revision = requested;
            watch.catch_up(core, view);
        }
        let seconds = call.parameter("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0);
        let end = Instant::now() + seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        lock(&queue).revision = watch.revision;
        let next_bookmark = watch.has_bookmarks.then(|| bookmark_time(end)).flatten();
        let bookmark = watch.bookmark_object();
        let body = WatchBody {
            queue,
            end,
            sleep: Box::pin(tokio::time::sleep_until(end)),
            next_bookmark,
            bookmark,
            on_event: Box::new(|_| {}),
        };
        Ok((watch, body))
    }

    fn queue_initial(&mut self, core: &Core, revision: u64, with_bookmark: bool) {
        let namespace = Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let all: Vec<(Key, Arc<Value>)> = core
            .store
            .list(&self.resource.id, namespace, revision, "")
            .map(|(key, object)| (key.clone(), object))
            .collect();
        for (key, object) in all {
            let object = to_version(&self.resource, &object, &self.version);
            if self.selector.matches(&object) {
                self.push("ADDED", Some(key), &object);
            }
        }
        if with_bookmark {
            self.push_bookmark(revision, true);
        }
    }

    /// Queues the changes since the last queued revision, up to a view.
    pub(crate) fn catch_up(&mut self, core: &Core, view: Option<u64>) {
        let limit = view.unwrap_or(u64::MAX);
        let changes: Vec<Change> =
            core.store.changes_after(self.revision).take_while(|change| change.revision <= limit).cloned().collect();
        for change in &changes {
            self.notify(change);
        }
    }

    /// Queues the event of a change.
    pub(crate) fn notify(&mut self, change: &Change) {
        self.revision = self.revision.max(change.revision);
        lock(&self.queue).revision = self.revision;
        let is_watched = change.key.resource == self.resource.id
            && (self.namespace.is_empty() || change.key.namespace() == Some(self.namespace.as_str()));
        if !is_watched {
            return;
        }
        let convert = |object: &Arc<Value>| to_version(&self.resource, object, &self.version);
        let matches =
            |object: &Option<Arc<Value>>| object.as_ref().is_some_and(|object| self.selector.matches(&convert(object)));
        let kind = match (matches(&change.old), matches(&change.new)) {
            (false, false) => return,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        let mut object = Value::clone(&convert(&change.object()));
        if kind == "DELETED"
            && let Some(old) = &change.old
        {
            // The event contains the last object that the selector matches.
            object = Value::clone(&convert(old));
            set_resource_version(&mut object, change.revision);
        }
        self.push(kind, Some(change.key.clone()), &object);
    }

    fn push(&self, kind: &'static str, key: Option<Key>, object: &Value) {
        let object = match self.representation {
            Representation::Metadata => partial(object),
            Representation::Object | Representation::Table => object.clone(),
        };
        self.push_line(kind, key, &object);
    }

    fn push_line(&self, kind: &'static str, key: Option<Key>, object: &Value) {
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        let mut queue = lock(&self.queue);
        let delay = match queue.delivery {
            Delivery::Delayed(delay) => delay,
            _ => Duration::ZERO,
        };
        queue.events.push_back(Event { kind, key, line: line.into(), due: Instant::now() + delay, is_released: false });
        queue.wake();
    }

    /// Returns a bookmark without its resource version.
    fn bookmark_object(&self) -> Value {
        let object = json!({ "kind": self.resource.kind, "apiVersion": self.resource.api_version(&self.version), "metadata": {} });
        if self.representation == Representation::Metadata { partial(&object) } else { object }
    }

    fn push_bookmark(&self, revision: u64, is_end_of_list: bool) {
        let mut object = self.bookmark_object();
        set_resource_version(&mut object, revision);
        if is_end_of_list {
            crate::metadata::set(&mut object, "annotations", json!({ "k8s.io/initial-events-end": "true" }));
        }
        self.push_line("BOOKMARK", None, &object);
    }

    /// Queues a bookmark if the client wants bookmarks.
    pub(crate) fn bookmark(&self) {
        if self.has_bookmarks {
            self.push_bookmark(self.revision, false);
        }
    }

    /// Queues an error. The client receives it after the queued events.
    pub(crate) fn push_error(&self, status: &Status) {
        self.push_line("ERROR", None, &status.to_json());
    }

    /// Discards the queued events.
    pub(crate) fn discard(&self) {
        lock(&self.queue).events.clear();
    }

    /// Ends the watch after the queued events.
    pub(crate) fn end(&self) {
        let mut queue = lock(&self.queue);
        queue.is_ended = true;
        queue.wake();
    }

    /// Ends the connection with an error after the queued events.
    pub(crate) fn break_off(&self) {
        let mut queue = lock(&self.queue);
        queue.is_broken = true;
        queue.wake();
    }

    /// Changes the delivery. Events that waited for the change arrive immediately.
    pub(crate) fn set_delivery(&self, delivery: Delivery) {
        let mut queue = lock(&self.queue);
        if queue.delivery == Delivery::Collapsed && delivery != Delivery::Collapsed {
            queue.collapse();
        }
        queue.delivery = delivery;
        let delay = match delivery {
            Delivery::Delayed(delay) => delay,
            Delivery::Immediate | Delivery::Held | Delivery::Collapsed => Duration::ZERO,
        };
        let due = Instant::now() + delay;
        queue.events.iter_mut().for_each(|event| event.due = event.due.min(due));
        queue.wake();
    }

    /// Delivers the next waiting event of a held watch. Returns whether there was one.
    pub(crate) fn release_one(&self) -> bool {
        let mut queue = lock(&self.queue);
        let Some(event) = queue.events.iter_mut().find(|event| !event.is_released) else { return false };
        event.is_released = true;
        event.due = Instant::now();
        queue.wake();
        true
    }

    /// Returns the number of events that the client has not received.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.queue).events.len()
    }

    /// Returns whether the client no longer reads the response.
    pub(crate) fn is_over(&self) -> bool {
        let queue = lock(&self.queue);
        queue.is_dropped || queue.is_ended && queue.events.is_empty()
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Keeps only the last event about each object.
    fn collapse(&mut self) {
        let mut last: BTreeMap<Key, (usize, &'static str)> = BTreeMap::new();
        let mut first: BTreeMap<Key, &'static str> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate() {
            if let Some(key) = &event.key {
                first.entry(key.clone()).or_insert(event.kind);
                last.insert(key.clone(), (index, event.kind));
            }
        }
        let events = std::mem::take(&mut self.events);
        for (index, mut event) in events.into_iter().enumerate() {
            if let Some(key) = &event.key {
                let (at, kind) = last.get(key).copied().unwrap_or((index, event.kind));
                if at != index {
                    continue;
                }
                let began = first.get(key).copied().unwrap_or(kind);
                match (began, kind) {
                    // The client has never seen the object.
                    ("ADDED", "DELETED") => continue,
                    ("DELETED" | "MODIFIED", "ADDED") => event = event.with_kind("MODIFIED"),
                    ("ADDED", "MODIFIED") => event = event.with_kind("ADDED"),
                    _ => {}
                }
            }
            self.events.push_back(event);
        }
    }
}

impl Event {
    fn with_kind(self, kind: &'static str) -> Self {
        let text = String::from_utf8_lossy(&self.line);
        let line = text.replacen(&format!("\"type\":\"{}\"", self.kind), &format!("\"type\":\"{kind}\""), 1);
        Event { kind, line: line.into(), ..self }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Body of the response to a watch request.
pub(crate) struct WatchBody {
    queue: Arc<Mutex<Queue>>,
    end: Instant,
    sleep: Pin<Box<Sleep>>,
    next_bookmark: Option<Instant>,
    bookmark: Value,
    /// Receives each event that leaves the queue.
    on_event: Box<dyn FnMut(&str) + Send>,
}

impl WatchBody {
    /// Sets the hook that receives the description of each event that the client receives.
    pub(crate) fn set_on_event(&mut self, hook: impl FnMut(&str) + Send + 'static) {
        self.on_event = Box::new(hook);
    }
}

/// Returns the time of the next bookmark of a watch.
fn bookmark_time(end: Instant) -> Option<Instant> {
    let (next, last) = (Instant::now() + BOOKMARK_INTERVAL, end.checked_sub(BOOKMARK_BEFORE_END)?);
    let time = if next < last { next } else { last };
    (time > Instant::now()).then_some(time)
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = crate::faults::Disconnected;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let mut queue = lock(&this.queue);
        let now = Instant::now();
        let is_held = matches!(queue.delivery, Delivery::Held | Delivery::Collapsed);
        let next =
            queue.events.front().map(|event| (event.due, event.is_released || !is_held || event.kind == "ERROR"));
        if let Some((due, true)) = next
            && due <= now
            && let Some(event) = queue.events.pop_front()
        {
            drop(queue);
            let object = event.key.as_ref().map(Key::to_string).unwrap_or_default();
            (this.on_event)(&format!("{} {object}", event.kind));
            return Poll::Ready(Some(Ok(Frame::data(event.line))));
        }
        let is_empty = queue.events.is_empty() || is_held;
        if queue.is_broken && is_empty {
            return Poll::Ready(Some(Err(crate::faults::Disconnected)));
        }
        if queue.is_ended && is_empty || now >= this.end {
            return Poll::Ready(None);
        }
        if let Some(time) = this.next_bookmark.filter(|time| *time <= now && queue.events.is_empty()) {
            this.next_bookmark = bookmark_time(this.end).filter(|next| *next > time);
            set_resource_version(&mut this.bookmark, queue.revision);
            let line = format!("{{\"type\":\"BOOKMARK\",\"object\":{}}}\n", this.bookmark);
            return Poll::Ready(Some(Ok(Frame::data(line.into()))));
        }
        let wake = next.filter(|(_, can_leave)| *can_leave).map_or(this.end, |(due, _)| due.min(this.end));
        let wake = this.next_bookmark.filter(|time| *time > now).map_or(wake, |time| wake.min(time));
        queue.waker = Some(context.waker().clone());
        drop(queue);
        this.sleep.as_mut().reset(wake);
        match this.sleep.as_mut().poll(context) {
            Poll::Ready(()) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for WatchBody {
    fn drop(&mut self) {
        lock(&self.queue).is_dropped = true;
    }
}
