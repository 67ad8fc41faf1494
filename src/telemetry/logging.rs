//! Logs in the Flux format: one JSON object per line on stderr, with the keys that `flux logs` decodes.

use std::fmt::Debug;
use std::io::Write;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::telemetry::chain;
use crate::telemetry::redact::{Redacting, url_credentials};

/// Crates whose debug and info messages the log omits, because the messages do not concern Stacks.
const QUIET: [&str; 5] = ["hyper", "hyper_util", "tonic", "tower", "reqwest"];
/// Crates whose messages the log omits at all levels. A peer could flood the log, because these crates can log a
/// message for each frame or record from the peer.
const SILENT: [&str; 2] = ["h2", "rustls"];
/// Module that logs each response of the API server that it cannot parse, as a warning. Such a response can contain a
/// list of all tenants' pods. The errors of requests also appear in the controller's messages, without the response.
const RESPONSES: &str = "kube_client::client";
/// Submodule of [`RESPONSES`] that logs requests without their responses.
const REQUESTS: &str = "kube_client::client::builder";

/// Minimum level of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogLevel {
    Trace,
    Debug,
    #[default]
    Info,
    Error,
}

impl LogLevel {
    fn directives(self) -> String {
        let level = match self {
            LogLevel::Trace => "trace",
            LogLevel::Debug => "debug",
            LogLevel::Info => "info",
            LogLevel::Error => "error",
        };
        let quiet = if self == LogLevel::Error { "error" } else { "warn" };
        let quiet = QUIET.map(|name| format!("{name}={quiet}"));
        let silent = SILENT.map(|name| format!("{name}=off"));
        let kube = [format!("{RESPONSES}=error"), format!("{REQUESTS}={level}")];
        std::iter::once(level.to_owned()).chain(quiet).chain(silent).chain(kube).collect::<Vec<_>>().join(",")
    }
}

/// Format of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogEncoding {
    #[default]
    Json,
    /// Human-readable text.
    Console,
}

/// Reason why logging could not be initialized.
#[derive(Debug, Error)]
pub enum LoggingError {
    #[error("failed to set up logging: {reason}")]
    Install { reason: String },
}

/// Starts logging to standard error. The log also contains panics.
pub fn install(level: LogLevel, encoding: LogEncoding) -> Result<(), LoggingError> {
    let failed = |reason: String| LoggingError::Install { reason };
    let filter = EnvFilter::try_new(level.directives()).map_err(|error| failed(error.to_string()))?;
    let registry = tracing_subscriber::registry().with(filter);
    let writer = || Redacting(std::io::stderr());
    let installed = match encoding {
        LogEncoding::Json => registry.with(JsonLayer::new(writer)).try_init(),
        LogEncoding::Console => registry.with(tracing_subscriber::fmt::layer().with_writer(writer)).try_init(),
    };
    installed.map_err(|error| failed(error.to_string()))?;
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(location, error = panic_message(panic.payload()), "panic");
    }));
    Ok(())
}

/// Returns the message of a panic.
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "no message".to_owned(),
    }
}

/// Layer that writes each event, with the fields of its spans, as one line of JSON.
struct JsonLayer<W> {
    writer: W,
}

impl<W> JsonLayer<W> {
    fn new(writer: W) -> Self {
        JsonLayer { writer }
    }
}

/// Fields of a span.
struct SpanFields(Map<String, Value>);

impl<S, W> Layer<S> for JsonLayer<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields(Map::new());
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields(fields.0));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields(Map::new());
        values.record(&mut fields);
        if let Some(kept) = span.extensions_mut().get_mut::<SpanFields>() {
            kept.0.extend(fields.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut line = Map::new();
        line.insert("level".to_owned(), level_name(*event.metadata().level()).into());
        line.insert("ts".to_owned(), format!("{:.3}", Timestamp::now()).into());
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        line.insert("msg".to_owned(), fields.0.remove("message").unwrap_or_default());
        if let Some(logger) = logger_name(event.metadata().target()) {
            line.insert("logger".to_owned(), logger.into());
        }
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(kept) = span.extensions().get::<SpanFields>() {
                line.extend(kept.0.clone());
            }
        }
        line.extend(fields.0);
        add_object(&mut line);
        // With one write for each line, the lines of several threads cannot mix. A write error is ignored, because there
        // is no other place to report the error.
        let text = format!("{}\n", Value::Object(line));
        let _ = self.writer.make_writer().write_all(text.as_bytes());
    }
}

/// Returns the name of a level in the log. Warnings have the level `info`, because the Flux log format has no level for
/// warnings.
fn level_name(level: Level) -> &'static str {
    match level {
        Level::TRACE => "trace",
        Level::DEBUG => "debug",
        Level::INFO | Level::WARN => "info",
        Level::ERROR => "error",
    }
}

/// Returns the module that logged an event, or `None` if the module belongs to this crate. For an event from this
/// crate, the log contains the object, so users do not need the module.
fn logger_name(target: &str) -> Option<&str> {
    let ours = target.split("::").next() == Some("pulumi_controller");
    (!ours).then_some(target)
}

