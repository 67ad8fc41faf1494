//! Splits the engine's event log into lines and parses the lines. Each line contains one JSON object.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::pulumi::console;
use crate::pulumi::outputs::{self, Output};

/// Type of the resource that represents the stack itself. The outputs of this resource are the stack outputs.
pub const STACK_TYPE: &str = "pulumi:pulumi:Stack";
/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 16 * 1024;
/// Maximum number of property paths per step.
pub const MAX_PATHS: usize = 20;
/// Maximum length of a property path, in bytes.
const MAX_PATH: usize = 256;
/// Maximum length of a URN that remains unchanged, in bytes. Later steps truncate longer URNs.
pub(super) const MAX_URN: usize = 4 * 1024;

/// The reason why an event log line is invalid. After this error, callers continue with the next line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EventError {
    #[error("event log line exceeds {limit} bytes")]
    Oversized { limit: usize },
    #[error("event log line is not an engine event: {reason}")]
    Malformed { reason: String },
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineEvent {
    /// Sequence number of the event, which increases during a run.
    pub sequence: u64,
    /// Time of the event, in seconds since 1970.
    pub timestamp: i64,
    pub kind: EventKind,
}

/// Kind of an event, with its content.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The engine has loaded the program and starts the steps of the run. Diagnostics may precede this event.
    Prelude,
    /// A step on a resource has started.
    ResourcePre(ResourceStep),
    /// A step on a resource has succeeded.
    ResourceOutputs(ResourceStep),
    /// A step on a resource has failed.
    ResourceFailed(ResourceStep),
    /// Message from the engine, a provider or the program.
    Diagnostic(Diagnostic),
    /// Violation of a policy. The engine reports a violation only in this event, even if the violation makes the run
    /// fail.
    PolicyViolation(PolicyViolation),
    /// Result of the run, which the engine reports.
    Summary(Summary),
    /// Message from the engine itself, for example after the engine received a signal.
    Stdout { message: String },
    /// Progress of a plugin download or installation.
    Progress(PluginProgress),
    /// Last event of every run, including successful runs.
    Cancel,
    /// Event of an unknown or irrelevant kind.
    Other,
}

/// A step on a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceStep {
    pub urn: String,
    /// Name of the engine operation, for example `create`, `update`, `delete` or `same`.
    pub operation: String,
    /// Type token of the resource.
    pub resource_type: String,
    /// Paths of the properties that differ. The list has at most [`MAX_PATHS`] paths. `None` if the engine has not
    /// compared the resource.
    pub properties: Option<Vec<String>>,
    /// The resource in the state before the step. `None` if the state does not contain the resource.
    pub old: Option<ResourceState>,
    /// The resource in the state after the step. `None` if the step removes the resource from the state.
    pub new: Option<ResourceState>,
    /// Outputs of the stack. Present only in the `ResourceOutputs` event of the resource that represents the stack.
    pub stack_outputs: Option<Vec<Output>>,
}

/// A resource in the state, without its inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceState {
    pub urn: String,
    /// Whether a provider manages the resource. `false` for components, and for resources that the program only reads.
    pub is_managed: bool,
    /// Whether the program only reads the resource.
    pub is_external: bool,
    /// Whether the resource is an old copy that an earlier replacement has not deleted yet.
    pub is_replaced: bool,
    /// URN of the provider. Empty for components and providers.
    pub provider: String,
}

/// A diagnostic message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostic {
    /// Severity: `debug`, `info`, `info#err` (stderr of the program), `warning` or `error`.
    pub severity: String,
    /// URN of the resource. Empty if the message does not concern a resource.
    pub urn: String,
    /// Message without colors. Maximum length: 16 KiB.
    pub message: String,
    /// Whether the CLI shows the message only while the run is in progress.
    pub ephemeral: bool,
}

/// Violation of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyViolation {
    /// Name of the policy pack, which the policy pack's program sets.
    pub pack: String,
    /// Version of the policy pack, which can be empty.
    pub version: String,
    /// Name of the policy.
    pub policy: String,
    /// Whether the policy is mandatory. A violation of a mandatory policy makes the run fail, unless it is exempted.
    pub is_mandatory: bool,
    /// Exceptions that exempt the violation, with their reasons: `ID: reason`. Empty if the violation is not exempted.
    /// Maximum length: 16 KiB.
    pub exemption: String,
    /// URN of the resource. Empty if the violation does not concern a resource.
    pub urn: String,
    /// Description of the violation, without colors. Maximum length: 16 KiB.
    pub message: String,
}

