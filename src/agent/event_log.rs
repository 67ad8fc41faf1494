//! Reads the CLI's event log while the CLI writes it.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use super::redactor::Redactor;
use crate::pulumi::events::{EngineEvent, EventError, LineSplitter};

const READ_SIZE: usize = 64 * 1024;

/// Reader of an event log, which the CLI creates.
pub struct EventLog {
    path: PathBuf,
    file: Option<File>,
    splitter: LineSplitter,
    buffer: Vec<u8>,
    malformed: usize,
    redactor: Redactor,
}

impl EventLog {
    /// Creates a reader that redacts all messages with `redactor`.
    pub fn new(path: PathBuf, redactor: Redactor) -> Self {
        let (splitter, buffer) = (LineSplitter::default(), vec![0; READ_SIZE]);
        EventLog { path, file: None, splitter, buffer, malformed: 0, redactor }
    }

    /// Returns new events, at most those of one chunk of the file. Empty if there are none.
    pub fn read(&mut self) -> io::Result<Vec<EngineEvent>> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut events = Vec::new();
        let Some(file) = &mut self.file else { return Ok(events) };
        while events.is_empty() {
            let length = file.read(&mut self.buffer)?;
            if length == 0 {
                break;
            }
            for line in self.splitter.push(self.buffer.get(..length).unwrap_or_default()) {
                let hide = |text: &str| self.redactor.redact(text);
                match line.and_then(|line| EngineEvent::parse_without(&line, &hide)) {
                    Ok(event) => events.push(event),
                    Err(error) => warn_once(&mut self.malformed, &error),
                }
            }
        }
        Ok(events)
    }
}

/// Logs the first malformed line only, because tenant code can write to the file and could flood the log.
fn warn_once(malformed: &mut usize, error: &EventError) {
    if *malformed == 0 {
        tracing::warn!(%error, "ignoring malformed lines of the event log");
    }
    *malformed += 1;
}
