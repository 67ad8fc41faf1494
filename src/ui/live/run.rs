//! Event stream for one page. The stream follows the open run, or waits until the Stack changes. All reads use the
//! user's token.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use url::form_urlencoded;

use super::events::{HEARTBEAT, SIGNED_OUT, event};
use super::lines::Lines;
use super::resource_line;
use crate::api::auto::Update;
use crate::api::names;
use crate::api::pulumi::Stack;
use crate::text::printable;
use crate::ui::directory::Directory;
use crate::ui::error::UiError;
use crate::ui::row::Key;
use crate::ui::state::{Answer, Ui, Visitor};
use crate::ui::users::{self, User};
use crate::view::run_log::{Line, Window, is_pod_of, parameters};
use crate::view::runs;

/// Maximum duration of a stream. The browser then opens another stream.
const MAX_DURATION: Duration = Duration::from_secs(10 * 60);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Interval at which the stream reads the Update.
const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// Delay between the end of a run and the end of its stream, because the last log lines can arrive late.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Minimum delay before the browser reloads a changed page. This delay limits the request rate if a Stack changes
/// frequently.
const MIN_RELOAD: Duration = Duration::from_secs(2);
/// Maximum number of events that wait until the browser reads them. An event with output lines can contain about three
/// times [`BUFFER`], so a stream whose browser does not read holds about 200 KiB.
const CAPACITY: usize = 4;
const BUFFER: usize = 16 * 1024;
/// Maximum size of the run output in a stream, in bytes.
const MAX_OUTPUT: usize = 10 * 1024 * 1024;

/// The browser has closed the stream, or the stream ends because the API server has rejected the token. The script then
/// opens another stream with the same token, because an API server that starts can temporarily reject valid tokens.
struct Closed;

/// Log of the pod.
enum Log {
    NotOpen,
    Open(Box<dyn AsyncRead + Send + Unpin>),
    Ended,
}

/// Task of a stream.
struct Follower {
    user: User,
    key: Key,
    directory: Directory,
    versions: Versions,
    session_end: SessionEnd,
    sender: mpsc::Sender<Bytes>,
}

/// End of the session to which a stream belongs.
struct SessionEnd {
    /// Token that is canceled when the user signs out.
    signed_out: CancellationToken,
    expires: Instant,
}

impl SessionEnd {
    async fn wait(&self) {
        tokio::select! {
            () = self.signed_out.cancelled() => {}
            () = tokio::time::sleep_until(self.expires) => {}
        }
    }
}

/// Versions of a Stack. The stream compares the versions to determine whether the page is outdated.
struct Versions {
    /// Version on the page.
    page: String,
    /// Version that the API server returned when the stream started.
    current: String,
    /// Version of the directory row before the stream has read the Stack, or `None` if no row existed. While the row
    /// keeps this version, the page is not outdated, even if the versions of the row and the page differ: the watch can
    /// lag behind the page, and a failed watch must not cause repeated page reloads.
    row: Option<String>,
}

impl Versions {
    /// Returns whether the page is outdated. `row` is the current version of the row.
    fn is_outdated(&self, row: Option<&str>) -> bool {
        self.page != self.current || (row != self.row.as_deref() && row != Some(self.page.as_str()))
    }
}

/// Returns the stream of a Stack. With the parameter `run`, the stream follows this run.
pub(in crate::ui) async fn answer(ui: &Ui, visitor: Visitor, key: Key, query: &str) -> Answer {
    let parameter = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
    };
    let run = parameter("run").filter(|run| names::is_object_name(run));
    let (namespace, name) = (&key.0, &key.1);
    let row = ui.directory.row(&key).map(|row| row.version.clone());
    let stack: Option<Stack> = visitor.user.reader.get_opt(namespace, name).await?;
    let missing = || UiError::NoObject { kind: "Stack", namespace: namespace.clone(), name: name.clone() };
    let current = stack.ok_or_else(missing)?.resource_version().unwrap_or_default();
    let session = &visitor.session;
    let slot = ui.streams.wait(&session.user, session.id()).await.ok_or(UiError::Busy)?;
    // The session can have ended before the stream had a slot.
    let now = Timestamp::now().as_second();
    if !ui.sessions.is_valid(session, now) {
        return Err(UiError::SignedOut);
    }
    let session_end = SessionEnd { signed_out: slot.signed_out(), expires: Instant::now() + session.remaining(now) };
    let (sender, receiver) = mpsc::channel(CAPACITY);
    let versions = Versions { page: parameter("version").unwrap_or_default(), current, row };
    let follower = Follower { user: visitor.user, key, directory: ui.directory.clone(), versions, session_end, sender };
    ui.streams.spawn(slot, Box::pin(follower.follow(run)));
    Ok(stream(Body::from_stream(ReceiverStream::new(receiver).map(Ok::<_, Infallible>))))
}