/// Adds the object under its kind, as Flux does: `"Stack":{"name":…,"namespace":…}`.
fn add_object(line: &mut Map<String, Value>) {
    let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
    if let (Some(kind), Some(name), Some(namespace)) = (text("controllerKind"), text("name"), text("namespace")) {
        line.insert(kind, json!({ "name": name, "namespace": namespace }));
    }
}

/// Visitor that collects fields with their types.
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, url_credentials(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Debug, Error)]
    #[error("cannot fetch")]
    struct Broken {
        source: io::Error,
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `work` logs, as JSON without timestamps.
    fn logged(work: impl FnOnce()) -> Vec<Value> {
        logged_with(EnvFilter::new("trace"), work)
    }

    /// Returns the lines that `work` logs at a log level.
    fn logged_at(level: LogLevel, work: impl FnOnce()) -> Vec<Value> {
        logged_with(EnvFilter::try_new(level.directives()).unwrap(), work)
    }

    fn logged_with(filter: EnvFilter, work: impl FnOnce()) -> Vec<Value> {
        let written = Written::default();
        let writer = written.clone();
        let layer = JsonLayer::new(move || Redacting(writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(filter).with(layer), work);
        let bytes = written.0.lock().unwrap().clone();
        let lines = String::from_utf8(bytes).unwrap();
        lines
            .lines()
            .map(|line| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                let time = line.as_object_mut().unwrap().remove("ts").unwrap();
                let time = time.as_str().unwrap().to_owned();
                assert!(time.ends_with('Z') && time.len() == "2023-08-16T09:36:41.286Z".len(), "{time}");
                time.parse::<Timestamp>().unwrap();
                line
            })
            .collect()
    }

    /// Records each write separately.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<String>>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_is_written_at_once() {
        let writes = Writes::default();
        let writer = writes.clone();
        let layer = JsonLayer::new(move || Redacting(writer.clone()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(name = "a \"quoted\" name", "first");
            tracing::info!("second");
        });
        let writes = writes.0.lock().unwrap();
        assert_eq!(writes.len(), 2, "{writes:?}");
        assert!(
            writes.iter().all(|line| line.ends_with("}\n") && serde_json::from_str::<Value>(line).is_ok()),
            "{writes:?}"
        );
    }

    #[test]
    fn log_lines_name_the_reconciled_object_as_in_flux() {
        let lines = logged(|| {
            let span = tracing::info_span!(
                "reconcile",
                controller = "stack",
                controllerGroup = "pulumi.com",
                controllerKind = "Stack",
                name = "web",
                namespace = "apps",
                reconcileID = "1-2-3",
                revision = tracing::field::Empty,
            );
            let _entered = span.enter();
            span.record("revision", "main@sha1:abc");
            tracing::info!(runs = 3_u64, "started {}", "a run");
        });
        let expected = json!({
            "level": "info", "msg": "started a run", "controller": "stack", "controllerGroup": "pulumi.com",
            "controllerKind": "Stack", "Stack": {"name": "web", "namespace": "apps"}, "name": "web",
            "namespace": "apps", "reconcileID": "1-2-3", "revision": "main@sha1:abc", "runs": 3,
        });
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn errors_are_logged_with_causes_and_without_credentials() {
        let lines = logged(|| {
            let cause = io::Error::other("no route to https://user:pass@host/x");
            let error = Broken { source: cause };
            tracing::error!(error = &error as &dyn std::error::Error, url = "https://me:secret@host", "it failed");
        });
        let expected = json!({
            "level": "error", "msg": "it failed", "url": "https://***@host",
            "error": "cannot fetch: no route to https://***@host/x",
        });
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn log_lines_of_other_crates_name_the_crate_as_logger() {
        let lines = logged(|| tracing::warn!(target: "kube_runtime::watcher", "slow"));
        assert_eq!(lines, [json!({"level": "info", "logger": "kube_runtime::watcher", "msg": "slow"})]);
    }

    #[test]
    fn responses_of_the_api_server_are_not_logged() {
        for level in [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Error] {
            let lines = logged_at(level, || {
                tracing::warn!(target: "kube_client::client", "response");
                tracing::debug!(target: "kube_client::client", "response");
                tracing::error!(target: "kube_client::client", "error of a client");
                tracing::error!(target: "kube_client::client::builder", "error of a request");
                tracing::debug!(target: "kube_client::client::builder", "request");
            });
            let messages: Vec<&str> = lines.iter().filter_map(|line| line["msg"].as_str()).collect();
            let mut expected = vec!["error of a client", "error of a request"];
            if matches!(level, LogLevel::Trace | LogLevel::Debug) {
                expected.push("request");
            }
            assert_eq!(messages, expected, "{level:?}");
        }
    }

    #[test]
    fn messages_that_a_peer_can_cause_with_each_frame_are_suppressed() {
        for level in [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Error] {
            let directives = level.directives();
            assert!(["h2=off", "rustls=off"].iter().all(|silent| directives.contains(silent)), "{directives}");
        }
    }

    #[test]
    fn the_filter_of_every_log_level_is_valid() {
        for level in [LogLevel::Trace, LogLevel::Debug, LogLevel::Info, LogLevel::Error] {
            EnvFilter::try_new(level.directives()).unwrap();
        }
    }
}
