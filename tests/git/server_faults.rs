//! Tests servers and repositories with faults. Each fault must result in a specific message, and must not make the
//! controller exceed its limits.

use std::time::Duration;

use pulumi_controller::source::git::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::follower::Controller;
use crate::http_server::Server;
use crate::repository::Repository;

/// Starts a server that responds to every request with the same bytes, or never responds if `response` is `None`.
async fn start_server(response: Option<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/app", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 16 * 1024];
            let _ = stream.read(&mut request).await;
            match &response {
                Some(response) => {
                    let _ = stream.write_all(response).await;
                    let _ = stream.shutdown().await;
                }
                None => open.push(stream),
            }
        }
    });
    url
}

fn http(status: &str, headers: &str, body: &str) -> Option<Vec<u8>> {
    Some(format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\n\r\n{body}").into_bytes())
}

const ADVERTISEMENT: &str = "Content-Type: application/x-git-upload-pack-advertisement\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn each_server_failure_has_its_own_message() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}/app", listener.local_addr().unwrap())
    };
    let rows = [
        (closed, "server is unreachable"),
        (start_server(None).await, "querying the server timed out after 2 s"),
        (
            start_server(http("200 OK", "Content-Type: text/html\r\n", "<html>hidden words</html>")).await,
            "Git protocol error",
        ),
        (start_server(http("200 OK", ADVERTISEMENT, "rubbish that is no packet line")).await, "Git protocol error"),
        (
            start_server(http("200 OK", ADVERTISEMENT, "001e# service=git-upload-pack\n0000000fversion ")).await,
            "Git protocol error",
        ),
        (start_server(http("404 Not Found", "", "hidden words")).await, "repository not found"),
        (start_server(http("403 Forbidden", "", "hidden words")).await, "server rejected the credentials (HTTP 403)"),
        (start_server(http("429 Too Many Requests", "Retry-After: 77\r\n", "")).await, "retrying after 77 s"),
        (start_server(http("500 Oops", "", "hidden words")).await, "HTTP status 500"),
        (start_server(Some(b"\x00\x01\x02rubbish".to_vec())).await, "server is unreachable"),
    ];
    let limits = Limits { list_time: Duration::from_secs(2), ..Limits::default() };
    for (url, expected) in rows {
        let mut controller = Controller::with(limits.clone()).await;
        let error = controller
            .resolve(&json!({"projectRepo": url, "branch": "main"}))
            .await
            .expect_err("should report the protocol error");
        assert!(error.contains(expected) && error.contains(&url), "{expected}: {error}");
        assert!(!error.contains("hidden words"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fetch_of_an_endless_response_ends_at_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/app", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 16 * 1024];
                let _ = stream.read(&mut request).await;
                let head = format!("HTTP/1.1 200 OK\r\n{ADVERTISEMENT}\r\n001e# service=git-upload-pack\n0000");
                let _ = stream.write_all(head.as_bytes()).await;
                let line = format!("0049{} refs/heads/branch-{}\n", "a".repeat(40), "b".repeat(9));
                let block = line.repeat(1000);
                while stream.write_all(block.as_bytes()).await.is_ok() {}
            });
        }
    });
    let mut controller = Controller::new().await;
    let error = controller
        .resolve(&json!({"projectRepo": url, "branch": "main"}))
        .await
        .expect_err("should reject an endless response");
    assert!(error.contains("exceeds the limit") || error.contains("Git protocol error"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_refs_are_reported_and_found_after_the_next_push() {
    let repository = Repository::empty();
    let server = Server::of(&repository).await;
    let mut controller = Controller::new().await;
    let fields = json!({"projectRepo": server.url(), "branch": "dev"});
    let error = controller.resolve(&fields).await.expect_err("should report an empty repository");
    assert!(error.contains("repository is empty"), "{error}");
    repository.write("Pulumi.yaml", "name: app\n");
    repository.commit();
    let error = controller.resolve_now(&fields, "one").await.expect_err("should report the missing branch");
    assert!(error.contains("no branch or tag dev: existing branches: main"), "{error}");
    repository.git(&["branch", "dev"]);
    controller.resolve_now(&fields, "two").await.unwrap();
    let gone = json!({"projectRepo": server.url(), "commit": "0123456789012345678901234567890123456789"});
    let error = controller.resolve(&gone).await.expect_err("should report the missing commit");
    assert!(error.contains("commit 0123456789012345678901234567890123456789 not found"), "{error}");
    let elsewhere = json!({"projectRepo": server.url().replace("/app", "/other"), "branch": "main"});
    let error = controller.resolve(&elsewhere).await.expect_err("repository not found");
    assert!(error.contains("repository not found"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_content_is_rejected_and_the_last_good_artifact_is_kept() {
    let repository = Repository::with_project();
    let server = Server::of(&repository).await;
    let limits = Limits { pack_bytes: 64 * 1024, file_bytes: 256 * 1024, ..Limits::default() };
    let mut controller = Controller::with(limits).await;
    let fields = json!({"projectRepo": server.url(), "branch": "main"});
    let good = controller.resolve(&fields).await.unwrap();
    // This content does not compress.
    let noise: Vec<u8> = (0..200_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    repository.write("noise", &noise);
    repository.commit();
    let error = controller.resolve_now(&fields, "one").await.expect_err("should exceed the limit");
    assert!(error.contains("pack exceeds the limit of 65536 bytes"), "{error}");
    std::fs::remove_file(repository.path().join("noise")).unwrap();
    // This content compresses well, but the file is large.
    repository.write("zeros", vec![0_u8; 1 << 20]);
    repository.git(&["reset", "--quiet", "--soft", "HEAD~1"]);
    repository.commit();
    let error = controller.resolve_now(&fields, "two").await.expect_err("a file is too large");
    assert!(error.contains("Git object (usually a file) exceeds the limit of 262144 bytes"), "{error}");
    assert!(controller.store.contains(&good.digest));
    let left = std::fs::read_dir(controller.directory.path().join("work")).unwrap().count();
    assert_eq!(left, 0, "temporary files are removed");
}
