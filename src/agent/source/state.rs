//! State of the current source and of the candidate, including the candidate's progress and cancellation. A candidate
//! is a requested source that the agent has not completely installed yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::swap::CurrentSource;
use crate::agent::command::CliVersion;
use crate::agent::install::cache::DependencyCache;
use crate::agent::layout::Layout;
use crate::agent::refusal::Refusal;
use crate::agent::settings::Settings;
use crate::agent::workspace_lock::{WorkspaceGuard, WorkspaceLock};
use crate::artifact::{Digest, DigestError, Directory, DirectoryError, Limits};
use crate::rpc::proto;

/// Delay before the second attempt. The delay doubles after each attempt, up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_secs(5);
/// Maximum delay between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(10 * 60);
/// Polling interval during an installation.
pub(super) const POLL: Duration = Duration::from_secs(1);

/// Maximum time that a new source waits for a canceled candidate. The candidate can take a long time to stop. After a
/// failed trial, the candidate waits until all interactive sessions have ended, and then restores the previous source.
const YIELD_TIMEOUT: Duration = Duration::from_secs(30);

/// Installs sources.
pub struct Source {
    pub(super) layout: Layout,
    pub(super) workspace_lock: WorkspaceLock,
    pub(super) settings: Arc<Settings>,
    pub(super) boot_id: String,
    pub(super) state: Mutex<State>,
    /// Policy packs that the agent has received. The map keys are the directory names of the packs.
    pub(super) policy_packs: Mutex<PolicyPacks>,
    /// Lock that serializes the calls that deliver policy packs, because each call needs space for an archive.
    pub(super) policy_delivery: tokio::sync::Mutex<()>,
    /// Token that cancels the candidate when the agent shuts down.
    pub(super) stop: CancellationToken,
    /// Tasks that install sources.
    pub tasks: TaskTracker,
    pub version: CliVersion,
    /// Dependency cache of the namespace, or `None` if the pod mounts no cache volume.
    pub(super) cache: Option<DependencyCache>,
    /// Plugins that were installed when the agent started, for example those of the image.
    pub(super) first_plugins: Vec<String>,
    /// Whether the agent installs dependencies. The `fetch` init container installs no dependencies, because it has no
    /// CLI.
    pub(super) installs: bool,
}

/// Current source and the candidate that will replace it.
#[derive(Default)]
pub(super) struct State {
    pub(super) current_source: Option<CurrentSource>,
    pub(super) candidate: Option<Arc<Candidate>>,
}

/// Policy packs, with their directory names as keys.
pub(super) type PolicyPacks = BTreeMap<String, PolicyPack>;

/// A policy pack that the agent has received.
pub(super) struct PolicyPack {
    pub(super) artifact: proto::Artifact,
    /// Installation of the pack, or `None` if the pack is already installed.
    pub(super) candidate: Option<Arc<Candidate>>,
}

impl Source {
    pub(super) fn policy_packs(&self) -> MutexGuard<'_, PolicyPacks> {
        self.policy_packs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Source that the controller requests.
#[derive(Clone, Debug)]
pub(super) struct Desired {
    pub(super) digest: Digest,
    pub(super) directory: Directory,
    /// Size of the archive in bytes.
    pub(super) size: u64,
    /// Limits for the archive and its unpacked content.
    pub(super) limits: Limits,
    /// Environment for the installation of dependencies.
    pub(super) environment: Vec<proto::EnvironmentVariable>,
    /// Directories of mounted objects. The installation waits until all these directories have entries.
    pub(super) required_directories: Vec<String>,
}

impl Desired {
    pub(super) fn has_same_source(&self, other: &Desired) -> bool {
        self.digest == other.digest && self.directory == other.directory
    }

    /// Returns the source whose dependencies are missing, with the environment from the recorded header. Returns `None`
    /// if the record is invalid.
    pub(super) fn awaited(current_source: &CurrentSource) -> Option<Desired> {
        let header = hex::decode(&current_source.header).unwrap_or_default();
        let header = proto::SourceHeader::decode(header.as_slice()).unwrap_or_default();
        let CurrentSource { digest, directory, .. } = current_source.clone();
        let artifact = Some(proto::Artifact { digest, directory });
        Desired::try_from(proto::SourceHeader { artifact, ..header }).ok()
    }

    /// Returns the header for [`CurrentSource::header`].
    pub(super) fn to_header(&self) -> String {
        let header = proto::SourceHeader {
            artifact: Some(self.artifact()),
            environment: self.environment.clone(),
            required_directories: self.required_directories.clone(),
            ..proto::SourceHeader::default()
        };
        hex::encode(header.encode_to_vec())
    }

    pub(super) fn artifact(&self) -> proto::Artifact {
        proto::Artifact { digest: self.digest.to_string(), directory: self.directory.as_str().to_owned() }
    }
}

impl TryFrom<proto::SourceHeader> for Desired {
    type Error = Refusal;

