use super::*;

const SECOND: Duration = Duration::from_secs(1);
const GRACE_PERIOD: Duration = Duration::from_secs(60);

/// Does the same as a `Cancel` call.
fn call_cancel(cancel_request: &mut CancelRequest, now: Instant) {
    cancel_request.cancel(Cause::Requested, now, now + GRACE_PERIOD);
}

/// Returns the signals that the agent sends, with their times. All times are in seconds: `calls` are the times of
/// `Cancel` calls, and `began` is the time of the engine's first event.
fn sent(calls: &[u32], began: Option<u32>) -> Vec<(u32, Step)> {
    sent_with(calls, began, |_, _, _| {})
}

/// Does the same as [`sent`], and calls `observe` every second.
fn sent_with(calls: &[u32], began: Option<u32>, observe: impl Fn(&mut Cancellation, u32, Instant)) -> Vec<(u32, Step)> {
    let start = Instant::now();
    let (mut cancel_request, mut cancellation) = (CancelRequest::default(), Cancellation::default());
    let mut steps = Vec::new();
    for second in 0..200 {
        let now = start + SECOND * second;
        calls.iter().filter(|call| **call == second).for_each(|_| call_cancel(&mut cancel_request, now));
        if began == Some(second) {
            cancellation.engine_began();
        }
        observe(&mut cancellation, second, now);
        while let Some(step) = cancellation.next_signal(&cancel_request, now) {
            steps.push((second, step));
        }
    }
    steps
}

#[test]
fn a_cancellation_interrupts_the_cli_twice_and_then_kills_the_cli() {
    use Step::{Interrupt, Kill};
    for (calls, began, expected) in [
        (&[][..], Some(1), vec![]),
        (&[5][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
        (&[1][..], Some(6), vec![(6, Interrupt), (61, Interrupt), (91, Kill)]),
        // Without an engine, the CLI has no resource operation to complete.
        (&[1][..], None, vec![(16, Interrupt), (46, Kill)]),
        (&[1][..], Some(40), vec![(16, Interrupt), (61, Interrupt), (91, Kill)]),
        // A repeated call has no effect.
        (&[5, 5, 8, 9][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
        (&[1, 2][..], Some(4), vec![(4, Interrupt), (61, Interrupt), (91, Kill)]),
        (&[5, 70][..], Some(1), vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
    ] {
        assert_eq!(sent(calls, began), expected, "{calls:?} {began:?}");
    }
}

/// Returns the signals that the agent sends to an engine without a resource operation in flight during `idle`. All
/// times are in seconds.
fn sent_while_idle(idle: &std::ops::Range<u32>, calls: &[u32]) -> Vec<(u32, Step)> {
    sent_with(calls, Some(0), |cancellation, second, now| cancellation.observe_operations(!idle.contains(&second), now))
}

#[test]
fn an_idle_cli_gets_the_second_sigint_earlier_but_not_the_sigkill() {
    use Step::{Interrupt, Kill};
    for (idle, calls, expected) in [
        (0..200, &[][..], vec![]),
        (0..200, &[5][..], vec![(5, Interrupt), (35, Interrupt), (95, Kill)]),
        (20..200, &[5][..], vec![(5, Interrupt), (50, Interrupt), (95, Kill)]),
        (0..30, &[5][..], vec![(5, Interrupt), (65, Interrupt), (95, Kill)]),
        (0..200, &[5, 40][..], vec![(5, Interrupt), (35, Interrupt), (95, Kill)]),
    ] {
        assert_eq!(sent_while_idle(&idle, calls), expected, "{idle:?} {calls:?}");
    }
}

#[test]
fn a_cancellation_is_forced_only_after_the_grace_period() {
    let start = Instant::now();
    let (mut cancel_request, mut cancellation) = (CancelRequest::default(), Cancellation::default());
    cancellation.engine_began();
    call_cancel(&mut cancel_request, start);
    assert_eq!(cancellation.next_signal(&cancel_request, start), Some(Step::Interrupt));
    assert_eq!(cancellation.next_signal(&cancel_request, start + GRACE_PERIOD - SECOND), None);
    assert!(!cancellation.was_forced());
    assert_eq!(cancellation.next_signal(&cancel_request, start + GRACE_PERIOD), Some(Step::Interrupt));
    assert!(cancellation.was_forced());
}

#[test]
fn a_later_cause_does_not_revert_an_earlier_cancellation() {
    let now = Instant::now();
    let later = |seconds: u32| now + SECOND * seconds;
    let timeout = Cause::Timeout(SECOND);
    type Call = fn(&mut CancelRequest, Instant);
    let ask: Call = call_cancel;
    let terminate: Call = |cancel_request, now| cancel_request.cancel(Cause::Terminated, now, now + SECOND * 400);
    let late: Call = |cancel_request, now| cancel_request.cancel(Cause::Timeout(SECOND), now, now + GRACE_PERIOD);
    for (calls, cause, forced_at) in [
        (vec![ask], Cause::Requested, later(60)),
        (vec![ask, ask], Cause::Requested, later(60)),
        (vec![ask, ask, terminate], Cause::Requested, later(60)),
        (vec![terminate], Cause::Terminated, later(400)),
        (vec![terminate, ask], Cause::Terminated, later(61)),
        (vec![terminate, ask, ask], Cause::Terminated, later(61)),
        (vec![late, ask], timeout, later(60)),
        (vec![late, terminate], timeout, later(60)),
    ] {
        let mut cancel_request = CancelRequest::default();
        calls.iter().zip(0..).for_each(|(call, second)| call(&mut cancel_request, later(second)));
        assert_eq!(
            (cancel_request.graceful_at, cancel_request.cause, cancel_request.forced_at),
            (Some(now), Some(cause), Some(forced_at))
        );
    }
}

#[test]
fn each_timeout_ends_a_run_and_an_idle_run_is_reported_earlier() {
    let limits = Limits::from_seconds(600, 60);
    let seconds = Duration::from_secs;
    for (limits, since_begin, silent, exceeded, is_idle) in [
        (limits, 599, 0, None, false),
        (limits, 600, 0, Some(Cause::Timeout(seconds(600))), false),
        (limits, 100, 29, None, false),
        (limits, 100, 30, None, true),
        (limits, 100, 59, None, true),
        (limits, 100, 60, Some(Cause::Idle(seconds(60))), true),
        (limits, 600, 60, Some(Cause::Timeout(seconds(600))), true),
        (Limits::from_seconds(0, 60), 100_000, 1, None, false),
        (Limits::from_seconds(600, 0), 1, 100_000, None, false),
        (Limits::default(), 100_000, 100_000, None, false),
    ] {
        let found = limits.exceeded(seconds(since_begin), seconds(silent));
        assert_eq!((found, limits.is_idle(seconds(silent))), (exceeded, is_idle), "{limits:?} {since_begin} {silent}");
    }
}

#[test]
fn a_cancellation_cause_shows_a_human_readable_duration() {
    for (seconds, shown) in [(0, "0s"), (45, "45s"), (600, "10m"), (5400, "1h30m"), (3601, "1h1s")] {
        let message = Cause::Timeout(Duration::from_secs(seconds)).to_string();
        assert_eq!(message, format!("the run exceeded its timeout of {shown} and was canceled"));
    }
}

#[test]
fn part_of_the_grace_period_is_reserved_for_the_result() {
    for (grace, expected) in [(600, 480.0), (240, 120.0), (30, 15.0), (0, 0.0)] {
        assert_eq!(cancellation_grace(Duration::from_secs(grace)).as_secs_f64(), expected, "{grace}");
    }
}
