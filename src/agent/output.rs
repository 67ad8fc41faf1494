//! Copies the CLI output to the pod log, keeps the last lines for messages, and reads the event log.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};

use super::redactor::Redactor;
use super::transcript::Transcript;
use crate::pulumi::console;
use crate::pulumi::events::{EngineEvent, EventError, LineSplitter};
use crate::pulumi::failure::plan;

/// Maximum length of a line in bytes. The agent splits longer lines.
const MAX_LINE: usize = 64 * 1024;
/// Maximum size of the output that a [`Tail`] keeps, in bytes.
const TAIL: usize = 64 * 1024;
const READ_SIZE: usize = 64 * 1024;
/// Text that replaces the rest of an output if this rest can contain secrets.
const HIDDEN: &str = " (the rest of the output is hidden, because it can contain secrets)";

/// Format of the lines in the pod log.
#[derive(Clone)]
pub struct PodLog {
    /// Prefix of each line: the name of the Update.
    pub name: String,
    pub redactor: Redactor,
    /// Transcript to which the agent also adds each line, or `None` outside of a run.
    pub transcript: Option<Arc<Transcript>>,
}

/// Last lines of an output, without colors and secrets.
#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<Line>,
    length: usize,
}

#[derive(Debug)]
struct Line {
    text: String,
    read: Instant,
}

impl Tail {
    fn push(&mut self, text: String) {
        self.length += text.len() + 1;
        self.lines.push_back(Line { text, read: Instant::now() });
        while self.length > TAIL {
            let Some(old) = self.lines.pop_front() else { break };
            self.length -= old.text.len() + 1;
        }
    }

    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect()
    }

    /// Returns the last `count` lines, without blank lines.
    pub fn last_lines(&self, count: usize) -> String {
        last_lines([self], count)
    }
}

/// Returns the last `count` lines of all outputs, in the order in which the agent read the lines. The result omits
/// blank lines and lines about the plan file.
pub fn last_lines<'a>(tails: impl IntoIterator<Item = &'a Tail>, count: usize) -> String {
    let is_useful = |line: &&Line| !line.text.trim().is_empty() && !console::is_about_plan_file(&line.text);
    let lines = tails.into_iter().flat_map(|tail| &tail.lines).filter(is_useful);
    let mut lines: Vec<&Line> = lines.collect();
    lines.sort_by_key(|line| line.read);
    let last = lines.get(lines.len().saturating_sub(count)..).unwrap_or_default();
    last.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// Copies an output to the pod log until the output ends, and calls `see` with each line. A read error ends the output.
pub async fn copy(output: impl AsyncRead + Unpin, log: PodLog, see: impl FnMut(&str)) -> Tail {
    copy_to(output, log, tokio::io::stdout(), see).await
}

async fn copy_to(
    output: impl AsyncRead + Unpin,
    log: PodLog,
    to: impl AsyncWrite + Unpin,
    mut see: impl FnMut(&str),
) -> Tail {
    let mut reader = BufReader::with_capacity(MAX_LINE, output);
    let mut to = BufWriter::with_capacity(MAX_LINE, to);
    let mut tail = Tail::default();
    let mut line = Vec::new();
    let mut hides_rest = false;
    loop {
        let end = read_line(&mut reader, &mut line).await;
        if end == End::Output && line.is_empty() {
            break;
        }
        // A secret can span two pieces of a long line. The agent therefore carries over bytes that may be the start of
        // a secret to the next piece.
        let printable_len = if end == End::Piece { log.redactor.printable_len(&line) } else { line.len() };
        let printable_len = if printable_len == 0 { line.len() } else { printable_len };
        let text = String::from_utf8_lossy(line.get(..printable_len).unwrap_or_default());
        see(&text);
        if hides_rest {
            line.drain(..printable_len);
            continue;
        }
        let (mut printed, mut kept) = without_secrets(&text, &log.redactor);
        if log.redactor.has_plan_values() && has_open_value(&text) {
            hides_rest = true;
            [&mut printed, &mut kept].into_iter().for_each(|line| line.push_str(HIDDEN));
        }
        let printed = format!("{}: {printed}\n", log.name);
        // Ignores write errors, because they must not stop the run.
        let _ = to.write_all(printed.as_bytes()).await;
        // Flushes all available lines together, because a flush of each line would slow down a program that prints
        // millions of lines.
        if !reader.buffer().contains(&b'\n') {
            let _ = to.flush().await;
        }
        if let Some(transcript) = &log.transcript {
            transcript.add_output(&kept);
        }
        tail.push(kept);
        line.drain(..printable_len);
    }
    let _ = to.flush().await;
    tail
}

/// Returns whether a line contains the start of a value that deviates from a plan, but not the end of the value. The
/// CLI prints such a value in plain text even if the value is secret, and does not mark where the value ends.
fn has_open_value(line: &str) -> bool {
    !plan::without_values(&console::without_colors(line)).1
}

/// Returns a redacted line in two forms: with colors for the log, and without colors for [`Tail`]. If color codes split
/// a secret, both forms are without colors.
fn without_secrets(line: &str, redactor: &Redactor) -> (String, String) {
    let printed = redactor.redact(line);
    if !line.contains(['\u{1b}', '<']) {
        return (printed.clone(), printed);
    }
    let kept = redactor.redact(&console::without_colors(line));
    if console::without_colors(&printed) == kept { (printed, kept) } else { (kept.clone(), kept) }
}

/// Reason why a read has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Line,
    /// The line exceeds the maximum length.
    Piece,
    Output,
}

