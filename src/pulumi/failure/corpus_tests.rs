//! Tests the failure messages against the recorded failures in `tests/failure_corpus`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::*;
use crate::pulumi::arguments;
use crate::pulumi::cli::engine_environment;
use crate::pulumi::run_summary::summary_of;

/// Minimum number of recordings per language.
const MIN_RECORDINGS: usize = 20;
/// Maximum length of the first line, in bytes. A longer line would make the tables that `kubectl` prints unreadable.
const MAX_HEADLINE: usize = 300;
const MAX_LINES: usize = 40;

#[derive(Deserialize)]
struct Recording {
    command: String,
    exit_code: i32,
    stdout: String,
    stderr: String,
    events: Vec<Value>,
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/failure_corpus")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all recordings with the expected first lines of their messages. The key is `LANGUAGE/NAME`.
fn recordings() -> BTreeMap<String, (Recording, String)> {
    let directories = |path: &Path| {
        let entries = std::fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let programs = directories(&corpus()).into_iter().flat_map(|language| directories(&language));
    let recorded = programs.filter(|program| program.join("recording.json").exists());
    recorded
        .map(|program| {
            let name = program.strip_prefix(corpus()).expect("a path in the corpus").display().to_string();
            let recording = serde_json::from_str(&read(&program.join("recording.json"))).expect("a recording");
            (name, (recording, read(&program.join("expected.txt")).trim().to_owned()))
        })
        .collect()
}

impl Recording {
    fn message(&self) -> String {
        if self.command == "install" {
            return installation::message(&self.stdout, &self.stderr);
        }
        let log: String = self.events.iter().map(|event| format!("{event}\n")).collect();
        let exit = Exit { code: Some(self.exit_code), signal: None };
        classify(exit, &self.stdout, &self.stderr, &summary_of(&log)).message
    }
}

/// Splits `FILE line N: CAUSE` into the location and the cause. The location is empty if the line contains none.
fn split(expected: &str) -> (&str, &str) {
    let is_location = |location: &str| {
        location
            .rsplit_once(" line ")
            .is_some_and(|(file, line)| !file.contains(char::is_whitespace) && line.parse::<u32>().is_ok())
    };
    expected.split_once(": ").filter(|(location, _)| is_location(location)).unwrap_or(("", expected))
}

#[test]
fn each_recorded_failure_message_starts_with_location_and_cause() {
    let recordings = recordings();
    let mut wrong = Vec::new();
    for (name, (recording, expected)) in &recordings {
        let message = recording.message();
        let headline = message.lines().next().unwrap_or_default();
        let ((location, cause), found) = (split(expected), split(headline));
        if location != found.0 || !found.1.contains(cause) || headline.len() > MAX_HEADLINE {
            wrong.push(format!("{name}\n  expected {expected}\n  found    {headline}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), recordings.len(), wrong.join("\n"));
    for language in ["typescript", "python", "go"] {
        let count = recordings.keys().filter(|name| name.starts_with(language)).count();
        assert!(count >= MIN_RECORDINGS, "{language}: {count}");
    }
}

#[test]
fn recorded_failure_messages_omit_frames_progress_bars_and_repeats() {
    let libraries = ["site-packages", "node_modules/", "node:", "@v3.259.0/", "<frozen", "/usr/"];
    let frames = ["    at ", "  File \"", "\t/"];
    for (name, (recording, _)) in recordings() {
        let message = recording.message();
        let lines: Vec<&str> = message.lines().collect();
        assert!(lines.len() <= MAX_LINES, "{name}: {} lines:\n{message}", lines.len());
        for (position, line) in lines.iter().enumerate() {
            let is_frame = frames.iter().any(|frame| line.starts_with(frame));
            let is_library = is_frame && libraries.iter().any(|library| line.contains(library));
            assert!(!is_library && !line.contains('━'), "{name}: {line}\n{message}");
            let is_repeated =
                recording.command == "install" && lines.iter().skip(position + 1).any(|other| other == line);
            assert!(!is_repeated, "{name}: {line}\n{message}");
        }
    }
}

/// The script must run the CLI with the same arguments and environment variables as the agent.
#[test]
fn the_recording_script_runs_the_cli_as_the_agent_does() {
    let script = read(&corpus().join("record"));
    let operation = arguments::Operation {
        kind: arguments::OperationKind::Up,
        stack: "$stack",
        event_log: Path::new("/share/events.jsonl"),
        refresh: false,
        message: None,
        plan: None,
        save_plan: None,
        options: arguments::Options::default(),
    };
    let mut used: Vec<_> = arguments::arguments(&operation);
    used.extend(arguments::install());
    let variables = engine_environment(Path::new("/share/home"), "pulumi");
    used.extend(variables.into_iter().map(|(name, value)| format!("{}={}", name.display(), value.display()).into()));
    for word in used {
        let word = word.to_string_lossy();
        let word = if word.starts_with("--exec-agent=") { "--exec-agent=pulumi-controller/" } else { &*word };
        assert!(script.contains(word), "{word}");
    }
}