impl PolicyViolation {
    /// Returns whether an exception exempts the violation, so that the violation does not affect the run.
    pub fn is_exempted(&self) -> bool {
        !self.exemption.is_empty()
    }

    /// Converts the violation to a diagnostic.
    pub fn diagnostic(&self) -> Diagnostic {
        let policy = format!("{} of {} {}", self.policy, self.pack, self.version);
        let message = format!("violates the policy {}: {}", policy.trim_end(), self.message);
        let severity = match (self.is_exempted(), self.is_mandatory) {
            (true, _) => "info",
            (false, true) => "error",
            (false, false) => "warning",
        };
        Diagnostic { severity: severity.to_owned(), urn: self.urn.clone(), message, ephemeral: false }
    }
}

/// Progress of a plugin download or installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginProgress {
    /// Kind of progress: `plugin-download` or `plugin-install`.
    pub kind: String,
    pub message: String,
    pub done: bool,
}

/// Result of a run, which the engine reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Duration of the run in seconds, rounded up.
    pub duration_seconds: u64,
    /// Number of resources per operation name.
    pub resource_changes: BTreeMap<String, u64>,
    /// `succeeded`, `failed` or `canceled`. CLI versions before 3.237 do not report this value. After a graceful
    /// cancellation, the value is `failed`.
    pub result: Option<String>,
}

/// Fields of an event log line, except the stack outputs. Deserialization skips unknown fields without allocating
/// memory.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(default)]
    sequence: u64,
    #[serde(default)]
    timestamp: i64,
    prelude_event: Option<IgnoredAny>,
    cancel_event: Option<IgnoredAny>,
    stdout_event: Option<Message>,
    progress_event: Option<Progress>,
    diagnostic_event: Option<Message>,
    policy_event: Option<Violation>,
    summary_event: Option<RunResult>,
    resource_pre_event: Option<Step>,
    res_outputs_event: Option<Step>,
    res_op_failed_event: Option<Step>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    message: String,
    severity: String,
    urn: String,
    ephemeral: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Violation {
    message: String,
    resource_urn: String,
    policy_name: String,
    policy_pack_name: String,
    policy_pack_version: String,
    enforcement_level: String,
    exceptions: Option<Vec<Exception>>,
}

/// Policy exception that exempts a violation.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Exception {
    id: String,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Progress {
    r#type: String,
    message: String,
    done: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RunResult {
    duration_seconds: u64,
    resource_changes: Option<BTreeMap<String, u64>>,
    result: Option<String>,
}

#[derive(Deserialize)]
struct Step {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    op: String,
    urn: String,
    r#type: String,
    /// Properties that differ.
    diffs: Option<Paths>,
    /// Paths of the properties that differ, with the kinds of their differences.
    #[serde(rename = "detailedDiff")]
    detailed_diff: Option<Paths>,
    old: Option<State>,
    new: Option<State>,
}

/// State of a resource before or after a step, without its inputs and outputs.
#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    urn: String,
    custom: bool,
    external: bool,
    delete: bool,
    /// URN and ID of the provider, which `::` separates.
    provider: String,
}

/// The first [`MAX_PATHS`] paths in a list of paths, or in an object whose keys are paths.
#[derive(Default)]
struct Paths(Vec<String>);

impl Paths {
    fn push(&mut self, path: &str) {
        if self.0.len() < MAX_PATHS {
            self.0.push(path.to_owned());
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathsVisitor)
    }
}

struct PathsVisitor;

impl<'de> Visitor<'de> for PathsVisitor {
    type Value = Paths;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Paths, A::Error> {
        let mut paths = Paths::default();
        while let Some(path) = list.next_element::<Cow<'_, str>>()? {
            paths.push(&path);
        }
        Ok(paths)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Paths, A::Error> {
        let mut paths = Paths::default();
        while let Some((path, _)) = object.next_entry::<Cow<'_, str>, IgnoredAny>()? {
            paths.push(&path);
        }
        Ok(paths)
    }
}

/// The stack outputs in an event log line.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutputsLine {
    res_outputs_event: OutputsEvent,
}