/// Reads until the end of the line, the end of the output, or the maximum length of a line.
async fn read_line(reader: &mut BufReader<impl AsyncRead + Unpin>, line: &mut Vec<u8>) -> End {
    loop {
        let Ok(bytes) = reader.fill_buf().await else { return End::Output };
        if bytes.is_empty() {
            return End::Output;
        }
        let capacity = MAX_LINE.saturating_sub(line.len()).min(bytes.len());
        let usable = bytes.get(..capacity).unwrap_or_default();
        if let Some(end) = usable.iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(usable.get(..end).unwrap_or_default());
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            reader.consume(end + 1);
            return End::Line;
        }
        line.extend_from_slice(usable);
        let used = usable.len();
        reader.consume(used);
        if line.len() >= MAX_LINE {
            return End::Piece;
        }
    }
}

/// Reader for the event log, which is a file that the CLI creates.
pub struct EventLog {
    path: PathBuf,
    file: Option<File>,
    splitter: LineSplitter,
    buffer: Vec<u8>,
    malformed: usize,
    redactor: Redactor,
    transcript: Arc<Transcript>,
}

impl EventLog {
    /// Creates a reader. The reader redacts all messages with `redactor`, and adds the redacted events to the
    /// transcript.
    pub fn new(path: PathBuf, redactor: Redactor, transcript: Arc<Transcript>) -> Self {
        let (splitter, buffer) = (LineSplitter::default(), vec![0; READ_SIZE]);
        EventLog { path, file: None, splitter, buffer, malformed: 0, redactor, transcript }
    }

