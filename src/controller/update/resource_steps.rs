//! Records the times of a run's resource operations for the trace spans. The agent is not trusted, so the module
//! limits the number and the size of the recorded operations. This module performs no I/O.

use crate::controller::update::progress::kind_and_name;
use crate::rpc::proto::{self, StepState, progress};

/// Maximum number of recorded operations per run.
const MAX_STEPS: usize = 500;
/// Maximum length of a URN, in bytes. The module removes the beginning of a longer URN, because the end contains the
/// name of the resource.
const MAX_URN: usize = 512;
/// Maximum length of an operation name, in bytes.
const MAX_OPERATION: usize = 32;

/// Resource operation. The times are in milliseconds since the Unix epoch, as in the agent's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceStep {
    pub urn: String,
    /// Name of the engine operation, such as `create`.
    pub operation: String,
    /// Type of the resource, such as `aws:s3:Bucket`.
    pub kind: String,
    pub name: String,
    pub start: i64,
    /// End of the operation, or `None` if the operation is in progress.
    pub end: Option<i64>,
    pub has_failed: bool,
}

/// The first resource operations of a run, ordered by start time. Operations on unchanged resources are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceSteps {
    steps: Vec<ResourceStep>,
    omitted: i64,
}

impl ResourceSteps {
    /// Processes a message from the agent.
    pub fn observe(&mut self, progress: &proto::Progress) {
        let Some(progress::Event::Resource(step)) = &progress.event else { return };
        if step.operation == "same" {
            return;
        }
        match step.state() {
            StepState::Begun if self.steps.len() < MAX_STEPS => self.steps.push(begun(step, progress.time)),
            StepState::Begun => self.omitted = self.omitted.saturating_add(1),
            StepState::Done | StepState::Failed => self.end(step, progress.time),
            StepState::Unspecified => {}
        }
    }

    /// Sets the end time of the newest open operation that has the same URN and operation name.
    fn end(&mut self, ended: &proto::ResourceStep, time: i64) {
        let (urn, operation) = (last_bytes(&ended.urn), operation(ended));
        let is_it = |step: &&mut ResourceStep| step.end.is_none() && step.urn == urn && step.operation == operation;
        if let Some(step) = self.steps.iter_mut().rev().find(is_it) {
            step.end = Some(time);
            step.has_failed = ended.state() == StepState::Failed;
        }
    }

    pub fn steps(&self) -> &[ResourceStep] {
        &self.steps
    }

    /// Returns the number of operations that exceed the limit.
    pub fn omitted(&self) -> i64 {
        self.omitted
    }
}

fn begun(step: &proto::ResourceStep, time: i64) -> ResourceStep {
    let (kind, name) = kind_and_name(&step.urn);
    ResourceStep {
        urn: last_bytes(&step.urn).to_owned(),
        operation: operation(step).to_owned(),
        kind,
        name,
        start: time,
        end: None,
        has_failed: false,
    }
}

fn last_bytes(urn: &str) -> &str {
    let begin = urn.ceil_char_boundary(urn.len().saturating_sub(MAX_URN));
    urn.get(begin..).unwrap_or_default()
}

fn operation(step: &proto::ResourceStep) -> &str {
    step.operation.get(..step.operation.floor_char_boundary(MAX_OPERATION)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time: i64, name: &str, operation: &str, state: StepState) -> proto::Progress {
        let urn = format!("urn:pulumi:dev::app::aws:s3/bucket:Bucket::{name}");
        let step = proto::ResourceStep { urn, operation: operation.to_owned(), state: state.into() };
        proto::Progress { sequence: 1, time, event: Some(progress::Event::Resource(step)) }
    }

    #[test]
    fn an_operation_has_the_times_of_its_events() {
        let mut steps = ResourceSteps::default();
        for (time, name, operation, state) in [
            (1, "a", "create", StepState::Begun),
            (2, "b", "delete", StepState::Begun),
            (3, "c", "same", StepState::Begun),
            (4, "b", "delete", StepState::Failed),
            (5, "a", "create", StepState::Done),
            (6, "a", "create", StepState::Done),
            (7, "d", "update", StepState::Begun),
        ] {
            steps.observe(&event(time, name, operation, state));
        }
        let shown =
            |step: &ResourceStep| (step.name.clone(), step.operation.clone(), step.start, step.end, step.has_failed);
        let expected = [
            ("a".to_owned(), "create".to_owned(), 1, Some(5), false),
            ("b".to_owned(), "delete".to_owned(), 2, Some(4), true),
            ("d".to_owned(), "update".to_owned(), 7, None, false),
        ];
        assert_eq!(steps.steps().iter().map(shown).collect::<Vec<_>>(), expected);
        assert_eq!(steps.steps()[0].kind, "aws:s3:Bucket");
    }

    #[test]
    fn a_hostile_agent_cannot_exceed_the_limits() {
        let mut steps = ResourceSteps::default();
        let long = "ä".repeat(100_000);
        for number in 0..2 * MAX_STEPS {
            steps.observe(&event(i64::MAX, &format!("{long}{number}"), &long, StepState::Begun));
            steps.observe(&event(i64::MIN, &long, &long, StepState::Done));
        }
        assert_eq!((steps.steps().len(), steps.omitted()), (MAX_STEPS, MAX_STEPS as i64));
        for step in steps.steps() {
            let texts = [&step.urn, &step.operation, &step.kind, &step.name];
            assert!(texts.into_iter().map(String::len).sum::<usize>() < 1024, "{step:?}");
        }
    }
}
