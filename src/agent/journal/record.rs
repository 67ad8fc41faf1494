//! Operation in the journal, which consists of a request, progress and a result.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::agent::durable;
use crate::agent::transcript::Transcript;
use crate::rpc::proto;

/// Size of a complete segment in bytes. When a segment reaches this size, the journal starts the next segment, and
/// removes all segments except the last two.
const SEGMENT: u64 = 8 * 1024 * 1024;
const REQUEST: &str = "request.json";
const RESULT: &str = "result";
const ACKNOWLEDGED: &str = "acknowledged";
const EVENT_LOG: &str = "events.jsonl";
const STATE: &str = "state.json";
const PLAN: &str = "plan.json";
const SEGMENT_PREFIX: &str = "progress-";

/// Request for an operation, without the environment and the plan. The environment can contain secrets.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Request {
    pub id: String,
    /// Name of the Update.
    pub name: String,
    /// Value of [`crate::rpc::proto::OperationKind`].
    pub kind: i32,
    pub digest: String,
    pub directory: String,
    pub stack: String,
    pub settings_digest: String,
    pub refresh: bool,
    pub message: String,
    /// Start ID of the agent that received the request.
    pub start_id: String,
    /// Process space in which the operation's process IDs are valid.
    pub process_space: String,
    /// UID of the agent's pod. Earlier agent versions do not write this field.
    #[serde(default)]
    pub pod_uid: Option<String>,
    /// Start time in milliseconds since the Unix epoch.
    pub started: i64,
    /// Name of the project.
    #[serde(default)]
    pub project: Option<String>,
    /// Runtime of the project.
    #[serde(default)]
    pub runtime: Option<String>,
    /// URL of the state backend, without credentials.
    #[serde(default)]
    pub backend: Option<String>,
}

/// State of an operation. Before the agent updates the state, it writes the corresponding data to the files.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Number of the segment to which the journal currently writes.
    pub segment: u64,
    /// Sequence number of the next progress message.
    pub next: u64,
    pub result: Option<Arc<proto::Result>>,
    pub acknowledged: bool,
}

/// Record of an operation. Only the run of the operation writes the record. Any number of readers can read the record
/// concurrently.
pub struct JournalRecord {
    request: Request,
    directory: PathBuf,
    transcript: Arc<Transcript>,
    writer: Mutex<Writer>,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct Writer {
    file: Option<File>,
    /// Number of the segment in `file`, or of the segment that the writer opens next.
    segment: u64,
    /// Total length of the complete messages in the segment in bytes.
    length: u64,
    /// Whether a message was lost because of a write error.
    lossy: bool,
}

impl JournalRecord {
    pub(super) fn create(directory: PathBuf, request: Request) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        durable::write_atomically(&directory.join(REQUEST), &serde_json::to_vec_pretty(&request)?)?;
        Ok(Self::with_state(directory, request, State::default()))
    }

