//! Tests malicious repositories, servers and Stacks. Each attack must fail with a specific message, must use a limited
//! amount of memory, and must not affect other repositories.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gix_hash::ObjectId;
use gix_object::Kind;
use pulumi_controller::source::git::{Limits, Lookup, MinRate};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::evil_server::{EvilServer, Pack, long_list, tree_entry};
use crate::follower::{Controller, origin};
use crate::http_server::Server;
use crate::repository::Repository;

/// Maximum growth of this process's memory during an attack, in bytes. The limit includes the memory that other tests
/// in the same process use.
const GROWTH: u64 = 256 << 20;

/// Returns this process's resident memory, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Polls the branch `main` of a malicious server. Returns the warnings or the error message.
async fn attack(evil: EvilServer) -> Result<Vec<String>, String> {
    let before = resident();
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": evil.start().await, "branch": "main"});
    let resolved = controller.resolve(&fields).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH, "the memory has grown by {grown} bytes");
    assert_eq!(controller.leftover_files(), Vec::<PathBuf>::new(), "temporary files are removed");
    resolved.map(|resolved| origin(&resolved).warnings.clone())
}

fn noise(bytes: usize) -> Vec<u8> {
    (0..u32::try_from(bytes / 4).unwrap()).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn submodules_count_as_entries() {
    let mut pack = Pack::new();
    let nothing = ObjectId::null(gix_hash::Kind::Sha1);
    let tree: Vec<u8> = (0..300_000).flat_map(|n| tree_entry("160000", &format!("module-{n:06}"), &nothing)).collect();
    let tree = pack.object(Kind::Tree, &tree).0;
    let commit = pack.commit(tree);
    let error = attack(EvilServer::with_main(commit, pack)).await.expect_err("should reject too many objects");
    assert!(error.contains("limit of 200000 entries exceeded"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_expand_to_billions_of_files_are_rejected() {
    let mut pack = Pack::new();
    let blob = pack.object(Kind::Blob, b"harm").0;
    let mut tree = pack.object(Kind::Tree, &tree_entry("100644", "f", &blob)).0;
    for _ in 0..10 {
        let entries: Vec<u8> = (0..10).flat_map(|n| tree_entry("40000", &format!("d{n}"), &tree)).collect();
        tree = pack.object(Kind::Tree, &entries).0;
    }
    let commit = pack.commit(tree);
    let error = attack(EvilServer::with_main(commit, pack)).await.expect_err("should reject too many objects");
    assert!(error.contains("limit of 200000 entries exceeded"), "{error}");
}

/// Returns a pack of about one megabyte. Chains of ten deltas expand the objects in the pack to gigabytes.
fn nested_deltas(last_objects: usize) -> (ObjectId, Pack) {
    let mut pack = Pack::new();
    let (id, mut place) = pack.object(Kind::Blob, &noise(1 << 20));
    for _ in 0..2 {
        place = pack.add_repetition(place, 10);
    }
    for _ in 0..7 {
        place = pack.add_repetition(place, 1);
    }
    for byte in 0..last_objects {
        pack.add_extension(place, u8::try_from(byte).unwrap());
    }
    let tree = pack.object(Kind::Tree, &tree_entry("100644", "f", &id)).0;
    (pack.commit(tree), pack)
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_chains_that_decode_to_gigabytes_are_rejected() {
    let (commit, pack) = nested_deltas(20);
    let began = Instant::now();
    let error = attack(EvilServer::with_main(commit, pack)).await.expect_err("should exceed the limit");
    assert!(error.contains("decoded size of the pack exceeds the limit"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(20), "the pack was rejected too late: {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_deltas_are_rejected_and_many_small_deltas_are_accepted() {
    for (size, expected) in [(4 << 20, Some("decoded size of the pack")), (1 << 10, None)] {
        let mut pack = Pack::new();
        let mut content = noise(size);
        let mut place = pack.object(Kind::Blob, &content).1;
        for n in 0..1000 {
            let byte = u8::try_from(n % 251).unwrap();
            place = pack.add_extension(place, byte);
            content.push(byte);
        }
        let id = gix_object::compute_hash(gix_hash::Kind::Sha1, Kind::Blob, &content).unwrap();
        let tree = pack.object(Kind::Tree, &tree_entry("100644", "f", &id)).0;
        let commit = pack.commit(tree);
        let message = attack(EvilServer::with_main(commit, pack)).await;
        match (expected, message) {
            (Some(expected), Err(message)) => assert!(message.contains(expected), "{message}"),
            (None, Ok(_)) => {}
            (_, message) => panic!("{size}: {message:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_uses_of_an_object_at_the_end_of_a_delta_chain_are_rejected() {
    let mut pack = Pack::new();
    let mut content = noise(64 << 10);
    let mut place = pack.object(Kind::Blob, &content).1;
    for n in 0..200_u8 {
        place = pack.add_extension(place, n);
        content.push(n);
    }
    let id = gix_object::compute_hash(gix_hash::Kind::Sha1, Kind::Blob, &content).unwrap();
    let files: Vec<u8> = (0..10_000).flat_map(|n| tree_entry("100644", &format!("f{n:05}"), &id)).collect();
    let tree = pack.object(Kind::Tree, &files).0;
    let commit = pack.commit(tree);
    let error = attack(EvilServer::with_main(commit, pack)).await.expect_err("should exceed the limit");
    assert!(error.contains("decoded size of the pack"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_do_not_fit_in_memory_are_rejected() {
    // Each base in a delta chain stays in memory while further deltas refer to the base.
    let mut pack = Pack::new();
    let (id, mut place) = pack.object(Kind::Blob, &noise(1 << 20));
    place = pack.add_repetition(place, 60);
    for _ in 0..9 {
        let next = pack.add_repetition(place, 1);
        pack.add_extension(place, 1);
        place = next;
    }
    let tree = pack.object(Kind::Tree, &tree_entry("100644", "f", &id)).0;
    let commit = pack.commit(tree);
    let error = attack(EvilServer::with_main(commit, pack)).await.expect_err("should exceed the limit");
    let words = ["decoded size of the pack", "of memory"];
    assert!(words.iter().any(|words| error.contains(words)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_that_declares_millions_of_objects_is_rejected() {
    let (commit, pack) = nested_deltas(0);
    let mut evil = EvilServer::with_main(commit, pack);
    evil.pack[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let error = attack(evil).await.expect_err("should reject a wrong number of objects");
    assert!(error.contains("repository has 4294967295 objects, which exceeds the limit of 2000000"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_references_is_read_up_to_the_size_limit() {
    for (bytes, expected) in [(31 << 20, None), (40 << 20, Some("list of references exceeds the limit"))] {
        let mut pack = Pack::new();
        let blob = pack.object(Kind::Blob, b"name: app\n").0;
        let tree = pack.object(Kind::Tree, &tree_entry("100644", "Pulumi.yaml", &blob)).0;
        let commit = pack.commit(tree);
        let evil = EvilServer { references: long_list(bytes, commit), ..EvilServer::with_main(commit, pack) };
        match (expected, attack(evil).await) {
            (Some(expected), Err(message)) => assert!(message.contains(expected), "{message}"),
            (None, Ok(_)) => {}
            (_, message) => panic!("{bytes}: {message:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn very_slow_servers_time_out_and_delay_no_other_namespace() {
    let min_rate = MinRate { bytes: 1 << 10, window: Duration::from_secs(3) };
    let limits = Limits { list_min_rate: min_rate, fetch_min_rate: min_rate, ..Limits::default() };
    let mut controller = Controller::with(limits).await;
    let mut slow = Vec::new();
    for (index, what) in ["advertisement", "references", "pack", "pack"].into_iter().enumerate() {
        let (commit, pack) = nested_deltas(0);
        let what: &'static [&'static str] = Box::leak(Box::new([what]));
        let url = EvilServer { slow: what, ..EvilServer::with_main(commit, pack) }.start().await;
        let (stack, fields) = (format!("slow-{index}"), json!({"projectRepo": url, "branch": "main"}));
        drop(controller.immediate_result(&stack, &fields, &Lookup::default()));
        slow.push((stack, fields));
    }
    let repository = Repository::with_project();
    for round in 0..5 {
        let server = Server::of(&repository).await;
        let start = Instant::now();
        let fields = json!({"projectRepo": server.url(), "branch": "main"});
        controller.resolve_in("victim", &format!("app-{round}"), &fields).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    }
    for (stack, fields) in slow {
        let error =
            controller.resolve_as(&stack, &fields, &Lookup::default()).await.expect_err("should reject a slow server");
        assert!(error.contains("server is too slow: it sent less than 1024 bytes in 3 s"), "{stack}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_fetches_of_other_namespaces_do_not_take_all_slots() {
    let mut controller = Controller::new().await;
    let mut slow = Vec::new();
    for namespace in ["one", "other", "one", "other"] {
        slow.push(slow_fetch(&mut controller, namespace, slow.len()).await);
    }
    until_in_use(&controller, 3).await;
    assert!(fetch_time(&mut controller, "victim").await < Duration::from_secs(5), "the reserved slot is free");
    let mut ended = BTreeSet::new();
    until_ended(&controller, &slow, &mut ended, 1).await;

    slow.push(slow_fetch(&mut controller, "third", slow.len()).await);
    until_in_use(&controller, 3).await;
    assert!(
        fetch_time(&mut controller, "last").await < Duration::from_secs(5),
        "the controller ends the fetch in the reserved slot"
    );
    until_ended(&controller, &slow, &mut ended, 2).await;
}

/// A Stack's namespace, name and source.
type StackSource = (&'static str, String, Value);

/// Starts a fetch from a server that sends one byte per second. Returns the Stack that triggered the fetch.
async fn slow_fetch(controller: &mut Controller, namespace: &'static str, index: usize) -> StackSource {
    let (commit, pack) = nested_deltas(0);
    let url = EvilServer { slow: &["pack"], ..EvilServer::with_main(commit, pack) }.start().await;
    let (stack, fields) = (format!("slow-{index}"), json!({"projectRepo": url, "branch": "main"}));
    let immediate_result =
        |controller: &Controller| controller.immediate_result_in(namespace, &stack, &fields, &Lookup::default());
    let error = immediate_result(controller).expect_err("should wait for the first query").to_string();
    controller.until_requeued(&stack, &error).await;
    assert!(
        immediate_result(controller)
            .expect_err("should wait for the fetch")
            .to_string()
            .starts_with("fetching revision")
    );
    (namespace, stack, fields)
}

async fn until_in_use(controller: &Controller, slots: usize) {
    let began = Instant::now();
    while controller.leftover_files().len() < slots {
        let used = controller.leftover_files();
        assert!(began.elapsed() < Duration::from_secs(20), "expected {slots} slots in use: {used:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Measures how long a fetch takes in a namespace that uses no slot. The server responds immediately.
async fn fetch_time(controller: &mut Controller, namespace: &str) -> Duration {
    let repository = Repository::with_project();
    let server = Server::of(&repository).await;
    let start = Instant::now();
    let fields = json!({"projectRepo": server.url(), "branch": "main"});
    controller.resolve_in(namespace, "app", &fields).await.unwrap();
    start.elapsed()
}

/// Waits until the controller has aborted `count` fetches because other namespaces wait for a slot. `ended` collects
/// the names of the affected Stacks, because the next fetch for a Stack clears its error.
async fn until_ended(controller: &Controller, slow: &[StackSource], ended: &mut BTreeSet<String>, count: usize) {
    let start = Instant::now();
    loop {
        let mut errors = Vec::new();
        for (namespace, stack, fields) in slow {
            let Err(error) = controller.immediate_result_in(namespace, stack, fields, &Lookup::default()) else {
                continue;
            };
            if error.to_string().contains("because other namespaces wait for a slot") {
                ended.insert(stack.clone());
            }
            errors.push(error.to_string());
        }
        if ended.len() >= count {
            return;
        }
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "expected {count} ended fetches, found {ended:?}: {errors:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_to_an_address_of_the_controller_is_opened() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let mut controller = Controller::with_addresses(Limits::default()).await;
        let fields = json!({"projectRepo": format!("http://{host}:{port}/app"), "branch": "main"});
        let error = controller.resolve(&fields).await.expect_err("should be rejected");
        assert!(error.contains("unspecified address, which is not allowed"), "{host}: {error}");
    }
    let requests = tokio::time::timeout(Duration::from_millis(1), listener.accept()).await;
    assert!(requests.is_err(), "the server received a connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_for_a_repository_stops_when_no_stack_uses_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fields = json!({"projectRepo": format!("http://{}/app", listener.local_addr().unwrap()), "branch": "main"});
    let controller = Controller::new().await;
    for stack in ["first", "last"] {
        drop(controller.immediate_result(stack, &fields, &Lookup::default()));
    }
    let accepted = tokio::time::timeout(Duration::from_secs(20), listener.accept()).await;
    let (mut stream, _) = accepted.expect("the controller connects to the server within 20 s").unwrap();
    let mut request = Vec::new();
    controller.git.forget(&("apps".to_owned(), "first".to_owned()));
    let closed = tokio::time::timeout(Duration::from_millis(500), stream.read_to_end(&mut request)).await;
    assert!(closed.is_err(), "another Stack still refers to the repository");
    controller.git.forget(&("apps".to_owned(), "last".to_owned()));
    // This timeout is shorter than the read timeout of 30 s.
    let closed = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut request)).await;
    assert!(closed.is_ok(), "the child process is still connected to the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn child_processes_have_no_environment_or_credentials_as_arguments() {
    let (commit, pack) = nested_deltas(0);
    let url = EvilServer { slow: &["references"], ..EvilServer::with_main(commit, pack) }.start().await;
    let controller = Controller::new().await;
    controller.secrets.set("git", &[("accessToken", "hunter2hunter2")]);
    let fields = json!({"projectRepo": url, "branch": "main", "gitAuthSecret": "git"});
    drop(controller.immediate_result("app", &fields, &Lookup::default()));
    let began = Instant::now();
    let child = loop {
        let is_ours = |child: &PathBuf| {
            std::fs::read_to_string(child.join("limits")).is_ok_and(|l| l.contains(&QUERY_MEMORY_LIMIT.to_string()))
        };
        if let Some(child) = children("git").into_iter().find(is_ours) {
            break child;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no child process with limits exists");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let read = |name: &str| String::from_utf8_lossy(&std::fs::read(child.join(name)).unwrap()).into_owned();
    assert_eq!(read("environ"), "");
    assert_eq!(read("cmdline").split('\0').skip(1).collect::<Vec<_>>(), ["git", ""]);
    assert_eq!(read("oom_score_adj").trim(), "1000");
}

/// Memory limit for the child process that handles a connection, in bytes. The test uses this limit to identify the
/// child processes in `/proc/PID/limits`.
const QUERY_MEMORY_LIMIT: u64 = 64 << 20;

/// Returns this process's child processes that have this role.
fn children(role: &str) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_child = |process: &PathBuf| {
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let command = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        parent == Some(std::process::id()) && command.split('\0').nth(1) == Some(role)
    };
    processes.filter(is_child).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_patterns_are_rejected_only_for_the_stack_that_defines_them() {
    let repository = Repository::with_project();
    for n in 0..400 {
        repository.write(&format!("{}b{n}", "a/".repeat(60)), "");
    }
    repository.commit();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let slow: Vec<String> = (0..100).map(|n| format!("{}c{n}*", "**/a/".repeat(180))).collect();
    let slow = json!({"projectRepo": server.url(), "branch": "main", "paths": slow});
    let quick = json!({"projectRepo": server.url(), "branch": "main", "paths": ["/Pulumi.yaml"]});
    drop(controller.immediate_result("slow", &slow, &Lookup::default()));
    let resolved = controller.resolve_in("victim", "app", &quick).await.unwrap();
    assert!(origin(&resolved).selection.is_some());
    let message = controller.resolve_as("slow", &slow, &Lookup::default()).await;
    assert!(
        message
            .as_ref()
            .is_err_and(|message| message.contains("matching the patterns against all files takes too many steps")),
        "{message:?}"
    );
}
