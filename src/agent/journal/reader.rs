//! Reads the progress of an operation during and after the run. Each reader has its own position in the files, so a
//! slow reader does not block the other readers.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use prost::Message;
use tokio::sync::watch;

use super::record::{JournalRecord, State};
use crate::rpc::proto;
use crate::rpc::proto::progress::Event;

/// Maximum size of a message in bytes. The agent never writes larger messages.
const MAX_MESSAGE: usize = 1024 * 1024;
const READ_SIZE: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    Progress(proto::Progress),
    /// The last item.
    Result(Arc<proto::Result>),
}

/// CLI process in an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedProcess {
    /// Process ID, which equals the ID of the process session.
    pub pid: u32,
    /// URL of the Pulumi Cloud update, if the process has printed the URL.
    pub permalink: Option<String>,
    /// Whether the process was killed or forced to end. `None` if the journal does not contain the end of the process.
    /// Earlier agent versions do not write the end.
    pub interrupted: Option<bool>,
}

pub struct Reader {
    record: Arc<JournalRecord>,
    state: watch::Receiver<State>,
    /// Minimum sequence number of the next message.
    next: u64,
    segment: Option<Segment>,
    /// Whether the reader has failed to read the progress. After such a failure, the reader skips the rest of the
    /// progress.
    damaged: bool,
    ended: bool,
}

struct Segment {
    number: u64,
    file: File,
    buffer: Vec<u8>,
    /// Number of bytes in the buffer that the reader has already decoded.
    consumed: usize,
}

impl Reader {
    pub fn new(record: Arc<JournalRecord>, from: u64) -> Self {
        let state = record.watch();
        Reader { record, state, next: from, segment: None, damaged: false, ended: false }
    }

    /// Waits for the next item, and returns `None` after the result. The reader skips unreadable progress, so that the
    /// client receives the result in any case.
    pub async fn next(&mut self) -> Option<Item> {
        while !self.ended {
            // Reads the state before the files, because the agent writes data to the files before it updates the state.
            let seen = self.state.borrow_and_update().clone();
            if let Some(progress) = self.readable(seen.segment) {
                return Some(Item::Progress(progress));
            }
            if let Some(result) = seen.result {
                self.ended = true;
                return Some(Item::Result(result));
            }
            if self.state.changed().await.is_err() {
                self.ended = true;
            }
        }
        None
    }

    fn readable(&mut self, last: u64) -> Option<proto::Progress> {
        if self.damaged {
            return None;
        }
        self.read(last).unwrap_or_else(|error| {
            tracing::error!(operation = self.record.request().id, %error, "failed to read progress; sending only the result");
            (self.damaged, self.segment) = (true, None);
            None
        })
    }

    /// Returns the CLI processes that an operation's progress messages report.
    pub fn processes(record: Arc<JournalRecord>) -> io::Result<Vec<StartedProcess>> {
        let last = record.watch().borrow().segment;
        let mut reader = Reader::new(record, 0);
        let mut processes: Vec<StartedProcess> = Vec::new();
        while let Some(progress) = reader.read(last)? {
            match (progress.event, processes.last_mut()) {
                (Some(Event::Started(started)), _) => {
                    processes.push(StartedProcess { pid: started.pid, permalink: None, interrupted: None });
                }
                (Some(Event::Permalink(url)), Some(process)) => process.permalink = Some(url),
                (Some(Event::Exited(exited)), Some(process)) => process.interrupted = Some(exited.interrupted),
                _ => {}
            }
        }
        Ok(processes)
    }

    /// Returns the next progress message, or `None` after the last message in the segment `last`.
    fn read(&mut self, last: u64) -> io::Result<Option<proto::Progress>> {
        loop {
            let Some(segment) = &mut self.segment else {
                if !self.open_after(None, last)? {
                    return Ok(None);
                }
                continue;
            };
            match segment.read()? {
                Some(progress) if progress.sequence < self.next => {}
                Some(progress) => {
                    self.next = progress.sequence + 1;
                    return Ok(Some(progress));
                }
                None => {
                    let number = segment.number;
                    if !self.open_after(Some(number), last)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Opens the first existing segment between `number` (exclusive) and `last` (inclusive). Returns `false` if no such
    /// segment exists. The journal may have removed a segment in this range.
    fn open_after(&mut self, number: Option<u64>, last: u64) -> io::Result<bool> {
        let is_next = |candidate: &u64| *candidate <= last && number.is_none_or(|number| *candidate > number);
        for candidate in self.record.segments()?.into_iter().filter(is_next) {
            match File::open(self.record.segment(candidate)) {
                Ok(file) => {
                    self.segment = Some(Segment { number: candidate, file, buffer: Vec::new(), consumed: 0 });
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

impl Segment {
    /// Returns the next complete message, or `None` if the segment contains no further complete message.
    fn read(&mut self) -> io::Result<Option<proto::Progress>> {
        loop {
            if let Some(progress) = self.decode()? {
                return Ok(Some(progress));
            }
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
            let mut limited = (&mut self.file).take(READ_SIZE as u64);
            if limited.read_to_end(&mut self.buffer)? == 0 {
                return Ok(None);
            }
        }
    }

    fn decode(&mut self) -> io::Result<Option<proto::Progress>> {
        let bytes = self.buffer.get(self.consumed..).unwrap_or_default();
        let mut rest = bytes;
        // A length prefix has up to ten bytes, so a shorter buffer can contain only a part of the prefix.
        let length = match prost::decode_length_delimiter(&mut rest) {
            Ok(length) => length,
            Err(_) if bytes.len() < 10 => return Ok(None),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        if length > MAX_MESSAGE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "message exceeds the size limit"));
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let progress =
            proto::Progress::decode(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.consumed += bytes.len() - rest.len() + length;
        Ok(Some(progress))
    }
}
