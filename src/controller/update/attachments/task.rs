//! Implements the task that attaches to a run. The task reads the agent's messages at a limited rate, and publishes
//! the state and the progress of the run.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prost::Message;
use tokio::time::Instant;

use super::{Attachment, Attachments, RunState, Target};
use crate::api::conditions;
use crate::controller::update::progress::{Progress, ProgressChange};
use crate::controller::update::resource_steps::ResourceSteps;
use crate::rpc::byte_rate::ByteRate;
use crate::rpc::client::{self as rpc, RpcError};
use crate::rpc::proto::attach_reply::Part;
use crate::rpc::proto::{self};

/// Initial retry delay after a failed request to the agent. The delay doubles up to [`MAX_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Maximum retry delay after a failed request to the agent.
const MAX_RETRY: Duration = Duration::from_secs(5);
/// Retry interval while the agent delays the run because of an interactive session.
const HELD_RETRY: Duration = Duration::from_secs(3);
/// Minimum interval between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval between two urgent reports.
const URGENT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of an agent message in a condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Rate limit for messages in bytes per second. A message about an engine step contains about 300 bytes.
const RATE: u32 = 1024 * 1024;
/// Maximum burst in bytes. When a new controller process attaches to a run, the agent sends all messages again. The
/// burst is sufficient for a run with tens of thousands of resources.
const BURST: u32 = 16 * 1024 * 1024;
/// Number of bytes that the rate limit adds to the size of each message.
const MESSAGE: usize = 256;

impl Attachments {
    /// Reads the messages of a run until the run completes, the agent rejects the run, or the task finds that the run
    /// must not start. Retries after errors.
    pub(super) async fn follow(&self, target: Target, serial: u64) {
        let mut following = Following::new(target, serial);
        following.steps = self.records_steps.then(ResourceSteps::default);
        let mut wait = FIRST_RETRY;
        loop {
            let run_state = match Box::pin(self.follow_once(&mut following)).await {
                Ok(run_state) => run_state,
                Err(error) => RunState::Unreachable(error.to_string()),
            };
            let pause = match run_state {
                RunState::Ended(_)
                | RunState::Rejected(_)
                | RunState::PreconditionFailed(_)
                | RunState::NeverStarted => None,
                RunState::Held(_) => Some(HELD_RETRY),
                RunState::Connecting | RunState::Running | RunState::Unreachable(_) => Some(wait),
            };
            self.publish(&mut following, run_state);
            let Some(pause) = pause else { return };
            tokio::time::sleep(pause).await;
            wait = (wait * 2).min(MAX_RETRY);
        }
    }

    /// Handles one connection. The task attaches to the run, starts the run if the agent has no record of it, and
    /// reads messages until the run completes.
    async fn follow_once(&self, following: &mut Following) -> Result<RunState, RpcError> {
        let agent = self.agents.connect(&following.target.address).await?;
        let mut attachment = match Box::pin(attach_or_start(&agent, following)).await? {
            Ok(attachment) => attachment,
            Err(run_state) => return Ok(run_state),
        };
        self.publish(following, RunState::Running);
        while let Some(reply) = self.next(&mut attachment, following).await? {
            let pause = following.rate.spend(reply.encoded_len() + MESSAGE, Instant::now());
            // `sleep` takes at least one millisecond, even if the pause is zero.
            if pause.is_zero() {
                tokio::task::yield_now().await
            } else {
                tokio::time::sleep(pause).await
            }
            match reply.part {
                Some(Part::Progress(progress)) => self.record(following, &progress),
                Some(Part::Result(result)) => return Ok(RunState::Ended(Box::new(result))),
                None => {}
            }
        }
        Ok(RunState::Unreachable("agent closed the stream without a result".to_owned()))
    }

    /// Returns the next message. While waiting for the message, publishes the progress when it is due.
    async fn next(
        &self,
        attachment: &mut rpc::Attachment,
        following: &mut Following,
    ) -> Result<Option<proto::AttachReply>, RpcError> {
        let mut next = std::pin::pin!(attachment.next());
        loop {
            let Some(due) = following.due else { return next.await };
            tokio::select! {
                reply = &mut next => return reply,
                () = tokio::time::sleep_until(due) => self.publish_progress(following),
            }
        }
    }

    fn record(&self, following: &mut Following, progress: &proto::Progress) {
        following.from = progress.sequence + 1;
        let now = Instant::now();
        if let Some(steps) = &mut following.steps {
            steps.observe(progress);
        }
        match following.progress.observe(progress) {
            ProgressChange::None => {}
            ProgressChange::Urgent => {
                // Without a minimum interval, an agent that continuously reports new processes would cause one status
                // write for each report.
                let due = following.published.map_or(now, |published| published + URGENT_INTERVAL);
                following.due = Some(following.due.map_or(due, |before| before.min(due)));
                if due <= now {
                    self.publish_progress(following);
                }
            }
            ProgressChange::Some => {
                let due = following.published.map_or(now, |published| published + PROGRESS_INTERVAL);
                following.due.get_or_insert(due);
            }
        }
    }

