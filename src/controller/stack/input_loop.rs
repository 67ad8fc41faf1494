//! Limits the rate of runs that start because Secrets or ConfigMaps have changed. Two Stacks can form a loop if each of
//! them writes its outputs (`spec.writeOutputsTo`) to an object that configures the other Stack. If the outputs differ
//! after each run, both Stacks would run endlessly without this limit. The limit applies only to Stacks that write
//! outputs, because only such Stacks can be part of a loop.

use jiff::{SignedDuration, Timestamp};

use crate::api::conditions::{self, stack_reason};
use crate::api::pulumi::{RunRecord, Stack};
use crate::controller::stack::restrictions::Held;
use crate::controller::stack::{approval, run, schedule};

/// Maximum number of consecutive runs in [`PERIOD`] due to changed Secrets and ConfigMaps.
const MAX_RUNS: usize = 6;
const PERIOD: SignedDuration = SignedDuration::from_hours(1);

/// Returns the reason why a due run with this cause must wait. Returns `None` if the run may start. A run with another
/// cause, such as a request or an approval, ends the sequence of consecutive runs. A run that executes a plan without
/// an approval continues the sequence. Runs at the interval and retries after a failure neither end nor extend the
/// sequence.
pub fn held(stack: &Stack, cause: &str, now: Timestamp) -> Option<Held> {
    let status = stack.status.as_ref()?;
    if stack.spec.write_outputs_to.is_empty() || !run::is_input_change(cause) {
        return None;
    }
    let is_automatic = |cause: &str| run::is_input_change(cause) || approval::is_automatic(cause);
    let is_repeated = |run: &&RunRecord| run.cause.as_deref().is_some_and(is_automatic);
    let counts = |run: &&RunRecord| !run.cause.as_deref().is_some_and(schedule::has_cause_without_change);
    let repeated = status.runs.iter().filter(counts).take_while(is_repeated);
    let first = repeated.filter_map(|run| run.end_time.as_ref()).nth(MAX_RUNS - 1)?.0;
    let until = first.checked_add(PERIOD).ok()?;
    let message = format!(
        "{cause}, but the last {MAX_RUNS} runs had the same kind of cause, and the Stack writes outputs to objects \
         (spec.writeOutputsTo); the next run starts at {}. If other Stacks use these outputs to change the inputs of this \
         Stack, remove the loop. To start a run now, request it with the annotation reconcile.fluxcd.io/requestedAt",
        conditions::time(until)
    );
    (until > now).then_some(Held { reason: stack_reason::INPUTS_CHANGE_OFTEN, message, until: Some(until) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CONFIG: &str = "A Secret or ConfigMap referenced by the configuration has changed";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Returns a Stack with these runs, newest first. The newest run ended at 1000 s, and each earlier run ended 100 s
    /// before the next run.
    fn stack(causes: &[&str], targets: Value) -> Stack {
        let run = |(number, cause): (usize, &&str)| {
            let end = at(1000 - 100 * i64::try_from(number).unwrap()).to_string();
            json!({"name": format!("web-{number}"), "type": "up", "state": "succeeded", "cause": cause, "endTime": end})
        };
        let runs: Vec<Value> = causes.iter().enumerate().map(run).collect();
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack", "metadata": {"name": "web"},
            "spec": {"stack": "dev", "writeOutputsTo": targets}, "status": {"runs": runs},
        }))
        .unwrap()
    }

    #[test]
    fn many_consecutive_runs_because_of_changed_inputs_delay_the_next_one() {
        let targets = || json!([{"kind": "ConfigMap", "name": "outputs"}]);
        let repeated = [CONFIG, "ConfigMap a has changed", CONFIG, "Secret b has changed", CONFIG, CONFIG];
        let with_request =
            [CONFIG, CONFIG, "Requested at: \"1\"", CONFIG, CONFIG, CONFIG, CONFIG, CONFIG, CONFIG, CONFIG];
        let plan = "Plan within the limits of spec.approval";
        let plans = [plan, CONFIG, "Plan without changes", CONFIG, plan, CONFIG];
        let resync = "Resync time elapsed: 1m0s";
        let with_resync = [resync, CONFIG, CONFIG, "Backoff time elapsed: 10s", CONFIG, CONFIG, resync, CONFIG, CONFIG];
        let approved = [plan, CONFIG, "Plan approved by alice", CONFIG, plan, CONFIG];
        let end = at(500 + 3600);
        let rows = [
            ("six runs", stack(&repeated, targets()), CONFIG, Some(end)),
            ("plans without approvals", stack(&plans, targets()), CONFIG, Some(end)),
            ("an approval ends the sequence", stack(&approved, targets()), CONFIG, None),
            ("another cause", stack(&repeated, targets()), "New commit detected: \"main@sha1:a\"", None),
            (
                "runs at the interval and retries do not count",
                stack(&with_resync, targets()),
                CONFIG,
                Some(at(200 + 3600)),
            ),
            ("five runs", stack(&repeated[..5], targets()), CONFIG, None),
            ("a request ends the sequence", stack(&with_request, targets()), CONFIG, None),
            ("no outputs are written", stack(&repeated, json!([])), CONFIG, None),
            ("no run", stack(&[], targets()), CONFIG, None),
        ];
        for (name, stack, cause, expected) in rows {
            let until = held(&stack, cause, at(1001)).and_then(|held| held.until);
            assert_eq!(until, expected, "{name}");
        }
        let looping = stack(&repeated, targets());
        assert!(held(&looping, CONFIG, end).is_none(), "the time has passed");
        let held = held(&looping, CONFIG, at(1001)).unwrap();
        assert_eq!(held.reason, "InputsChangeOften");
        assert!(held.message.contains("has changed, but the last 6 runs"), "{}", held.message);
    }
}