    /// Loads an operation that a previous agent has written. If the result is unreadable, the function returns an
    /// operation without a result, and the recovery of unfinished operations writes a result for this operation.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the request is missing.
    pub(super) fn load(directory: &Path) -> io::Result<Self> {
        let request: Request = serde_json::from_slice(&std::fs::read(directory.join(REQUEST))?)?;
        let named = directory.file_name().is_some_and(|name| name == request.id.as_str());
        if !named {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the ID in the request differs from the directory name",
            ));
        }
        let result = read_result(&directory.join(RESULT)).unwrap_or_else(|error| {
            tracing::error!(operation = request.id, %error, "failed to read the result of the operation");
            None
        });
        let segment = segments(directory).unwrap_or_else(|error| {
            tracing::error!(operation = request.id, %error, "failed to list the progress of the operation");
            Vec::new()
        });
        let segment = segment.last().copied().unwrap_or_default();
        let acknowledged = directory.join(ACKNOWLEDGED).exists();
        let state = State { segment, next: 0, result, acknowledged };
        let record = Self::with_state(directory.to_owned(), request, state);
        // The previous agent may have ended after it had written the result, but before it completed the transcript.
        if record.result().is_some() {
            record.finish_transcript();
        }
        Ok(record)
    }

    fn with_state(directory: PathBuf, request: Request, state: State) -> Self {
        let transcript = Arc::new(Transcript::new(&directory));
        let writer = Mutex::new(Writer { segment: state.segment, ..Writer::default() });
        JournalRecord { request, directory, transcript, writer, state: watch::Sender::new(state) }
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the path of the event log, to which the CLI writes its events during the operation.
    pub fn event_log(&self) -> PathBuf {
        self.directory.join(EVENT_LOG)
    }

    /// Returns the path of the file that contains the exported stack state. This file exists only while the operation
    /// inspects the state.
    pub fn state_file(&self) -> PathBuf {
        self.directory.join(STATE)
    }

    /// Returns the path of the plan file that the operation saves or follows. This file exists only during the
    /// operation.
    pub fn plan_file(&self) -> PathBuf {
        self.directory.join(PLAN)
    }

    /// Returns the path of a policy pack's configuration file.
    pub fn policy_config(&self, number: usize) -> PathBuf {
        self.directory.join(format!("policy-{number}.json"))
    }

    pub fn transcript(&self) -> &Arc<Transcript> {
        &self.transcript
    }

    pub fn result(&self) -> Option<Arc<proto::Result>> {
        self.state.borrow().result.clone()
    }

    pub fn is_unacknowledged(&self) -> bool {
        let state = self.state.borrow();
        state.result.is_some() && !state.acknowledged
    }

    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Appends an event to the progress. After a write error, the function drops the event, because a full disk must
    /// not stop the run.
    pub fn append(&self, event: proto::progress::Event) {
        let mut writer = self.writer();
        let next = self.state.borrow().next;
        if writer.length >= SEGMENT {
            // If the next segment cannot be opened, the following call tries again. The complete segment never changes.
            *writer = Writer { segment: writer.segment + 1, lossy: writer.lossy, ..Writer::default() };
        }
        let progress = proto::Progress { sequence: next, time: now(), event: Some(event) };
        match self.write(&mut writer, &progress.encode_length_delimited_to_vec()) {
            Ok(()) => {
                self.state.send_modify(|state| (state.segment, state.next) = (writer.segment, next + 1));
            }
            Err(error) if !writer.lossy => {
                writer.lossy = true;
                tracing::error!(
                    operation = self.request.id,
                    %error,
                    "failed to write progress; the run continues without progress reports"
                );
            }
            Err(_) => {}
        }
    }

    fn write(&self, writer: &mut Writer, message: &[u8]) -> io::Result<()> {
        if writer.file.is_none() {
            let path = self.segment(writer.segment);
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
            writer.length = file.metadata()?.len();
            writer.file = Some(file);
            if let Some(old) = writer.segment.checked_sub(2) {
                durable::remove(&self.segment(old))?;
            }
        }
        let Some(file) = writer.file.as_mut() else { return Ok(()) };
        if let Err(error) = file.write_all(message) {
            // Removes the incomplete message, because it would make the following messages unreadable.
            file.set_len(writer.length)?;
            return Err(error);
        }
        writer.length += message.len() as u64;
        Ok(())
    }

    /// Writes the result durably after all progress.
    pub(super) fn finish(&self, result: proto::Result) -> io::Result<()> {
        let mut writer = self.writer();
        if self.result().is_some() {
            return Ok(());
        }
        // Removes the largest files first, because these files may have filled the disk.
        let _ = durable::remove(&self.event_log());
        let _ = durable::remove(&self.state_file());
        let _ = durable::remove(&self.plan_file());
        let written = self.write_result(&writer, &result).or_else(|_| {
            writer.file = None;
            self.remove_progress()?;
            self.write_result(&writer, &result)
        });
        writer.file = None;
        // Writes the transcript after the result, because on an almost full disk, the transcript must not use the space
        // that the result needs. The transcript is complete before the result becomes visible.
        self.finish_transcript();
        self.state.send_modify(|state| state.result = Some(Arc::new(result)));
        written
    }

    fn write_result(&self, writer: &Writer, result: &proto::Result) -> io::Result<()> {
        if let Some(file) = &writer.file {
            file.sync_data()?;
        }
        durable::write_atomically(&self.directory.join(RESULT), &result.encode_to_vec())
    }

    /// Removes the progress to free disk space. The function truncates the files first, because a reader can have a
    /// file open, and the file system does not free the space of an open file when the file is removed.
    fn remove_progress(&self) -> io::Result<()> {
        segments(&self.directory)?.into_iter().try_for_each(|segment| {
            let path = self.segment(segment);
            let _ = OpenOptions::new().write(true).truncate(true).open(&path);
            durable::remove(&path)
        })
    }

    /// Completes the transcript. An error does not make the run fail.
    fn finish_transcript(&self) {
        if let Err(error) = self.transcript.finish() {
            tracing::error!(operation = self.request.id, %error, "failed to write the transcript of the operation");
        }
    }

    /// Records that the controller has stored the result.
    pub fn acknowledge(&self) -> io::Result<()> {
        let _writer = self.writer();
        if self.state.borrow().acknowledged {
            return Ok(());
        }
        durable::write_atomically(&self.directory.join(ACKNOWLEDGED), b"")?;
        self.state.send_modify(|state| state.acknowledged = true);
        Ok(())
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        durable::remove(&self.directory)
    }

    /// Returns the numbers of the existing segments, in ascending order.
    pub(super) fn segments(&self) -> io::Result<Vec<u64>> {
        segments(&self.directory)
    }

    pub(super) fn segment(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{SEGMENT_PREFIX}{number}"))
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_result(path: &Path) -> io::Result<Option<Arc<proto::Result>>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(Arc::new(proto::Result::decode(bytes.as_slice()).map_err(io::Error::other)?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn segments(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix(SEGMENT_PREFIX)?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Returns the current time in milliseconds since the Unix epoch. All times in the journal and in results use this
/// format.
pub fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
