//! The history of recent runs in the status, merged as in Flux.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::auto::UpdateStatus;
use crate::api::duration;
use crate::api::pulumi::{CurrentUpdate, Snapshot};

/// Maximum number of snapshots in the history.
const MAX_SNAPSHOTS: usize = 5;

/// Adds a completed run. If a snapshot with the same artifact and outcome exists, its count is increased and it becomes the newest.
pub fn add(history: &mut Vec<Snapshot>, run: &CurrentUpdate, result: &UpdateStatus, outcome: &str, now: Timestamp) {
    let Some(digest) = run.digest.clone() else { return };
    let is_same = |known: &Snapshot| known.digest == digest && known.last_reconciled_status == outcome;
    let before = history.iter().position(is_same).map(|at| history.remove(at));
    let snapshot = Snapshot {
        first_reconciled: before.as_ref().map_or(Time(now), |before| before.first_reconciled.clone()),
        last_reconciled: Time(now),
        last_reconciled_duration: duration::display(took(result)),
        last_reconciled_status: outcome.to_owned(),
        total_reconciliations: before.map_or(0, |before| before.total_reconciliations).saturating_add(1),
        metadata: [("revision", &run.commit), ("originRevision", &run.origin_revision)]
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
            .collect(),
        digest,
    };
    history.insert(0, snapshot);
    history.truncate(MAX_SNAPSHOTS);
}

/// Returns the duration of a run; zero if it never started.
fn took(result: &UpdateStatus) -> SignedDuration {
    match (&result.start_time, &result.end_time) {
        (Some(start), Some(end)) => end.0.duration_since(start.0),
        _ => SignedDuration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(digest: &str) -> CurrentUpdate {
        CurrentUpdate {
            digest: Some(digest.to_owned()),
            commit: Some(format!("latest@{digest}")),
            origin_revision: Some("main@sha1:a".to_owned()),
            ..CurrentUpdate::default()
        }
    }

    fn brief(history: &[Snapshot]) -> Vec<String> {
        let line = |s: &Snapshot| format!("{} {} {}", s.digest, s.last_reconciled_status, s.total_reconciliations);
        history.iter().map(line).collect()
    }

    #[test]
    fn a_repeated_artifact_and_outcome_updates_its_history_entry() {
        let mut history = Vec::new();
        let ended =
            UpdateStatus { start_time: Some(Time(at(100))), end_time: Some(Time(at(162))), ..Default::default() };
        let runs = [("a", "Done"), ("a", "Failed"), ("b", "Done"), ("a", "Done"), ("a", "Done")];
        for (second, (digest, outcome)) in (1..).zip(runs) {
            add(&mut history, &run(digest), &ended, outcome, at(second));
        }
        assert_eq!(brief(&history), ["a Done 3", "b Done 1", "a Failed 1"]);
        let newest = &history[0];
        assert_eq!((newest.first_reconciled.0, newest.last_reconciled.0), (at(1), at(5)));
        assert_eq!(newest.last_reconciled_duration, "1m2s");
        let metadata: Vec<(&str, &str)> = newest.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(metadata, [("originRevision", "main@sha1:a"), ("revision", "latest@a")]);
    }

    #[test]
    fn the_history_keeps_the_newest_five_entries() {
        let mut history = Vec::new();
        for (second, digest) in (1..).zip(["a", "b", "c", "d", "e", "f", "g"]) {
            add(&mut history, &run(digest), &UpdateStatus::default(), "Done", at(second));
        }
        assert_eq!(brief(&history), ["g Done 1", "f Done 1", "e Done 1", "d Done 1", "c Done 1"]);
        assert_eq!(history[0].last_reconciled_duration, "0s", "nothing is known of how long it took");
    }
}
