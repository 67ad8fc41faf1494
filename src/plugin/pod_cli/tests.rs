#![cfg(unix)]

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

/// Runs a command that uses the script `cli` as the Pulumi CLI and the directory `share` as the share volume.
fn run(share: &Path, cli: &str, command: &PodCommand, input: &[u8]) -> Output {
    let program = share.join("bin/pulumi");
    std::fs::create_dir_all(share.join("bin")).unwrap();
    std::fs::create_dir_all(share.join("workspace")).unwrap();
    std::fs::write(&program, format!("#!/bin/sh\n{cli}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = command.words(share.to_str().unwrap(), Duration::from_secs(60), input.len());
    let path = format!("{}:{}", share.join("bin").display(), std::env::var("PATH").unwrap());
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The test keeps stdin open, like a connection to an older API server.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_call_has_the_arguments_the_input_and_the_directory_of_the_project() {
    let share = tempfile::tempdir().unwrap();
    let arguments = ["stack", "import", "--", "a b'$(exit)"].map(str::to_owned);
    let command = PodCommand::call(&arguments);
    let cli = "for word; do echo \"<$word>\"; done; basename \"$PWD\"; cat; exit 7";
    let output = run(share.path(), cli, &command, b"state");
    assert_eq!(text(&output.stdout), "<stack>\n<import>\n<-->\n<a b'$(exit)>\nworkspace\nstate");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let output = run(share.path(), "cat; exit 0", &command, b"");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("", Some(0)), "without an input");
}

#[test]
fn a_missing_file_of_the_project_is_empty() {
    let share = tempfile::tempdir().unwrap();
    let command = PodCommand::read("Pulumi.dev.yaml");
    assert_eq!(text(&run(share.path(), "", &command, b"").stdout), "");
    std::fs::write(share.path().join("workspace/Pulumi.dev.yaml"), "config: {}\n").unwrap();
    let output = run(share.path(), "", &command, b"");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("config: {}\n", Some(0)));
}

#[test]
fn missing_records_of_the_agent_are_empty() {
    let share = tempfile::tempdir().unwrap();
    let command = PodCommand::records();
    let output = run(share.path(), "", &command, b"");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("", Some(0)));
    std::fs::create_dir_all(share.path().join("settings")).unwrap();
    std::fs::write(share.path().join("source.json"), "{\"tree\":\"a\"}").unwrap();
    std::fs::write(share.path().join("settings/written.json"), "{\"stack\":\"dev\"}").unwrap();
    assert_eq!(text(&run(share.path(), "", &command, b"").stdout), "{\"tree\":\"a\"}{\"stack\":\"dev\"}");
}

/// Script that imitates the CLI: it writes a preview event log, and prints its arguments and its project.
const PREVIEWING: &str = r#"echo "$1 in ${PWD##*/}"
[ "$1" != preview ] || echo '{"summaryEvent":{"resourceChanges":{"create":1}}}' >"${2#--event-log=}"
cat "$PWD/Pulumi.yaml""#;

#[test]
fn a_preview_of_an_archive_leaves_no_files_and_reports_the_summary() {
    let share = tempfile::tempdir().unwrap();
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut header = tar::Header::new_gnu();
    header.set_size(12);
    header.set_mode(0o644);
    archive.append_data(&mut header, "infra/Pulumi.yaml", &b"name: local\n"[..]).unwrap();
    let archive = archive.into_inner().unwrap().finish().unwrap();
    let command = PodCommand::preview("mark ", "infra", true, &["--stack=dev".to_owned()]);
    let output = run(share.path(), PREVIEWING, &command, &archive);
    assert_eq!(text(&output.stdout), "preview in infra\nname: local\n");
    let expected = "mark {\"summaryEvent\":{\"resourceChanges\":{\"create\":1}}}\n";
    assert_eq!(text(&output.stderr), format!("install in infra\nname: local\n{expected}"));
    assert_eq!(output.status.code(), Some(0));
    let command = PodCommand::preview("mark ", "infra", false, &[]);
    let output = run(share.path(), PREVIEWING, &command, &archive);
    assert_eq!(text(&output.stderr), expected, "a project without dependencies needs no installation");
    let mut entries: Vec<_> =
        std::fs::read_dir(share.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["bin", "workspace"], "the preview removes its directory");
}

#[test]
fn a_failed_preview_of_the_project_has_exit_code_1_and_no_summary() {
    let share = tempfile::tempdir().unwrap();
    let command = PodCommand::preview("mark ", ".", true, &[]);
    let output = run(share.path(), "basename \"$PWD\"; exit 255", &command, b"");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("workspace\n", Some(1)));
    assert_eq!(text(&output.stderr), "");
}
