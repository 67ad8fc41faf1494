//! Response of an agent to a status request.

use crate::rpc::proto::StatusReply;

/// Response of the agent.
#[derive(Clone, Debug)]
pub(super) enum Agent {
    /// The controller has not called the agent, for example because the pod is starting.
    NotCalled,
    Unreachable(String),
    Responded(Box<StatusReply>),
}

impl Agent {
    /// Returns whether the agent does not respond or is being drained.
    pub(super) fn is_unavailable(&self) -> bool {
        match self {
            Agent::NotCalled => false,
            Agent::Unreachable(_) => true,
            Agent::Responded(reply) => reply.draining,
        }
    }

    /// Returns whether the controller has called the agent without a response.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Agent::Unreachable(_))
    }

    /// Returns whether the agent reports a run, an interactive session or an installation.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Agent::Responded(reply)
            if !reply.open_operation.is_empty() || reply.interactive_session.is_some() || reply.candidate.is_some())
    }
}
