//! The identity of the controller: its X.509-SVID and the trust bundles from the SPIFFE Workload API.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use spiffe::transport::Endpoint;
use spiffe::{WorkloadApiClient, WorkloadApiError, X509Source};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::text::chain;

/// Timeout of one attempt to obtain the first X.509-SVID.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the second attempt. Each further attempt doubles the delay.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay between two attempts, and between two connections to the Workload API.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Reason why the controller has no valid X.509-SVID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoIdentity {
    #[error(
        "SPIFFE runtime at {endpoint} does not issue an X.509-SVID to the controller ({cause}): register the pod of \
         the controller in the SPIFFE runtime"
    )]
    NotIssued { endpoint: Arc<str>, cause: String },
    #[error(
        "failed to obtain an X.509-SVID from the SPIFFE Workload API at {endpoint} ({cause}): check that the SPIFFE \
         runtime is running, and that its socket is mounted into the pod of the controller"
    )]
    Unavailable { endpoint: Arc<str>, cause: String },
}

/// Identity of the controller. Clones share the connection to the Workload API. After the first X.509-SVID, the
/// connection continuously delivers renewed X.509-SVIDs and trust bundles, and reconnects if it breaks.
#[derive(Clone, Debug)]
pub struct Identity {
    endpoint: Arc<str>,
    state: watch::Receiver<State>,
}

#[derive(Clone, Debug)]
enum State {
    /// The first attempt is in progress.
    Starting,
    Failed(NoIdentity),
    Issued(X509Source),
}

impl Identity {
    /// Checks the address of a Workload API.
    ///
    /// # Errors
    /// Returns the reason if the address is not valid.
    pub fn check_endpoint(endpoint: &str) -> Result<(), String> {
        Endpoint::parse(endpoint).map(drop).map_err(|error| chain(&error))
    }

    /// Returns the identity that the Workload API at `endpoint` issues, and the task that obtains the first X.509-SVID.
    /// The caller must run the task. `endpoint` has the format of the environment variable `SPIFFE_ENDPOINT_SOCKET`.
    pub fn new(endpoint: &str, end: CancellationToken) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, state) = watch::channel(State::Starting);
        let endpoint: Arc<str> = Arc::from(endpoint);
        let identity = Self { endpoint: endpoint.clone(), state };
        let task = async move {
            tokio::select! {
                () = obtain(&endpoint, &sender) => {}
                () = end.cancelled() => {}
            }
        };
        (identity, task)
    }

    /// Returns the source of the X.509-SVID and the trust bundles. During the first attempt, waits for its result.
    ///
    /// # Errors
    /// Returns an error if the controller has no valid X.509-SVID.
    pub(super) async fn source(&self) -> Result<X509Source, NoIdentity> {
        let mut state = self.state.clone();
        let settled = timeout(2 * ATTEMPT_TIMEOUT, state.wait_for(|state| !matches!(state, State::Starting))).await;
        let source = match settled {
            Ok(Ok(found)) => match &*found {
                State::Issued(source) => source.clone(),
                State::Failed(error) => return Err(error.clone()),
                State::Starting => return Err(self.unavailable("no response")),
            },
            Ok(Err(_)) => return Err(self.unavailable("the controller shuts down")),
            Err(_) => return Err(self.unavailable("no response")),
        };
        match source.svid() {
            Ok(_) => Ok(source),
            Err(error) => Err(self.unavailable(&chain(&error))),
        }
    }

    /// Returns the SPIFFE ID of the controller, for messages.
    pub(super) fn spiffe_id(&self) -> Option<String> {
        match &*self.state.borrow() {
            State::Issued(source) => source.try_svid().map(|svid| svid.spiffe_id().to_string()),
            State::Starting | State::Failed(_) => None,
        }
    }

    fn unavailable(&self, cause: &str) -> NoIdentity {
        NoIdentity::Unavailable { endpoint: self.endpoint.clone(), cause: cause.to_owned() }
    }
}

/// Obtains the first X.509-SVID. Repeats failed attempts with backoff.
async fn obtain(endpoint: &Arc<str>, sender: &watch::Sender<State>) {
    let mut backoff = MIN_BACKOFF;
    loop {
        match attempt(endpoint).await {
            Ok(source) => {
                let id = source.try_svid().map(|svid| svid.spiffe_id().to_string()).unwrap_or_default();
                tracing::info!(spiffe_id = id, endpoint = &**endpoint, "obtained X.509-SVID");
                sender.send_replace(State::Issued(source));
                return;
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, "failed to obtain X.509-SVID; retrying");
                sender.send_replace(State::Failed(error));
            }
        }
        sleep(backoff).await;
        backoff = backoff.saturating_mul(2).min(MAX_BACKOFF);
    }
}

async fn attempt(endpoint: &Arc<str>) -> Result<X509Source, NoIdentity> {
    let unavailable = |cause| NoIdentity::Unavailable { endpoint: endpoint.clone(), cause };
    let expired = || unavailable(format!("no response within {} s", ATTEMPT_TIMEOUT.as_secs()));
    // The source reports only that its first attempts have failed, so this request determines the cause.
    let request = async { WorkloadApiClient::connect_to(endpoint).await?.fetch_x509_context().await };
    match timeout(ATTEMPT_TIMEOUT, request).await.map_err(|_| expired())? {
        Ok(_) => {}
        Err(error @ (WorkloadApiError::NoIdentityIssued | WorkloadApiError::PermissionDenied(_))) => {
            return Err(NoIdentity::NotIssued { endpoint: endpoint.clone(), cause: chain(&error) });
        }
        Err(error) => return Err(unavailable(chain(&error))),
    }
    let source = X509Source::builder()
        .endpoint(endpoint)
        .reconnect_backoff(MIN_BACKOFF, MAX_BACKOFF)
        .initial_sync_timeout(ATTEMPT_TIMEOUT);
    source.build().await.map_err(|error| unavailable(chain(&error)))
}
