//! Runs that need a slot, the slot limits, and the order of runs within a namespace.

use jiff::{SignedDuration, Timestamp};

/// Waiting time that is equivalent to one priority level. A run with a higher priority therefore delays other runs
/// only for a limited time, and no run waits forever.
const PRIORITY_LEVEL: SignedDuration = SignedDuration::from_mins(10);
/// Delay that the queue adds to the due time of a background run. The delay is limited, so that drift checks start even
/// in a namespace whose queue is never empty.
const BACKGROUND_DELAY: SignedDuration = SignedDuration::from_hours(24);

/// Run that needs a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub uid: String,
    pub namespace: String,
    /// Name of the Workspace that executes the run.
    pub workspace: String,
    /// Node of the workspace pod.
    pub node: String,
    /// Priority of the run within its namespace.
    pub priority: i32,
    /// Whether the run has no new inputs, such as a drift check. Such a run has a lower rank than the other runs of its
    /// namespace.
    pub is_background: bool,
    /// Time at which the run became due.
    pub pending_since: Timestamp,
    /// Creation time of the Update.
    pub created: Timestamp,
    /// Concurrency group of the run.
    pub group: Option<Group>,
    /// Slot share of the namespace. The shares of open runs determine how many runs of the namespace take slots from
    /// other namespaces.
    pub share: Share,
    /// Expected duration. `None` if unknown.
    pub expected: Option<SignedDuration>,
    /// Start time of an open run. `None` if unknown.
    pub started: Option<Timestamp>,
}

impl Run {
    /// Returns the time at which the run started to wait for a slot. Users can set `pending_since` to any time, so the
    /// function returns a time that is not before the creation time of the Update.
    pub(super) fn waits_since(&self) -> Timestamp {
        self.pending_since.max(self.created)
    }

    /// Returns whether both runs belong to the same node and the same group.
    pub(super) fn has_same_place(&self, other: &Run) -> bool {
        self.node == other.node && self.group == other.group
    }
}

/// Slot share of a namespace. An administrator sets the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Maximum number of open runs in the namespace. Default: [`Limits::each_namespace`].
    pub limit: Option<usize>,
    /// Weight of the namespace. A namespace with the weight 2 gets twice as many slots as a namespace with the weight
    /// 1.
    pub weight: usize,
}

impl Default for Share {
    fn default() -> Self {
        Share { limit: None, weight: 1 }
    }
}

/// Identity of a concurrency group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// Namespace of the group, or `None` if several namespaces share the group. Groups that have the same name but
    /// belong to different namespaces are independent.
    pub namespace: Option<String>,
    pub name: String,
}

/// Concurrency group of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub key: GroupKey,
    /// Maximum number of open runs in the group. If runs of the group specify different limits, the lowest limit of the
    /// open and queued runs applies.
    pub limit: usize,
}

/// Maximum numbers of open runs: in total, in each namespace and on each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub all: usize,
    pub each_namespace: usize,
    pub each_node: usize,
}

impl Limits {
    /// Returns the maximum number of open runs for a namespace with this share.
    pub fn of_namespace(&self, share: Share) -> usize {
        share.limit.unwrap_or(self.each_namespace)
    }
}

/// Sort key of a run within its namespace. The run with the smallest key starts first. The key contains names, so that
/// runs with the same rank keep their order when the controller restarts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// Due time of the run, minus the lead from its priority, plus the delay of a background run. In milliseconds since
    /// the Unix epoch. This value does not depend on the current time, so the order of the runs never changes.
    rank: i64,
    pending_since: Timestamp,
    workspace: String,
    uid: String,
}

impl Position {
    pub(super) fn of(run: &Run) -> Self {
        Position {
            rank: rank(run),
            pending_since: run.pending_since,
            workspace: run.workspace.clone(),
            uid: run.uid.clone(),
        }
    }

    pub(super) fn uid(&self) -> &str {
        &self.uid
    }
}

fn rank(run: &Run) -> i64 {
    // A Stack's high priority must not move its background runs ahead of the namespace's other runs.
    let priority = if run.is_background { run.priority.min(0) } else { run.priority };
    let delay = if run.is_background { milliseconds(BACKGROUND_DELAY) } else { 0 };
    let lead = milliseconds(PRIORITY_LEVEL).saturating_mul(i64::from(priority));
    run.pending_since.as_millisecond().saturating_add(delay).saturating_sub(lead)
}

fn milliseconds(duration: SignedDuration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(priority: i32, is_background: bool, pending_since: i64) -> Run {
        let pending_since = Timestamp::from_second(pending_since).unwrap();
        Run { priority, is_background, pending_since, ..Run::default() }
    }

    #[test]
    fn a_waiting_run_gains_one_level_of_priority_in_ten_minutes() {
        let day = 24 * 3600;
        // In each row, the first run starts before the second run.
        let rows = [
            ("earlier run", run(0, false, 0), run(0, false, 1)),
            ("higher priority", run(1, false, 599), run(0, false, 0)),
            ("the other run has waited longer", run(0, false, 0), run(1, false, 601)),
            ("lower priority", run(0, false, 599), run(-1, false, 0)),
            ("no run waits forever", run(-1000, false, 0), run(1000, false, 2000 * 600 + 1)),
            ("background run", run(0, false, day - 1), run(0, true, 0)),
            ("background run with a high priority", run(0, false, day - 1), run(1000, true, 0)),
            ("a background run has waited for a day", run(0, true, 0), run(0, false, day + 1)),
            ("two background runs", run(0, true, 0), run(0, true, 1)),
            ("background run with a low priority", run(0, true, 599), run(-1, true, 0)),
        ];
        for (name, first, second) in rows {
            assert!(Position::of(&first) < Position::of(&second), "{name}");
        }
    }
}
