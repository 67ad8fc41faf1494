//! Derives the plan for a chaos test from a seed. A plan contains acts and their times. All functions are pure.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// Kind of an act: a user's change or a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    PushRevision,
    RecreateStack,
    KillController,
    MoveLeader,
    DeletePod,
    ForceDeletePod,
    KillAgent,
    KillPulumi,
    KillProvider,
    StopApiServer,
}

/// Number of acts of each kind in one deck. The plan executes all acts of a deck before the acts of the next deck.
/// Pushes are frequent, because most faults interrupt the runs that pushes start.
const DECK: [(Kind, usize); 10] = [
    (Kind::PushRevision, 4),
    (Kind::RecreateStack, 1),
    (Kind::KillController, 1),
    (Kind::MoveLeader, 1),
    (Kind::DeletePod, 1),
    (Kind::ForceDeletePod, 1),
    (Kind::KillAgent, 1),
    (Kind::KillPulumi, 2),
    (Kind::KillProvider, 1),
    (Kind::StopApiServer, 1),
];

/// Range of the delay before each act, in milliseconds.
const FAULT_INTERVALS: std::ops::Range<u64> = 2_000..6_000;
/// Duration of an API server outage.
pub const API_SERVER_AWAY: Duration = Duration::from_secs(20);

impl Kind {
    /// Returns whether the act is a fault and not a change by the simulated user.
    pub fn is_fault(self) -> bool {
        !matches!(self, Kind::PushRevision | Kind::RecreateStack)
    }

    /// Returns all kinds in order.
    pub fn all() -> impl Iterator<Item = Kind> {
        DECK.into_iter().map(|(kind, _)| kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::PushRevision => "push of a revision",
            Kind::RecreateStack => "deletion and recreation of a Stack",
            Kind::KillController => "kill of the controller",
            Kind::MoveLeader => "change of the leader",
            Kind::DeletePod => "deletion of a pod",
            Kind::ForceDeletePod => "forced deletion of a pod",
            Kind::KillAgent => "kill of an agent",
            Kind::KillPulumi => "kill of `pulumi`",
            Kind::KillProvider => "kill of a provider",
            Kind::StopApiServer => "API server outage of 20 s",
        })
    }
}

/// An act with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act {
    /// Time since the start.
    pub at: Duration,
    pub kind: Kind,
    /// Number that selects the target among the candidates at the time of the act.
    pub pick: usize,
}

/// Returns all acts within a duration.
pub fn plan(seed: u64, length: Duration) -> Vec<Act> {
    let mut random = Rng::with_seed(seed);
    let mut acts = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        for kind in shuffled_deck(&mut random) {
            at += Duration::from_millis(random.u64(FAULT_INTERVALS));
            let takes = if kind == Kind::StopApiServer { API_SERVER_AWAY } else { Duration::ZERO };
            if at + takes > length {
                return acts;
            }
            acts.push(Act { at, kind, pick: random.usize(..) });
            at += takes;
        }
    }
}

fn shuffled_deck(random: &mut Rng) -> Vec<Kind> {
    let mut deck: Vec<Kind> = DECK.into_iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, count)).collect();
    random.shuffle(&mut deck);
    deck
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHORT: Duration = Duration::from_secs(120);

    #[test]
    fn a_seed_determines_the_plan_of_faults() {
        assert_eq!(plan(7, SHORT), plan(7, SHORT));
        assert_ne!(plan(7, SHORT), plan(8, SHORT));
    }

    #[test]
    fn every_fault_kind_occurs_within_two_minutes_at_a_bounded_rate() {
        for seed in 0..100 {
            let acts = plan(seed, SHORT);
            let kinds: BTreeSet<Kind> = acts.iter().map(|act| act.kind).collect();
            assert_eq!(kinds, Kind::all().collect(), "seed {seed}");
            for pair in acts.windows(2) {
                let pause = pair[1].at - pair[0].at;
                let least = if pair[0].kind == Kind::StopApiServer { API_SERVER_AWAY } else { Duration::ZERO };
                assert!(pause >= least + Duration::from_millis(FAULT_INTERVALS.start), "seed {seed}: {pair:?}");
            }
            assert!(acts.iter().all(|act| act.at < SHORT), "seed {seed}");
        }
    }

    #[test]
    fn a_long_plan_starts_with_the_short_plan_of_the_same_seed() {
        let (short, long) = (plan(3, SHORT), plan(3, Duration::from_secs(600)));
        assert_eq!(long[..short.len()], short);
        assert!(long.len() > 4 * short.len(), "{} and {}", long.len(), short.len());
    }
}
