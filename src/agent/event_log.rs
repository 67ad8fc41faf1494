//! The CLI's event log, read while it grows.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use super::redactor::Redactor;
use crate::pulumi::events::{EngineEvent, EventError, LineSplitter};

const READ_SIZE: usize = 64 * 1024;

/// Reads a file that the CLI makes and writes to.
pub struct EventLog {
    path: PathBuf,
    file: Option<File>,
    splitter: LineSplitter,
    buffer: Vec<u8>,
    malformed: usize,
    redactor: Redactor,
}

impl EventLog {
    /// No message that is read will hold what the redactor knows.
    pub fn new(path: PathBuf, redactor: Redactor) -> Self {
        let (splitter, buffer) = (LineSplitter::default(), vec![0; READ_SIZE]);
        EventLog { path, file: None, splitter, buffer, malformed: 0, redactor }
    }

    /// The events that were written since the last call, at most one piece of the file; empty when there is nothing new.
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
                    Err(error) => note(&mut self.malformed, &error),
                }
            }
        }
        Ok(events)
    }
}

/// The first line that cannot be read is logged, the others are only counted: tenant code can write to the file.
fn note(malformed: &mut usize, error: &EventError) {
    if *malformed == 0 {
        tracing::warn!(%error, "ignoring a line of the event log");
    }
    *malformed += 1;
}
