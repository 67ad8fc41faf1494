//! Measures the web UI while the cluster contains many Stacks. The benchmark measures the time until a page is
//! complete, and the controller's memory.

use tokio::time::{Instant, sleep};

use crate::crowd::controller;
use crate::harness::{Browser, Controller, Poll, Scene, WaitLimit, kubectl, run_with_cleanup, wait_until};
use crate::memory::QUIET;
use crate::table::{Row, median};

const ADDRESS: &str = "--ui-addr=:9294";
/// Name of the ServiceAccount and the ClusterRoleBinding.
const USER: &str = "bench-fleet-ui";
/// Budget for the time until a page is complete, in seconds. The measured time includes the API server proxy.
const BUDGET: f64 = 0.3;
/// Number of requests for each page.
const REQUESTS: usize = 9;
const PAGES: [(&str, &str); 3] = [("list", "/"), ("filtered list", "/?q=fleet-00042"), ("fleet", "/fleet")];

/// Measures the web UI. `arguments` contains the installed controller's arguments. `memory` is the memory (RssAnon) of
/// the idle controller without the web UI, in MiB.
pub async fn measure(scene: &Scene, stacks: usize, installed: &Controller, arguments: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    let measured = async || {
        installed.start_with(arguments, 1).await;
        let without = idle_memory(scene).await;
        installed.start_with(&[arguments, &[ADDRESS.to_owned()]].concat(), 1).await;
        let idle = idle_memory(scene).await;
        let browser = sign_in(scene, stacks).await;
        for (name, path) in PAGES {
            rows.push(measure_page(&browser, name, path, stacks).await);
        }
        let (name, after) =
            (format!("memory (RssAnon) of the web UI, {stacks} Stacks"), controller(scene).await.rss_anon());
        let row = Row::of(&name, "", format!("{:.1} MiB", idle - without), None);
        rows.push(row.with_note(format!("after the requests: {after:.1} MiB; without the web UI: {without:.1} MiB")));
    };
    let cleaned = async || {
        kubectl(&["delete", "clusterrolebinding", USER, "--ignore-not-found"], "").await;
        installed.start_with(arguments, 1).await;
    };
    run_with_cleanup(measured, cleaned).await;
    rows
}

/// Returns the controller's memory after the first reconciliations, in MiB.
async fn idle_memory(scene: &Scene) -> f64 {
    let process = controller(scene).await;
    let mut before = process.cpu_time();
    let end = Instant::now() + WaitLimit::Run.limit() * 5;
    loop {
        sleep(QUIET).await;
        let used = process.cpu_time() - before;
        if used < QUIET.as_secs_f64() / 10.0 {
            return process.rss_anon();
        }
        assert!(Instant::now() < end, "the controller is not idle: it used {used:.1} s of CPU time in {QUIET:?}");
        before = process.cpu_time();
    }
}

/// Signs in as a ServiceAccount that can read all Stacks, and waits until the list contains all Stacks.
async fn sign_in(scene: &Scene, stacks: usize) -> Browser {
    let namespace = scene.namespace.as_str();
    kubectl(&["create", "serviceaccount", USER, "--namespace", namespace], "").await;
    let account = format!("--serviceaccount={namespace}:{USER}");
    kubectl(&["create", "clusterrolebinding", USER, "--clusterrole=view", &account], "").await;
    let token = kubectl(&["create", "token", USER, "--namespace", namespace, "--duration", "1h"], "").await;
    let mut browser = Browser::open(&scene.client).await;
    browser.sign_in(token.trim()).await;
    wait_until("the list to contain all Stacks", WaitLimit::Run, async || {
        let page = browser.get("/").await;
        match found(&page.text) {
            Some(found) if found >= stacks => Poll::Found(()),
            found => Poll::NotYet(format!("status {}, {found:?} Stacks", page.status)),
        }
    })
    .await;
    browser
}

/// Returns the number of Stacks that a list contains, according to its heading.
fn found(page: &str) -> Option<usize> {
    let (_, rest) = page.split_once("<p role=\"status\">")?;
    rest.split(' ').next()?.parse().ok()
}

async fn measure_page(browser: &Browser, name: &str, path: &str, stacks: usize) -> Row {
    let mut durations = Vec::new();
    let mut size = 0;
    for _ in 0..REQUESTS {
        let began = Instant::now();
        let page = browser.get(path).await;
        durations.push(began.elapsed().as_secs_f64());
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        size = page.text.len();
    }
    let row = Row::seconds(&format!("web UI with {stacks} Stacks: complete page, {name}"), median(durations), BUDGET);
    row.with_note(format!("{} kB", size / 1000))
}
