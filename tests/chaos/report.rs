//! Statistics of a chaos test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::checks::{Violation, was_hit};
use crate::facts::{Facts, Run, RunOutcome};
use crate::plan::Kind;
use crate::storm::StormResults;

/// Results of a chaos test.
#[derive(Debug)]
pub struct Tally {
    /// Number of acts by kind.
    pub done: BTreeMap<Kind, usize>,
    pub runs: usize,
    /// Number of runs that faults have interrupted.
    pub interrupted: usize,
    /// Number of interrupted runs that a successful run of the same Stack followed.
    pub recovered: usize,
    /// Number of decisions that the simulated user has made for waiting Stacks.
    pub resolved: usize,
    pub settled_after: Option<Duration>,
    pub broken: Vec<Violation>,
    /// Unjustified requests for a decision.
    pub unjustified: Vec<String>,
}

impl Tally {
    pub fn of(results: &StormResults, broken: Vec<Violation>) -> Tally {
        let mut done: BTreeMap<Kind, usize> = Kind::all().map(|kind| (kind, 0)).collect();
        for kind in results.log.iter().filter_map(|entry| entry.kind) {
            *done.entry(kind).or_default() += 1;
        }
        let interrupted: usize = results.facts.iter().map(|facts| interrupted(facts).count()).sum();
        let recovered = results.facts.iter().map(interrupted_and_recovered).sum();
        Tally {
            done,
            runs: results.facts.iter().map(|facts| facts.runs.len()).sum(),
            interrupted,
            recovered,
            resolved: results.resolutions.len(),
            settled_after: results.settled_after,
            broken,
            unjustified: results.resolutions.iter().filter_map(|resolution| resolution.unjustified.clone()).collect(),
        }
    }

    /// Returns the number of lost results.
    pub fn lost(&self) -> usize {
        self.broken.iter().filter(|broken| broken.kind.is_loss()).count()
    }

    /// Returns the number of repeated operations.
    pub fn doubled(&self) -> usize {
        self.broken.iter().filter(|broken| broken.kind.is_double()).count()
    }

    pub fn is_good(&self) -> bool {
        self.problems().is_empty()
    }

    /// Returns the report in Markdown.
    pub fn markdown(&self, seed: u64, length: Duration) -> String {
        let mut text = format!("Seed {seed}, {} s of faults.\n\n| | |\n|---|---:|\n", length.as_secs());
        let mut row = |what: String, number: String| text.push_str(&format!("| {what} | {number} |\n"));
        for (kind, count) in &self.done {
            row(kind.to_string(), count.to_string());
        }
        let faults: usize = self.done.iter().filter(|(kind, _)| kind.is_fault()).map(|(_, count)| count).sum();
        row("**faults**".to_owned(), faults.to_string());
        row("**runs**".to_owned(), self.runs.to_string());
        row("interrupted".to_owned(), self.interrupted.to_string());
        row("recovered".to_owned(), self.recovered.to_string());
        row("decisions by the user".to_owned(), self.resolved.to_string());
        row("**lost**".to_owned(), self.lost().to_string());
        row("**doubled**".to_owned(), self.doubled().to_string());
        let settled = self
            .settled_after
            .map_or_else(|| "not settled".to_owned(), |after| format!("{:.0} s", after.as_secs_f64()));
        row("time from the last fault until all Stacks were Ready".to_owned(), settled);
        for problem in self.problems() {
            let _ = writeln!(text, "\n- {problem}");
        }
        text
    }

    /// Returns a description of each violated guarantee.
    pub fn problems(&self) -> Vec<String> {
        let unsettled = self.settled_after.is_none().then(|| "not all Stacks are Ready".to_owned());
        let broken = self.broken.iter().map(ToString::to_string);
        broken.chain(self.unjustified.iter().cloned()).chain(unsettled).collect()
    }

    /// Prints the report, writes the report to the target directory, and returns the path.
    pub fn publish(&self, seed: u64, length: Duration) -> PathBuf {
        let text = self.markdown(seed, length);
        println!("\n{text}");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("chaos");
        let file = folder.join("report.md");
        if let Err(error) = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, text)) {
            println!("failed to write the report to {}: {error}", file.display());
        }
        file
    }
}

fn interrupted(facts: &Facts) -> impl Iterator<Item = (usize, &Run)> {
    let is_interrupted = |run: &Run| matches!(run.outcome, Some(RunOutcome::Failed { .. })) && was_hit(facts, run);
    facts.runs.iter().enumerate().filter(move |(_, run)| is_interrupted(run))
}

fn interrupted_and_recovered(facts: &Facts) -> usize {
    let recovered = |(position, _): &(usize, &Run)| {
        let later = facts.runs.iter().skip(position + 1);
        later.clone().any(|run| run.outcome == Some(RunOutcome::Succeeded))
    };
    interrupted(facts).filter(recovered).count()
}