    /// Publishes the progress. Requeues the Update if the progress has changed.
    fn publish_progress(&self, following: &mut Following) {
        (following.published, following.due) = (Some(Instant::now()), None);
        let progress = following.progress.status();
        if self
            .change_attachment(following, |attachment| attachment.progress.replace(progress.clone()) != Some(progress))
        {
            self.requeue.request(following.target.update.clone());
        }
    }

    /// Publishes the state, and requeues the Update if the state has changed. If the run has completed, also
    /// publishes the last progress and the resource operations.
    fn publish(&self, following: &mut Following, run_state: RunState) {
        let has_ended = matches!(run_state, RunState::Ended(_));
        let progress = has_ended.then(|| following.progress.status());
        let steps = following.steps.take_if(|_| has_ended).map(Arc::new);
        let (is_silent, now) = (matches!(run_state, RunState::Unreachable(_)), Timestamp::now());
        let is_new = self.change_attachment(following, |attachment| {
            let is_new = attachment.run_state != run_state;
            attachment.run_state = run_state;
            attachment.progress = progress.or_else(|| attachment.progress.take());
            attachment.steps = steps.or_else(|| attachment.steps.take());
            attachment.silent_since = is_silent.then(|| attachment.silent_since.unwrap_or(now));
            is_new
        });
        if is_new {
            self.requeue.request(following.target.update.clone());
        }
    }

    /// Calls `change` with the attachment of the run, and returns the result of `change`. Returns `false` if this
    /// task is no longer attached.
    fn change_attachment(&self, following: &Following, change: impl FnOnce(&mut Attachment) -> bool) -> bool {
        let mut open = self.lock();
        open.get_mut(&following.target.request.id).filter(|a| a.serial == following.serial).is_some_and(change)
    }
}

/// Attaches to the run. Starts the run if the agent has no record of it and the task may start it. If the run does not
/// start, returns the state of the run as the inner error.
async fn attach_or_start(
    agent: &rpc::AgentClient,
    following: &Following,
) -> Result<Result<rpc::Attachment, RunState>, RpcError> {
    let Target { request, may_start, .. } = &following.target;
    if !may_start {
        return attach_or_give_up(agent, following, RunState::NeverStarted).await;
    }
    match agent.attach(&request.id, following.from).await {
        Err(error) if error.is_not_found() => {}
        attached => return attached.map(Ok),
    }
    match agent.run(request.clone()).await {
        Err(error) if error.is_precondition() => {
            attach_or_give_up(agent, following, RunState::PreconditionFailed(error.message)).await
        }
        Err(error) if error.is_refusal() => {
            attach_or_give_up(agent, following, RunState::Rejected(error.message)).await
        }
        Err(error) => Err(error),
        Ok(reply) if !reply.held.is_empty() => Ok(Err(RunState::Held(one_line(&reply.held)))),
        Ok(_) => agent.attach(&request.id, following.from).await.map(Ok),
    }
}

/// Attaches to a run that the task does not start. Returns `not_started` as the inner error if the agent has no record
/// of the run. The agent then never starts the run, even if it has not read an earlier request to start the run yet.
async fn attach_or_give_up(
    agent: &rpc::AgentClient,
    following: &Following,
    not_started: RunState,
) -> Result<Result<rpc::Attachment, RunState>, RpcError> {
    match agent.attach_or_prevent_start(&following.target.request.id, following.from).await {
        Err(error) if error.is_not_found() => Ok(Err(not_started)),
        attached => attached.map(Ok),
    }
}

/// State of a task.
struct Following {
    target: Target,
    serial: u64,
    /// Sequence number of the next message.
    from: u64,
    progress: Progress,
    /// Resource operations, or `None` if the task does not record them.
    steps: Option<ResourceSteps>,
    /// Time of the last progress report.
    published: Option<Instant>,
    /// Time of the next progress report, or `None` if the progress has not changed.
    due: Option<Instant>,
    /// Rate limit of the task. The limit applies to all connections of the task, so an agent cannot reset it by
    /// opening a new connection.
    rate: ByteRate,
}

impl Following {
    fn new(target: Target, serial: u64) -> Self {
        let rate = ByteRate::new(RATE, BURST, Instant::now());
        let progress = Progress::default();
        Following { target, serial, from: 0, progress, steps: None, published: None, due: None, rate }
    }
}

/// Replaces control characters in a string from the agent, and limits the length of the string.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    conditions::shorten(&line, MAX_MESSAGE)
}

#[cfg(test)]
mod tests;
