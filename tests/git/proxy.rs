//! Proxies of the environment. That of a process is for all of its tests, so this test starts another process.

use serde_json::json;

use crate::follower::Controller;
use crate::http_server::Server;
use crate::repository::Repository;

/// A host that no name server knows: only a proxy can reach it.
const BEHIND: &str = "http://git.invalid/app";

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_of_the_environment_is_used() {
    let repository = Repository::with_project();
    let proxy = Server::of(&repository).await;
    let program = std::env::current_exe().unwrap();
    let address = format!("http://{}", proxy.address);
    let ended = tokio::task::spawn_blocking(move || {
        let mut inner = std::process::Command::new(program);
        inner.args(["--exact", "proxy::what_is_behind_a_proxy_is_read", "--ignored"]);
        inner.env("HTTP_PROXY", address).env_remove("NO_PROXY").env_remove("no_proxy").output()
    });
    let ended = ended.await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(proxy.asked(), (2, 1), "all of it went through the proxy");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test above, with a proxy in its environment"]
async fn what_is_behind_a_proxy_is_read() {
    let mut controller = Controller::new().await;
    controller.resolve(&json!({"projectRepo": BEHIND, "branch": "main"})).await.unwrap();
}
