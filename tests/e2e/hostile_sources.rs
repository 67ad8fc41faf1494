//! Tests malicious and broken sources. The controller or the agent rejects each source with a specific message, and the
//! workspace pod keeps the installed source. The Stack recovers with the next valid artifact.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use kube::ResourceExt;
use pulumi_controller::api::conditions::{READY, STALLED, stack_reason};
use pulumi_controller::api::pulumi::{SourceArtifact, Stack};
use serde_json::{Value, json};

use crate::harness::{
    FaultServer, File, FluxObject, Program, Scene, StackHandle, WaitLimit, condition, has_condition, is_done,
    is_stalled, once, run, waits_for_source,
};

/// A Stack that has run with a valid artifact, and the Stack's source, which then provides other artifacts.
struct Fixture<'a> {
    server: FaultServer,
    source: FluxObject<'a>,
    stack: StackHandle<'a>,
    good: SourceArtifact,
    pod: (String, i32),
}

impl<'a> Fixture<'a> {
    async fn new(scene: &'a Scene, test: &str) -> Fixture<'a> {
        let server = FaultServer::of(scene);
        let source = scene.flux_object("ExternalArtifact", "externalartifacts", "app");
        source.create(json!({})).await;
        let good = server.upload("good", archive(&program(test, "one"))).await;
        source.publish(&good).await;
        let stack = scene.start(scene.stack_on_kind("main", None, &source)).await;
        stack.until_revision(&good.revision).await;
        let pod = stack.pod_and_restarts().await;
        Fixture { server, source, stack, good, pod }
    }

    /// Provides an artifact, and waits until the Stack is stalled with a message that contains `words`. Checks that no
    /// run starts and that the pod does not change.
    async fn expect_refusal(&self, artifact: &SourceArtifact, words: &[&str]) {
        self.source.publish(artifact).await;
        let revision = artifact.revision.as_str();
        self.expect_stalled(revision, &[&[revision], words].concat()).await;
    }

    /// Provides an artifact that the controller cannot fetch yet, and waits until the Stack's message contains `words`.
    /// Checks that no run starts and that the pod does not change.
    async fn expect_wait(&self, artifact: &SourceArtifact, words: &[&str]) {
        self.source.publish(artifact).await;
        let revision = artifact.revision.as_str();
        self.expect_state("to wait for", waits_for_source, revision, &[&[revision], words].concat()).await;
    }

    async fn expect_stalled(&self, of: &str, words: &[&str]) {
        let is_stalled = |stack: &Stack| is_stalled(stack, stack_reason::SOURCE_UNAVAILABLE);
        self.expect_state("to be stalled by", is_stalled, of, words).await;
    }

    async fn expect_state(&self, state: &str, is_in_state: impl Fn(&Stack) -> bool, of: &str, words: &[&str]) {
        let named = |stack: &Stack| {
            condition(stack, READY).is_some_and(|ready| words.iter().all(|word| ready.message.contains(word)))
        };
        let what = format!("{state} {of} with {words:?}");
        let stack = self.stack.until(&what, WaitLimit::Run, |stack| is_in_state(stack) && named(stack)).await;
        self.assert_last_good_state(&stack, of).await;
    }

    async fn assert_last_good_state(&self, stack: &Stack, of: &str) {
        let status = stack.status.clone().unwrap_or_default();
        assert_eq!(status.last_applied_revision.as_ref(), Some(&self.good.revision), "{of}");
        assert_eq!(status.outputs.get("result"), Some(&json!("one")), "{of}: the outputs are kept");
        let installed = self.stack.workspace().await.status.and_then(|status| status.artifact);
        let digest = installed.map(|artifact| artifact.digest.to_string());
        assert_eq!(digest.as_ref(), Some(&self.good.digest), "{of}: the pod keeps its source");
        assert_eq!(self.stack.pod_and_restarts().await, self.pod, "{of}: the pod is not replaced");
        assert_eq!(self.stack.updates().await.len(), 1, "{of}: no run has started");
    }

    /// Provides a valid artifact, and checks that the Stack recovers in the same pod.
    async fn expect_recovery(&self, test: &str) {
        let better = self.server.upload("better", archive(&program(test, "two"))).await;
        self.source.publish(&better).await;
        // The agent can still process the previous artifact, because the controller retries a failed installation. With
        // many files, this retry takes minutes.
        self.stack.until_revision_within(WaitLimit::Long, &better.revision).await;
        assert_eq!(self.stack.pod_and_restarts().await, self.pod);
        assert_eq!(self.stack.log.operations().await, once(&["create step", "update step"]));
    }
}

fn program(test: &str, value: &str) -> Vec<File> {
    Program::new(test).step("step", json!({"value": value})).output("result", json!("${step.value}")).files()
}

/// Returns an archive in the format that Flux produces.
fn archive(files: &[File]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, &file.path, file.content.as_bytes()).expect("write to memory");
    }
    compress(&builder.into_inner().expect("write to memory"))
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("write to memory");
    encoder.finish().expect("write to memory")
}

