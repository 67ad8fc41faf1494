//! What is done to the scene, and when: drawn from a seed before anything happens. Pure.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// One thing that a day brings.
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

/// How often each kind is in a deck: all of it happens before any of it happens again. Most of what can be broken is a
/// run, and runs come from pushes.
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

/// The pause before each.
const FAULT_INTERVALS: std::ops::Range<u64> = 2_000..6_000;
/// How long the API server is away.
pub const API_SERVER_AWAY: Duration = Duration::from_secs(20);

impl Kind {
    /// Whether it breaks something; the others are what users do.
    pub fn is_fault(self) -> bool {
        !matches!(self, Kind::PushRevision | Kind::RecreateStack)
    }

    /// All, in their order.
    pub fn all() -> impl Iterator<Item = Kind> {
        DECK.into_iter().map(|(kind, _)| kind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Kind::PushRevision => "a revision pushed",
            Kind::RecreateStack => "a Stack deleted and created again",
            Kind::KillController => "the controller killed",
            Kind::MoveLeader => "the leader moved",
            Kind::DeletePod => "a pod deleted",
            Kind::ForceDeletePod => "a pod deleted by force",
            Kind::KillAgent => "an agent killed",
            Kind::KillPulumi => "`pulumi` killed",
            Kind::KillProvider => "a provider killed",
            Kind::StopApiServer => "the API server away for 20 s",
        })
    }
}

/// What to do at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act {
    /// Since the begin.
    pub at: Duration,
    pub kind: Kind,
    /// Which of the candidates, whoever they will be.
    pub pick: usize,
}

/// All that happens within a time.
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
    fn the_same_seed_makes_the_same_plan_and_another_one_another() {
        assert_eq!(plan(7, SHORT), plan(7, SHORT));
        assert_ne!(plan(7, SHORT), plan(8, SHORT));
    }

    #[test]
    fn all_kinds_happen_in_two_minutes_at_a_bounded_rate() {
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
    fn a_long_plan_begins_as_the_short_one_of_its_seed() {
        let (short, long) = (plan(3, SHORT), plan(3, Duration::from_secs(600)));
        assert_eq!(long[..short.len()], short);
        assert!(long.len() > 4 * short.len(), "{} and {}", long.len(), short.len());
    }
}
