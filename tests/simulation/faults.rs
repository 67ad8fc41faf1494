//! The faults of a world. Each write to the API server and each call of an agent has a number, and a [`Fault::Step`]
//! names one. A [`Fault::At`] happens at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube_sim::{After, Before, Call, Interceptor, Status as ApiStatus};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tonic::Status;

use super::clock;

/// Time for which a replica cannot renew the Lease in a fault. Longer than the lease duration.
const LEASE_OUTAGE: Duration = Duration::from_secs(180);
/// Time after which a write arrives that was sent before its replica lost the leadership.
const LATE_WRITE: Duration = Duration::from_secs(160);

/// Fault of a world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// At the write or call with this number.
    Step(usize, StepFault),
    /// After this time, in milliseconds.
    At(u64, Disturbance),
}

/// What happens at a write or at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepFault {
    /// The replica crashes before the write.
    CrashBefore,
    /// The replica crashes after the write.
    CrashAfter,
    /// The write is done, and the replica receives an error instead of the response.
    LoseReply,
    /// The write is rejected once with this HTTP status. A call fails before it reaches the agent.
    Reject(u16),
    /// The replica cannot renew the Lease, and the write arrives after the other replica has become the leader.
    LoseLeadership,
}

/// What happens at a time. Each duration is in milliseconds, and each replica has a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disturbance {
    /// The replica crashes, and starts again after this time.
    Crash { replica: usize, restart: u64 },
    /// The replica reaches no agent.
    PartitionAgents { replica: usize, duration: u64 },
    /// All connections of the replica to the API server fail.
    PartitionApi { replica: usize, duration: u64 },
    /// Each request of the replica takes this much longer.
    SlowApi { replica: usize, duration: u64, by: u64 },
    /// The replica cannot renew the Lease, and can do everything else.
    LeaseOutage { replica: usize, duration: u64 },
    /// The watches of this resource deliver all changes later.
    DelayWatch { replica: usize, resource: String, duration: u64, by: u64 },
    /// The watches of this resource deliver nothing, and then only the last change of each object.
    CollapseWatch { replica: usize, resource: String, duration: u64 },
    /// All watches end with `410 Gone`.
    ExpireWatches { replica: usize },
    /// All lists and watches show the state of now.
    Freeze { replica: usize, duration: u64 },
    /// A workspace pod is evicted.
    EvictPod,
    /// The containers of a workspace pod exit.
    ExitContainer,
    /// The node of the workspace pods is unreachable.
    LoseNode { duration: u64 },
    /// The state backend does not respond.
    BackendOutage { duration: u64 },
    /// The next operation of the provider fails.
    FailOperation,
}

impl Disturbance {
    /// Returns the time until the disturbance has ended.
    pub fn duration(&self) -> Duration {
        use Disturbance::{
            BackendOutage, CollapseWatch, Crash, DelayWatch, EvictPod, ExitContainer, ExpireWatches, FailOperation,
            Freeze, LeaseOutage, LoseNode, PartitionAgents, PartitionApi, SlowApi,
        };
        Duration::from_millis(match self {
            Crash { restart, .. } => *restart,
            DelayWatch { duration, by, .. } => duration + by,
            PartitionAgents { duration, .. }
            | PartitionApi { duration, .. }
            | SlowApi { duration, .. }
            | LeaseOutage { duration, .. }
            | CollapseWatch { duration, .. }
            | Freeze { duration, .. }
            | BackendOutage { duration }
            | LoseNode { duration } => *duration,
            ExpireWatches { .. } | EvictPod | ExitContainer | FailOperation => 0,
        })
    }
}

/// The planned faults, and what has happened. Cloning is cheap.
#[derive(Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Default)]
struct Shared {
    content: Mutex<Content>,
    /// Processes that have crashed.
    crashed: watch::Sender<BTreeSet<String>>,
}

#[derive(Default)]
struct Content {
    planned: BTreeMap<usize, StepFault>,
    /// Description of each write and call, in order.
    steps: Vec<String>,
    /// All events, with their times.
    trace: Vec<String>,
    /// Hash of all events, and of all requests and events of watches.
    hash: DefaultHasher,
    traces_requests: bool,
    violations: Vec<String>,
    /// End of each outage, by kind and replica.
    outages: BTreeMap<(Outage, String), Duration>,
    /// Additional time of each request, by replica.
    slow: BTreeMap<String, (Duration, Duration)>,
    /// Random latencies of requests. Without them, all requests are immediate.
    latency: Option<fastrand::Rng>,
}