/// Returns a malicious archive from the `tests/fuzz_corpora` seeds. Other tests check these seeds without a cluster.
fn seed(name: &str) -> Vec<u8> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus/archive").join(format!("{name}.tar"));
    std::fs::read(&file).unwrap_or_else(|error| panic!("reading {}: {error}", file.display()))
}

/// Malicious archives, each with the words that the rejection message must contain.
const HOSTILE_ARCHIVES: [(&str, &[&str]); 19] = [
    ("parent", &["\"../evil\"", "\"..\""]),
    ("absolute", &["\"/etc/evil\"", "absolute"]),
    ("backslash", &["evil", "backslash"]),
    ("nul", &["evil", "NUL"]),
    ("character-device", &["\"evil\"", "character device"]),
    ("block-device", &["\"evil\"", "block device"]),
    ("fifo", &["\"evil\"", "named pipe"]),
    ("hard-link", &["\"evil\"", "hard link"]),
    ("sparse", &["\"evil\"", "sparse"]),
    ("link-absolute", &["\"evil\" to \"/etc\"", "absolute"]),
    ("link-out", &["\"evil\" to \"../../etc\"", "must not leave the archive"]),
    ("link-up-behind-a-name", &["\"evil\"", "after a name"]),
    ("write-through-a-link", &["\"evil/through\"", "symbolic link"]),
    ("directory-over-a-file", &["\"evil/b\"", "is a file"]),
    ("too-deep", &["has 65"]),
    ("too-long", &["has 1100"]),
    ("too-long-a-name", &["has a component of 256"]),
    ("truncated", &["truncated before the end-of-archive marker"]),
    ("more-behind-its-end", &["after the end-of-archive marker"]),
];

#[test]
fn hostile_archives_are_rejected_with_a_reason_and_the_old_source_kept() {
    run("hostile-archives", async |scene| {
        let fixture = Fixture::new(scene, "hostile-archives").await;
        for (name, words) in HOSTILE_ARCHIVES {
            let artifact = fixture.server.upload(name, compress(&seed(name))).await;
            fixture.expect_refusal(&artifact, words).await;
        }
        let whole = compress(&seed("good"));
        let torn = fixture.server.upload("torn-gzip", whole[..whole.len() / 2].to_vec()).await;
        fixture.expect_refusal(&torn, &["truncated before the end-of-archive marker"]).await;
        let plain = fixture.server.upload("no-gzip", seed("good")).await;
        fixture.expect_refusal(&plain, &["not a valid tar.gz"]).await;
        fixture.expect_recovery("hostile-archives").await;
    });
}

#[test]
fn archives_that_would_fill_the_disk_are_rejected_at_the_limits() {
    run("huge-archives", async |scene| {
        let fixture = Fixture::new(scene, "huge-archives").await;
        let bomb = fixture.server.set_faults("bomb", json!({"generated": "bomb"})).await;
        fixture.expect_refusal(&bomb, &["possible decompression bomb", "\"zeros\""]).await;
        let many = fixture.server.set_faults("many", json!({"generated": "entries"})).await;
        fixture.expect_refusal(&many, &["limit of 200000 entries"]).await;
        fixture.expect_recovery("huge-archives").await;
    });
}

#[test]
fn reverting_to_the_last_good_artifact_starts_no_run() {
    run("rollback", async |scene| {
        let fixture = Fixture::new(scene, "rollback").await;
        let bad = fixture.server.upload("bad", compress(&seed("parent"))).await;
        fixture.expect_refusal(&bad, &["\"../evil\""]).await;
        fixture.source.publish(&fixture.good).await;
        let stack = fixture.stack.until("to be Ready again", WaitLimit::Reaction, is_done).await;
        fixture.assert_last_good_state(&stack, "the previous artifact").await;
        let requested = fixture.stack.workspace().await.spec.artifact.map(|artifact| artifact.digest.to_string());
        assert_eq!(requested.as_ref(), Some(&fixture.good.digest), "the bad artifact is not requested again");
    });
}

