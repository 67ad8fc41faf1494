//! The transcript of an operation contains the CLI output, the engine events and the changed resources, without
//! secrets. The controller reads the transcript after the operation.
//!
//! Each part has a limited size. If a part exceeds its size limit, the transcript contains only the beginning and the
//! end of the part. A marker between the beginning and the end contains the number of omitted bytes. The end usually
//! contains the errors and the summary. During the operation, the beginning is in a file, and the end is in memory. The
//! end is therefore lost if the agent restarts.

mod event;

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::durable;
use super::redactor::Redactor;
use crate::pulumi::events::ResourceStep;
use crate::rpc::proto::TranscriptPart;
use crate::rpc::transcript::{MAX_CHUNK, limit};

const PREFIX: &str = "transcript-";

/// Transcript of an operation. A write error never stops the operation, but the transcript then lacks the rest of the
/// part.
#[derive(Debug)]
pub struct Transcript {
    directory: PathBuf,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    output: Part,
    events: Part,
    steps: Part,
}

/// Changed resource, without property values.
#[derive(Serialize)]
struct StepLine<'a> {
    operation: &'a str,
    urn: &'a str,
    #[serde(rename = "type")]
    resource_type: &'a str,
    failed: bool,
    /// Paths of the changed properties.
    properties: Vec<String>,
}

impl Transcript {
    /// Returns the transcript in the directory of an operation. The transcript creates each file when the file is first
    /// needed.
    pub fn new(directory: &Path) -> Self {
        let part = |part| Part::new(path(directory, part), part);
        let parts = Parts {
            output: part(TranscriptPart::Output),
            events: part(TranscriptPart::Events),
            steps: part(TranscriptPart::Steps),
        };
        Transcript { directory: directory.to_owned(), parts: Mutex::new(parts) }
    }

    /// Adds a line of the output. The line must not contain colors or secrets.
    pub fn add_output(&self, line: &str) {
        self.parts().output.add(line.as_bytes());
    }

    /// Redacts the secrets in a line of the event log, and adds the line.
    pub fn add_event(&self, line: &[u8], redactor: &Redactor) {
        let event = event::redacted(line, redactor);
        self.parts().events.add(event.as_bytes());
    }

    /// Adds an operation on a resource if the operation changes the resource or has failed.
    pub fn add_step(&self, step: &ResourceStep, failed: bool, redactor: &Redactor) {
        if !failed && !is_change(step) {
            return;
        }
        let properties = step.properties.iter().flatten().map(|path| redactor.redact(path)).collect();
        // The program chooses the name of a resource, so the URN and the type can contain a secret.
        let (urn, resource_type) = (redactor.redact(&step.urn), redactor.redact(&step.resource_type));
        let (operation, urn, resource_type) = (&*step.operation, &*urn, &*resource_type);
        let line = StepLine { operation, urn, resource_type, failed, properties };
        self.parts().steps.add(serde_json::to_string(&line).unwrap_or_default().as_bytes());
    }

    /// Compresses the parts when the operation is complete. A second call has no effect.
    pub fn finish(&self) -> io::Result<()> {
        let mut parts = self.parts();
        let Parts { output, events, steps } = &mut *parts;
        // An error that affects one part does not affect the other parts.
        [output, events, steps].map(Part::finish).into_iter().collect()
    }

    /// Returns a part's compressed bytes, starting at an offset, and the total size of the compressed part. The size is
    /// 0 if the part has no content.
    pub fn read(&self, part: TranscriptPart, offset: u64) -> io::Result<(Vec<u8>, u64)> {
        let mut file = match File::open(compressed(&path(&self.directory, part))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
            file => file?,
        };
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(offset.min(size)))?;
        let mut chunk = Vec::new();
        file.take(MAX_CHUNK as u64).read_to_end(&mut chunk)?;
        Ok((chunk, size))
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether an engine operation changes a resource. For a refresh, the function returns whether the operation
/// changes the state of the resource.
fn is_change(step: &ResourceStep) -> bool {
    match step.operation.as_str() {
        "same" | "read" => false,
        "refresh" => step.properties.as_ref().is_some_and(|properties| !properties.is_empty()),
        _ => true,
    }
}

fn path(directory: &Path, part: TranscriptPart) -> PathBuf {
    let name = match part {
        TranscriptPart::Output => "output",
        TranscriptPart::Events => "events",
        TranscriptPart::Steps => "steps",
        TranscriptPart::Unspecified => "unspecified",
    };
    directory.join(format!("{PREFIX}{name}"))
}

/// Returns the path of the compressed file.
fn compressed(path: &Path) -> PathBuf {
    path.with_extension("gz")
}

/// A part during the operation.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    /// Maximum size of the beginning, and maximum size of the end, in bytes.
    half: usize,
    file: Option<File>,
    /// Size of the beginning in bytes.
    written: usize,
    /// Whether the beginning is full, because a line did not fit. All later lines belong to the end.
    is_full: bool,
    end: VecDeque<Vec<u8>>,
    end_size: usize,
    /// Number of omitted bytes, which are part of neither the beginning nor the end.
    omitted: u64,
}

impl Part {
    fn new(path: PathBuf, part: TranscriptPart) -> Self {
        // The limit includes the marker.
        let half = limit(part) / 2 - 128;
        let (file, end, written, end_size) = (None, VecDeque::new(), 0, 0);
        Part { path, half, file, written, is_full: false, end, end_size, omitted: 0 }
    }

    fn add(&mut self, line: &[u8]) {
        let size = line.len() + 1;
        if !self.is_full && self.written + size <= self.half {
            match self.write(line) {
                Ok(()) => self.written += size,
                // The beginning ends here, because the file may contain an incomplete line.
                Err(_) => (self.is_full, self.omitted) = (true, self.omitted + size as u64),
            }
            return;
        }
        self.is_full = true;
        if size > self.half {
            self.omitted += size as u64;
            return;
        }
        self.end.push_back(line.to_vec());
        self.end_size += size;
        while self.end_size > self.half {
            let Some(oldest) = self.end.pop_front() else { break };
            self.end_size -= oldest.len() + 1;
            self.omitted += oldest.len() as u64 + 1;
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(&[line, b"\n"].concat())
    }

    /// Writes the compressed file, and then removes the file that contains the beginning.
    fn finish(&mut self) -> io::Result<()> {
        self.file = None;
        // A previous agent may have written the compressed file without removing the beginning. The compressed file is
        // complete, but the end is no longer in memory.
        if compressed(&self.path).exists() {
            return durable::remove(&self.path);
        }
        let (end, omitted) = (std::mem::take(&mut self.end), std::mem::take(&mut self.omitted));
        let beginning = match std::fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            beginning => beginning?,
        };
        if beginning.is_empty() && end.is_empty() {
            return Ok(());
        }
        // The controller is waiting for the result, so a fast compression is more important than a small file.
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&beginning)?;
        if omitted > 0 {
            encoder.write_all(mark(&self.path, omitted).as_bytes())?;
        }
        for line in end {
            encoder.write_all(&line)?;
            encoder.write_all(b"\n")?;
        }
        durable::write_atomically(&compressed(&self.path), &encoder.finish()?)?;
        durable::remove(&self.path)
    }
}

/// Returns the line that replaces the omitted bytes. In a part with JSON lines, this line is a JSON object.
fn mark(path: &Path, omitted: u64) -> String {
    match path.ends_with(format!("{PREFIX}output")) {
        true => format!("[{omitted} bytes omitted]\n"),
        false => format!("{{\"omittedBytes\":{omitted}}}\n"),
    }
}

#[cfg(test)]
mod tests;