/// Connection that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outage {
    Agents,
    Api,
    Lease,
}

/// Returns the name of the replica of a process. The processes of the replica `controller-0` are `controller-0.1`,
/// `controller-0.2` and so on.
pub fn replica(process: &str) -> &str {
    process.split('.').next().unwrap_or_default()
}

impl Faults {
    pub fn new(planned: &[Fault], latency: Option<fastrand::Rng>) -> Faults {
        let faults = Faults::default();
        let steps = planned.iter().filter_map(|fault| match fault {
            Fault::Step(number, fault) => Some((*number, *fault)),
            Fault::At(..) => None,
        });
        faults.content().planned = steps.collect();
        faults.content().latency = latency;
        faults
    }

    /// Returns the descriptions of all writes and calls so far.
    pub fn steps(&self) -> Vec<String> {
        self.content().steps.clone()
    }

    /// Adds a line to the trace.
    pub fn trace(&self, line: &str) {
        let time = clock::elapsed();
        let mut content = self.content();
        (time, line).hash(&mut content.hash);
        content.trace.push(format!("{:>6}.{:03} {line}", time.as_secs(), time.subsec_millis()));
    }

    /// Adds a request or an event of a watch to the hash of the trace, and to the trace if it is complete.
    pub fn trace_request(&self, line: &str) {
        if self.content().traces_requests {
            return self.trace(line);
        }
        line.hash(&mut self.content().hash);
    }

    /// Adds all requests and events of watches to the trace.
    pub fn trace_requests(&self) {
        self.content().traces_requests = true;
    }

    pub fn take_trace(&self) -> Vec<String> {
        std::mem::take(&mut self.content().trace)
    }

    /// Returns the hash of everything that has happened, which is equal for equal cases.
    pub fn hash(&self) -> u64 {
        self.content().hash.finish()
    }

    /// Records something that must never happen.
    pub fn violation(&self, text: &str) {
        self.trace(&format!("VIOLATION {text}"));
        let mut content = self.content();
        if !content.violations.iter().any(|known| known == text) {
            content.violations.push(text.to_owned());
        }
    }

    pub fn violations(&self) -> Vec<String> {
        self.content().violations.clone()
    }

    /// Makes a connection of a replica fail for some time.
    pub fn begin_outage(&self, outage: Outage, replica: &str, duration: Duration) {
        let end = clock::elapsed() + duration;
        self.content().outages.insert((outage, replica.to_owned()), end);
    }

    pub fn begin_slow(&self, replica: &str, duration: Duration, by: Duration) {
        self.content().slow.insert(replica.to_owned(), (clock::elapsed() + duration, by));
    }

    fn is_out(&self, outage: Outage, process: &str) -> bool {
        let end = self.content().outages.get(&(outage, replica(process).to_owned())).copied();
        end.is_some_and(|end| clock::elapsed() < end)
    }

    /// Returns the additional time of a request of this process.
    fn latency(&self, process: &str) -> Duration {
        let mut content = self.content();
        let random = content.latency.as_mut().map_or(0, |random| random.u64(0..20));
        let slow = content.slow.get(replica(process)).filter(|(end, _)| clock::elapsed() < *end);
        Duration::from_millis(random) + slow.map(|(_, by)| *by).unwrap_or_default()
    }

    pub fn is_crashed(&self, process: &str) -> bool {
        self.0.crashed.borrow().contains(process)
    }

    /// Waits until the process crashes.
    pub async fn until_crashed(&self, process: &str) {
        let mut crashed = self.0.crashed.subscribe();
        // The sender lives as long as this object.
        let _ = crashed.wait_for(|crashed| crashed.contains(process)).await;
    }

    /// Crashes a process, or records its end: it neither sends nor receives anything from now on.
    pub fn end(&self, process: &str) {
        if self.0.crashed.send_if_modified(|crashed| crashed.insert(process.to_owned())) {
            self.trace(&format!("{process} ends"));
        }
    }