/// Returns the stream for a request without a valid session. The stream contains only the event that the session has
/// ended.
pub(in crate::ui) fn signed_out() -> Response {
    stream(Body::from(SIGNED_OUT))
}

fn stream(events: Body) -> Response {
    let mut response = Response::new(events);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Without this header, some proxies buffer the events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

impl Follower {
    async fn follow(self, run: Option<String>) {
        let heartbeats = self.sender.clone();
        let heartbeat = async move {
            loop {
                tokio::time::sleep(HEARTBEAT_INTERVAL).await;
                if heartbeats.send(HEARTBEAT).await.is_err() {
                    return;
                }
            }
        };
        let work = async {
            let (Ok(()) | Err(Closed)) = match run {
                Some(run) => self.follow_run(&run).await,
                None => self.until_outdated().await,
            };
        };
        // While `work` waits for a change, `work` sends nothing, so only this future detects that the browser has
        // closed the stream. Heartbeats detect a closed stream too late if a user opens many pages within one interval.
        let receiver = self.sender.clone();
        let end = tokio::time::sleep(MAX_DURATION);
        tokio::select! {
            () = work => {}
            () = receiver.closed() => {}
            () = heartbeat => {}
            () = end => {}
            // If the browser does not read the events, the stream ends without this event. The next stream of the page
            // then contains the event.
            () = self.session_end.wait() => drop(self.sender.try_send(SIGNED_OUT)),
        }
    }

    async fn send(&self, name: &str, data: &Value) -> Result<(), Closed> {
        self.sender.send(event(name, data)).await.map_err(|_| Closed)
    }

    /// Waits until the page is outdated, for example because the Stack has changed or was deleted. The function
    /// observes the rows in the directory, and sends no requests to the API server.
    async fn until_outdated(&self) -> Result<(), Closed> {
        let mut changes = self.directory.changes();
        tokio::time::sleep(MIN_RELOAD).await;
        loop {
            let row = self.directory.row(&self.key);
            if self.versions.is_outdated(row.as_ref().map(|row| row.version.as_str())) {
                return self.send("end", &Value::Null).await;
            }
            if changes.changed().await.is_err() {
                return Err(Closed);
            }
        }
    }

    /// Follows a run until the run has ended and the page is outdated. The page becomes outdated after the Update
    /// reports the end of the run, because the controller writes the Stack after the Update.
    async fn follow_run(&self, run: &str) -> Result<(), Closed> {
        let (mut log, mut lines, mut window) = (Log::NotOpen, Lines::default(), None);
        let (mut progress, mut stop, mut length) = (Value::Null, None::<Instant>, 0_usize);
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = tokio::select! {
                read = read(&mut log, &mut buffer) => read,
                _ = poll.tick() => {
                    if stop.is_some_and(|stop| Instant::now() >= stop) {
                        return self.until_outdated().await;
                    }
                    let update: Option<Update> = match self.user.reader.get_opt(&self.key.0, run).await {
                        Ok(update) => update,
                        Err(error) => return self.without_progress(&error.into()).await,
                    };
                    if update.as_ref().is_none_or(Update::is_complete) {
                        stop = stop.or_else(|| Some(Instant::now() + LAST_LINES));
                    }
                    if let Some(update) = update {
                        window = Window::of(&update).or(window);
                        self.report(&update, &mut progress).await?;
                        self.open_log(&update, &mut log).await?;
                    }
                    continue;
                }
            };
            length = length.saturating_add(read);
            let bytes = buffer.get(..read).unwrap_or_default();
            self.print(&lines.add(bytes), window.as_ref()).await?;
            if read == 0 || length > MAX_OUTPUT {
                log = Log::Ended;
            }
            if length > MAX_OUTPUT {
                length = 0;
                self.send("note", &json!("The output is too long for this page. Run: kubectl pulumi logs -f")).await?;
            }
        }
    }

    /// Waits until the page is outdated, without sending the run's progress, for example because the user lacks
    /// permission to read Updates.
    async fn without_progress(&self, error: &UiError) -> Result<(), Closed> {
        if matches!(error, UiError::SignedOut) {
            return Err(Closed);
        }
        self.send("note", &json!(printable(&error.to_string()))).await?;
        self.until_outdated().await
    }

    /// Sends the run's progress if the progress has changed.
    async fn report(&self, update: &Update, last: &mut Value) -> Result<(), Closed> {
        let progress = progress(update);
        if *last == progress {
            return Ok(());
        }
        self.send("progress", &progress).await?;
        *last = progress;
        Ok(())
    }

    /// Opens the pod log when the run has started.
    async fn open_log(&self, update: &Update, log: &mut Log) -> Result<(), Closed> {
        let (Log::NotOpen, Some(window)) = (&*log, Window::of(update)) else { return Ok(()) };
        match self.request_log(update, &window).await {
            Ok(Some(opened)) => *log = Log::Open(opened),
            Ok(None) => {}
            // The kubelet reports with a delay that a container has started. Until then, requests for the container log
            // fail.
            Err(UiError::Refused { code: 400, .. }) => {}
            Err(UiError::SignedOut) => return Err(Closed),
            Err(error) => {
                *log = Log::Ended;
                let message = match error.is_forbidden() {
                    true => "To see the output, you need permission to read pods and their logs.".to_owned(),
                    false => error.to_string(),
                };
                self.send("note", &json!(printable(&message))).await?;
            }
        }
        Ok(())
    }

    async fn request_log(
        &self,
        update: &Update,
        window: &Window,
    ) -> Result<Option<Box<dyn AsyncRead + Send + Unpin>>, UiError> {
        let (namespace, name) = (&self.key.0, update.pod_name());
        let pod: Option<Pod> = self.user.reader.get_opt(namespace, &name).await?;
        if !pod.is_some_and(|pod| is_pod_of(&pod, update)) {
            return Ok(None);
        }
        let api: Api<Pod> = Api::namespaced(self.user.client.clone(), namespace);
        let parameters = parameters(window, true, None);
        let what = || format!("read the log of Pod {namespace}/{name}");
        let log = users::call(what, api.log_stream(&name, &parameters)).await?;
        Ok(Some(Box::new(Box::pin(log))))
    }

    /// Sends the run's output lines, and the resource states in these lines.
    async fn print(&self, lines: &[String], window: Option<&Window>) -> Result<(), Closed> {
        let within = |line: &String| match window?.line(line) {
            Line::Within(text) => Some(window?.text(text)),
            Line::Before | Line::After => None,
        };
        let texts: Vec<String> = lines.iter().filter_map(within).collect();
        if texts.is_empty() {
            return Ok(());
        }
        let resources: Vec<_> = texts.iter().filter_map(|text| resource_line::parse(text)).collect();
        self.send("log", &json!(texts)).await?;
        if !resources.is_empty() {
            self.send("resources", &json!(resources)).await?;
        }
        Ok(())
    }
}

