//! Tests for the failures that the parent reports. The children are scripts that exit in different ways.
//! `tests/expressions.rs` and `tests/git` test the limits with the real binary.

use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

const LIMITS: Limits = Limits {
    memory: 64 << 20,
    address_space: 1 << 30,
    stack: 8 << 20,
    cpu: Duration::from_secs(1),
    nice: 0,
    wall: Duration::from_secs(20),
    file_size: 0,
    open_files: 16,
    threads: false,
    response: 1000,
};

/// Runs a script as the child.
async fn run(script: &str, input: &[u8], limits: &Limits) -> Result<String, String> {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("script");
    std::fs::write(&path, script).expect("written");
    let shell = Subprocess::of("/bin/sh".into());
    let response = shell.run(&path.display().to_string(), input, limits).await;
    response.map(|response| String::from_utf8(response).expect("text")).map_err(|failure| failure.to_string())
}

#[tokio::test]
async fn a_child_has_limits_and_an_empty_environment_and_reads_stdin() {
    assert!(std::env::vars().count() > 3, "the test process has environment variables");
    let script =
        r#"read -r limits; echo "$limits" | grep -c '"memory":67108864'; cat; env | grep -vE '^(PWD|_|OLDPWD|SHLVL)='"#;
    let script = format!("{script}; true");
    assert_eq!(run(&script, b"the input\n", &LIMITS).await.as_deref(), Ok("1\nthe input\n"));
}

#[tokio::test]
async fn the_error_of_a_failed_child_names_the_exceeded_limit() {
    let short = Limits { wall: Duration::from_millis(300), ..LIMITS };
    let rows = [
        ("kill -XCPU $$", LIMITS, "CPU time limit of 1 s exceeded"),
        ("kill -XFSZ $$", LIMITS, "file size limit of 0 bytes exceeded"),
        ("echo 'memory allocation of 9 bytes failed' >&2; kill -ABRT $$", LIMITS, "memory limit of 64Mi exceeded"),
        ("kill -ABRT $$", LIMITS, "exited without a response"),
        ("kill -KILL $$", LIMITS, "the process was killed"),
        ("printf '%01001d' 0", LIMITS, "response size limit of 1000 bytes exceeded"),
        ("yes", LIMITS, "response size limit of 1000 bytes exceeded"),
        ("echo one; echo '  two\n\nwords  ' >&2; exit 3", LIMITS, "(exit status: 3): two words"),
        ("exec sleep 100", short, "timed out after 0 s"),
        ("yes >&2", short, "timed out after 0 s"),
    ];
    for (script, limits, expected) in rows {
        let error = run(script, b"", &limits).await.expect_err(script);
        assert!(error.contains(expected), "{script}: {error}");
    }
    let missing = Subprocess::of("/no/such/program".into()).run("role", b"", &LIMITS).await;
    assert!(matches!(missing, Err(Failure::Start(_))), "{missing:?}");
}

#[tokio::test]
async fn a_child_that_does_not_read_its_input_can_respond() {
    let input = vec![b'x'; 4 << 20];
    assert_eq!(run("echo done", &input, &LIMITS).await.as_deref(), Ok("done\n"));
}

#[tokio::test]
async fn a_child_is_killed_when_its_future_is_dropped() {
    let directory = TempDir::new().expect("a directory");
    let (script, pid) = (directory.path().join("script"), directory.path().join("pid"));
    std::fs::write(&script, format!("echo $$ > {}.new; mv {0}.new {0}; exec sleep 1000", pid.display()))
        .expect("written");
    let (shell, role) = (Subprocess::of("/bin/sh".into()), script.display().to_string());
    let run = shell.run(&role, b"", &LIMITS);
    tokio::select! {
        ended = run => panic!("the child ended: {ended:?}"),
        () = until("the child is there", || pid.exists()) => {}
    }
    let pid = std::fs::read_to_string(&pid).expect("read");
    let process = Path::new("/proc").join(pid.trim());
    until("the child has ended", || !process.exists()).await;
}

async fn until(what: &str, mut predicate: impl FnMut() -> bool) {
    let began = Instant::now();
    while !predicate() {
        assert!(began.elapsed() < Duration::from_secs(20), "timed out after 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