#[derive(Deserialize)]
struct OutputsEvent {
    metadata: OutputsMetadata,
}

#[derive(Deserialize)]
struct OutputsMetadata {
    new: Option<NewState>,
}

#[derive(Deserialize)]
struct NewState {
    outputs: Option<serde_json::Map<String, Value>>,
}

impl EngineEvent {
    /// Parses an event log line.
    pub fn parse(line: &[u8]) -> Result<EngineEvent, EventError> {
        EngineEvent::parse_without(line, &str::to_owned)
    }

    /// Parses an event log line, and redacts its messages, property paths and overlong URNs with `redact`. Redacts a
    /// string before truncating it, because `redact` cannot recognize a truncated secret.
    pub fn parse_without(line: &[u8], redact: &dyn Fn(&str) -> String) -> Result<EngineEvent, EventError> {
        let read: Line = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
        Ok(EngineEvent { sequence: read.sequence, timestamp: read.timestamp, kind: kind(read, line, redact)? })
    }
}

fn malformed(error: &serde_json::Error) -> EventError {
    // Omits the error message from `serde_json`, because the message can contain a value from the line.
    let what = if error.is_data() { "unexpected type" } else { "invalid JSON" };
    EventError::Malformed { reason: format!("{what} at column {}", error.column()) }
}

