//! Reconciler dependencies for tests that simulate failures. Each test provides a fake API server.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::artifact::{self, AllowedHosts, FetchSettings, Fetcher, Store};
use crate::controller::authority::Generations;
use crate::controller::references::{self, References};
use crate::rpc::client::Agents;
use crate::rpc::identity::Authority;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::scope::Scope;
use crate::runtime::writes::{Leadership, Writer};
use crate::source::git::{self, Git};
use crate::subprocess::Subprocess;
use crate::telemetry::metrics::Metrics;

pub(crate) struct TestParts {
    pub(crate) client: Client,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) metrics: Metrics,
    /// Event publisher. No task receives the events, so they are discarded.
    pub(crate) events: Events,
    pub(crate) agents: Agents,
    pub(crate) authority: watch::Receiver<Arc<Generations>>,
    pub(crate) store: Store,
    pub(crate) fetcher: Fetcher,
    pub(crate) git: Git,
    pub(crate) references: References,
    pub(crate) scope: Scope,
    pub(crate) tasks: TaskTracker,
    pub(crate) end: CancellationToken,
    _folder: tempfile::TempDir,
}

impl TestParts {
    pub(crate) fn new(client: Client) -> Self {
        let (tasks, end, metrics) = (TaskTracker::new(), CancellationToken::new(), Metrics::default());
        let limit = Duration::from_secs(5);
        let writer = Writer::new(client.clone(), limit, Leadership::sole(), metrics.clone());
        let (events, _) = Events::new(writer.clone(), "test", "test", metrics.clone());
        let now = jiff::Timestamp::now();
        let authority = Authority::generate(now).unwrap();
        let agents = Agents::new(&[authority.issue_client(now).unwrap()], authority.certificate_pem()).unwrap();
        let (_, authority) = watch::channel(Arc::new(Generations::first(authority)));
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), 1024 * 1024).unwrap();
        let hosts = AllowedHosts::services_of("flux-system", "cluster.local");
        let fetcher = Fetcher::new(FetchSettings::new(hosts), store.clone()).unwrap();
        let settings = git::Settings {
            work: folder.path().join("git"),
            trust: folder.path().join("trust"),
            limits: git::Limits::default(),
            artifact_limits: artifact::Limits::default(),
            slots: git::Slots::default(),
            subprocess: Subprocess::of_this_binary(),
        };
        let (git, _) = Git::new(client.clone(), store.clone(), settings, tasks.clone(), end.clone());
        let reader = Reader::new(client.clone(), limit);
        TestParts {
            references: References::new(reader.clone(), references::Poll::default()),
            reader,
            client,
            writer,
            metrics,
            events,
            agents,
            authority,
            store,
            fetcher,
            git,
            scope: Scope::default(),
            tasks,
            end,
            _folder: folder,
        }
    }
}
