//! Faults: what happens to a request before and after its commit, and to the events of watches.

use std::time::Duration;

use crate::request::Call;
use crate::status::Status;

/// Decides about each request. Implement this trait, or use a closure for the part before the commit.
///
/// The server calls an interceptor without holding its lock, so an interceptor can read and change the server's
/// objects.
pub trait Interceptor: Send {
    /// Decides what happens to a request before the server handles it.
    fn before(&mut self, call: &Call) -> Before {
        let _ = call;
        Before::Pass
    }

    /// Decides what happens to the response. For a write, the change has been committed. `outcome` is the revision after
    /// the request, or the error of the request. A caller can be crashed here.
    fn after(&mut self, call: &Call, outcome: &Result<u64, Status>) -> After {
        let _ = (call, outcome);
        After::Reply
    }
}

impl<F: FnMut(&Call) -> Before + Send> Interceptor for F {
    fn before(&mut self, call: &Call) -> Before {
        self(call)
    }
}

/// What happens to a request before the server handles it.
#[derive(Clone, Debug)]
pub enum Before {
    Pass,
    /// The server rejects the request.
    Fail(Status),
    /// The request arrives later. If the client gives up earlier, the request never arrives.
    Delay(Duration),
    /// The request arrives later, even if the client has given up.
    DelayInNetwork(Duration),
    /// The request never arrives, and the client receives no response.
    Hang,
    /// The request never arrives, and the client receives a connection error.
    Disconnect,
}

/// What happens to a response.
#[derive(Clone, Debug)]
pub enum After {
    Reply,
    /// The response arrives later.
    Delay(Duration),
    /// The response is lost, and the client receives nothing.
    Hang,
    /// The response is lost, and the client receives a connection error.
    Disconnect,
}

/// Connection error that a client receives.
#[derive(Debug, thiserror::Error)]
#[error("connection closed by kube-sim before the response")]
pub struct Disconnected;

/// How the events of a watch are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    #[default]
    Immediate,
    /// Each event arrives after this time.
    Delayed(Duration),
    /// Events wait until the delivery changes.
    Held,
    /// Events wait until the delivery changes. Then only the last event about each object arrives: a deletion and a
    /// creation with the same name become one modification.
    Collapsed,
}
