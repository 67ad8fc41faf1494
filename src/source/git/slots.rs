//! How much work on repositories goes on at once. All that follow repositories share these slots.

use futures::FutureExt;
use futures::future::select_ok;

use crate::runtime::fair_slots::{Busy, FairSlots, Limits, Slot};

/// Questions to servers at once. Each is a child process with a connection.
const QUESTIONS: Limits = Limits { total: 8, per_key: 4, waiting_per_key: 10_000 };
/// Commits that are fetched or packed at once. Each has a directory on the volume.
const FETCHES: Limits = Limits { total: 3, per_key: 2, waiting_per_key: 10_000 };
/// Of these, commits that are packed at once. Each is a child process with much memory.
const PACKINGS: Limits = Limits { total: 2, per_key: 1, waiting_per_key: 10_000 };

/// The slots. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub struct Slots {
    pub(super) questions: FairSlots,
    pub(super) fetches: FairSlots,
    pub(super) packings: FairSlots,
}

impl Default for Slots {
    fn default() -> Self {
        let [questions, fetches, packings] = [QUESTIONS, FETCHES, PACKINGS].map(FairSlots::new);
        Self { questions, fetches, packings }
    }
}

impl Slots {
    /// The most bytes of the volume that fetches take at once, when each takes so many.
    pub(super) fn volume_bytes(each: u64) -> u64 {
        each.saturating_mul(u64::try_from(FETCHES.total).unwrap_or(u64::MAX))
    }

    /// The most bytes of memory that the child processes take at once.
    pub(super) fn memory_bytes(question: u64, fetch: u64, packing: u64) -> u64 {
        let all = [(QUESTIONS.total, question), (FETCHES.total - PACKINGS.total, fetch), (PACKINGS.total, packing)];
        all.iter().map(|(count, each)| u64::try_from(*count).unwrap_or(u64::MAX).saturating_mul(*each)).sum()
    }
}

/// A slot of one of the namespaces that want a repository: the first that is to be had. So a namespace that has used up its share delays
/// no other one that follows the same repository.
pub(super) async fn of_any(slots: &FairSlots, namespaces: &[String]) -> Result<Slot, Busy> {
    let waits = namespaces.iter().map(|namespace| slots.acquire(namespace).boxed());
    match namespaces {
        [] => Err(Busy { waiting: 0 }),
        _ => select_ok(waits).await.map(|(slot, _)| slot),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_repository_of_several_namespaces_waits_for_none_of_them_alone() {
        let slots = FairSlots::new(Limits { total: 3, per_key: 1, waiting_per_key: 9 });
        let [busy, both] =
            [&["busy"][..], &["busy", "other"]].map(|names| names.iter().map(|n| (*n).to_owned()).collect());
        let (busy, both): (Vec<String>, Vec<String>) = (busy, both);
        let _held = of_any(&slots, &busy).await.unwrap();
        let wait = async |namespaces: &[String]| timeout(Duration::from_secs(1), of_any(&slots, namespaces)).await;
        assert!(wait(&busy).await.is_err(), "its namespace has its slot");
        assert!(wait(&both).await.unwrap().is_ok());
        assert!(wait(&[]).await.unwrap().is_err(), "nobody follows it any more");
    }
}
