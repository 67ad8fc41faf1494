//! The faults of a world: each write to the API server and each call of an agent has a number, and a fault names one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube_sim::{After, Before, Call, Interceptor, Status as ApiStatus};
use tokio::sync::Notify;
use tonic::Status;

/// What happens at a write or at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The replica crashes before the write.
    CrashBefore,
    /// The replica crashes after the write.
    CrashAfter,
    /// The write is done, and the replica receives an error instead of the response.
    LoseReply,
    /// The write is rejected once with this HTTP status.
    Reject(u16),
}

/// A fault at the n-th write or call of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub number: usize,
    pub kind: Kind,
}

/// The planned faults, and what has happened. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Default)]
struct Shared {
    content: Mutex<Content>,
    crash: Notify,
}

#[derive(Default)]
struct Content {
    planned: Vec<Fault>,
    /// Description of each write and call, in order.
    steps: Vec<String>,
    crashed: Vec<String>,
}

/// Fault of a call of an agent.
pub struct CallFault {
    kind: Option<Kind>,
    replica: String,
    faults: Faults,
}

impl Faults {
    pub fn new(planned: &[Fault]) -> Faults {
        let content = Content { planned: planned.to_vec(), ..Content::default() };
        Faults(Arc::new(Shared { content: Mutex::new(content), crash: Notify::new() }))
    }

    /// Returns the descriptions of all writes and calls so far.
    pub fn steps(&self) -> Vec<String> {
        self.content().steps.clone()
    }

    pub fn is_crashed(&self, replica: &str) -> bool {
        self.content().crashed.iter().any(|crashed| crashed == replica)
    }

    /// Waits until a replica crashes.
    pub async fn crash(&self) {
        self.0.crash.notified().await;
    }

    /// Counts a step of a replica, and returns its fault.
    fn count(&self, replica: &str, step: &str) -> Option<Kind> {
        let mut content = self.content();
        let number = content.steps.len();
        content.steps.push(format!("{replica}: {step}"));
        content.planned.iter().find(|fault| fault.number == number).map(|fault| fault.kind)
    }

    pub fn next(&self, replica: &str, step: &str) -> CallFault {
        CallFault { kind: self.count(replica, step), replica: replica.to_owned(), faults: self.clone() }
    }

    /// Waits forever if the replica has crashed.
    pub async fn check(&self, replica: &str) -> Result<(), Status> {
        if self.is_crashed(replica) {
            return std::future::pending().await;
        }
        Ok(())
    }

    /// Crashes a replica: it neither sends nor receives anything from now on.
    fn crash_now(&self, replica: &str) {
        self.end(replica);
        self.0.crash.notify_one();
    }

    /// Records that the process of a replica has ended.
    pub fn end(&self, replica: &str) {
        if !self.is_crashed(replica) {
            self.content().crashed.push(replica.to_owned());
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallFault {
    /// Applies the fault before the agent handles the call. Returns an error if the connection is lost.
    pub async fn before(&self) -> Result<(), ()> {
        if self.kind == Some(Kind::CrashBefore) {
            self.faults.crash_now(&self.replica);
        }
        if self.faults.is_crashed(&self.replica) {
            return std::future::pending().await;
        }
        match self.kind {
            Some(Kind::Reject(_)) => Err(()),
            _ => Ok(()),
        }
    }

    /// Applies the fault after the agent has handled the call. Returns an error if the connection is lost.
    pub async fn after(&self) -> Result<(), ()> {
        match self.kind {
            Some(Kind::CrashAfter) => {
                self.faults.crash_now(&self.replica);
                std::future::pending().await
            }
            Some(Kind::LoseReply) => Err(()),
            _ => Ok(()),
        }
    }
}

/// Applies the faults to the requests of the replicas to the API server.
pub struct ApiFaults {
    faults: Faults,
    /// Fault of the write that is in progress. The server handles one request at a time.
    current: Option<Kind>,
}

impl ApiFaults {
    pub fn new(faults: &Faults) -> ApiFaults {
        ApiFaults { faults: faults.clone(), current: None }
    }
}

impl Interceptor for ApiFaults {
    fn before(&mut self, call: &Call) -> Before {
        self.current = None;
        if self.faults.is_crashed(&call.actor) {
            return Before::Hang;
        }
        // The renewals of the Lease and the events do not belong to the steps of a scenario.
        if !call.verb.is_write() || call.is_dry_run || ["leases", "events"].contains(&call.resource.resource.as_str()) {
            return Before::Pass;
        }
        let step =
            format!("{:?} {} {}/{} {}", call.verb, call.resource.resource, call.namespace, call.name, call.subresource);
        self.current = self.faults.count(&call.actor, step.trim_end());
        match self.current {
            Some(Kind::CrashBefore) => {
                self.faults.crash_now(&call.actor);
                Before::Hang
            }
            Some(Kind::Reject(code)) => Before::Fail(rejection(code)),
            _ => Before::Pass,
        }
    }

    fn after(&mut self, call: &Call, _: &Result<u64, ApiStatus>) -> After {
        match self.current.take() {
            Some(Kind::CrashAfter) => {
                self.faults.crash_now(&call.actor);
                After::Hang
            }
            Some(Kind::LoseReply) => After::Disconnect,
            _ if self.faults.is_crashed(&call.actor) => After::Hang,
            _ => After::Reply,
        }
    }
}

fn rejection(code: u16) -> ApiStatus {
    let reason = match code {
        409 => "Conflict",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    ApiStatus::new(code, reason, "rejected by the simulation")
}