    /// Returns the events from the next chunk of the file, or an empty list if the file contains no new events.
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
                if let Ok(line) = &line {
                    self.transcript.add_event(line, &self.redactor);
                }
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

/// Logs only the first malformed line. A tenant's program can write to the event log, and could otherwise flood the pod
/// log.
fn warn_once(malformed: &mut usize, error: &EventError) {
    if *malformed == 0 {
        tracing::warn!(%error, "ignoring malformed lines of the event log");
    }
    *malformed += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies `output`, and returns the lines that `see` receives, the printed output and the kept lines.
    async fn lines_of(output: &[u8]) -> (Vec<String>, String, Tail) {
        let log = PodLog { name: "update".into(), redactor: Redactor::new(["hunter22"]), transcript: None };
        let mut seen = Vec::new();
        let mut printed = Vec::new();
        let tail = copy_to(output, log, &mut printed, |line| seen.push(line.to_owned())).await;
        (seen, String::from_utf8(printed).unwrap(), tail)
    }

    #[test]
    fn the_event_log_is_read_from_the_start_after_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let parent = directory.path().join("parent");
        std::fs::write(&parent, "").unwrap();
        let transcript = Arc::new(Transcript::new(directory.path()));
        let mut log = EventLog::new(parent.join("events"), Redactor::default(), transcript);
        assert!(log.read().is_err(), "the parent is not a directory");
        std::fs::remove_file(&parent).unwrap();
        assert!(log.read().unwrap().is_empty(), "the file does not exist yet");
        std::fs::create_dir(&parent).unwrap();
        std::fs::write(parent.join("events"), "{\"cancelEvent\":{}}\n").unwrap();
        assert_eq!(log.read().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn output_lines_are_parsed_verbatim_but_stored_redacted() {
        let (seen, printed, tail) = lines_of(b"one\r\n\nkey hunter22\nno end").await;
        assert_eq!(seen, ["one", "", "key hunter22", "no end"]);
        assert_eq!(printed, "update: one\nupdate: \nupdate: key [secret]\nupdate: no end\n");
        assert_eq!(tail.text(), "one\n\nkey [secret]\nno end\n");
        assert_eq!(tail.last_lines(2), "key [secret]\nno end");
    }

    #[tokio::test]
    async fn the_transcript_contains_the_lines_without_colors_and_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let transcript = Arc::new(Transcript::new(directory.path()));
        let redactor = Redactor::new(["hunter22"]);
        let log = PodLog { name: "update".into(), redactor, transcript: Some(transcript) };
        copy_to(b"\x1b[31mred\x1b[0m\nkey hunter22\n".as_slice(), log, Vec::new(), |_| {}).await;
        let text = std::fs::read_to_string(directory.path().join("transcript-output")).unwrap();
        assert_eq!(text, "red\nkey [secret]\n");
    }

    #[tokio::test]
    async fn values_that_deviate_from_a_plan_are_hidden() {
        let one = "error: resource urn violates plan: properties changed: ~~key[{&{{old]}]}}!={&{{new}}}], =+size[{1}]";
        let open = "error: resource urn violates plan: properties changed: ~~key[{&{{-----BEGIN\ninner\n}}}]\n\ninner";
        for (output, expected) in [
            (one, "error: resource urn violates plan: properties changed: ~~key"),
            (&one.replace("old]}]", "old}"), "error: resource urn violates plan: properties changed: ~~key, =+size"),
            (open, "error: resource urn violates plan: properties changed: ~~key"),
        ] {
            let redactor = Redactor::default().without_plan_values();
            let log = PodLog { name: "update".into(), redactor, transcript: None };
            let mut printed = Vec::new();
            let tail = copy_to(output.as_bytes(), log, &mut printed, |_| {}).await;
            let text = tail.text();
            assert!(text.starts_with(expected), "{text}");
            assert!(!text.contains("old") && !text.contains("inner") && !text.contains("BEGIN"), "{text}");
            assert_eq!(String::from_utf8(printed).unwrap(), format!("update: {text}"));
        }
        let log = PodLog { name: "update".into(), redactor: Redactor::default(), transcript: None };
        let tail = copy_to(open.as_bytes(), log, Vec::new(), |_| {}).await;
        assert!(tail.text().contains("inner"), "a run without a plan prints no such values");
    }

    #[tokio::test]
    async fn a_secret_split_across_line_chunks_is_redacted() {
        for before in (MAX_LINE - 9)..=MAX_LINE {
            let output = format!("{}hunter22{}\nlast hunter22", "x".repeat(before), "y".repeat(MAX_LINE));
            let (_, printed, tail) = lines_of(output.as_bytes()).await;
            let together = |text: &str| text.replace("\nupdate: ", "").replace('\n', "");
            assert!(together(&printed).contains("x[secret]y"), "{before}");
            assert!(
                !together(&printed).contains("hunter22") && !together(&tail.text()).contains("hunter22"),
                "{before}"
            );
            assert!(tail.text().ends_with("last [secret]\n"));
        }
    }

    #[tokio::test]
    async fn colors_are_printed_but_not_stored_and_do_not_prevent_redaction() {
        let (_, printed, tail) = lines_of(b"\x1b[31mred\x1b[0m\n\x1b[31mhunt\x1b[1mer22").await;
        assert_eq!(printed, "update: \u{1b}[31mred\u{1b}[0m\nupdate: [secret]\n");
        assert_eq!(tail.text(), "red\n[secret]\n");
    }

    #[tokio::test]
    async fn the_last_lines_of_two_outputs_are_in_the_order_they_were_read() {
        let line = |text: &str, read| Line { text: text.to_owned(), read };
        let start = Instant::now();
        let at = |seconds| start + std::time::Duration::from_secs(seconds);
        let tail = |lines: Vec<Line>| Tail { lines: lines.into(), length: 0 };
        let out = tail(vec![line("one", at(1)), line("three", at(3))]);
        let plan = line("Update plan written to '/share/plan.json'", at(5));
        let err = tail(vec![line("two", at(2)), line(" ", at(4)), plan]);
        assert_eq!(last_lines([&out, &err], 2), "two\nthree");
    }

    #[tokio::test]
    async fn stored_output_is_bounded_even_without_line_breaks() {
        let mut output = vec![b'x'; MAX_LINE * 3];
        output.extend(b"\nlast\n");
        let (seen, _, tail) = lines_of(&output).await;
        assert!(seen.iter().all(|line| line.len() <= MAX_LINE));
        assert!(tail.text().len() <= TAIL);
        assert!(tail.text().ends_with("last\n"));
    }
}