    fn try_from(header: proto::SourceHeader) -> Result<Self, Refusal> {
        let limits = limits(&header);
        let artifact = header.artifact.ok_or_else(|| Refusal::Invalid("source header has no artifact".to_owned()))?;
        Ok(Desired {
            digest: artifact.digest.parse().map_err(|error: DigestError| invalid(&error))?,
            directory: artifact.directory.parse().map_err(|error: DirectoryError| invalid(&error))?,
            size: header.size,
            limits,
            environment: header.environment,
            required_directories: header.required_directories,
        })
    }
}

/// Returns the limits in the header. The function replaces a limit of 0 with the default limit, because earlier
/// versions of the controller send 0.
fn limits(header: &proto::SourceHeader) -> Limits {
    let or = |requested: u64, default: u64| if requested == 0 { default } else { requested };
    let default = Limits::default();
    Limits {
        download_bytes: or(header.most_bytes, default.download_bytes),
        unpacked_bytes: or(header.most_unpacked_bytes, default.unpacked_bytes),
        ..default
    }
}

fn invalid(error: &dyn std::error::Error) -> Refusal {
    Refusal::Invalid(error.to_string())
}

/// Sender for the reply to the caller that delivered the source. The agent replies only once: when it has installed the
/// source, when it rejects the source, or before a long step.
type Reply = oneshot::Sender<Result<(), Refusal>>;

pub(super) struct Candidate {
    pub desired: Desired,
    /// Token that the agent cancels when the controller requests another source, or when the agent shuts down.
    pub cancel: CancellationToken,
    /// Token that the agent cancels when the source installation has ended, with or without success.
    pub ended: CancellationToken,
    progress: Mutex<Progress>,
}

struct Progress {
    doing: String,
    failure: String,
    failures: u32,
    reply: Option<Reply>,
}

impl Candidate {
    /// Creates a candidate and the receiver for its reply.
    pub fn new(desired: Desired, stop: &CancellationToken) -> (Self, oneshot::Receiver<Result<(), Refusal>>) {
        let (reply, answered) = oneshot::channel();
        let doing = "replacing the previous source".to_owned();
        let progress = Mutex::new(Progress { doing, reply: Some(reply), failure: String::new(), failures: 0 });
        (Candidate { desired, cancel: stop.child_token(), ended: CancellationToken::new(), progress }, answered)
    }

    /// Records a long step as the candidate's progress. The function also replies to the caller, because the caller
    /// does not wait for a long step.
    pub fn report(&self, doing: impl Into<String>) {
        let doing = doing.into();
        tracing::info!(digest = %self.desired.digest, doing, "installing the source");
        self.progress().doing = doing;
        self.reply(Ok(()));
    }

    /// Cancels this candidate in favor of another source, and waits until the candidate's installation has ended.
    pub async fn supersede(&self) -> Result<(), Refusal> {
        self.cancel.cancel();
        let ended = tokio::time::timeout(YIELD_TIMEOUT, self.ended.cancelled()).await;
        ended.map_err(|_| {
            let doing = self.progress().doing.clone();
            Refusal::Precondition(format!("source {} is still being installed: {doing}", self.desired.digest))
        })
    }

    /// Replies to the caller, unless the candidate has already replied.
    pub fn reply(&self, reply: Result<(), Refusal>) {
        if let Some(sender) = self.progress().reply.take() {
            // The caller may have disconnected.
            let _ = sender.send(reply);
        }
    }

    pub fn has_replied(&self) -> bool {
        self.progress().reply.is_none()
    }

    /// Records the error of the last attempt.
    pub fn fail(&self, failure: &str) {
        tracing::warn!(digest = %self.desired.digest, failure, "failed to install the source; retrying");
        let mut progress = self.progress();
        progress.failure = failure.to_owned();
        progress.failures = progress.failures.saturating_add(1);
    }

    /// Returns the number of failed attempts.
    pub fn failures(&self) -> u32 {
        self.progress().failures
    }

    pub fn to_proto(&self) -> proto::Candidate {
        let progress = self.progress();
        let artifact = Some(self.desired.artifact());
        proto::Candidate { artifact, doing: progress.doing.clone(), failure: progress.failure.clone() }
    }

    /// Waits for the backoff delay, or for `retry_after` if it is longer, and then for the workspace lock. Returns
    /// `None` if the controller no longer requests the source.
    pub async fn pause(
        &self,
        attempts: u32,
        retry_after: Option<Duration>,
        workspace_lock: &WorkspaceLock,
    ) -> Option<WorkspaceGuard> {
        let backoff = MIN_BACKOFF.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1))).min(MAX_BACKOFF);
        // The random part prevents that pods that wait for the same server retry together.
        let retry_after = retry_after.map(|delay| delay.mul_f64(1.0 + fastrand::f64() / 4.0));
        let pause = backoff.max(retry_after.unwrap_or_default());
        if !self.sleep(pause).await {
            return None;
        }
        self.enter(workspace_lock).await
    }

    /// Waits for the workspace lock. Returns `None` if the controller no longer requests the source.
    pub async fn enter(&self, workspace_lock: &WorkspaceLock) -> Option<WorkspaceGuard> {
        loop {
            if let Ok(guard) = workspace_lock.lock_for_source() {
                return Some(guard);
            }
            if !self.sleep(POLL).await {
                return None;
            }
        }
    }

    /// Sleeps for `time`. Returns `false` early if the controller no longer requests the source.
    pub async fn sleep(&self, time: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => !self.cancel.is_cancelled(),
            () = self.cancel.cancelled() => false,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
