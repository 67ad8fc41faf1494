//! Measures how long fetching and packing one commit of a large repository takes. The benchmark compares the
//! controller's code with `git fetch --depth 1` and `git archive`. Both implementations run in separate processes with
//! the same server on loopback, without a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use futures::StreamExt;
use kube::{Client, Config};
use pulumi_controller::api::pulumi::StackSpec;
use pulumi_controller::artifact::{self, Store};
use pulumi_controller::source::Unavailable;
use pulumi_controller::source::git::{self as followed, Git, Limits, Lookup, RepositorySpec, Settings};
use pulumi_controller::subprocess::Subprocess;
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::http_server::Server;
use crate::peak::{Usage, run};
use crate::repository::{COMMITS, MEGABYTES, Repository, git};
use crate::table::{Row, Step, median};

const ROUNDS: usize = 3;
/// First argument of the process that runs the controller's code. The other arguments are the URL and a directory.
pub const ROLE: &str = "fetch-as-the-controller";

/// Resource usage of both implementations in one round.
struct Round {
    ours: Usage,
    fetch: Usage,
    archive: Usage,
}

pub async fn measure(folder: &Path) -> Vec<Row> {
    let folder = folder.join("shallow");
    let repository = Repository::in_folder(&folder);
    let server = Server::of(&repository).await;
    let mut rounds = Vec::new();
    for number in 1..=ROUNDS {
        let (folder, url) = (folder.clone(), server.url());
        let round = tokio::task::spawn_blocking(move || round(&folder, &url)).await.expect("the round succeeds");
        let theirs = round.theirs();
        println!(
            "round {number} of {ROUNDS}: {:.2} s and {:.1} MiB, `git` {:.2} s and {:.1} MiB",
            round.ours.seconds, round.ours.anonymous, theirs.seconds, theirs.anonymous
        );
        rounds.push(round);
    }
    rows(&rounds)
}

fn rows(rounds: &[Round]) -> Vec<Row> {
    let row = |name: &str, usages: Vec<Usage>| {
        let seconds = median(usages.iter().map(|usage| usage.seconds).collect());
        let most = usages.into_iter().fold(Usage::default(), Usage::then);
        Row::of(name, "", format!("{seconds:.2} s, {:.1} MiB", most.anonymous), None).with_note(format!(
            "peak memory of the largest process, including mapped files (VmHWM): {:.1} MiB",
            most.largest
        ))
    };
    let step = |name: &str, of: &dyn Fn(&Round) -> Usage| Step {
        name: name.to_owned(),
        seconds: median(rounds.iter().map(|round| of(round).seconds).collect()),
    };
    let steps =
        vec![step("`git fetch --depth 1`", &|round| round.fetch), step("`git archive`", &|round| round.archive)];
    let large = format!("one commit of {COMMITS} with {MEGABYTES} MB, fetched and packed");
    vec![
        row(&large, rounds.iter().map(|round| round.ours).collect())
            .with_note("memory is the peak of the total RssAnon of all processes; times are medians")
            .with_note("built with the benchmark profile, which optimizes less than the profile of the image"),
        row(&format!("{large}, by `git`"), rounds.iter().map(Round::theirs).collect()).with_steps(steps),
    ]
}

impl Round {
    fn theirs(&self) -> Usage {
        self.fetch.then(self.archive)
    }
}

fn round(folder: &Path, url: &str) -> Round {
    let scratch = || tempfile::tempdir_in(folder).expect("a temporary folder");
    let (ours, theirs) = (scratch(), scratch());
    Round {
        ours: fetched_by_controller(&ours, url),
        fetch: fetched_by_git(&theirs, url),
        archive: packed_by_git(&theirs),
    }
}

fn fetched_by_controller(scratch: &TempDir, url: &str) -> Usage {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    run(command.arg(ROLE).arg(url).arg(scratch.path()).env_clear())
}

fn fetched_by_git(scratch: &TempDir, url: &str) -> Usage {
    run(&mut git(scratch.path(), &["init", "--quiet", "--bare"]));
    run(&mut git(scratch.path(), &["fetch", "--quiet", "--depth", "1", url, "main"]))
}

/// Packs the commit with `git`, without compression like the controller, and returns the resource usage.
fn packed_by_git(scratch: &TempDir) -> Usage {
    let archive: PathBuf = scratch.path().join("artifact.tar.gz");
    let output = format!("--output={}", archive.display());
    let usage = run(&mut git(scratch.path(), &["archive", "-0", "--format=tar.gz", &output, "FETCH_HEAD"]));
    assert_is_whole(std::fs::metadata(&archive).expect("an archive").len());
    usage
}

/// Fetches `main` of a repository to a store in a directory, like the controller for a Stack.
pub fn fetch(url: &str, folder: &Path) {
    rustls::crypto::ring::default_provider().install_default().expect("no other TLS provider is installed");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be started");
    runtime.block_on(async {
        let (trust, work) = (folder.join("trust"), folder.join("work"));
        let store = Store::open(&folder.join("store"), 1 << 30).expect("a store");
        followed::prepare(&work).expect("a working directory");
        let settings = Settings {
            work,
            trust,
            limits: Limits { local_addresses: true, ..Limits::default() },
            artifact_limits: artifact::Limits::default(),
            slots: followed::Slots::default(),
            subprocess: Subprocess::of(env!("CARGO_BIN_EXE_pulumi-controller").into()),
        };
        // The repository needs no Secret, so the fetch sends no requests to this API server.
        let config = Config::new("http://127.0.0.1:1".parse().expect("a URL"));
        let client = Client::try_from(config).expect("a client");
        let (git, mut requeued) =
            Git::new(client, store.clone(), settings, TaskTracker::new(), CancellationToken::new());
        let spec = json!({"stack": "main", "projectRepo": url, "branch": "main"});
        let spec: StackSpec = serde_json::from_value(spec).expect("a spec");
        let repository = RepositorySpec::of_stack(&spec, "bench").expect("a valid spec").expect("a repository");
        let follower = ("bench".to_owned(), "main".to_owned());
        let resolved = loop {
            match git.resolve(&follower, &repository, &Lookup::default()) {
                Ok(resolved) => break resolved,
                Err(Unavailable::Resolving(_)) => drop(requeued.next().await.expect("the Stack is requeued")),
                Err(error) => panic!("{error}"),
            }
        };
        let artifact = store.open_artifact(&resolved.digest).expect("a readable store").expect("an artifact");
        assert_is_whole(artifact.file().expect("a file").metadata().expect("a file").len());
    });
}

/// Checks that the archive is large enough to contain the large files.
fn assert_is_whole(bytes: u64) {
    assert!(bytes > MEGABYTES as u64 * 1_000_000, "an archive of {bytes} bytes does not contain {MEGABYTES} MB");
}