    /// Counts a step of a process, and returns its fault.
    fn count(&self, process: &str, step: &str) -> Option<StepFault> {
        let mut content = self.content();
        let number = content.steps.len();
        content.steps.push(format!("{process}: {step}"));
        let fault = content.planned.get(&number).copied();
        drop(content);
        self.trace(&match fault {
            None => format!("{process} #{number} {step}"),
            Some(fault) => format!("{process} #{number} {step} !! {fault:?}"),
        });
        if fault == Some(StepFault::LoseLeadership) {
            self.begin_outage(Outage::Lease, replica(process), LEASE_OUTAGE);
        }
        fault
    }

    /// Returns the fault of a call of an agent.
    pub fn next(&self, process: &str, step: &str) -> CallFault {
        CallFault { fault: self.count(process, step), process: process.to_owned(), faults: self.clone() }
    }

    /// Returns an error if the process cannot reach agents. Waits forever if the process has crashed.
    pub async fn check(&self, process: &str) -> Result<(), Status> {
        if self.is_crashed(process) {
            return std::future::pending().await;
        }
        match self.is_out(Outage::Agents, process) {
            true => Err(Status::unavailable("no route to host")),
            false => Ok(()),
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.0.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fault of a call of an agent.
pub struct CallFault {
    fault: Option<StepFault>,
    process: String,
    faults: Faults,
}

impl CallFault {
    /// Applies the fault before the agent handles the call. Returns an error if the connection is lost.
    pub async fn before(&self) -> Result<(), ()> {
        match self.fault {
            Some(StepFault::CrashBefore) => self.faults.end(&self.process),
            Some(StepFault::LoseLeadership) => tokio::time::sleep(LATE_WRITE).await,
            Some(StepFault::Reject(_)) => return Err(()),
            _ => {}
        }
        self.faults.check(&self.process).await.map_err(drop)
    }

    /// Applies the fault after the agent has handled the call. Returns an error if the connection is lost.
    pub async fn after(&self) -> Result<(), ()> {
        match self.fault {
            Some(StepFault::CrashAfter) => self.faults.end(&self.process),
            Some(StepFault::LoseReply) => return Err(()),
            _ => {}
        }
        self.faults.check(&self.process).await.map_err(drop)
    }
}

/// Applies the faults to the requests of the replicas to the API server.
pub struct ApiFaults {
    faults: Faults,
    /// Faults of the writes that are in progress, by number of the request.
    current: BTreeMap<u64, StepFault>,
}

impl ApiFaults {
    pub fn new(faults: &Faults) -> ApiFaults {
        ApiFaults { faults: faults.clone(), current: BTreeMap::new() }
    }
}

/// Returns whether a request is a step of a scenario. The renewals of the Lease and the events are not.
pub fn is_step(call: &Call) -> bool {
    call.verb.is_write() && !call.is_dry_run && !["leases", "events"].contains(&call.resource.resource.as_str())
}

impl Interceptor for ApiFaults {
    fn before(&mut self, call: &Call) -> Before {
        let faults = &self.faults;
        if faults.is_crashed(&call.actor) {
            return Before::Hang;
        }
        let is_lease = call.resource.resource == "leases";
        if faults.is_out(Outage::Api, &call.actor) || is_lease && faults.is_out(Outage::Lease, &call.actor) {
            return Before::Disconnect;
        }
        let latency = faults.latency(&call.actor);
        let pass = if latency.is_zero() { Before::Pass } else { Before::Delay(latency) };
        if !is_step(call) {
            return pass;
        }
        let step =
            format!("{} {} {}/{} {}", call.verb, call.resource.resource, call.namespace, call.name, call.subresource);
        let Some(fault) = faults.count(&call.actor, step.trim_end()) else { return pass };
        self.current.insert(call.sequence, fault);
        match fault {
            StepFault::CrashBefore => {
                faults.end(&call.actor);
                Before::Hang
            }
            StepFault::Reject(code) => Before::Fail(rejection(code)),
            StepFault::LoseLeadership => Before::DelayInNetwork(LATE_WRITE),
            StepFault::CrashAfter | StepFault::LoseReply => pass,
        }
    }

    fn after(&mut self, call: &Call, outcome: &Result<u64, ApiStatus>) -> After {
        if let Err(status) = outcome
            && is_step(call)
        {
            self.faults.trace(&format!("{} {} {} -> {}", call.actor, call.verb, call.name, status.code));
        }
        match self.current.remove(&call.sequence) {
            Some(StepFault::CrashAfter) => {
                self.faults.end(&call.actor);
                After::Hang
            }
            Some(StepFault::LoseReply) => After::Disconnect,
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
