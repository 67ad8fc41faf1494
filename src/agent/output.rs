//! What the CLI prints: copied to the pod's log line by line as it comes, and its last part kept for messages.

use std::collections::VecDeque;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};

use super::redactor::Redactor;

/// Longer lines are cut into several.
const LONGEST_LINE: usize = 64 * 1024;
/// How much of the last output is kept, in bytes.
const TAIL: usize = 64 * 1024;

/// How lines reach the pod's log.
#[derive(Clone)]
pub struct PodLog {
    /// Stands before each line: the name of the Update.
    pub name: String,
    pub redactor: Redactor,
}

/// The last lines of an output, with secrets taken out.
#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    length: usize,
}

impl Tail {
    fn push(&mut self, line: String) {
        self.length += line.len() + 1;
        self.lines.push_back(line);
        while self.length > TAIL {
            let Some(old) = self.lines.pop_front() else { break };
            self.length -= old.len() + 1;
        }
    }

    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }

    /// The last `count` lines that say anything.
    pub fn last_lines(&self, count: usize) -> String {
        let said: Vec<&str> = self.lines.iter().map(String::as_str).filter(|line| !line.trim().is_empty()).collect();
        said.get(said.len().saturating_sub(count)..).unwrap_or_default().join("\n")
    }
}

/// Copies an output to the pod's log until it ends, and shows each line to `see`. An error of reading is an end.
pub async fn copy(output: impl AsyncRead + Unpin, log: PodLog, see: impl FnMut(&str)) -> Tail {
    copy_to(output, log, tokio::io::stdout(), see).await
}

async fn copy_to(
    output: impl AsyncRead + Unpin,
    log: PodLog,
    to: impl AsyncWrite + Unpin,
    mut see: impl FnMut(&str),
) -> Tail {
    let mut reader = BufReader::with_capacity(LONGEST_LINE, output);
    let mut to = BufWriter::with_capacity(LONGEST_LINE, to);
    let mut tail = Tail::default();
    let mut line = Vec::new();
    while read_line(&mut reader, &mut line).await {
        let text = String::from_utf8_lossy(&line);
        see(&text);
        let text = log.redactor.redact(&text);
        let printed = format!("{}: {text}\n", log.name);
        // A log that cannot be written to must not stop the run.
        let _ = to.write_all(printed.as_bytes()).await;
        // One write for all lines that are there: a program that prints millions is not to wait for each of them.
        if !reader.buffer().contains(&b'\n') {
            let _ = to.flush().await;
        }
        tail.push(text);
        line.clear();
    }
    let _ = to.flush().await;
    tail
}

/// Reads up to the end of a line, or as much of it as is allowed. False at the end of the output.
async fn read_line(reader: &mut BufReader<impl AsyncRead + Unpin>, line: &mut Vec<u8>) -> bool {
    loop {
        let Ok(bytes) = reader.fill_buf().await else { return !line.is_empty() };
        if bytes.is_empty() {
            return !line.is_empty();
        }
        let room = LONGEST_LINE.saturating_sub(line.len()).min(bytes.len());
        let usable = bytes.get(..room).unwrap_or_default();
        if let Some(end) = usable.iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(usable.get(..end).unwrap_or_default());
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            reader.consume(end + 1);
            return true;
        }
        line.extend_from_slice(usable);
        let used = usable.len();
        reader.consume(used);
        if line.len() >= LONGEST_LINE {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen, what is printed and what is kept of an output.
    async fn lines_of(output: &[u8]) -> (Vec<String>, String, Tail) {
        let log = PodLog { name: "update".into(), redactor: Redactor::new(["hunter22"]) };
        let mut seen = Vec::new();
        let mut printed = Vec::new();
        let tail = copy_to(output, log, &mut printed, |line| seen.push(line.to_owned())).await;
        (seen, String::from_utf8(printed).unwrap(), tail)
    }

    #[tokio::test]
    async fn lines_are_seen_as_they_are_and_kept_without_secrets() {
        let (seen, printed, tail) = lines_of(b"one\r\n\nkey hunter22\nno end").await;
        assert_eq!(seen, ["one", "", "key hunter22", "no end"]);
        assert_eq!(printed, "update: one\nupdate: \nupdate: key [secret]\nupdate: no end\n");
        assert_eq!(tail.text(), "one\n\nkey [secret]\nno end\n");
        assert_eq!(tail.last_lines(2), "key [secret]\nno end");
    }

    #[tokio::test]
    async fn a_line_without_end_and_an_endless_output_are_bounded() {
        let mut output = vec![b'x'; LONGEST_LINE * 3];
        output.extend(b"\nlast\n");
        let (seen, _, tail) = lines_of(&output).await;
        assert!(seen.iter().all(|line| line.len() <= LONGEST_LINE));
        assert!(tail.text().len() <= TAIL);
        assert!(tail.text().ends_with("last\n"));
    }
}