#[test]
fn a_stack_with_a_hostile_new_source_is_destroyed_with_the_old_one() {
    run("hostile-deletion", async |scene| {
        let fixture = Fixture::new(scene, "hostile-deletion").await;
        fixture.stack.change(json!({"spec": {"destroyOnFinalize": true}})).await;
        fixture.stack.until_revision(&fixture.good.revision).await;
        let bad = fixture.server.upload("bad", compress(&seed("parent"))).await;
        fixture.source.publish(&bad).await;
        fixture
            .stack
            .until("to reject the archive", WaitLimit::Reaction, |stack| {
                condition(stack, READY).is_some_and(|ready| ready.message.contains("../evil"))
            })
            .await;
        fixture.stack.delete().await;
        fixture.stack.until_gone().await;
        assert_eq!(fixture.stack.log.operations().await, once(&["create step", "delete step"]));
    });
}

#[test]
fn an_insecure_or_malformed_digest_is_rejected_before_the_fetch() {
    run("digests", async |scene| {
        let fixture = Fixture::new(scene, "digests").await;
        let artifact = fixture.server.upload("other", archive(&program("digests", "other"))).await;
        let hex = artifact.digest.trim_start_matches("sha256:").to_owned();
        let first = |count: usize| hex.chars().take(count).collect::<String>();
        let table = [
            ("sha1", format!("sha1:{}", first(40)), vec!["sha1", "insecure digest algorithm"]),
            ("md5", format!("md5:{}", first(32)), vec!["md5", "insecure digest algorithm"]),
            ("unknown", format!("crc32:{hex}"), vec!["\"crc32\"", "must be sha256, sha384, sha512 or blake3"]),
            ("short", format!("sha256:{}", first(62)), vec!["must have 64 hexadecimal digits, not 62"]),
            ("upper", format!("sha256:{}", hex.to_uppercase()), vec!["0-9 and a-f"]),
        ];
        for (name, digest, words) in table {
            let artifact = SourceArtifact { digest, ..artifact.clone() };
            fixture.source.publish(&artifact).await;
            fixture.expect_stalled(name, &words).await;
        }
        assert_eq!(fixture.server.requests("other").await, 0);

        let wrong = format!("sha256:{}", hex.chars().rev().collect::<String>());
        let artifact = SourceArtifact { digest: wrong.clone(), ..artifact };
        fixture.expect_wait(&artifact, &[&wrong]).await;
        fixture.expect_recovery("digests").await;
    });
}

#[test]
fn server_errors_are_reported_until_the_artifact_is_available() {
    run("answers", async |scene| {
        let fixture = Fixture::new(scene, "answers").await;
        let table = [
            ("not-found", json!({"status": 404}), vec!["404"]),
            ("oops", json!({"status": 500}), vec!["status 500"]),
            ("moved", json!({"status": 302}), vec!["302", "redirects are not followed"]),
            ("too-short", json!({"extraLength": 100}), vec!["connection closed after"]),
            ("too-long", json!({"extraLength": -100}), vec!["do not match the digest"]),
        ];
        for (name, behavior, words) in table {
            fixture.server.upload(name, archive(&program("answers", name))).await;
            let artifact = fixture.server.set_faults(name, behavior).await;
            fixture.expect_wait(&artifact, &[&[artifact.url.as_str()], words.as_slice()].concat()).await;
        }
        fixture.server.upload("endless", archive(&program("answers", "endless"))).await;
        let artifact = fixture.server.set_faults("endless", json!({"endless": true})).await;
        fixture.expect_refusal(&artifact, &[&artifact.url, "exceeds the limit of 268435456 bytes"]).await;
        // The first request fails with status 404, and later requests succeed. The controller must retry the request
        // without another trigger.
        let better = fixture.server.upload("better", archive(&program("answers", "two"))).await;
        fixture.server.set_faults("better", json!({"status": 404, "times": 1})).await;
        fixture.expect_wait(&better, &["404"]).await;
        fixture.stack.until_revision(&better.revision).await;
        assert_eq!(fixture.stack.log.operations().await, once(&["create step", "update step"]));
    });
}

#[test]
fn no_request_is_sent_before_the_retry_after_time_of_a_server() {
    run("slow-down", async |scene| {
        let fixture = Fixture::new(scene, "slow-down").await;
        let other = fixture.server.upload("slow-down", archive(&program("slow-down", "three"))).await;
        fixture.server.set_faults("slow-down", json!({"status": 429, "retryAfter": "3600"})).await;
        fixture.expect_wait(&other, &["429", "retrying after 600s"]).await;

        let better = fixture.server.upload("better", archive(&program("slow-down", "two"))).await;
        fixture.server.set_faults("better", json!({"status": 503, "retryAfter": "12", "times": 1})).await;
        fixture.expect_wait(&better, &["503", "retrying after 12s"]).await;
        for _ in 0..5 {
            fixture.source.request_reconciliation().await;
        }
        fixture.stack.until_revision(&better.revision).await;
        assert_eq!(fixture.server.requests("better").await, 2, "the rejected request and the request after the delay");
        assert_eq!(fixture.server.requests("slow-down").await, 1);
    });
}

