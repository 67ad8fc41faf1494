//! Simulates many Stacks with one source in virtual time. The simulation uses the controller's queue for run slots and
//! its status computation.

use crate::api::pulumi::RunInputs;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::api::auto::{RunBinding, Update, UpdateStatus};
use crate::api::names;
use crate::api::pulumi::{CurrentUpdate, Stack, StackSpec, StackStatus};
use crate::controller::stack::build_update;
use crate::controller::stack::status::{State, started, with_result, with_state};
use crate::controller::update::run_in;
use crate::runtime::fair_queue::{FairQueue, Limits};

const STACKS: usize = 1000;
const SLOTS: usize = 10;
/// Seconds between two commits.
const COMMIT_INTERVAL: u64 = 600;
/// Mean duration of a run in seconds.
const RUN: u64 = 60;
/// Duration of a pass in seconds. During one pass, each Stack can run once.
const PASS: u64 = STACKS as u64 * RUN / SLOTS as u64;

enum Event {
    Commit,
    /// The Stack's pod has received the source of this commit.
    SourceDelivered(usize, u64),
    Ended(usize),
}

struct Member {
    stack: Stack,
    /// Queued or open Update.
    update: Option<Update>,
    is_open: bool,
    /// Commit of the Update.
    commit: u64,
    /// Start times of all runs, in seconds.
    starts: Vec<u64>,
}

struct Simulation {
    members: Vec<Member>,
    queue: FairQueue<usize>,
    events: BTreeMap<u64, VecDeque<Event>>,
    begin: Instant,
    second: u64,
    commit: u64,
    random: fastrand::Rng,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let members = (0..STACKS).map(|number| {
            let mut stack = Stack::new(&format!("app-{number:04}"), StackSpec::default());
            stack.metadata.namespace = Some("apps".to_owned());
            stack.metadata.uid = Some(format!("uid-{number:04}"));
            stack.metadata.generation = Some(1);
            stack.status = Some(StackStatus::default());
            Member { stack, update: None, is_open: false, commit: 0, starts: Vec::new() }
        });
        let limits = Limits { all: SLOTS, each_namespace: SLOTS, each_node: SLOTS + 1 };
        Simulation {
            members: members.collect(),
            queue: FairQueue::new(limits),
            events: BTreeMap::new(),
            begin: Instant::now(),
            second: 0,
            commit: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(i64::try_from(self.second).unwrap()).unwrap()
    }

    fn instant(&self) -> Instant {
        self.begin + Duration::from_secs(self.second)
    }

    fn after(&mut self, seconds: u64, event: Event) {
        self.events.entry(self.second + seconds).or_default().push_back(event);
    }

    fn run_until(&mut self, end: u64) {
        self.after(0, Event::Commit);
        while let Some(mut next) = self.events.first_entry() {
            self.second = *next.key();
            if self.second > end {
                return;
            }
            match next.get_mut().pop_front() {
                Some(Event::Commit) => self.commit(),
                Some(Event::SourceDelivered(number, commit)) => self.create_update(number, commit),
                Some(Event::Ended(number)) => self.finish_run(number),
                None => drop(next.remove()),
            }
            while let Some(number) = self.queue.next_requeue(self.instant()) {
                self.request_slot(number);
            }
        }
    }

    /// Revokes all queued runs, and delivers the new source to all Workspaces in random order.
    fn commit(&mut self) {
        self.commit += 1;
        self.after(COMMIT_INTERVAL, Event::Commit);
        let mut order: Vec<usize> = (0..STACKS).collect();
        self.random.shuffle(&mut order);
        for number in order {
            if self.members[number].is_open {
                continue;
            }
            if let Some(mut update) = self.members[number].update.take() {
                self.queue.withdraw(&update.uid().unwrap(), self.instant());
                update.metadata.deletion_timestamp = Some(Time(self.now()));
                let revoked = (names::ANNOTATION_REVOKED.to_owned(), "the source has a newer revision".to_owned());
                update.metadata.annotations = Some([revoked].into());
                self.members[number].stack.status =
                    Some(with_result(&self.members[number].stack, &update, None, self.now()));
            }
            self.deliver_source(number);
        }
    }

