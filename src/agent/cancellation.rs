//! How a run is cancelled: gracefully, then harder, as the CLI has it.
//!
//! The CLI takes a signal as a request to stop only while its engine runs; before, it dies of it and leaves its lock behind.
//! So the first SIGINT is held back until the engine's first event, but not for ever.

use std::time::Duration;

use tokio::time::Instant;

/// How long the first SIGINT waits for the engine's first event.
pub const HOLD_BACK: Duration = Duration::from_secs(15);
/// How long the CLI has after the second SIGINT, before it and all its descendants are killed.
pub const KILL_GRACE: Duration = Duration::from_secs(30);

/// What was asked for, and when it is to take effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// To end gracefully.
    pub gracefully: Option<Instant>,
    /// To end without waiting for the steps in flight.
    pub harder: Option<Instant>,
}

impl Wish {
    /// Another call to cancel: the first is graceful, the second is harder, more change nothing.
    pub fn escalate(&mut self, now: Instant) {
        if self.gracefully.is_none() {
            self.gracefully = Some(now);
        } else if self.harder.is_none_or(|harder| harder > now) {
            self.harder = Some(now);
        }
    }

    /// The pod is being terminated: gracefully now, and harder early enough that the verdict can be written.
    pub fn terminate(&mut self, now: Instant, harder: Instant) {
        self.gracefully.get_or_insert(now);
        self.harder = Some(self.harder.map_or(harder, |earlier| earlier.min(harder)));
    }

    pub fn is_made(&self) -> bool {
        self.gracefully.is_some()
    }
}

/// What is to be done to the CLI now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// SIGINT to the CLI alone: it passes it on as it sees fit.
    Interrupt,
    /// SIGKILL to all processes of the run.
    Kill,
}

/// What was done to the CLI so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sent {
    #[default]
    Nothing,
    First,
    Second {
        at: Instant,
    },
    Kill,
}

/// Decides what is due; one for each process of the CLI.
#[derive(Debug, Default)]
pub struct Cancellation {
    engine_began: bool,
    sent: Sent,
}

impl Cancellation {
    /// The engine's first event has come.
    pub fn engine_began(&mut self) {
        self.engine_began = true;
    }

    /// What is due now. Each step is given once.
    pub fn due(&mut self, wish: &Wish, now: Instant) -> Option<Step> {
        let (sent, step) = match self.sent {
            Sent::Nothing if wish.gracefully.is_some_and(|at| self.engine_began || now >= at + HOLD_BACK) => {
                (Sent::First, Step::Interrupt)
            }
            Sent::First if wish.harder.is_some_and(|at| now >= at) => (Sent::Second { at: now }, Step::Interrupt),
            Sent::Second { at } if now >= at + KILL_GRACE => (Sent::Kill, Step::Kill),
            _ => return None,
        };
        self.sent = sent;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is sent, by the second, when `calls` come at the given seconds and the engine begins at `began`.
    fn sent(calls: &[u32], began: Option<u32>, seconds: u32) -> Vec<(u32, Step)> {
        let start = Instant::now();
        let (mut wish, mut cancellation) = (Wish::default(), Cancellation::default());
        let mut steps = Vec::new();
        for second in 0..seconds {
            let now = start + SECOND * second;
            calls.iter().filter(|call| **call == second).for_each(|_| wish.escalate(now));
            if began == Some(second) {
                cancellation.engine_began();
            }
            while let Some(step) = cancellation.due(&wish, now) {
                steps.push((second, step));
            }
        }
        steps
    }

    #[test]
    fn signals_come_in_order_and_the_first_waits_for_the_engine() {
        use Step::{Interrupt, Kill};
        for (calls, began, wanted) in [
            (&[][..], Some(1), vec![]),
            (&[5][..], Some(1), vec![(5, Interrupt)]),
            (&[1][..], Some(6), vec![(6, Interrupt)]),
            (&[1][..], None, vec![(16, Interrupt)]),
            (&[5, 8][..], Some(1), vec![(5, Interrupt), (8, Interrupt), (38, Kill)]),
            (&[5, 8, 9, 10][..], Some(1), vec![(5, Interrupt), (8, Interrupt), (38, Kill)]),
            (&[1, 2][..], Some(4), vec![(4, Interrupt), (4, Interrupt), (34, Kill)]),
        ] {
            assert_eq!(sent(calls, began, 120), wanted, "{calls:?} {began:?}");
        }
    }

    #[test]
    fn a_termination_takes_nothing_back_that_was_asked_for_before() {
        let now = Instant::now();
        let mut wish = Wish::default();
        wish.escalate(now);
        wish.escalate(now + SECOND);
        wish.terminate(now + SECOND * 2, now + SECOND * 400);
        assert_eq!(wish, Wish { gracefully: Some(now), harder: Some(now + SECOND) });
        let mut wish = Wish::default();
        wish.terminate(now, now + SECOND * 400);
        wish.escalate(now + SECOND);
        assert_eq!(wish.harder, Some(now + SECOND));
    }
}
