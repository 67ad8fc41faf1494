//! Tests proxies that environment variables select. Environment variables affect all tests in a process, so each of
//! these tests starts another process.

use serde_json::json;

use crate::follower::Controller;
use crate::http_server::Server;
use crate::repository::Repository;

/// URL whose host name does not resolve, so only a proxy can connect to the server.
const PROXIED_URL: &str = "http://git.invalid/app";

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_from_the_environment_is_used() {
    let repository = Repository::with_project();
    let proxy = Server::of(&repository).await;
    let program = std::env::current_exe().unwrap();
    let address = format!("http://{}", proxy.address);
    let ended = tokio::task::spawn_blocking(move || {
        let mut inner = std::process::Command::new(program);
        inner.args(["--exact", "proxy::a_repository_can_be_read_through_a_proxy", "--ignored"]);
        inner.env("HTTP_PROXY", address).env_remove("NO_PROXY").env_remove("no_proxy").output()
    });
    let ended = ended.await.unwrap().unwrap();
    let message = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && message.contains("1 passed"), "{message}");
    assert_eq!(proxy.requests(), (2, 1), "all requests use the proxy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_in_no_proxy_is_contacted_directly() {
    let repository = Repository::with_project();
    let proxy = Server::of(&repository).await;
    let (program, address) = (std::env::current_exe().unwrap(), format!("http://{}", proxy.address));
    let ended = tokio::task::spawn_blocking(move || {
        let mut inner = std::process::Command::new(program);
        inner.args(["--exact", "proxy::a_repository_excluded_from_the_proxy_is_unreachable", "--ignored"]);
        inner.env("http_proxy", address).env("no_proxy", "other.invalid,git.invalid").output()
    });
    let ended = ended.await.unwrap().unwrap();
    let message = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && message.contains("1 passed"), "{message}");
    assert_eq!(proxy.requests(), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "another test runs it with a proxy in the environment"]
async fn a_repository_excluded_from_the_proxy_is_unreachable() {
    let mut controller = Controller::new().await;
    let error = controller
        .resolve(&json!({"projectRepo": PROXIED_URL, "branch": "main"}))
        .await
        .expect_err("should fail without a proxy");
    assert!(error.contains("server is unreachable"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "another test runs it with a proxy in the environment"]
async fn a_repository_can_be_read_through_a_proxy() {
    let mut controller = Controller::new().await;
    controller.resolve(&json!({"projectRepo": PROXIED_URL, "branch": "main"})).await.unwrap();
}