    fn deliver_source(&mut self, number: usize) {
        let working = State::Working("preparing the workspace".to_owned());
        self.members[number].stack.status = Some(with_state(&self.members[number].stack, &working, self.now()));
        let seconds = self.random.u64(1..90);
        self.after(seconds, Event::SourceDelivered(number, self.commit));
    }

    /// Records the run in the Stack, creates its Update and requests a slot.
    fn create_update(&mut self, number: usize, commit: u64) {
        if commit != self.commit || self.members[number].update.is_some() {
            return;
        }
        let now = self.now();
        let member = &mut self.members[number];
        let attempt = member.stack.status.as_ref().unwrap().attempts.unwrap_or_default() + 1;
        let name = names::update(&member.stack.name_any(), &member.stack.uid().unwrap(), attempt);
        let current = CurrentUpdate {
            inputs: RunInputs { generation: 1, ..RunInputs::default() },
            name: name.clone(),
            ..CurrentUpdate::default()
        };
        member.stack.status = Some(started(&member.stack, &current, None, now));
        let mut update = build_update::update(&member.stack, &current).unwrap();
        update.metadata.uid = Some(name);
        update.metadata.creation_timestamp = Some(Time(now));
        (member.update, member.commit) = (Some(update), commit);
        self.request_slot(number);
    }

    fn request_slot(&mut self, number: usize) {
        let Some(update) = &self.members[number].update else { return };
        let pod: Pod = serde_json::from_value(json!({"spec": {"nodeName": "n", "containers": []}})).unwrap();
        let run = run_in(&pod, update, &[]);
        if self.queue.request(&run, number, self.instant()).is_ok() {
            self.members[number].is_open = true;
            self.members[number].starts.push(self.second);
            let seconds = self.random.u64(RUN / 2..=RUN * 3 / 2);
            self.after(seconds, Event::Ended(number));
        }
    }

    /// Records the result of a run. One in twenty runs fails, and the Stack retries it immediately.
    fn finish_run(&mut self, number: usize) {
        let (now, instant) = (self.now(), self.instant());
        let member = &mut self.members[number];
        let mut update = member.update.take().unwrap();
        update.status = Some(UpdateStatus { run: Some(RunBinding::default()), ..UpdateStatus::default() });
        member.stack.status = Some(with_result(&member.stack, &update, None, now));
        member.is_open = false;
        let is_behind = member.commit != self.commit || self.random.u8(..) < 13;
        self.queue.close(&update.uid().unwrap(), instant);
        if is_behind {
            self.deliver_source(number);
        }
    }
}

#[test]
fn each_stack_runs_within_1_5_times_the_time_that_all_stacks_need() {
    let limit = PASS * 3 / 2;
    for seed in 1..=3 {
        let mut simulation = Simulation::new(seed);
        let end = 4 * PASS;
        simulation.run_until(end);
        let mut longest = 0;
        for member in &simulation.members {
            // Ten commits arrive during one pass, so each Stack always has a pending run.
            let times = std::iter::once(&0).chain(&member.starts).chain(std::iter::once(&end));
            let gaps = times.clone().zip(times.skip(1)).map(|(from, to)| to - from);
            longest = gaps.max().unwrap_or(end).max(longest);
        }
        assert!(
            longest <= limit,
            "seed {seed}: a Stack waited {longest} s, more than one and a half passes ({limit} s)"
        );
        let runs: usize = simulation.members.iter().map(|member| member.starts.len()).sum();
        assert!(runs as u64 > 4 * STACKS as u64 * 9 / 10, "seed {seed}: slots were idle: {runs} runs");
    }
}