fn kind(read: Line, line: &[u8], redact: &dyn Fn(&str) -> String) -> Result<EventKind, EventError> {
    Ok(if let Some(step) = read.resource_pre_event {
        EventKind::ResourcePre(resource_step(step, redact))
    } else if let Some(step) = read.res_outputs_event {
        let mut step = resource_step(step, redact);
        if step.resource_type == STACK_TYPE {
            step.stack_outputs = Some(stack_outputs(line)?);
        }
        EventKind::ResourceOutputs(step)
    } else if let Some(step) = read.res_op_failed_event {
        EventKind::ResourceFailed(resource_step(step, redact))
    } else if let Some(event) = read.diagnostic_event {
        let message = clean(&event.message, redact);
        EventKind::Diagnostic(Diagnostic {
            severity: event.severity,
            urn: urn(event.urn, redact),
            message,
            ephemeral: event.ephemeral,
        })
    } else if let Some(violation) = read.policy_event {
        EventKind::PolicyViolation(policy_violation(violation, redact))
    } else if let Some(result) = read.summary_event {
        EventKind::Summary(Summary {
            duration_seconds: result.duration_seconds,
            resource_changes: result.resource_changes.unwrap_or_default(),
            result: result.result,
        })
    } else if let Some(event) = read.stdout_event {
        EventKind::Stdout { message: clean(&event.message, redact) }
    } else if let Some(progress) = read.progress_event {
        let message = clean(&progress.message, redact);
        EventKind::Progress(PluginProgress { kind: progress.r#type, message, done: progress.done })
    } else if read.prelude_event.is_some() {
        EventKind::Prelude
    } else if read.cancel_event.is_some() {
        EventKind::Cancel
    } else {
        EventKind::Other
    })
}

fn policy_violation(violation: Violation, redact: &dyn Fn(&str) -> String) -> PolicyViolation {
    let clean = |text: &str| clean(text, redact);
    PolicyViolation {
        pack: clean(&violation.policy_pack_name),
        version: clean(&violation.policy_pack_version),
        policy: clean(&violation.policy_name),
        is_mandatory: violation.enforcement_level == "mandatory",
        exemption: clean(&exemption(violation.exceptions.as_deref().unwrap_or_default())),
        urn: urn(violation.resource_urn, redact),
        message: clean(&violation.message),
    }
}

fn exemption(exceptions: &[Exception]) -> String {
    let texts: Vec<String> = exceptions.iter().map(|Exception { id, reason }| format!("{id}: {reason}")).collect();
    texts.join("; ")
}

fn resource_step(step: Step, redact: &dyn Fn(&str) -> String) -> ResourceStep {
    let Metadata { op, urn: full_urn, r#type, diffs, detailed_diff, old, new } = step.metadata;
    let is_empty = |paths: &Paths| paths.0.is_empty();
    // Uses the property names if the detailed difference is empty, because some providers report only the names.
    let paths = match detailed_diff {
        Some(paths) if is_empty(&paths) => diffs.or(Some(paths)),
        Some(paths) => Some(paths),
        None => diffs,
    };
    let properties = paths.map(|paths| paths.0.iter().map(|path| property_path(path, redact)).collect());
    let urn = urn(full_urn, redact);
    let state = |state: State| resource_state(state, redact);
    let (old, new) = (old.map(state), new.map(state));
    ResourceStep { urn, operation: op, resource_type: r#type, properties, old, new, stack_outputs: None }
}

fn resource_state(state: State, redact: &dyn Fn(&str) -> String) -> ResourceState {
    let State { urn: full_urn, custom, external, delete, mut provider } = state;
    provider.truncate(provider.rfind("::").unwrap_or(provider.len()));
    ResourceState {
        urn: urn(full_urn, redact),
        is_managed: custom && !external,
        is_external: external,
        is_replaced: delete,
        provider,
    }
}

/// Redacts secrets in a property path, for example in the key of an object, and limits the length of the path.
fn property_path(path: &str, redact: &dyn Fn(&str) -> String) -> String {
    let mut path = redact(path);
    path.truncate(path.floor_char_boundary(MAX_PATH));
    path
}

/// Redacts secrets in a URN that later steps truncate, because `redact` cannot recognize a truncated secret. Other URNs
/// remain unchanged, because they identify resources. The agent redacts them before it reports them.
fn urn(urn: String, redact: &dyn Fn(&str) -> String) -> String {
    if urn.len() > MAX_URN { redact(&urn) } else { urn }
}

fn stack_outputs(line: &[u8]) -> Result<Vec<Output>, EventError> {
    let read: OutputsLine = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    let outputs = read.res_outputs_event.metadata.new.and_then(|state| state.outputs);
    Ok(outputs::from_events(outputs.unwrap_or_default()))
}

/// Redacts secrets in a message, removes colors and trailing whitespace, and limits the length of the message. Shortens
/// a very long message before removing the colors.
fn clean(message: &str, redact: &dyn Fn(&str) -> String) -> String {
    let cut = console::shorten(&redact(message.trim_end()), 4 * MAX_MESSAGE);
    // Redacts the message again, because color tags can split a secret.
    console::shorten(redact(&console::without_colors(&cut)).trim_end(), MAX_MESSAGE)
}

/// Maximum length of an event log line, in bytes. Parsing a line requires several times as much memory as the line is
/// long.
pub const MAXIMUM_LINE: usize = 16 * 1024 * 1024;

/// Splits the bytes of a growing file into complete lines. Buffers at most one line, up to the maximum length of a
/// line.
#[derive(Debug)]
pub struct LineSplitter {
    limit: usize,
    /// Beginning of the last line, which is still incomplete.
    partial_line: Vec<u8>,
    /// Whether the current line is too long. If so, the splitter skips the rest of the line.
    skipping: bool,
}

impl Default for LineSplitter {
    fn default() -> Self {
        LineSplitter::new(MAXIMUM_LINE)
    }
}

impl LineSplitter {
    /// Creates a splitter. `limit` is the maximum length of a line, in bytes.
    pub fn new(limit: usize) -> Self {
        LineSplitter { limit, partial_line: Vec::new(), skipping: false }
    }

    /// Adds bytes of the file. Returns the lines that the added bytes complete, without newlines and without empty
    /// lines. Returns an error for each line that exceeds the limit.
    pub fn push(&mut self, chunk: &[u8]) -> Vec<Result<Vec<u8>, EventError>> {
        let mut lines = Vec::new();
        let mut pieces = chunk.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            if let Err(error) = self.extend(piece) {
                lines.push(Err(error));
            }
            if pieces.peek().is_none() {
                break; // The newline of the last piece is missing.
            }
            if !self.skipping && !self.partial_line.is_empty() {
                lines.push(Ok(std::mem::take(&mut self.partial_line)));
            }
            self.skipping = false;
        }
        lines
    }

    fn extend(&mut self, piece: &[u8]) -> Result<(), EventError> {
        if self.skipping {
            return Ok(());
        }
        if self.partial_line.len().saturating_add(piece.len()) > self.limit {
            self.partial_line = Vec::new();
            self.skipping = true;
            return Err(EventError::Oversized { limit: self.limit });
        }
        self.partial_line.extend_from_slice(piece);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