/// Reads from the log. Returns zero at the end of the log. If the log is not open, the future never completes.
async fn read(log: &mut Log, buffer: &mut [u8]) -> usize {
    match log {
        Log::Open(log) => log.read(buffer).await.unwrap_or_default(),
        Log::NotOpen | Log::Ended => std::future::pending().await,
    }
}

/// Returns the data for the `progress` event.
fn progress(update: &Update) -> Value {
    let progress = update.status.as_ref().and_then(|status| status.progress.as_ref());
    json!({
        "phase": runs::phase(update),
        "summary": progress.map(|progress| printable(&progress.summary)),
        "done": progress.map(|progress| progress.resources_done),
        "total": progress.map(|progress| progress.resources_total),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixtures::update;

    #[test]
    fn a_page_is_outdated_after_a_change_but_not_while_the_watch_is_behind() {
        let rows = [
            ("2", "2", Some("2"), Some("2"), false),
            ("2", "2", Some("2"), Some("3"), true),
            ("2", "3", Some("2"), Some("2"), true),
            ("2", "2", Some("1"), Some("1"), false),
            ("2", "2", Some("1"), Some("2"), false),
            ("2", "2", Some("1"), Some("3"), true),
            ("2", "2", Some("2"), None, true),
            ("2", "2", None, None, false),
            ("", "2", Some("2"), Some("2"), true),
        ];
        for (page, current, before, now, expected) in rows {
            let versions =
                Versions { page: page.to_owned(), current: current.to_owned(), row: before.map(str::to_owned) };
            assert_eq!(versions.is_outdated(now), expected, "{page} {current} {before:?} {now:?}");
        }
    }

    #[test]
    fn the_progress_contains_the_phase_and_the_number_of_resources() {
        let running = json!({ "phase": "Running",
            "progress": { "summary": "3 done\u{202e}", "resourcesDone": 3, "resourcesTotal": 12 } });
        let expected = json!({ "phase": "Running", "summary": "3 done\u{fffd}", "done": 3, "total": 12 });
        assert_eq!(progress(&update("web-1", "up", &running)), expected);
        let waiting = json!({ "phase": "Waiting", "summary": null, "done": null, "total": null });
        assert_eq!(progress(&update("web-1", "up", &json!({}))), waiting);
    }
}
