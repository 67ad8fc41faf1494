//! Receives webhooks: finds the StackReceiver for the path, authenticates the call, and requests runs of the referenced
//! Stacks.
//!
//! Every replica receives webhooks, because the Service distributes calls to all replicas. Like a user, a replica
//! requests a run with an annotation, which the leader processes.

mod call_limits;
mod directory;
mod handler;
mod issuers;
mod oidc_token;
mod proof;
mod run_requests;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::pulumi::StackReceiver;
use crate::api::tolerant::Tolerant;
use crate::receiver::call_limits::DelayedRefusals;
use crate::receiver::directory::Directory;
use crate::receiver::handler::Handler;
use crate::receiver::issuers::Issuers;
use crate::receiver::run_requests::RunRequester;
use crate::runtime::events::Events;
use crate::runtime::reads::Reader;
use crate::runtime::scope::Scope;
use crate::runtime::tolerant_watcher;
use crate::runtime::watch::strip_metadata;
use crate::runtime::writes::{Leadership, Writer};
use crate::server;
use crate::telemetry::metrics::Metrics;

/// Timeout of a request to the API server. The timeout is shorter than the callers' timeouts. For example, GitHub's
/// timeout is ten seconds.
const API_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the response to a rejected call. The handler reads the Secret in the first half of the delay, and
/// compares the signature in the second half.
const REFUSAL_DELAY: Duration = Duration::from_millis(250);
/// Timeout for the initial list of receivers. After this timeout, a replica becomes ready without the list.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(15);

pub use issuers::IssuerSettings;

/// The webhook server's dependencies and settings.
pub struct Settings {
    pub client: Client,
    pub scope: Scope,
    pub metrics: Metrics,
    pub tasks: TaskTracker,
    /// Controller name that events contain.
    pub component: &'static str,
    /// Pod name that events contain.
    pub instance: String,
    pub limits: server::Limits,
    pub issuers: IssuerSettings,
}

/// Returns the connection limits of the webhook server. The calls in progress, the waiting calls and the delayed
/// responses leave connections for further clients. All calls can have the same peer, because an Ingress forwards them.
pub fn connection_limits() -> server::Limits {
    server::Limits { connections: 256, waiting_per_peer: 64, ..server::Limits::default() }
}

/// Starts the webhook server, which runs until `end` is canceled. The returned future completes when the initial list
/// of receivers is complete, or after `FIRST_LIST_TIMEOUT`. The server rejects calls to a receiver until the watch has
/// listed the receiver.
pub fn start(settings: Settings, listener: TcpListener, end: &CancellationToken) -> impl Future<Output = ()> + use<> {
    let Settings { client, scope, metrics, tasks, component, instance, limits, issuers } = settings;
    // Requesting a run does not require leadership, because the replica sets the same annotation as a user.
    let writer = Writer::new(client.clone(), API_TIMEOUT, Leadership::sole(), metrics.clone());
    let (events, event_task) = Events::new(writer.clone(), component, &instance, metrics.clone());
    let directory = Directory::default();
    let (listed_sender, listed) = watch::channel(false);
    tasks.spawn(follow(scope.api(client.clone()), scope.own_kinds(), directory.clone(), listed_sender, end.clone()));
    tasks.spawn(event_task.run(end.clone()));
    let reader = Reader::new(client, API_TIMEOUT);
    let handler = Handler {
        directory,
        reader: reader.clone(),
        requester: RunRequester::new(reader, writer),
        issuers: Issuers::new(issuers, tasks.clone()),
        events,
        metrics,
        refusal_delay: REFUSAL_DELAY,
        delayed_refusals: DelayedRefusals::default(),
    };
    let router = handler::router(Arc::new(handler));
    tasks.spawn(server::serve("webhooks", listener, router, limits, tasks.clone(), end.clone()));
    wait_until_listed(listed, end.clone())
}

/// Watches the receivers and keeps the directory up to date.
async fn follow(
    api: Api<Tolerant<StackReceiver>>,
    config: watcher::Config,
    directory: Directory,
    listed: watch::Sender<bool>,
    end: CancellationToken,
) {
    let mut changes = pin!(tolerant_watcher::watcher(api, config).modify(strip_metadata));
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            () = end.cancelled() => return,
        };
        match change {
            Some(Ok(event)) => {
                let is_done = matches!(event, Event::InitDone);
                directory.apply(event);
                if is_done {
                    listed.send_replace(true);
                }
            }
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "failed to watch StackReceivers")
            }
            None => return,
        }
    }
}

/// Waits for the initial list of receivers until the timeout. The wait is limited, because the controller's other tasks
/// do not need the list.
async fn wait_until_listed(mut listed: watch::Receiver<bool>, end: CancellationToken) {
    tokio::select! {
        _ = listed.wait_for(|listed| *listed) => {}
        () = end.cancelled() => {}
        () = tokio::time::sleep(FIRST_LIST_TIMEOUT) => {
            tracing::warn!("the list of StackReceivers is not available yet; rejecting webhook calls to StackReceivers that are not listed");
        }
    }
}

#[cfg(test)]
mod tests;