#[test]
fn a_fetch_from_a_hanging_server_times_out_but_a_slow_one_succeeds() {
    run("hanging", async |scene| {
        let fixture = Fixture::new(scene, "hanging").await;
        for (name, behavior, words) in [
            ("no-answer", json!({"hang": "header"}), "waiting for a response timed out"),
            ("half", json!({"hang": "body"}), "waiting for data timed out"),
        ] {
            fixture.server.upload(name, archive(&program("hanging", name))).await;
            let artifact = fixture.server.set_faults(name, behavior).await;
            fixture.expect_wait(&artifact, &[&artifact.url, words]).await;
        }
        let slow = fixture.server.upload("slow", archive(&program("hanging", "two"))).await;
        fixture.server.set_faults("slow", json!({"pieces": 50, "pause": "100ms"})).await;
        fixture.source.publish(&slow).await;
        fixture.stack.until_revision(&slow.revision).await;
    });
}

#[test]
fn artifacts_are_fetched_only_from_allowed_hosts() {
    run("hosts", async |scene| {
        let fixture = Fixture::new(scene, "hosts").await;
        let artifact = fixture.server.upload("other", archive(&program("hosts", "other"))).await;
        let host = "source-faults.test-services.svc.cluster.local";
        let with = |from: &str, to: &str| artifact.url.replacen(from, to, 1);
        let table = [
            (with(host, "kubernetes.default.svc.cluster.local"), vec!["kubernetes.default.svc", "--artifact-hosts"]),
            (with(host, "169.254.169.254"), vec!["169.254.169.254", "--artifact-hosts"]),
            (with(host, "127.0.0.1:9440"), vec!["127.0.0.1", "--artifact-hosts"]),
            (with(host, "git.test-services.svc.cluster.local"), vec!["git.test-services.svc", "--artifact-hosts"]),
            (with(host, &format!("{host}.example.com")), vec!["example.com", "--artifact-hosts"]),
            (with("http://", "http://me:hidden-word@"), vec!["user name or password"]),
            (with("http://", "ftp://"), vec!["scheme must be http or https"]),
            ("file:///etc/passwd".to_owned(), vec!["file:///etc/passwd"]),
        ];
        for (url, words) in table {
            let artifact = SourceArtifact { url, ..artifact.clone() };
            fixture.expect_refusal(&artifact, &words).await;
            assert!(!format!("{:?}", fixture.stack.get().await.status).contains("hidden-word"));
        }
        assert_eq!(fixture.server.requests("other").await, 0);
        fixture.expect_recovery("hosts").await;
    });
}

#[test]
fn a_missing_or_escaping_directory_is_reported() {
    run("directories", async |scene| {
        let fixture = Fixture::new(scene, "directories").await;
        let nested = Program::new("directories").step("step", json!({"value": "two"}));
        let nested = nested.output("result", json!("${step.value}")).file("infra/Pulumi.yaml");
        let readme = File { path: "README.md".to_owned(), content: "no program here\n".to_owned() };
        let better = fixture.server.upload("nested", archive(&[nested, readme])).await;
        fixture.expect_refusal(&better, &["no Pulumi.yaml", "README.md, infra"]).await;
        let dir = |dir: Value| json!({"spec": {"fluxSource": {"dir": dir}}});
        fixture.stack.change(dir(json!("infrastructure"))).await;
        fixture.expect_stalled("a directory that does not exist", &["\"infrastructure\"", "README.md, infra"]).await;
        for outside in ["../secrets", "/infra/../../secrets"] {
            fixture.stack.change(dir(json!(outside))).await;
            let stack = fixture
                .stack
                .until(&format!("to be stalled by {outside}"), WaitLimit::Reaction, |stack| {
                    has_condition(stack, READY, "False", stack_reason::SPEC_INVALID)
                        && has_condition(stack, STALLED, "True", stack_reason::SPEC_INVALID)
                        && condition(stack, STALLED)
                            .is_some_and(|c| c.message.contains(outside) && c.message.contains("\"..\""))
                })
                .await;
            fixture.assert_last_good_state(&stack, outside).await;
        }
        fixture.stack.change(dir(json!("/infra/"))).await;
        let stack = fixture.stack.until_revision(&better.revision).await;
        assert_eq!(stack.name_any(), fixture.stack.name);
        assert_eq!(fixture.stack.pod_and_restarts().await, fixture.pod);
    });
}
